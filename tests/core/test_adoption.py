"""Adoption and the sweep, in the core: the fate of operations that a dead client leaves.

The last part is about wrong counts: the sweep still ends and reports the wrong count, and no other count changes.
"""

from __future__ import annotations

import pytest

import timerd.core
from support.rig.commands import Key, OperationAct, Register
from support.rig.damage import Pen
from support.rig.groups import HOUR, WORKERS, answer, watch, work, worker
from support.rig.harness import BUDGET, MS, START_NS, Client, Rig, advance, fire
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import ClientState, Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, OutcomeFlag


def test_a_group_adopts_the_pending_and_settled_operations_of_a_dead_member() -> None:
    rig = Rig()
    a = rig.client(Orphans.GROUP, group=WORKERS)
    rig.do(a, watch(b"settled", payload=b"s"), watch(b"pending", payload=b"p"), watch(b"received"))
    rig.do(a, fire(b"received"))
    rig.acknowledge(a)
    rig.do(a, fire(b"settled", value=b"v" * 100))
    b = worker(rig)
    rig.close(a)
    rig.turn()
    (delivered,) = b.delivered_for_group
    assert (delivered.payload, delivered.value, delivered.keys) == (b"s", b"v" * 100, (b"settled",))
    assert delivered.deliveries == 2, "the dead owner may have acted on it"
    assert OutcomeFlag.REDELIVERED in delivered.flags
    rig.do(b, fire(b"pending"))
    assert (b.delivered_for_group[1].payload, b.delivered_for_group[1].deliveries) == (b"p", 1)
    assert rig.arena.count("orphans_adopted") == 2
    for each in b.delivered_for_group:
        assert answer(rig, b, each) == 1
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


def test_events_before_the_sweep_count_for_the_group() -> None:
    rig = Rig()
    a, b = rig.client(Orphans.GROUP, group=WORKERS), worker(rig)
    ids = [bytes([n]) * 16 for n in range(2)]
    rig.do(
        a, watch(b"k"), watch(b"once"), watch(b"x", id=ids[0]), watch(b"y", id=ids[1]), watch(b"z", timeout_ns=5 * MS)
    )
    rig.clients.remove(a)
    rig.core.close_client(a.slot, rig.now_ns)
    cancel_by_id = OperationAct(CommandKind.CANCEL_ID, id=ids[0])
    b.issue(fire(b"k"))
    b.issue(fire(b"once", limit=1))
    b.issue(cancel_by_id)
    b.issue(watch(b"y", id=ids[1], if_exists="replace"))
    rig.core.begin_turn(rig.now_ns + 5 * MS)
    rig.now_ns += 5 * MS
    assert rig.apply(b, b.frame()) == timerd.core.APPLIED
    while rig.core.advance(rig.now_ns, BUDGET):
        pass
    rig.resume()
    rig.report()
    rig.core.end_turn(rig.now_ns)
    assert [(each.keys[0], each.state) for each in b.delivered_for_group] == [
        (b"k", Outcome.COMPLETED),
        (b"once", Outcome.COMPLETED),
        (b"x", Outcome.CANCELLED),
        (b"y", Outcome.CANCELLED),
        (b"z", Outcome.EXPIRED),
    ]
    assert {each.deliveries for each in b.delivered_for_group} == {1}
    rig.check()


def test_a_kept_operation_stays_pending_and_its_outcome_is_not_delivered() -> None:
    rig = Rig()
    a, b = rig.client(Orphans.KEEP, group=WORKERS), worker(rig)
    rig.do(a, watch(b"k"), watch(b"l", timeout_ns=5 * MS), watch(b"settled"), fire(b"settled"))
    rig.close(a)
    assert rig.arena.count("pending", 0) == 2
    rig.do(b, fire(b"k", limit=1))
    assert rig.arena.count("pending", 0) == 2, "a kept operation took a limited event"
    late = rig.do(b, Register((Key(b"k"),), timeout_ns=HOUR, mark=None))
    rig.do(b, fire(b"k"))
    rig.turn(START_NS + 6 * MS)
    assert rig.arena.count("pending", 0) == 0
    assert not b.delivered_for_group and b.state(late) is Outcome.COMPLETED
    rig.check()


def test_an_operation_may_have_a_policy_of_its_own_and_change_it() -> None:
    rig = Rig()
    a, b = rig.client(Orphans.CANCEL, group=WORKERS), worker(rig)
    rig.do(
        a,
        watch(b"k", payload=b"given", orphans=Orphans.GROUP),
        watch(b"k", payload=b"changed"),
        watch(b"k", payload=b"client's"),
        watch(b"k", payload=b"changed to keep", orphans=Orphans.GROUP),
        OperationAct(CommandKind.SET_ORPHANS, 2, orphans=Orphans.GROUP),
        OperationAct(CommandKind.SET_ORPHANS, 4, orphans=Orphans.KEEP),
    )
    rig.close(a)
    rig.do(b, fire(b"k"))
    assert [each.payload for each in b.delivered_for_group] == [b"given", b"changed"]
    assert rig.arena.count("orphans_cancelled") == 1
    rig.check()


