"""KAFKA.md, point by point, by its codes: what Kafka's timer and purgatory do, timerd does in its own shape or better.

Points that need a thread, a lock or a reaper (T7's waiting, T11, T13, P6..P9) have no counterpart: one conductor, no
lock. Points that say how Kafka falls short (T12's early firing, T8's empty wake-up, P5's purge) are tested as *better*.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from commands import Key, KeyAct, Register
from harness import BUDGET, MS, START_NS, Client, Rig, S, advance, cancel, cancel_for_key, fail, fire, reschedule
from timerd.core import NEVER
from timerd_shm.fields import size_of, struct_of, unpack
from timerd_shm.layout import SPAN, Outcome, Region
from timerd_shm.limits import NO_DEADLINE
from timerd_shm.wire import CommandHeader, CommandKind, RegisterCommand, RegisterFlag, ReportHeader

K = Key(b"k")


def after(timeout_ns: int, *keys: Key) -> Register:
    return Register(keys or (K,), timeout_ns=timeout_ns)


def gauges(rig: Rig) -> tuple[int, int]:
    """Kafka's numDelayed and watched."""
    return rig.arena.count("pending", 0), rig.arena.count("watched", 0)


# 1. Timer -------------------------------------------------------------------------------------------------------------


def test_T1_the_deadline_is_the_call_plus_the_timeout_however_late_it_arrives() -> None:
    rig = Rig()
    client = rig.client()
    number = client.issue(Register((K,), timeout_ns=10 * MS, registered_ns=rig.now_ns))
    rig.turn(rig.now_ns + 7 * MS)
    rig.turn(START_NS + 10 * MS)
    told = client.outcome(number)
    assert told is not None
    assert (told.deadline_ns, told.settled_ns) == (START_NS + 10 * MS, START_NS + 10 * MS)


def test_T2_overdue_operations_expire_at_once() -> None:
    rig = Rig()
    client = rig.client()
    for late in range(1, 6):
        client.issue(Register((K,), timeout_ns=0, registered_ns=rig.now_ns - late * MS))
    rig.turn()
    assert Counter(told.state for told in client.told) == {Outcome.EXPIRED: 5}
    assert [told.settled_ns - told.deadline_ns for told in client.told] == [late * MS for late in range(1, 6)]


def test_T3_due_is_judged_by_the_turn_s_clock_not_by_where_the_wheel_stands() -> None:
    """A wheel that was not moved for a while still puts a new operation where it belongs."""
    rig = Rig()
    client = rig.client()
    rig.turn(rig.now_ns + 777 * MS)
    number = rig.do(client, after(5 * MS))
    rig.turn(rig.now_ns + 5 * MS)
    assert client.state(number) is Outcome.EXPIRED


def test_T4_every_operation_expires_exactly_once() -> None:
    """Kafka's own multiset: delays 0..4, each of 10..99 twice, 100..499."""
    rig = Rig(capacity=2048)
    client = rig.client()
    delays = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    assert len(delays) == 585
    random.Random(4).shuffle(delays)
    numbers = {client.issue(after(delay * MS)): delay for delay in delays}
    for tick in range(500):
        rig.turn(START_NS + tick * MS)
    assert sorted(told.command for told in client.told) == sorted(numbers)
    assert all(told.settled_ns == START_NS + numbers[told.command] * MS for told in client.told)


def test_T5_rescheduling_is_a_move_not_a_second_entry() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, after(5 * MS))
    for timeout in (50, 5000, 1, 70, 20):
        rig.do(client, reschedule(number, timeout * MS))
        assert sum(bucket.count for bucket in rig.arena.all_records(Region.BUCKETS)) == 1
    rig.turn(rig.now_ns + 10_000 * MS)
    assert [told.command for told in client.told] == [number]


def test_T6_cancelling_is_idempotent_and_too_late_after_the_end() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, after(5 * MS))
    answers = [rig.do(client, cancel(number, wait=True)) for _ in range(2)]
    expired = rig.do(client, after(5 * MS))
    rig.turn(rig.now_ns + 5 * MS)
    answers.append(rig.do(client, cancel(expired, wait=True)))
    answers.append(rig.do(client, cancel(4711, wait=True)))
    assert [answer.value for answer in client.answers] == [1, 0, 0, 0]
    assert [answer.command for answer in client.answers] == answers
    assert [told.state for told in client.told] == [Outcome.CANCELLED, Outcome.EXPIRED]


