"""Subscriptions: every event on some keys, in order and once, or a gap that says where the subscription goes on."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, until
from timerd_client.scope import Scope


def take(subscription: Any, count: int) -> list[Any]:
    """The next items. Fails if one of them does not come in time."""
    found: list[Any] = []
    for _ in range(count):
        item = subscription.next(timeout=PATIENCE_S)
        assert item is not None, f"item {len(found) + 1} of {count} does not come, after {found[-3:]}"
        found.append(item)
    return found


def told(items: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [(each.key, each.kind, each.number, each.value) for each in items]


def gaps(items: Iterable[Any]) -> list[str]:
    return [each.reason for each in items if isinstance(each, td.Gap)]


def in_order(items: Iterable[Any]) -> bool:
    marks = [each.mark.sequence for each in items]
    return marks == sorted(set(marks))


def pending(client: Any) -> int:
    return int(client.stats().waiting)


# what is seen -------------------------------------------------------------------------------------------------------


def test_fire_advance_and_fail_are_seen_in_their_order(client: Any) -> None:
    with client.subscribe(["inbox/7", b"offset"]) as subscription:
        client.fire("inbox/7", value=b"hello", amount=3)
        client.fire("another")
        client.advance("offset", 812)
        client.advance("offset", 811)
        client.cancel_for_key("inbox/7")
        client.fail("inbox/7", code=5, value=b"why")
        client.fire("inbox/7", value=b"job", limit=1)
        items = take(subscription, 4)
        assert told(items) == [
            ("inbox/7", "fire", 3, b"hello"),
            (b"offset", "advance", 812, b""),
            ("inbox/7", "fail", 5, b"why"),
            ("inbox/7", "fire", 1, b"job"),
        ]
        assert [(each.amount, each.watermark, each.code) for each in items] == [
            (3, None, None),
            (None, 812, None),
            (None, None, 5),
            (1, None, None),
        ]
        assert in_order(items) and subscription.mark == items[-1].mark
        assert subscription.next(timeout=0.02) is None
        assert pickle.loads(pickle.dumps(items)) == items


def test_a_limited_event_goes_to_the_waiting_operation_however_many_see_it(client: Any) -> None:
    subscriptions = [client.subscribe("jobs") for _ in range(3)]
    jobs = [client.register("jobs", timeout=60) for _ in range(2)]
    assert client.fire_wait("jobs", value=b"work", limit=1) == 1
    assert jobs[0].result(PATIENCE_S).value == b"work" and not jobs[1].done()
    assert [told(take(each, 1)) for each in subscriptions] == [[("jobs", "fire", 1, b"work")]] * 3
    assert client.fire_wait("jobs") == 1


def test_an_event_that_was_fired_before_is_not_seen(client: Any) -> None:
    client.fire("k", value=b"before")
    with client.subscribe("k") as subscription:
        client.fire("k", value=b"after")
        assert [each.value for each in take(subscription, 1)] == [b"after"]


def test_purgatories_have_events_of_their_own(client: Any) -> None:
    other = client.purgatory("other")
    with client.subscribe("k") as here, other.subscribe("k") as there:
        other.fire("k", value=b"there")
        client.fire("k", value=b"here")
        assert [take(each, 1)[0].value for each in (here, there)] == [b"here", b"there"]


# marks --------------------------------------------------------------------------------------------------------------


def test_a_subscription_goes_on_from_a_mark_that_was_text(face: Face, client: Any) -> None:
    with client.subscribe("k") as first:
        client.fire_many(["k"] * 5, values=[b"%d" % number for number in range(5)])
        items = take(first, 2)
        text = str(first.mark)
    with face.connect() as other, other.subscribe("k", since=td.Mark.parse(text)) as second:
        items += take(second, 3)
        other.fire("k", value=b"5")
        items += take(second, 1)
    assert [each.value for each in items] == [b"%d" % number for number in range(6)]


def test_a_subscriber_from_an_older_mark_catches_up_and_shares_the_watch(client: Any) -> None:
    start = client.mark()
    live = client.subscribe("k")
    client.fire_many(["k", "other"] * 20, values=[b"%d" % number for number in range(40)])
    expected = take(live, 20)
    late = [client.subscribe("k", since=start), client.subscribe("k", since=expected[4].mark)]
    client.fire("k", value=b"new")
    expected += take(live, 1)
    assert take(late[0], 21) == expected
    assert take(late[1], 16) == expected[5:]
    eventually(lambda: pending(client) == 1)
    client.fire("k", value=b"last")
    assert [take(each, 1)[0].value for each in (live, *late)] == [b"last"] * 3
    assert not gaps(expected)


ZEROS = "0" * 16
NO_MARKS: list[Any] = ["", "1", "-", "x" * 16 + "-1", f"{ZEROS}-", f"{ZEROS}--1", f"{ZEROS}-1\n", f"{ZEROS}-{'9' * 20}"]
NO_MARKS += ["0" * 15 + "-1", f"{ZEROS}-1 OR 1=1", "\u0660" * 16 + "-\u0661", "f" * 10_000_000, "A" * 16 + "-1"]
NO_MARKS += [None, ZEROS.encode() + b"-1"]


@pytest.mark.parametrize("text", NO_MARKS, ids=lambda text: repr(text)[:24])
def test_a_text_of_another_form_is_no_mark(text: Any) -> None:
    with pytest.raises(td.InvalidValueError, match="not the text of a mark") as raised:
        td.Mark.parse(text)
    assert len(str(raised.value)) < 300


@THREADED
def test_the_text_of_a_mark_is_its_arena_and_sequence(client: td.Client) -> None:
    mark = client.mark()
    parsed = td.Mark.parse(str(mark))
    assert parsed == td.Mark(mark.incarnation, mark.sequence) and str(parsed) == str(mark)


def test_a_mark_from_the_future_neither_stops_other_subscribers_nor_adds_watches(client: Any) -> None:
    live = client.subscribe("k")
    arena = client.mark().incarnation
    late = client.subscribe("k", since=td.Mark(arena, 1 << 60))
    client.fire("k", value=b"1")
    assert take(live, 1)[0].value == b"1"
    assert late.next(timeout=0.02) is None
    before = client.stats()
    with client.subscribe("k") as another:
        client.fire("k", value=b"2")
        assert take(another, 1)[0].value == take(live, 1)[0].value == b"2"
    assert before.waiting <= 2


# gaps ---------------------------------------------------------------------------------------------------------------


def test_a_slow_subscriber_gets_a_gap_and_the_others_do_not(client: Any) -> None:
    slow, quick = client.subscribe("k", buffer=4), client.subscribe("k", buffer=100)
    for number in range(50):
        client.fire("k", value=b"%d" % number)
    everything = take(quick, 50)
    assert [int(each.value) for each in everything] == list(range(50))
    found = take(slow, 5)
    assert [int(each.value) for each in found[:4]] == list(range(4))
    assert found[4] == td.Gap(everything[-1].mark, "buffer")
    client.fire("k", value=b"next")
    assert take(slow, 1)[0].value == take(quick, 1)[0].value == b"next"
    missed = client.subscribe("k", since=found[3].mark)  # the ring has the events for which the buffer had no room
    assert [each.value for each in take(missed, 47)] == [each.value for each in everything[4:]] + [b"next"]


def test_an_overwritten_ring_is_a_gap_and_the_subscription_goes_on(client: Any) -> None:
    old = client.mark()
    for _ in range(4):
        client.fire_many(["k"] * 500)
        client.flush()
    with client.subscribe("k", since=old) as subscription:
        assert gaps(take(subscription, 1)) == ["overwritten"]
        client.fire("k", value=b"on")
        assert take(subscription, 1)[0].value == b"on"
        eventually(lambda: pending(client) == 1)


def test_values_of_more_bytes_than_a_buffer_holds_are_a_gap(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerd_client.events.feed.BYTES_MAX", 4_000)
    with client.subscribe("k") as subscription, client.subscribe("k") as quick:
        for number in range(6):
            client.fire("k", value=bytes([number]) * 1_000)
            assert len(take(quick, 1)[0].value) == 1_000
        items = take(subscription, 5)
        assert [len(each.value) for each in items[:4]] == [1_000] * 4 and gaps(items) == ["buffer"]
        client.fire("k", value=bytes(5_000))
        assert [len(each.value) for each in take(subscription, 1)] == [5_000]  # one event alone always has room


def test_nothing_is_missed_when_the_daemon_is_killed(daemon: Daemon, face: Face, client: Any) -> None:
    with face.connect() as other, client.subscribe("k") as subscription:
        for number in range(30):
            if number % 10 == 5:
                other.flush(timeout=PATIENCE_S)
                daemon.kill()
                daemon.start()
            other.fire("k", value=b"%d" % number)
        items = take(subscription, 30)
    assert [int(each.value) for each in items] == list(range(30)) and in_order(items)


@pytest.mark.long
def test_another_arena_is_a_gap_and_none_of_its_events_is_missed(daemon: Daemon, face: Face, client: Any) -> None:
    with client.subscribe("k") as subscription:
        client.fire("k", value=b"old")
        old = take(subscription, 1)[0].mark
        client.flush(timeout=PATIENCE_S)  # else close() raises, because it does not know which commands were applied
        daemon.destroy()
        daemon.start()
        with face.connect(timeout=PATIENCE_S) as other:
            other.fire("k", value=b"new")
            other.flush(timeout=PATIENCE_S)
        gap, event = take(subscription, 2)
        assert (gap.reason, gap.mark.sequence, event.value) == ("arena", 0, b"new")
        assert gap.mark.incarnation == event.mark.incarnation != old.incarnation
        with client.subscribe("k", since=old) as another:
            assert [gap, event] == take(another, 2)


@pytest.mark.long
def test_without_a_daemon_a_subscription_waits_for_the_first_event(daemon: Daemon, face: Face) -> None:
    daemon.destroy()
    with face.make() as client, client.subscribe("k") as subscription:
        assert subscription.next(timeout=0.05) is None
        daemon.start()
        with face.connect(timeout=PATIENCE_S) as other:
            other.fire("k", value=b"first")
            assert [each.value for each in take(subscription, 1)] == [b"first"]


# the end of a subscription ------------------------------------------------------------------------------------------


def test_the_loop_ends_when_nothing_has_come_for_its_timeout(client: Any) -> None:
    with client.subscribe("k", timeout=0.05) as subscription:
        client.fire_many(["k", "k"])
        assert len(take(subscription, 2)) == 2
        assert list(subscription) == []
        client.fire("k")
        assert len(until(lambda: list(subscription))) == 1  # a loop over the subscription may begin again
    assert list(subscription) == []


def test_closing_ends_a_loop_in_another_thread(client: Any) -> None:
    subscription = client.subscribe("k")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(subscription))
    thread.start()
    client.fire("k", value=b"1")
    eventually(lambda: found)
    subscription.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive() and [each.value for each in found] == [b"1"]
    subscription.close()
    assert subscription.closed and subscription.next(timeout=1) is None
    eventually(lambda: pending(client) == 0)


def test_subscribers_of_one_key_share_one_watch_and_the_last_one_ends_it(client: Any) -> None:
    subscriptions = [client.subscribe("k") for _ in range(20)]
    client.flush()
    assert pending(client) == 1
    for each in subscriptions[:19]:
        each.close()
    client.fire("k", value=b"v")
    assert take(subscriptions[19], 1)[0].value == b"v"
    subscriptions[19].close()
    eventually(lambda: pending(client) == 0)
    client.flush()


@THREADED
def test_a_subscription_that_is_dropped_is_closed(client: td.Client) -> None:
    subscription = client.subscribe("k")
    client.flush()
    assert pending(client) == 1
    del subscription
    eventually(lambda: pending(client) == 0)


def test_cancelling_everything_does_not_end_a_subscription(client: Any) -> None:
    with client.subscribe("k") as subscription:
        client.fire("k", value=b"1")
        assert take(subscription, 1)[0].value == b"1"
        client.cancel_all()
        client.fire("k", value=b"2")
        assert take(subscription, 1)[0].value == b"2"


def test_a_closed_client_ends_its_subscriptions_with_an_error(face: Face, daemon: Daemon) -> None:
    client = face.connect()
    subscription = client.subscribe("k")
    client.fire("k", value=b"1")
    client.flush()
    eventually(lambda: subscription._feed._items)
    client.close()
    assert take(subscription, 1)[0].value == b"1"
    with pytest.raises(td.ClosedError):
        subscription.next(timeout=PATIENCE_S)
    with pytest.raises(td.ClosedError):
        client.subscribe("k")


def test_a_refusal_of_the_daemon_is_raised_by_the_iteration(face: Face, runtime_dir: Path) -> None:
    with Daemon(runtime_dir, "--quota-operations=1"), face.connect(timeout=PATIENCE_S) as client:
        client.register_wait("k", timeout=60)
        subscription = client.subscribe("k")
        with pytest.raises(td.QuotaExceededError):
            subscription.next(timeout=PATIENCE_S)
        client.cancel_all()
        client.flush()
        with client.subscribe("k") as another:
            client.fire("k")
            take(another, 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"keys": []}, td.InvalidKeyError),
        ({"keys": {"k": 5}}, td.InvalidConditionError),
        ({"keys": [f"k{number}" for number in range(65)]}, td.TooManyKeysError),
        ({"keys": "k", "since": "text"}, td.InvalidValueError),
        ({"keys": "k", "buffer": 0}, td.InvalidValueError),
        ({"keys": "k", "timeout": "1"}, td.TimeoutOutOfRangeError),
    ],
    ids=str,
)
def test_wrong_arguments_raise_at_once(client: Any, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        client.subscribe(**arguments)
    assert pending(client) == 0


@THREADED
def test_the_end_of_a_request_ends_its_wait(client: td.Client) -> None:
    scope = Scope()
    subscription = client.subscribe("k")
    raised: list[BaseException] = []

    def view() -> None:
        with scope.entered():
            try:
                next(subscription)
            except td.RequestEnded as error:
                raised.append(error)

    thread = threading.Thread(target=view)
    thread.start()
    time.sleep(0.05)
    scope.end("drain")
    thread.join(PATIENCE_S)
    assert len(raised) == 1
    client.fire("k", value=b"kept")
    assert take(subscription, 1)[0].value == b"kept"


@THREADED
def test_a_forked_child_gets_an_error_and_may_subscribe_anew(client: td.Client) -> None:
    subscription = client.subscribe("k")
    client.fire("k", value=b"1")
    client.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            try:
                subscription.next(timeout=PATIENCE_S)
            except td.ClosedError:
                code = 2
            with client.subscribe("k") as own:
                client.fire("k", value=b"2")
                code = 0 if code == 2 and take(own, 1)[0].value == b"2" else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [each.value for each in take(subscription, 2)] == [b"1", b"2"]


@pytest.mark.long
@THREADED
def test_many_threads_subscribe_and_fire_at_once(daemon: Daemon, client: td.Client) -> None:
    """Each thread gets every event that was fired after `start`, once and in order."""
    start, errors = client.mark(), list[str]()
    expected = 8 * 50

    def run(number: int) -> None:
        with client.subscribe("k", since=start, buffer=10_000) as subscription:
            for each in range(50):
                client.fire("k", value=b"%d/%d" % (number, each))
            items = take(subscription, expected)
        if not in_order(items) or len({each.value for each in items}) != expected:
            errors.append(f"thread {number}: {items}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE_S)
    assert not errors and not any(thread.is_alive() for thread in threads)
    eventually(lambda: pending(client) == 0)


@THREADED
def test_a_subscriber_from_an_older_mark_misses_nothing_beside_one_from_a_mark_that_the_client_does_not_know_yet(
    client: td.Client,
) -> None:
    """A client that cannot map the arena knows no event after its last frame. Another process may have a newer mark."""
    before = client.mark()
    for number in range(3):
        client.fire_wait("k", value=b"%d" % number)
    since = client.mark()
    with client.subscribe("k", since=since, timeout=0.01) as first:
        client._link.protocol.ledger.use_arena([before.sequence], 0)
        assert list(first) == []
        with client.subscribe("k", since=before, timeout=PATIENCE_S) as second:
            events = [next(second) for _ in range(3)]
    assert [event.value for event in events if isinstance(event, td.Event)] == [b"0", b"1", b"2"]


# callers that do not wait -------------------------------------------------------------------------------------------


def test_a_caller_that_does_not_wait_gets_every_event_that_is_there(face: Face, client: Any) -> None:
    with face.connect() as other, client.subscribe("k") as subscription:
        other.fire_many(["k"] * 100, values=[b"%d" % number for number in range(100)])
        other.flush()
        found = [item.value for item in iter(lambda: subscription.next(0), None)]
        assert found == [b"%d" % number for number in range(100)]
        client.fire("k", value=b"of its own client")
        assert subscription.next(-1).value == b"of its own client"
        assert subscription.next(0) is None


def test_a_loop_that_does_not_wait_ends_behind_the_last_event(face: Face, client: Any) -> None:
    start = client.mark()
    client.fire_many(["k", "other"] * 50, values=[b"%d" % number for number in range(100)])
    late = client.subscribe("k", since=start, timeout=0)
    assert [item.value for item in late] == [b"%d" % number for number in range(0, 100, 2)]
    client.fire("k", value=b"new")
    assert [item.value for item in late] == [b"new"]


def test_a_caller_that_does_not_wait_gets_a_gap_that_is_there(client: Any) -> None:
    with client.subscribe("k", since=td.Mark(1, 5)) as subscription:
        assert gaps([subscription.next(0)]) == ["arena"]


def test_a_caller_that_looks_again_asks_the_daemon_only_if_something_has_happened(face: Face, client: Any) -> None:
    with client.subscribe("k") as subscription:
        eventually(lambda: subscription.next(0) is None and commands_of(client, lambda: subscription.next(0)) == 0)
        with face.connect() as other:
            other.fire("k", value=b"1")
            other.flush()
            assert subscription.next(0).value == b"1"


def commands_of(client: Any, call: Any) -> int:
    """How many commands the call issues."""
    before = client.mark().command
    call()
    return int(client.mark().command - before)


@pytest.mark.long
def test_a_caller_that_does_not_wait_gets_none_while_the_daemon_is_lost(client: Any, daemon: Daemon) -> None:
    with client.subscribe("k") as subscription:
        daemon.kill()
        eventually(lambda: client.state.name == "LOST")
        assert subscription.next(0) is None
        daemon.start()
        client.fire("k", value=b"back")
        assert [each.value for each in take(subscription, 1)] == [b"back"]
