"""The timing wheel, driven by frames: late by less than a tick, never early, no wake-up without need.

These are rules 3 and 11 of timerd/DESIGN.md.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from support.rig.commands import Key, Register
from support.rig.harness import MS, START_NS, US, Rig, S, cancel, fire, reschedule
from support.rig.rules import idle_costs_nothing, wakeups
from timerd.core import NEVER
from timerd_shm.declare.fields import offset_of, size_of
from timerd_shm.declare.layout import FREE_LINKS, LEVELS, SPAN, Histogram, Region
from timerd_shm.declare.limits import CALL_AHEAD_NS_MAX, NO_DEADLINE, TIMEOUT_NS_MAX
from timerd_shm.declare.records import OpRecord
from timerd_shm.declare.states import OpState, Outcome

KEY = (Key(b"never fired"),)
TICKS = (100 * US, MS)


def expiry_tick(deadline_ns: int, tick_ns: int) -> int:
    """The first tick that begins at the deadline or later."""
    return -(-deadline_ns // tick_ns)


def expire_at(rig: Rig, timeouts_ns: Sequence[int], steps: Sequence[int]) -> dict[int, int]:
    """Register these timeouts, and make turns after `steps` ticks. Returns the tick of each timeout's expiry."""
    start_ns, tick_ns = rig.now_ns, rig.core.tick_ns
    client = rig.client()
    numbers = {client.issue(Register(KEY, timeout_ns=timeout)): timeout for timeout in timeouts_ns}
    rig.turn()
    for step in steps:
        rig.turn((start_ns // tick_ns + step) * tick_ns)
        rig.acknowledge(client)
    rig.check()
    return {
        numbers[delivered.command]: delivered.settled_ns // tick_ns - start_ns // tick_ns
        for delivered in client.delivered
    }


# index arithmetic -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", range(0, 2 * SPAN + 3, 13))
def test_every_deadline_of_three_spans_expires_in_its_tick_from_any_phase(phase: int) -> None:
    """Deadlines of level 0 and the first ones of level 1. Each deadline d expires exactly at tick ceil(d / tick)."""
    rig = Rig(capacity=1024, now_ns=START_NS + phase * MS)
    timeouts = [ticks * MS for ticks in range(3 * SPAN)]
    found = expire_at(rig, timeouts, range(1, 3 * SPAN))
    assert found == {timeout: timeout // MS for timeout in timeouts}, f"phase={phase}"


@pytest.mark.parametrize("level", range(1, LEVELS))
def test_deadlines_around_the_edges_of_every_level_expire_in_their_tick(level: int) -> None:
    """Deadlines a tick before, on and after each edge of a bucket, a span and two spans. A turn is made at each."""
    width = SPAN**level  # of a bucket, in ticks
    ticks = sorted(
        {
            buckets * width + rest
            for buckets in (1, 2, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN - 1, 2 * SPAN, 2 * SPAN + 1)
            for rest in (-1, 0, 1)
            if (buckets * width + rest) * MS < TIMEOUT_NS_MAX
        }
    )
    for offset in (0, 1, width - 1, width // 2):
        rig = Rig(now_ns=(START_NS // MS + offset) * MS)
        stops = sorted({tick + near for tick in ticks for near in (-1, 0)})
        found = expire_at(rig, [tick * MS for tick in ticks], stops)
        assert found == {tick * MS: tick for tick in ticks}, f"level={level}, offset={offset}"


def test_a_deadline_within_a_tick_rounds_up() -> None:
    for tick_ns in TICKS:
        for now in (0, 1, tick_ns - 1):
            for timeout in (1, tick_ns - 1, tick_ns, tick_ns + 1):
                rig = Rig(tick_ns=tick_ns, now_ns=START_NS + now)
                client = rig.client()
                number = rig.do(client, Register(KEY, timeout_ns=timeout))
                due = expiry_tick(START_NS + now + timeout, tick_ns)
                rig.turn(due * tick_ns - 1)
                assert client.state(number) is Outcome.NONE, f"early: tick={tick_ns}, now={now}, timeout={timeout}"
                rig.turn(due * tick_ns)
                assert client.state(number) is Outcome.EXPIRED, f"late: tick={tick_ns}, now={now}, timeout={timeout}"


# random programs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tick_ns", TICKS)
@pytest.mark.parametrize("seed", range(3))
def test_random_timeouts_cancels_and_reschedules_expire_in_their_tick(seed: int, tick_ns: int) -> None:
    choose = random.Random(seed)
    rig = Rig(capacity=512, tick_ns=tick_ns, now_ns=START_NS + choose.randrange(10**12))
    client = rig.client()
    deadlines: dict[int, int] = {}
    for step in range(250):
        for _ in range(choose.randrange(6)):
            if len(deadlines) > 200:
                break
            timeout = choose.randrange(tick_ns * SPAN ** choose.randrange(1, 5))
            deadlines[client.issue(Register(KEY, timeout_ns=timeout))] = rig.now_ns + timeout
        for number in choose.sample(sorted(deadlines), min(2, len(deadlines))):
            if choose.random() < 0.3:
                client.issue(cancel(number))
                del deadlines[number]
            elif choose.random() < 0.5:
                timeout = choose.randrange(tick_ns, tick_ns * SPAN ** choose.randrange(1, 4))
                client.issue(reschedule(number, timeout, registered_ns=rig.now_ns))
                deadlines[number] = rig.now_ns + timeout
        delivered = len(client.delivered)
        rig.turn()  # at the time of the registrations
        rig.turn(rig.now_ns + choose.randrange(tick_ns * SPAN ** choose.randrange(1, 4)))
        due = {n for n, deadline in deadlines.items() if expiry_tick(deadline, tick_ns) <= rig.now_ns // tick_ns}
        expired = {each.command for each in client.delivered[delivered:] if each.state is Outcome.EXPIRED}
        assert expired == due, f"seed={seed}, step={step}, tick={tick_ns}: only one side has {expired ^ due}"
        for number in due:
            del deadlines[number]
        wake = rig.core.next_wake_ns()
        for deadline in deadlines.values():
            assert wake <= expiry_tick(deadline, tick_ns) * tick_ns, f"seed={seed}: wakes {wake}, due {deadline}"
        rig.acknowledge(client)
        if step % 10 == 0:
            rig.check()


@pytest.mark.long
def test_sweeps_leave_no_operation_behind_when_every_tick_is_visited() -> None:
    """A turn in each tick, through several buckets of level 1 and one of level 2, while new operations arrive."""
    choose = random.Random(8)
    rig = Rig(capacity=2048)
    client = rig.client()
    due: dict[int, int] = {}
    for tick in range(SPAN * SPAN + 3 * SPAN):
        if tick < SPAN * SPAN and len(due) < 900:
            timeout = choose.randrange(1, choose.choice((3, SPAN, 3 * SPAN, 2 * SPAN * SPAN - tick))) * MS
            due[client.issue(Register(KEY, timeout_ns=timeout))] = rig.now_ns // MS + timeout // MS
        delivered = len(client.delivered)
        rig.turn()
        rig.turn(rig.now_ns + MS)
        for each in client.delivered[delivered:]:
            assert due.pop(each.command) == rig.now_ns // MS, f"tick={tick}: {each}"
        assert not [number for number, at in due.items() if at <= rig.now_ns // MS], f"tick={tick}: left behind"
        if client.delivered[delivered:]:
            rig.acknowledge(client)
    rig.check()


def test_operations_of_one_bucket_expire_in_the_order_of_their_ticks() -> None:
    rig = Rig(capacity=512)
    client = rig.client()
    timeouts = random.Random(3).sample(range(1, 2000), 200)
    due = {client.issue(Register(KEY, timeout_ns=timeout * MS)): timeout for timeout in timeouts}
    rig.turn()
    rig.turn(rig.now_ns + 2000 * MS)  # one jump over all of them
    order = [due[each.command] for each in client.delivered]
    assert order == sorted(timeouts)


def test_a_wrong_hint_changes_nothing() -> None:
    """A hint only says which record to prefetch, both in operations and in free records. The core never trusts it."""
    choose = random.Random(12)
    rig = Rig(capacity=512)
    client = rig.client()
    at, size = offset_of(OpRecord, "prefetch_hint"), size_of(OpRecord)
    free_hint = offset_of(OpRecord, FREE_LINKS[Region.OPS]) + 4
    due: dict[int, int] = {}
    for _ in range(12):
        for _ in range(8):
            timeout = choose.randrange(1, 3 * SPAN * SPAN) * MS
            due[client.issue(Register(KEY, timeout_ns=timeout))] = rig.now_ns // MS + timeout // MS
        rig.turn()
        begin = rig.arena.region(Region.OPS).offset
        for index, op in enumerate(rig.arena.records(Region.OPS)):
            struct.pack_into("<I", rig.memory, begin + index * size + at, choose.getrandbits(32))
            if op.state == OpState.FREE:
                struct.pack_into("<I", rig.memory, begin + index * size + free_hint, choose.getrandbits(32))
        rig.turn(rig.now_ns + 500 * MS)
        rig.acknowledge(client)
    rig.turn(rig.now_ns + 3 * SPAN * SPAN * MS)
    expired = {each.command: each.settled_ns // MS for each in client.delivered}
    assert expired.keys() == due.keys()
    assert all(at >= due[command] for command, at in expired.items())
    rig.check()


# the clock ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "jump_ns", (MS, SPAN * MS, (SPAN * SPAN - 1) * MS, S, 3600 * S, 40 * 86_400 * S, TIMEOUT_NS_MAX)
)
def test_an_idle_wheel_jumps_and_expires_on_time_afterwards(jump_ns: int) -> None:
    rig = Rig()
    rig.turn(rig.now_ns + jump_ns)
    found = expire_at(rig, [0, MS, 70 * MS, 5000 * MS], range(1, 5002))
    assert found == {0: 0, MS: 1, 70 * MS: 70, 5000 * MS: 5000}
    assert rig.core.next_wake_ns() == NEVER


def test_a_clock_that_jumps_over_everything_expires_everything_once() -> None:
    rig = Rig(capacity=256)
    client = rig.client()
    numbers = [client.issue(Register(KEY, timeout_ns=3**power)) for power in range(2, 37)]
    rig.turn()
    rig.turn(rig.now_ns + TIMEOUT_NS_MAX + S)
    assert sorted(each.command for each in client.delivered) == numbers
    assert {each.state for each in client.delivered} == {Outcome.EXPIRED}
    rig.check()


def test_a_clock_that_stands_still_expires_nothing() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, Register(KEY, timeout_ns=1))
    for _ in range(3):
        rig.turn(rig.now_ns)
    assert not client.delivered


def test_timeout_zero_tries_and_expires_in_the_same_turn() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, Register(KEY, timeout_ns=0))
    delivered = client.outcome(number)
    assert delivered is not None
    assert delivered.state is Outcome.EXPIRED
    assert delivered.settled_ns - delivered.deadline_ns == 0


def test_a_timeout_of_ten_years_expires_after_ten_years_and_not_a_tick_less() -> None:
    for tick_ns in TICKS:
        rig = Rig(tick_ns=tick_ns)
        client = rig.client()
        number = rig.do(client, Register(KEY, timeout_ns=TIMEOUT_NS_MAX))
        due = expiry_tick(START_NS + TIMEOUT_NS_MAX, tick_ns)
        rig.turn(due * tick_ns - 1)
        assert client.state(number) is Outcome.NONE
        rig.turn(due * tick_ns)
        assert client.state(number) is Outcome.EXPIRED


def test_an_operation_without_a_deadline_is_in_no_bucket_and_never_due() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, Register(KEY, timeout_ns=NO_DEADLINE))
    assert rig.core.next_wake_ns() == NEVER
    assert not any(bucket.count for bucket in rig.arena.all_records(Region.BUCKETS))
    rig.turn(rig.now_ns + 2 * TIMEOUT_NS_MAX)
    assert client.state(number) is Outcome.NONE
    rig.do(client, fire(b"never fired"))
    assert client.state(number) is Outcome.COMPLETED


def test_a_deadline_beyond_the_end_of_time_saturates() -> None:
    """now + timeout past 2^64 must not wrap round to "at once"."""
    now_ns = (1 << 64) - S
    rig = Rig(now_ns=now_ns // MS * MS)
    client = rig.client()
    number = rig.do(client, Register(KEY, timeout_ns=TIMEOUT_NS_MAX))
    rig.turn(rig.now_ns + MS)
    assert client.state(number) in (Outcome.NONE, Outcome.FAILED)
    assert not [each for each in client.delivered if each.state is Outcome.EXPIRED]


def test_a_call_that_arrives_during_the_turn_has_its_whole_timeout() -> None:
    """A turn's time is the time of its beginning. The commands that it reads may have been issued later."""
    rig = Rig()
    client = rig.client()
    called_ns = rig.now_ns + 3 * MS
    number = rig.do(client, Register(KEY, timeout_ns=5 * MS, registered_ns=called_ns))
    moved = rig.do(client, Register(KEY, timeout_ns=S))
    rig.do(client, reschedule(moved, 5 * MS, registered_ns=called_ns))
    foreign = rig.do(client, Register(KEY, timeout_ns=5 * MS, registered_ns=rig.now_ns + 3600 * S))
    rig.turn(called_ns + 4 * MS)
    assert [each.command for each in client.delivered] == [foreign]
    rig.turn(called_ns + 5 * MS)
    assert client.state(number) is client.state(moved) is Outcome.EXPIRED
    rig.check()


def test_the_caller_sets_the_registered_time_and_a_wait_is_never_negative() -> None:
    """A registered time may be up to a second ahead of the turn. A time further ahead comes from another clock."""
    rig = Rig()
    client = rig.client()
    began_ns = rig.now_ns
    ahead, foreign = began_ns + 13 * MS, began_ns + CALL_AHEAD_NS_MAX + 1
    numbers = [
        rig.do(client, Register((Key(b"a"),), timeout_ns=200 * MS, registered_ns=ahead), fire(b"a")),
        rig.do(client, Register((Key(b"b"),), timeout_ns=200 * MS, registered_ns=foreign), fire(b"b")),
        rig.do(client, Register((Key(b"c"),), timeout_ns=200 * MS, registered_ns=began_ns - MS), fire(b"c")),
    ]
    found = [client.outcome(number) for number in numbers]
    called = [each.registered_ns for each in found if each is not None]
    assert called == [ahead, began_ns, began_ns - MS]
    assert [each.deadline_ns - each.registered_ns for each in found if each is not None] == [200 * MS] * 3
    waits = rig.arena.record(Region.HISTOGRAMS, Histogram.WAIT)
    assert (waits.count, waits.max) == (3, MS), "the waits are 0, 0 and 1 ms"
    rig.check()


# rescheduling ---------------------------------------------------------------------------------------------------------


def test_rescheduling_moves_the_deadline_forward_and_back() -> None:
    rig = Rig()
    client = rig.client()
    later = rig.do(client, Register(KEY, timeout_ns=5 * MS))
    sooner = rig.do(client, Register(KEY, timeout_ns=5000 * MS))
    never = rig.do(client, Register(KEY, timeout_ns=5 * MS))
    rig.do(client, reschedule(later, 9 * MS), reschedule(sooner, 2 * MS), reschedule(never, NO_DEADLINE))
    rig.turn(START_NS + 2 * MS)
    assert [each.command for each in client.delivered] == [sooner]
    rig.turn(START_NS + 8 * MS)
    assert client.state(later) is Outcome.NONE
    rig.turn(START_NS + 9 * MS)
    assert client.state(later) is Outcome.EXPIRED
    rig.turn(START_NS + 9000 * MS)
    assert client.state(never) is Outcome.NONE
    rig.check()


def test_rescheduling_into_the_past_expires_in_the_same_turn() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, Register(KEY, timeout_ns=S))
    rig.turn(rig.now_ns + 10 * MS)
    rig.do(client, reschedule(number, MS, registered_ns=rig.now_ns - 5 * MS))
    rig.turn(rig.now_ns + MS)
    delivered = client.outcome(number)
    assert delivered is not None
    assert delivered.state is Outcome.EXPIRED
    assert delivered.deadline_ns == START_NS + 6 * MS


# waking up ------------------------------------------------------------------------------------------------------------


def test_an_idle_wheel_causes_at_most_one_wake_up_in_ten_seconds() -> None:
    idle_costs_nothing(Rig(capacity=1024))


def test_turns_only_at_wake_ups_expire_everything_in_its_tick() -> None:
    choose = random.Random(5)
    rig = Rig(capacity=512)
    client = rig.client()
    due = {}
    for _ in range(200):
        timeout = choose.randrange(1, MS * SPAN ** choose.randrange(1, 4))
        due[client.issue(Register(KEY, timeout_ns=timeout))] = expiry_tick(rig.now_ns + timeout, MS)
    rig.turn()
    wakeups(rig, rig.now_ns + S * 1000)
    assert {each.command: each.settled_ns // MS for each in client.delivered} == due
    assert rig.core.next_wake_ns() == NEVER


def test_a_cancelled_operation_costs_no_wake_up() -> None:
    """Kafka wakes up in vain for a bucket whose tasks were all cancelled (T8 in timerd/DESIGN.md). timerd does not."""
    rig = Rig()
    client = rig.client()
    number = rig.do(client, Register(KEY, timeout_ns=50 * MS))
    rig.do(client, cancel(number))
    assert rig.core.next_wake_ns() == NEVER
