"""The asyncio client with real daemons: features that only this client has.

Only in a loop can operations be awaited, and awaits be cancelled. An asyncio client belongs to a process and to a loop,
which may be closed before the client. A threaded client waits for room within a call; an asyncio client has room().
"""

from __future__ import annotations

import asyncio
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from timerd import ALL, State
from timerd_client import aio
from timerd_client.aio import process


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def test_asyncio_has_the_same_surface(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            operation = client.register("k", timeout=PATIENCE_S)
            client.fire("k", value=b"v")
            assert (await operation).value == b"v"
            assert await client.fire_wait("k") == 0
            assert (await client.register("never", timeout=0.02)).state is State.EXPIRED
            assert await client.register("c", timeout=None).cancel_wait()
            fetch = await client.purgatory("fetch")
            id = uuid4().hex  # tests of both transports may share a daemon
            watched = await fetch.register_wait(["a", "b"], timeout=PATIENCE_S, when=ALL, id=id)
            assert await fetch.reschedule_wait(id, 60)
            fetch.fire("a")
            fetch.fire("b")
            assert (await watched.result(PATIENCE_S)).satisfied == ("a", "b")
            batch = client.register_many(["x", "y"], timeout=PATIENCE_S)
            client.fire_many(["y", "x"], values=[b"1", b"2"])
            assert await batch.values() == [b"2", b"1"]
            assert await client.wait_for(lambda: 0, keys="q", timeout=0.02) == 0
            several = [client.register(f"{index}", timeout=0.01) for index in range(3)]
            assert len([one async for one in aio.as_completed(several, PATIENCE_S)]) == 3
            never = client.register("never", timeout=None)
            with pytest.raises(TimeoutError, match=r"1 of 4 operations have not settled within 0\.01 s"):
                assert len([one async for one in aio.as_completed([*several, never], 0.01)]) == 3
            with pytest.raises(TimeoutError):
                await client.register("t", timeout=5).result(0.01)
            await client.flush()

    asyncio.run(main())


def test_configure_looks_at_the_clients_of_loops_while_other_threads_make_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients are made while lines of the module weakref run, because another thread may make one there."""
    closed = aio.Client()
    asyncio.run(closed.close())
    clients = weakref.WeakKeyDictionary({asyncio.new_event_loop(): closed})
    monkeypatch.setattr(process, "_clients", clients)
    monkeypatch.setattr(process, "_unbound", None)  # another test may have left one
    loops = list(clients)

    def make(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == weakref.__file__ and len(loops) < 5:
            loops.append(asyncio.new_event_loop())
            clients[loops[-1]] = closed
        return make

    before = sys.gettrace()
    sys.settrace(make)
    try:
        process._change_settings(lambda: None)
    finally:
        sys.settrace(before)
    assert len(loops) > 1, "nothing was made: the test sees nothing"
    for loop in loops:
        loop.close()


def test_asyncio_has_a_client_for_each_process_and_loop(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> aio.Client:
        client = aio.client()
        assert client is aio.client()
        operation = client.register("k", timeout=PATIENCE_S)
        client.fire("k")
        assert (await operation).state is State.COMPLETED
        client.register("for ever", timeout=None)
        return client

    async def use_again() -> aio.Client:
        await (await use()).close()
        return await use()

    asyncio.run(use())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio.run(use())
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    second = asyncio.run(use_again())
    eventually(lambda: daemon.stats()["counters"]["clients"] == 0)
    assert not second.closed, "the client cannot be used in another loop"
    assert not caplog.records


def test_without_a_daemon_every_asyncio_caller_gets_the_error_and_a_later_call_tries_again(
    make_daemon: Callable[..., Daemon],
) -> None:
    async def main() -> None:
        asked = await asyncio.gather(aio.client().ping(), aio.client().ping(), return_exceptions=True)
        assert [type(error) for error in asked] == [td.TimerdUnavailableError] * 2
        make_daemon()
        client = aio.client()
        await client.ready(timeout=PATIENCE_S)
        await client.close()

    asyncio.run(main())


def test_a_cancelled_await_cancels_its_operation(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.register("k", timeout=None), 0.02)
            assert await client.fire_wait("k") == 0

    asyncio.run(main())


def test_awaits_that_are_cancelled_in_a_full_window_cancel_their_operations(daemon: Daemon) -> None:
    async def wait(client: aio.Client, key: str) -> td.Outcome:
        return await client.register(key, timeout=None)

    async def main() -> None:
        async with aio.connect() as client:
            tasks = [asyncio.create_task(wait(client, "k")) for _ in range(50)]
            await asyncio.sleep(0)
            client._protocol.ledger.window = 50
            with pytest.raises(td.BackpressureError):
                client.fire("other")
            for task in tasks:
                task.cancel()
            assert {type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)} == {
                asyncio.CancelledError
            }
            await client.room()
            assert await client.fire_wait("k") == 0

    asyncio.run(main())


def test_a_client_whose_loop_is_closed_raises_an_error_that_names_it(daemon: Daemon) -> None:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(aio.connect())
    loop.close()
    for _ in range(2):
        with pytest.raises(td.ClosedError):
            client.fire("k")
        with pytest.raises(td.ClosedError):
            client.register("k", timeout=1)


def test_asyncio_backpressure_is_raised_at_once_and_room_can_be_awaited(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            client._protocol.ledger.window = 50
            with pytest.raises(td.BackpressureError, match="room"):
                for _ in range(51):
                    client.fire("k")
            assert await client.room() > 0
            client.fire("k")

    asyncio.run(main())


def test_one_loop_awaits_a_thousand_operations(daemon: Daemon) -> None:
    async def main() -> None:
        async with aio.connect() as client:
            operations = [client.register(f"w{index}", timeout=PATIENCE_S) for index in range(1000)]

            async def outcome(operation: aio.Operation) -> td.Outcome:
                return await operation

            waits = asyncio.gather(*map(outcome, operations))
            client.fire_many([f"w{index}" for index in range(1000)])
            assert all(await waits)

    asyncio.run(main())
