"""Named calls with real daemons and processes: registries, ids, errors, schedules, threaded and asyncio clients."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from timerd_client import aio
from timerd_shm.declare.limits import CALLS_HELD_MAX, HANDLED_NAMES_MAX


def member(**more: Any) -> td.Client:
    return td.connect(group="web", timeout=PATIENCE_S, **more)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with member() as made:
        yield made


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


# former traps: calls that were acknowledged without a run, or dropped; schedules that ended --------------------------


@asynccontextmanager
async def aio_member() -> AsyncIterator[aio.Client]:
    async with aio.connect(group="web", timeout=PATIENCE_S) as made:
        yield made


def test_a_coroutine_function_is_refused_by_a_threaded_client(client: td.Client) -> None:
    """In an earlier version, its calls were acknowledged without having run."""
    calls = td.Calls()

    @calls.handler("never")
    async def never(call: td.Call) -> None:
        raise AssertionError

    with pytest.raises(td.InvalidValueError, match=r"'never' is a coroutine function.*td\.aio"):
        client.serve(calls)
    reports = td.Calls()

    async def report(call: td.Call, error: BaseException) -> None:
        raise AssertionError

    reports.handler("job", on_failure=report)(print)
    with pytest.raises(td.InvalidValueError, match="coroutine function"):
        client.serve(reports)


def test_a_function_that_returns_a_coroutine_has_failed(client: td.Client, caplog: pytest.LogCaptureFixture) -> None:
    failed: list[BaseException] = []

    async def work(call: td.Call) -> None:
        raise AssertionError

    serve(client, "job", lambda call: work(call), on_failure=lambda call, error: failed.append(error))
    client.call_later("job", 0)
    eventually(lambda: failed)
    assert "awaits nothing" in str(failed[0])


@pytest.mark.parametrize("how", ["raises", "cancels its task", "cancels and returns"])
def test_a_handler_that_cancels_itself_does_not_end_its_schedule(daemon: Daemon, how: str) -> None:
    async def work() -> None:
        attempts: list[int] = []

        async def often(call: td.Call) -> None:
            attempts.append(call.attempt)
            if len(attempts) > 1:
                return
            if how == "raises":
                raise asyncio.CancelledError
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if how == "cancels its task":
                await asyncio.sleep(60)

        async with aio_member() as client:
            serve(client, "often", often, seconds=0.05)
            await until(lambda: len(attempts) >= 3)

    asyncio.run(work())


def test_a_handler_that_raises_has_failed_and_its_call_is_retried(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """In an earlier version, such a call counted as done."""
    attempts: list[int] = []
    failed: list[tuple[td.Call, BaseException]] = []
    calls = td.Calls(group="web")

    def report(call: td.Call, error: BaseException) -> None:
        failed.append((call, error))

    @calls.handler("remind", retries=2, backoff=timedelta(milliseconds=10), on_failure=report)
    def remind(call: td.Call) -> None:
        attempts.append(call.attempt)
        raise RuntimeError("of the handler")

    with caplog.at_level(logging.WARNING):
        client.serve(calls)
        client.call_later(remind, 0, b"user 7")
        eventually(lambda: failed)
    assert attempts == [1, 2, 3]
    assert [(call.payload, call.attempt, str(error)) for call, error in failed] == [(b"user 7", 3, "of the handler")]
    assert "attempt 3: the call is over" in caplog.text and "RuntimeError: of the handler" in caplog.text
    stats = client.stats()
    assert (stats.calls_done, stats.calls_failed, stats.calls_retried) == (1, 3, 2)


def test_a_second_call_of_a_name_is_a_call_of_its_own(client: td.Client) -> None:
    """In an earlier version, the second call was dropped, and call_later() returned False."""
    payloads: list[bytes] = []
    serve(client, "remind", lambda call: payloads.append(call.payload))
    for user in (7, 8):
        client.call_later("remind", 0, b"user %d" % user)
    eventually(lambda: sorted(payloads) == [b"user 7", b"user 8"])


# ids and handles ------------------------------------------------------------------------------------------------------


def test_a_call_with_an_id_is_refused_kept_or_replaced(client: td.Client) -> None:
    payloads: list[bytes] = []
    call = client.call_later_wait("remind", 60, b"1", id="user-8")
    assert (call.name, call.id) == ("remind", "user-8")
    with member() as other:
        with pytest.raises(td.OperationExistsError, match="'user-8' exists"):
            other.call_later_wait("remind", 60, b"2", id="user-8")
        other.call_later_wait("remind", 60, b"3", id="user-8", if_exists="keep")
        other.call_later("remind", 60, b"4", id="user-8", if_exists="keep")
        other.flush()
        other.call_later("remind", 60, b"5", id="user-8")
        with pytest.raises(td.OperationExistsError):
            other.flush()
        other.call_at("remind", datetime.now(UTC), b"6", id="user-8", if_exists="replace")
        serve(client, "remind", lambda call: payloads.append(call.payload))
        eventually(lambda: payloads == [b"6"])
        eventually(lambda: is_free(other, "user-8"), "a call that is done leaves its id free")


def is_free(client: td.Client, id: str) -> bool:
    with suppress(td.OperationExistsError):
        return bool(client.call_later_wait("remind", 60, id=id))
    return False


def test_a_handle_cancels_and_reschedules_and_so_does_any_process_by_the_id(client: td.Client) -> None:
    ran: list[str] = []
    serve(client, "job", lambda call: ran.append(call.id))
    call, named = client.call_later("job", 60), client.call_later("job", 60, id="named")
    assert call.reschedule_wait(timedelta(seconds=50)) and call.cancel_wait()
    assert not call.cancel_wait() and not call.reschedule_wait(1)
    with member() as other:
        assert other.reschedule_call_wait("named", 30)
        other.reschedule_call("named", 0)
        other.flush()
        eventually(lambda: ran == ["named"])
        eventually(lambda: not other.cancel_call_wait("named"))
        third = client.call_later_wait("job", 60)
        other.cancel_call(third.id)
        other.flush()
        assert not third.reschedule_wait(0)
    named.cancel()
    named.reschedule(3)
    client.flush()
    assert ran == ["named"]


def test_calls_that_were_made_without_a_daemon_come_when_there_is_one(
    make_daemon: Callable[..., Daemon], runtime_dir: Path
) -> None:
    with td.Client(group="web") as client:
        payloads: list[bytes] = []
        serve(client, "job", lambda call: payloads.append(call.payload))
        client.call_later("job", 0.01, b"early")
        make_daemon()
        eventually(lambda: payloads == [b"early"])


# registries -----------------------------------------------------------------------------------------------------------


def test_a_registry_is_served_by_any_number_of_clients_and_takes_more_handlers(daemon: Daemon) -> None:
    names: list[str] = []
    calls = td.Calls()
    calls.handler("a")(lambda call: names.append(call.name))
    with member() as one, member() as other:
        one.serve(calls)
        other.serve(calls, calls)
        calls.handler("b")(lambda call: names.append(call.name))
        other.serve(calls)
        for name in ("a", "b"):
            one.call_later(name, 0)
        eventually(lambda: sorted(names) == ["a", "b"])
    assert len(calls) == 2 and "a, b" in repr(calls)


def test_a_wrong_registry_or_handler_is_refused_by_name(client: td.Client) -> None:
    calls = td.Calls(group="batch")
    with pytest.raises(td.NotAMemberError, match="group 'batch', and this client is in 'web'"):
        client.serve(calls)
    with pytest.raises(td.InvalidNameError):
        td.Calls(group="The Web")
    calls = td.Calls()
    with pytest.raises(td.InvalidValueError, match="'job' takes the call"):
        calls.handler("job")(lambda: None)  # type: ignore[type-var]
    with pytest.raises(td.InvalidValueError, match="on_failure of 'job' takes the call and the error"):
        calls.handler("job", on_failure=lambda call: None)  # type: ignore[arg-type,misc]
    with pytest.raises(td.InvalidValueError, match="retries=-1"):
        calls.handler("job", retries=-1)
    with pytest.raises(td.InvalidValueError, match="concurrency=0"):
        calls.handler("job", concurrency=0)
    with pytest.raises(td.InvalidValueError, match="backoff='soon'"):
        calls.handler("job", backoff="soon")  # type: ignore[arg-type]
    with pytest.raises(td.InvalidKeyError):
        calls.handler(b"job")  # type: ignore[arg-type]
    calls.handler("job")(print)
    with pytest.raises(td.InvalidValueError, match="another name"):
        calls.handler("job")(print)
    client.serve(calls)
    with pytest.raises(td.InvalidValueError, match="has a handler in this client"):
        serve(client, "job", repr)
    with pytest.raises(td.InvalidValueError, match=r"serve a td\.Calls"):
        client.serve(print)  # type: ignore[arg-type]
    with pytest.raises(td.InvalidValueError, match="at_once=0"):
        client.serve(calls, at_once=0)
    many = td.Calls()
    for number in range(HANDLED_NAMES_MAX):
        many.handler(f"name {number}")(print)
    with pytest.raises(td.InvalidValueError, match=r"serve\(\) of 257 names: a client handles 256 at most"):
        client.serve(many)


@pytest.mark.long
@pytest.mark.parametrize("at_once", [None, CALLS_HELD_MAX])
def test_a_client_may_take_a_thousand_calls_at_once(client: td.Client, at_once: int | None) -> None:
    """In an earlier version, the daemon refused more than 256. Only the log showed that, and no call came at all."""
    ran: list[str] = []
    calls = td.Calls()
    calls.handler("job", concurrency=CALLS_HELD_MAX)(lambda call: ran.append(call.id))
    client.serve(calls, at_once=at_once)
    for number in range(300):
        client.call_later("job", 0, id=f"{number}")
    eventually(lambda: len(set(ran)) == 300, "calls are missing")


def test_a_handler_runs_as_many_calls_at_once_as_its_concurrency_says(client: td.Client) -> None:
    together, alone = threading.Barrier(3), threading.Lock()
    ran: list[str] = []
    overlapped: list[bool] = []
    calls = td.Calls()

    @calls.handler("together", concurrency=3)
    def meet(call: td.Call) -> None:
        together.wait(PATIENCE_S)
        ran.append(call.name)

    @calls.handler("alone")
    def be_alone(call: td.Call) -> None:
        overlapped.append(not alone.acquire(blocking=False))
        time.sleep(0.02)
        alone.release()
        ran.append(call.name)

    client.serve(calls)
    for name in ("alone", "together") * 3:
        client.call_later(name, 0)
    eventually(lambda: len(ran) == 6)
    assert overlapped == [False] * 3


# schedules ------------------------------------------------------------------------------------------------------------


def test_handlers_run_and_a_failing_handler_does_not_end_its_schedule(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[td.Call] = []

    def often(call: td.Call) -> None:
        calls.append(call)
        if len(calls) == 1:
            raise RuntimeError("of the handler")

    with caplog.at_level(logging.WARNING):
        serve(client, "often", often, seconds=0.05)
        eventually(lambda: len(calls) >= 3)
    assert "of the handler" in caplog.text
    assert len({call.due for call in calls}) == len(calls)
    assert all(call.deliveries == 1 and call.name == call.id == "often" for call in calls)


def test_a_failed_point_is_retried_before_the_schedule_goes_on(client: td.Client) -> None:
    seen: list[tuple[int, datetime | None]] = []

    def often(call: td.Call) -> None:
        seen.append((call.attempt, call.due))
        if len(seen) < 3:
            raise RuntimeError

    serve(client, "often", often, seconds=0.05, retries=5, backoff=0.01)
    eventually(lambda: len(seen) >= 5)
    assert [attempt for attempt, _ in seen[:5]] == [1, 2, 3, 1, 1]


def test_a_schedule_survives_a_killed_daemon_and_a_new_arena(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    calls: list[td.Call] = []
    worker = member()
    serve(worker, "often", calls.append, seconds=0.05)
    eventually(lambda: len(calls) >= 2)
    daemon.kill()
    daemon.start()
    before = len(calls)
    eventually(lambda: len(calls) >= before + 2)
    daemon.destroy()  # and its arena
    daemon.start()
    before = len(calls)
    eventually(lambda: len(calls) >= before + 2)
    with suppress(td.SessionGoneError):  # for commands that were on their way to the destroyed arena
        worker.close()
    assert len({call.due for call in calls}) == len(calls)


def test_a_changed_schedule_takes_effect_at_once(daemon: Daemon, client: td.Client) -> None:
    with member() as old:
        serve(old, "job", print, cron="0 3 * * *")
        eventually(lambda: daemon.stats()["counters"]["pending"] == 1)
    calls: list[td.Call] = []
    serve(client, "job", calls.append, seconds=0.1)
    eventually(lambda: len(calls) >= 2)
    assert all(call.deliveries == 1 and call.due and call.due.hour * 60 + call.due.minute != 180 for call in calls)


# closing --------------------------------------------------------------------------------------------------------------


def test_close_waits_for_the_handler_that_runs(daemon: Daemon) -> None:
    began, done = threading.Event(), threading.Event()
    with member() as worker:

        def slow(call: td.Call) -> None:
            began.set()
            time.sleep(0.2)
            done.set()

        serve(worker, "slow", slow)
        worker.call_later("slow", 0)
        assert began.wait(PATIENCE_S)
    assert done.is_set()
    with member() as other:
        again: list[td.Call] = []
        serve(other, "slow", again.append)
        time.sleep(0.2)
        assert not again


def test_a_handler_may_close_its_client(daemon: Daemon) -> None:
    worker, closed = member(), threading.Event()

    def last(call: td.Call) -> None:
        worker.close(timeout=0.2)
        closed.set()

    serve(worker, "last", last)
    worker.call_later("last", 0)
    assert closed.wait(PATIENCE_S)


def test_a_callback_that_closes_the_client_does_not_wait_for_a_handler(client: td.Client) -> None:
    started, release, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(call: td.Call) -> None:
        started.set()
        release.wait(PATIENCE_S)

    def close(_: object) -> None:
        try:
            client.close()
        except RuntimeError:  # the client's own thread would wait for itself
            closed.set()

    serve(client, "slow", slow)
    client.call_later("slow", 0)
    assert started.wait(PATIENCE_S)
    client.register("k", timeout=30).add_done_callback(close)
    client.fire("k")
    assert closed.wait(PATIENCE_S / 2), "the client's own thread waits for the handler"
    release.set()


def test_a_call_whose_handler_outlasts_the_close_runs_again_on_another_worker(client: td.Client) -> None:
    began, hold = threading.Event(), threading.Event()
    worker = member()

    def stuck(call: td.Call) -> None:
        began.set()
        hold.wait(PATIENCE_S)

    serve(worker, "stuck", stuck)
    worker.call_later("stuck", 0)
    assert began.wait(PATIENCE_S)
    calls: list[tuple[int, int]] = []
    serve(client, "stuck", lambda call: calls.append((call.deliveries, call.attempt)))
    worker.close(timeout=0.1)
    eventually(lambda: calls == [(2, 1)])
    hold.set()


# asyncio --------------------------------------------------------------------------------------------------------------


def test_an_asyncio_member_runs_handlers_and_makes_calls(daemon: Daemon) -> None:
    async def work() -> None:
        done: list[td.Call] = []
        calls = aio.Calls()

        @calls.every("often", seconds=0.05)
        async def often(call: td.Call) -> None:
            await asyncio.sleep(0.01)
            done.append(call)
            if len(done) == 1:
                raise RuntimeError("of the handler")

        calls.handler("once")(done.append)
        async with aio_member() as client:
            client.serve(calls)
            client.call_later("once", 0.01, b"x")
            never = await client.call_at_wait("never", datetime(2100, 1, 1, tzinfo=UTC), id="never")
            with pytest.raises(td.OperationExistsError):
                await client.call_later_wait("never", 0.01, id="never")
            assert await never.reschedule_wait(50)
            assert await client.reschedule_call_wait("never", 60)
            assert await never.cancel_wait() and not await client.cancel_call_wait("never")
            await until(
                lambda: [call.name for call in done].count("often") >= 3 and len({call.name for call in done}) == 2
            )
        due = [call.due for call in done if call.due]
        assert len(set(due)) == len(due)

    asyncio.run(work())


def test_an_asyncio_member_runs_as_many_calls_of_a_name_as_its_concurrency_says(daemon: Daemon) -> None:
    async def work() -> None:
        together = asyncio.Barrier(5)
        running, most, ran = 0, 0, 0
        calls = aio.Calls()

        @calls.handler("together", concurrency=5)
        async def meet(call: td.Call) -> None:
            nonlocal ran
            await together.wait()
            ran += 1

        @calls.handler("two", concurrency=2)
        async def two(call: td.Call) -> None:
            nonlocal running, most, ran
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.01)
            running -= 1
            ran += 1

        async with aio_member() as client:
            client.serve(calls)
            for _ in range(5):
                client.call_later("together", 0)
                client.call_later("two", 0)
            await until(lambda: ran == 10)
        assert most == 2

    asyncio.run(work())


def test_closing_an_asyncio_client_waits_for_its_handlers(daemon: Daemon) -> None:
    async def work() -> list[str]:
        done: list[str] = []
        async with aio_member() as client:
            began = asyncio.Event()

            async def slow(call: td.Call) -> None:
                began.set()
                await asyncio.sleep(0.2)
                done.append("slow")

            serve(client, "slow", slow)
            client.call_later("slow", 0)
            await asyncio.wait_for(began.wait(), PATIENCE_S)
        return done

    assert asyncio.run(work()) == ["slow"]


def test_a_handler_that_outlasts_an_asyncio_close_is_cancelled_and_its_call_is_requeued(daemon: Daemon) -> None:
    async def work() -> None:
        began, cancelled = asyncio.Event(), asyncio.Event()

        async def stuck(call: td.Call) -> None:
            began.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        worker = await aio.connect(group="web", timeout=PATIENCE_S)
        serve(worker, "stuck", stuck, retries=3)
        worker.call_later("stuck", 0)
        await asyncio.wait_for(began.wait(), PATIENCE_S)
        await worker.close(timeout=0.1)
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
        again: list[tuple[int, int]] = []
        async with aio_member() as other:
            serve(other, "stuck", lambda call: again.append((call.deliveries, call.attempt)))
            await until(lambda: again == [(2, 1)])

    asyncio.run(work())


# operations of the group ----------------------------------------------------------------------------------------------


def test_an_operation_of_the_group_goes_to_a_live_member_and_outlives_its_registrar(client: td.Client) -> None:
    with member() as registrar:
        mine = registrar.register("k", timeout=60, orphans="group")
        operation = registrar.register("k", timeout=60, payload=b"the group's", group=True)
        assert operation.keys == ("k",) and operation.payload == b"the group's"
        registrar.flush()
        registrar.fire("k", value=b"v")
        outcomes = client.outcomes(timeout=PATIENCE_S)  # kept: a freed iterator requeues what is not done
        outcome = next(outcomes)
        assert (outcome.payload, outcome.value, outcome.keys) == (b"the group's", b"v", ("k",))
        assert outcome.ack_wait()
        assert mine.result(PATIENCE_S).value == b"v", "an outcome belongs to its owner while the owner lives"
        registrar.register("left", timeout=60, payload=b"left", id="left", group=True)
    client.reschedule_wait("left", 0)
    (outcome,) = client.outcomes(timeout=0.5)
    assert (outcome.payload, outcome.state) == (b"left", td.State.EXPIRED)


def test_the_handle_of_a_group_s_operation_cancels_and_reschedules(client: td.Client) -> None:
    operation = client.register(["a", "b"], timeout=60, when=td.ALL, group=True)
    operation.reschedule(50)
    operation.cancel()
    client.flush()
    with pytest.raises(td.UnknownOperationError):
        client.cancel_wait(operation.id)
    (outcome,) = client.outcomes(timeout=0.5)
    assert outcome.state is td.State.CANCELLED
    client.register("k", timeout=60, id="one", group=True)
    client.register("k", timeout=60, id="one", group=True, if_exists="keep")
    client.flush()
    client.register("k", timeout=60, id="one", group=True)
    with pytest.raises(td.OperationExistsError):
        client.flush()
    with pytest.raises(td.InvalidValueError, match="the group is the owner"):
        client.register("k", timeout=1, group=True, orphans="keep")  # type: ignore[call-overload]
