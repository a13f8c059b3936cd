"""The clients of this process in a test: each connects anew for the test. A client that the test makes ends with it.

    client = td.client()              # of a module: the same object in all tests
    client.serve(calls)               # at import: it serves in each test, from the beginning on

A client that a module has made stays. The things that a test makes end with the test: its `td.client()`, its settings
by `configure()`, and what it has given to `serve()`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from timerd_client.aio import process as of_loops
from timerd_client.aio.link import LoopLink
from timerd_client.discovery.late_sockets import LateSockets
from timerd_client.discovery.settings import settings
from timerd_client.discovery.target import Target
from timerd_client.groups.membership import serving
from timerd_client.groups.registry import Job
from timerd_client.link import flows
from timerd_client.link.lazy import CommonClient, Lazy, lazies
from timerd_client.link.link import Link
from timerd_client.threaded import process
from timerd_client.threaded.client import Client
from timerd_client.threaded.link import ThreadedLink, drive
from timerd_shm.declare.errors import TimerdError

END_TIMEOUT_S = 1.0
WHY = "the test in which it connected has ended, or another test has begun; what it makes now belongs to the new one"

log = logging.getLogger("timerd.testing")
# Handlers that clients have served outside of tests, as at the import of their module, and how many may run at once.
served_outside: WeakKeyDictionary[Any, tuple[dict[str, Job], int | None]] = WeakKeyDictionary()


@contextmanager
def connected_anew(
    is_meant: Callable[[Target], bool], while_ending: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """In this block, which is one test, the clients for which `is_meant` is true have connections of their own.

    Threaded clients that serve calls of a group connect at once, so that their handlers run. All others, also those of
    asyncio, connect at their next use. At the end of the test the connections end within `while_ending()`.
    """
    end_connections(lambda lazy: is_meant(lazy.target))
    kept = Kept()
    for client, (served, at_once) in list(served_outside.items()):
        if is_meant(client._lazy.target):
            client._served, client._at_once = {**served, **(client._served or {})}, at_once
            serving.add(client)
    for client in list(serving):
        if isinstance(client, Client) and client._served and not client.closed and is_meant(client._lazy.target):
            client._live()
    try:
        yield
    finally:
        try:
            with while_ending():
                end_connections(lambda lazy: is_meant(lazy.target))
        finally:
            kept.restore()


def end_kept_away() -> None:
    """A test begins: let clients that were kept away from the machine's daemon look for it at their next use.

    Handlers that they served run only in tests with a fixture of timerd. In another test, a client that the test only
    looks with would run real calls.
    """
    for client in list(serving):
        if isinstance(client, CommonClient) and client._served and _is_kept_away(client._lazy):
            served_outside[client] = client._served, client._at_once
            client._served = client._at_once = None
    end_connections(_is_kept_away)


def _is_kept_away(lazy: Lazy[Any]) -> bool:
    sockets = None if lazy.made is None else lazy.made.connection.sockets
    return isinstance(sockets, LateSockets) and bool(sockets.kept_away)


def end_connections(is_meant: Callable[[Lazy[Any]], bool]) -> None:
    """End the connections of the clients for which `is_meant` is true. An error of the last flush is logged."""
    for lazy in list(lazies):
        if lazy.makes_links and is_meant(lazy) and (link := lazy.leave()) is not None and not link.closed:
            link.why_closed = WHY
            try:
                _end(link)
            except TimerdError as error:
                log.warning("a client of %r in a test: %s: %s", lazy.instance, type(error).__name__, error)


def _end(link: Link) -> None:
    if isinstance(link, ThreadedLink):
        if link.connection.may_answer():
            drive(flows.end(link, END_TIMEOUT_S))
        else:  # the test has stopped its daemon, or outside of a test there was no daemon: no answer will come
            link.end_handlers(END_TIMEOUT_S)
            link.stop(END_TIMEOUT_S)
    elif isinstance(link, LoopLink) and not link.loop.is_closed():
        if not link.loop.is_running():
            link.stop()
        else:  # the loop runs in another thread, because a fixture is no coroutine
            link.loop.call_soon_threadsafe(link.stop)
            end = time.monotonic() + END_TIMEOUT_S
            while not link.closed and time.monotonic() < end:
                time.sleep(0.001)


class Kept:
    """The clients of the process, their settings, and the calls that clients serve, as they were before a test."""

    def __init__(self) -> None:
        self.serving: dict[Any, Any] = {one: (one._served, one._at_once) for one in list(serving)}
        self._client = process._client
        self._of_loops: dict[asyncio.AbstractEventLoop, Any] = dict(of_loops._clients)
        self._unbound = of_loops._unbound
        self._settings = dict(settings)

    def restore(self) -> None:
        """Undo what the test has set and made."""
        for client in list(serving):
            client._served, client._at_once = self.serving.get(client, (None, None))
        with process._client_lock:
            process._client = self._client
        of_loops._clients.clear()
        of_loops._clients.update(self._of_loops)
        of_loops._unbound = self._unbound
        settings.clear()
        settings.update(self._settings)
