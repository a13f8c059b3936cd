"""Reads the records of batches for one request. Others are served in between, however long that takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import islice

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import to_its_end
from timerd_kafka.log.batch import CODECS, Batch, read_header
from timerd_kafka.log.times import Record, Unreadable, records_of, unpacked
from timerd_kafka.replicas.partition import Partition

RECORDS = 64  # that are read between two looks at the clock
SLICE_S = 0.005  # how long a request may read before others are served

Wanted = Callable[[Record], bool]


class Refused(Exception):
    """The part of a request for one partition is refused."""

    def __init__(self, code: ErrorCode, why: str | None = None) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Reading:
    """The reading of one request.

    `unpacking`: the broker's lock, which is held while an unpacked batch takes memory.
    """

    def __init__(self, unpacking: asyncio.Lock) -> None:
        self._unpacking = unpacking
        self._until = time.monotonic() + SLICE_S

    async def first_at(self, partition: Partition, base: int, is_wanted: Wanted) -> Record | None:
        """The first wanted record in the batch of the log that begins at offset `base`. Raises Refused."""
        await self.rest(partition)
        batch = partition.log.batch_at(base)
        try:
            return await self.first_in(partition, read_header(batch, 0), batch, is_wanted)
        except Unreadable as error:
            raise Refused(ErrorCode.corrupt_message) from error

    async def first_in(self, partition: Partition, header: Batch, batch: bytes, is_wanted: Wanted) -> Record | None:
        """The first wanted record in a batch of the partition. Raises Unreadable, Refused."""
        if not header.attributes & CODECS:
            return await self._first_of(partition, records_of(header, unpacked(header, batch)), is_wanted)
        async with self._unpacking:  # at least until the thread ends: it cannot be cancelled
            data = await to_its_end(asyncio.to_thread(unpacked, header, batch))
            return await self._first_of(partition, records_of(header, data), is_wanted)

    async def _first_of(self, partition: Partition, records: Iterator[Record], is_wanted: Wanted) -> Record | None:
        while part := list(islice(records, RECORDS)):
            for record in part:
                if is_wanted(record):
                    return record
            await self.rest(partition)
        return None

    async def rest(self, partition: Partition) -> None:
        """Let others be served, if it is time. Raises Refused if the partition was deleted meanwhile."""
        if time.monotonic() >= self._until:
            await asyncio.sleep(0)
            self._until = time.monotonic() + SLICE_S
        if partition.is_deleted:
            raise Refused(ErrorCode.unknown_topic_or_partition)
