"""ListOffsets: the beginning and the end of a partition, its first record at or after a time, and its latest record.

Headers state the largest time of each batch. Which record has a time is in the batch alone. So batches are read and
unpacked, and the broker serves others in between, however long that takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.log.batch import CODECS, LEADER_EPOCH, read_header
from timerd_kafka.log.times import TIME_END, Unreadable, records_of, unpacked
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.wire.codec import milliseconds

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL = -4  # as EARLIEST: here all records are local
NOTHING = -1
RECORDS = 64  # that are read between two looks at the clock
SLICE_S = 0.005  # how long a request may read before others are served

Wanted = Callable[[int, int], bool]  # whether a record is wanted, by its time (ms) and its offset


class Refused(Exception):
    """A partition whose records cannot be searched."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code)
        self.code = code


class Reading:
    """Reads the records of batches for one request, and lets others be served in between.

    `unpacking`: held while an unpacked batch takes memory: one at a time in the broker.
    """

    def __init__(self, unpacking: asyncio.Lock) -> None:
        self._unpacking = unpacking
        self._until = time.monotonic() + SLICE_S

    async def first(self, partition: Partition, base: int, is_wanted: Wanted) -> tuple[int, int] | None:
        """The time and the offset of the first wanted record in the batch that begins at `base`. Raises Refused."""
        await self._rest(partition)
        batch = partition.log.batch_at(base)
        header = read_header(batch, 0)
        try:
            if not header.attributes & CODECS:
                return await self._first_of(partition, records_of(header, unpacked(header, batch)), is_wanted)
            async with self._unpacking:
                records = records_of(header, await asyncio.to_thread(unpacked, header, batch))
                return await self._first_of(partition, records, is_wanted)
        except Unreadable as error:
            raise Refused(ErrorCode.corrupt_message) from error

    async def _first_of(
        self, partition: Partition, records: Iterator[tuple[int, int]], is_wanted: Wanted
    ) -> tuple[int, int] | None:
        while part := list(islice(records, RECORDS)):
            for offset, time_ms in part:
                if is_wanted(time_ms, offset):
                    return time_ms, offset
            await self._rest(partition)
        return None

    async def _rest(self, partition: Partition) -> None:
        """Let others be served, if it is time. Raises Refused if the partition was deleted meanwhile."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + SLICE_S
        if partition.is_deleted:
            raise Refused(ErrorCode.unknown_topic_or_partition)


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    make = call.api.make
    seen: set[tuple[str, int]] = set()
    reading = Reading(broker.unpacking)

    async def one(name: str, asked: Any) -> Any:
        partition = broker.led(broker.topic(name), asked.partition_index)
        if (name, asked.partition_index) in seen:
            partition = ErrorCode.invalid_request  # the request names the partition twice
        seen.add((name, asked.partition_index))
        error, timestamp, offset = ErrorCode.none, NOTHING, NOTHING
        if not isinstance(partition, Partition):
            error = partition
        elif asked.timestamp < EARLIEST_LOCAL:
            error = ErrorCode.unsupported_version
        else:
            try:
                timestamp, offset = await look(partition, asked.timestamp, reading)
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

    topics = [
        make(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=tuple([await one(topic.name, asked) for asked in topic.partitions]),
        )
        for topic in call.body.topics
    ]
    return make("ListOffsetsResponse", throttle_time=milliseconds(0), topics=tuple(topics))


async def look(partition: Partition, timestamp: int, reading: Reading) -> tuple[int, int]:
    """The timestamp (ms) and the offset of a record; (-1, -1) if there is none. Raises Refused."""
    if timestamp == LATEST:
        return NOTHING, partition.high_watermark
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return NOTHING, partition.start_offset
    if timestamp == MAX_TIMESTAMP:
        return await latest(partition, reading)

    def is_wanted(time_ms: int, offset: int) -> bool:
        return time_ms >= timestamp and offset >= partition.start_offset

    for base in partition.log.batches_from(timestamp, partition.start_offset, partition.high_watermark):
        if found := await reading.first(partition, base, is_wanted):
            return found
    return NOTHING, NOTHING


async def latest(partition: Partition, reading: Reading) -> tuple[int, int]:
    """The record with the largest timestamp, the first one of several (KIP-734).

    A header may state a later time than the records have, for example if the latest of them was deleted. So batches are
    read by the times that they state, the latest first, until no further one can have a later record.
    """
    best, best_offset = NOTHING, NOTHING

    def is_end(time_ms: int, offset: int) -> bool:
        nonlocal best, best_offset
        if offset >= partition.start_offset and (time_ms > best or (time_ms == best and offset < best_offset)):
            best, best_offset = time_ms, offset
        return best == stated

    stated, end = TIME_END, partition.high_watermark
    while True:
        stated, bases = partition.log.latest_batches(stated, partition.start_offset, end)
        if stated < 0 or stated < best:
            return best, best_offset
        for base in bases:
            if await reading.first(partition, base, is_end):
                break
