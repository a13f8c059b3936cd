"""ListOffsets: the beginning and the end of a partition, its first record at or after a time, and its latest record.

The header of a batch states the largest time of its records. Only the records show which of them has this time. So
batches are read and unpacked. The broker serves other requests in between, however long that takes.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.data.reading import Reading, Refused
from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many_partitions
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.log.batch import LEADER_EPOCH
from timerd_kafka.log.times import TIME_END, Record
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.wire.codec import milliseconds

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL = -4  # as EARLIEST: here all records are local
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6  # of tiered storage: here there is no such offset
# The first version of the API that has each of them. Kafka knows no other times below 0.
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
NOTHING = -1


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request. As in Kafka, it has each partition once."""
    make, topics = call.api.make, call.body.topics
    refuse_too_many_partitions(topics)
    named = Counter((topic.name, asked.partition_index) for topic in topics for asked in topic.partitions)
    reading, pauses = Reading(broker.unpacking), Pauses()

    async def one(name: str, asked: Any) -> Any:
        error, timestamp, offset = ErrorCode.none, NOTHING, NOTHING
        try:
            if named[name, asked.partition_index] > 1:
                raise Refused(ErrorCode.invalid_request)
            if asked.timestamp < 0 and call.api.version < SINCE.get(asked.timestamp, inf):
                raise Refused(ErrorCode.unsupported_version)
            timestamp, offset = await look(find(broker, name, asked), asked.timestamp, reading)
        except Refused as refused:
            error = refused.code
        return make(
            "ListOffsetsPartitionResponse",
            partition_index=asked.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
        )

    answers: dict[str, dict[int, Any]] = {}
    for topic in topics:
        there = answers.setdefault(topic.name, {})
        for asked in topic.partitions:
            if asked.partition_index not in there:
                there[asked.partition_index] = await one(topic.name, asked)
                await pauses.made()

    def of_topic(name: str) -> Any:
        return make("ListOffsetsTopicResponse", name=name, partitions=tuple(answers[name].values()))

    return make("ListOffsetsResponse", throttle_time=milliseconds(0), topics=await pauses.each(of_topic, answers))


def find(broker: Broker, name: str, asked: Any) -> Partition:
    """The partition that a part of the request names. Raises Refused."""
    partition = broker.led(broker.topic(name), asked.partition_index)
    if not isinstance(partition, Partition):
        raise Refused(partition)
    if getattr(asked, "current_leader_epoch", LEADER_EPOCH) > LEADER_EPOCH:
        raise Refused(ErrorCode.unknown_leader_epoch)
    return partition


async def look(partition: Partition, timestamp: int, reading: Reading) -> tuple[int, int]:
    """The timestamp (ms) and the offset of a record; (-1, -1) if there is none. Raises Refused.

    For the beginning and the end of the partition, the timestamp is -1.
    """
    await reading.rest(partition)
    if timestamp == LATEST:
        return NOTHING, partition.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NOTHING, partition.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING, NOTHING
    if timestamp == MAX_TIMESTAMP:
        return await latest(partition, reading)

    def is_wanted(record: Record) -> bool:
        return record.timestamp >= timestamp and record.offset >= partition.start_offset

    for base in partition.log.batches_from(timestamp, partition.start_offset, partition.high_watermark):
        if found := await reading.first_at(partition, base, is_wanted):
            return found.timestamp, found.offset
    return NOTHING, NOTHING


async def latest(partition: Partition, reading: Reading) -> tuple[int, int]:
    """The record with the largest timestamp, the first one of several (KIP-734).

    A header may state a later time than the records have, for example if the latest of them was deleted. So batches are
    read by the times that they state, the latest first, until no further one can have a later record.
    """
    best, best_offset = NOTHING, NOTHING

    def is_end(record: Record) -> bool:
        nonlocal best, best_offset
        offset, time_ms, _ = record
        if offset >= partition.start_offset and (time_ms > best or (time_ms == best and offset < best_offset)):
            best, best_offset = time_ms, offset
        return best == stated

    stated, end = TIME_END, partition.high_watermark
    while True:
        stated, bases = partition.log.latest_batches(stated, partition.start_offset, end)
        if stated < 0 or stated < best:
            return best, best_offset
        for base in bases:
            if await reading.first_at(partition, base, is_end):
                break
