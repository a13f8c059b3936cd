"""A daemon on a manual clock: what moves it, what waits for it, and the error of a test that would wait for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import timerd as td
from timerd.testing import Manual, WouldBlockError
from timerd_client import aio


@pytest.fixture
def client(manual: Manual) -> Iterator[td.Client]:
    """A threaded client of the manual daemon."""
    with td.connect() as made:
        yield made


# the clock ------------------------------------------------------------------------------------------------------------


def test_a_deadline_comes_when_the_clock_moves_there_and_not_before(manual: Manual, client: td.Client) -> None:
    waits = client.register("inbox/7", timeout=30)
    manual.advance(29.999)
    assert not waits.done()
    manual.advance(timedelta(milliseconds=1))
    outcome = waits.result()
    assert (outcome.state, outcome.wait_ns, outcome.lateness_ns) == (td.State.EXPIRED, 30 * 10**9, 0)
    assert manual.now == 30


@pytest.mark.parametrize("seconds", [-1, None, "1", True, timedelta(seconds=-1), float("nan")])
def test_the_clock_does_not_move_back_or_by_something_that_is_no_time(manual: Manual, seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"^advance\(.*\): give the seconds from now, 0 to "):
        manual.advance(seconds)
    assert manual.now == 0


def test_a_daemon_that_runs_is_not_started_again(manual: Manual, client: td.Client) -> None:
    with pytest.raises(RuntimeError, match=r"^start\(\): the daemon of this test runs; timerd_manual.stop\(\) ends it"):
        manual.start()
    waits = client.register("inbox/7", timeout=30)
    client.fire("inbox/7")
    assert waits.result()


def test_events_arrive_without_the_clock(manual: Manual, client: td.Client) -> None:
    waits = client.register("inbox/7", timeout=30)
    client.fire("inbox/7", value=b"hello")
    assert waits.result().value == b"hello"
    assert manual.now == 0


def test_callbacks_run_when_the_clock_moves_by_zero(manual: Manual, client: td.Client) -> None:
    seen: list[td.Operation] = []
    waits = client.register("inbox/7", timeout=30)
    waits.add_done_callback(seen.append)
    client.fire("inbox/7")
    assert not seen
    manual.advance(0)
    assert seen == [waits]


def test_the_test_of_a_timeout_takes_milliseconds(manual: Manual, client: td.Client) -> None:
    start = time.thread_time()
    for _ in range(20):
        waits = client.register("inbox/7", timeout=2)
        manual.advance(2)
        assert waits.done()
    assert time.thread_time() - start < 2


def test_a_wait_that_nothing_can_end_raises(manual: Manual, client: td.Client) -> None:
    waits = client.register("inbox/7", timeout=30)
    manual.advance(10)
    with pytest.raises(WouldBlockError, match=r"before the clock moves \(now 10 s\): timerd_manual.advance\(20\)"):
        waits.result()
    forever = client.register("inbox/8", timeout=None)
    with pytest.raises(WouldBlockError):
        td.wait([forever])
    manual.advance(20)
    with pytest.raises(WouldBlockError, match="no operation has a deadline"):
        forever.result()
    with manual.autojump(), pytest.raises(WouldBlockError, match="fire an event, or give the wait a timeout"):
        list(td.as_completed([td.client().register("k", timeout=None)]))
    with manual.autojump(), pytest.raises(WouldBlockError, match="fire an event, or give the wait a timeout"):
        forever.result()


def test_autojump_moves_the_clock_to_what_is_due(manual: Manual, client: td.Client) -> None:
    with manual.autojump():
        assert client.register("inbox/7", timeout=25).result().state is td.State.EXPIRED
        assert manual.now == 25
        assert not client.wait_for(lambda: False, keys="stop", timeout=5)
        operations = [client.register("a", timeout=3), client.register("b", timeout=1)]
        assert [operation.keys for operation in td.as_completed(operations)] == [("b",), ("a",)]
        with pytest.raises(TimeoutError):
            client.register("inbox/7", timeout=None).result(2)
    assert manual.now == pytest.approx(35, abs=0.002)


def test_the_wall_clock_is_set_apart_from_the_manual_clock(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[datetime | None] = []

    @calls.every("night", cron="0 3 * * *", timezone="Europe/Berlin")
    def night(call: td.Call) -> None:
        ran.append(call.due)

    manual.set_wall_clock(datetime(2026, 1, 1, 1, 59, tzinfo=UTC))
    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(61)
        assert ran == [datetime(2026, 1, 1, 2, 0, tzinfo=UTC)]
        manual.set_wall_clock(datetime(2026, 1, 9, 12, 0, tzinfo=UTC))
        manual.advance(1)
        assert len(ran) == 2, "all missed points are one call"
    with pytest.raises(ValueError, match="time zone"):
        manual.set_wall_clock(datetime(2026, 1, 1))


@pytest.mark.parametrize("first_s", [0, 0.001])
def test_a_wall_clock_that_is_set_before_the_clock_has_moved_is_the_beginning_so_no_point_was_missed(
    manual: Manual, first_s: float
) -> None:
    """An application whose module serves is there before the first line of the test."""
    calls = td.Calls()
    ran: list[tuple[datetime | None, int]] = []

    @calls.every("night", cron="30 2 * * *", timezone="Europe/Berlin")
    def night(call: td.Call) -> None:
        ran.append((call.due, call.missed))

    with td.connect(group="web") as worker, td.connect(group="web") as other:
        worker.serve(calls)
        other.serve(calls)
        manual.advance(first_s)
        for day in 1, 28:
            manual.set_wall_clock(datetime(2026, 3, day, 12, tzinfo=UTC))
        manual.advance(timedelta(days=1))
    night_of_28 = (datetime(2026, 3, 29, 1, tzinfo=UTC), 0)
    assert ran[-1:] == [night_of_28] and (len(ran) == 1) == (first_s == 0), ran


def test_the_beginning_may_be_set_in_a_coroutine_that_serves(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[datetime | None] = []

    @calls.every("night", cron="0 3 * * *")
    async def night(call: td.Call) -> None:
        ran.append(call.due)

    async def main() -> None:
        async with td.aio.connect(group="web") as worker:
            worker.serve(calls)
            await asyncio.sleep(0)
            manual.set_wall_clock(datetime(2026, 1, 1, 2, 59, tzinfo=UTC))
            await asyncio.sleep(61)

    manual.run(main())
    assert ran == [datetime(2026, 1, 1, 3, tzinfo=UTC)]


# clients --------------------------------------------------------------------------------------------------------------


def test_every_client_of_the_process_is_a_client_of_the_manual_daemon(manual: Manual) -> None:
    clients = [td.client(), td.Client("shop", transport="unix"), td.connect(timeout=1)]
    waits = [client.register("inbox/7", timeout=5) for client in clients]
    for client in clients:
        client.flush()
    assert clients[0].fire_wait("inbox/7") == 3
    assert all(wait.result() for wait in waits)
    for client in clients:
        client.close()


def test_a_client_made_before_the_tests_connects_anew_in_each_test() -> None:
    lazy = td.Client()
    for _ in range(2):
        with Manual():
            assert lazy.register_wait("inbox/7", timeout=5, id="a")
    assert not lazy._lazy.made or lazy._lazy.made.closed


def test_handlers_of_calls_have_returned_when_the_clock_has_moved(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[float] = []

    @calls.every("cleanup", seconds=60)
    def cleanup(call: td.Call) -> None:
        worker.fire_wait("nobody waits")
        ran.append(manual.now)

    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(180)
        assert len(ran) == 3


def test_a_failed_call_comes_again_by_the_clock(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[float] = []

    @calls.handler("mail", retries=3, backoff=10, concurrency=2)
    def mail(call: td.Call) -> None:
        ran.append(manual.now)
        raise ConnectionError("no mail server")

    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_later("mail", 5)
        manual.advance(4.999)
        assert not ran
        manual.advance(120)
        assert len(ran) == 4
        assert worker.stats().calls_failed == 4


def test_calls_and_dead_letters_are_listed_by_the_clock(manual: Manual) -> None:
    calls = td.Calls()

    @calls.handler("mail")
    def mail(call: td.Call) -> None:
        if call.payload == b"bad":
            raise ValueError("no such address")

    manual.set_wall_clock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    with td.connect(group="web") as worker:
        worker.serve(calls)
        worker.call_later(mail, 60, b"bad", id="letter/7")
        manual.advance(0)
        (pending,) = worker.calls()
        assert (pending.state, pending.due) == ("pending", datetime(2026, 5, 1, 12, 1, tzinfo=UTC))
        manual.advance(61)
        (letter,) = worker.dead_letters()
        assert (letter.reason, letter.id) == ("ValueError: no such address", "letter/7") and not worker.calls()
        assert worker.retry_call_wait(letter.number)
        manual.advance(1)
        (again,) = worker.dead_letters()
        assert again.number > letter.number and worker.drop_call_wait(again.number)
        assert not worker.dead_letters()


def test_a_schedule_waits_for_its_workers_for_a_week(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[tuple[datetime | None, int]] = []

    @calls.every("nightly", cron="0 3 * * *")
    def nightly(call: td.Call) -> None:
        ran.append((call.due, call.missed))

    def serve(seconds: float) -> None:
        with td.connect(group="web") as worker:
            worker.serve(calls)
            manual.advance(seconds)

    manual.set_wall_clock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    serve(1)
    manual.advance(timedelta(days=6))
    serve(1)
    assert ran == [(datetime(2026, 5, 2, 3, tzinfo=UTC), 5)], "one call for six nights"
    manual.advance(timedelta(days=9))
    serve(1)
    assert len(ran) == 1, "a schedule that is due for eight days is over, and begins anew"
    manual.set_wall_clock(datetime(2026, 5, 17, 2, 59, tzinfo=UTC))
    serve(61)
    assert ran[1:] == [(datetime(2026, 5, 17, 3, tzinfo=UTC), 0)]


def test_a_call_at_a_wall_time_comes_at_that_time_without_a_worker_when_the_clock_is_set(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[td.Call] = []
    calls.handler("remind")(ran.append)
    manual.set_wall_clock(datetime(2026, 5, 1, 12, tzinfo=UTC))
    with td.connect(group="web") as client:
        client.call_at("remind", datetime(2026, 5, 1, 22, tzinfo=UTC))
        client.flush()
    manual.advance(60)
    manual.set_wall_clock(datetime(2026, 5, 1, 21, 59, tzinfo=UTC))
    manual.advance(61)
    with td.connect(group="web") as worker:
        worker.serve(calls)
        manual.advance(1)
    assert len(ran) == 1
    assert 1 <= ran[0].lateness_ns / 1e9 <= 2.01, "the call's deadline was moved, and then the call waited for a worker"


def test_a_call_is_late_from_its_due_time_until_its_handler_begins(manual: Manual) -> None:
    """For example, no worker is there for 3 s."""
    calls = td.Calls()
    ran: list[td.Call] = []
    calls.handler("remind")(ran.append)
    with td.connect(group="web") as client:
        client.call_later("remind", 10)
        manual.advance(13)
        client.serve(calls)
        manual.advance(1)
    assert [3 <= call.lateness_ns / 1e9 <= 4.01 for call in ran] == [True]


def test_a_subscription_has_what_was_fired_and_ends_by_the_clock(manual: Manual, client: td.Client) -> None:
    subscription = client.subscribe("chat/7")
    client.fire("chat/7", value=b"one")
    item = subscription.next()
    assert isinstance(item, td.Event) and item.value == b"one"
    with pytest.raises(WouldBlockError):
        subscription.next()
    with manual.autojump():
        assert subscription.next(timeout=3) is None
    assert manual.now == 3


def test_an_operation_that_is_tried_again_settles_by_the_clock(manual: Manual, client: td.Client) -> None:
    delayed = client.try_complete_else_watch(lambda: False, "a", timeout=5)
    with manual.autojump():
        assert not delayed.settled(2)
        assert delayed.settled()
    assert (delayed.state, manual.now) == (td.State.EXPIRED, 5)


def test_a_lost_daemon_goes_on_when_it_is_started(manual: Manual, client: td.Client) -> None:
    waits = client.register("inbox/7", timeout=60)
    client.flush()
    manual.stop()
    with pytest.raises(WouldBlockError, match="the daemon of this test is stopped"):
        client.ping()
    manual.advance(5)
    with pytest.raises(td.TimerdUnavailableError):
        client.fire_wait("inbox/7")
    client.fire("inbox/7", value=b"kept")
    manual.start()
    assert waits.result().value == b"kept"


def test_a_test_may_end_while_the_daemon_is_stopped_and_clients_are_waiting() -> None:
    with Manual() as manual:
        client = td.connect(group="web")
        calls = td.Calls()
        calls.handler("job")(lambda call: None)
        client.serve(calls)
        waits = client.register("inbox/7", timeout=60)
        client.flush()
        manual.stop()
    assert client._lazy.made is None
    assert isinstance(waits.result().error, td.ClosedError)


def test_another_thread_waits_until_the_test_moves_the_clock(manual: Manual, client: td.Client) -> None:
    found: list[td.Outcome] = []
    thread = threading.Thread(target=lambda: found.append(client.register("inbox/7", timeout=20).result()))
    thread.start()
    manual.until_waiting(1)
    manual.advance(20)
    thread.join()
    assert [outcome.state for outcome in found] == [td.State.EXPIRED]
    with pytest.raises(AssertionError, match="0 of 1 threads"):
        manual.until_waiting(1, timeout=0.01)


def test_a_callback_that_waits_is_refused_as_by_a_real_client(manual: Manual, client: td.Client) -> None:
    refused: list[str] = []
    other = client.register("other", timeout=60)

    def wait(operation: td.Operation) -> None:
        try:
            other.result()
        except RuntimeError as error:
            refused.append(str(error))

    client.register("inbox/7", timeout=1).add_done_callback(wait)
    manual.advance(1)
    assert "would wait for itself" in refused[0]


# asyncio --------------------------------------------------------------------------------------------------------------


def test_a_loop_on_the_clock_takes_no_time(manual: Manual) -> None:
    async def main() -> None:
        client = aio.client()
        assert (await client.register("inbox/7", timeout=30)).state is td.State.EXPIRED
        waits = client.register("inbox/7", timeout=30)
        await asyncio.sleep(10)
        assert await client.fire_wait("inbox/7", value=b"hello") == 1
        assert (await waits).value == b"hello"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.register("never", timeout=None), 3)
        assert await asyncio.to_thread(threading.active_count) > 1

    manual.run(main())
    assert manual.now == pytest.approx(43)


def test_a_coroutine_that_nothing_wakes_raises(manual: Manual) -> None:
    async def main() -> None:
        await aio.client().register("never", timeout=None)

    with pytest.raises(WouldBlockError, match="no operation has a deadline"):
        manual.run(main())


def test_handlers_of_calls_are_tasks_of_the_loop(manual: Manual) -> None:
    calls = td.Calls()
    ran: list[float] = []

    @calls.every("cleanup", seconds=60)
    async def cleanup(call: td.Call) -> None:
        await asyncio.sleep(1)
        ran.append(manual.now)

    async def main() -> None:
        async with aio.connect(group="web") as worker:
            worker.serve(calls)
            await asyncio.sleep(180)

    manual.run(main())
    assert len(ran) == 3


def test_a_subscription_of_a_coroutine_is_woken(manual: Manual) -> None:
    async def main() -> list[bytes]:
        async with aio.connect() as client:
            subscription = client.subscribe("chat/7")
            client.fire("chat/7", value=b"one")
            client.fire("chat/7", value=b"two")
            return [item.value async for item in until(subscription, 2)]

    async def until(subscription: aio.Subscription, count: int) -> AsyncIterator[td.Event]:
        for _ in range(count):
            item = await subscription.next(timeout=10)
            assert isinstance(item, td.Event)
            yield item

    assert manual.run(main()) == [b"one", b"two"]


def test_a_plain_loop_goes_on_when_the_test_moves_the_clock(manual: Manual) -> None:
    async def main() -> td.Outcome:
        async with aio.connect() as client:
            waiting = asyncio.ensure_future(client.register_wait("inbox/7", timeout=30))
            operation = await waiting
            manual.advance(30)
            return await operation

    assert asyncio.run(main()).state is td.State.EXPIRED
