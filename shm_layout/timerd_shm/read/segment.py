"""A segment: one file of a journal, a header and blocks of rows. A block is good if its CRC holds.

    segment = Segment(directory, 17)                  # its header is checked
    blocks, rows = segment.good(0, 64)                # up to 64 blocks as far as they are good; how many rows they have

A Segment's only errors, for any bytes in its file: JournalError, and FileNotFoundError if the file was removed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.fields import offset_of, size_of, struct_of, unpack
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    JOURNAL_MAGIC,
    JOURNAL_VERSION,
    NOTHING_LACKS,
    OLDER,
    ROW_SIZE,
    SEGMENT_SIZE_MAX,
    BlockHeader,
    Older,
    RowKind,
    SegmentHeader,
    journal_fingerprint,
)
from timerd_shm.host.plain_file import open_plain

LOCK_NAME = "lock"  # of the daemon that writes in a directory
SEGMENT_SUFFIX = ".segment"
SEGMENT_NAME = re.compile(r"(\d{12})\.segment")
SEGMENT_LAST = 10**12 - 1  # the last number that a name has room for
CHUNK_BLOCKS = 64
BLOCKS_MAX = SEGMENT_SIZE_MAX // BLOCK_SIZE - 1  # of a segment; a file may be longer, or sparse and endless
HEADER_CRC = offset_of(SegmentHeader, "crc") + 4  # the CRC covers the bytes from here on
BLOCK = struct_of(BlockHeader)
NOTHING = bytes(ROW_SIZE)


class JournalError(TimerdError):
    """A journal is missing, damaged, of another version, or does not reach back to the given offset.

    Read it with the version that wrote it, leave out the damaged file, or begin at a later offset.

    Also raised for an offset, or the name of a consumer, that is not of the right form.
    """


class Offset(NamedTuple):
    """A position in a journal: the record that comes next in a segment. An earlier Offset compares as less."""

    segment: int
    record: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.record}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The offset that str() has written. Raises JournalError."""
        match = re.fullmatch(r"(\d{1,12}):(\d{1,10})", text)
        if match is None:
            raise JournalError(f"{text!r} is not an offset: write SEGMENT:RECORD, as in 17:40960")
        return cls(int(match[1]), int(match[2]))


def segment_path(directory: Path, sequence: int) -> Path:
    """The file of a segment."""
    return directory / f"{sequence:012}{SEGMENT_SUFFIX}"


