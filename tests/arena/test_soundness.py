"""A start refuses a damaged arena with a named error, or works on it. It never reads beyond the arena."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import struct

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes.mutations import EXAMPLES
from support.rig.commands import Key, Register
from support.rig.damage import CHANGES, NUMBERS, REFUSALS, Change, Pen, changed, read_arena
from support.rig.harness import MS, Rig, fire
from support.rig.soundness import BUSY, MEMORY, fenced, live_on
from timerd_shm.declare.errors import ArenaDamagedError
from timerd_shm.declare.fields import Role, fields, offset_of, size_of
from timerd_shm.declare.layout import FREE_LINKS, REDO_OFFSET, REGION_RECORDS, REGIONS_OFFSET, Region
from timerd_shm.declare.records import (
    ArenaHeader,
    ClientRecord,
    EventRecord,
    IdRecord,
    OpRecord,
    RegionRecord,
    WatchNode,
    WatermarkRecord,
)
from timerd_shm.declare.states import OpFlag, OpState, Orphans


@pytest.mark.parametrize("beyond", [-1, len(MEMORY)])
def test_a_read_beyond_the_arena_would_kill_the_process(beyond: int) -> None:
    copy = fenced(MEMORY)
    byte = ctypes.addressof(ctypes.c_char.from_buffer(copy)) + beyond
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.string_at(byte, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] != 0, "the byte beyond the arena could be read"


def test_an_undamaged_arena_goes_on_working() -> None:
    live_on(MEMORY)


@pytest.mark.long
def test_the_core_never_reads_beyond_the_arena_whatever_bytes_are_changed(seed: int) -> None:
    @hypothesis.seed(seed)
    @EXAMPLES
    @given(CHANGES)
    def damage(changes: list[Change]) -> None:
        with contextlib.suppress(*REFUSALS):
            live_on(bytes(changed(MEMORY, changes)))

    damage()


def test_a_daemon_lives_on_if_quota_clients_is_0() -> None:
    memory = bytearray(MEMORY)
    at = offset_of(ArenaHeader, "quota_clients")
    memory[at : at + 4] = bytes(4)
    live_on(bytes(memory))


@pytest.mark.long
def test_readers_and_the_checker_survive_any_changed_bytes(seed: int) -> None:
    @hypothesis.seed(seed)
    @EXAMPLES
    @given(CHANGES, st.booleans())
    def damage(changes: list[Change], everywhere: bool) -> None:
        read_arena(changed(MEMORY, changes, 0 if everywhere else REGIONS_OFFSET))

    damage()


def rows() -> list[tuple[Region, int]]:
    """Records in use, in the regions whose records refer to other records."""
    found = []
    for region in (Region.OPS, Region.NODES, Region.WATERMARKS, Region.BLOCKS, Region.EVENTS, Region.IDS,
                   Region.CLIENTS, Region.ANSWERS, Region.GROUPS, Region.PURGATORIES, Region.SLOTS):  # fmt: skip
        row = BUSY.arena.region(region)
        used = row.high_water if region in FREE_LINKS else row.count
        found += [(region, index) for index in range(min(used, 40))]
    found += [(Region.NODES, BUSY.arena.region(Region.OPS).count + index) for index in range(8)]  # of further keys
    return found


def test_any_value_in_any_field_of_truth_is_survived(seed: int) -> None:
    """One field of one record at a time is changed: one of the fields that a start trusts."""

    @hypothesis.seed(seed)
    @hypothesis.settings(EXAMPLES, max_examples=2 * EXAMPLES.max_examples)
    @given(st.sampled_from(rows()), st.integers(0, 40), NUMBERS)
    def damage(row: tuple[Region, int], which: int, number: int) -> None:
        region, index = row
        record = REGION_RECORDS[region]
        believed = [field for field in fields(record) if field.role is Role.TRUTH and field.storage.size <= 8]
        field = believed[which % len(believed)]
        memory = bytearray(MEMORY)
        at = BUSY.arena.table(region).offset_of(index) + field.offset
        memory[at : at + field.storage.size] = number.to_bytes(8, "little")[: field.storage.size]
        with contextlib.suppress(*REFUSALS):
            live_on(bytes(memory))

    damage()


def pending(rig: Rig) -> int:
    return next(i for i, op in enumerate(rig.arena.records(Region.OPS)) if op.state == OpState.PENDING and op.keys > 1)


@pytest.mark.parametrize(
    ("region", "record", "field", "value"),
    [
        (Region.OPS, OpRecord, "client", 65_535),
        (Region.OPS, OpRecord, "payload", 0xFFFF_FFFF),
        (Region.OPS, OpRecord, "keys", 65),
        (Region.OPS, OpRecord, "purgatory", 63),
        (Region.OPS, OpRecord, "id_record", 0xFFFF_FFFF),
        (Region.NODES, WatchNode, "next_of_op", 0xFFFF_FFFF),
        (Region.NODES, WatchNode, "next_of_op", 0),
        (Region.NODES, WatchNode, "next_of_op", 1),
        (Region.NODES, WatchNode, "op", 0xFFFF_FFFF),
        (Region.NODES, WatchNode, "name_length", 0),
        (Region.NODES, WatchNode, "name_blob", 0xFFFF_FFFF),
        (Region.WATERMARKS, WatermarkRecord, "name_length", 0),
        (Region.WATERMARKS, WatermarkRecord, "setter", 65_535),
        (Region.IDS, IdRecord, "op", 0xFFFF_FFFF),
        (Region.EVENTS, EventRecord, "value", 0xFFFF_FFFF),
        (Region.EVENTS, EventRecord, "client", 65_535),
        (Region.CLIENTS, ClientRecord, "state", 77),
    ],
)
def test_a_reference_to_a_missing_record_is_refused_with_the_record_that_holds_it(
    region: Region, record: type, field: str, value: int
) -> None:
    rig = BUSY
    index = {
        Region.OPS: pending(rig),
        Region.NODES: pending(rig),
        Region.WATERMARKS: next(i for i, each in enumerate(rig.arena.records(Region.WATERMARKS)) if each.used),
        Region.IDS: next(
            op.id_record for op in rig.arena.records(Region.OPS) if op.state == OpState.PENDING and op.id_record
        )
        - 1,
        Region.EVENTS: rig.core.newest & (rig.arena.region(Region.EVENTS).count - 1),
    }.get(region, 0)
    memory = bytearray(MEMORY)
    width = next(each for each in fields(record) if each.name == field).storage.size
    at = rig.arena.table(region).offset_of(index) + offset_of(record, field)
    memory[at : at + width] = value.to_bytes(width, "little")
    with pytest.raises(ArenaDamagedError, match=r"record \d+ of region [A-Z]+ names what is not there.*timerctl check"):
        rig.clone(bytes(memory))


def in_use(rig: Rig, state: OpState) -> int:
    return next(i for i, op in enumerate(rig.arena.records(Region.OPS)) if op.state == state)


def test_links_of_an_operation_without_a_deadline_are_not_believed() -> None:
    rig = Rig()
    rig.do(rig.client(), Register((Key(b"k"),)))
    memory = bytearray(rig.memory)
    for field in ("next", "prev"):
        Pen(memory).set(Region.OPS, in_use(rig, OpState.PENDING), field, 0xFFFF_FFFF)
    rig = rig.clone(bytes(memory))
    rig.do(rig.client(), fire(b"k"), fire(b"l"))  # in one frame, so that their records are prefetched together
    assert rig.gauges() == (0, 0)


def test_two_nodes_for_one_key_of_an_operation_are_refused() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, Register((Key(b"k"), Key(b"l")), 50 * MS), fire(b"k", limit=1))
    op = in_use(rig, OpState.SETTLED)
    memory = bytearray(rig.memory)
    Pen(memory).set(Region.NODES, op, "ordinal", 1 - rig.arena.record(Region.NODES, op).ordinal)
    with pytest.raises(ArenaDamagedError, match=f"record {op} of region OPS"):
        rig.clone(bytes(memory))


@pytest.mark.parametrize(("field", "value"), [("orphans", Orphans.GROUP), ("flags", OpFlag.CALL)])
@pytest.mark.parametrize("state", [OpState.PENDING, OpState.SETTLED])
def test_a_field_of_a_group_is_refused_in_an_operation_without_a_group(state: OpState, field: str, value: int) -> None:
    rig = Rig()
    rig.do(rig.client(), Register((Key(b"k"),), 50 * MS), *[fire(b"k", limit=1)] * (state == OpState.SETTLED))
    op = in_use(rig, state)
    memory = bytearray(rig.memory)
    Pen(memory).set(Region.OPS, op, field, value | (getattr(rig.arena.record(Region.OPS, op), field)))
    with pytest.raises(ArenaDamagedError, match=f"record {op} of region OPS"):
        rig.clone(bytes(memory))


def test_a_damaged_region_table_or_redo_slot_is_refused() -> None:
    at = REGIONS_OFFSET + Region.OPS * size_of(RegionRecord) + offset_of(RegionRecord, "free_link")
    memory = bytearray(MEMORY)
    memory[at : at + 4] = (1 << 20).to_bytes(4, "little")
    with pytest.raises(ArenaDamagedError, match="region table"):
        BUSY.clone(bytes(memory))
    memory = bytearray(MEMORY)
    Pen(memory).header("redo_count", 1 << 40)
    with pytest.raises(ArenaDamagedError, match="redo slot"):
        BUSY.clone(bytes(memory))


@pytest.mark.parametrize("field", ["offset", "count"])
def test_a_redo_slot_that_would_change_the_region_table_is_refused(field: str) -> None:
    memory = bytearray(MEMORY)
    word = REGIONS_OFFSET + Region.HANDLES * size_of(RegionRecord) + offset_of(RegionRecord, field) // 8 * 8
    memory[REDO_OFFSET : REDO_OFFSET + 16] = struct.pack("<QQ", word, int.from_bytes(memory[word : word + 8], "little"))
    Pen(memory).header("redo_count", 1)
    with pytest.raises(ArenaDamagedError, match="redo slot"):
        BUSY.clone(bytes(memory))


def test_overlapping_regions_are_refused() -> None:
    memory = bytearray(MEMORY)
    row = size_of(RegionRecord)
    ops, handles = (REGIONS_OFFSET + region * row for region in (Region.OPS, Region.HANDLES))
    memory[handles : handles + 8] = memory[ops : ops + 8]
    assert offset_of(RegionRecord, "offset") == 0
    with pytest.raises(ArenaDamagedError, match=f"row {Region.HANDLES:d} of its region table"):
        BUSY.clone(bytes(memory))