def test_T7_there_is_no_wake_up_per_tick() -> None:
    rig = Rig()
    client = rig.client()
    assert rig.core.next_wake_ns() == NEVER
    rig.do(client, after(100 * MS))
    assert rig.core.next_wake_ns() == START_NS + 100 * MS


def test_T8_a_bucket_whose_operations_were_cancelled_costs_nothing() -> None:
    rig = Rig()
    client = rig.client()
    first = client.issue(after(100 * MS))
    for _ in range(9):
        client.issue(after(100 * MS))
    rig.turn()
    rig.do(client, *(cancel(number) for number in range(first, first + 10)))
    assert rig.core.next_wake_ns() == NEVER


def test_T9_the_number_of_pending_ones_falls_at_once() -> None:
    rig = Rig()
    client = rig.client()
    for timeout in (5, 500, 50_000):
        rig.do(client, after(timeout * MS))
    assert gauges(rig)[0] == 3
    rig.do(client, cancel(2))
    assert gauges(rig)[0] == 2
    rig.turn(rig.now_ns + 5 * MS)
    assert gauges(rig)[0] == 1
    rig.turn(START_NS + 49_999 * MS)  # cascaded on the way: the number stays
    assert gauges(rig)[0] == 1


def test_T10_buckets_expire_in_order_and_within_one_in_order_of_registration() -> None:
    rig = Rig()
    client = rig.client()
    for timeout in (9, 5, 9, 5, 7, 5):
        client.issue(after(timeout * MS))
    rig.turn()
    rig.turn(rig.now_ns + 20 * MS)
    assert [told.command for told in client.told] == [2, 4, 6, 5, 1, 3]


def test_T12_never_early_not_even_by_a_nanosecond() -> None:
    rig = Rig(now_ns=START_NS + MS - 1)
    client = rig.client()
    number = rig.do(client, after(1))
    rig.turn(START_NS + MS)
    assert client.state(number) is Outcome.EXPIRED
    number = rig.do(client, after(MS + 1))
    rig.turn(START_NS + 2 * MS)
    assert client.state(number) is Outcome.NONE


# 2. Task list ---------------------------------------------------------------------------------------------------------


def test_L2_moving_between_buckets_leaves_the_number_as_it_was() -> None:
    rig = Rig()
    client = rig.client()
    for _ in range(10):
        client.issue(after(10 * MS))
    rig.turn()
    rig.do(client, *(reschedule(number, 20 * MS) for number in range(1, 5)))
    rig.do(client, *(reschedule(number, 30 * MS) for number in range(5, 11)))
    sizes = sorted(bucket.count for bucket in rig.arena.all_records(Region.BUCKETS) if bucket.count)
    assert (sizes, gauges(rig)[0]) == ([4, 6], 10)
    rig.check()


def test_L3_cancelling_all_of_one_bucket_leaves_the_others() -> None:
    rig = Rig()
    client = rig.client()
    for number in range(20):
        client.issue(after((10 + 10 * (number % 2)) * MS))
    rig.turn()
    rig.do(client, *(cancel(number) for number in range(1, 21, 2)))
    rig.turn(rig.now_ns + 30 * MS)
    assert Counter(told.state for told in client.told) == {Outcome.CANCELLED: 10, Outcome.EXPIRED: 10}
    assert {told.command % 2 for told in client.told if told.state is Outcome.EXPIRED} == {0}


def test_L4_a_second_removal_counts_nothing() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(10 * MS), after(10 * MS))
    rig.do(client, cancel(1), cancel(1), fire(b"other"), cancel(1))
    assert gauges(rig) == (1, 1)
    rig.check()


# 3. Timing wheel ------------------------------------------------------------------------------------------------------


