"""Effective times: whether an event counts for a deadline does not depend on how late the wheel is.

This is rule 4 of timerd/DESIGN.md.
"""

from __future__ import annotations

import pytest

from support.fakes.networks import World
from support.rig.commands import Command, Key, Register
from support.rig.groups import watch
from support.rig.harness import BUDGET, MS, Client, Rig, S, advance, cancel_for_key, fail, fire, reschedule
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import Condition, Outcome

LATE_MS = 10  # how late the wheel moves
RING_EVENTS = 16


def late_turn(rig: Rig, *frames: tuple[Client, Command], before_gap_ns: int | None = None) -> None:
    """Read these commands in a turn that begins LATE_MS later. Then move the wheel, unless the turn is in a gap."""
    rig.now_ns += LATE_MS * MS
    gap = () if before_gap_ns is None else (before_gap_ns,)
    rig.core.begin_turn(rig.now_ns, *gap)
    for client, command in frames:
        client.issue(command)
        rig.apply(client, client.frame(client.in_flight[-1:]))
    if before_gap_ns is None:
        while rig.core.advance(rig.now_ns, BUDGET):
            pass
    rig.report()
    rig.core.end_turn(rig.now_ns)
    rig.check()


@pytest.mark.parametrize("timeout_ms", [1, LATE_MS - 1, LATE_MS])
@pytest.mark.parametrize(
    "event",
    [fire(b"k"), fire(b"k", limit=1), fire(b"k", wait=True, value=b"v"), fail(b"k", 7), cancel_for_key(b"k")],
    ids=["fire", "limited", "answered", "fail", "cancel for key"],
)
def test_an_event_at_or_after_the_deadline_does_not_count(event: Command, timeout_ms: int) -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    rig.do(owner, watch(b"k", timeout_ns=timeout_ms * MS), watch(b"k", timeout_ns=(LATE_MS + 1) * MS))
    late_turn(rig, (firer, event))
    assert owner.state(1) is Outcome.EXPIRED
    assert owner.state(2) not in (Outcome.EXPIRED, Outcome.NONE), "the second deadline is a millisecond later"
    delivered = owner.outcome(1)
    assert delivered is not None and delivered.deadline_ns <= delivered.settled_ns == rig.now_ns


def test_an_event_counts_until_the_last_nanosecond_before_the_deadline() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"k", timeout_ns=LATE_MS * MS + 1))
    late_turn(rig, (firer, fire(b"k")))
    assert owner.state(number) is Outcome.COMPLETED


def test_a_batch_of_events_completes_what_is_not_overdue() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    keys = [b"k%d" % number for number in range(8)]
    rig.do(owner, *(watch(key, timeout_ns=(5 if at == 4 else 50) * MS) for at, key in enumerate(keys)))
    rig.do(firer, *(fire(key) for key in keys), now_ns=rig.now_ns + LATE_MS * MS)
    expired = [number for number in range(1, 9) if owner.state(number) is Outcome.EXPIRED]
    assert expired == [5] and all(owner.state(number) is not Outcome.NONE for number in range(1, 9))
    rig.check()


def test_a_watermark_reaches_the_targets_behind_an_overdue_target() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    rig.do(
        owner,
        Register((Key(b"p", 3),), timeout_ns=5 * MS),
        Register((Key(b"p", 3),), timeout_ns=S),
        Register((Key(b"p", 4),), timeout_ns=S),
        Register((Key(b"p", 9),), timeout_ns=S),
    )
    late_turn(rig, (firer, advance(b"p", 4)))
    states = [owner.state(number) for number in range(1, 5)]
    assert states == [Outcome.EXPIRED, Outcome.COMPLETED, Outcome.COMPLETED, Outcome.NONE]


def test_a_limited_event_passes_by_an_overdue_operation() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    rig.do(owner, watch(b"k", timeout_ns=5 * MS), watch(b"k", timeout_ns=S), watch(b"k", timeout_ns=S))
    late_turn(rig, (firer, fire(b"k", limit=1, wait=True)))
    assert [owner.state(number) for number in (1, 2, 3)] == [Outcome.EXPIRED, Outcome.COMPLETED, Outcome.NONE]
    answer = firer.answer(1)
    assert answer is not None and answer.value == 1


def test_a_key_of_several_is_not_satisfied_after_the_deadline() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"a", b"b", timeout_ns=5 * MS, condition=Condition.AT_LEAST, needed=2))
    rig.do(firer, fire(b"a"))
    late_turn(rig, (firer, fire(b"b")))
    delivered = owner.outcome(number)
    assert delivered is not None and (delivered.state, delivered.satisfied) == (Outcome.EXPIRED, 1)


