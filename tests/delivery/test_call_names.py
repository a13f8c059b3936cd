"""Calls are found by the names of their handlers: calls of other names cost nothing, and no call is forgotten."""

from __future__ import annotations

import random

import pytest

from support.rig.frames import DeliveredForGroup
from support.rig.groups import WORKERS, call, cancel_id, handler
from support.rig.harness import Client, Rig, S, done
from support.suite.tiers import in_tiers
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import WatchNode
from timerd_shm.declare.states import OpState

NAMES = (b"a", b"b", b"c", b"d")
UNHANDLED = 5_000


def waiting(rig: Rig, *, behind_others: bool = True) -> set[bytes]:
    """The names of calls that wait for a member; with `behind_others` also for another call of their id."""
    ids = rig.arena.all_records(Region.IDS)
    firsts = [
        unpack(WatchNode, memoryview(op.first_node))
        for op in rig.arena.records(Region.OPS)
        if op.state == OpState.SETTLED and op.group and op.client_generation == 0 and op.outcome_number == 0
        if behind_others or op.id_record == 0 or ids[op.id_record - 1].running == 0
    ]
    return {node.name[: node.name_length] for node in firsts}


@pytest.mark.long
def test_calls_that_no_member_handles_cost_the_others_nothing() -> None:
    """A member takes one call at a time, so it becomes ready with each call that it has done."""
    rig = Rig(capacity=2 * UNHANDLED, quota_operations=2 * UNHANDLED)
    asker = rig.client(group=WORKERS)
    worker = handler(rig, b"job")
    touched = []
    for unhandled in (0, UNHANDLED):
        for number in range(unhandled):
            asker.issue(call(b"unhandled/%d" % (number % 2)))
        rig.turn()
        rig.do(asker, *(call(b"job") for _ in range(20)))
        before = rig.core.touched
        for _ in range(20):
            rig.do(worker, done(worker.delivered_for_group[-1]))
            rig.turn()
        touched.append(rig.core.touched - before)
    assert len(worker.delivered_for_group) == 40
    assert touched[1] <= touched[0] + 100, (
        f"20 calls touched {touched[0]} records alone, and {touched[1]} beside others"
    )
    rig.check()


def test_names_take_turns_and_the_calls_of_a_name_keep_their_order() -> None:
    rig = Rig(capacity=1024, quota_operations=1024)
    asker = rig.client(group=WORKERS)
    rig.do(asker, *(call(b"many", payload=b"%d" % number) for number in range(100)))
    rig.do(asker, *(call(b"few", payload=b"%d" % number) for number in range(3)))
    worker = handler(rig, b"many", b"few")
    rig.turn()
    for _ in range(102):
        rig.do(worker, done(worker.delivered_for_group[-1]))
        rig.turn()
    got = [(each.keys[0], int(each.payload)) for each in worker.delivered_for_group]
    assert {name for name, _ in got[:2]} == {b"many", b"few"} and {name for name, _ in got[:6]} == {b"many", b"few"}
    assert [number for name, number in got if name == b"few"] == [0, 1, 2]
    assert [number for name, number in got if name == b"many"] == list(range(100))
    assert [name for name, _ in got[:6]].count(b"few") == 3
    rig.check()


@pytest.mark.long
@pytest.mark.parametrize("run", in_tiers(range(6), 2))
def test_no_call_waits_while_a_ready_member_handles_its_name(run: int, rng: random.Random) -> None:
    rig = Rig(capacity=2048, quota_operations=2048, clients=8)
    asker = rig.client(group=WORKERS)
    members: dict[Client, tuple[set[bytes], int]] = {}
    held: dict[Client, list[DeliveredForGroup]] = {}
    seen: dict[Client, int] = {}
    ids = [bytes([number]) * 16 for number in range(4)]
    made = finished = 0

    def settle() -> None:
        rig.turn()
        rig.turn()
        for member in members:
            held[member] += member.delivered_for_group[seen[member] :]
            seen[member] = len(member.delivered_for_group)

    for _ in range(150):
        act = rng.random()
        member = rng.choice(list(members)) if members else None
        if act < 0.4:
            for _ in range(rng.randrange(1, 8)):
                made += 1
                name = rng.choice(NAMES)
                rig.do(asker, call(name, id=rng.choice(ids)) if rng.random() < 0.2 else call(name))
        elif act < 0.5 and len(members) < 5:
            names, most = set(rng.sample(NAMES, rng.randrange(1, 4))), rng.randrange(1, 4)
            new = handler(rig, *names, most=most)
            members[new], held[new], seen[new] = (names, most), [], 0
        elif member is None:
            continue
        elif act < 0.6:
            names, most = set(rng.sample(NAMES, rng.randrange(1, 4))), members[member][1]
            assert rig.core.set_calls(member.slot, most, 0, sorted(names), rig.now_ns) == most
            members[member] = names, most
        elif act < 0.65:
            rig.close(member)
            del members[member], held[member], seen[member]
        elif act < 0.7:
            rig.do(asker, cancel_id(rng.choice(ids)))
        elif held[member]:
            rng.shuffle(held[member])
            finished += 1
            rig.do(member, done(held[member].pop()))
        settle()
        ready = set().union(*(names for each, (names, most) in members.items() if len(held[each]) < most), set())
        idle = waiting(rig, behind_others=False)
        assert not ready & idle, f"{ready & idle} wait, and a ready member handles them"
    rig.check()
    if run % 2:
        rig.restart()
        settle()
    for member in list(members):
        rig.close(member)
    last = handler(rig, *NAMES, most=200)
    for _ in range(60):
        rig.turn(rig.now_ns + S)
        for each in last.delivered_for_group:
            rig.do(last, done(each))
        last.delivered_for_group.clear()
    assert made > 100 and finished > 10
    assert not waiting(rig), "calls are left"
    rig.check()
