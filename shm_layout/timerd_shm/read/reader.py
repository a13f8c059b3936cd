"""Reads an arena: typed, read-only, on the standard library alone; whether its daemon lives or not.

    with ArenaReader.open() as reader:                # by instance; also from_path and from_bytes
        reader.words[NEWEST_WORD]                     # one aligned 8-byte load: what a worker's mark needs
        reader.header().instance
        reader.ops[7].deadline_ns                     # a copy of one record, as its NamedTuple
        reader.between_turns(lambda: ...)             # several words that belong together

The arena is mapped PROT_READ from a read-only descriptor: no reader can harm it. A live daemon writes while we read.
One word is always whole; several words belong together only when no turn came in between (header.turn, a seqlock).
Damage is reported as DamageError, with the values. Each loop here has a bound, whatever the arena holds.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable, Collection, Iterator
from itertools import chain
from typing import Any, Generic, NamedTuple, Self, TypeVar

from timerd_shm.declare import layout
from timerd_shm.declare.errors import (
    ArenaNotReadyError,
    ArenaTruncatedError,
    LayoutMismatchError,
    ResourceLimitError,
    TimerdError,
)
from timerd_shm.declare.fields import fields, offset_of, once, size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import (
    BLOCK_DATA,
    AccountRecord,
    AnswerRecord,
    ArenaHeader,
    Block,
    BucketRecord,
    ClientRecord,
    CounterLabel,
    CounterRecord,
    ErrorRecord,
    EventRecord,
    GroupRecord,
    HandleRecord,
    HistogramRecord,
    IdRecord,
    IdTableRecord,
    KeyTableRecord,
    LevelRecord,
    OpRecord,
    PurgatoryRecord,
    RedoEntry,
    RegionRecord,
    SlotRecord,
    UserRecord,
    WatchNode,
    WatermarkRecord,
    WatermarkTableRecord,
)
from timerd_shm.host.paths import open_arena_file
from timerd_shm.host.plain_file import open_plain
from timerd_shm.host.search import find_instance

LAYOUT_VERSION_WORD = offset_of(ArenaHeader, "layout_version") // 8
INCARNATION_WORD = offset_of(ArenaHeader, "incarnation") // 8
NEWEST_WORD = offset_of(ArenaHeader, "newest") // 8
TURN_WORD = offset_of(ArenaHeader, "turn") // 8
_WATERMARK_WORD = offset_of(WatermarkRecord, "watermark") // 8
_USED_WORD = offset_of(WatermarkRecord, "used") // 8
assert offset_of(WatermarkRecord, "hash") == 0 and offset_of(WatermarkRecord, "used") % 8 == 0, "watermark_at()"
RETRY = ": retry shortly"  # ends a message where a retry may succeed
CHUNK = 1 << 16  # bytes that are looked at in one step
ZEROS = bytes(CHUNK)
COPIED = 1_024  # records that are copied in one step
BETWEEN_TURNS_S = 0.05  # how long a reader waits for a moment between two turns

Record = TypeVar("Record", bound=NamedTuple)
Result = TypeVar("Result")


class DamageError(TimerdError):
    """Records of the arena contradict each other: it is damaged, or was read during a turn. Run `timerctl check`."""


OPS_ROW = layout.REGIONS_OFFSET + Region.OPS * size_of(RegionRecord)
FIRST_NODE = offset_of(OpRecord, "first_node")


class Stretch(NamedTuple):
    """Records of a region that lie at equal steps."""

    first: int  # index
    number: int
    offset: int  # bytes from the start of the arena
    step: int  # bytes
    form: struct.Struct  # unpacks a step, from `start` on
    start: int
    row_offset: int  # of the region's row: its high water says how many records were ever used


@once
def pair_of(record: type[Any]) -> int:
    """Where in a record its (next, prev) pair lies, in bytes; 0 where it has none."""
    linked = any(field.name == "prev" for field in fields(record))
    return offset_of(record, "next") if linked else 0


class Table(Generic[Record]):
    """The records of one region: `table[index]` is a copy of one, `table.used()` has all that were ever used.

    The table of NODES begins with the first node of each operation, which lies in the operation's record.
    """

    def __init__(self, memory: memoryview, region: Region, record: type[Record]) -> None:
        self.region = region
        self.record = record
        self._memory = memory
        self._row_offset = layout.REGIONS_OFFSET + region * size_of(RegionRecord)
        self.size = size_of(record)
        self._struct = struct_of(record)
        self._pair = pair_of(record)
        self._stretches = list(self._lie())
        self.count = sum(stretch.number for stretch in self._stretches)

    def _lie(self) -> Iterator[Stretch]:
        first = 0
        if self.region is Region.NODES:
            ops = unpack(RegionRecord, self._memory, OPS_ROW)
            form = struct.Struct(f"<{FIRST_NODE}x{self._struct.format[1:]}")
            first = ops.count
            yield Stretch(0, first, ops.offset + FIRST_NODE, ops.record_size, form, ops.offset, OPS_ROW)
        row = self.row()
        yield Stretch(first, row.count, row.offset, row.record_size, self._struct, row.offset, self._row_offset)

    def offset_of(self, index: int) -> int:
        """The offset of a record, in bytes from the start of the arena."""
        stretch = self._stretches[0] if index < self._stretches[0].number else self._stretches[-1]
        return stretch.offset + (index - stretch.first) * stretch.step

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < self.count:
            raise DamageError(f"{self.region.name}: record {index} does not exist, there are {self.count}")
        return self.record._make(self._struct.unpack_from(self._memory, self.offset_of(index)))

    def __iter__(self) -> Iterator[Record]:
        return map(self.record._make, self.raw())

    def used(self) -> Iterator[Record]:
        """The records that were ever used, in order; for regions whose records are allocated one by one."""
        return (record for _, record in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Record]]:
        """(index, record) of each record that was ever used, in order."""
        for stretch in self._stretches:
            high_water = unpack(RegionRecord, self._memory, stretch.row_offset).high_water
            records = map(self.record._make, self._first(stretch, min(high_water, stretch.number)))
            yield from enumerate(records, start=stretch.first)

    def raw(self) -> Iterator[tuple[Any, ...]]:
        """Every record as a bare tuple, for walks over very many records."""
        return chain(*(self._first(stretch, stretch.number) for stretch in self._stretches))

    def columns(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """(index, these fields in the order of the record) of the records that were ever used: for quick searches."""
        codes = (
            field.storage.code if field.name in names else f"{field.storage.size}x" for field in fields(self.record)
        )
        wanted = "".join(codes)
        for stretch in self._stretches:
            count = min(unpack(RegionRecord, self._memory, stretch.row_offset).high_water, stretch.number)
            form = struct.Struct(f"<{stretch.step - self.size}x{wanted}")
            for index, found in enumerate(self._unpacked(form, stretch, count), start=stretch.first):
                yield index, *found

    def high_water(self) -> int:
        """How many records were ever used."""
        rows = ((each, unpack(RegionRecord, self._memory, each.row_offset)) for each in self._stretches)
        return sum(min(row.high_water, stretch.number) for stretch, row in rows)

    def row(self) -> RegionRecord:
        """The region's row, read now: `in_use`, `high_water` and `free_head` change."""
        return unpack(RegionRecord, self._memory, self._row_offset)

    def link(self, index: int) -> int:
        """The link that names the (next, prev) pair of a record."""
        return (self.offset_of(index) + self._pair) // layout.LINK_UNIT

    def index_of_link(self, link: int) -> int | None:
        """The record whose (next, prev) pair a link names; None when it names something else."""
        for stretch in self._stretches:
            index, rest = divmod(link * layout.LINK_UNIT - self._pair - stretch.offset, stretch.step)
            if rest == 0 and 0 <= index < stretch.number:
                return stretch.first + index
        return None

    def is_zero_from(self, index: int) -> bool:
        """Whether the region's own records (not the nodes in operations) are all zero from `index` on."""
        stretch = self._stretches[-1]
        end = stretch.offset + stretch.number * stretch.step
        for at in range(stretch.offset + index * stretch.step, end, CHUNK):
            part = self._memory[at : min(at + CHUNK, end)]
            if part != ZEROS[: len(part)]:
                return False
        return True

    def _first(self, stretch: Stretch, count: int) -> Iterator[tuple[Any, ...]]:
        return self._unpacked(stretch.form, stretch, count)

    def _unpacked(self, form: struct.Struct, stretch: Stretch, count: int) -> Iterator[tuple[Any, ...]]:
        """The first records of a stretch. They are copied, so that no view of the mapping is left when the reader is
        closed; a part at a time, because an arena may be larger than the reader's memory.
        """
        for first in range(0, count, COPIED):
            start, records = stretch.start + first * stretch.step, min(COPIED, count - first)
            yield from form.iter_unpack(bytes(self._memory[start : start + records * stretch.step]))