def test_a_new_registration_since_the_outcomes_mark_counts_the_event_that_came_too_late() -> None:
    """No wake-up is lost: a client that registers again from the outcome's mark on gets the event."""
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    rig.do(owner, watch(b"k", timeout_ns=5 * MS))
    late_turn(rig, (firer, fire(b"k")))
    mark = owner.mark()._replace(sequence=owner.marks[1])
    assert owner.state(rig.do(owner, watch(b"k", mark=mark))) is Outcome.COMPLETED


def test_a_reschedule_in_time_counts_before_the_event() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"k", timeout_ns=5 * MS))
    rig.do(owner, reschedule(number, S))
    late_turn(rig, (firer, fire(b"k")))
    assert owner.state(number) is Outcome.COMPLETED


# gaps -------------------------------------------------------------------------------------------------------------


def test_in_a_gap_events_have_the_time_of_the_last_turn_before_it() -> None:
    rig = Rig(ring_events=RING_EVENTS)
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"k", timeout_ns=5 * MS))
    before = rig.now_ns
    late_turn(rig, (firer, fire(b"k")), before_gap_ns=before)
    delivered = owner.outcome(number)
    assert delivered is not None and delivered.state is Outcome.COMPLETED
    assert rig.arena.record(Region.EVENTS, rig.core.newest % RING_EVENTS).effective_ns == before
    assert rig.now_ns - before == LATE_MS * MS and delivered.settled_ns == rig.now_ns


def test_a_deadline_before_the_gap_expires_although_the_wheel_had_not_come_to_it() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"k", timeout_ns=5 * MS))
    rig.core.begin_turn(rig.now_ns + 6 * MS)  # this turn met its bound before the wheel moved
    rig.core.end_turn(rig.now_ns + 6 * MS)
    late_turn(rig, (firer, fire(b"k")), before_gap_ns=rig.now_ns + 6 * MS)
    assert owner.state(number) is Outcome.EXPIRED


@pytest.mark.parametrize("fires", [False, True])
def test_an_operation_registered_in_a_gap_waits_for_the_events_of_the_gap(fires: bool) -> None:
    """The deadline passed while the daemon was stopped. In the sockets, an event fired in time may follow."""
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    rig.do(firer, fire(b"other"))
    before = rig.now_ns
    frames: list[tuple[Client, Command]] = [(owner, watch(b"k", timeout_ns=5 * MS, registered_ns=before + 1))]
    late_turn(rig, *frames, *([(firer, fire(b"k"))] if fires else []), before_gap_ns=before)
    assert owner.state(1) is (Outcome.COMPLETED if fires else Outcome.NONE)
    late_turn(rig)
    assert owner.state(1) is (Outcome.COMPLETED if fires else Outcome.EXPIRED)


def test_after_a_restart_events_have_the_time_of_the_last_turn_of_the_daemon_before() -> None:
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    number = rig.do(owner, watch(b"k", timeout_ns=5 * MS))
    before, rig.now_ns = rig.now_ns, rig.now_ns + LATE_MS * MS
    rig.restart()
    assert rig.core.last_turn_ns == before
    late_turn(rig, (firer, fire(b"k")), before_gap_ns=rig.core.last_turn_ns)
    assert owner.state(number) is Outcome.COMPLETED


def test_effective_times_do_not_go_back_if_a_daemon_was_killed_in_a_turn() -> None:
    """The killed daemon has not noted the time of its last turn, but its events have that time."""
    rig = Rig()
    owner, firer = rig.client(), rig.client()
    mark = owner.mark()
    killed_ns = rig.now_ns + LATE_MS * MS
    rig.core.begin_turn(killed_ns)
    firer.issue(fire(b"k"))
    assert rig.core.apply(firer.slot, firer.frame(), killed_ns, BUDGET) == rig.module.APPLIED
    firer.in_flight.clear()
    rig.restart()
    assert rig.core.last_turn_ns == killed_ns
    late_turn(rig, (firer, fire(b"k")), before_gap_ns=rig.core.last_turn_ns)
    events = [rig.arena.record(Region.EVENTS, sequence).effective_ns for sequence in (1, 2)]
    assert events == [killed_ns, killed_ns]
    late = watch(b"k", timeout_ns=LATE_MS * MS, registered_ns=killed_ns - LATE_MS * MS, mark=mark)
    assert owner.state(rig.do(owner, late)) is Outcome.EXPIRED


def test_work_that_was_due_before_is_no_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the transport was to free memory at a time that has passed.

    In an earlier version the next turn was compared with that time, seemed late, and began a gap: all timers waited.
    """
    world.settle()
    monkeypatch.setattr(type(world.conductor._transport), "due_ns", 0)
    for _ in range(3):
        world.turn(MS)
    assert world.counter("gaps") == 0 and not world.conductor.in_gap
    assert world.conductor.due_ns == world.clock.now_ns()