def test_W1_W2_an_operation_lies_on_the_level_that_its_distance_asks_for() -> None:
    for level in range(5):
        rig = Rig()
        rig.do(rig.client(), after(SPAN ** (level + 1) * MS))
        buckets = rig.arena.all_records(Region.BUCKETS)
        occupied = [index // (2 * SPAN) for index, bucket in enumerate(buckets) if bucket.count]
        assert occupied == [level], f"{SPAN ** (level + 1)} ticks lie on level {occupied}"


def test_W3_a_clock_that_goes_back_moves_nothing() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(20 * MS))
    rig.turn(rig.now_ns + 10 * MS)
    tick = rig.arena.header.wheel_tick
    rig.core.begin_turn(START_NS)
    rig.core.advance(START_NS, BUDGET)
    rig.core.end_turn(START_NS)
    assert rig.arena.header.wheel_tick == tick
    rig.turn(START_NS + 20 * MS)
    assert len(client.told) == 1


def test_W4_precision_is_one_tick_whatever_the_delay() -> None:
    rig = Rig()
    client = rig.client()
    delays = [SPAN**level + level for level in range(1, 6)]
    numbers = {client.issue(after(delay * MS)): delay for delay in delays}
    rig.turn()
    while (wake := rig.core.next_wake_ns()) != NEVER:
        rig.turn(wake)
    assert {told.command: (told.settled_ns - START_NS) // MS for told in client.told} == numbers


# 4. Delayed operation -------------------------------------------------------------------------------------------------


def test_O1_completes_at_most_once() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = rig.do(a, after(5 * MS))
    b.issue(fire(b"k", value=b"b's"))
    a.issue(fire(b"k", value=b"a's"))
    a.issue(cancel(number))
    rig.turn(rig.now_ns + 5 * MS)
    assert len(a.told) == 1
    assert a.told[0].state is Outcome.COMPLETED


def test_O2_an_operation_completed_in_time_never_expires() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, after(20 * MS))
    other = rig.do(client, after(20 * MS, Key(b"other")))
    rig.turn(rig.now_ns + 10 * MS)
    rig.do(client, fire(b"k"))
    rig.turn(rig.now_ns + 10 * MS)
    assert (client.state(number), client.state(other)) == (Outcome.COMPLETED, Outcome.EXPIRED)


def test_O4_try_or_else_watch_never_misses_what_comes_between() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()  # mark, try (it fails), else: watch
    rig.do(b, fire(b"k"))
    assert a.state(rig.do(a, Register((K,), timeout_ns=S, mark=mark))) is Outcome.COMPLETED
    assert gauges(rig) == (0, 0), "completed on the way in: not watched, no timer"


def test_O5_a_state_change_followed_by_a_check_is_never_lost() -> None:
    """100 operations, 20 checks each; the last check finds the condition true."""
    rig = Rig(capacity=256)
    owner, checkers = rig.client(), [rig.client() for _ in range(3)]
    keys = [b"%d" % number for number in range(100)]
    choose = random.Random(5)
    for key in keys:
        owner.issue(Register((Key(key, 20),), timeout_ns=S))
    rig.turn()
    for check in range(1, 21):
        for key in choose.sample(keys, len(keys)):
            choose.choice(checkers).issue(advance(key, check))
        rig.turn()
        assert len(owner.told) == (100 if check == 20 else 0)


# 5. Purgatory ---------------------------------------------------------------------------------------------------------


def test_P1_an_operation_without_keys_is_refused() -> None:
    rig = Rig()
    client = rig.client()
    assert client.answer(rig.do(client, Register((), timeout_ns=S))) is not None


def test_P2_a_check_completes_in_insertion_order_and_counts() -> None:
    rig = Rig()
    client = rig.client()
    counts = [rig.do(client, fire(b"k", wait=True))]
    number = rig.do(client, Register((K, Key(b"j")), timeout_ns=S, needed=2))
    counts += [rig.do(client, fire(b"k", wait=True)), rig.do(client, fire(b"j", wait=True))]
    counts += [rig.do(client, fire(b"j", wait=True))]
    assert [answer.value for answer in client.answers] == [0, 0, 1, 0]
    assert client.state(number) is Outcome.COMPLETED
    assert rig.arena.in_use()["KEYS"] == 0, "a key that nobody watches is forgotten"


