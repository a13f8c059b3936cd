"""Operations whose owner evaluates the condition, in the core: looks, COMPLETE, and checks that wait for owners."""

from __future__ import annotations

import random

import pytest

from support.rig.acts import observe, owned, watch
from support.rig.commands import Register
from support.rig.harness import (
    MS,
    Client,
    Rig,
    S,
    advance,
    ask_owners,
    cancel,
    cancel_for_key,
    complete,
    fail,
    fire,
    looked,
    reschedule,
)
from support.rig.rules import complete_counts_by_its_effective_time, looks_are_due_until_the_owner_has_looked
from support.suite.tiers import in_tiers
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import CHECKS_MAX, CHECKS_PER_CLIENT_MAX, MET_SHIFT
from timerd_shm.declare.states import Condition, Orphans, Outcome
from timerd_shm.declare.wire import Met

K, L = b"k", b"l"


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def owner(rig: Rig) -> Client:
    return rig.client()


# looks ----------------------------------------------------------------------------------------------------------------


def test_an_event_makes_the_owner_look_and_decides_nothing(rig: Rig, owner: Client) -> None:
    other = rig.client()
    first = rig.do(owner, owned(K, L, timeout_ns=S), owned(L, timeout_ns=S))
    assert rig.do(other, fire(K, wait=True)) and other.answers[-1].value == 0
    assert owner.looks == [(first, 1)]
    rig.do(other, advance(L, 5), fail(L, 7))
    assert owner.looks[1:] == [(first + 1, 3)], (
        "the two events of a turn are one look of the second operation; the first has not answered, and gets no other"
    )
    rig.do(owner, looked(first, 1))
    assert owner.looks[2:] == [(first, 3)]
    assert rig.gauges() == (2, 3)
    rig.check()


def test_until_the_owner_has_looked_several_events_are_one_look_at_the_newest(rig: Rig) -> None:
    looks_are_due_until_the_owner_has_looked(rig)


def test_limited_events_pass_by_delayed_operations_and_go_to_others(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, owned(K), watch(K), observe(K))
    rig.do(rig.client(), fire(K, limit=1))
    assert owner.looks == []
    assert [owner.state(first + n) for n in range(3)] == [Outcome.NONE, Outcome.COMPLETED, Outcome.COMPLETED]


def test_an_event_after_the_mark_causes_a_look_at_once(rig: Rig, owner: Client) -> None:
    mark = owner.mark()
    rig.do(rig.client(), fire(K), fire(L), fire(b"other"))
    first = rig.do(owner, owned(K, L, mark=mark), owned(K, mark=owner.mark()))
    assert owner.looks == [(first, 2)]


@pytest.mark.parametrize("restarts", [False, True])
def test_looks_that_the_owner_did_not_get_are_sent_again_after_a_start(rig: Rig, owner: Client, restarts: bool) -> None:
    first = rig.do(owner, *(owned(b"%d" % n) for n in range(5)))
    rig.core.begin_turn(rig.now_ns)
    other = rig.client()
    for n in (3, 1, 4, 0):
        other.issue(fire(b"%d" % n))
    assert rig.apply(other, other.frame()) == rig.module.APPLIED
    if restarts:
        rig.restart()  # the reports are lost with the daemon
        rig.core.begin_turn(rig.now_ns)
    rig.report()
    assert owner.looks == [(first + n, at) for at, n in enumerate((3, 1, 4, 0), start=1)]
    rig.check()


def test_an_owner_that_says_hello_again_is_sent_its_looks_again(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, owned(K))
    rig.do(rig.client(), fire(K))
    assert rig.core.open_client(owner.incarnation, owner.session, now_ns=rig.now_ns) == owner.slot
    rig.turn()
    assert owner.looks == [(first, 1)] * 2


def test_a_report_has_a_bounded_number_of_looks_and_the_next_report_has_the_rest(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, *(owned(K) for _ in range(10)))
    rig.core.begin_turn(rig.now_ns)
    other = rig.client()
    other.issue(fire(K))
    rig.apply(other, other.frame())
    parts = []
    while reports := [frame for slot, frame in rig.core.reports(rig.now_ns, 4) if slot == owner.slot]:
        owner.looks.clear()
        owner.receive(bytes(reports[0]))
        parts.append([command - first for command, _ in owner.looks])
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


# COMPLETE -------------------------------------------------------------------------------------------------------------


def test_complete_settles_an_operation_of_its_client_and_answers_1(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, owned(K, L, payload=b"p"), owned(K))
    other = rig.client()
    rig.do(other, fire(K))
    asked = rig.do(owner, complete(first, 1, wait=True), complete(first, 1, wait=True))
    assert [owner.answer(asked + n).value for n in range(2)] == [1, 0]  # type: ignore[union-attr]
    delivered = owner.outcome(first)
    assert delivered is not None
    assert (delivered.state, delivered.settled_key, delivered.satisfied, delivered.failed) == (
        Outcome.COMPLETED,
        0,
        0,
        0,
    )
    assert owner.marks[delivered.number] == 1
    assert rig.gauges() == (1, 1) and rig.arena.count("completed", 0) == 1
    rig.check()


