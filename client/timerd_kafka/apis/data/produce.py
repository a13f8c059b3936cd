"""Produce: append records to partitions, and wait for their replicas.

A request with acks=0 gets no answer. With acks=1 it is answered when the leader has the records, with acks=all (-1)
when all replicas have them.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from timerd_client.operations import Appended, DelayedProduce, Part
from timerd_kafka.apis.data.reading import Reading, Refused
from timerd_kafka.apis.pauses import Pauses, to_its_end
from timerd_kafka.apis.topics.bounds import refuse_too_many_partitions
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.configs import Rules
from timerd_kafka.log.batch import (
    NO_TIMESTAMP,
    TIMESTAMP_IS_APPEND,
    Batch,
    CorruptBatch,
    InvalidBatch,
    UnsupportedBatch,
    read_produced,
    with_latest,
)
from timerd_kafka.log.producers import Fenced, OutOfOrder
from timerd_kafka.log.times import Record, Unreadable
from timerd_kafka.replicas.partition import Partition, key_of
from timerd_kafka.waits.waits import DaemonLost
from timerd_kafka.wire.codec import milliseconds

ACKS = (-1, 0, 1)

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
LAST_MS = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - EPOCH) // datetime.timedelta(milliseconds=1)

log = logging.getLogger("timerd_kafka.broker")


class Sent(NamedTuple):
    """The batch that a request has for a partition."""

    partition: Partition
    data: bytes
    batch: Batch


class Outcome:
    """The results for the batches of one request, by the keys of their partitions."""

    def __init__(self) -> None:
        # By the topic's number in the request, and by the partition's index: the topic may be deleted meanwhile.
        self.keys: dict[tuple[int, int], str] = {}
        self.appended: dict[str, Appended] = {}
        self.messages: dict[str, str | None] = {}
        self.partitions: dict[str, Partition] = {}
        self.starts: dict[str, int] = {}
        self.times: dict[str, datetime.datetime | None] = {}

    def refuse(self, key: str, refused: Refused) -> None:
        """Note that nothing is appended to a partition."""
        self.appended[key], self.messages[key] = Appended(-1, -1, refused.code), refused.why


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request; None with acks=0."""
    body = call.body
    refuse_too_many_partitions(body.topic_data, "partition_data")
    outcome, pauses = Outcome(), Pauses(call.connection)
    sizes = [len(data.records or b"") for topic in body.topic_data for data in topic.partition_data]
    if pauses.needed(2 * len(sizes)):  # each batch is checked, and then appended: two parts
        await to_its_end(take(broker, call, outcome, pauses))
    else:
        await take(broker, call, outcome, pauses)
    parts = await replicated(broker, call, outcome.appended, outcome.partitions)
    responses = await answered(call, parts, outcome, pauses) if body.acks else ()
    throttle = broker.throttle(broker.produced, call, sum(sizes))  # the pause begins here, with the answer
    if body.acks == 0:
        if any(part.error for part in parts.values()):
            call.connection.refuse("a produce request with acks=0 has failed, and gets no answer with the error")
        return None
    return call.api.make("ProduceResponse", responses=responses, throttle_time=milliseconds(throttle))


async def take(broker: Broker, call: Call, outcome: Outcome, pauses: Pauses) -> None:
    """Check all batches of the request, and append those that are right."""
    sent, twice = dict[str, Sent](), named_twice(broker, call.body)
    for number, topic in enumerate(call.body.topic_data):
        for data in topic.partition_data:
            key = outcome.keys[number, data.index] = key_in(broker, topic, data.index)
            try:
                if key in twice:
                    raise Refused(ErrorCode.invalid_request, "the request names this partition twice")
                sent[key] = check(find(broker, call, topic, data.index), data.records or b"")
            except Refused as refused:
                outcome.refuse(key, refused)
            await pauses.made()
    # They are appended also if the client leaves meanwhile, as one with acks=0 may.
    if any(map(is_read, sent.values())):
        await to_its_end(append_all(broker, sent, outcome, pauses))
    else:
        await append_all(broker, sent, outcome, pauses)


