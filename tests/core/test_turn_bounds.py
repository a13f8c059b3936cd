"""Rule 8 of timerd/DESIGN.md.

The work of a turn is bounded in records touched, whatever one command, one death or one tick asks for.
"""

from __future__ import annotations

import math
import random

import pytest

from support.rig.commands import Key, KeyAct, Mark, Register
from support.rig.groups import call, handler
from support.rig.harness import BUDGET, MS, START_NS, Rig, advance, cancel_for_key, fire
from support.rig.rules import (
    CAPACITY,
    EVERY,
    MANY,
    SLACK,
    TURN_BUDGET,
    begin_event,
    crowd,
    finish,
    mass_fire_is_cut_into_turns,
    small_turn,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import REPLAY_WALK_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandKind


def test_mass_fire_is_cut_into_turns() -> None:
    mass_fire_is_cut_into_turns(Rig(capacity=CAPACITY))


def test_mass_death_is_cut_into_turns() -> None:
    rig = Rig(capacity=CAPACITY)
    client = crowd(rig)
    rig.clients.remove(client)
    rig.core.begin_turn(rig.now_ns)
    rig.core.close_client(client.slot, rig.now_ns)
    touched = rig.core.end_turn(rig.now_ns)
    assert touched <= TURN_BUDGET + SLACK, f"close_client touched {touched} records"
    touched = finish(rig, "resume")
    assert max(touched) <= TURN_BUDGET + SLACK, f"a turn touched {max(touched)} records"
    assert (rig.arena.count("pending", 0), rig.arena.count("watched", 0)) == (0, 0)
    assert rig.arena.count("cancelled", 0) == rig.arena.count("orphans_cancelled") == MANY
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


def test_mass_expiry_is_cut_into_turns() -> None:
    rig = Rig(capacity=CAPACITY)
    client = crowd(rig, timeout_ns=5_000 * MS)
    rig.turn(START_NS + 4_999 * MS)
    assert not client.delivered
    rig.now_ns = START_NS + 5_000 * MS
    touched = finish(rig, "advance")
    assert max(touched) <= TURN_BUDGET + SLACK, f"a turn touched {max(touched)} records"
    rig.turn()
    assert sorted(each.command for each in client.delivered) == list(range(1, MANY + 1))
    assert {(each.state, each.settled_ns - each.deadline_ns) for each in client.delivered} == {(Outcome.EXPIRED, 0)}


def test_mass_acknowledgement_is_cut_into_turns() -> None:
    rig = Rig(capacity=CAPACITY)
    client = crowd(rig)
    rig.do(rig.client(), fire(EVERY.name))
    rig.core.begin_turn(rig.now_ns)
    more = rig.core.acknowledge(client.slot, MANY, 0, TURN_BUDGET)
    touched = [rig.core.end_turn(rig.now_ns)]
    assert more
    touched += finish(rig, "resume")
    assert max(touched) <= TURN_BUDGET + SLACK, f"a turn touched {max(touched)} records"
    assert rig.arena.in_use()["OPS"] == 0
    assert rig.arena.record(Region.CLIENTS, client.slot).acknowledged == MANY


@pytest.mark.long
def test_a_sweep_spreads_a_full_bucket_over_the_ticks_before_it() -> None:
    """Rule 8: no tick moves a large part of all operations, though they all lie in one coarse bucket."""
    many = 20_000  # 1/64 of them is more than what each tick may sweep anyway
    rig = Rig(capacity=4 * many)
    client = rig.client()
    for number in range(many):
        client.issue(Register((EVERY,), timeout_ns=(64 * 200 + number % 64) * MS))
    rig.turn()
    worst = 0
    for tick in range(1, 64 * 201):
        rig.now_ns = START_NS + tick * MS
        rig.core.begin_turn(rig.now_ns)
        assert not rig.core.advance(rig.now_ns, BUDGET)
        worst = max(worst, rig.core.end_turn(rig.now_ns))
    rig.report()
    assert len(client.delivered) == many
    assert worst <= 2 * (many // 64) + SLACK, f"one tick touched {worst} records of {many}"


def test_an_operation_that_comes_due_during_an_event_gets_that_event_first() -> None:
    rig = Rig(capacity=CAPACITY)
    crowd(rig, 5 * TURN_BUDGET)
    late, firer = rig.client(), rig.client()
    watching = rig.do(late, Register((EVERY,), timeout_ns=5 * MS))
    both = rig.do(late, Register((EVERY, Key(b"other")), timeout_ns=5 * MS, needed=2))
    elsewhere = rig.do(late, Register((Key(b"other"),), timeout_ns=5 * MS))
    begin_event(rig, firer, KeyAct(CommandKind.FIRE, EVERY.name, value=b"v"))
    rig.now_ns += 6 * MS
    rig.core.begin_turn(rig.now_ns)
    rig.core.advance(rig.now_ns, TURN_BUDGET)
    rig.report()
    rig.core.end_turn(rig.now_ns)
    states = {number: late.outcome(number) for number in (watching, both, elsewhere)}
    assert all(states.values()), f"not all have settled: {states}"
    assert [(each.state, each.satisfied) for each in states.values() if each] == [
        (Outcome.COMPLETED, 1),
        (Outcome.EXPIRED, 1),
        (Outcome.EXPIRED, 0),
    ]
    finish(rig, "resume")
    rig.turn()
    assert len(late.delivered) == 3
    rig.check()


def test_registrations_with_too_old_marks_are_cut_into_turns() -> None:
    rig = Rig(ring_events=2 * REPLAY_WALK_MAX)
    client = rig.client()
    client.mass(fire(EVERY.name), REPLAY_WALK_MAX + 1)
    rig.turn()
    last = client.issued
    for _ in range(10):
        client.issue(Register((EVERY,), mark=Mark(0, 0), mark_by_sequence=True))
    rig.core.begin_turn(rig.now_ns)
    result = rig.core.apply(client.slot, client.frame(), rig.now_ns, TURN_BUDGET)
    touched = rig.core.end_turn(rig.now_ns)
    assert result == rig.module.UNFINISHED, f"{rig.core.last_command(client.slot) - last} walks in one turn"
    assert REPLAY_WALK_MAX <= touched <= REPLAY_WALK_MAX + SLACK, f"a walk touched {touched} records"
    rig.turn()
    assert [answer.code for answer in client.answers] == [ErrorCode.MARK_TOO_OLD] * 10


def test_no_other_command_is_applied_between_the_parts_of_an_event() -> None:
    rig = Rig(capacity=CAPACITY)
    crowd(rig, 5 * TURN_BUDGET)
    other, firer = rig.client(), rig.client()
    begin_event(rig, firer, fire(EVERY.name))
    other.issue(fire(b"next"))
    newest = rig.core.newest
    rig.core.begin_turn(rig.now_ns)
    assert rig.core.apply(other.slot, other.frame(), rig.now_ns, TURN_BUDGET) == rig.module.UNFINISHED
    rig.core.end_turn(rig.now_ns)
    assert (rig.core.last_command(other.slot), rig.core.newest) == (0, newest)
    finish(rig, "resume")
    rig.turn()
    assert rig.core.newest == newest + 1


def test_a_kill_between_the_parts_of_an_event_loses_no_operation() -> None:
    rig = Rig(capacity=CAPACITY)
    watchers, firer = crowd(rig, 5 * TURN_BUDGET), rig.client()
    begin_event(rig, firer, KeyAct(CommandKind.FIRE, EVERY.name, wants_answer=True))
    small_turn(rig, "resume")
    rig.restart()
    rig.turn()
    assert [each.command for each in watchers.delivered] == list(range(1, 5 * TURN_BUDGET + 1))
    assert [answer.value for answer in firer.answers] == [5 * TURN_BUDGET]
    rig.check()


def test_reports_are_bounded_and_complete() -> None:
    rig = Rig(capacity=CAPACITY)
    client = crowd(rig)
    client.rig.core.begin_turn(rig.now_ns)
    firer = rig.client()
    firer.issue(fire(EVERY.name))
    rig.apply(firer, firer.frame())
    parts = 0
    while rig.core.has_reports():
        for slot, frame in rig.core.reports(rig.now_ns, 512):
            if slot == client.slot:
                delivered = len(client.delivered)
                client.receive(bytes(frame))
                assert len(client.delivered) - delivered <= 512
                parts += 1
    rig.core.end_turn(rig.now_ns)
    assert len(client.delivered) == MANY
    assert parts >= MANY // 512


def test_each_node_that_the_heap_of_watermark_watchers_touches_counts_as_a_record(rng: random.Random) -> None:
    """In an earlier version these nodes did not count: during an advance for 1.9 million watchers, turns took 67 ms.

    It also put the heap in order again after each watcher: others waited 150 ms during an advance for 120,000 watchers.
    """
    rig = Rig(capacity=CAPACITY)
    client, advancer = rig.client(), rig.client()
    for target in rng.sample(range(1, 1_000_000), MANY):
        client.issue(Register((Key(b"mark", target),), timeout_ns=600_000 * MS))
    rig.turn()
    touched = [begin_event(rig, advancer, KeyAct(CommandKind.ADVANCE, b"mark", 1_000_000))]
    more = True
    while more:
        more, records = small_turn(rig, "resume")
        touched.append(records)
    assert max(touched) <= TURN_BUDGET + SLACK, f"a turn touched {max(touched)} records"
    # Records of the heap: `in_order` to twice as many for the first 1,024 watchers; at most `others` for the rest.
    in_order, others = 1_024 * math.log2(MANY), 2 * MANY
    assert in_order + 4 * MANY <= sum(touched) <= 2 * in_order + 4 * MANY + others, f"{sum(touched)} records"
    rig.turn()
    assert len(client.delivered) == MANY
    rig.check()


@pytest.mark.long
def test_an_event_on_a_watermark_reaches_the_same_watchers_whatever_comes_between_its_parts(rng: random.Random) -> None:
    """The first 1,024 are reached in order of target. Meanwhile some watchers expire, and the daemon restarts."""
    rig = Rig(capacity=CAPACITY)
    client, advancer = rig.client(), rig.client()
    targets = [rng.randrange(1, 1_000) for _ in range(MANY)]
    short = set(rng.sample(range(MANY), MANY // 8))
    for number, target in enumerate(targets):
        client.issue(Register((Key(b"mark", target),), timeout_ns=20 * MS if number in short else 600_000 * MS))
    rig.turn()
    reached = 0
    for act in (advance(b"mark", 400), advance(b"mark", 700), cancel_for_key(b"mark")):
        before = len(client.delivered)
        begin_event(rig, advancer, act)
        while rig.core.is_delivering:
            small_turn(rig, rng.choice(("resume", "resume", "advance")))
            rig.now_ns += MS * (rng.random() < 0.1)
            if rng.random() < 0.05:
                rig.check()
            if rng.random() < 0.02:
                rig.restart()
        rig.turn()
        told = [each for each in client.delivered[before:] if each.state is not Outcome.EXPIRED]
        expected = [
            number + 1
            for number, target in enumerate(targets)
            if reached < target <= (act.amount if act.kind is CommandKind.ADVANCE else 1_000)
        ]
        expired = {each.command for each in client.delivered if each.state is Outcome.EXPIRED}
        assert sorted(each.command for each in told) == sorted(set(expected) - expired)
        in_order = [targets[each.command - 1] for each in told[:100]]
        assert in_order == sorted(in_order)
        reached = act.amount
        rig.check()
    assert rig.arena.in_use()["OPS"] == len(client.delivered)


def test_calls_of_a_group_wait_for_no_walk_through_another_groups_calls() -> None:
    """The first group has calls that no member handles, and its member changes its handlers before each turn."""
    rig = Rig(capacity=CAPACITY, quota_operations=CAPACITY)
    busy = handler(rig, b"other", group=b"first")
    asker = rig.client(group=b"first")
    for _ in range(MANY):
        asker.issue(call(b"unhandled"))
    rig.turn()
    worker = handler(rig, b"job", most=100, group=b"second")
    for number in range(20):
        assert rig.core.set_calls(busy.slot, 1, 0, [b"other%d" % number], rig.now_ns) == 1
        worker.issue(call(b"job"))
        rig.core.begin_turn(rig.now_ns)
        rig.core.apply(worker.slot, worker.frame(), rig.now_ns, BUDGET)
        rig.core.resume(rig.now_ns, TURN_BUDGET)
        rig.core.advance(rig.now_ns, TURN_BUDGET)
        rig.core.resume(rig.now_ns, TURN_BUDGET)
        rig.report()
        rig.core.end_turn(rig.now_ns)
        small_turn(rig, "resume")
        rig.report()
        assert len(worker.delivered_for_group) == number + 1, f"{number + 1} calls were made"


def test_the_blocks_of_a_value_that_is_freed_count_as_records() -> None:
    """In an earlier version a freed operation was one record for any payload. So large payloads held up a turn."""
    rig = Rig(capacity=CAPACITY)
    client = rig.client()
    for _ in range(4):
        client.issue(Register((Key(b"k"),), timeout_ns=MS, payload=bytes(100 * BLOCK_DATA)))
    rig.turn()
    rig.turn(rig.now_ns + 2 * MS)
    assert len(client.delivered) == 4
    rig.core.begin_turn(rig.now_ns)
    rig.core.acknowledge(client.slot, client.delivered[-1].number, 0, BUDGET)
    touched = rig.core.end_turn(rig.now_ns)
    assert rig.arena.in_use()["BLOCKS"] == 0
    assert touched >= 4 * 99, f"{touched} records were counted, and 400 blocks were freed"


def test_a_hello_with_many_pending_operations_looks_at_each_refusal_once() -> None:
    """An earlier version compared each of these operations with each refusal.

    So a hello with 100,000 operations held up a turn for 0.3 s.
    """
    rig = Rig()
    client = rig.client()
    for _ in range(50):
        rig.do(client, Register((), timeout_ns=MS))
    before = rig.core.touched
    waits = list(range(1, 1_000))
    assert rig.core.unknown_waits(client.slot, waits) == waits[50:]
    assert rig.core.touched - before <= 2_000