def test_complete_changes_nothing_of_other_clients_or_of_other_operations(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, owned(K), watch(K))
    other = rig.client()
    asked = rig.do(other, complete(first, wait=True), looked(first, 9, wait=True))
    assert [other.answer(asked + n).value for n in range(2)] == [0, 0]  # type: ignore[union-attr]
    asked = rig.do(owner, complete(first + 1, wait=True), looked(99, 1, wait=True))
    assert [owner.answer(asked + n).value for n in range(2)] == [0, 0]  # type: ignore[union-attr]
    assert rig.gauges()[0] == 2


def test_complete_counts_by_its_effective_time(rig: Rig) -> None:
    complete_counts_by_its_effective_time(rig)


@pytest.mark.parametrize("seed", in_tiers(range(20), 4))
def test_exactly_one_of_expiry_and_completion_wins(seed: int) -> None:
    """500 operations for each seed: COMPLETE comes around the deadline, with restarts of the daemon in between."""
    choose = random.Random(seed)
    rig = Rig(capacity=1024, clients=2)
    owner = rig.client()
    began = rig.now_ns
    first = rig.do(owner, *(owned(K, timeout_ns=50 * MS) for _ in range(500)))
    due = sorted((choose.randrange(40 * MS, 60 * MS), first + n) for n in range(500))
    sent_in_time = {}
    while due or owner.in_flight or rig.gauges()[0]:
        now_ns = rig.now_ns + choose.randrange(3 * MS)
        while due and began + due[0][0] <= now_ns:
            owner.issue(complete(due.pop(0)[1]))
        for _, command in owner.in_flight:
            sent_in_time[command.operation] = now_ns < began + 50 * MS  # type: ignore[union-attr]
        rig.turn(now_ns)
        if choose.random() < 0.2:
            rig.restart()
    states = {operation: owner.state(operation) for operation in range(first, first + 500)}
    assert all(
        states[operation] is (Outcome.COMPLETED if in_time else Outcome.EXPIRED)
        for operation, in_time in sent_in_time.items()
    )
    assert set(states.values()) == {Outcome.COMPLETED, Outcome.EXPIRED}
    assert len(owner.delivered) == 500
    rig.check()


# ids, deadlines, orphans ----------------------------------------------------------------------------------------------


def test_an_operation_keeps_its_timer_place_id_and_policy_until_it_is_complete(rig: Rig) -> None:
    owner, other = rig.client(group=b"g"), rig.client()
    first = rig.do(owner, owned(K, L, timeout_ns=S, id=b"i" * 16, orphans=Orphans.GROUP))
    for _ in range(3):
        rig.do(other, fire(K))
        rig.do(owner, looked(first, rig.core.newest))
    assert rig.gauges() == (1, 2)
    asked = rig.do(other, watch(K, id=b"i" * 16))
    assert other.answer(asked).code == ErrorCode.OPERATION_EXISTS  # type: ignore[union-attr]
    rig.do(owner, reschedule(first, 2 * S))
    rig.turn(rig.now_ns + S)
    assert owner.state(first) is Outcome.NONE
    rig.close(owner)
    assert rig.gauges() == (1, 2)
    rig.check()


@pytest.mark.parametrize("orphans", [Orphans.KEEP, Orphans.GROUP])
def test_after_its_owners_death_nobody_looks_and_an_operation_runs_to_its_deadline(rig: Rig, orphans: Orphans) -> None:
    owner, member = rig.client(orphans, group=b"g"), rig.client(group=b"g", listens=True)
    rig.do(owner, owned(K, timeout_ns=S), owned(K, timeout_ns=S), owned(K, timeout_ns=S, orphans=Orphans.CANCEL))
    rig.do(member, fire(K))
    rig.close(owner)
    rig.do(member, fire(K), fail(K, 1))
    assert rig.gauges() == (2, 2) and member.looks == []
    rig.do(member, cancel_for_key(L))
    rig.turn(rig.now_ns + 2 * S)
    assert rig.gauges() == (0, 0)
    assert len(member.delivered_for_group) == 2 * (orphans is Orphans.GROUP)
    rig.check()


def test_a_delayed_operation_is_cancelled_by_its_key_and_by_its_owner(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, owned(K), owned(L))
    rig.do(rig.client(), fire(K), fire(L), cancel_for_key(K))
    rig.do(owner, cancel(first + 1))
    assert [owner.state(first + n) for n in range(2)] == [Outcome.CANCELLED] * 2
    assert rig.gauges() == (0, 0) and not rig.core.unacknowledged(rig.clients[-1].slot)


def test_a_delayed_operation_of_a_group_is_refused(rig: Rig) -> None:
    member = rig.client(group=b"g")
    asked = rig.do(member, owned(K, for_group=True), Register(watch(K).keys, condition=Condition.OWNER))
    codes = [member.answer(asked + n).code for n in range(2)]  # type: ignore[union-attr]
    assert codes == [ErrorCode.INVALID_CONDITION] * 2


