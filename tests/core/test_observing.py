"""Observing operations: the first event on any of their keys completes them, and they take nothing of it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from acts import LONG, observe
from commands import Delivered, Key, KeyAct, Mark, OperationAct, Register
from harness import MS, Client, Rig, advance, cancel, cancel_for_key, fail, fire, forget, requeue
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.states import Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, OutcomeFlag


def wait(*keys: bytes, mark: Mark | None = None, target: int | None = None) -> Register:
    return Register(tuple(Key(key, target) for key in keys), mark=mark)


class Seen(NamedTuple):
    """What an observing operation was told of an event."""

    kind: EventKind
    amount: int
    value: bytes
    ordinal: int
    sequence: int


def seen(client: Client, command: int) -> Seen:
    outcome = client.outcome(command)
    assert outcome is not None and outcome.state is Outcome.COMPLETED
    return told(client, outcome)


def told(client: Client, outcome: Delivered) -> Seen:
    sequence = client.marks[outcome.number]
    return Seen(EventKind(outcome.failed), outcome.satisfied, outcome.value, outcome.settled_key - 1, sequence)


@pytest.fixture
def rig() -> Rig:
    return Rig(capacity=64)


@pytest.mark.parametrize(
    ("event", "kind", "amount"),
    [
        (fire(b"k", 5, value=b"v"), EventKind.FIRE, 5),
        (fire(b"k", 0, value=b"v"), EventKind.FIRE, 0),
        (fire(b"k", 2, value=b"v", limit=1), EventKind.FIRE, 2),
        (advance(b"k", 812, value=b"v"), EventKind.ADVANCE, 812),
        (fail(b"k", 7, value=b"v"), EventKind.FAIL, 7),
    ],
    ids=["fire", "fire of nothing", "limited fire", "advance", "fail"],
)
@pytest.mark.parametrize("late", [False, True], ids=["registered before", "registered after"])
def test_the_outcome_says_which_event_it_was(rig: Rig, event: KeyAct, kind: EventKind, amount: int, late: bool) -> None:
    client, other = rig.client(), rig.client()
    mark = client.mark()
    if late:
        rig.do(other, event)
    command = rig.do(client, observe(b"other", b"k", mark=mark))
    if not late:
        assert client.outcome(command) is None
        rig.do(other, event)
    assert seen(client, command) == (kind, amount, b"v", 1, 1)
    rig.check()


def test_a_limited_event_is_seen_and_not_taken(rig: Rig) -> None:
    observers, worker, sender = rig.client(), rig.client(), rig.client()
    watching = rig.do(observers, observe(b"jobs"), observe(b"jobs"))
    job = rig.do(worker, wait(b"jobs"))
    rig.do(sender, fire(b"jobs", value=b"work", limit=1, wait=True))
    assert worker.state(job) is Outcome.COMPLETED and worker.flags[1] & OutcomeFlag.GRANTED
    for number in (watching, watching + 1):
        assert seen(observers, number) == (EventKind.FIRE, 1, b"work", 0, 1)
    assert not any(flags & OutcomeFlag.GRANTED for flags in observers.flags.values())
    assert sender.answers[0].value == 1  # those that observe it are not counted
    rig.check()


def test_a_limited_event_that_is_used_up_is_still_seen_from_an_earlier_mark(rig: Rig) -> None:
    client, worker = rig.client(), rig.client()
    mark = client.mark()
    rig.do(worker, wait(b"jobs"), fire(b"jobs", value=b"work", limit=1))
    assert seen(client, rig.do(client, observe(b"jobs", mark=mark))) == (EventKind.FIRE, 1, b"work", 0, 1)
    late = rig.do(worker, wait(b"jobs", mark=Mark(0, 0)))
    assert worker.state(late) is Outcome.NONE


def test_a_limited_event_waits_for_a_worker_though_it_is_observed(rig: Rig) -> None:
    client, worker = rig.client(), rig.client()
    mark = worker.mark()
    command = rig.do(client, observe(b"jobs"))
    rig.do(client, fire(b"jobs", limit=1))
    assert seen(client, command).kind is EventKind.FIRE
    assert worker.state(rig.do(worker, wait(b"jobs", mark=mark))) is Outcome.COMPLETED


def test_a_requeued_grant_is_not_seen_again(rig: Rig) -> None:
    client, worker, other = rig.client(), rig.client(), rig.client()
    job = rig.do(worker, wait(b"jobs"))
    first = rig.do(client, observe(b"jobs"))
    rig.do(client, fire(b"jobs", value=b"work", limit=1))
    again = rig.do(client, observe(b"jobs", mark=Mark(seen(client, first).sequence, 0), mark_by_sequence=True))
    rig.do(worker, requeue(job))
    assert client.outcome(again) is None
    late = rig.do(client, observe(b"jobs", mark=Mark(1, 0), mark_by_sequence=True))
    assert client.outcome(late) is None
    assert other.state(rig.do(other, wait(b"jobs", mark=Mark(0, 0)))) is Outcome.COMPLETED
    rig.check()


@pytest.mark.parametrize("act", [cancel_for_key(b"k"), forget(b"k"), advance(b"k", 5), advance(b"k", 4)])
def test_what_is_no_event_for_others_is_not_seen(rig: Rig, act: KeyAct) -> None:
    client = rig.client()
    rig.do(client, advance(b"k", 5))
    mark = client.mark()
    command = rig.do(client, observe(b"k"))
    rig.do(client, act)
    late = rig.do(client, observe(b"k", mark=mark))
    assert client.outcome(command) is None and client.outcome(late) is None
    rig.check()


def test_a_present_watermark_is_no_event(rig: Rig) -> None:
    client = rig.client()
    rig.do(client, advance(b"k", 5))
    command = rig.do(client, observe(b"k", mark=client.mark()))
    assert client.outcome(command) is None
    rig.do(client, advance(b"k", 6))
    assert seen(client, command).amount == 6


def test_from_mark_to_mark_every_event_is_seen_once_in_order(rig: Rig) -> None:
    client, other = rig.client(), rig.client()
    mark = client.mark()
    acts = [fire(b"a"), advance(b"b", 3), fail(b"a", 9), fire(b"c"), fire(b"b", limit=2), fire(b"a", 4)]
    rig.do(other, *acts)
    found = []
    by_sequence = False
    for _ in range(len(acts)):
        command = rig.do(client, observe(b"b", b"a", mark=mark, mark_by_sequence=by_sequence))
        if client.outcome(command) is None:
            break
        found.append(seen(client, command))
        mark, by_sequence = Mark(found[-1].sequence, 0), True
    assert [each.sequence for each in found] == [1, 2, 3, 5, 6]
    assert [each.ordinal for each in found] == [1, 0, 1, 0, 1]


def test_those_that_observe_stand_in_a_list_of_their_own(rig: Rig) -> None:
    """A fire completes what watches for it, in order of registration, whether somebody observes the key or not."""
    client = rig.client()
    numbers = [rig.do(client, command) for _ in range(3) for command in (observe(LONG), wait(LONG))]
    offset = rig.do(client, wait(LONG, target=5))
    rig.check()
    rig.restart()
    rig.check()
    rig.do(client, advance(LONG, 5))
    assert {each.command for each in client.delivered} == {*numbers[::2], offset}
    rig.do(client, fire(LONG, wait=True))
    assert {each.command for each in client.delivered} == {*numbers, offset}
    assert client.answers[-1].value == 3
    rig.check()


def test_it_expires_and_is_cancelled_as_others(rig: Rig) -> None:
    client = rig.client()
    expires, cancelled = rig.do(client, observe(b"k", timeout_ns=5 * MS), observe(b"k")), client.issued
    rig.do(client, cancel(cancelled))
    rig.turn(rig.now_ns + 6 * MS)
    assert (client.state(expires), client.state(cancelled)) == (Outcome.EXPIRED, Outcome.CANCELLED)
    for number in (expires, cancelled):
        outcome = client.outcome(number)
        assert outcome is not None and (outcome.satisfied, outcome.failed, outcome.settled_key) == (0, 0, 0)
    rig.check()


def test_its_orphans_policy_cannot_be_changed(rig: Rig) -> None:
    client = rig.client(group=b"g")
    command = rig.do(client, observe(b"k"))
    act = OperationAct(CommandKind.SET_ORPHANS, command, orphans=Orphans.GROUP, wants_answer=True)
    answer = client.answer(rig.do(client, act))
    assert answer is not None and (answer.code, answer.value) == (0, 0)
    rig.close(client)
    assert rig.gauges() == (0, 0)


def test_an_operation_observes_all_of_its_keys_or_none(rig: Rig) -> None:
    client = rig.client()
    mixed = Register((Key(b"a", observed=True), Key(b"b")), condition=Condition.OBSERVE)
    without = Register((Key(b"a", observed=True),))
    for number in (rig.do(client, mixed), rig.do(client, without)):
        answer = client.answer(number)
        assert answer is not None and answer.code == ErrorCode.INVALID_CONDITION


def test_a_mark_that_left_the_ring_is_told(rig: Rig) -> None:
    client = rig.client()
    mark = client.mark()
    for _ in range(rig.arena.header.newest + 20):
        rig.do(client, fire(b"k"))
    answer = client.answer(rig.do(client, observe(b"k", mark=Mark(mark.sequence, 0), mark_by_sequence=True)))
    assert answer is not None and answer.code == ErrorCode.MARK_TOO_OLD


def test_a_wide_event_is_cut_into_turns_and_reaches_both_kinds_of_watchers(rig: Rig) -> None:
    client = rig.client(Orphans.CANCEL)
    numbers = [rig.do(client, command) for _ in range(8) for command in (observe(b"k", timeout_ns=50 * MS), wait(b"k"))]
    rig.budget = 1
    rig.do(client, fire(b"k", limit=3, wait=True))
    done = {each.command for each in client.delivered}
    assert done == {*numbers[::2], *numbers[1:6:2]}
    assert client.answers[-1].value == 3
    rig.check()


def test_what_comes_due_while_the_event_is_delivered_gets_the_event(rig: Rig) -> None:
    client = rig.client()
    observing = [rig.do(client, observe(b"k", timeout_ns=5 * MS)) for _ in range(6)]
    waiting = rig.do(client, Register((Key(b"k"),), timeout_ns=5 * MS))
    rig.now_ns += 4 * MS
    rig.core.begin_turn(rig.now_ns)
    client.issue(fire(b"k", limit=1))
    assert rig.core.apply(client.slot, client.frame(), rig.now_ns, 2) == rig.module.UNFINISHED
    rig.turn(rig.now_ns + 2 * MS, only=[])
    assert all(client.state(number) is Outcome.COMPLETED for number in (*observing, waiting))
    rig.check()
