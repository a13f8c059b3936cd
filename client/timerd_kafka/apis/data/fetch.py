"""Fetch: wait until enough records can be read, and read them.

A consumer reads up to the high watermark, at the leader or at a follower (KIP-392). A follower reads the leader's whole
log. The offsets that it asks for show the leader how much it has. There are no fetch sessions (KIP-227): each request
names its partitions.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from timerd_client.operations import Asked, Available, DelayedFetch
from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many_partitions
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.log.batch import LEADER_EPOCH
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.waits.waits import DaemonLost
from timerd_kafka.wire.codec import milliseconds

CONSUMER = -1
BYTES_MAX = 16 << 20  # of any answer

log = logging.getLogger("timerd_kafka.broker")


class Wanted(NamedTuple):
    """One partition of a request."""

    number: int
    topic: Any
    asked: Any
    partition: Partition | None
    error: ErrorCode
    preferred: int  # the replica that the consumer should ask instead; -1: no other


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    body, make = call.body, call.api.make
    if getattr(body, "session_id", 0):  # v7 and later have sessions
        return make(
            "FetchResponse",
            throttle_time=milliseconds(0),
            error_code=ErrorCode.fetch_session_id_not_found,
            session_id=0,
            responses=(),
        )
    refuse_too_many_partitions(body.topics)
    replica = replica_of(call)
    pauses = Pauses(call.connection)
    wanted = await find(broker, call, replica, pauses)
    lost = False
    if not any(one.error or one.preferred >= 0 for one in wanted):
        lost = not await enough(broker, call, replica, wanted)
    sent, left = 0, min(body.max_bytes, BYTES_MAX)
    answers: dict[int, list[Any]] = {}
    for one in wanted:
        data, size = read(call, replica, one, left, is_first=sent == 0, lost=lost)
        sent, left = sent + size, max(0, left - size)
        answers.setdefault(one.number, []).append(data)
        call.connection.hold_answer(size)
        await pauses.made()

    def of_topic(number: int) -> Any:
        topic = body.topics[number]
        name, topic_id = getattr(topic, "topic", None), getattr(topic, "topic_id", None)
        partitions = tuple(answers.get(number, ()))
        return make("FetchableTopicResponse", topic=name, topic_id=topic_id, partitions=partitions)

    responses = await pauses.each(of_topic, range(len(body.topics)))
    throttle = broker.throttle(broker.fetched, call, sent) if replica == CONSUMER else 0.0
    return make(
        "FetchResponse",
        throttle_time=milliseconds(throttle),
        error_code=ErrorCode.none,
        session_id=0,
        responses=responses,
    )


def replica_of(call: Call) -> int:
    """The number of the follower that asks; CONSUMER for all other clients."""
    state = getattr(call.body, "replica_state", None)
    return int(call.body.replica_id if state is None else state.replica_id)


async def find(broker: Broker, call: Call, replica: int, pauses: Pauses) -> list[Wanted]:
    """The partitions of the request. A follower's request shows what the follower has."""
    found = []
    seen: set[str] = set()
    for number, topic in enumerate(call.body.topics):
        named = broker.topic(getattr(topic, "topic", None), getattr(topic, "topic_id", None))
        for asked in topic.partitions:
            error, preferred = ErrorCode.none, -1
            partition = (
                broker.held(named, asked.partition) if replica == CONSUMER else broker.led(named, asked.partition)
            )
            if not isinstance(partition, Partition):
                error = partition
                if named is None and getattr(topic, "topic_id", None):
                    error = ErrorCode.unknown_topic_id
            elif replica != CONSUMER:
                error = follow(broker, call, replica, partition, asked)
            elif getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
                error = ErrorCode.unknown_leader_epoch
            else:
                preferred = nearer(call, partition)
            held = partition if isinstance(partition, Partition) else None
            if held is not None and held.key in seen:
                held, error = None, ErrorCode.invalid_request  # the request names the partition twice
            seen.add(held.key if held else "")
            found.append(Wanted(number, topic, asked, held, error, preferred))
            await pauses.made()
    return found


def follow(broker: Broker, call: Call, replica: int, partition: Partition, asked: Any) -> ErrorCode:
    """Note that a follower has the log up to the offset that it asks for. Refuses followers of other clusters."""
    if call.client_id != broker.settings.secret or replica not in partition.replicas[1:]:
        return ErrorCode.cluster_authorization_failed
    if asked.fetch_offset > partition.end_offset:
        return ErrorCode.offset_out_of_range
    if partition.follower_has(replica, asked.fetch_offset, asked.log_start_offset):
        broker.replicated(partition)
    return ErrorCode.none


async def enough(broker: Broker, call: Call, replica: int, wanted: list[Wanted]) -> bool:
    """Wait until enough bytes can be read. Returns False if the timer daemon is lost."""
    held = {one.partition.key: one.partition for one in wanted if one.partition}
    asked = {
        one.partition.key: Asked(one.asked.fetch_offset, one.asked.partition_max_bytes)
        for one in wanted
        if one.partition
    }

    def look(key: str, offset: int) -> Available:
        partition = held[key]
        return partition.available(offset) if replica == CONSUMER else partition.available_to(replica, offset)

    try:
        await broker.waits.until(
            "fetch" if replica == CONSUMER else "replica",
            call.body.max_wait.total_seconds(),
            lambda give: DelayedFetch(asked, look, give, min_bytes=call.body.min_bytes),
        )
    except DaemonLost as error:
        log.warning("fetch of %s: %s", call.connection.peer, error)
        return False
    return True


def read(call: Call, replica: int, one: Wanted, left: int, *, is_first: bool, lost: bool) -> tuple[Any, int]:
    """The answer for one partition, and its size in bytes. The whole answer has room for `left` more bytes."""
    partition, error, records = one.partition, one.error, b""
    offset = one.asked.fetch_offset
    if partition is not None and partition.is_deleted:
        named_by_id = getattr(one.topic, "topic_id", None)
        error = ErrorCode.unknown_topic_id if named_by_id else ErrorCode.unknown_topic_or_partition
    if partition is not None and not error:
        there = partition.available(offset) if replica == CONSUMER else partition.available_to(replica, offset)
        error = ErrorCode(there.error)
        if error == ErrorCode.offset_out_of_range and not partition.is_leader and offset > partition.end_offset:
            error = ErrorCode.offset_not_available  # perhaps the leader has this offset already
        if not error and one.preferred < 0:
            most = min(left, one.asked.partition_max_bytes)
            records = partition.log.read(offset, there.end_offset, most, at_least_one=is_first)
        if not error and not records and lost:
            error = ErrorCode.not_leader_or_follower  # the one code after which every client pauses and asks again
        if replica != CONSUMER:
            partition.tell(replica)
    data = call.api.make(
        "PartitionData",
        partition_index=one.asked.partition,
        error_code=error,
        high_watermark=partition.high_watermark if partition else -1,
        last_stable_offset=partition.high_watermark if partition else -1,
        log_start_offset=partition.start_offset if partition else -1,
        aborted_transactions=None,
        preferred_read_replica=one.preferred,
        records=records,
    )
    return data, len(records)


def nearer(call: Call, partition: Partition) -> int:
    """The replica in the consumer's rack, if the leader is in another rack; else -1. A broker's rack is its id."""
    rack = getattr(call.body, "rack_id", "")
    if not rack.isdecimal() or not partition.is_leader or not call.api.has("PartitionData", "preferred_read_replica"):
        return -1
    return int(rack) if int(rack) in partition.replicas[1:] else -1