def test_P3_watched_is_exact_at_once() -> None:
    """Kafka's example (1, 2 and 3 keys), without the dead entries that it keeps until they are visited."""
    rig = Rig()
    client = rig.client()
    rig.do(client, after(S, Key(b"1")), after(S, Key(b"1"), Key(b"2")), after(S, Key(b"1"), Key(b"2"), Key(b"3")))
    assert gauges(rig) == (3, 6)
    rig.do(client, cancel(2))
    assert gauges(rig) == (2, 4)
    rig.do(client, fire(b"3"))
    assert gauges(rig) == (1, 1)
    rig.do(client, fire(b"1"))
    assert gauges(rig) == (0, 0)


def test_P4_cancel_for_key_settles_its_watchers_in_order_and_no_others() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(S, Key(b"1")), after(S, Key(b"2")), after(S, Key(b"2"), Key(b"1")))
    answer = client.answer(rig.do(client, cancel_for_key(b"1", wait=True)))
    assert answer is not None and answer.value == 2
    assert [(told.command, told.state) for told in client.told] == [(1, Outcome.CANCELLED), (3, Outcome.CANCELLED)]
    assert gauges(rig) == (1, 1)
    rig.turn(rig.now_ns + S)
    assert [told.state for told in client.told] == [Outcome.CANCELLED, Outcome.CANCELLED, Outcome.EXPIRED]
    answer = client.answer(rig.do(client, cancel_for_key(b"unknown", wait=True)))
    assert answer is not None and answer.value == 0


def test_P5_nothing_is_left_to_purge() -> None:
    """2,000 operations on a hot and a cold key each: what settles by one key is gone from the other."""
    rig = Rig(capacity=8192)
    client = rig.client()
    empty = rig.arena.in_use()
    for number in range(2000):
        client.issue(after(S, Key(b"cold %d" % (number % 100)), Key(b"hot %d" % (number % 7))))
    rig.turn()
    assert gauges(rig) == (2000, 4000)
    rig.do(client, *(fire(b"hot %d" % number) for number in range(7)))
    assert gauges(rig) == (0, 0)
    rig.acknowledge()
    assert rig.arena.in_use() == empty


def test_P7_P10_P11_purgatories_are_named_and_counted_apart() -> None:
    rig = Rig(purgatories=3)
    client = rig.client()
    for name in (b"produce", b"fetch"):
        rig.do(client, Register((K, Key(b"j")), timeout_ns=S, purgatory=rig.core.purgatory(name)))
    fetch = rig.core.purgatory(b"fetch")
    rig.do(client, KeyAct(CommandKind.FIRE, b"k", purgatory=fetch))
    found = [[rig.arena.count(name, p) for name in ("pending", "watched", "completed")] for p in (1, 2)]
    assert found == [[1, 2, 0], [0, 0, 1]]


def test_P9_a_restart_neither_completes_nor_expires_anything() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(S), after(NO_DEADLINE), Register((Key(b"p", 5),), timeout_ns=S))
    rig.restart()
    assert gauges(rig) == (3, 3)
    rig.turn()
    assert not client.told
    rig.do(client, fire(b"k"), advance(b"p", 5))
    assert [told.command for told in client.told] == [1, 2, 3]


# 7. raft --------------------------------------------------------------------------------------------------------------


def test_R1_thresholds_are_reached_in_order_and_the_announcement_stops_at_the_first_that_is_not() -> None:
    rig = Rig()
    client = rig.client()
    targets = {rig.do(client, Register((Key(b"offset", target),), timeout_ns=S)): target for target in (3, 1, 5)}
    reached = []
    for watermark in range(1, 6):
        told = len(client.told)
        rig.do(client, advance(b"offset", watermark))
        reached.append([targets[each.command] for each in client.told[told:]])
    assert reached == [[1], [], [3], [], [5]]


def test_R1_an_announcement_touches_only_what_it_completes() -> None:
    rig = Rig(capacity=8192)
    client = rig.client()
    for target in range(1, 2001):
        client.issue(Register((Key(b"offset", target),), timeout_ns=S))
    rig.turn()
    client.issue(advance(b"offset", 3))
    assert rig.turn() < 32
    assert [told.command for told in client.told] == [1, 2, 3]


