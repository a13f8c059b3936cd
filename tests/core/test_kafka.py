"""Kafka's timer and purgatory, point by point: timerd does the same, or better.

The codes of the points, such as T12, are those of the table in timerd/DESIGN.md.
Points that say how Kafka falls short (T12's early firing, T8's empty wake-up, P5's purge) are tested as *better*.
Points about threads and locks have no counterpart (NO_COUNTERPART), and some points are tested elsewhere (ELSEWHERE).
"""

from __future__ import annotations

import random
import re
from collections import Counter

from support.real.trees import file_of_tests
from support.rig.commands import Key, KeyAct, Register
from support.rig.harness import BUDGET, MS, START_NS, Rig, S, advance, cancel, cancel_for_key, fail, fire, reschedule
from timerctl.show.text import due_row
from timerd.core import NEVER
from timerd_shm.declare.layout import SPAN, Region
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandKind

K = Key(b"k")
CODES = {"T": 14, "L": 7, "W": 6, "O": 6, "P": 11, "R": 7}
NO_COUNTERPART = {
    "T13": "there is no reaper: the conductor waits at a timerfd",
    "T14": "no second timer for tests: these tests move the clock of the real timer",
    "O3": "one writer: an operation has no lock",
    "P8": "a purgatory has no thread of its own",
}
ELSEWHERE = {  # code: where it is tested with real processes
    "T11": "test_daemon_process.py::test_operations_that_came_due_while_no_daemon_ran_expire_at_the_start",
    "O6": "test_client_operations.py::test_after_any_exception_of_a_callback_the_others_run_and_the_client_lives",
}


def after(timeout_ns: int, *keys: Key) -> Register:
    return Register(keys or (K,), timeout_ns=timeout_ns)


def test_every_point_is_tested_or_has_no_counterpart() -> None:
    tested = {code for name in globals() for code in re.findall(r"([TLWOPR]\d+)_", name)}
    assert tested.isdisjoint(ELSEWHERE) and tested.isdisjoint(NO_COUNTERPART)
    points = {f"{part}{number}" for part, count in CODES.items() for number in range(1, count + 1)}
    assert tested | set(ELSEWHERE) | set(NO_COUNTERPART) == points
    for test in ELSEWHERE.values():
        file, _, name = test.partition("::")
        assert f"def {name}(" in file_of_tests(file).read_text()


# 1. Timer -------------------------------------------------------------------------------------------------------------


def test_T1_the_deadline_is_the_call_plus_the_timeout_however_late_it_arrives() -> None:
    rig = Rig()
    client = rig.client()
    number = client.issue(Register((K,), timeout_ns=10 * MS, registered_ns=rig.now_ns))
    rig.turn(rig.now_ns + 7 * MS)
    rig.turn(START_NS + 10 * MS)
    delivered = client.outcome(number)
    assert delivered is not None
    assert (delivered.deadline_ns, delivered.settled_ns) == (START_NS + 10 * MS, START_NS + 10 * MS)


def test_T2_overdue_operations_expire_at_once() -> None:
    rig = Rig()
    client = rig.client()
    for late in range(1, 6):
        client.issue(Register((K,), timeout_ns=0, registered_ns=rig.now_ns - late * MS))
    rig.turn()
    assert Counter(each.state for each in client.delivered) == {Outcome.EXPIRED: 5}
    assert [each.settled_ns - each.deadline_ns for each in client.delivered] == [late * MS for late in range(1, 6)]


def test_T3_due_is_judged_by_the_clock_of_the_turn_not_by_the_position_of_the_wheel() -> None:
    """A wheel that was not moved for a while still puts a new operation where it belongs."""
    rig = Rig()
    client = rig.client()
    rig.turn(rig.now_ns + 777 * MS)
    number = rig.do(client, after(5 * MS))
    rig.turn(rig.now_ns + 5 * MS)
    assert client.state(number) is Outcome.EXPIRED


def test_T4_every_operation_expires_exactly_once() -> None:
    """The delays are those of Kafka's own test: 0 to 4, each of 10 to 99 twice, and 100 to 499, in ms."""
    rig = Rig(capacity=2048)
    client = rig.client()
    delays = [*range(5), *range(10, 100), *range(10, 100), *range(100, 500)]
    assert len(delays) == 585
    random.Random(4).shuffle(delays)
    numbers = {client.issue(after(delay * MS)): delay for delay in delays}
    for tick in range(500):
        rig.turn(START_NS + tick * MS)
    assert sorted(each.command for each in client.delivered) == sorted(numbers)
    assert all(each.settled_ns == START_NS + numbers[each.command] * MS for each in client.delivered)


