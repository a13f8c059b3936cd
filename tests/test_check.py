"""check(): silent on a sound arena, and a sentence for each thing that is not as the records say."""

from __future__ import annotations

<<<<<<< HEAD
=======
import re
>>>>>>> proof
import time
from collections.abc import Callable
from typing import Any

import pytest

from commands import Key, KeyAct, Register
from damage import Pen, busy_rig, slot_in
from harness import MS, Rig, violations
from timerd_shm import walk
from timerd_shm.check import SENTENCES_MAX, check, examine, finished
from timerd_shm.errors import LayoutMismatchError
from timerd_shm.fields import Role, fields, offset_of, size_of
from timerd_shm.layout import (
    REDO_MAX,
    REDO_OFFSET,
    REGION_RECORDS,
    REGIONS_OFFSET,
    ArenaHeader,
    ClientState,
    IdState,
    OpState,
    Orphans,
    Region,
    RegionRecord,
)
from timerd_shm.reader import ArenaReader
from timerd_shm.wire import CommandKind

# derived fields: every one, in every record that is in use -----------------------------------------------------------

# What cannot be told from the records, or means nothing in some of them.
NOT_TOLD: dict[tuple[Region, str], Callable[[Any], bool]] = {
    (Region.OPS, "bucket"): lambda op: op.state != OpState.PENDING,  # only a pending one is in a bucket
    (Region.NODES, "rank"): lambda node: not node.linked or not node.kind,  # only of heaps
    (Region.NODES, "next"): lambda node: not node.linked,
    (Region.NODES, "prev"): lambda node: not node.linked,
    (Region.BLOCKS, "refs"): lambda block: not block.refs,  # only the first of a chain counts
    (Region.IDS, "next"): lambda record: record.state != IdState.SETTLED,
    (Region.IDS, "prev"): lambda record: record.state != IdState.SETTLED,
    (Region.HANDLES, "tag"): lambda handle: handle.op in (0, 0xFFFF_FFFF),
}
DERIVED = [
    (region, field.name)
    for region, record in REGION_RECORDS.items()
    for field in fields(record)
    if field.role is Role.DERIVED
]


def in_use(reader: ArenaReader, region: Region) -> list[int]:
    """The records of a region that mean something."""
    used: dict[Region, Callable[[], list[int]]] = {
        Region.OPS: lambda: [i for i, op in enumerate(reader.ops.used()) if op.state],
        Region.NODES: lambda: [
            n for op in reader.ops.used() if op.state == OpState.PENDING for n in walk.nodes_of(reader, op)
        ],
        Region.KEYS: lambda: [i for i, key in enumerate(reader.keys.used()) if key.refs or key.flags],
        Region.BLOCKS: lambda: [i for i, block in enumerate(reader.blocks.used()) if block.refs],
        Region.IDS: lambda: [i for i, record in enumerate(reader.ids.used()) if record.state],
        Region.ANSWERS: lambda: [i for i, answer in enumerate(reader.answers.used()) if answer.used],
        Region.CLIENTS: lambda: [i for i, client in enumerate(reader.clients) if client.state],
        Region.HANDLES: lambda: [i for i, handle in enumerate(reader.handles) if handle.op],
    }
    return used.get(region, lambda: list(range(reader.region(region).count)))()


@pytest.mark.parametrize(("region", "field"), DERIVED, ids=[f"{region.name}.{field}" for region, field in DERIVED])
def test_every_derived_field_is_held_against_the_records(grouped: bytes, region: Region, field: str) -> None:
    with ArenaReader.from_bytes(grouped) as reader:
        indexes = in_use(reader, region)[:24]
    assert indexes
    told = 0
    for index in indexes:
        memory = bytearray(grouped)
        pen = Pen(memory)
        with ArenaReader.from_bytes(memory) as reader:
            record = reader.record(region, index)
        if (means_nothing := NOT_TOLD.get((region, field))) and means_nothing(record):
            continue
        pen.set(region, index, field, getattr(record, field) ^ 1)
        assert check(memory), f"{region.name}[{index}].{field} was changed from {getattr(record, field)}, unnoticed"
        assert not examine(memory).truth or region is Region.KEYS, examine(memory).truth
        told += 1
    assert told, "no record in which it means something"


