"""An arena in which every kind of record is in use; changes of arenas and journals, and readers that must survive them.

On a damaged arena, a reader's walk may raise only DamageError. The opening of a reader, the checker and a start may
raise only one of REFUSALS. On a damaged journal, its reader may raise only JournalError.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.rig.commands import Key, KeyAct, Register
from support.rig.harness import MS, Rig, S, fire
from timerd_shm.check.check import check
from timerd_shm.declare.errors import ArenaDamagedError, ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError
from timerd_shm.declare.fields import fields, offset_of, size_of
from timerd_shm.declare.journal import BLOCK_SIZE, BlockHeader, SegmentHeader
from timerd_shm.declare.layout import BUCKETS, REGION_RECORDS, Region
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.declare.states import ClientState, Condition, Orphans
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import walk
from timerd_shm.read.journal_reader import Damage, JournalReader, Row
from timerd_shm.read.reader import ArenaReader, DamageError
from timerd_shm.read.segment import HEADER_CRC

REFUSALS = (ArenaDamagedError, ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError)

LONG_KEY = b"a key that is longer than what fits into the record of an event, by far"


def busy_rig() -> Rig:
    """A rig. In its arena, each region that allocates records has some that are in use, some free, some never used."""
    rig = Rig(settled_ids_kept=20 * MS)
    alice, bob = rig.client(), rig.client()
    # These operations leave free records behind, and in the end one remembered id.
    for number in range(14):
        key = Key(LONG_KEY + b"%d" % number)
        keys, id = (key, Key(b"second")), b"not remembered%02d" % number
        alice.issue(Register(keys, timeout_ns=MS, id=id, payload=b"p", wants_answer=True))
    rig.turn()
    rig.turn(rig.now_ns + 10 * MS)
    rig.acknowledge()
    rig.turn(rig.now_ns + 40 * MS)
    for id in (b"settled at first", b"settled too, too"):
        rig.do(alice, Register((Key(b"gone"),), timeout_ns=MS, id=id))
    rig.turn(rig.now_ns + 10 * MS)
    rig.acknowledge()
    for number in range(6):
        alice.issue(
            Register(
                (Key(b"k%d" % (number % 2)), Key(b"offset", target=100 - 7 * number % 20), Key(LONG_KEY)),
                condition=Condition.AT_LEAST,
                needed=3,
                timeout_ns=(number + 1) ** 6 * MS,
                payload=b"p" * 60 * number,
                id=b"0123456789abcde%d" % number,
            )
        )
    bob.issue(Register((Key(b"k0"), Key(b"k2")), condition=Condition.TOTAL, total=100, timeout_ns=50 * MS))
    bob.issue(Register((Key(b"k3"),), timeout_ns=50 * MS, payload=b"with a value", id=b"0123456789abcdef"))
    bob.issue(Register((Key(b"k3"),), timeout_ns=50 * MS, wants_answer=True))
    bob.issue(Register((), timeout_ns=50 * MS))  # refused
    bob.issue(KeyAct(CommandKind.FIRE, b"k3", value=b"v" * 200))
    bob.issue(KeyAct(CommandKind.FIRE, b"k2", amount=2))
    bob.issue(KeyAct(CommandKind.FIRE, LONG_KEY, value=b"w"))
    bob.issue(KeyAct(CommandKind.ADVANCE, b"offset", amount=3))
    bob.issue(KeyAct(CommandKind.FIRE, b"jobs", limit=2, wants_answer=True))
    rig.turn()
    return rig


def grouped_rig() -> Rig:
    """A busy rig with two groups. A member of one group holds outcomes, and has acknowledged some of them. The other
    group has no members, and has outcomes that wait for one.
    """
    rig = busy_rig()
    carol = rig.client(group=b"workers", listens=True)
    for number in range(4):
        carol.issue(Register((Key(b"g%d" % number), Key(LONG_KEY)), timeout_ns=3600 * S, payload=b"p", for_group=True))
    rig.do(carol, fire(b"g0", value=b"v" * 200))
    rig.acknowledge(carol)
    rig.do(carol, fire(b"g1"))
    dave = rig.client(Orphans.GROUP, group=b"nobody-left")
    rig.do(dave, *(Register((Key(b"d%d" % number),), timeout_ns=3600 * S, payload=b"p") for number in range(3)))
    rig.do(dave, fire(b"d0", value=b"v"), fire(b"d1", limit=1))
    rig.close(dave)
    return rig


class Pen:
    """Changes fields of an arena in memory."""

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory

    def _field_at(self, record: type, field: str, base: int) -> tuple[str, int]:
        storage = next(each.storage for each in fields(record) if each.name == field)
        return "<" + storage.code, base + offset_of(record, field)

    def get(self, region: Region, index: int, field: str) -> Any:
        with ArenaReader.from_bytes(self.memory) as reader:
            return getattr(reader.record(region, index), field)

    def set(self, region: Region, index: int, field: str, value: Any) -> None:
        with ArenaReader.from_bytes(self.memory) as reader:
            at = reader.table(region).offset_of(index)
        code, offset = self._field_at(REGION_RECORDS[region], field, at)
        struct.pack_into(code, self.memory, offset, value)

    def header(self, field: str, value: Any) -> None:
        code, offset = self._field_at(ArenaHeader, field, 0)
        struct.pack_into(code, self.memory, offset, value)


def slot_in(memory: bytes, state: ClientState, group: int) -> int:
    """The slot of a client in that state and group. `group`: the group's index + 1; 0 = no group."""
    with ArenaReader.from_bytes(memory) as reader:
        return next(slot for slot, c in enumerate(reader.clients) if (c.state, c.group) == (state, group))