def test_an_adopted_operation_keeps_the_progress_of_its_condition() -> None:
    rig = Rig()
    a, b = rig.client(Orphans.GROUP, group=WORKERS), worker(rig)
    rig.do(
        a,
        Register((Key(b"k"),), timeout_ns=HOUR, condition=Condition.TOTAL, total=10),
        Register((Key(b"p", 7), Key(b"k")), timeout_ns=HOUR, needed=2),
        fire(b"k", 4),
    )
    rig.close(a)
    rig.restart()
    rig.do(b, fire(b"k", 5), advance(b"p", 8))
    assert len(b.delivered_for_group) == 1
    rig.do(b, fire(b"k"))
    assert len(b.delivered_for_group) == 2
    rig.check()


# counts that are wrong --------------------------------------------------------------------------------------------

CAPACITY = 64
STEP = 16  # the records of a step; a round of the sweep takes several steps
STEPS = 3 * CAPACITY // STEP + 8  # enough for two rounds, and for the work before and after them


def state(rig: Rig, client: Client) -> ClientState:
    return ClientState(rig.arena.record(Region.CLIENTS, client.slot).state)


def sweep(rig: Rig, most: int = STEPS) -> bool:
    """Do at most `most` steps. Returns whether work is left. (If a sweep never ended, Rig.turn() would not return.)"""
    rig.core.begin_turn(rig.now_ns)
    left = all(rig.core.resume(rig.now_ns, STEP) for _ in range(most))
    rig.core.end_turn(rig.now_ns)
    return left


def end(rig: Rig, client: Client) -> None:
    """Let a client die. The sweep of its operations has not begun."""
    rig.clients.remove(client)
    rig.core.begin_turn(rig.now_ns)
    rig.core.close_client(client.slot, rig.now_ns, goodbye=False)
    rig.core.end_turn(rig.now_ns)


@pytest.mark.parametrize("count", ["pending", "unacknowledged", "held", "calls_held"])
def test_a_count_that_is_too_high_does_not_keep_the_sweep_going_for_ever(count: str) -> None:
    rig = Rig(capacity=CAPACITY)
    dead, other = rig.client(), rig.client()
    rig.do(dead, *(watch(b"d%d" % number) for number in range(10)))
    rig.do(other, *(watch(b"o%d" % number) for number in range(20)))
    pen = Pen(rig.memory)
    pen.set(Region.CLIENTS, dead.slot, count, pen.get(Region.CLIENTS, dead.slot, count) + 1)
    end(rig, dead)
    assert not sweep(rig), "the sweep never ends"
    assert state(rig, dead) is ClientState.TOMBSTONE
    assert rig.arena.count("orphans_cancelled") == 10
    assert rig.arena.count("sweeps_recounted") == 1
    assert [(code, times) for code, _, times, _ in rig.core.take_refusals()] == [(ErrorCode.ARENA_DAMAGED, 1)]
    assert rig.arena.record(Region.CLIENTS, other.slot).pending == 20
    rig.check()


def test_a_count_of_a_silent_member_that_is_too_high_is_corrected_and_its_sweep_ends() -> None:
    rig = Rig(capacity=CAPACITY)
    member, owner = worker(rig), worker(rig)
    number = rig.do(owner, work(b"k"))
    pen = Pen(rig.memory)
    pen.set(Region.CLIENTS, member.slot, "held", 3)
    rig.core.begin_turn(rig.now_ns)
    rig.core.silence(member.slot, rig.now_ns)
    rig.core.end_turn(rig.now_ns)
    assert not sweep(rig)
    assert rig.arena.record(Region.CLIENTS, member.slot).held == 0
    assert state(rig, member) is ClientState.SILENT
    assert owner.outcome(number) is None
    rig.check()


def test_a_group_that_loses_its_members_again_and_again_keeps_no_operation_for_ever() -> None:
    """The group's counts are the same each time, and the sweep finds the operation each time."""
    rig = Rig(capacity=CAPACITY)
    for end_of_group in range(1, 4):
        member = worker(rig)
        rig.do(member, Register((Key(b"k"),), for_group=True))
        rig.close(member)
        rig.turn(rig.now_ns + 2 * HOUR)
        assert rig.arena.count("orphans_cancelled") == end_of_group
    assert rig.arena.count("sweeps_recounted") == 0
    rig.check()


def test_a_sweep_that_finds_something_is_not_recounted_however_long_it_takes() -> None:
    """Clients die one after the other, so that always one of them has a count that is not zero."""
    rig = Rig(capacity=CAPACITY, clients=16)
    clients = [rig.client() for _ in range(12)]
    for client in clients:
        rig.do(client, *(watch(b"%d-%d" % (client.slot, number)) for number in range(5)))
    for client in clients:
        end(rig, client)
        sweep(rig, 2)
    assert not sweep(rig, 100)
    assert rig.arena.count("orphans_cancelled") == 60
    assert rig.arena.count("sweeps_recounted") == 0
    assert not rig.core.take_refusals()
    rig.check()