@pytest.mark.parametrize("region", [Region.OPS, Region.NODES, Region.KEYS, Region.BLOCKS, Region.IDS, Region.ANSWERS])
def test_free_lists_and_counts_of_a_region_are_checked(sound: bytes, region: Region) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        row = reader.region(region)
        offset = REGIONS_OFFSET + region * size_of(RegionRecord)
    assert 0 < row.in_use < row.high_water < row.count and row.free_head, f"{region.name}: {row}"
    for field, value in (("in_use", row.in_use + 1), ("free_head", 0), ("free_head", row.high_water + 1)):
        memory = bytearray(sound)
        at = offset + offset_of(RegionRecord, field)
        memory[at : at + 4] = value.to_bytes(4, "little")
        assert any(region.name in sentence for sentence in check(memory)), f"{region.name}.{field}={value}"


<<<<<<< HEAD
=======
# damage by hand: what is said ----------------------------------------------------------------------------------------

Damage = Callable[[Pen, bytes], None]


def damage(name: str, says: str) -> Callable[[Damage], Damage]:
    """Declare a damage and what check() must say of it."""

    def declare(do: Damage) -> Damage:
        DAMAGES.append((name, do, says))
        return do

    return declare


DAMAGES: list[tuple[str, Damage, str]] = []


@damage("an operation in no bucket", r"is due at tick \d+ and says that it is in bucket -1")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.PENDING), "bucket", 0)


@damage("a deadline that its bucket does not hold", r"is due at tick \d+, seen from \d+, and is in bucket \d:\d+")
def _(pen: Pen, sound: bytes) -> None:
    index = op_in(sound, OpState.PENDING)
    pen.set(Region.OPS, index, "deadline_ns", pen.get(Region.OPS, index, "deadline_ns") + 10**13)


@damage("a tick that was passed over", r"is due at tick \d+, seen from \d+, and is in bucket")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        pen.header("wheel_tick", reader.header().wheel_tick + 60)


@damage("a settled operation that is still in its bucket", r"bucket \d:\d+ says that it holds 1, and 0 belong there")
def _(pen: Pen, sound: bytes) -> None:
    index = op_in(sound, OpState.PENDING)
    pen.set(Region.OPS, index, "state", OpState.SETTLED)
    pen.set(Region.OPS, index, "outcome", Outcome.CANCELLED)


@damage("a watcher that forgot it is linked", r"says linked=0, and key \d is waited for")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        node = next(walk.event_watchers(reader, key_of(sound, b"k0")))
    pen.set(Region.NODES, node, "linked", 0)


@damage("watchers out of order", r"key \d+ b'k0': its watchers do not stand in order of registration")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        first, second, *_ = walk.event_watchers(reader, key_of(sound, b"k0"))
        ops = reader.nodes[first].op, reader.nodes[second].op
        numbers = [reader.ops[op].registration for op in ops]
    for op, number in zip(ops, reversed(numbers), strict=True):
        pen.set(Region.OPS, op, "registration", number)


@damage("a key whose satisfied watcher stays", r"says linked=1, and key 0 is not waited for")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        op = reader.nodes[next(walk.event_watchers(reader, key_of(sound, b"k1")))].op
        progress = reader.ops[op].progress
    pen.set(Region.OPS, op, "progress", progress & ~4 | 1)


@damage("a heap out of order", r"\(target, registration\) .* stands below node \d+")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        root = next(walk.watermark_watchers(reader, key_of(sound, b"offset")))[0]
    pen.set(Region.NODES, root, "target", 10**6)


@damage("a lost wake-up", r"waits for key \d+ b'offset' to reach \d+, and its watermark is 5000")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.KEYS, key_of(sound, b"offset"), "watermark", 5000)


@damage("an operation whose condition holds", r"is pending, though its condition .* is decided")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.PENDING), "needed", 1)


@damage("an early expiry", r"expired at \d+, and its deadline was \d+")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.SETTLED), "outcome", Outcome.EXPIRED)
    pen.set(Region.OPS, op_in(sound, OpState.SETTLED), "settled_ns", 1)


@damage("an outcome number that was not given", r"has outcome number 99, and client 1's next one is 3")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.SETTLED), "outcome_number", 99)


@damage("an outcome that is acknowledged and kept", r"is kept, though its outcome \d is acknowledged \(up to 2\)")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.CLIENTS, 1, "acknowledged", 2)


@damage("a settled operation of nobody", r"has settled, and its client is gone")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.SETTLED), "client_generation", 77)


@damage("an operation of a command that was not applied", r"is of a command after client's last one")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.CLIENTS, 0, "last_command", 4)