def test_T5_rescheduling_is_a_move_not_a_second_entry() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, after(5 * MS))
    for timeout in (50, 5000, 1, 70, 20):
        rig.do(client, reschedule(number, timeout * MS))
        assert sum(bucket.count for bucket in rig.arena.all_records(Region.BUCKETS)) == 1
    rig.turn(rig.now_ns + 10_000 * MS)
    assert [each.command for each in client.delivered] == [number]


def test_T6_cancelling_is_idempotent_and_fails_after_the_settlement() -> None:
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
    assert [each.state for each in client.delivered] == [Outcome.CANCELLED, Outcome.EXPIRED]


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


def test_T9_the_number_of_pending_operations_falls_at_once() -> None:
    rig = Rig()
    client = rig.client()
    for timeout in (5, 500, 50_000):
        rig.do(client, after(timeout * MS))
    assert rig.gauges()[0] == 3
    rig.do(client, cancel(2))
    assert rig.gauges()[0] == 2
    rig.turn(rig.now_ns + 5 * MS)
    assert rig.gauges()[0] == 1
    rig.turn(START_NS + 49_999 * MS)  # the wheel cascades on the way, and the number stays
    assert rig.gauges()[0] == 1


def test_T10_buckets_expire_in_order_and_each_in_order_of_registration() -> None:
    rig = Rig()
    client = rig.client()
    for timeout in (9, 5, 9, 5, 7, 5):
        client.issue(after(timeout * MS))
    rig.turn()
    rig.turn(rig.now_ns + 20 * MS)
    assert [each.command for each in client.delivered] == [2, 4, 6, 5, 1, 3]


def test_T12_an_operation_never_expires_early_not_even_by_a_nanosecond() -> None:
    rig = Rig(now_ns=START_NS + MS - 1)
    client = rig.client()
    number = rig.do(client, after(1))
    rig.turn(START_NS + MS)
    assert client.state(number) is Outcome.EXPIRED
    number = rig.do(client, after(MS + 1))
    rig.turn(START_NS + 2 * MS)
    assert client.state(number) is Outcome.NONE


# 2. Task list ---------------------------------------------------------------------------------------------------------


def test_L1_L5_a_removal_from_a_bucket_keeps_the_order_of_the_others() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, *(after(10 * MS) for _ in range(6)))
    rig.do(client, cancel(1), cancel(4), after(10 * MS), cancel(6))
    assert rig.gauges()[0] == 4
    rig.turn(rig.now_ns + 10 * MS)
    expired = [each.command for each in client.delivered if each.state is Outcome.EXPIRED]
    assert expired == [2, 3, 5, 9]


def test_L2_moving_between_buckets_leaves_the_number_as_it_was() -> None:
    rig = Rig()
    client = rig.client()
    for _ in range(10):
        client.issue(after(10 * MS))
    rig.turn()
    rig.do(client, *(reschedule(number, 20 * MS) for number in range(1, 5)))
    rig.do(client, *(reschedule(number, 30 * MS) for number in range(5, 11)))
    sizes = sorted(bucket.count for bucket in rig.arena.all_records(Region.BUCKETS) if bucket.count)
    assert (sizes, rig.gauges()[0]) == ([4, 6], 10)
    rig.check()


def test_L3_cancelling_all_of_one_bucket_leaves_the_others() -> None:
    rig = Rig()
    client = rig.client()
    for number in range(20):
        client.issue(after((10 + 10 * (number % 2)) * MS))
    rig.turn()
    rig.do(client, *(cancel(number) for number in range(1, 21, 2)))
    rig.turn(rig.now_ns + 30 * MS)
    assert Counter(each.state for each in client.delivered) == {Outcome.CANCELLED: 10, Outcome.EXPIRED: 10}
    assert {each.command % 2 for each in client.delivered if each.state is Outcome.EXPIRED} == {0}


def test_L4_a_second_removal_is_not_counted() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(10 * MS), after(10 * MS))
    rig.do(client, cancel(1), cancel(1), fire(b"other"), cancel(1))
    assert rig.gauges() == (1, 1)
    rig.check()