async def answered(call: Call, parts: dict[str, Part], outcome: Outcome, pauses: Pauses) -> tuple[Any, ...]:
    """The answers for all topics."""
    make = call.api.make

    def one(number: int, data: Any) -> Any:
        part = parts[key := outcome.keys[number, data.index]]
        return make(
            "PartitionProduceResponse",
            index=data.index,
            error_code=ErrorCode(part.error),
            base_offset=part.offset,
            log_append_time=outcome.times.get(key) if not part.error else None,
            log_start_offset=outcome.starts.get(key, -1),
            record_errors=(),
            error_message=outcome.messages.get(key),
        )

    topics = []
    for number, topic in enumerate(call.body.topic_data):
        name, topic_id = getattr(topic, "name", None), getattr(topic, "topic_id", None)
        responses = await pauses.each(partial(one, number), topic.partition_data)
        topics.append(make("TopicProduceResponse", name=name, topic_id=topic_id, partition_responses=responses))
        await pauses.made()
    return tuple(topics)


def named_twice(broker: Broker, body: Any) -> set[str]:
    """The keys of partitions that the request names more than once, for which one answer would be ambiguous."""
    counted = Counter(key_in(broker, topic, data.index) for topic in body.topic_data for data in topic.partition_data)
    return {key for key, count in counted.items() if count > 1}


async def replicated(
    broker: Broker, call: Call, appended: dict[str, Appended], partitions: dict[str, Partition]
) -> dict[str, Part]:
    """Wait until the replicas have the appended records, if acks asks for it."""

    def has(key: str, offset: int) -> tuple[bool, int]:
        return partitions[key].replicated(offset)

    timeout = max(0.0, call.body.timeout.total_seconds())
    try:
        parts: dict[str, Part] = await broker.waits.until(
            "produce", timeout, lambda give: DelayedProduce(appended, has, give, acks=call.body.acks)
        )
    except DaemonLost as error:
        log.warning("produce of %s: %s", call.connection.peer, error)
        return {key: now(one, partitions.get(key)) for key, one in appended.items()}
    return parts


def now(one: Appended, partition: Partition | None) -> Part:
    """The answer for a partition without waiting. If the batch is not replicated yet, the client must send it again."""
    if one.error or partition is None:
        return Part(one.error)
    enough, error = partition.replicated(one.required_offset)
    return Part(error or (ErrorCode.none if enough else ErrorCode.request_timed_out), one.base_offset if enough else -1)


def key_in(broker: Broker, topic: Any, index: int) -> str:
    """The key of a partition in this request, whether or not there is such a partition."""
    found = find_topic(broker, topic)
    return key_of(found.id, index) if found else f"{getattr(topic, 'name', None) or topic.topic_id}?{index}"


def find_topic(broker: Broker, topic: Any) -> Any:
    """The topic that a part of the request names."""
    return broker.topic(getattr(topic, "name", None), getattr(topic, "topic_id", None))


def find(broker: Broker, call: Call, topic: Any, index: int) -> Partition:
    """The partition to append to. Raises Refused."""
    if call.body.acks not in ACKS:
        raise Refused(ErrorCode.invalid_required_acks, f"acks={call.body.acks}: 0, 1 or -1 (all)")
    if call.body.transactional_id is not None:
        raise Refused(ErrorCode.transactional_id_authorization_failed, "this broker has no transactions")
    found = find_topic(broker, topic)
    if found is None and getattr(topic, "topic_id", None):
        raise Refused(ErrorCode.unknown_topic_id)
    partition = broker.led(found, index)
    if not isinstance(partition, Partition):
        raise Refused(partition)
    return partition


def wrong_time(batch: Batch, rules: Rules, now_ms: int) -> str | None:
    """The error in the times of a batch; None if they are within the bounds of the topic.

    Kafka looks at each record. This broker does not unpack the batch: it looks at the time of the first record, and at
    the latest time, which the header has. A time of -1 stands for none.
    """
    for each in (batch.base_timestamp, batch.max_timestamp):
        if each >= 0 and each - now_ms > rules.after_max:
            return (
                f"a record's time is {each}, {each - now_ms} ms ahead of the broker's: "
                f"message.timestamp.after.max.ms={rules.after_max}"
            )
        if each >= 0 and now_ms - each > rules.before_max:
            return (
                f"a record's time is {each}, {now_ms - each} ms behind the broker's: "
                f"message.timestamp.before.max.ms={rules.before_max}"
            )
    return None