class TableOf(Generic[Record]):
    """A reader's table of a region, made at its first use: most readers need only a few regions."""

    def __init__(self, region: Region, record: type[Record]) -> None:
        self._region, self._record = region, record

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, reader: ArenaReader, owner: type) -> Table[Record]:
        table = Table(reader.memory, self._region, self._record)
        vars(reader)[self._name] = table
        return table


class ArenaReader:
    """An arena, read-only. A context manager; close() lets go of the mapping.

    Raises ArenaNotReadyError (retry shortly), LayoutMismatchError (with both values) or ArenaTruncatedError when made.
    Made from a file, it also raises ResourceLimitError if the file cannot be mapped.
    """

    ops = TableOf(Region.OPS, OpRecord)
    nodes = TableOf(Region.NODES, WatchNode)
    watermarks = TableOf(Region.WATERMARKS, WatermarkRecord)
    blocks = TableOf(Region.BLOCKS, Block)
    clients = TableOf(Region.CLIENTS, ClientRecord)
    levels = TableOf(Region.LEVELS, LevelRecord)
    buckets = TableOf(Region.BUCKETS, BucketRecord)
    events = TableOf(Region.EVENTS, EventRecord)
    slots = TableOf(Region.SLOTS, SlotRecord)
    key_table = TableOf(Region.KEY_TABLE, KeyTableRecord)
    watermark_table = TableOf(Region.WATERMARK_TABLE, WatermarkTableRecord)
    handles = TableOf(Region.HANDLES, HandleRecord)
    ids = TableOf(Region.IDS, IdRecord)
    id_table = TableOf(Region.ID_TABLE, IdTableRecord)
    answers = TableOf(Region.ANSWERS, AnswerRecord)
    groups = TableOf(Region.GROUPS, GroupRecord)
    purgatories = TableOf(Region.PURGATORIES, PurgatoryRecord)
    purgatory_counters = TableOf(Region.PURGATORY_COUNTERS, CounterRecord)
    daemon_counters = TableOf(Region.DAEMON_COUNTERS, CounterRecord)
    histograms = TableOf(Region.HISTOGRAMS, HistogramRecord)  # of purgatories, then of the daemon
    labels = TableOf(Region.COUNTER_LABELS, CounterLabel)
    errors = TableOf(Region.ERRORS, ErrorRecord)
    users = TableOf(Region.USERS, UserRecord)
    accounts = TableOf(Region.ACCOUNTS, AccountRecord)

    def __init__(self, memory: memoryview, mapping: mmap.mmap | None = None) -> None:
        self._mapping = mapping
        self.memory = memory
        self.words = memory[: len(memory) // 8 * 8].cast("B").cast("Q")
        try:
            check_header(memory)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, instance: str | None = None) -> Self:
        """The arena of an instance (the default one without a name).

        Raises TimerdUnavailableError when no such instance is found, PermissionError, ResourceLimitError when one of
        its files is no plain file of the daemon's user, and the errors that the class names.
        """
        return cls.from_descriptor(open_arena_file(find_instance(instance)))

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], owners: Collection[int] | None = None) -> Self:
        """The arena in a file: shared memory under /dev/shm, an --arena-file, or a copy of one.

        With `owners`, a file of one of these users. Raises OSError, also if it is no plain file.
        """
        return cls.from_descriptor(open_plain(path, owners=owners, follows=True))

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Self:
        """The arena behind a descriptor, which is closed: the mapping does not need it."""
        try:
            size = os.fstat(descriptor).st_size
            if size < layout.HEADER_SIZE:
                raise ArenaNotReadyError(f"the arena has {size} bytes, and its header {layout.HEADER_SIZE}{RETRY}")
            try:
                mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
            except (OSError, OverflowError) as error:
                raise ResourceLimitError(f"the arena of {size:,} bytes cannot be mapped: {error}") from None
        finally:
            os.close(descriptor)
        return cls(memoryview(mapping), mapping)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """An arena in memory. A bytearray is looked at where it is, not copied, and cannot be resized until close()."""
        return cls(memoryview(data).toreadonly().cast("B"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the views and the mapping. After it, only close() may be called again."""
        self.words.release()
        self.memory.release()
        if self._mapping is not None:
            self._mapping.close()

    def header(self) -> ArenaHeader:
        """A copy of the header."""
        return unpack(ArenaHeader, self.memory)

    def region(self, region: Region) -> RegionRecord:
        """A copy of a region's row."""
        return unpack(RegionRecord, self.memory, layout.REGIONS_OFFSET + region * size_of(RegionRecord))

    def daemon_histograms(self) -> dict[layout.DaemonHistogram, HistogramRecord]:
        """The daemon's histograms: the last records of their region."""
        first = self.histograms.count - len(layout.DaemonHistogram)
        return {kind: self.histograms[first + kind] for kind in layout.DaemonHistogram}

    def record(self, region: Region, index: int) -> Any:
        """A copy of any record, as the NamedTuple of its region. Typed access: reader.ops[index] and the like."""
        return self.table(region)[index]

    def table(self, region: Region) -> Table[Any]:
        """Any region's records. Typed access: reader.ops and the like."""
        return Table[Any](self.memory, region, layout.REGION_RECORDS[region])

    def redo(self) -> list[RedoEntry]:
        """The words of the transaction that is being stored; none between two turns."""
        count = min(self.header().redo_count, layout.REDO_MAX)
        size = size_of(RedoEntry)
        return [unpack(RedoEntry, self.memory, layout.REDO_OFFSET + at * size) for at in range(count)]

    def watermark_at(self, index: int, hash: int) -> int | None:
        """The watermark in that record, while the record is in use for a key of that hash; else None.

        Four words of memory are read without a wait. A record that becomes another key's meanwhile is noticed.
        """
        if not 0 <= index < self.watermarks.count:
            return None
        words, at = self.words, self.watermarks.offset_of(index) // 8
        before, watermark = words[at], words[at + _WATERMARK_WORD]
        used = words[at + _USED_WORD] & 0xFF
        return watermark if used and before == words[at] == hash else None

    def blob(self, first: int) -> bytes:
        """The bytes of a payload, value or long name; `first` is its first block (index + 1), 0 the empty one.

        Raises DamageError when the chain is shorter than its length, or leaves the region.
        """
        if first == 0:
            return b""
        length = self.blocks[first - 1].length
        most = -(-length // BLOCK_DATA)
        if most > self.blocks.count:
            raise DamageError(
                f"BLOCKS: chain {first - 1} says {length} bytes, more than {self.blocks.count} blocks hold"
            )
        pieces: list[bytes] = []
        at = first
        while at and len(pieces) < most:
            block = self.blocks[at - 1]
            pieces.append(block.data)
            at = block.next
        if len(pieces) < most:
            raise DamageError(
                f"BLOCKS: chain {first - 1} ends after {len(pieces)} blocks, and {length} bytes need {most}"
            )
        return b"".join(pieces)[:length]

    def key_name(self, record: WatchNode | WatermarkRecord) -> bytes:
        """The name of a key that is watched, or has a watermark. Raises DamageError."""
        return self.blob(record.name_blob) if record.name_blob else record.name[: record.name_length]

    def event_key(self, event: EventRecord) -> bytes:
        """The key of an event in the ring. Raises DamageError."""
        return self.blob(event.key_blob) if event.key_blob else event.key[: event.key_length]

    def event(self, sequence: int) -> EventRecord:
        """The ring record at a sequence's position; its own `sequence` differs when it was overwritten."""
        return self.events[sequence & (self.events.count - 1)]

    def purgatory_name(self, index: int) -> str:
        """The name of a purgatory. Raises DamageError when there is no such record."""
        purgatory = self.purgatories[index]
        return purgatory.name[: purgatory.name_length].decode("ascii", "backslashreplace")

    def between_turns(self, read: Callable[[], Result]) -> Result:
        """The result of a call of `read` during which no turn ran, so that its words belong together.

        Waits 50 ms at most for such a moment, and then returns what it reads, whole or not. The turn counter of a
        daemon that was killed in a turn is odd for ever, and a busy daemon hardly rests. May call `read` several times.
        Until the time is over, a DamageError counts as a turn in between.
        """
        end = time.monotonic() + BETWEEN_TURNS_S
        while True:
            turn, late = self.words[TURN_WORD], time.monotonic() >= end
            if turn & 1 and not late:
                time.sleep(0.0001)
                continue
            try:
                result = read()
            except DamageError:
                if late:
                    raise
                continue
            if late or self.words[TURN_WORD] == turn:
                return result


def check_header(memory: memoryview) -> None:
    """Check that this program can read the arena in `memory`. Raises the errors of ArenaReader."""
    if len(memory) < layout.HEADER_SIZE:
        raise ArenaNotReadyError(f"the arena has {len(memory)} bytes, and its header {layout.HEADER_SIZE}{RETRY}")
    header = unpack(ArenaHeader, memory)
    if header.layout_version == 0 and header.magic in (layout.MAGIC, bytes(len(layout.MAGIC))):
        raise ArenaNotReadyError(f"the arena is still being made (its layout version is 0){RETRY}")
    for what, arena, ours in (
        ("magic", header.magic, layout.MAGIC),
        ("layout version", header.layout_version, layout.LAYOUT_VERSION),
        ("fingerprint", f"0x{header.fingerprint:08x}", f"0x{layout.fingerprint():08x}"),
        ("number of regions", header.region_count, len(Region)),
    ):
        if arena != ours:
            raise LayoutMismatchError(
                f"{what}: the arena's is {arena!r}, this program's {ours!r}; run the same timerd on both sides"
            )
    if len(memory) < header.size:
        raise ArenaTruncatedError(f"the arena has {len(memory)} bytes, and its header says {header.size}")
    for region, record in layout.REGION_RECORDS.items():
        row = unpack(RegionRecord, memory, layout.REGIONS_OFFSET + region * size_of(RegionRecord))
        if row.record_size != size_of(record):
            raise LayoutMismatchError(
                f"{region.name}: the arena's records have {row.record_size} bytes, this program's {size_of(record)}"
            )
        if row.offset % 8 or row.offset < layout.HEADER_SIZE or row.offset + row.count * row.record_size > header.size:
            raise ArenaTruncatedError(
                f"{region.name}: {row.count} records of {row.record_size} bytes at {row.offset} do not lie within the "
                f"arena's {header.size} bytes"
            )
