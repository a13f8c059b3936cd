"""Each condition: which events complete, fail or do not touch an operation, and what its outcome contains."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from support.rig.acts import LONG, observe
from support.rig.commands import Delivered, Key, KeyAct, Mark, OperationAct, Register
from support.rig.harness import MS, Client, Rig, advance, cancel, cancel_for_key, fail, fire, forget, requeue
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, OutcomeFlag

A, B, C = Key(b"a"), Key(b"b"), Key(b"c")
PENDING, COMPLETED, FAILED, CANCELLED = Outcome.NONE, Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED


def register(*keys: Key, needed: int = 1, condition: Condition = Condition.AT_LEAST, total: int = 0) -> Register:
    return Register(keys, timeout_ns=3_600_000 * MS, condition=condition, needed=needed, total=total)


ANY, QUORUM, ALL = register(A, B, C), register(A, B, C, needed=2), register(A, B, C, needed=3)
SETTLED = register(A, B, C, condition=Condition.ALL_SETTLED)
TOTAL = register(A, B, condition=Condition.TOTAL, total=10)
OFFSETS = register(Key(b"p0", 812), Key(b"p1", 455), needed=2)

# name: the registration, the events, and the result. The result is (state, ordinal of the settling key + 1, satisfied
# keys, failed keys). The sets of keys are bits: bit 0 is the first key.
CASES: dict[str, tuple[Register, tuple[KeyAct, ...], tuple[Outcome, int, int, int]]] = {
    "any: one event": (ANY, (fire(b"b"),), (COMPLETED, 2, 0b010, 0)),
    "any: another key": (ANY, (fire(b"d"),), (PENDING, 0, 0, 0)),
    "any: two may fail": (ANY, (fail(b"a", 7), fail(b"b", 7)), (PENDING, 0, 0, 0)),
    "any: all fail": (ANY, (fail(b"a", 7), fail(b"b", 7), fail(b"c", 7)), (FAILED, 3, 0, 0b111)),
    "any: an advance is no event": (ANY, (advance(b"a", 99),), (PENDING, 0, 0, 0)),
    "any: a forget settles nothing": (ANY, (advance(b"a", 9), forget(b"a")), (PENDING, 0, 0, 0)),
    "quorum: the same key twice is one": (QUORUM, (fire(b"a"), fire(b"a")), (PENDING, 0, 0, 0)),
    "quorum: two keys": (QUORUM, (fire(b"c"), fire(b"a")), (COMPLETED, 1, 0b101, 0)),
    "quorum: one of three may fail": (QUORUM, (fail(b"a", 7), fire(b"b"), fire(b"c")), (COMPLETED, 3, 0b110, 0b001)),
    "quorum: two of three fail": (QUORUM, (fail(b"a", 7), fire(b"b"), fail(b"c", 7)), (FAILED, 3, 0b010, 0b101)),
    "quorum: a satisfied key cannot fail": (QUORUM, (fire(b"a"), fail(b"a", 7), fire(b"b")), (COMPLETED, 2, 0b011, 0)),
    "quorum: a failed key cannot be satisfied": (QUORUM, (fail(b"a", 7), fire(b"a"), fire(b"b")), (PENDING, 0, 0, 0)),
    "all: in any order": (ALL, (fire(b"c"), fire(b"a"), fire(b"b")), (COMPLETED, 2, 0b111, 0)),
    "all: one fails": (ALL, (fire(b"c"), fail(b"a", 7)), (FAILED, 1, 0b100, 0b001)),
    "all: cancelled by a key": (ALL, (fire(b"c"), cancel_for_key(b"a")), (CANCELLED, 1, 0b100, 0)),
    "all: a satisfied key is no longer watched": (ALL, (fire(b"c"), cancel_for_key(b"c")), (PENDING, 0, 0, 0)),
    "settled: done or failed": (SETTLED, (fire(b"a"), fail(b"b", 7), fire(b"c")), (COMPLETED, 3, 0b101, 0b010)),
    "settled: all failed is settled": (
        SETTLED,
        (fail(b"a", 7), fail(b"b", 7), fail(b"c", 7)),
        (COMPLETED, 3, 0, 0b111),
    ),
    "settled: one is missing": (SETTLED, (fire(b"a"), fail(b"b", 7), fire(b"a")), (PENDING, 0, 0, 0)),
    "total: amounts of all keys add up": (TOTAL, (fire(b"a", 4), fire(b"b", 5), fire(b"a", 1)), (COMPLETED, 1, 1, 0)),
    "total: too little": (TOTAL, (fire(b"a", 4), fire(b"b", 5)), (PENDING, 0, 0, 0)),
    "total: more than enough": (TOTAL, (fire(b"b", (1 << 64) - 1),), (COMPLETED, 2, 2, 0)),
    "total: nothing adds nothing": (TOTAL, (fire(b"a", 0), fire(b"a", 9), fire(b"a", 0)), (PENDING, 0, 0, 0)),
    "total: one key may fail": (TOTAL, (fail(b"a", 7), fire(b"b", 10)), (COMPLETED, 2, 2, 1)),
    "total: a failed key adds nothing": (TOTAL, (fail(b"a", 7), fire(b"a", 10)), (PENDING, 0, 0, 0)),
    "total: all keys fail": (TOTAL, (fire(b"a", 9), fail(b"a", 7), fail(b"b", 7)), (FAILED, 2, 0, 3)),
    "offsets: both reached": (OFFSETS, (advance(b"p1", 500), advance(b"p0", 812)), (COMPLETED, 1, 0b11, 0)),
    "offsets: one short": (OFFSETS, (advance(b"p1", 500), advance(b"p0", 811)), (PENDING, 0, 0, 0)),
    "offsets: a fire is no advance": (OFFSETS, (advance(b"p1", 500), fire(b"p0", 900)), (PENDING, 0, 0, 0)),
    "offsets: leader lost": (OFFSETS, (advance(b"p1", 500), fail(b"p0", 6)), (FAILED, 1, 0b10, 0b01)),
    "offsets: cancelled by a key": (OFFSETS, (cancel_for_key(b"p1"),), (CANCELLED, 2, 0, 0)),
    "offsets: reached stays reached": (
        OFFSETS,
        (advance(b"p1", 500), forget(b"p1"), advance(b"p0", 900)),
        (COMPLETED, 1, 0b11, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("overtaken", (False, True), ids=("registered first", "events overtook it"))
def test_an_operation_completes_by_its_condition(name: str, overtaken: bool) -> None:
    """The result is the same if the events arrive between the mark and the arrival of the registration."""
    command, events, wanted = CASES[name]
    rig = Rig()
    owner, other = rig.client(), rig.client()
    mark = owner.mark()
    if overtaken:
        rig.do(other, *events)
        number = rig.do(owner, Register(**{**vars(command), "mark": mark}))
    else:
        number = rig.do(owner, command)
        rig.do(other, *events)
    delivered = owner.outcome(number)
    if wanted[0] is PENDING:
        assert delivered is None, f"{name}: {delivered}"
    else:
        assert delivered is not None, f"{name}: pending"
        assert (delivered.state, delivered.settled_key, delivered.satisfied, delivered.failed) == wanted
        assert delivered.error == (events[-1].amount if events[-1].kind.name == "FAIL" else 0)
    rig.check()


def test_an_outcome_has_the_value_of_the_settling_event() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, ALL)
    rig.do(client, *(fire(key, value=b"of " + key) for key in (b"b", b"c", b"a")))
    delivered = client.outcome(number)
    assert delivered is not None and delivered.value == b"of a"


def test_a_value_that_completes_many_operations_is_stored_once() -> None:
    rig = Rig(capacity=256, quota_bytes=1 << 20)
    client = rig.client()
    numbers = [client.issue(register(A)) for _ in range(100)]
    rig.turn()
    rig.do(client, fire(b"a", value=bytes(range(250)) * 4))
    assert {each.value for each in client.delivered} == {bytes(range(250)) * 4}
    assert [each.command for each in client.delivered] == numbers
    assert rig.arena.in_use()["BLOCKS"] == 9
    rig.acknowledge()
    rig.check()


def test_watchers_settle_in_the_order_of_registration() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    numbers = []
    for _ in range(3):
        numbers += [rig.do(a, ANY), rig.do(b, ANY) + 100]
    rig.do(a, fire(b"a", limit=3))
    assert [each.command for each in a.delivered] == [1, 2]
    assert [each.command for each in b.delivered] == [1]


def test_watermark_watchers_settle_by_target_then_registration_up_to_the_watermark() -> None:
    choose = random.Random(2)
    rig = Rig(capacity=512)
    client = rig.client()
    targets = [choose.randrange(1, 40) for _ in range(150)]
    for target in targets:
        client.issue(register(Key(b"p", target)))
    rig.turn()
    for number in choose.sample(range(1, 151), 30):
        client.issue(cancel(number))
        targets[number - 1] = 0
    rig.turn()
    cancelled = len(client.delivered)
    for watermark in (3, 3, 2, 17, 39):
        rig.do(client, advance(b"p", watermark))
    order = [each.command for each in client.delivered[cancelled:]]
    assert order == [n for _, n in sorted((target, number) for number, target in enumerate(targets, 1) if target)]
    rig.check()


def test_a_watermark_is_monotonic_and_outlives_its_watchers() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, advance(b"p", 10), advance(b"p", 4))
    rig.turn(rig.now_ns + 10_000 * MS)
    rig.restart()
    number = rig.do(client, register(Key(b"p", 10)))
    assert client.state(number) is COMPLETED
    rig.do(client, forget(b"p"))
    assert rig.arena.keys_in_use() == 0


def test_fire_wait_returns_how_many_operations_it_settled() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, ANY, ANY, ALL, register(A, Key(b"p", 5), needed=2))
    asked = {
        rig.do(client, fire(b"a", wait=True)): 2,
        rig.do(client, fire(b"a", wait=True)): 0,
        rig.do(client, advance(b"p", 5, wait=True)): 1,
        rig.do(client, fail(b"b", 1, wait=True)): 1,
        rig.do(client, cancel_for_key(b"c", wait=True)): 0,
        rig.do(client, forget(b"p", wait=True)): 0,
    }
    assert {answer.command: answer.value for answer in client.answers} == asked
    assert {answer.code for answer in client.answers} == {ErrorCode.NONE}


def test_purgatories_are_independent_of_each_other() -> None:
    rig = Rig(purgatories=3)
    fetch, produce = rig.core.purgatory(b"fetch"), rig.core.purgatory(b"produce")
    assert (fetch, produce, rig.core.purgatory(b"fetch")) == (1, 2, 1)
    client = rig.client()
    numbers = [rig.do(client, Register((A,), purgatory=p, timeout_ns=NO_DEADLINE)) for p in (0, fetch, produce)]
    offsets = [rig.do(client, Register((Key(b"p", 5),), purgatory=p, timeout_ns=NO_DEADLINE)) for p in (0, fetch)]
    rig.do(
        client, KeyAct(fire(b"a").kind, b"a", purgatory=fetch), KeyAct(advance(b"p", 5).kind, b"p", 5, purgatory=fetch)
    )
    assert [client.state(number) for number in numbers] == [PENDING, COMPLETED, PENDING]
    assert [client.state(number) for number in offsets] == [PENDING, COMPLETED]
    assert [rig.arena.count("completed", p) for p in (0, fetch, produce)] == [0, 2, 0]
    assert [rig.arena.count("pending", p) for p in (0, fetch, produce)] == [2, 0, 1]
    rig.check()


def test_a_kept_operation_of_a_dead_owner_gets_no_grant() -> None:
    rig = Rig()
    dead, alive = rig.client(Orphans.KEEP), rig.client()
    rig.do(dead, ANY)
    number = rig.do(alive, ANY)
    rig.close(dead)
    rig.do(alive, fire(b"a", limit=1))
    assert alive.state(number) is COMPLETED
    assert rig.arena.count("pending", 0) == 1
    rig.do(alive, fire(b"a"))
    assert rig.arena.count("pending", 0) == 0, "an event without a limit did not settle the kept operation"
    rig.check()


@pytest.mark.parametrize("overtaken", (False, True))
def test_a_limited_event_completes_at_most_its_limit_with_late_registrations(overtaken: bool) -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()
    early = [rig.do(a, ANY) for _ in range(2)]
    rig.do(b, fire(b"b", limit=3))
    late = [rig.do(a, Register(**{**vars(ANY), "mark": mark if overtaken else a.mark()})) for _ in range(2)]
    assert [a.state(number) for number in early] == [COMPLETED] * 2
    assert [a.state(number) for number in late] == [COMPLETED if overtaken else PENDING, PENDING]


# an operation that observes: a fire, a fail or a rising watermark completes it, and it takes nothing of the event ---


def wait(*keys: bytes, mark: Mark | None = None, target: int | None = None) -> Register:
    return Register(tuple(Key(key, target) for key in keys), mark=mark)


class Seen(NamedTuple):
    """The event that completed an observing operation, from its outcome."""

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
def test_an_outcome_names_the_observed_event(rig: Rig, event: KeyAct, kind: EventKind, amount: int, late: bool) -> None:
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
    assert sender.answers[0].value == 1  # operations that observe the event are not counted
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
def test_a_command_that_is_no_event_for_observers_is_not_seen(rig: Rig, act: KeyAct) -> None:
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


def test_observing_operations_are_in_a_separate_list(rig: Rig) -> None:
    """A fire completes the operations that watch the key, in order of registration, also if the key is observed."""
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


def test_an_observing_operation_expires_and_is_cancelled_like_others(rig: Rig) -> None:
    client = rig.client()
    expires, cancelled = rig.do(client, observe(b"k", timeout_ns=5 * MS), observe(b"k")), client.issued
    rig.do(client, cancel(cancelled))
    rig.turn(rig.now_ns + 6 * MS)
    assert (client.state(expires), client.state(cancelled)) == (Outcome.EXPIRED, Outcome.CANCELLED)
    for number in (expires, cancelled):
        outcome = client.outcome(number)
        assert outcome is not None and (outcome.satisfied, outcome.failed, outcome.settled_key) == (0, 0, 0)
    rig.check()


def test_the_orphans_policy_of_an_observing_operation_cannot_be_changed(rig: Rig) -> None:
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


def test_a_mark_that_left_the_ring_is_too_old(rig: Rig) -> None:
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


def test_operations_that_come_due_while_the_event_is_delivered_get_the_event(rig: Rig) -> None:
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
