"""check() finds nothing in a sound arena, and reports each field that contradicts the records."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.rig.arenas import SEED, violations
from support.rig.commands import Key, KeyAct, Register
from support.rig.damage import Pen, busy_rig, slot_in
from support.rig.harness import MS, Rig, advance, forget
from timerd_shm.check.check import check, examine, finished
from timerd_shm.check.truth import SENTENCES_MAX
from timerd_shm.declare.errors import LayoutMismatchError
from timerd_shm.declare.fields import Role, fields, offset_of, size_of
from timerd_shm.declare.layout import (
    FIXED_COUNTS,
    FREE_LINKS,
    REDO_MAX,
    REDO_OFFSET,
    REGION_RECORDS,
    REGIONS_OFFSET,
    Region,
)
from timerd_shm.declare.records import ArenaHeader, RegionRecord
from timerd_shm.declare.states import ClientState, IdState, OpState, Orphans, Place
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader

# derived fields: every one, in every record that is in use -----------------------------------------------------------

# Fields that mean nothing in some records, and a test for such a record.
UNCHECKED: dict[tuple[Region, str], Callable[[Any], bool]] = {
    (Region.OPS, "bucket"): lambda op: op.state != OpState.PENDING,  # only a pending operation is in a bucket
    (Region.NODES, "rank"): lambda node: not node.place or not node.kind,  # only nodes of heaps have a rank
    (Region.NODES, "next"): lambda node: not node.place,
    (Region.NODES, "prev"): lambda node: not node.place,
    (Region.NODES, "chain"): lambda node: node.place != Place.FIRST,
    (Region.BLOCKS, "refs"): lambda block: not block.refs,  # only the first block of a chain has a count
    (Region.IDS, "next"): lambda record: record.state != IdState.SETTLED,
    (Region.IDS, "prev"): lambda record: record.state != IdState.SETTLED,
    (Region.OPS, "tag"): lambda op: op.group or not op.client_generation,  # the operation has no handle
    (Region.HANDLES, "tag"): lambda handle: handle.op in (0, 0xFFFF_FFFF),
}
DERIVED = [
    (region, field.name)
    for region, record in REGION_RECORDS.items()
    for field in fields(record)
    if field.role is Role.DERIVED
]


def in_use(reader: ArenaReader, region: Region) -> list[int]:
    """The indexes of the records of a region that are in use."""
    used: dict[Region, Callable[[], list[int]]] = {
        Region.OPS: lambda: [i for i, op in enumerate(reader.ops.used()) if op.state],
        Region.NODES: lambda: [
            n for i, op in enumerate(reader.ops.used()) if op.state == OpState.PENDING for n in walk.nodes_of(reader, i)
        ],
        Region.WATERMARKS: lambda: [i for i, each in enumerate(reader.watermarks.used()) if each.used],
        Region.BLOCKS: lambda: [i for i, block in enumerate(reader.blocks.used()) if block.refs],
        Region.IDS: lambda: [i for i, record in enumerate(reader.ids.used()) if record.state],
        Region.ANSWERS: lambda: [i for i, answer in enumerate(reader.answers.used()) if answer.used],
        Region.CLIENTS: lambda: [i for i, client in enumerate(reader.clients) if client.state],
        Region.HANDLES: lambda: [i for i, handle in enumerate(reader.handles) if handle.op],
    }
    return used.get(region, lambda: list(range(reader.region(region).count)))()


@pytest.mark.parametrize(("region", "field"), DERIVED, ids=[f"{region.name}.{field}" for region, field in DERIVED])
def test_every_derived_field_is_checked_against_the_records(grouped: bytes, region: Region, field: str) -> None:
    with ArenaReader.from_bytes(grouped) as reader:
        indexes = in_use(reader, region)[:24]
    assert indexes
    told = 0
    for index in indexes:
        memory = bytearray(grouped)
        pen = Pen(memory)
        with ArenaReader.from_bytes(memory) as reader:
            record = reader.record(region, index)
        if (means_nothing := UNCHECKED.get((region, field))) and means_nothing(record):
            continue
        pen.set(region, index, field, getattr(record, field) ^ 1)
        assert check(memory, seed=SEED), f"check() missed: {region.name}[{index}].{field} was {getattr(record, field)}"
        assert not examine(memory, seed=SEED).truth, examine(memory, seed=SEED).truth
        told += 1
    assert told, "the field means nothing in any of these records"


def with_watermarks() -> bytes:
    """An arena with two watermarks, and the free record of a third one, which was forgotten."""
    rig = Rig()
    rig.do(rig.client(), *(advance(key, 5) for key in (b"a", b"b", b"c")), forget(b"b"))
    return bytes(rig.memory)


def test_two_watermarks_of_one_key_are_found() -> None:
    memory = bytearray(with_watermarks())
    with ArenaReader.from_bytes(memory) as reader:
        first, second = (index for index, each in reader.watermarks.numbered() if each.used)
        one = reader.watermarks[first]
    for field in ("hash", "name"):
        Pen(memory).set(Region.WATERMARKS, second, field, getattr(one, field))
    assert f"watermark {second} is the second one of key b'a'" in check(memory, seed=SEED)


@pytest.mark.parametrize("region", FREE_LINKS)
def test_free_lists_and_counts_of_a_region_are_checked(sound: bytes, region: Region) -> None:
    sound = with_watermarks() if region is Region.WATERMARKS else sound
    with ArenaReader.from_bytes(sound) as reader:
        row = reader.region(region)
        offset = REGIONS_OFFSET + region * size_of(RegionRecord)
    assert 0 < row.in_use < row.high_water < row.count, f"{region.name}: {row}"
    assert row.free_head, f"{region.name}: {row}"
    for field, value in (("in_use", row.in_use + 1), ("free_head", 0), ("free_head", row.high_water + 1)):
        memory = bytearray(sound)
        at = offset + offset_of(RegionRecord, field)
        memory[at : at + 4] = value.to_bytes(4, "little")
        assert any(region.name in sentence for sentence in check(memory, seed=SEED)), f"{region.name}.{field}={value}"


# uses of check() -----------------------------------------------------------------------------------------------------


def test_acknowledged_outcomes_may_be_freed_in_the_next_turn(sound: bytes) -> None:
    memory = bytearray(sound)
    Pen(memory).set(Region.CLIENTS, 1, "acknowledged", 2)
    assert check(memory, seed=SEED)
    assert check(memory, cut=True, seed=SEED) == []


def test_received_outcomes_of_a_group_may_be_handled_in_the_next_turn(grouped: bytes) -> None:
    memory = bytearray(grouped)
    Pen(memory).set(Region.CLIENTS, slot_in(grouped, ClientState.LIVE, 1), "acknowledged", 2)
    assert check(memory, seed=SEED)
    assert check(memory, cut=True, seed=SEED) == []


def test_a_dead_client_is_charged_for_its_remaining_operations_during_the_sweep() -> None:
    rig = Rig()
    alice = rig.client(Orphans.KEEP)
    for number in range(10):
        orphans = Orphans.CANCEL if number % 2 else None
        alice.issue(Register((Key(b"k%d" % number),), payload=b"x" * 50, orphans=orphans))
    rig.turn()
    rig.core.close_client(alice.slot, rig.now_ns)
    assert violations(rig.memory) == []
    while rig.core.resume(rig.now_ns, 1):
        assert violations(rig.memory) == []
    assert violations(rig.memory) == []


def test_check_finishes_a_transaction_on_a_copy(sound: bytes) -> None:
    memory = bytearray(sound)
    pen = Pen(memory)
    at = offset_of(ArenaHeader, "ring_bytes")
    memory[REDO_OFFSET : REDO_OFFSET + 16] = at.to_bytes(8, "little") + (12345).to_bytes(8, "little")
    pen.header("redo_count", 1)
    with ArenaReader.from_bytes(memory) as reader:
        copy = finished(reader)
        assert reader.header().redo_count == 1
    with ArenaReader.from_bytes(copy) as reader:
        assert (reader.header().ring_bytes, reader.header().redo_count) == (12345, 0)
    for count, offset, complaint in (
        (REDO_MAX + 1, 0, f"{REDO_MAX + 1} words"),
        (1, 3, "offset 3"),
        (1, len(memory), "offset"),
    ):
        memory[REDO_OFFSET : REDO_OFFSET + 8] = offset.to_bytes(8, "little")
        pen.header("redo_count", count)
        with ArenaReader.from_bytes(memory) as reader, pytest.raises(LayoutMismatchError, match=complaint):
            finished(reader)


@pytest.mark.parametrize("region", Region)
@pytest.mark.parametrize("emptied", [("count",), ("count", "high_water", "in_use")])
def test_a_region_of_no_records_is_a_finding(grouped: bytes, region: Region, emptied: tuple[str, ...]) -> None:
    memory = bytearray(grouped)
    for field in emptied:
        code = next(each.storage.code for each in fields(RegionRecord) if each.name == field)
        at = REGIONS_OFFSET + region * size_of(RegionRecord) + offset_of(RegionRecord, field)
        struct.pack_into(f"<{code}", memory, at, 0)
    assert f"{region.name} has no records" in check(memory, seed=SEED)


@pytest.mark.parametrize("region", FIXED_COUNTS)
@pytest.mark.parametrize("more", [-1, 1])
def test_another_number_of_levels_or_buckets_is_a_finding(grouped: bytes, region: Region, more: int) -> None:
    memory = bytearray(grouped)
    count = FIXED_COUNTS[region] + more
    at = REGIONS_OFFSET + region * size_of(RegionRecord) + offset_of(RegionRecord, "count")
    struct.pack_into("<I", memory, at, count)
    assert f"{region.name} has {count} records, and every arena has {FIXED_COUNTS[region]}" in check(memory, seed=SEED)


def test_very_many_findings_are_counted_not_listed() -> None:
    rig = Rig(capacity=512)
    alice = rig.client()
    for number in range(250):
        alice.issue(Register((Key(b"k%d" % number),), timeout_ns=MS * (number + 1)))
    rig.turn()
    pen = Pen(rig.memory)
    for index in range(250):
        pen.set(Region.OPS, index, "seen", 1 << 40)
    found = examine(rig.memory)
    assert len(found.truth) == SENTENCES_MAX + 1
    assert found.truth[-1] == f"and {250 - SENTENCES_MAX} more findings of the truth"


def test_check_reports_its_progress(sound: bytes) -> None:
    parts: list[str] = []
    check(sound, progress=parts.append)
    assert parts[0] == "header" and "wheel" in parts and len(parts) == len(set(parts))


def test_check_is_fast_enough_for_every_step() -> None:
    """This is no benchmark: only a worse order of growth exceeds the bound. Measured: 1.5 ms."""
    rig = busy_rig()
    check(rig.memory)
    began = time.process_time()
    for _ in range(20):
        assert violations(rig.memory) == []
    assert (time.process_time() - began) / 20 < 0.02


@pytest.mark.long
def test_a_mass_of_operations_is_checked_in_seconds() -> None:
    rig = Rig(capacity=16_384, nodes=16_384, quota_nodes=16_384, ring_events=1024, quota_operations=16_384)
    alice = rig.client()
    for number in range(16_000):
        alice.issue(Register((Key(b"k%d" % (number % 5_000)), Key(b"all")), timeout_ns=(number + 1) * 7 * MS))
    alice.issue(KeyAct(CommandKind.FIRE, b"k7", value=b"v"))
    rig.turn()
    began = time.process_time()
    assert check(rig.memory) == []
    assert time.process_time() - began < 10