@damage("two operations with one registration number", r"both have registration \d+")
def _(pen: Pen, sound: bytes) -> None:
    first, second = op_in(sound, OpState.PENDING), op_in(sound, OpState.PENDING, 1)
    pen.set(Region.OPS, first, "registration", pen.get(Region.OPS, second, "registration"))


@damage("a node that says it is another's", r"node \d+ is of operation .*, and says it is of operation 63")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.NODES, pen.get(Region.OPS, op_in(sound, OpState.PENDING), "first_node") - 1, "op", 63)


@damage("a chain of nodes that loops", r"node \d+ is of operation .*, and says it is of operation")
def _(pen: Pen, sound: bytes) -> None:
    first = pen.get(Region.OPS, op_in(sound, OpState.PENDING), "first_node")
    pen.set(Region.NODES, first - 1, "next_of_op", first)


@damage("a key with another name", r"does not have the length \d+ and hash 0x[0-9a-f]+ it says")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.KEYS, key_of(sound, b"k0"), "name", b"k9")


@damage("a watermark charged to nobody", r"client 1 says watermarks=1, and it is 0")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.KEYS, key_of(sound, b"offset"), "setter_generation", 9)


@damage("a key record that nothing needs", r"KEYS says that \d+ records are in use, and \d+ are")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        free = next(i for i, key in enumerate(reader.keys.used()) if not key.refs and not key.flags)
    pen.set(Region.KEYS, free, "flags", KeyFlag.HAS_WATERMARK)


@damage(
    "a blob that shares another's blocks", r"shares blocks \d+ with another|has \d+ blocks, and its \d+ bytes need \d+"
)
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        blobs = [op.payload for op in reader.ops.used() if op.state and op.payload]
    pen.set(Region.BLOCKS, blobs[0] - 1, "next", blobs[1])


@damage("a blob that was never written", r"block 255 is named 1 times, and was never used")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.PENDING), "payload", 256)


@damage("an event that is not at its place", r"event 3 is not at its place in the ring: 19 is")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.EVENTS, 3, "sequence", 19)


@damage("an event whose key was changed", r"event 2 says its key hashes to 0x[0-9a-f]+, and it is 0x[0-9a-f]+")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.EVENTS, 2, "key", b"kx")


@damage("an event chain that skips", r"event 5 says that 4 came before it in hash slot \d+, and it was")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.EVENTS, 5, "previous", 4)


@damage("a hash slot that forgot", r"hash slot \d+ says its newest event is 0, and in the ring it is 5")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        slot = next(index for index, record in enumerate(reader.slots) if record.newest == 5)
    pen.set(Region.SLOTS, slot, "newest", 0)


@damage("a ring that holds more than it can", r"the ring of 16 events says that it holds 1\.\.99")
def _(pen: Pen, sound: bytes) -> None:
    pen.header("newest", 99)


@damage("value bytes that are miscounted", r"the ring says it holds 7 bytes, and it holds \d+")
def _(pen: Pen, sound: bytes) -> None:
    pen.header("ring_bytes", 7)


@damage("an id that names a stranger", r"id \d+ names operation 60, which is not pending under it")
def _(pen: Pen, sound: bytes) -> None:
    known = pen.get(Region.OPS, op_in(sound, OpState.PENDING), "id_record")
    pen.set(Region.IDS, known - 1, "op", 61)


@damage("two records of one id", r"ids \d+ and \d+ are the same")
def _(pen: Pen, sound: bytes) -> None:
    first = pen.get(Region.OPS, op_in(sound, OpState.PENDING), "id_record") - 1
    second = pen.get(Region.OPS, op_in(sound, OpState.PENDING, 1), "id_record") - 1
    for half in ("hash_low", "hash_high"):
        pen.set(Region.IDS, first, half, pen.get(Region.IDS, second, half))


@damage("settled ids out of order", r"settled ids do not stand in order of settling")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        first = next(walk.settled_ids(reader))
    pen.set(Region.IDS, first, "settled_ns", 1 << 62)


@damage("an answer of nobody", r"answers are kept for client 3, which is not there")
def _(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        answer = next(walk.answers(reader, 1))
    pen.set(Region.ANSWERS, answer, "client", 3)


@damage("an answer that is acknowledged and kept", r"the answer to command 3 of client 1 is kept")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.CLIENTS, 1, "answers_acknowledged", 3)


@damage("a purgatory that is not in use", r"is in purgatory 1, which is not in use")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.PENDING), "purgatory", 1)


