"""Subscriptions in a loop: cancelled awaits lose nothing, and thousands of subscribers share one watch."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from timerd_client import aio


def test_a_cancelled_await_takes_nothing(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client, client.subscribe("k") as subscription:
            found = []
            for number in range(200):
                waiting = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(0)
                client.fire("k", value=b"%d" % number)
                if number % 2:
                    await client.flush()
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    found.append(await waiting)
            while len(found) < 200:
                found.append(await asyncio.wait_for(anext(subscription), PATIENCE_S))
            assert [int(each.value) for each in found if isinstance(each, td.Event)] == list(range(200))

    asyncio.run(main())


def test_the_end_of_a_task_closes_its_subscription(daemon: Daemon) -> None:
    async def follow(client: aio.Client, into: list[Any]) -> None:
        async with client.subscribe("k") as subscription:
            async for item in subscription:
                into.append(item)

    async def main() -> None:
        async with aio.connect() as client:
            seen: list[list[Any]] = [[] for _ in range(10)]
            tasks = [asyncio.ensure_future(follow(client, into)) for into in seen]
            await asyncio.sleep(0)
            client.fire("k", value=b"1")
            while not all(seen):
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            while client.stats().waiting:
                await asyncio.sleep(0.001)
            subscription = client.subscribe("k")
            await subscription.aclose()
            assert [item async for item in subscription] == []

    asyncio.run(main())


def test_a_subscription_of_another_thread_wakes_its_loop(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            subscription = await asyncio.to_thread(client.subscribe, "k")
            await asyncio.to_thread(client.fire, "k", value=b"v")
            item = await subscription.next(PATIENCE_S)
            assert isinstance(item, td.Event) and item.value == b"v"
            waiting = asyncio.ensure_future(subscription.next(PATIENCE_S))
            await asyncio.sleep(0)
            await asyncio.to_thread(subscription.close)
            assert await waiting is None

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_subscribers_of_one_key_get_every_event(daemon: Daemon, count: int) -> None:
    events = 5

    async def follow(subscription: aio.Subscription) -> list[bytes]:
        found = []
        async for item in subscription:
            assert isinstance(item, td.Event), item
            found.append(item.value)
            if len(found) == events:
                break
        return found

    async def main() -> None:
        async with aio.connect() as client:
            subscriptions = [client.subscribe("k") for _ in range(count)]
            tasks = [asyncio.ensure_future(follow(each)) for each in subscriptions]
            await client.flush(timeout=PATIENCE_S)
            assert client.stats().waiting == 1
            for number in range(events):
                client.fire("k", value=b"%d" % number)
            found = await asyncio.gather(*tasks)
            assert all(each == [b"%d" % number for number in range(events)] for each in found)

    asyncio.run(main())