# checks ---------------------------------------------------------------------------------------------------------------


def test_a_check_has_finished_when_every_owner_has_looked(rig: Rig, owner: Client) -> None:
    second, checker = rig.client(), rig.client()
    first = rig.do(owner, owned(K), owned(K, L), owned(L))
    other = rig.do(second, owned(K))
    check = rig.do(checker, ask_owners(K))
    assert rig.core.check(checker.slot, check, False) == (False, 0)
    assert owner.looks == [(first, 1), (first + 1, 1)] and second.looks == [(other, 1)]
    rig.do(owner, complete(first, 1), looked(first + 1, 1))
    assert rig.core.check(checker.slot, check, False) == (False, 1) and not rig.core.take_finished()
    rig.do(second, complete(other, 1))
    assert rig.core.take_finished() and not rig.core.take_finished()
    assert rig.core.check(checker.slot, check, False) == (True, 2)
    assert rig.core.check(checker.slot, check, False) is None, "the result was read, so the check has ended"


def test_a_check_without_watchers_finishes_at_once_and_subscribers_do_not_see_it(rig: Rig, owner: Client) -> None:
    first = rig.do(owner, observe(K), watch(K))
    check = rig.do(rig.client(), ask_owners(K))
    assert rig.core.check(1, check, False) == (True, 0)
    assert [owner.state(first + n) for n in range(2)] == [Outcome.NONE] * 2


@pytest.mark.parametrize("end", ["expires", "cancelled", "forced", "owner dies"])
def test_an_operation_that_settles_otherwise_is_neither_counted_nor_awaited(rig: Rig, owner: Client, end: str) -> None:
    checker = rig.client()
    first = rig.do(owner, owned(K, timeout_ns=S))
    check = rig.do(checker, ask_owners(K))
    if end == "expires":
        rig.turn(rig.now_ns + 2 * S)
    elif end == "owner dies":
        rig.close(owner)
    else:
        rig.do(owner, cancel(first) if end == "cancelled" else complete(first, 0))
    assert rig.core.check(checker.slot, check, False) == (True, 0)


def test_the_oldest_check_that_waits_for_a_look_counts_what_the_look_completes(rig: Rig, owner: Client) -> None:
    checker = rig.client()
    first = rig.do(owner, owned(K), owned(K))
    checks = [rig.do(checker, ask_owners(K)) for _ in range(3)]
    rig.do(owner, complete(first, 3), looked(first + 1, 2), complete(first + 1, 3))
    assert [rig.core.check(checker.slot, check, False) for check in checks] == [(True, 1), (True, 0), (True, 1)]


def test_a_check_that_ends_early_leaves_nothing_behind(rig: Rig, owner: Client) -> None:
    checker = rig.client()
    first = rig.do(owner, owned(K))
    for _ in range(200):  # more than the tickets of one operation (see checks.pxd)
        check = rig.do(checker, ask_owners(K))
        assert rig.core.check(checker.slot, check, True) == (False, 0)
    check = rig.do(checker, ask_owners(K))
    rig.do(owner, looked(first, rig.core.newest))
    assert rig.core.check(checker.slot, check, False) == (True, 0)


def test_more_checks_than_one_client_or_all_clients_may_have_are_refused_by_name(rig: Rig) -> None:
    rig = Rig(clients=1 + CHECKS_MAX // CHECKS_PER_CLIENT_MAX + 1)
    owner = rig.client()
    rig.do(owner, owned(K))
    for _ in range(CHECKS_MAX // CHECKS_PER_CLIENT_MAX):
        checker = rig.client()
        asked = rig.do(checker, *(ask_owners(K) for _ in range(CHECKS_PER_CLIENT_MAX + 1)))
        answer = checker.answer(asked + CHECKS_PER_CLIENT_MAX)
        assert answer is not None and answer.code == ErrorCode.QUOTA_EXCEEDED
        assert answer.value == Met.CHECKS << MET_SHIFT | CHECKS_PER_CLIENT_MAX
    last = rig.client()
    asked = rig.do(last, ask_owners(K))
    answer = last.answer(asked)
    assert answer is not None and answer.code == ErrorCode.ARENA_FULL
    assert answer.value == Met.CHECKS << MET_SHIFT | CHECKS_MAX
    rig.close(checker)
    asked = rig.do(last, ask_owners(b"nobody's"))
    assert rig.core.check(last.slot, asked, False) == (True, 0), "the checks of the dead client have ended"


def test_a_check_makes_late_registrations_look_and_is_forgotten_at_a_start(rig: Rig, owner: Client) -> None:
    mark = owner.mark()
    check = rig.do(rig.client(), ask_owners(K))
    first = rig.do(owner, owned(K, mark=mark))
    assert owner.looks == [(first, 1)]
    rig.restart()
    assert rig.core.check(1, check, False) is None
