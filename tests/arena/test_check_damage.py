"""The findings of check() for each kind of damage: a false field, a record that nothing needs, a lost word."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from support.rig.arenas import SEED, first_watcher
from support.rig.commands import Key, KeyAct, Register
from support.rig.damage import Pen, slot_in
from support.rig.harness import Rig
from timerd_shm.check.check import check
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.layout import REGION_RECORDS, Region
from timerd_shm.declare.limits import GROUP_HELD_MAX
from timerd_shm.declare.states import ClientState, KeyKind, OpFlag, OpState, Orphans, Outcome, Place
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader

Damage = Callable[[Pen, bytes], None]
Where = Callable[[bytes], int]


# where ----------------------------------------------------------------------------------------------------------------


def op_in(memory: bytes, state: OpState, which: int = 0) -> int:
    """An operation in this state. Operations with an id, which wait for two of three keys, come first."""
    with ArenaReader.from_bytes(memory) as reader:
        found = [(not op.id_record, index) for index, op in enumerate(reader.ops.used()) if op.state == state]
    return sorted(found)[which][1]


def first_of(memory: bytes, name: bytes, kind: KeyKind = KeyKind.EVENT) -> int:
    with ArenaReader.from_bytes(memory) as reader:
        return first_watcher(reader, name, kind)


def group_op(memory: bytes, state: OpState, *, told: bool = False) -> int:
    """A group's operation in this state. With `told`, one that was delivered to a member and received by it."""
    with ArenaReader.from_bytes(memory) as reader:
        return next(
            index
            for index, op in enumerate(reader.ops.used())
            if op.group and op.state == state and bool(op.client_generation) == told
        )


def pending(memory: bytes) -> int:
    return op_in(memory, OpState.PENDING)


def settled(memory: bytes) -> int:
    return op_in(memory, OpState.SETTLED)


def of_group(state: OpState, *, told: bool = False) -> Where:
    return lambda memory: group_op(memory, state, told=told)


def first(name: bytes) -> Where:
    return lambda memory: first_of(memory, name)


def slot(state: ClientState, group: int) -> Where:
    return lambda memory: slot_in(memory, state, group)


# what -----------------------------------------------------------------------------------------------------------------


def write(region: Region, where: Where | int, **values: Any) -> Damage:
    """A damage: fields of one record get other values."""

    def do(pen: Pen, memory: bytes) -> None:
        index = where if isinstance(where, int) else where(memory)
        for field, value in values.items():
            pen.set(region, index, field, value)

    return do


def a_deadline_that_its_bucket_does_not_hold(pen: Pen, sound: bytes) -> None:
    index = pending(sound)
    pen.set(Region.OPS, index, "deadline_ns", pen.get(Region.OPS, index, "deadline_ns") + 10**13)


