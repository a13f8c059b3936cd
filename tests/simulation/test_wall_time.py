"""Calls that are due by the wall clock. The daemon plans them anew when the clock is set, even if no worker lives.

The daemon walks over the operations for this, in several turns if there are many.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.rig.commands import Key, OperationAct, Register
from support.rig.groupacts import call, handler
from support.rig.harness import MS, Client, Rig, S
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import NO_DEADLINE, TIMEOUT_NS_MAX
from timerd_shm.declare.states import OpState
from timerd_shm.declare.wire import CommandKind

HOUR, DAY = 3_600 * S, 86_400 * S
AHEAD_NS = 1_800_000_000 * S  # how far the wall clock is ahead of the monotonic clock


def set_clock(rig: Rig, ahead_ns: int) -> None:
    """Somebody sets the wall clock, and the daemon notices."""
    rig.core.set_wall_clock(ahead_ns)
    rig.turn()


def at(rig: Rig, after_ns: int, ahead_ns: int = AHEAD_NS, **more: Any) -> Register:
    """A call that is due by the wall clock, `after_ns` from now. For its caller, the wall clock is `ahead_ns` ahead."""
    return call(timeout_ns=max(0, after_ns), wall_ns=rig.now_ns + ahead_ns + after_ns, **more)


def deadlines(rig: Rig) -> list[int]:
    """The deadlines of the pending operations, relative to now."""
    pending = [op for op in rig.arena.records(Region.OPS) if op.state == OpState.PENDING]
    return sorted(op.deadline_ns - rig.now_ns for op in pending)


def worker_at(ahead_ns: int = AHEAD_NS, **knobs: Any) -> tuple[Rig, Client]:
    rig = Rig(**knobs)
    set_clock(rig, ahead_ns)
    return rig, handler(rig, b"job", most=64)


@pytest.mark.parametrize("by_ns", [2 * HOUR, -2 * HOUR, 3 * S])
def test_a_call_of_the_wall_clock_moves_with_it_and_others_do_not(by_ns: int) -> None:
    rig, worker = worker_at()
    rig.do(worker, at(rig, 5 * HOUR), call(timeout_ns=4 * HOUR), call(timeout_ns=6 * HOUR, scheduled=True))
    set_clock(rig, AHEAD_NS + by_ns)
    assert deadlines(rig) == sorted([4 * HOUR, 5 * HOUR - by_ns, 6 * HOUR])
    assert rig.arena.count("rescheduled", 0) == 1
    rig.check()
    rig.turn(rig.now_ns + 5 * HOUR - by_ns)
    assert worker.delivered_for_group[0].payload == b"p" * 200
    rig.check()


def test_a_call_whose_time_has_passed_after_a_jump_comes_at_once_without_a_worker() -> None:
    rig, worker = worker_at()
    rig.do(worker, at(rig, 5 * HOUR))
    rig.close(worker)
    rig.turn(rig.now_ns + MS)
    set_clock(rig, AHEAD_NS + 9 * HOUR)
    rig.turn(rig.now_ns + MS)
    heir = handler(rig, b"job")
    rig.turn()
    assert len(heir.delivered_for_group) == 1
    rig.check()


def test_deadlines_stay_when_the_clock_moves_by_a_millisecond() -> None:
    rig, worker = worker_at()
    rig.do(worker, at(rig, HOUR))
    set_clock(rig, AHEAD_NS + MS)
    assert deadlines(rig) == [HOUR]
    set_clock(rig, AHEAD_NS + 2 * MS)
    assert deadlines(rig) == [HOUR - 2 * MS]


def test_a_call_that_was_rescheduled_keeps_the_delay_that_its_caller_gave() -> None:
    rig, worker = worker_at()
    name = b"id".ljust(16, b".")
    rig.do(worker, at(rig, 5 * HOUR, id=name))
    rig.do(worker, OperationAct(CommandKind.RESCHEDULE_ID, id=name, timeout_ns=3 * HOUR))
    set_clock(rig, AHEAD_NS + 2 * HOUR)
    assert deadlines(rig) == [3 * HOUR]
    rig.check()


def test_a_long_walk_is_cut_into_turns_and_a_second_jump_begins_it_anew() -> None:
    rig, worker = worker_at(capacity=256, quota_operations=256)
    for number in range(200):
        rig.do(worker, at(rig, (number + 1) * HOUR))
    rig.core.set_wall_clock(AHEAD_NS + HOUR // 2)
    rig.core.begin_turn(rig.now_ns)
    assert rig.core.resume(rig.now_ns, 50), "work is left"
    assert rig.core.end_turn(rig.now_ns) <= 60
    assert rig.core.next_wake_ns() == rig.now_ns, "the next turn is due at once"
    moved = sum(deadline % HOUR != 0 for deadline in deadlines(rig))
    assert 0 < moved < 200
    rig.core.set_wall_clock(AHEAD_NS)
    assert all(touched <= 60 for touched in rig.resume_in_turns(50))
    assert deadlines(rig) == [(number + 1) * HOUR for number in range(200)], "some calls did not move again"
    rig.check()


def test_a_call_that_falls_due_before_the_walk_comes_to_it_is_not_early() -> None:
    rig, worker = worker_at(capacity=256, quota_operations=256)
    rig.do(worker, *(at(rig, HOUR) for _ in range(100)))
    rig.core.set_wall_clock(AHEAD_NS - 2 * HOUR)
    rig.now_ns += HOUR + MS
    rig.core.begin_turn(rig.now_ns)
    rig.core.resume(rig.now_ns, 10)
    while rig.core.advance(rig.now_ns, 10_000):
        pass
    rig.core.end_turn(rig.now_ns)
    rig.turn()
    assert not worker.delivered_for_group
    assert set(deadlines(rig)) == {2 * HOUR - MS}
    rig.check()


@pytest.mark.parametrize("cut", [False, True])
def test_a_start_plans_anew_if_the_clock_was_set_while_no_daemon_ran_or_its_walk_was_cut(cut: bool) -> None:
    rig, worker = worker_at(capacity=256, quota_operations=256)
    rig.do(worker, *(at(rig, (number + 1) * HOUR) for number in range(100)))
    if cut:
        rig.core.set_wall_clock(AHEAD_NS + HOUR // 2)
        rig.core.resume(rig.now_ns, 30)
        rig.restart()
        rig.core.set_wall_clock(AHEAD_NS)
        expected = 0
    else:
        rig.restart()
        rig.core.set_wall_clock(AHEAD_NS + HOUR // 2)
        expected = HOUR // 2
    rig.turn()
    assert deadlines(rig) == [(number + 1) * HOUR - expected for number in range(100)]
    before = rig.arena.count("rescheduled", 0)
    rig.restart()
    set_clock(rig, AHEAD_NS + expected)
    assert rig.arena.count("rescheduled", 0) == before
    rig.check()


def test_a_call_that_was_on_its_way_when_the_clock_was_set_is_planned_by_the_new_clock() -> None:
    """The call's caller has read the wall clock before it was set."""
    rig, worker = worker_at()
    worker.issue(at(rig, 5 * HOUR))
    worker.issue(at(rig, HOUR))
    rig.core.set_wall_clock(AHEAD_NS + 2 * HOUR)
    rig.turn()
    assert deadlines(rig) == [3 * HOUR]
    assert len(worker.delivered_for_group) == 1
    worker.issue(at(rig, HOUR, AHEAD_NS + 2 * HOUR + 100 * MS))
    rig.turn()
    assert deadlines(rig) == [HOUR, 3 * HOUR], "100 ms between the caller's and the daemon's clock must not count"
    rig.check()


