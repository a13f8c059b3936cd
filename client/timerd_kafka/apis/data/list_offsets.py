"""ListOffsets: the beginning and the end of a partition, and its first record at or after a time."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.log.batch import LEADER_EPOCH
from timerd_kafka.log.times import BATCH_RECORDS, Unreadable, Work, records_of
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.wire.codec import milliseconds

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL = -4  # as EARLIEST: here all records are local
NOTHING = -1


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    make = call.api.make
    seen: set[tuple[str, int]] = set()
    work = Work()

    def one(name: str, asked: Any) -> Any:
        partition = broker.led(broker.topic(name), asked.partition_index)
        if (name, asked.partition_index) in seen:
            partition = ErrorCode.invalid_request  # the request names the partition twice
        seen.add((name, asked.partition_index))
        error, timestamp, offset = ErrorCode.none, NOTHING, NOTHING
        if isinstance(partition, Partition):
            if asked.timestamp < EARLIEST_LOCAL:
                error = ErrorCode.unsupported_version
            else:
                timestamp, offset = look(partition, asked.timestamp, work)
        else:
            error = partition
        return make(
            "ListOffsetsPartitionResponse",
            partition_index=asked.partition_index,
            error_code=error,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
        )

    return make(
        "ListOffsetsResponse",
        throttle_time=milliseconds(0),
        topics=tuple(
            make(
                "ListOffsetsTopicResponse",
                name=topic.name,
                partitions=tuple(one(topic.name, asked) for asked in topic.partitions),
            )
            for topic in call.body.topics
        ),
    )


def look(partition: Partition, timestamp: int, work: Work) -> tuple[int, int]:
    """The timestamp (ms) and the offset of a record; (-1, -1) if there is none.

    If a batch cannot be read, or the request has done as much work as it may, the answer is the batch's first offset.
    Only one batch is read if the headers are true. If a header states a later time than its batch has, the next batch
    is read, too.
    """
    if timestamp == LATEST:
        return NOTHING, partition.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NOTHING, partition.start_offset
    if timestamp == MAX_TIMESTAMP:
        timestamp = partition.log.max_timestamp(partition.start_offset, partition.high_watermark)
        if timestamp < 0:
            return NOTHING, NOTHING
    for base in partition.log.batches_from(timestamp, partition.start_offset, partition.high_watermark):
        try:
            work.spend(BATCH_RECORDS)
            for offset, time in records_of(partition.log.batch_at(base), work):
                if time >= timestamp and offset >= partition.start_offset:
                    return time, offset
        except Unreadable:
            return timestamp, max(base, partition.start_offset)  # the batch has such a record, as its header says
    return NOTHING, NOTHING