@damage("a client that does not exist", r"names client 9 and purgatory 0, which do not exist")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, op_in(sound, OpState.PENDING), "client", 9)


@damage("a gauge that is off", r"purgatory 0 says pending=1000, and it is 7")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.PURGATORY_COUNTERS, 7, "value", 1000)


@damage("counters that do not add up", r"purgatory 0 says registered=1000, which is not pending=7 plus settled=\d+")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.PURGATORY_COUNTERS, 0, "value", 1000)


@damage("a record behind the high water", r"OPS: records behind the first \d+ are not zero, yet never used")
def _(pen: Pen, sound: bytes) -> None:
    pen.set(Region.OPS, 63, "generation", 1)


@damage("an unfinished transaction", r"a transaction of 2 words is being stored")
def _(pen: Pen, sound: bytes) -> None:
    pen.header("redo_count", 2)


@pytest.mark.parametrize(("do", "says"), [each[1:] for each in DAMAGES], ids=[each[0] for each in DAMAGES])
def test_each_kind_of_damage_is_said(sound: bytes, do: Damage, says: str) -> None:
    says_so(sound, do, says)


def says_so(memory: bytes, do: Damage, says: str) -> None:
    damaged = bytearray(memory)
    do(Pen(damaged), memory)
    found = check(damaged)
    assert any(re.search(says, sentence) for sentence in found), "\n".join(found) or "nothing was said"


def group_op(memory: bytes, state: OpState, *, told: bool = False) -> int:
    """A group's operation in that state; the first that a member was told has been received, too."""
    with ArenaReader.from_bytes(memory) as reader:
        return next(
            index
            for index, op in enumerate(reader.ops.used())
            if op.group and op.state == state and bool(op.client_generation) == told
        )


def slot_in(memory: bytes, state: ClientState, group: int) -> int:
    with ArenaReader.from_bytes(memory) as reader:
        return next(slot for slot, c in enumerate(reader.clients) if (c.state, c.group) == (state, group))


def same_name(pen: Pen) -> None:
    pen.set(Region.GROUPS, 1, "name", b"workers".ljust(32, b"\0"))
    pen.set(Region.GROUPS, 1, "name_length", 7)


GROUP_DAMAGES: dict[str, tuple[str, Damage]] = {
    "an operation of no group": (
        r"is of group 6, which is not in use",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.PENDING), "group", 7),
    ),
    "a group that is not in use": (
        r"client \d is of group 0, which is not in use",
        lambda pen, memory: pen.set(Region.GROUPS, 0, "state", 0),
    ),
    "a pending one that somebody is told of": (
        r"is of group \d and pending, and a client is said to be told",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.PENDING), "client_generation", 1),
    ),
    "a waiting one with a number": (
        r"waits in its group, and has outcome number 3",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.SETTLED), "outcome_number", 3),
    ),
    "told to who is of no group": (
        r"of group 0 is said to be told to client \d of group -1",
        lambda pen, memory: pen.set(Region.CLIENTS, slot_in(memory, ClientState.LIVE, 1), "group", 0),
    ),
    "told, and never counted": (
        r"is said to be told to client \d .* for the 0\. time",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.SETTLED, told=True), "deliveries", 0),
    ),
    "held, and in a list": (
        r"outcomes of client \d: the list holds",
        lambda pen, memory: pen.set(Region.CLIENTS, slot_in(memory, ClientState.LIVE, 1), "acknowledged", 2),
    ),
    "received, and in no list": (
        r"outcomes of client \d: the list holds",
        lambda pen, memory: pen.set(Region.CLIENTS, slot_in(memory, ClientState.LIVE, 1), "acknowledged", 0),
    ),
    "without its keys": (
        r"has settled without its keys, and somebody else may be told",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.SETTLED), "flags", 0),
    ),
    "another's waiting one": (
        r"group 1: its list holds operations",
        lambda pen, memory: pen.set(Region.OPS, group_op(memory, OpState.SETTLED), "group", 1),
    ),
    "kept by nobody's policy": (
        r"has orphans policy 0 and is of generation 0, and its client is gone",
        lambda pen, memory: pen.set(Region.OPS, op_in(memory, OpState.PENDING), "client_generation", 0),
    ),
    "left behind by a tombstone": (
        r"is of a client of which only a tombstone is left",
        lambda pen, memory: pen.set(Region.CLIENTS, 0, "state", ClientState.TOMBSTONE),
    ),
    "a tombstone in a group": (
        r"is a tombstone, and of group 1",
        lambda pen, memory: pen.set(Region.CLIENTS, slot_in(memory, ClientState.TOMBSTONE, 0), "group", 2),
    ),
    "a tombstone that listens": (
        r"client \d in state 4 of group -1 is said to listen",
        lambda pen, memory: pen.set(Region.CLIENTS, slot_in(memory, ClientState.TOMBSTONE, 0), "flags", 1),
    ),
    "one that leaves to a group, and has none": (
        r"client 0 leaves its operations to a group, and has none",
        lambda pen, memory: pen.set(Region.CLIENTS, 0, "orphans", Orphans.GROUP),
    ),
    "two groups of one name": (
        r"groups 1 and 0 are both b'workers'",
        lambda pen, memory: same_name(pen),
    ),
}


