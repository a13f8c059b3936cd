"""A program whose last acts are calls of a client. Run as `python lastacts.py START KEY`, it ends in the way START.

`act` makes the calls. test_process_ends.py checks that they have arrived.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

START, KEY = sys.argv[1:] if __name__ in ("__main__", "__mp_main__") else ("", "")
GROUP = "acts"
STARTS: dict[str, Callable[[], object]] = {}
VERBS = ("fire", "advance", "register", "call_later")


def call(client: Any, key: str, verb: str) -> None:
    """Make one call. The test can ask the daemon afterwards whether the call has arrived."""
    match verb:
        case "fire":
            client.fire(f"{key}/fired", value=b"last")
        case "advance":
            client.advance(f"{key}/mark", 7)
        case "register":
            client.register(f"{key}/kept", timeout=600, orphans="keep")
        case "call_later":
            client.call_later("nobody", 600, id=f"{key}/call")


def act(key: str = "") -> None:
    """Make the call that the key names after its last slash. If the key names none, make all calls, `fire` last."""
    call_all(td.client(), key or KEY)


def call_all(client: Any, key: str) -> None:
    *_, verb = key.split("/")
    for each in (verb,) if verb in VERBS else reversed(VERBS):
        call(client, key, each)


def start(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Declare a way in which the program ends."""

    def note(run: Callable[[], object]) -> Callable[[], object]:
        STARTS[name] = run
        return run

    return note


if START == "atexit, registered before the import":
    atexit.register(act)

import timerd as td  # noqa: E402 - the tests are about the place of this import

if START == "atexit, registered after the import":
    atexit.register(act)

if START:
    td.configure(group=GROUP)
STARTS["atexit, registered before the import"] = STARTS["atexit, registered after the import"] = lambda: None
STARTS["end of main"] = act


# the end of main --------------------------------------------------------------------------------------------------


@start("sys.exit")
def _() -> None:
    act()
    sys.exit(0)


@start("unhandled exception")
def _() -> None:
    act()
    raise SystemError("as it should be")


@start("non-daemon thread")
def _() -> None:
    import threading

    def late() -> None:
        threading.main_thread().join()
        act()

    threading.Thread(target=late).start()


@start("executor that has not begun")
def _() -> None:
    import threading
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(1)
    begun = threading.Event()
    threading._register_atexit(begun.set)  # type: ignore[attr-defined] # before the executor waits for its threads
    executor.submit(begun.wait)
    executor.submit(act)


# handlers -----------------------------------------------------------------------------------------------------------


@start("atexit, registered after the first use")
def _() -> None:
    td.client().fire("first")
    atexit.register(act)


@start("atexit, registered before the first use")
def _() -> None:
    atexit.register(act)
    td.client().fire("first")


@start("atexit, before and after the first use")
def _() -> None:
    atexit.register(act)
    td.client().fire("first")
    atexit.register(td.client().advance, "also", 1)


@start("atexit of a client that waits")
def _() -> None:
    def wait() -> None:
        client = td.client()
        operation = client.register("own", timeout=60)
        assert client.fire_wait("own", value=b"v") == 1
        assert operation.result().value == b"v"
        assert client.wait_for(lambda: True, "own", timeout=1)
        assert [one.done() for one in td.as_completed([client.register("soon", timeout=0.01)])] == [True]
        with td.connect() as other:
            other.fire("k")
        client.purgatory("box").fire("k")
        act()
        client.flush()

    atexit.register(wait)


@start("atexit of a client that another handler has closed")
def _() -> None:
    def late() -> None:
        try:
            closed.fire("k")
        except td.ClosedError as error:
            assert "close() was called" in str(error)
            act()

    atexit.register(late)
    closed = td.Client()
    closed.fire_wait("k")
    atexit.register(closed.close)


class Ends:
    """An object with a finalizer that acts."""


@start("weakref.finalize, before the first use")
def _() -> None:
    import weakref

    globals()["kept"] = kept = Ends()
    weakref.finalize(kept, act, KEY)
    td.client().fire("first")


@start("weakref.finalize, after the first use")
def _() -> None:
    import weakref

    td.client().fire("first")
    globals()["kept"] = kept = Ends()
    weakref.finalize(kept, act, KEY)


@start("logging handler")
def _() -> None:
    import logging
    import logging.handlers

    class Firing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            act()

    logging.getLogger().addHandler(logging.handlers.MemoryHandler(1_000, 1_000, Firing()))
    logging.getLogger("app").warning("kept until the flush of logging.shutdown()")


@start("signal handler that exits")
def _() -> None:
    import os
    import signal

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    act()
    os.kill(os.getpid(), signal.SIGTERM)


