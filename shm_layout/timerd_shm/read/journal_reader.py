"""Reads a journal: typed rows or whole blocks, from any offset, while it is being written; standard library alone.

    reader = JournalReader("/var/lib/timerd/journal")      # from its beginning, or start=Offset(17, 40960)
    for row in reader.rows():                              # up to the present end; call it again for newer rows
        row.record.outcome, reader.text(row.record.key), row.offset
    reader.position                                        # an Offset: go on from here, now or in another process
    reader.damage                                          # parts that could not be read, and were passed over

    for chunk in reader.chunks():                          # many rows at once: chunk.blocks is a multiple of 4 KiB
        numpy.frombuffer(chunk.blocks, "u1").reshape(-1, 64, 64)[:, 1:]      # block, row, byte

Blocks are read into memory, and accepted by their CRC. They are not mapped: a mapping would raise SIGBUS when the
writer cuts a finished file to its length. Damaged blocks are listed in `damage` and passed over. A block that was not
written yet is the end for now. Row numbers only rise within an arena's incarnation, so a row that stands in two
segments is yielded once.

Raises JournalError, and nothing else, whatever the files hold.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    ROW_SIZE,
    ROWS,
    TEXT_INLINE,
    RowKind,
    SegmentHeader,
    TextKind,
)

from .segment import CHUNK_BLOCKS, JournalError, Offset, Segment, segments_of, text_at

# How a row of each kind is read: its class, and the function that unpacks its fields.
ROW_STRUCTS: dict[int, tuple[type, Callable[..., tuple[Any, ...]]]] = {
    int(kind): (record, struct_of(record).unpack_from) for kind, record in ROWS.items()
}
_PAD, _SEGMENT = int(RowKind.PAD), int(RowKind.SEGMENT)


class Damage(NamedTuple):
    """Something that could not be read; rows may be missing there."""

    offset: Offset
    what: str
    row: int | None = None  # number of the first row that may be missing; None: not known


class Row(NamedTuple):
    """A row: its position, its number within the arena's incarnation, and the record of its kind."""

    offset: Offset
    number: int
    record: Any


class Chunk(NamedTuple):
    """Blocks whose CRC holds. In the first block, rows before `first` were yielded earlier. Unused rows are PAD."""

    header: SegmentHeader
    first: Offset
    rows: int
    blocks: memoryview