# changes --------------------------------------------------------------------------------------------------------------

LINE = 64
Change = tuple[float, int, int]  # where, as a share of what is in use; a number; how many bytes wide
NUMBERS = st.sampled_from([0, 1, 2, 5, 63, 64, 255, 65_535, 1 << 20, (1 << 32) - 1, (1 << 64) - 1])
CHANGES = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), NUMBERS, st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=20
)


def changed(content: bytes | bytearray, changes: Iterable[Change], first: int = 0) -> bytearray:
    """A copy with the changes. They are aligned. Lines before the position `first`, and empty lines, do not change."""
    copy = bytearray(content)
    used = [at for at in range(first, len(copy) - LINE + 1, LINE) if any(copy[at : at + LINE])]
    for place, number, width in changes:
        line, byte = divmod(int(place * len(used) * LINE), LINE)
        at = used[line] + byte // width * width
        copy[at : at + width] = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return copy


def with_right_sums(segment: bytearray, sequence: int | None = None) -> bytearray:
    """The segment with right CRCs in its header and blocks. Its number becomes `sequence`, if that is given."""
    if sequence is not None:
        at = offset_of(SegmentHeader, "sequence")
        segment[at : at + 8] = sequence.to_bytes(8, "little")
    crc = zlib.crc32(segment[HEADER_CRC : size_of(SegmentHeader)])
    segment[HEADER_CRC - 4 : HEADER_CRC] = crc.to_bytes(4, "little")
    at = offset_of(BlockHeader, "sequence")
    for block in range(BLOCK_SIZE, len(segment), BLOCK_SIZE):
        if any(segment[block : block + size_of(BlockHeader)]):
            if sequence is not None:
                segment[block + at : block + at + 8] = sequence.to_bytes(8, "little")
            crc = zlib.crc32(segment[block + 4 : block + BLOCK_SIZE])
            segment[block : block + 4] = crc.to_bytes(4, "little")
    return segment


# readers -------------------------------------------------------------------------------------------------------


def read_arena(memory: bytes | bytearray) -> None:
    """Do all walks, and check the arena. No walk hangs, and no error of another kind is raised."""
    try:
        reader = ArenaReader.from_bytes(memory)
    except REFUSALS:
        return
    with reader:
        walks: list[Iterable[object]] = [walk.events(reader)]
        with contextlib.suppress(DamageError):
            walks += [walk.bucket(reader, bucket.level, bucket.index) for bucket in walk.occupied_buckets(reader)]
        for slot in range(len(reader.clients)):
            walks += [walk.outcomes(reader, slot), walk.answers(reader, slot), walk.remembered_ids(reader, slot)]
        for group in range(len(reader.groups)):
            walks += [of(reader, group) for of in (walk.waiting, walk.waiting_calls, walk.dead_letters)]
        for node in range(min(len(reader.nodes), 256)):
            walks += [walk.event_watchers(reader, node), walk.watermark_watchers(reader, node)]
        for operation in range(min(reader.ops.row().high_water, len(reader.ops))):
            walks.append(walk.nodes_of(reader, operation))
        walks.append(walk.free_records(reader, Region.OPS, reader.ops))
        most = max(len(reader.blocks), len(reader.ops), BUCKETS * 7)
        for found in walks:
            with contextlib.suppress(DamageError):
                assert len(list(found)) <= most, "a walk that goes in circles"
    with contextlib.suppress(*REFUSALS):
        check(memory)


def read_journal(directory: Path) -> list[Row | Damage]:
    """Read a journal, and each text that a row names. Returns rows and damage, or raises JournalError."""
    with JournalReader(directory) as reader:
        rows: list[Row | Damage] = []
        for row in reader.rows():
            rows.append(row)
            for name in ("key", "owner", "purgatory", "id"):
                reader.text_kind(getattr(row.record, name, 0))
            assert len(rows) < 100_000, "the reading does not end"
        return rows + list(reader.damage)
