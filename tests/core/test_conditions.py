"""Conditions, one by one: what completes, fails or leaves an operation alone, and what its owner is told."""

from __future__ import annotations

import random

import pytest

from commands import Key, KeyAct, Register
from harness import MS, Rig, advance, cancel, cancel_for_key, fail, fire, forget
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Condition, Orphans, Outcome

A, B, C = Key(b"a"), Key(b"b"), Key(b"c")
PENDING, COMPLETED, FAILED, CANCELLED = Outcome.NONE, Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED


def register(*keys: Key, needed: int = 1, condition: Condition = Condition.AT_LEAST, total: int = 0) -> Register:
    return Register(keys, timeout_ns=3_600_000 * MS, condition=condition, needed=needed, total=total)


ANY, QUORUM, ALL = register(A, B, C), register(A, B, C, needed=2), register(A, B, C, needed=3)
SETTLED = register(A, B, C, condition=Condition.ALL_SETTLED)
TOTAL = register(A, B, condition=Condition.TOTAL, total=10)
OFFSETS = register(Key(b"p0", 812), Key(b"p1", 455), needed=2)

# name: what is registered, what happens, then: state, settled key's ordinal + 1, satisfied, failed
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
    "all: a satisfied key is watched no more": (ALL, (fire(b"c"), cancel_for_key(b"c")), (PENDING, 0, 0, 0)),
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
    "total: a failed key adds no more": (TOTAL, (fail(b"a", 7), fire(b"a", 10)), (PENDING, 0, 0, 0)),
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
    """The same whether the events come after the registration or between its mark and its arrival."""
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
    assert rig.arena.count("pending", 0) == 0, "an event without a limit settles it, with nobody to tell"
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