class JournalReader:
    """A journal, from `start` on (default: its beginning). Not for several threads. A context manager.

    `on_damage` is called with each Damage as it is found; `damage` keeps the first DAMAGE_MAX. Segments of an older
    version are read as well (`declare.journal.OLDER`), with 0 in fields that the version lacks. Without `older` such
    segments are damage.
    """

    DAMAGE_MAX = 1_000

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        start: Offset | None = None,
        older: bool = True,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        """Raises JournalError when there is no such directory, or `start` is before its oldest segment."""
        self.directory = Path(directory)
        self.damage: list[Damage] = []
        self.incarnation = 0  # of the arena whose rows are yielded
        self._older, self._on_damage = older, on_damage
        self._segment: Segment | None = None
        self._texts: dict[int, tuple[bytes, int]] = {}  # by record: texts and their kinds
        self._next_row: tuple[int, int] | None = None  # (incarnation, row number) of the row that comes next
        self._yielded = False  # whether rows of the present segment were yielded
        self._padded = False  # whether the last row was PAD
        self._listed: list[int] = []  # segments, when the directory was last listed
        self._refused = -1  # newest segment that was passed over because of its header
        there = self._list()
        oldest = there[0] if there else 0
        if start is not None and there and start.segment < oldest:
            raise JournalError(f"offset {start} was removed: the oldest segment of {self.directory} is {oldest}")
        self._at, self._record = Offset(oldest, 0) if start is None else start

    @property
    def position(self) -> Offset:
        """The row that comes next: this reader, or another reader, can go on there."""
        return Offset(self._at, self._record)

    @position.setter
    def position(self, offset: Offset) -> None:
        self._at, self._record = offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the segment that is open. If the reader goes on, it opens the segment again."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    @property
    def header(self) -> SegmentHeader | None:
        """The header of the segment that was read last."""
        return self._segment.header if self._segment else None

    def end(self) -> Offset:
        """The present end of the journal."""
        return next(self._ends(), self.position)

    def before_end(self, records: int) -> Offset:
        """The position that is `records` rows before the present end; the journal's oldest if there are fewer rows."""
        start = self.position
        for end in self._ends():
            start = Offset(end.segment, max(end.record - records, 0))
            records -= end.record
            if records <= 0:
                break
        return start

    def _ends(self) -> Iterator[Offset]:
        """The present end of each segment that can be read, from the newest to the oldest."""
        for sequence in reversed(self._list()):
            try:
                segment = Segment(self.directory, sequence, older=self._older)
            except (FileNotFoundError, JournalError):
                continue
            try:
                yield Offset(sequence, segment.end())
            finally:
                segment.close()

    def chunks(self, end: Offset | None = None) -> Iterator[Chunk]:
        """The rows that there are now, up to `end`, as blocks. When a chunk is yielded, `position` is after it."""
        while end is None or self.position < end:
            chunk = self._next_chunk()
            if chunk is None:
                return
            if end is not None and (self.position.segment, self.position.record) > end:
                rows = end.record - chunk.first.record if end.segment == chunk.first.segment else 0
                if rows <= 0:
                    self.position = end
                    return
                chunk = chunk._replace(rows=rows)
                self.position = end
            yield chunk

    def rows(self, end: Offset | None = None) -> Iterator[Row]:
        """The rows that there are now, up to `end`, without PAD. When a row is yielded, `position` is after it."""
        for chunk in self.chunks(end):
            behind, segment, number = self.position, chunk.first.segment, chunk.header.first_row
            self._at, self.incarnation = segment, chunk.header.incarnation
            for record, row in self.decoded(chunk):
                self._record = record + 1
                yield Row(Offset(segment, record), number + record, row)
            self.position = behind

    def decoded(self, chunk: Chunk) -> Iterator[tuple[int, Any]]:
        """(record, row) for each row of the chunk that chunks() yielded last, without PAD."""
        blocks, first, texts = chunk.blocks, chunk.first.record, self._texts
        new, structs, text_kind = tuple.__new__, ROW_STRUCTS, int(RowKind.TEXT)
        at = (1 + first % BLOCK_ROWS) * ROW_SIZE
        for record in range(first, first + chunk.rows):
            kind = blocks[at]
            known = structs.get(kind)
            if known is not None:
                row: Any = new(known[0], known[1](blocks, at))
                if kind == text_kind and row.length <= TEXT_INLINE:
                    texts[record] = row.text[: row.length], row.text_kind
                if self._padded:
                    self._padded = False
                    if kind != _SEGMENT:
                        self._report_row(chunk, record, "a row follows empty ones in the middle of the segment")
                yield record, row
            elif kind == _PAD and not any(blocks[at : at + ROW_SIZE]):
                self._padded = True
            else:
                self._report_row(chunk, record, f"its kind {kind} is not known, or it is empty and not zero")
            at += ROW_SIZE
            if at % BLOCK_SIZE == 0:
                at += ROW_SIZE  # the header of the next block

    def found_text(self, record: int) -> tuple[bytes, int] | None:
        """The text that begins at a record of the present segment, and its TextKind; None where it cannot be read."""
        found = self._texts.get(record)
        if found is None and record:
            found = text_at(record, self._row)
            if found is not None:
                self._texts[record] = found
        return found

    def text(self, record: int) -> bytes | None:
        """The text that a row of the present segment names; None for 0, and where it cannot be read."""
        found = self.found_text(record)
        return None if found is None else found[0]

    def text_kind(self, record: int) -> TextKind | None:
        """The kind of thing that the text of a record names; None where the kind is of a newer version."""
        found = self.found_text(record)
        if found is None:
            return None
        try:
            return TextKind(found[1])
        except ValueError:
            return None

    def _row(self, record: int) -> bytes | None:
        if self._segment is None:
            return None
        block, row = divmod(record, BLOCK_ROWS)
        data, rows = self._segment.good(block, 1)
        if row >= rows:
            return None
        return bytes(data[(1 + row) * ROW_SIZE : (2 + row) * ROW_SIZE])

    # from segment to segment ----------------------------------------------------------------------------------------

    def _list(self) -> list[int]:
        try:
            self._listed = segments_of(self.directory)
            return self._listed
        except OSError as error:
            raise JournalError(f"there is no journal in {self.directory}: {error.strerror}") from None

    def _report_row(self, chunk: Chunk, record: int, what: str) -> None:
        self._report(Offset(chunk.first.segment, record), f"row {record}: {what}", chunk.header.first_row + record)

    def _report(self, offset: Offset, what: str, row: int | None = None) -> None:
        damage = Damage(offset, what, row)
        if len(self.damage) < self.DAMAGE_MAX:
            self.damage.append(damage)
        if self._on_damage is not None:
            self._on_damage(damage)

    def _next_chunk(self) -> Chunk | None:
        """The next good blocks; None when there is nothing more at present."""
        while True:
            if self._segment is None and not self._open():
                return None
            segment = self._segment
            assert segment is not None
            # The successor is looked for before the blocks are read: once it exists, this segment does not grow.
            successor = self._successor(segment.header.sequence)
            chunk = self._read(segment, finished=successor is not None)
            if chunk is not None:
                self._yielded = True
                return chunk
            if successor is None:
                return None
            if self._yielded:  # otherwise only the header says the row number, and it may be wrong
                self._next_row = (segment.header.incarnation, segment.header.first_row + self.position.record)
            self.close()
            self.position = Offset(successor, 0)

    def _successor(self, sequence: int) -> int | None:
        # Numbers only rise, so the successor that an earlier list has is the right one. To list the directory for each
        # of 100,000 files would take hours.
        for listed in (self._listed, None):
            numbers = self._list() if listed is None else listed
            at = bisect_right(numbers, sequence)
            if at < len(numbers):
                return numbers[at]
        return None

    def _open(self) -> bool:
        """Open the segment at `position`, or the next one that can be read; False when there is none yet."""
        while True:
            try:
                segment = Segment(self.directory, self.position.segment, older=self._older)
            except FileNotFoundError:
                self._list()  # it was removed, and perhaps others with it
                successor = self._successor(self.position.segment)
                if successor is None:
                    return False
                if self.position.record or self.position.segment:
                    self._report(self.position, f"segments before {successor} were removed before they were read")
                self.position = Offset(successor, 0)
                continue
            except JournalError as error:
                successor = self._successor(self.position.segment)
                if successor is None:
                    return False  # the segment is still being made; else it is reported when there is a later one
                if self.position.segment > self._refused:
                    self._refused = self.position.segment
                    self._report(self.position, str(error))
                self.position = Offset(successor, 0)
                continue
            self._segment = segment
            self._texts.clear()
            self._padded = self._yielded = False
            self._follow_on(segment.header)
            if excess := segment.excess:
                self._report(self.position, excess)
            return True

    def _follow_on(self, header: SegmentHeader) -> None:
        """Compare row numbers with the segment before: report missing rows, and pass over rows yielded before."""
        record = max(self.position.record, header.first_block * BLOCK_ROWS)
        if self._next_row is not None and self._next_row[0] == header.incarnation:
            expected = self._next_row[1]
            if header.first_row + record > expected:
                last = header.first_row + record - 1
                what = f"{f'rows {expected} to {last} are' if last > expected else f'row {expected} is'} in no segment"
                self._report(Offset(header.sequence, record), what, expected)
            elif header.first_row + record < expected:
                record = expected - header.first_row
        self.position = Offset(header.sequence, record)

    def _read(self, segment: Segment, finished: bool) -> Chunk | None:
        """Good blocks from `position` on; None at the segment's end for now. Passes over what is damaged."""
        while True:
            record = self.position.record
            block, row = divmod(record, BLOCK_ROWS)
            data, rows = segment.good(block, CHUNK_BLOCKS)
            if rows > row:
                header = segment.header
                self.position = Offset(header.sequence, block * BLOCK_ROWS + rows)
                return Chunk(header, Offset(header.sequence, record), rows - row, data)
            # No new row here. If a later block is good, and this block still has no new row, this block is damaged.
            later = segment.next_good(block + 1, None if finished else CHUNK_BLOCKS)
            if later is None:
                if finished and rows == 0 and segment.is_written(block):
                    self._report(self.position, "the end of the segment is damaged", segment.header.first_row + record)
                return None
            if segment.good(block, 1)[1] > row:
                continue
            first = segment.header.first_row + record
            self._report(self.position, f"blocks {block} to {later - 1} are damaged", first)
            self.position = Offset(segment.header.sequence, later * BLOCK_ROWS)
