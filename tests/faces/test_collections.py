"""A garbage collection ends an abandoned coroutine, even if the collecting thread holds the client's lock.

There is a test for each way to have such a coroutine: an operation of the threaded client that is awaited in a loop,
and a wait of the asyncio client.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import timerd_client as td
from support.real.faces import THREADED
from support.real.patience import PATIENCE_S, eventually
from timerd_client import aio


def collect_under_the_lock(lock: threading.Lock, left: list[Any]) -> None:
    """Put the only reference to an object into a cycle, and collect under the lock, so that this collection ends it."""
    cycle: list[Any] = [left.pop()]
    cycle.append(cycle)
    del cycle
    with lock:
        gc.collect()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` in a thread, so that a deadlock becomes a failure."""
    done: list[bool] = []

    def target() -> None:
        asyncio.run(main())
        done.append(True)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert done, "the thread waits for itself"


@THREADED
def test_an_await_of_a_threaded_operation_collected_under_the_lock_does_not_deadlock(client: td.Client) -> None:
    operation = client.register("k", timeout=None)

    async def main() -> None:
        waiting = operation.__await__()
        next(waiting)
        left = [waiting]
        del waiting
        collect_under_the_lock(client._link.lock, left)

    run(main)
    eventually(lambda: not operation._callbacks)
    client.fire("k")
    assert operation.result(PATIENCE_S)


@THREADED
def test_an_asyncio_wait_for_collected_under_the_lock_withdraws_its_operation(client: td.Client) -> None:
    async def main() -> None:
        mine = await aio.connect()
        waiting = mine.wait_for(lambda: False, "never", timeout=None)
        waiting.send(None)
        assert await mine.ping() >= 0
        left: list[Any] = [waiting]
        del waiting
        collect_under_the_lock(mine._link.lock, left)
        end = asyncio.get_running_loop().time() + PATIENCE_S
        while mine.stats().waiting and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        assert mine.stats().waiting == 0
        await mine.close()

    run(main)
    assert client.fire_wait("never") == 0