def check(partition: Partition, data: bytes) -> Sent:
    """The batch for a partition. Raises Refused if its header is wrong, or if it is too large."""
    try:
        batch = read_produced(data)
    except InvalidBatch as error:
        raise Refused(ErrorCode.invalid_record, str(error)) from error
    except CorruptBatch as error:  # clients send it again
        raise Refused(ErrorCode.corrupt_message, str(error)) from error
    except UnsupportedBatch as error:
        raise Refused(ErrorCode.unsupported_for_message_format, str(error)) from error
    most = partition.topic.rules.message_max
    if batch.size > most:
        raise Refused(ErrorCode.message_too_large, f"a batch of {batch.size} bytes: max.message.bytes={most}")
    return Sent(partition, data, batch)


def is_read(sent: Sent) -> bool:
    """Whether the records of a batch are read: for their keys, or because the times of the header cannot be right."""
    rules = sent.partition.topic.rules
    return rules.compacts or (not rules.appends_time and sent.batch.max_timestamp < sent.batch.base_timestamp)


async def with_records_read(sent: Sent, reading: Reading) -> Sent:
    """The batch with the latest time of its records in its header.

    Raises Refused if the records cannot be read, or if one lacks the key that a compacted topic demands.
    """
    partition, data, batch = sent
    rules, latest = partition.topic.rules, NO_TIMESTAMP

    def is_wrong(record: Record) -> bool:
        nonlocal latest
        latest = max(latest, record.timestamp)
        return rules.compacts and not record.has_key

    # The bit says that all records have the broker's time. A producer must not set it: the log ignores it, too.
    header = batch._replace(attributes=batch.attributes & ~TIMESTAMP_IS_APPEND)
    try:
        wrong = await reading.first_in(partition, header, data, is_wrong)
    except Unreadable as error:
        raise Refused(ErrorCode.invalid_record, f"a batch whose records cannot be read: {error}") from error
    if wrong is not None:
        number = wrong.offset - batch.base_offset
        raise Refused(ErrorCode.invalid_record, f"record {number} of a batch has no key: the topic is compacted")
    return Sent(partition, *with_latest(data, batch, latest))


async def append_all(broker: Broker, sent: dict[str, Sent], outcome: Outcome, pauses: Pauses) -> None:
    """Append the batches, and wake those who wait for records."""
    reading = Reading(broker.unpacking)
    for key, each in sent.items():
        partition = each.partition
        try:
            base, end, time_ms = append(await with_records_read(each, reading) if is_read(each) else each)
        except Refused as refused:
            outcome.refuse(key, refused)
        else:
            outcome.appended[key], outcome.starts[key] = Appended(base, end), partition.start_offset
            outcome.partitions[key], outcome.times[key] = partition, moment(time_ms)
            broker.appended(partition)
        await pauses.made()


def append(sent: Sent) -> tuple[int, int, int]:
    """Append a batch, unless it was appended before. Raises Refused.

    Returns its first offset, the offset after its last record, and the time (ms) for the answer. With LogAppendTime
    that is the time of the broker's clock, else -1 (none). For a batch that was appended before, it is the batch's
    latest time, as in Kafka.
    """
    partition, data, batch = sent
    rules, now_ms = partition.topic.rules, time.time_ns() // 1_000_000
    if partition.is_deleted:  # while records were read
        raise Refused(ErrorCode.unknown_topic_or_partition)
    try:
        if batch.is_idempotent and (base := partition.log.producers.duplicate_of(batch)) is not None:
            return base, base + batch.last_offset_delta + 1, partition.log.latest_of(base)
        if not rules.appends_time and (why := wrong_time(batch, rules, now_ms)):
            raise Refused(ErrorCode.invalid_timestamp, why)
        base = partition.append(data, batch, now_ms if rules.appends_time else None)
    except OutOfOrder as error:
        raise Refused(ErrorCode.out_of_order_sequence_number, str(error)) from error
    except Fenced as error:
        raise Refused(ErrorCode.invalid_producer_epoch, str(error)) from error
    except OSError as error:
        log.exception("%s: nothing can be appended", partition.key)
        raise Refused(ErrorCode.kafka_storage_error, str(error)) from error
    return base, partition.end_offset, now_ms if rules.appends_time else NO_TIMESTAMP


def moment(time_ms: int) -> datetime.datetime | None:
    """A time for an answer. None: there is none, or it is not within the years that a datetime can have."""
    return EPOCH + datetime.timedelta(milliseconds=time_ms) if 0 <= time_ms <= LAST_MS else None
