"""Records of a segment as Arrow columns. numpy reads them from checked blocks, without a Python object for each record.

    rows = SegmentRows(span)
    for records, lines in rows.parts([RowKind.OUTCOME]):
        Terminal(rows, records, lines).column("wait_ns")     # a pyarrow.Array

A row names a text by the record in which the text begins. Most texts are in blocks of the span, which are in memory. If
a span begins in the middle of a segment, a text may be in an earlier block: then that block is read as well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from timerd_shm.declare.fields import Field, fields
from timerd_shm.declare.journal import (
    BLOCK_ROWS,
    BLOCK_SIZE,
    ROW_SIZE,
    ROWS,
    TEXT_INLINE,
    RowKind,
    TextKind,
)
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Outcome
from timerd_shm.read.segment import JournalError, Segment, text_at

from .left_out import LeftOut
from .schema import ENUM_TYPES, INT, TERMINAL, TEXTS
from .segments import SKIP_HINT, Span, pass_over

LINES = BLOCK_SIZE // ROW_SIZE  # in a block; its first line is the header, the others are records
TORN_RETRIES, TORN_PAUSE_S = 20, 0.005  # the daemon may write the newest block again while it is read here
ANCHOR_BLOCKS = 256  # read at once, backwards, to find the last anchor before a span
CHUNK_BLOCKS = 256  # read and checked at once, so that they are still in the processor's cache
PART_LINES = 1 << 15  # decoded at once, so that their columns stay in the cache
INCARNATION_SIZE = 16
BACKSLASH = 0x5C
LIKE_ESCAPED = re.compile(rb"\\(?=x(?:[89a-f][0-9a-f]|5c))")
HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")  # the two digits of each byte
HEX_OF_16 = np.stack([np.repeat(HEX, 256), np.tile(HEX, 256)], 1).view("<u4").ravel()  # the four of each 16-bit number
OP_ID = np.dtype([("begin", "S17"), ("digits", "<u4", 4)])
NUMBERS = {column.name: np.int32 if column.type == INT else np.int64 for column in TERMINAL}
TEXT_KINDS = frozenset(int(kind) for kind in TextKind)


@cache
def dtype_of(kind: RowKind) -> np.dtype[Any]:
    """The numpy type of a row of that kind."""

    def code(field: Field) -> str:
        return f"V{field.storage.size}" if field.storage.count > 1 else f"<u{field.storage.size}"

    return np.dtype([(field.name, code(field)) for field in fields(ROWS[kind])])


# The memory of the last span, for the next one: new pages of memory would cost more time than the reading.
spare_memory: list[bytearray] = []


def memory_for(size: int) -> bytearray:
    """At least `size` bytes of memory: the memory of the last span, if it is large enough."""
    spare = spare_memory.pop() if spare_memory else bytearray()
    return spare if len(spare) >= size else bytearray(size)


class SegmentRows:
    """The records of a span, in memory: 64 bytes each."""

    def __init__(self, span: Span, *, skip: bool = False) -> None:
        """Read and check the span's blocks. Raises JournalError; with `skip`, leave out and log damaged blocks."""
        self.span, self._skip = span, skip
        self._path = Path(span.directory)
        try:
            self._segment = Segment(self._path, span.segment, older=True)
        except FileNotFoundError:
            raise JournalError(f"{span.directory}: segment {span.segment} was removed before it was read") from None
        self.header = self._segment.header
        self.left_out: list[LeftOut] = []  # rows that are missing or were skipped
        if span.missing:
            number = self.header.first_row + span.first - span.missing
            self.left_out.append(LeftOut(False, number, span.missing, span.segment, span.first))
        self._memory = bytearray()
        try:
            self._load_blocks()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._segment.close()
        self._lines = np.empty((0, ROW_SIZE), np.uint8)
        spare_memory.append(self._memory)
        del spare_memory[1:]

    # blocks --------------------------------------------------------------------------------------------------------

    def _load_blocks(self) -> None:
        """Load the good blocks, and their numbers in the segment."""
        first, end = self.span.first // BLOCK_ROWS, -(-self.span.end // BLOCK_ROWS)
        self._memory = memory_for((end - first) * BLOCK_SIZE)
        room = memoryview(self._memory)
        numbers: list[np.ndarray] = []
        self._kinds = np.empty((end - first) * LINES, np.uint8)
        size, block = 0, first
        while block < end:
            most = min(end - block, CHUNK_BLOCKS)
            _, rows = self._segment.good_into(block, room[size : size + most * BLOCK_SIZE])
            count = rows // BLOCK_ROWS  # full blocks
            rows = count * BLOCK_ROWS
            if rows == 0:
                data, rows = self._read_one_block(block, end)
                count = len(data) // BLOCK_SIZE
                room[size : size + len(data)] = data
            begin, size = size, size + count * BLOCK_SIZE
            self._kinds[begin // ROW_SIZE : size // ROW_SIZE] = np.frombuffer(room[begin:size], np.uint8)[::ROW_SIZE]
            numbers.append(np.arange(block, block + count))
            have = block * BLOCK_ROWS + rows
            if have >= self.span.end:
                break
            whole = rows > 0 and rows == count * BLOCK_ROWS
            block = block + count if whole else self._skip_damaged(max(have, self.span.first), end)
        self._lines = np.frombuffer(room[:size], np.uint8).reshape(-1, ROW_SIZE)
        self._kinds = self._kinds[: len(self._lines)]
        self._kinds[::LINES] = RowKind.PAD  # headers
        self._blocks = np.concatenate(numbers or [np.empty(0, np.int64)])
        self._gapless = len(self._blocks) > 0 and self._blocks[-1] - self._blocks[0] == len(self._blocks) - 1

    def _read_one_block(self, block: int, end: int) -> tuple[memoryview, int]:
        """A block that is not full or is damaged, and the number of its good rows.

        The span's last block is read several times, because the daemon may be writing it.
        """
        data, rows = self._segment.good(block, 1)
        for _ in range(TORN_RETRIES):
            if block * BLOCK_ROWS + rows >= self.span.end or block < end - 1:
                break
            time.sleep(TORN_PAUSE_S)
            data, rows = self._segment.good(block, 1)
        return data, rows

    def _skip_damaged(self, record: int, end: int) -> int:
        """The next good block after a damaged one, or `end`. Raises JournalError if blocks may not be skipped."""
        block = record // BLOCK_ROWS
        later = self._segment.next_good(block + 1, end - block - 1) if end > block + 1 else None
        until = end if later is None else later
        what = f"{self.span.directory}: segment {self.span.segment} is damaged in blocks {block} to {until - 1}"
        what += f" (records {record} to {until * BLOCK_ROWS - 1})"
        if not self._skip:
            raise JournalError(f"{what}; {SKIP_HINT}")
        pass_over(what)
        rows = min(until * BLOCK_ROWS, self.span.end) - record
        self.left_out.append(LeftOut(True, self.header.first_row + record, rows, self.span.segment, record))
        return until

    @cached_property
    def _anchors(self) -> tuple[np.ndarray, np.ndarray]:
        """Records, and the ns by which the wall clock is ahead of CLOCK_MONOTONIC from each of these records on.

        The last anchor before the span counts too; if there is none, the times in the segment's header do. The search
        for that anchor may take as long as reading the span, so only queries that need the wall clock search for it.
        """
        records, offsets = [-1], [self.header.wall_ns - self.header.monotonic_ns]
        block = self.span.first // BLOCK_ROWS
        while block > self.header.first_block and len(records) == 1:
            begin = max(block - ANCHOR_BLOCKS, self.header.first_block)
            data = np.frombuffer(self._segment.read(begin, block - begin), np.uint8).reshape(-1, ROW_SIZE)
            found = np.flatnonzero((data[:, 0] == RowKind.ANCHOR) & (np.arange(len(data)) % LINES != 0))
            block = begin
            if len(found):
                anchor = data[found[-1]].view(dtype_of(RowKind.ANCHOR))[0]
                records.append(0)
                offsets.append(int(anchor["wall_ns"]) - int(anchor["monotonic_ns"]))
        own, lines = self._select([RowKind.ANCHOR], slice(0, len(self._kinds)))
        anchors = self._lines[lines].view(dtype_of(RowKind.ANCHOR)).ravel()
        own_offsets = (anchors["wall_ns"] - anchors["monotonic_ns"]).astype(np.int64)
        return np.concatenate([records, own]), np.concatenate([offsets, own_offsets])

    def parts(self, kinds: Sequence[RowKind]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(records, lines) of the span's rows of these kinds, in order, at most PART_LINES at once."""
        for begin in range(0, len(self._kinds), PART_LINES):
            records, lines = self._select(kinds, slice(begin, begin + PART_LINES))
            inside = slice(*np.searchsorted(records, (self.span.first, self.span.end)))
            if inside.start < inside.stop:
                yield records[inside], lines[inside]

    def _select(self, kinds: Sequence[RowKind], part: slice) -> tuple[np.ndarray, np.ndarray]:
        """(records, lines) of the rows of these kinds in a part of the lines. The part begins with a block."""
        if len(kinds) == 1:
            lines = np.flatnonzero(self._kinds[part] == kinds[0])
        else:
            wanted = np.zeros(256, bool)
            wanted[list(kinds)] = True
            lines = np.flatnonzero(wanted[self._kinds[part]])
        lines += part.start
        block = lines // LINES
        if self._gapless:
            return lines - block + (self._blocks[0] * BLOCK_ROWS - 1), lines
        return lines - block * LINES - 1 + self._blocks[block] * BLOCK_ROWS, lines

    def rows(self, kind: RowKind, lines: np.ndarray) -> np.ndarray:
        """These lines as rows of that kind."""
        return self._lines.take(lines, 0).view(dtype_of(kind)).ravel()

    def rows_as_bytes(self, lines: np.ndarray) -> pa.Array:
        """These lines as they are, 64 bytes each."""
        ends = np.arange(len(lines) + 1, dtype=np.int32) * ROW_SIZE
        data = np.ascontiguousarray(self._lines.take(lines, 0))
        return pa.BinaryArray.from_buffers(pa.binary(), len(lines), [None, pa.py_buffer(ends), pa.py_buffer(data)])

    def lacks(self, kind: RowKind, field: str) -> bool:
        """Whether the segment is of an older version, without this field in rows of that kind."""
        return field in self._segment.lacks.fields.get(kind, ())

    def kinds(self, lines: np.ndarray) -> np.ndarray:
        """Kinds of these lines."""
        kinds: np.ndarray = self._kinds[lines]
        return kinds

    def wall_us(self, records: np.ndarray, monotonic_ns: np.ndarray) -> np.ndarray:
        """These times of CLOCK_MONOTONIC as times of the wall clock, in microseconds since 1970."""
        begins, offsets = self._anchors
        ahead: Any = offsets[0] if len(begins) == 1 else offsets[np.searchsorted(begins, records, "right") - 1]
        us: np.ndarray = (monotonic_ns.astype(np.int64) + ahead) // 1_000
        return us

    # texts ---------------------------------------------------------------------------------------------------------

    def _text_lines(self, texts: np.ndarray) -> np.ndarray:
        """The rows in which texts begin, 64 bytes each; zeros where a row cannot be read."""
        records = texts.astype(np.int64)
        block = records // BLOCK_ROWS
        in_block = records - block * BLOCK_ROWS
        if self._gapless:
            at = block - self._blocks[0]
            here = (at >= 0) & (at < len(self._blocks))
        else:
            at = np.searchsorted(self._blocks, block)
            here = at < len(self._blocks)
            here[here] = self._blocks[at[here]] == block[here]
        if here.all():
            taken: np.ndarray = self._lines.take(at * LINES + 1 + in_block, 0)
            return taken
        found = np.zeros((len(texts), ROW_SIZE), np.uint8)
        found[here] = self._lines[at[here] * LINES + 1 + in_block[here]]
        away, index = np.unique(block[~here], return_inverse=True)
        read = np.stack([self._block(int(number)) for number in away])
        found[~here] = read[index, 1 + in_block[~here]]
        return found

    def _block(self, number: int) -> np.ndarray:
        """A block outside the span; zeros if it is absent, or damaged and may be skipped. Raises JournalError."""
        data, rows = self._segment.good(number, 1)
        if rows == 0:
            # It is no damage if blocks before the first one are missing: they were removed, or never written.
            if not self._skip and number >= self._segment.first():
                raise JournalError(
                    f"{self.span.directory}: segment {self.span.segment} is damaged in block {number}; {SKIP_HINT}"
                )
            return np.zeros((LINES, ROW_SIZE), np.uint8)
        return np.frombuffer(data, np.uint8)[:BLOCK_SIZE].reshape(LINES, ROW_SIZE)

    def text(self, record: int) -> tuple[TextKind, bytes] | None:
        """The text that begins at a record, and its kind; None for record 0, and for a text that cannot be read."""
        found = text_at(record, lambda at: self._text_lines(np.array([at]))[0].tobytes()) if record else None
        if found is None or found[1] not in TEXT_KINDS:
            return None
        return TextKind(found[1]), found[0]

    def few_texts(self, texts: np.ndarray, show: Callable[[TextKind, bytes], str | None]) -> pa.Array:
        """A column with few different texts, such as names: each different text is read and shown once."""
        if len(texts) == 0:
            return pa.array([], pa.string())
        if texts[0] == texts[-1] and (texts == texts[0]).all():
            different, index = texts[:1], None
        else:
            encoded = numbers(texts).dictionary_encode()
            different, index = encoded.dictionary.to_numpy(), encoded.indices
        shown = []
        for record in different.tolist():
            found = self.text(record)
            shown.append(None if found is None else show(*found))
        if index is None:
            return constant(shown[0], len(texts))
        return pa.array(shown, pa.string()).take(index)

    def many_texts(self, texts: np.ndarray) -> pa.Array:
        """A column of keys, which may differ in each row; null for 0. Short ASCII keys are copied without a loop."""
        if len(texts) == 0 or (texts[0] == texts[-1] and (texts == texts[0]).all()):
            return self.few_texts(texts, readable)
        present = texts != 0
        every = bool(present.all())
        lines = self._text_lines(texts if every else texts[present])
        lengths = lines[:, 2].astype(np.int32)
        longest = int(lengths.max())
        if longest > TEXT_INLINE or (lines[:, 0] != RowKind.TEXT).any():
            return self.few_texts(texts, readable)
        body = lines[:, 4 : 4 + longest]
        if int(lengths.min()) == longest:
            data = np.ascontiguousarray(body).ravel()
        else:
            data = body[np.arange(longest) < lengths[:, None]]
        if len(data) and (int(data.max()) >= 0x80 or (data == BACKSLASH).any()):
            return self.few_texts(texts, readable)  # not ASCII, so perhaps not UTF-8; or a backslash, to be escaped
        if every:
            return strings(data, lengths)
        spread = np.zeros(len(texts), np.int32)
        spread[present] = lengths
        return strings(data, spread, present)

    def hashes(self, texts: np.ndarray) -> pa.Array:
        """A column of 128-bit hashes, in hexadecimal; null for 0."""
        present = texts != 0
        if not present.any():
            return pa.nulls(len(texts), pa.string())
        lines = self._text_lines(texts)
        present &= lines[:, 0] == RowKind.TEXT
        digits = HEX[lines[present, 4 : 4 + INCARNATION_SIZE]].view(np.uint8).ravel()
        return strings(digits, np.where(present, 2 * INCARNATION_SIZE, 0).astype(np.int32), present)

    def texts(self, name: str, texts: np.ndarray) -> pa.Array:
        """A column of that name, from the records in which its texts begin."""
        if name == "id":
            return self.hashes(texts)
        if name == "key":
            return self.many_texts(texts)
        return self.few_texts(texts, {"owner": owner_name, "group": group_name}.get(name, readable))

    def op_ids(self, operations: np.ndarray) -> pa.Array:
        """A column of op ids, 33 characters each, such as "00c0ffee00c0ffee-0000000000000007"; unique everywhere."""
        return strings(self.op_id_bytes(operations), np.full(len(operations), 33, np.int32))

    def op_id_bytes(self, operations: np.ndarray) -> np.ndarray:
        rows = len(operations)
        made = op_ids_without_digits(self.header.incarnation, rounded_up(rows))[:rows].copy()
        made["digits"] = digits_of(operations)
        return made.view(np.uint8)

    @property
    def host(self) -> str:
        return self.header.host.rstrip(b"\0").decode("utf-8", "backslashreplace")

    @property
    def instance(self) -> str:
        return self.header.instance.rstrip(b"\0").decode("utf-8", "backslashreplace")


# columns ----------------------------------------------------------------------------------------------------------


def readable(_kind: TextKind, text: bytes) -> str:
    r"""A key or name as text; different bytes give different texts.

    A byte that is not UTF-8 is escaped, as in `\xff`. A key that contains these four characters gets its backslash
    escaped: `\x5cxff`.
    """
    return LIKE_ESCAPED.sub(rb"\\x5c", text).decode("utf-8", "backslashreplace")


def owner_name(kind: TextKind, text: bytes) -> str | None:
    return readable(kind, text[INCARNATION_SIZE:]) if kind is TextKind.CLIENT else None


def group_name(kind: TextKind, text: bytes) -> str | None:
    return readable(kind, text) if kind is TextKind.GROUP else None


@lru_cache(maxsize=2)
def op_ids_without_digits(incarnation: int, rows: int) -> np.ndarray:
    """Op ids of an incarnation, whose last 16 digits are still empty. It is faster to copy them than to make each."""
    begun = np.zeros(rows, OP_ID)
    begun["begin"] = f"{incarnation:016x}-".encode()
    return begun


def digits_of(words: np.ndarray) -> np.ndarray:
    """64-bit words in hexadecimal: four 32-bit numbers for each word, with four digits in each number."""
    return HEX_OF_16.take(words.astype("<u8").view("<u2").reshape(-1, 4)[:, ::-1])


def hexadecimal(words: np.ndarray) -> np.ndarray:
    """64-bit words in hexadecimal: 16 bytes a word."""
    return digits_of(words).view(np.uint8)


def strings(data: np.ndarray, lengths: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """A column of strings from their joined bytes and their lengths; null where it is not `valid`."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(data), validity_bits(valid))


def rounded_up(rows: int) -> int:
    """`rows`, rounded up to a power of two: a cached array then serves batches of many sizes."""
    return 1 << max(rows - 1, 0).bit_length()


def constant(value: str | None, rows: int) -> pa.Array:
    """A column with one value in all rows."""
    return repeated(value, rounded_up(rows))[:rows]


@lru_cache(maxsize=16)
def repeated(value: str | None, rows: int) -> pa.Array:
    """Like constant(), but cached: most batches have one size, and there are few names."""
    return pa.nulls(rows, pa.string()) if value is None else pa.repeat(pa.scalar(value), rows)


def numbers(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """A column of numbers, without a copy of contiguous ones; null where it is not `valid`."""
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(data.dtype), len(data), [validity_bits(valid), pa.py_buffer(data)])


def validity_bits(valid: np.ndarray | None) -> pa.Buffer | None:
    """Arrow's validity bitmap: a bit for each value, 0 = null. None if all values are valid."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def instants(us: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    return numbers(us, valid).view(pa.timestamp("us", tz="UTC"))


def names_of_codes(codes: np.ndarray, table: pa.Array, valid: np.ndarray | None = None) -> pa.Array:
    """A column of the names of codes, each of one byte; null where it is not `valid`."""
    return table.take(numbers(codes, valid))


@cache
def names_of(kind: type[IntEnum]) -> pa.Array:
    """The name of each code, in small letters. A code without a name, of a newer version, is shown as its number."""
    names = {int(member): member.name.lower() for member in kind}
    return pa.array([names.get(code, str(code)) for code in range(256)])


class Terminal:
    """The terminal view of some OUTCOME rows; column() makes one column at a time."""

    def __init__(self, source: SegmentRows, records: np.ndarray, lines: np.ndarray) -> None:
        self._source, self._records = source, records
        self._rows = source.rows(RowKind.OUTCOME, lines)

    def __len__(self) -> int:
        return len(self._rows)

    def column(self, name: str) -> pa.Array:
        """A column of schema.TERMINAL by its name. Raises KeyError."""
        rows, source = self._rows, self._source
        match name:
            case "op_id":
                return source.op_ids(rows["operation"])
            case "host" | "instance":
                return constant(getattr(source, name), len(rows))
            case "group":
                return source.texts(name, rows["owner"])
            case "error":
                return numbers(rows["error"].astype(np.int64), rows["outcome"] == Outcome.FAILED)
            case "settled_key":
                return numbers(rows["settled_key"].astype(np.int32) - 1, rows["settled_key"] != 0)
            case "registered_at":
                return instants(source.wall_us(self._records, rows["registered_ns"]))
            case "deadline":
                return instants(source.wall_us(self._records, rows["deadline_ns"]), self._has_deadline)
            case "settled_at":
                return instants(source.wall_us(self._records, rows["settled_ns"]))
            case "timeout_ns":
                return numbers(self._difference("deadline_ns", "registered_ns"), self._has_deadline)
            case "wait_ns":
                return numbers(np.maximum(self._difference("settled_ns", "registered_ns"), 0))
            case "lateness_ns":
                return numbers(self._difference("settled_ns", "deadline_ns"), rows["outcome"] == Outcome.EXPIRED)
        if name in TEXTS:
            return source.texts(name, rows[name])
        if name in ENUM_TYPES:
            return names_of_codes(rows[name], names_of(ENUM_TYPES[name]))
        number = NUMBERS[name]
        return numbers(rows[name].astype(number))

    @property
    def _has_deadline(self) -> np.ndarray:
        has: np.ndarray = self._rows["deadline_ns"] != NO_DEADLINE
        return has

    def _difference(self, later: str, earlier: str) -> np.ndarray:
        difference: np.ndarray = (self._rows[later] - self._rows[earlier]).astype(np.int64)
        return difference