def segments_of(directory: Path) -> list[int]:
    """The numbers of all segments, rising. Raises OSError."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := SEGMENT_NAME.fullmatch(name)))


def parse_header(data: bytes, sequence: int, *, older: bool = False) -> SegmentHeader:
    """The header of a segment, from its file's first bytes. Raises JournalError, which says what is wrong with it.

    `older`: headers of the versions in OLDER are taken as well.
    """
    if len(data) < size_of(SegmentHeader):
        raise JournalError(
            f"segment {sequence} has {len(data)} bytes, less than its header of {size_of(SegmentHeader)}: it was cut, "
            "or the daemon was killed while it made the file"
        )
    header = unpack(SegmentHeader, data)
    if header.magic != JOURNAL_MAGIC:
        raise JournalError(f"segment {sequence} begins with {header.magic!r}, not with {JOURNAL_MAGIC!r}")
    layout = header.version, header.fingerprint
    if layout != (JOURNAL_VERSION, journal_fingerprint()) and not (older and layout in OLDER):
        raise JournalError(
            f"segment {sequence} is of journal version {header.version} (fingerprint 0x{header.fingerprint:08x}), this "
            f"timerd reads {JOURNAL_VERSION} (0x{journal_fingerprint():08x}): read it with the version that wrote it"
        )
    if header.crc != zlib.crc32(data[HEADER_CRC : size_of(SegmentHeader)]):
        raise JournalError(f"the header of segment {sequence} is damaged")
    if header.sequence != sequence:
        raise JournalError(f"segment {sequence} says that it is segment {header.sequence}: the file was renamed")
    return header


def read_segment_header(descriptor: int, sequence: int, *, older: bool = False) -> SegmentHeader:
    """The header of an open segment file. Raises JournalError."""
    try:
        return parse_header(os.pread(descriptor, size_of(SegmentHeader), 0), sequence, older=older)
    except OSError as error:
        raise JournalError(f"segment {sequence} cannot be read: {error.strerror}") from None


def rows_of_block(data: bytes | memoryview, header: SegmentHeader, block: int) -> int:
    """Rows in that block of the segment: 0 when it was not written, -1 when it is damaged."""
    crc, count, first_row, sequence, incarnation, _ = BLOCK.unpack_from(data)
    if count == 0 and data[:ROW_SIZE] == NOTHING:
        return 0
    if (
        not 1 <= count <= BLOCK_ROWS
        or (sequence, incarnation) != (header.sequence, header.incarnation)
        or first_row != header.first_row + block * BLOCK_ROWS
        or crc != zlib.crc32(data[4:])
    ):
        return -1
    return int(count)


def full_blocks(data: memoryview, header: SegmentHeader, block: int) -> int:
    """How many blocks from that one on are good and full: as by rows_of_block(), without a call for each."""
    unpack, crc32, own = BLOCK.unpack_from, zlib.crc32, (header.sequence, header.incarnation)
    row = header.first_row + block * BLOCK_ROWS
    for at in range(0, len(data), BLOCK_SIZE):
        crc, count, first_row, sequence, incarnation, _ = unpack(data, at)
        is_next = count == BLOCK_ROWS and first_row == row and (sequence, incarnation) == own
        if not is_next or crc != crc32(data[at + 4 : at + BLOCK_SIZE]):
            return at // BLOCK_SIZE
        row += BLOCK_ROWS
    return len(data) // BLOCK_SIZE


def stated_block(data: bytes | memoryview, header: SegmentHeader) -> int | None:
    """The number that a good block of the segment states, wherever it stands; None if the block is not good."""
    _, _, first_row, *_ = BLOCK.unpack_from(data)
    block, rest = divmod(first_row - header.first_row, BLOCK_ROWS)
    return block if block >= 0 and rest == 0 and rows_of_block(data, header, block) > 0 else None


def text_at(record: int, row_of: Callable[[int], bytes | None]) -> tuple[bytes, int] | None:
    """The text that begins at a record, and its TextKind; None if there is none. `row_of`: the row of a record."""
    row = row_of(record)
    if row is None or row[0] != RowKind.TEXT:
        return None
    kind, length, text = row[1], row[2], row[4:]
    while len(text) < length:
        record += 1
        more = row_of(record)
        if more is None or more[0] != RowKind.CONTINUED:
            return None
        text += more[4:]
    return text[:length], kind


def is_unfinished(directory: Path, sequence: int) -> bool:
    """Whether a segment has no header: zeros, or an empty file. Its daemon is making it, or was killed while it did.

    Raises OSError.
    """
    descriptor = open_plain(segment_path(directory, sequence))
    try:
        return not os.pread(descriptor, BLOCK_SIZE, 0).strip(b"\0")
    finally:
        os.close(descriptor)


class Segment:
    """An open segment file. The bytes of a file beyond the largest size of a segment are not read.

    A block stands at the place that its number gives. But if blocks before it were cut out, it stands elsewhere, and is
    found by the number in its header. When the first such block is met, the whole file is searched for others.
    """

    def __init__(self, directory: Path, sequence: int, *, older: bool = False) -> None:
        """Raises FileNotFoundError, and JournalError where it is no segment of this version, or of an `older` one."""
        path = segment_path(directory, sequence)
        self._moved: dict[int, int] | None = None  # by their numbers, the places of blocks that stand elsewhere
        try:
            self._descriptor = open_plain(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"{path} cannot be read: {error.strerror}") from None
        try:
            self.header = read_segment_header(self._descriptor, sequence, older=older)
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def lacks(self) -> Older:
        """The fields and the kinds of rows that the segment's version does not have. Such fields are zero."""
        return OLDER.get((self.header.version, self.header.fingerprint), NOTHING_LACKS)

    @property
    def excess(self) -> str:
        """The error in the file's size, as a sentence; "" if there is none."""
        size = os.fstat(self._descriptor).st_size
        if size <= SEGMENT_SIZE_MAX:
            return ""
        return (
            f"segment {self.header.sequence} has {size:,} bytes, and a segment has at most {SEGMENT_SIZE_MAX:,}: the "
            "rest is not read"
        )

    def read(self, block: int, count: int) -> bytes:
        """Up to `count` whole blocks from `block` on, wherever they stand in the file."""
        count = min(count, BLOCKS_MAX - block)
        if count <= 0:
            return b""
        if not self._moved:
            return self._read_places(block, count)
        into = memoryview(bytearray(count * BLOCK_SIZE))
        return bytes(into[: self.read_into(block, into) * BLOCK_SIZE])

    def read_into(self, block: int, into: memoryview) -> int:
        """Fill `into` with blocks from that one on. Returns the number of whole blocks."""
        count, found = min(len(into) // BLOCK_SIZE, BLOCKS_MAX - block), 0
        while found < count:
            place, run, wanted = self._run(block + found, count - found)
            part = into[found * BLOCK_SIZE : (found + run) * BLOCK_SIZE]
            try:
                size = os.preadv(self._descriptor, [part], (1 + place) * BLOCK_SIZE) // BLOCK_SIZE
            except OSError as error:
                raise JournalError(f"segment {self.header.sequence} cannot be read: {error.strerror}") from None
            if size < run and not wanted:
                return found + size
            part[size * BLOCK_SIZE :] = bytes((run - size) * BLOCK_SIZE)
            found += run
        return max(found, 0)

    def _run(self, block: int, count: int) -> tuple[int, int, bool]:
        """Where a block stands, and how many of `count` blocks stand there one after the other.

        The last value: whether blocks after these may stand elsewhere.
        """
        moved = self._moved
        if not moved:
            return block, count, False
        place, run = moved.get(block), 1
        while run < count and moved.get(block + run) == (None if place is None else place + run):
            run += 1
        return (block if place is None else place), run, block + run <= max(moved)

    def _read_places(self, place: int, count: int) -> bytes:
        """Up to `count` whole blocks of the file, whatever their numbers are."""
        try:
            data = os.pread(self._descriptor, count * BLOCK_SIZE, (1 + place) * BLOCK_SIZE)
        except OSError as error:
            raise JournalError(f"segment {self.header.sequence} cannot be read: {error.strerror}") from None
        return data[: len(data) // BLOCK_SIZE * BLOCK_SIZE]

    def _meet(self, data: memoryview) -> bool:
        """If `data` begins with a good block, that is not the expected one: look for all blocks that stand elsewhere.

        The whole file is searched once. Returns whether this search has found any.
        """
        if self._moved is not None or len(data) < BLOCK_SIZE or stated_block(data[:BLOCK_SIZE], self.header) is None:
            return False
        self._moved = {}
        place = self.header.first_block
        while data := memoryview(self._read_places(place, CHUNK_BLOCKS)):
            for at in range(0, len(data), BLOCK_SIZE):
                stated = stated_block(data[at : at + BLOCK_SIZE], self.header)
                if stated is not None and stated != place and stated < BLOCKS_MAX:
                    self._moved[stated] = place
                place += 1
        return bool(self._moved)

    def good(self, block: int, count: int) -> tuple[memoryview, int]:
        """Blocks from that one on as far as they are good, and how many rows they have. The last may be partly full."""
        data = memoryview(self.read(block, count))
        size, rows = self._good_part(block, data)
        if rows == 0 and self._meet(data):
            return self.good(block, count)
        return data[:size], rows

    def good_into(self, block: int, into: memoryview) -> tuple[int, int]:
        """As good(), read into `into`. Returns how many bytes of it are good blocks, and how many rows they have."""
        data = into[: self.read_into(block, into) * BLOCK_SIZE]
        size, rows = self._good_part(block, data)
        if rows == 0 and self._meet(data):
            return self.good_into(block, into)
        return size, rows

    def _good_part(self, block: int, data: memoryview) -> tuple[int, int]:
        """How many bytes of these blocks are good from their beginning on, and how many rows they have."""
        full = full_blocks(data, self.header, block)
        size, rows = full * BLOCK_SIZE, full * BLOCK_ROWS
        if size == len(data):
            return size, rows
        last = rows_of_block(data[size : size + BLOCK_SIZE], self.header, block + full)
        return (size + BLOCK_SIZE, rows + last) if last > 0 else (size, rows)

    def next_good(self, block: int, blocks_max: int | None = None) -> int | None:
        """The first good block from that one on, among `blocks_max` blocks (None: all)."""
        end = None if blocks_max is None else block + blocks_max
        while end is None or block < end:
            data = memoryview(self.read(block, CHUNK_BLOCKS))
            if not data:
                return None
            for at in range(0, len(data), BLOCK_SIZE):
                if rows_of_block(data[at : at + BLOCK_SIZE], self.header, block) > 0:
                    return block
                if self._meet(data[at:]):
                    break  # the block may be found now
                block += 1
        return None

    def first(self, blocks_max: int | None = None) -> int:
        """The first block that exists. Blocks before it count as missing, like those of a removed segment.

        But a damaged block in place of the first one counts as existing, so it is the first.
        """
        block = self.header.first_block
        data = memoryview(self.read(block, 1))
        if not data or rows_of_block(data, self.header, block) > 0:
            return block
        is_damaged = bool(data[:ROW_SIZE].tobytes().strip(b"\0")) and stated_block(data, self.header) is None
        return block if is_damaged else self.next_good(block + 1, blocks_max) or block

    def is_written(self, block: int) -> bool:
        """Whether anything was ever written to that block."""
        return self.read(block, 1)[:ROW_SIZE].strip(b"\0") != b""

    def blocks(self) -> int:
        """Blocks up to the last one that was ever written, good or not."""
        blocks = self._blocks_there()
        while blocks:
            first = max(blocks - CHUNK_BLOCKS, 0)
            written = len(self._read_places(first, blocks - first).rstrip(b"\0"))
            if written:
                return self._with_moved(first + -(-written // BLOCK_SIZE))
            blocks = first
        return 0

    def _with_moved(self, places: int) -> int:
        """The number of blocks up to the last one, if the file has `places` written places."""
        last = memoryview(self._read_places(places - 1, 1))
        if last and stated_block(last, self.header) != places - 1:
            self._meet(last)
        return max([places, *(number + 1 for number in self._moved or ())])

    def end(self) -> int:
        """Number of records up to the last good block of a sound file, found by binary search."""
        first = self.header.first_block
        low, high = first, max(self._blocks_there(), first)
        while low < high:
            middle = (low + high) // 2
            if self._read_places(middle, 1)[:ROW_SIZE].strip(b"\0") != b"":
                low = middle + 1
            else:
                high = middle
        if low == first:
            return first * BLOCK_ROWS
        last = self._with_moved(low) - 1
        _, rows = self.good(last, 1)
        return last * BLOCK_ROWS + rows

    def _blocks_there(self) -> int:
        """Whole blocks of the file, as far as they are read."""
        return min(max(os.fstat(self._descriptor).st_size // BLOCK_SIZE - 1, 0), BLOCKS_MAX)


def headers_of(directory: Path) -> Iterator[SegmentHeader]:
    """The header of each segment that can be read, from the oldest on. Raises OSError."""
    for sequence in segments_of(directory):
        try:
            segment = Segment(directory, sequence)
        except (FileNotFoundError, JournalError):
            continue
        segment.close()
        yield segment.header