def test_R2_all_waiting_ones_can_be_completed_or_failed_together() -> None:
    rig = Rig()
    client = rig.client()
    offsets = [Register((Key(b"offset", target),), timeout_ns=S) for target in (3, 1, 5)]
    rig.do(client, *offsets, advance(b"offset", (1 << 64) - 1))
    assert Counter(told.state for told in client.told) == {Outcome.COMPLETED: 3}
    rig.do(client, KeyAct(CommandKind.FORGET, b"offset"), *offsets, fail(b"offset", 6))
    assert Counter(told.state for told in client.told) == {Outcome.COMPLETED: 3, Outcome.FAILED: 3}
    assert gauges(rig) == (0, 0)


def test_R3_each_wait_has_its_own_deadline() -> None:
    rig = Rig()
    client = rig.client()
    numbers = [rig.do(client, Register((Key(b"offset", 9),), timeout_ns=t * MS)) for t in (5, 3, 1, 4, 2)]
    for tick in range(1, 6):
        rig.turn(START_NS + tick * MS)
    assert [numbers.index(told.command) for told in client.told] == [2, 4, 1, 3, 0]
    assert gauges(rig) == (0, 0)


# KAFKA-664 ------------------------------------------------------------------------------------------------------------

BATCH, BATCHES, FRAME = 50_000, 20, 12_500


def unfired(client: Client, rig: Rig, first: int) -> bytes:
    """A frame of registrations, each on a key of its own that nobody ever fires."""
    size = size_of(RegisterCommand) + 2 + 12
    register = struct_of(RegisterCommand).pack(
        *RegisterCommand(
            kind=CommandKind.REGISTER,
            purgatory=0,
            flags=RegisterFlag.NO_MARK,
            length=size,
            condition=0,
            needed=1,
            keys=1,
            orphans=0,
            payload_length=0,
            registered_ns=0,
            timeout_ns=200 * MS,
            mark_sequence=0,
            mark_command=0,
            total=0,
        )
    ) + bytes((12, 0))
    header = unpack(CommandHeader, memoryview(client.frame([(first, fire(b"k"))])))._replace(count=FRAME)
    keys = (b"%012d" % number for number in range(first, first + FRAME))
    return struct_of(CommandHeader).pack(*header) + b"".join(register + key for key in keys)


def test_KAFKA_664_a_million_operations_on_keys_without_events_leave_nothing_behind() -> None:
    rig = Rig(capacity=131_072, nodes=131_072, blocks=1024)
    client = rig.client()
    empty, started, expired = rig.arena.in_use(), time.perf_counter(), 0
    for _ in range(BATCHES):
        for _ in range(BATCH // FRAME):
            rig.core.begin_turn(rig.now_ns)
            frame = unfired(client, rig, rig.core.last_command(client.slot) + 1)
            assert rig.apply(client, frame) == rig.module.APPLIED
            rig.core.end_turn(rig.now_ns)
        assert gauges(rig) == (BATCH, BATCH)
        assert rig.arena.in_use()["KEYS"] == BATCH
        rig.now_ns += 200 * MS
        rig.core.begin_turn(rig.now_ns)
        assert not rig.core.advance(rig.now_ns, BUDGET)
        told = [unpack(ReportHeader, memoryview(frame)) for _, frame in rig.core.reports(rig.now_ns, BATCH)]
        expired += sum(header.outcomes for header in told)
        rig.core.acknowledge(client.slot, expired, 0, BUDGET)
        while rig.core.resume(rig.now_ns, BUDGET):
            pass
        rig.core.end_turn(rig.now_ns)
        assert gauges(rig) == (0, 0)
        assert rig.arena.in_use() == empty
    took_s = time.perf_counter() - started
    print(f"{expired} operations expired in {took_s:.1f} s")
    assert expired == BATCHES * BATCH == rig.arena.count("expired", 0)
    assert took_s < 10, f"{took_s:.1f} s"
    assert rig.core.next_wake_ns() == NEVER