# forks --------------------------------------------------------------------------------------------------------------


def child(method: str, target: Callable[..., object] = act, *arguments: object, status: int = 0) -> None:
    """Run `target` in a child of multiprocessing."""
    import multiprocessing

    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=target, args=arguments or (KEY,))
    process.start()
    process.join()
    assert process.exitcode == status, process.exitcode


for _method in ("fork", "forkserver", "spawn"):
    start(_method)(lambda method=_method: child(method))  # type: ignore[misc]


@start("fork of a process that has used its client")
def _() -> None:
    td.client().fire_wait("first")
    child("fork")


@start("os.fork")
def _() -> None:
    import os

    td.client().fire_wait("first")
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        act()


def act_and_close(key: str) -> None:
    with td.connect(group=GROUP) as client:
        call_all(client, key)


@start("close of a child")
def _() -> None:
    child("fork", act_and_close)


def act_and_exit(key: str) -> None:
    act(key)
    sys.exit(3)


def act_and_raise(key: str) -> None:
    act(key)
    raise SystemError("as it should be")


def act_at_exit(key: str) -> None:
    """Act in two finalizers: one runs before the client's own finalizer, the other after it."""
    import multiprocessing.util

    for priority in (10, -1_000):
        multiprocessing.util.Finalize(None, act, (key,), exitpriority=priority)
    td.client().fire("first")


def act_in_finalizer(key: str) -> None:
    import multiprocessing.util

    multiprocessing.util.Finalize(None, act, (key,), exitpriority=-1_000)


@start("sys.exit of a child")
def _() -> None:
    child("fork", act_and_exit, KEY, status=3)


@start("unhandled exception of a child")
def _() -> None:
    child("fork", act_and_raise, KEY, status=1)


@start("finalizers of a child")
def _() -> None:
    child("fork", act_at_exit)


@start("first use in a finalizer of a child")
def _() -> None:
    child("fork", act_in_finalizer)


@start("first use in a hook of the fork")
def _() -> None:
    import multiprocessing.util  # noqa: F401
    import os

    td.client()
    os.register_at_fork(after_in_child=act)
    child("fork", len)


@start("Pool(maxtasksperchild=1)")
def _() -> None:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        pool.map(act, [KEY])
        pool.map(int, [0], 1)  # states a chunk size: to compute one, map() needs children, and the child has ended
        pool.close()
        pool.join()


@start("Pool that is closed")
def _() -> None:
    import multiprocessing

    pool = multiprocessing.get_context("fork").Pool(1)
    pool.map(act, [KEY])
    pool.close()
    pool.join()


@start("ProcessPoolExecutor")
def _() -> None:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as executor:
        executor.submit(act, KEY).result()


@start("billiard")
def _() -> None:
    billiard = import_module("billiard")
    process = billiard.Process(target=act, args=(KEY,))
    process.start()
    process.join()


@start("billiard.Pool")
def _() -> None:
    billiard = import_module("billiard")
    pool = billiard.Pool(1)
    pool.map(act, [KEY])
    pool.close()
    pool.join()


# asyncio, gevent ----------------------------------------------------------------------------------------------------


async def act_in_loop() -> None:
    call_all(td.aio.client(), KEY)


@start("asyncio.run")
def _() -> None:
    import asyncio

    asyncio.run(act_in_loop())


@start("asyncio.run in a child")
def _() -> None:
    import asyncio

    child("fork", lambda _: asyncio.run(act_in_loop()))


@start("asyncio.run in a handler of atexit")
def _() -> None:
    import asyncio

    atexit.register(lambda: asyncio.run(act_in_loop()))


@start("loop that was not closed")
def _() -> None:
    import asyncio

    globals()["loop"] = loop = asyncio.new_event_loop()
    loop.run_until_complete(act_in_loop())


@start("loop that was closed by hand")
def _() -> None:
    import asyncio

    loop = asyncio.new_event_loop()
    loop.run_until_complete(act_in_loop())
    loop.close()


@start("handler of atexit, of a loop that was not closed")
def _() -> None:
    import asyncio

    async def use() -> Any:
        client = td.aio.client()
        await client.ready()
        return client

    atexit.register(lambda: call_all(client, KEY))
    globals()["loop"] = loop = asyncio.new_event_loop()
    client = loop.run_until_complete(use())


@start("loop of a daemon thread")
def _() -> None:
    import asyncio
    import threading

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(act_in_loop(), loop).result()


@start("gevent")
def _() -> None:
    import_module("gevent.monkey").patch_all()
    act()


@start("gevent, handler of atexit")
def _() -> None:
    import_module("gevent.monkey").patch_all()
    atexit.register(act)


if __name__ == "__main__":
    STARTS[START]()