@pytest.mark.parametrize("name", GROUP_DAMAGES)
def test_each_kind_of_damage_to_groups_is_said(grouped: bytes, name: str) -> None:
    says, do = GROUP_DAMAGES[name]
    says_so(grouped, do, says)


def test_an_outcome_too_many_for_a_member_is_said() -> None:
    rig = Rig(capacity=1024, quota_operations=1024)
    a = rig.client(group=b"g", listens=True)
    a.mass(Register((Key(b"k"),), for_group=True), GROUP_HELD_MAX + 1)
    rig.do(a, KeyAct(CommandKind.FIRE, b"k"))
    memory = bytearray(rig.memory)
    assert check(memory) == []
    last = group_op(bytes(memory), OpState.SETTLED)
    pen = Pen(memory)
    for field, value in (("client", a.slot), ("client_generation", 1), ("deliveries", 1)):
        pen.set(Region.OPS, last, field, value)
    assert any(f"holds {GROUP_HELD_MAX + 1} outcomes" in sentence for sentence in check(memory))


>>>>>>> proof
# what it is used for -------------------------------------------------------------------------------------------------


def test_acknowledged_outcomes_may_wait_for_the_next_turn(sound: bytes) -> None:
    memory = bytearray(sound)
    Pen(memory).set(Region.CLIENTS, 1, "acknowledged", 2)
    assert check(memory)
    assert check(memory, cut=True) == []


def test_received_outcomes_of_a_group_may_wait_for_the_next_turn(grouped: bytes) -> None:
    memory = bytearray(grouped)
    Pen(memory).set(Region.CLIENTS, slot_in(grouped, ClientState.LIVE, 1), "acknowledged", 2)
    assert check(memory)
    assert check(memory, cut=True) == []


def test_a_dead_client_is_charged_for_what_is_still_its_own_while_it_is_swept() -> None:
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


def test_a_transaction_is_finished_on_a_copy(sound: bytes) -> None:
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
    for count, offset, complaint in ((REDO_MAX + 1, 0, "65 words"), (1, 3, "offset 3"), (1, len(memory), "offset")):
        memory[REDO_OFFSET : REDO_OFFSET + 8] = offset.to_bytes(8, "little")
        pen.header("redo_count", count)
        with ArenaReader.from_bytes(memory) as reader, pytest.raises(LayoutMismatchError, match=complaint):
            finished(reader)


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
    assert found.truth[-1] == f"and {250 - SENTENCES_MAX} more that are of truth"


def test_progress_is_told(sound: bytes) -> None:
    parts: list[str] = []
    check(sound, progress=parts.append)
    assert parts[0] == "header" and "wheel" in parts and len(parts) == len(set(parts))


def test_it_is_fast_enough_for_every_step() -> None:
    """Not a benchmark: a bound that only an accident in the order of growth breaks. Measured: 1.5 ms."""
    rig = busy_rig()
    check(rig.memory)
    began = time.process_time()
    for _ in range(20):
        assert violations(rig.memory) == []
    assert (time.process_time() - began) / 20 < 0.02


def test_a_mass_of_operations_is_checked_in_seconds() -> None:
    rig = Rig(capacity=16_384, keys=16_384, nodes=32_768, ring_events=1024, quota_operations=16_384)
    alice = rig.client()
    for number in range(16_000):
        alice.issue(Register((Key(b"k%d" % (number % 5_000)), Key(b"all")), timeout_ns=(number + 1) * 7 * MS))
    alice.issue(KeyAct(CommandKind.FIRE, b"k7", value=b"v"))
    rig.turn()
    began = time.process_time()
    assert check(rig.memory) == []
    assert time.process_time() - began < 10