def test_L6_a_bucket_causes_one_wake_up_whatever_it_holds() -> None:
    for many in (1, 10, 1000):
        rig = Rig(capacity=4096, quota_operations=4096)
        client = rig.client()
        rig.do(client, *(after(delay * MS) for delay in (5, 20, 60) for _ in range(many)))
        visits, wakes = rig.arena.count("bucket_visits"), 0
        while (wake := rig.core.next_wake_ns()) != NEVER:
            rig.turn(wake)
            wakes += 1
        assert len(client.delivered) == 3 * many
        assert (wakes, rig.arena.count("bucket_visits") - visits) == (3, 3)


def test_L7_the_remaining_time_is_shown_and_negative_when_overdue_where_kafka_shows_0() -> None:
    assert due_row(None, 5 * S)["due_in"] == "5.00 s"
    assert due_row(None, -1 * S)["due_in"] == "-1.00 s"


# 3. Timing wheel ------------------------------------------------------------------------------------------------------


def test_W1_W2_an_operation_lies_on_the_level_that_its_distance_asks_for() -> None:
    for level in range(5):
        rig = Rig()
        rig.do(rig.client(), after(SPAN ** (level + 1) * MS))
        buckets = rig.arena.all_records(Region.BUCKETS)
        occupied = [index // (2 * SPAN) for index, bucket in enumerate(buckets) if bucket.count]
        assert occupied == [level], f"{SPAN ** (level + 1)} ticks lie on level {occupied}"


def test_W3_a_clock_that_goes_back_does_not_move_the_wheel() -> None:
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
    assert len(client.delivered) == 1


def test_W4_precision_is_one_tick_whatever_the_delay() -> None:
    rig = Rig()
    client = rig.client()
    delays = [SPAN**level + level for level in range(1, 6)]
    numbers = {client.issue(after(delay * MS)): delay for delay in delays}
    rig.turn()
    while (wake := rig.core.next_wake_ns()) != NEVER:
        rig.turn(wake)
    assert {each.command: (each.settled_ns - START_NS) // MS for each in client.delivered} == numbers


def test_W5_an_insert_costs_the_same_on_every_level_and_a_cancel_in_every_bucket() -> None:
    rig = Rig(capacity=8192, quota_operations=8192, nodes=8192)
    client = rig.client()
    costs = set()
    for level in range(5):
        for crowd in (0, 1000):
            delay_ns = SPAN ** (level + 1) * MS
            rig.do(client, *(after(delay_ns) for _ in range(crowd)))
            number = client.issue(after(delay_ns))
            insert = rig.turn()
            rig.do(client, *(after(delay_ns) for _ in range(crowd // 2)))
            client.issue(cancel(number))
            costs.add((insert, rig.turn()))
            rig.acknowledge()
    assert len(costs) == 1, costs


def test_W6_the_clock_waits_for_buckets_never_for_operations() -> None:
    rig = Rig(capacity=4096, quota_operations=4096)
    client = rig.client()
    rig.do(client, *(after(20 * MS) for _ in range(1000)))
    assert rig.core.next_wake_ns() == START_NS + 20 * MS
    rig.do(client, *(cancel(number) for number in range(1, 1000)))
    assert rig.core.next_wake_ns() == START_NS + 20 * MS, "one operation is left"
    rig.do(client, cancel(1000))
    assert rig.core.next_wake_ns() == NEVER


# 4. Delayed operation -------------------------------------------------------------------------------------------------


def test_O1_an_operation_completes_at_most_once() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = rig.do(a, after(5 * MS))
    b.issue(fire(b"k", value=b"b's"))
    a.issue(fire(b"k", value=b"a's"))
    a.issue(cancel(number))
    rig.turn(rig.now_ns + 5 * MS - 1)
    rig.turn(rig.now_ns + 1)
    assert len(a.delivered) == 1
    assert a.delivered[0].state is Outcome.COMPLETED


def test_O2_an_operation_completed_in_time_never_expires() -> None:
    rig = Rig()
    client = rig.client()
    number = rig.do(client, after(20 * MS))
    other = rig.do(client, after(20 * MS, Key(b"other")))
    rig.turn(rig.now_ns + 10 * MS)
    rig.do(client, fire(b"k"))
    rig.turn(rig.now_ns + 10 * MS)
    assert (client.state(number), client.state(other)) == (Outcome.COMPLETED, Outcome.EXPIRED)


def test_O4_try_or_else_watch_never_misses_an_event_between_them() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    mark = a.mark()  # take a mark, try in vain, and then watch from the mark on
    rig.do(b, fire(b"k"))
    assert a.state(rig.do(a, Register((K,), timeout_ns=S, mark=mark))) is Outcome.COMPLETED
    assert rig.gauges() == (0, 0), "completed at the registration: it is not watched, and has no timer"


def test_O5_a_state_change_followed_by_a_check_is_never_lost() -> None:
    """100 operations, 20 checks each; the last check finds the condition true."""
    rig = Rig(capacity=256, watermarks=100)
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
        assert len(owner.delivered) == (100 if check == 20 else 0)


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
    assert rig.arena.keys_in_use() == 0, "a key that nobody watches is forgotten"


def test_P3_the_number_of_watched_operations_is_exact_at_once() -> None:
    """Kafka's example (1, 2 and 3 keys), without the dead entries that Kafka keeps until it visits them."""
    rig = Rig()
    client = rig.client()
    rig.do(client, after(S, Key(b"1")), after(S, Key(b"1"), Key(b"2")), after(S, Key(b"1"), Key(b"2"), Key(b"3")))
    assert rig.gauges() == (3, 6)
    rig.do(client, cancel(2))
    assert rig.gauges() == (2, 4)
    rig.do(client, fire(b"3"))
    assert rig.gauges() == (1, 1)
    rig.do(client, fire(b"1"))
    assert rig.gauges() == (0, 0)


def test_P4_cancel_for_key_settles_its_watchers_in_order_and_no_others() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, after(S, Key(b"1")), after(S, Key(b"2")), after(S, Key(b"2"), Key(b"1")))
    answer = client.answer(rig.do(client, cancel_for_key(b"1", wait=True)))
    assert answer is not None and answer.value == 2
    assert [(each.command, each.state) for each in client.delivered] == [
        (1, Outcome.CANCELLED),
        (3, Outcome.CANCELLED),
    ]
    assert rig.gauges() == (1, 1)
    rig.turn(rig.now_ns + S)
    assert [each.state for each in client.delivered] == [
        Outcome.CANCELLED,
        Outcome.CANCELLED,
        Outcome.EXPIRED,
    ]
    answer = client.answer(rig.do(client, cancel_for_key(b"unknown", wait=True)))
    assert answer is not None and answer.value == 0


def test_P5_no_settled_operation_is_left_to_purge() -> None:
    """2,000 operations, each on a hot and a cold key: an operation that settles by one key leaves both lists."""
    rig = Rig(capacity=8192)
    client = rig.client()
    empty = rig.arena.in_use()
    for number in range(2000):
        client.issue(after(S, Key(b"cold %d" % (number % 100)), Key(b"hot %d" % (number % 7))))
    rig.turn()
    assert rig.gauges() == (2000, 4000)
    rig.do(client, *(fire(b"hot %d" % number) for number in range(7)))
    assert rig.gauges() == (0, 0)
    rig.acknowledge()
    assert rig.arena.in_use() == empty


def test_P6_an_operation_never_joins_a_removed_list() -> None:
    rig = Rig()
    client = rig.client()
    for _ in range(3):
        rig.do(client, after(S), fire(b"k"), after(S), fire(b"k", limit=1), after(S), cancel_for_key(b"k"), after(S))
        assert rig.gauges() == (1, 1)
        rig.do(client, fire(b"k"))
        rig.acknowledge()  # until then the grant may have to be requeued
        assert rig.arena.keys_in_use() == 0
    assert Counter(each.state for each in client.delivered) == {Outcome.COMPLETED: 9, Outcome.CANCELLED: 3}
    rig.check()


def test_P7_P10_P11_purgatories_are_named_and_counted_separately() -> None:
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
    assert rig.gauges() == (3, 3)
    rig.turn()
    assert not client.delivered
    rig.do(client, fire(b"k"), advance(b"p", 5))
    assert [each.command for each in client.delivered] == [1, 2, 3]


# 7. raft --------------------------------------------------------------------------------------------------------------


def test_R1_an_announcement_completes_thresholds_in_order_and_stops_at_the_first_unreached() -> None:
    rig = Rig()
    client = rig.client()
    targets = {rig.do(client, Register((Key(b"offset", target),), timeout_ns=S)): target for target in (3, 1, 5)}
    reached = []
    for watermark in range(1, 6):
        delivered = len(client.delivered)
        rig.do(client, advance(b"offset", watermark))
        reached.append([targets[each.command] for each in client.delivered[delivered:]])
    assert reached == [[1], [], [3], [], [5]]


def test_R1_an_announcement_touches_only_the_operations_that_it_completes() -> None:
    rig = Rig(capacity=8192)
    client = rig.client()
    for target in range(1, 2001):
        client.issue(Register((Key(b"offset", target),), timeout_ns=S))
    rig.turn()
    client.issue(advance(b"offset", 3))
    assert rig.turn() < 150, "three ways through a heap of 11 levels, not 2,000 operations"
    assert [each.command for each in client.delivered] == [1, 2, 3]


def test_R2_all_pending_operations_can_be_completed_or_failed_together() -> None:
    rig = Rig()
    client = rig.client()
    offsets = [Register((Key(b"offset", target),), timeout_ns=S) for target in (3, 1, 5)]
    rig.do(client, *offsets, advance(b"offset", (1 << 64) - 1))
    assert Counter(each.state for each in client.delivered) == {Outcome.COMPLETED: 3}
    rig.do(client, KeyAct(CommandKind.FORGET, b"offset"), *offsets, fail(b"offset", 6))
    assert Counter(each.state for each in client.delivered) == {Outcome.COMPLETED: 3, Outcome.FAILED: 3}
    assert rig.gauges() == (0, 0)


def test_R3_each_operation_has_its_own_deadline() -> None:
    rig = Rig()
    client = rig.client()
    numbers = [rig.do(client, Register((Key(b"offset", 9),), timeout_ns=t * MS)) for t in (5, 3, 1, 4, 2)]
    for tick in range(1, 6):
        rig.turn(START_NS + tick * MS)
    assert [numbers.index(each.command) for each in client.delivered] == [2, 4, 1, 3, 0]
    assert rig.gauges() == (0, 0)


def test_R4_a_completed_operation_leaves_no_timer() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, Register((Key(b"offset", 9),), timeout_ns=S), after(2 * S))
    rig.do(client, advance(b"offset", 9), fire(b"k"))
    assert rig.core.next_wake_ns() == NEVER


def test_R5_a_fetch_is_answered_when_the_log_grows_at_its_time_out_or_when_the_leader_is_lost() -> None:
    """An append waits for the high watermark, however long that takes."""
    rig = Rig()
    client = rig.client()
    fetch = Register((Key(b"log end", 10),), timeout_ns=500 * MS)
    appended = rig.do(client, Register((Key(b"high watermark", 10),), timeout_ns=NO_DEADLINE))
    ends = []
    for end in (advance(b"log end", 10), None, fail(b"log end", 6)):
        number = rig.do(client, fetch)
        rig.do(client, *([] if end is None else [end]))
        rig.turn(rig.now_ns + 500 * MS)
        delivered = client.outcome(number)
        assert delivered is not None
        ends.append((delivered.state, delivered.error))
        rig.do(client, KeyAct(CommandKind.FORGET, b"log end"))
    assert ends == [(Outcome.COMPLETED, 0), (Outcome.EXPIRED, 0), (Outcome.FAILED, 6)]
    assert client.state(appended) is Outcome.NONE
    rig.do(client, advance(b"high watermark", 12))
    assert client.state(appended) is Outcome.COMPLETED


def test_R6_deferred_events_complete_in_order_up_to_an_offset_and_the_rest_fail_together() -> None:
    """Better than Kafka: events may be added in any order. Those of one offset complete in order of registration."""
    rig = Rig()
    client = rig.client()
    offsets = [4, 2, 2, 9, 1, 4]
    rig.do(client, *(Register((Key(b"offset", offset),)) for offset in offsets))
    rig.do(client, advance(b"offset", 4))
    assert [each.command for each in client.delivered] == [5, 2, 3, 1, 6]
    rig.do(client, fail(b"offset", 6))
    assert (client.delivered[-1].command, client.delivered[-1].state) == (4, Outcome.FAILED)


def test_R7_each_batch_reschedules_the_time_of_a_lock() -> None:
    rig = Rig()
    client = rig.client()
    lock = rig.do(client, after(30 * MS))
    for _ in range(5):
        rig.turn(rig.now_ns + 20 * MS)
        rig.do(client, reschedule(lock, 30 * MS))
    assert not client.delivered
    rig.turn(rig.now_ns + 30 * MS)
    assert client.state(lock) is Outcome.EXPIRED