def a_tick_that_was_passed_over(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        pen.header("wheel_tick", reader.header().wheel_tick + 60)


def a_watcher_that_forgot_it_is_linked(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        node = next(walk.event_watchers(reader, first_of(sound, b"k0")))
    pen.set(Region.NODES, node, "place", Place.NOWHERE)


def watchers_out_of_order(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        first, second, *_ = walk.event_watchers(reader, first_of(sound, b"k0"))
        ops = reader.nodes[first].op, reader.nodes[second].op
        numbers = [reader.ops[op].registration for op in ops]
    for op, number in zip(ops, reversed(numbers), strict=True):
        pen.set(Region.OPS, op, "registration", number)


def a_key_whose_satisfied_watcher_stays(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        op = reader.nodes[next(walk.event_watchers(reader, first_of(sound, b"k1")))].op
        progress = reader.ops[op].progress
    pen.set(Region.OPS, op, "progress", progress & ~4 | 1)


def a_heap_out_of_order(pen: Pen, sound: bytes) -> None:
    pen.set(Region.NODES, first_of(sound, b"offset", KeyKind.WATERMARK), "target", 10**6)


def two_operations_with_one_registration_number(pen: Pen, sound: bytes) -> None:
    first, second = pending(sound), op_in(sound, OpState.PENDING, 1)
    pen.set(Region.OPS, first, "registration", pen.get(Region.OPS, second, "registration"))


def a_node_of_another(pen: Pen, sound: bytes) -> None:
    pen.set(Region.NODES, pending(sound), "op", 63)


def a_chain_of_nodes_that_loops(pen: Pen, sound: bytes) -> None:
    pen.set(Region.NODES, pending(sound), "next_of_op", pending(sound) + 1)


def a_shared_blob(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        blobs = [op.payload for op in reader.ops.used() if op.state and op.payload]
    pen.set(Region.BLOCKS, blobs[0] - 1, "next", blobs[1])


def a_hash_slot_that_forgot(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        slot = next(index for index, record in enumerate(reader.slots) if record.newest == 5)
    pen.set(Region.SLOTS, slot, "newest", 0)


def an_id_that_names_a_stranger(pen: Pen, sound: bytes) -> None:
    known = pen.get(Region.OPS, pending(sound), "id_record")
    pen.set(Region.IDS, known - 1, "op", 61)


def two_records_of_one_id(pen: Pen, sound: bytes) -> None:
    first = pen.get(Region.OPS, pending(sound), "id_record") - 1
    second = pen.get(Region.OPS, op_in(sound, OpState.PENDING, 1), "id_record") - 1
    for half in ("hash_low", "hash_high"):
        pen.set(Region.IDS, first, half, pen.get(Region.IDS, second, half))


def settled_ids_out_of_order(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        first = next(walk.remembered_ids(reader, 0))
    pen.set(Region.IDS, first, "settled_ns", 1 << 62)


def an_answer_of_nobody(pen: Pen, sound: bytes) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        answer = next(walk.answers(reader, 1))
    pen.set(Region.ANSWERS, answer, "client", 3)


DAMAGES: dict[str, tuple[str, Damage]] = {
    "an operation that no group can adopt": (
        "there is no group",
        write(Region.OPS, pending, orphans=Orphans.GROUP),
    ),
    "a call of no group": ("there is no group", write(Region.OPS, pending, flags=OpFlag.CALL)),
    "an operation in no bucket": (
        r"is due at tick \d+ and says that it is in bucket -1",
        write(Region.OPS, pending, bucket=0),
    ),
    "a deadline that its bucket does not hold": (
        r"is due at tick \d+, seen from \d+, and is in bucket \d:\d+",
        a_deadline_that_its_bucket_does_not_hold,
    ),
    "a tick that was passed over": (
        r"is due at tick \d+, seen from \d+, and is in bucket",
        a_tick_that_was_passed_over,
    ),
    "a settled operation that is still in its bucket": (
        r"bucket \d:\d+ says that it holds 1, and 0 belong there",
        write(Region.OPS, pending, state=OpState.SETTLED, outcome=Outcome.CANCELLED),
    ),
    "a watcher that forgot it is linked": (
        r"says that its place is 0, and key \d is waited for",
        a_watcher_that_forgot_it_is_linked,
    ),
    "watchers out of order": (
        r"key b'k0': its watchers do not stand in order of registration",
        watchers_out_of_order,
    ),
    "a key whose satisfied watcher stays": (
        r"says that its place is \d, and key 0 is not waited for",
        a_key_whose_satisfied_watcher_stays,
    ),
    "a heap out of order": (r"\(target, registration\) .* stands below node \d+", a_heap_out_of_order),
    "a lost wake-up": (
        r"waits for key b'offset' to reach \d+, and its watermark is 5000",
        write(Region.WATERMARKS, 0, watermark=5000),
    ),
    "an operation whose condition holds": (
        r"is pending, though its condition .* is decided",
        write(Region.OPS, pending, needed=1),
    ),
    "an early expiry": (
        r"expired at \d+, and its deadline was \d+",
        write(Region.OPS, settled, outcome=Outcome.EXPIRED, settled_ns=1),
    ),
    "an outcome number that was not given": (
        r"has outcome number 99, and client 1's next one is 3",
        write(Region.OPS, settled, outcome_number=99),
    ),
    "an outcome that is acknowledged and kept": (
        r"is kept, though its outcome \d is acknowledged \(up to 2\)",
        write(Region.CLIENTS, 1, acknowledged=2),
    ),
    "a settled operation of nobody": (
        r"has settled and has no client any more",
        write(Region.OPS, settled, client_generation=77),
    ),
    "an operation of a command that was not applied": (
        r"is of command \d+, and its client's last one is \d+",
        write(Region.CLIENTS, 0, last_command=4),
    ),
    "two operations with one registration number": (
        r"both have registration \d+",
        two_operations_with_one_registration_number,
    ),
    "a node that says it is another's": (
        r"node \d+ is of operation .*, and says it is of operation 63",
        a_node_of_another,
    ),
    "a chain of nodes that loops": (
        r"node \d+ is of operation .*, and says it is of operation",
        a_chain_of_nodes_that_loops,
    ),
    "a key with another name": (
        r"does not have the length \d+ and hash 0x[0-9a-f]+ that it says",
        write(Region.NODES, first(b"k0"), name=b"k9"),
    ),
    "a watermark charged to nobody": (
        r"client 1 says watermarks=1, and it is 0",
        write(Region.WATERMARKS, 0, setter_generation=9),
    ),
    "a watermark with another name": (
        r"watermark 0 of key b'.*' does not have the length \d+ and hash",
        write(Region.WATERMARKS, 0, name=b"offsex"),
    ),
    "a blob that shares another's blocks": (
        r"shares blocks \d+ with another|has \d+ blocks, and its \d+ bytes need \d+",
        a_shared_blob,
    ),
    "a blob that was never written": (
        r"block 255 is named 1 times, and was never used",
        write(Region.OPS, pending, payload=256),
    ),
    "an event that is not at its position": (
        r"event 3 is not at its position in the ring: event 19 is",
        write(Region.EVENTS, 3, sequence=19),
    ),
    "an event whose key was changed": (
        r"event 2 says its key's hash is 0x[0-9a-f]+, and it is 0x[0-9a-f]+",
        write(Region.EVENTS, 2, key=b"kx"),
    ),
    "an event chain that skips": (
        r"event 5 says that 4 came before it in hash slot \d+, and it was",
        write(Region.EVENTS, 5, previous=4),
    ),
    "a hash slot that forgot": (
        r"hash slot \d+ says its newest event is 0, and in the ring it is 5",
        a_hash_slot_that_forgot,
    ),
    "a ring that holds more than it can": (
        r"the ring of 16 events says that it holds 1\.\.99",
        lambda pen, sound: pen.header("newest", 99),
    ),
    "value bytes that are miscounted": (
        r"the ring says it holds 7 bytes, and it holds \d+",
        lambda pen, sound: pen.header("ring_bytes", 7),
    ),
    "an id that names a stranger": (
        r"id \d+ names operation 60, which is not pending under it",
        an_id_that_names_a_stranger,
    ),
    "two records of one id": (r"ids \d+ and \d+ are the same", two_records_of_one_id),
    "settled ids out of order": (
        r"remembered ids of client 0 do not stand in order of settling",
        settled_ids_out_of_order,
    ),
    "an answer of nobody": (r"answers are kept for client 3, which does not exist", an_answer_of_nobody),
    "an answer that is acknowledged and kept": (
        r"the answer to command 3 of client 1 is kept",
        write(Region.CLIENTS, 1, answers_acknowledged=3),
    ),
    "a purgatory that is not in use": (
        r"is in purgatory 1, which is not in use",
        write(Region.OPS, pending, purgatory=1),
    ),
    "a client that does not exist": (
        r"names client 9 and purgatory 0, which do not exist",
        write(Region.OPS, pending, client=9),
    ),
    "a gauge that is off": (
        r"purgatory 0 says pending=1000, and it is 7",
        write(Region.PURGATORY_COUNTERS, 7, value=1000),
    ),
    "counters that do not add up": (
        r"purgatory 0 says registered=1000, which is not pending=7 plus settled=\d+",
        write(Region.PURGATORY_COUNTERS, 0, value=1000),
    ),
    "a record after the high water": (
        r"OPS: records after the first \d+ are not zero, though never used",
        write(Region.OPS, 63, generation=1),
    ),
    "an unfinished transaction": (
        r"a transaction of 2 words is being stored",
        lambda pen, sound: pen.header("redo_count", 2),
    ),
}

GROUP_DAMAGES: dict[str, tuple[str, Damage]] = {
    "an operation of no group": (
        r"is of group 6, which is not in use",
        write(Region.OPS, of_group(OpState.PENDING), group=7),
    ),
    "a group that is not in use": (
        r"client \d is of group 0, which is not in use",
        write(Region.GROUPS, 0, state=0),
    ),
    "a group's pending operation that a client holds": (
        r"is pending and of group \d, yet held by a client",
        write(Region.OPS, of_group(OpState.PENDING), client_generation=1),
    ),
    "an outcome that waits in its group, with a number": (
        r"waits in its group, and has outcome number 3",
        write(Region.OPS, of_group(OpState.SETTLED), outcome_number=3),
    ),
    "an outcome held by a client of no group": (
        r"of group 0 says that it is held by client \d of group -1",
        write(Region.CLIENTS, slot(ClientState.LIVE, 1), group=0),
    ),
    "an outcome that is held after no delivery": (
        r"says that it is held by client \d .* after 0 deliveries",
        write(Region.OPS, of_group(OpState.SETTLED, told=True), deliveries=0),
    ),
    "an outcome that was received, and is in the list of others": (
        r"outcomes of client \d: the list holds",
        write(Region.CLIENTS, slot(ClientState.LIVE, 1), acknowledged=2),
    ),
    "an outcome that was not received, and is in no list": (
        r"outcomes of client \d: the list holds",
        write(Region.CLIENTS, slot(ClientState.LIVE, 1), acknowledged=0),
    ),
    "a group's outcome without its keys": (
        r"has settled without its keys, and may go to another client",
        write(Region.OPS, of_group(OpState.SETTLED), flags=0),
    ),
    "an outcome that waits in another group": (
        r"group 1: its lists hold operations",
        write(Region.OPS, of_group(OpState.SETTLED), group=1),
    ),
    "an operation that no policy keeps": (
        r"has orphans policy 0 and is of generation 0, and has no client any more",
        write(Region.OPS, pending, client_generation=0),
    ),
    "an operation that a tombstone left behind": (
        r"is of a client that is a tombstone",
        write(Region.CLIENTS, 0, state=ClientState.TOMBSTONE),
    ),
    "a tombstone in a group": (
        r"is a tombstone, and of group 1",
        write(Region.CLIENTS, slot(ClientState.TOMBSTONE, 0), group=2),
    ),
    "a tombstone that listens": (
        r"client \d in state 4 of group -1 has the flag LISTENS",
        write(Region.CLIENTS, slot(ClientState.TOMBSTONE, 0), flags=1),
    ),
    "a client that leaves its operations to a group, and has none": (
        r"client 0 leaves its operations to a group, and has none",
        write(Region.CLIENTS, 0, orphans=Orphans.GROUP),
    ),
    "two groups of one name": (
        r"groups 1 and 0 are both b'workers'",
        write(Region.GROUPS, 1, name=b"workers".ljust(32, b"\0"), name_length=7),
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_kind_of_damage_is_reported(sound: bytes, name: str) -> None:
    is_said(sound, *DAMAGES[name])


@pytest.mark.parametrize("name", GROUP_DAMAGES)
def test_each_kind_of_damage_to_groups_is_reported(grouped: bytes, name: str) -> None:
    is_said(grouped, *GROUP_DAMAGES[name])


def is_said(memory: bytes, says: str, do: Damage) -> None:
    damaged = bytearray(memory)
    do(Pen(damaged), memory)
    found = check(damaged, seed=SEED)
    assert any(re.search(says, sentence) for sentence in found), "\n".join(found) or "nothing was said"


def test_one_outcome_too_many_for_a_member_is_reported() -> None:
    rig = Rig(capacity=1024, quota_operations=1024)
    a = rig.client(group=b"g", listens=True)
    a.mass(Register((Key(b"k"),), for_group=True), GROUP_HELD_MAX + 1)
    rig.do(a, KeyAct(CommandKind.FIRE, b"k"))
    memory = bytearray(rig.memory)
    assert check(memory, seed=SEED) == []
    last = group_op(bytes(memory), OpState.SETTLED)
    pen = Pen(memory)
    for field, value in (("client", a.slot), ("client_generation", 1), ("deliveries", 1)):
        pen.set(Region.OPS, last, field, value)
    assert any(f"holds {GROUP_HELD_MAX + 1} outcomes" in sentence for sentence in check(memory, seed=SEED))


@pytest.mark.long
def test_random_damage_never_breaks_the_checker(sound: bytes, rng: random.Random) -> None:
    with ArenaReader.from_bytes(sound) as reader:
        places = [
            reader.table(region).offset_of(index) + at
            for region in (Region.OPS, Region.WATERMARKS, Region.BLOCKS, Region.IDS)
            for index in range(reader.region(region).high_water)
            for at in range(size_of(REGION_RECORDS[region]) - 3)
        ]
    for _ in range(150):
        memory = bytearray(sound)
        for _ in range(20):
            at = rng.choice(places)
            memory[at : at + 4] = rng.choice(
                (rng.randbytes(4), bytes(4), b"\xff" * 4, rng.randrange(64).to_bytes(4, "little"))
            )
        check(memory, seed=SEED)
