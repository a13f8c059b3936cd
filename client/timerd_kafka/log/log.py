"""The file of a partition's record batches, and the position of each offset in it.

A process that is killed leaves whole batches, and perhaps a part of a last batch, which the next opening of the log
cuts off. Damage before the high watermark is an error of the disk; then the opening cuts off nothing. There is no
fsync: written data survive the end of the process, but not a crash of the machine.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

from timerd_kafka.log.batch import SIZE, Batch, CorruptBatch, UnsupportedBatch, place, read_batches, read_header
from timerd_kafka.log.checkpoint import Checkpoint
from timerd_kafka.log.producers import Producers

NAME = f"{0:020}.log"  # as Kafka names the segment that begins with offset 0


class Index(NamedTuple):
    """For each batch: its position in the file, its largest timestamp, its first offset."""

    positions: list[int]
    timestamps: list[int]
    bases: list[int]  # grows last: other threads look up a batch here first

    def before(self, number: int) -> Index:
        """The index of the first `number` batches."""
        return Index(self.positions[:number], self.timestamps[:number], self.bases[:number])

    def number_of(self, offset: int) -> int:
        """The number of the batch that has this offset."""
        return bisect_right(self.bases, offset) - 1


class PartitionLog:
    """The batches of a partition, from offset 0 on. One thread changes them; others may use end_offset and size_of."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = directory / NAME
        self.producers = Producers()
        self._index = Index([], [], [])  # grows, and is replaced when batches are removed
        self.size = 0  # bytes
        self.end_offset = 0  # the offset after the last record
        self.is_damaged = False  # records before the high watermark cannot be read: nothing is cut off
        with ExitStack() as opened:  # a failed opening, which is tried again, leaves no descriptor
            self.checkpoint = opened.enter_context(closing(Checkpoint(directory / "checkpoint")))
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, self._file)
            self._recover()
            opened.pop_all()

    def _recover(self) -> None:
        """Read all headers. From the high watermark on, verify the check sums, too, and cut off damage there."""
        length = os.fstat(self._file).st_size
        while self.size < length:
            header = os.pread(self._file, SIZE, self.size)
            try:
                batch = read_header(header, 0)
                if batch.base_offset != self.end_offset or self.size + batch.size > length:
                    break
                if batch.end_offset > self.checkpoint.high_watermark:
                    next(read_batches(os.pread(self._file, batch.size, self.size)))
            except (CorruptBatch, UnsupportedBatch):
                break
            self._add(batch)
        if self.end_offset < self.checkpoint.high_watermark and self.size < length:
            self.is_damaged = True
            return
        os.ftruncate(self._file, self.size)
        self.checkpoint.high_watermark = min(self.checkpoint.high_watermark, self.end_offset)
        self.checkpoint.start_offset = min(self.checkpoint.start_offset, self.end_offset)

    def _add(self, batch: Batch) -> None:
        if batch.is_idempotent:
            self.producers.add(batch)
        self._index.positions.append(self.size)
        self._index.timestamps.append(batch.max_timestamp)
        self._index.bases.append(batch.base_offset)
        self.size += batch.size
        self.end_offset = batch.end_offset

    # writing ----------------------------------------------------------------------------------------------------------

    def append(self, data: bytes, batch: Batch, append_time: int | None = None) -> int:
        """Append a producer's batch. Returns its first offset. If this raises OSError, nothing is appended.

        `append_time`: the time (ms) that all records of the batch get; None: the records have their own times.
        """
        placed, moved = place(data, batch, self.end_offset, append_time)
        self._write(placed, [moved])
        return moved.base_offset

    def append_copy(self, data: bytes) -> None:
        """Append batches of the leader's log that follow the end of this log.

        Raises CorruptBatch, UnsupportedBatch, OSError.
        """
        batches, offset = list(read_batches(data)), self.end_offset
        for batch in batches:
            if batch.base_offset != offset:
                raise CorruptBatch(f"{self.path}: offset {batch.base_offset} was sent, {offset} is next")
            offset = batch.end_offset
        self._write(data, batches)

    def _write(self, data: bytes | bytearray, batches: list[Batch]) -> None:
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, memoryview(data)[written:], self.size + written)
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        for batch in batches:
            self._add(batch)

    def cut_damage(self) -> None:
        """Remove the damaged batches, and all batches after them. Another replica has these batches."""
        self.is_damaged = False
        os.ftruncate(self._file, self.size)
        self.checkpoint.high_watermark = min(self.checkpoint.high_watermark, self.end_offset)
        self.checkpoint.start_offset = min(self.checkpoint.start_offset, self.end_offset)

    def truncate(self, offset: int) -> None:
        """Remove the batch with this offset, and all batches after it.

        Other threads see the log as it was before, or as it is afterwards: if they saw an empty log in between,
        consumers of the records that stay would get OFFSET_OUT_OF_RANGE.
        """
        index = self._index
        kept = max(0, index.number_of(offset)) if offset < self.end_offset else len(index.bases)
        if kept >= len(index.bases):
            return
        size, end_offset = index.positions[kept], index.bases[kept]
        self.checkpoint.high_watermark = min(self.checkpoint.high_watermark, end_offset)
        self.checkpoint.start_offset = min(self.checkpoint.start_offset, end_offset)
        os.ftruncate(self._file, size)
        self.size, self.end_offset = size, end_offset  # before the index: with it they say where its last batch ends
        self._index = index.before(kept)
        self.producers = Producers()
        for position in self._index.positions:
            batch = read_header(os.pread(self._file, SIZE, position), 0)
            if batch.is_idempotent:
                self.producers.add(batch)

    # reading ----------------------------------------------------------------------------------------------------------

    def _end_of(self, index: Index, offset: int) -> int:
        """The position of the first batch that begins at `offset` or later; the end of the file if there is none."""
        number = bisect_left(index.bases, offset)
        return index.positions[number] if number < len(index.bases) else self.size

    def size_of(self, offset: int, end_offset: int) -> int:
        """The bytes of the batches from the batch with `offset` up to `end_offset`."""
        index = self._index
        if offset >= end_offset or not index.bases:
            return 0
        return max(0, self._end_of(index, end_offset) - index.positions[index.number_of(offset)])

    def read(self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the batch with `offset` up to `end_offset`, `max_bytes` at most.

        `at_least_one`: return the first batch even if it is larger (KIP-74).
        """
        if offset >= end_offset:
            return b""
        index, max_bytes = self._index, max(0, max_bytes)
        first = index.number_of(offset)
        begin, end = index.positions[first], self._end_of(index, end_offset)
        if end - begin > max_bytes:
            # The last batch that begins within max_bytes may end beyond them. It is left out: `end` is its beginning.
            number = bisect_right(index.positions, begin + max_bytes) - 1
            end = index.positions[number]
            if end <= begin:
                if not at_least_one:
                    return b""
                end = index.positions[first + 1] if first + 1 < len(index.positions) else self.size
        return os.pread(self._file, end - begin, begin)

    def batch_at(self, base_offset: int) -> bytes:
        """The batch that begins with this offset."""
        return self.read(base_offset, self.end_offset, 0, at_least_one=True)

    def latest_of(self, base_offset: int) -> int:
        """The largest timestamp of the batch that begins with this offset."""
        return self._index.timestamps[self._index.number_of(base_offset)]

    def kept_from(self, start_offset: int, end_offset: int, oldest: float, most_bytes: float) -> int:
        """The first offset that retention keeps; `start_offset` if it keeps all records.

        Retention removes whole batches before `end_offset`, the oldest first: a batch that states a largest timestamp
        before `oldest`, or that has `most_bytes` or more after it. The last batch of the log stays.
        """
        index = self._index
        number = first = max(0, index.number_of(start_offset))
        end = index.number_of(end_offset)
        while number < end and (
            0 <= index.timestamps[number] < oldest or self.size - index.positions[number + 1] >= most_bytes
        ):
            number += 1
        return index.bases[number] if number > first else start_offset

    def batches_from(self, timestamp: int, start_offset: int, end_offset: int) -> Iterator[int]:
        """The first offset of each batch between these offsets that may have a record at or after `timestamp`."""
        index = self._index
        for number in range(max(0, index.number_of(start_offset)), bisect_left(index.bases, end_offset)):
            if index.timestamps[number] >= timestamp:
                yield index.bases[number]

    def latest_batches(self, before: int, start_offset: int, end_offset: int) -> tuple[int, list[int]]:
        """Of batches between these offsets, those that state the largest timestamp before `before`.

        Returns that timestamp, and the first offset of each batch. (-1, []): no batch states a timestamp before it.
        """
        index = self._index
        first, last = max(0, index.number_of(start_offset)), bisect_left(index.bases, end_offset)
        timestamps = index.timestamps[first:last]
        latest = max((each for each in timestamps if each < before), default=-1)
        if latest < 0:
            return -1, []
        return latest, [index.bases[first + number] for number, each in enumerate(timestamps) if each == latest]

    def close(self) -> None:
        """Close the log's files."""
        os.close(self._file)
        self.checkpoint.close()
