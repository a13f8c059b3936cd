"""A client that was never closed, and to which no reference is left, ends once it has no pending operation."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from timerd_client import aio


def threads() -> int:
    return sum(thread.name.startswith("timerd") for thread in threading.enumerate())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def held(daemon: Daemon) -> tuple[int, int]:
    """The numbers of threads and descriptors of this process without a client."""
    td.connect(timeout=PATIENCE_S).close()  # libzmq's own threads and descriptors remain
    return threads(), descriptors()


def is_as_before(held: tuple[int, int]) -> bool:
    # There may also be fewer: libzmq closes a socket's descriptors a little after the socket was closed.
    return threads() <= held[0] and descriptors() <= held[1]


def clients_of(daemon: Daemon) -> int:
    return int(daemon.stats()["counters"]["clients"])


def test_a_dropped_client_keeps_neither_thread_nor_descriptors_nor_its_slot(
    daemon: Daemon, held: tuple[int, int]
) -> None:
    gc.disable()  # reference counts alone must end the client
    try:
        for _ in range(5):
            client = td.connect(timeout=PATIENCE_S)
            client.fire("k")
            client.purgatory("p").fire("k")
            assert client.register("k", timeout=0).result(PATIENCE_S).state is td.State.EXPIRED
            del client
        eventually(lambda: is_as_before(held), "a dropped client keeps threads or descriptors")
        eventually(lambda: clients_of(daemon) == 0, "the daemon keeps a dropped client")
    finally:
        gc.enable()


def test_events_from_before_a_client_was_dropped_are_applied(daemon: Daemon) -> None:
    with td.connect(timeout=PATIENCE_S) as other:
        pending = other.register("k", timeout=PATIENCE_S)
        other.flush()
        td.connect(timeout=PATIENCE_S).fire("k", value=b"v")
        assert pending.result(PATIENCE_S).value == b"v"


@pytest.mark.long
def test_a_pending_operation_keeps_its_dropped_client_until_it_has_settled(
    daemon: Daemon, held: tuple[int, int]
) -> None:
    called: list[object] = []
    operation = td.connect(timeout=PATIENCE_S).register("k", timeout=PATIENCE_S)
    td.connect(timeout=PATIENCE_S).register("k", timeout=PATIENCE_S).add_done_callback(called.append)
    with td.connect(timeout=PATIENCE_S) as other:
        other.flush()
        gc.collect()
        threading.Event().wait(1.5)  # more than a heartbeat, at which a dropped client would end
        assert other.fire_wait("k", value=b"v") == 2
        assert operation.result(PATIENCE_S).value == b"v"
        eventually(lambda: len(called) == 1, "the callback was lost")
    eventually(lambda: is_as_before(held), "a dropped client keeps threads or descriptors")
    assert operation.outcome() is not None


@pytest.mark.long
def test_a_purgatory_or_a_handler_keeps_its_dropped_client(daemon: Daemon, tmp_path: Path) -> None:
    purgatory = td.connect(timeout=PATIENCE_S).purgatory("p")
    called = threading.Event()
    worker = td.connect(group="web", timeout=PATIENCE_S)
    serve(worker, "job", lambda call: called.set())
    del worker
    gc.collect()
    threading.Event().wait(1.5)
    assert purgatory.fire_wait("k") == 0
    with td.connect(group="web", timeout=PATIENCE_S) as other:
        other.call_later("job", 0)
        assert called.wait(PATIENCE_S), "a handler does not keep its client"


# asyncio --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_dropped_asyncio_client_warns_and_ends(daemon: Daemon, held: tuple[int, int]) -> None:
    async def drop(during: int) -> None:
        for _ in range(5):
            client = await aio.connect(timeout=PATIENCE_S)
            client.fire("k")
            (await client.purgatory("p")).fire("k")
            assert (await client.register("k", timeout=0)).state is td.State.EXPIRED
            del client
        async with asyncio.timeout(PATIENCE_S):
            while descriptors() > during:
                gc.collect()
                await asyncio.sleep(0.02)

    async def work() -> None:
        async with aio.connect(timeout=PATIENCE_S) as other:
            pending = other.register("k", timeout=PATIENCE_S)
            await other.flush()
            with pytest.warns(ResourceWarning, match="unclosed client of 'default'"):
                await drop(descriptors())
            assert (await pending).state is td.State.COMPLETED, "an event from before the drop was lost"

    asyncio.run(work())
    eventually(lambda: is_as_before(held), "a dropped client keeps descriptors")
    eventually(lambda: clients_of(daemon) == 0, "the daemon keeps a dropped client")


@pytest.mark.long
def test_a_pending_operation_keeps_its_dropped_asyncio_client(daemon: Daemon) -> None:
    async def run() -> None:
        async with aio.connect(timeout=PATIENCE_S) as other:
            operation = (await aio.connect(timeout=PATIENCE_S)).register("k", timeout=PATIENCE_S)
            await asyncio.sleep(1.5)  # more than a heartbeat, at which a dropped client would end
            gc.collect()
            with pytest.warns(ResourceWarning):
                other.fire("k", value=b"v")
                assert (await operation).value == b"v"
                async with asyncio.timeout(PATIENCE_S):
                    while not operation._link.closed:
                        await asyncio.sleep(0.02)

    asyncio.run(run())


def test_an_asyncio_client_that_outlives_its_loop_was_closed_with_it(daemon: Daemon, held: tuple[int, int]) -> None:
    async def connect() -> aio.Client:
        return await aio.connect(timeout=PATIENCE_S)

    client = asyncio.run(connect())
    assert not client.connected
    eventually(lambda: is_as_before(held), "the client keeps descriptors")