def test_times_beyond_all_bounds_are_planned_within_them() -> None:
    rig, worker = worker_at()
    for wall_ns in (1, (1 << 63) - 1, (1 << 64) - 1):
        rig.do(worker, call(timeout_ns=HOUR, wall_ns=wall_ns))
    set_clock(rig, -AHEAD_NS)
    assert all(deadline <= TIMEOUT_NS_MAX for deadline in deadlines(rig))
    rig.turn(rig.now_ns + 2 * MS)
    rig.check()


def test_only_a_call_with_a_deadline_has_a_time_by_the_wall_clock() -> None:
    rig, worker = worker_at()
    wall_ns = rig.now_ns + AHEAD_NS + HOUR
    rig.do(
        worker,
        Register((Key(b"k"),), timeout_ns=HOUR, wall_ns=wall_ns),
        Register((Key(b"k"),), timeout_ns=HOUR, wall_ns=wall_ns, for_group=True),
        call(timeout_ns=NO_DEADLINE, wall_ns=wall_ns),
    )
    set_clock(rig, AHEAD_NS + HOUR // 2)
    assert [deadline for deadline in deadlines(rig) if deadline < DAY] == [HOUR] * 2
    rig.check()


def test_random_jumps_leave_each_call_where_the_wall_clock_says(rng: random.Random) -> None:
    rig, worker = worker_at(capacity=128, quota_operations=128)
    ahead_ns, due = AHEAD_NS, dict[bytes, int]()
    for number in range(200):
        match rng.randrange(4):
            case 0 | 1:
                after_ns = rng.randrange(1, 3 * HOUR)
                name = b"%d" % number
                due[name] = rig.now_ns + ahead_ns + after_ns
                rig.do(
                    worker,
                    Register((Key(b"job"),), after_ns, payload=name, for_group=True, call=True, wall_ns=due[name]),
                )
            case 2:
                ahead_ns += rng.randrange(-HOUR, HOUR)
                rig.core.set_wall_clock(ahead_ns)
                rig.core.begin_turn(rig.now_ns)
                rig.core.resume(rig.now_ns, rng.choice((3, 20, 1 << 20)))
                rig.core.end_turn(rig.now_ns)
            case 3 if rng.random() < 0.3:
                rig.restart()
                rig.core.set_wall_clock(ahead_ns)
        rig.turn(rig.now_ns + rng.randrange(HOUR // 4))
        for op in rig.arena.records(Region.OPS):
            if op.state == OpState.PENDING:
                block = rig.arena.record(Region.BLOCKS, op.payload - 1)
                wall_ns = due[bytes(block.data[: block.length])]
                planned_ns = wall_ns - ahead_ns
                is_due = max(planned_ns, op.deadline_ns) <= rig.now_ns  # it falls due at the next tick
                assert is_due or abs(op.deadline_ns - planned_ns) <= MS
        for each in worker.delivered_for_group:
            due.pop(each.payload, None)
    rig.check()
