"""When a coroutine is cancelled, its operation is withdrawn, and a limited event goes to the next waiter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from timerd_client import aio

Waiting = Callable[[Any, Any], Awaitable[Any]]
WAYS: dict[str, Waiting] = {
    "await operation": lambda client, operation: awaited(operation),
    "operation.result()": lambda client, operation: operation.result(PATIENCE_S),
    "a threaded client's": lambda client, operation: awaited(operation),  # await an operation of a threaded client
}


async def awaited(operation: Any) -> Any:
    return await operation


@pytest.mark.parametrize("way", WAYS)
def test_a_limited_event_that_arrives_at_the_moment_of_a_cancellation_goes_to_the_next(
    daemon: Daemon, way: str
) -> None:
    async def main() -> None:
        threaded = "threaded" in way
        async with aio.connect() as client:
            owner: Any = await asyncio.to_thread(td.connect) if threaded else client
            first = owner.register("job", timeout=PATIENCE_S)
            await asyncio.to_thread(owner.flush) if threaded else await client.flush()
            task = asyncio.ensure_future(WAYS[way](client, first))
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            # The task that awaits `first` is about to go on, and is cancelled before it goes on.
            first.add_done_callback(lambda _: loop.call_soon_threadsafe(task.cancel) if threaded else task.cancel())
            second = await client.register_wait("job", timeout=PATIENCE_S)
            client.fire("job", value=b"once", limit=1)
            if threaded:
                await asyncio.wait([task])
                if not task.cancelled():
                    second.cancel()  # the task went on before it was cancelled, so it has got the event
                    return
            else:
                with pytest.raises(asyncio.CancelledError):
                    await task
            outcome = await second.result(PATIENCE_S)
            assert (outcome.value, outcome.redelivered) == (b"once", True)
            if threaded:
                await asyncio.to_thread(owner.close)

    asyncio.run(main())


async def settled_one(client: Any, operation: Any) -> None:
    async for _ in aio.as_completed([operation], PATIENCE_S):
        pass


PATIENT: dict[str, Waiting] = {
    "flush": lambda client, operation: client.flush(timeout=PATIENCE_S),
    "as_completed": settled_one,
}


@pytest.mark.parametrize("way", PATIENT)
def test_a_cancellation_at_the_moment_of_the_answer_is_not_swallowed(daemon: Daemon, way: str) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            operation = client.register("k", timeout=PATIENCE_S)
            client.fire("k")
            task = asyncio.ensure_future(PATIENT[way](client, operation))
            await asyncio.sleep(0)
            cancelled: list[bool] = []
            operation.add_done_callback(lambda _: cancelled.append(task.cancel()))
            await asyncio.wait([task])
            assert not cancelled or task.cancelled() is cancelled[0]

    asyncio.run(main())


def test_an_await_that_is_cancelled_withdraws_its_operation(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.register("k", timeout=60), 0.05)
            batch = client.register_many(["k", "l"], timeout=60)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(batch, 0.05)
            left = client.register("k", timeout=60)
            with pytest.raises(TimeoutError):
                await left.result(0.05)
            done, pending = await aio.wait([left], 0.05)
            assert (done, pending) == ([], [left])
            assert await client.fire_wait("k") == 1 and await client.fire_wait("l") == 0
            assert await left

    asyncio.run(main())


def test_commands_of_another_thread_are_sent_at_once(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            operations: list[Any] = []
            for number in range(20):
                operation = client.register(f"k/{number}", timeout=60)
                began = asyncio.get_running_loop().time()
                await asyncio.to_thread(client.fire, f"k/{number}", value=b"of a thread")
                assert (await operation).value == b"of a thread"
                assert asyncio.get_running_loop().time() - began < 0.9, "the command waited for the next heartbeat"
            await asyncio.to_thread(lambda: operations.append(client.register("mine", timeout=60)))
            client.fire("mine")
            assert await operations[0]

    asyncio.run(main())


def test_a_client_that_is_left_open_flushes_when_its_loop_ends(daemon: Daemon) -> None:
    with td.connect() as watcher:
        seen = [watcher.register(f"k/{number}", timeout=PATIENCE_S) for number in range(3)]
        watcher.flush()
        client = aio.client()

        async def main(number: int) -> None:
            client.fire(f"k/{number}", value=b"last")

        for number in range(3):
            asyncio.run(main(number))
        assert [one.result(PATIENCE_S).value for one in seen] == [b"last"] * 3
        assert aio.client() is client


def test_columns_larger_than_the_window_send_nothing_and_say_what_to_do(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            with pytest.raises(td.BackpressureError, match=r"nothing was sent: `await client.room\(65536\)`"):
                client.fire_many(["k"] * 70_000)
            with pytest.raises(td.BackpressureError, match="send 65536 at most at once"):
                client.register_many(["k"] * 70_000, timeout=1)
            assert client.stats()[:2] == (0, 0)  # nothing pending, nothing unacknowledged
            client.fire_many(["k"] * 60_000)
            with pytest.raises(td.BackpressureError, match=r"room\(10000\)"):
                client.fire_many(["k"] * 10_000)
            assert await client.room(10_000, timeout=PATIENCE_S) >= 10_000
            client.fire_many(["k"] * 10_000)
            await client.flush(timeout=PATIENCE_S)

    asyncio.run(main())


def test_wait_returns_with_the_first_or_with_all(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            one, other = client.register("1", timeout=60), client.register("2", timeout=60)
            client.fire("2")
            done, pending = await aio.wait([one, other], PATIENCE_S, until="first")
            assert (done, pending) == ([other], [one])
            with pytest.raises(td.InvalidValueError, match="until='some': give 'first' or 'all'"):
                await aio.wait([one], 0.1, until="some")  # type: ignore[arg-type]

    asyncio.run(main())
