"""The client of this process and of the running loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable

from timerd_client.discovery.settings import guards, settings
from timerd_shm.declare.errors import InvalidValueError

from .client import Client

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()
_unbound: Client | None = None  # made where no loop ran
os.register_at_fork(after_in_child=_clients.clear)


def _change_settings(change: Callable[[], None]) -> None:
    """Change the settings of clients that client() makes later. Raises InvalidValueError while one of them is open."""
    of_loops = [_clients.get(loop) for ref in _clients.keyrefs() if (loop := ref()) is not None]
    used = [one for one in (*of_loops, _unbound) if one is not None]
    if any(not one.closed for one in used):
        raise InvalidValueError("configure() after aio.client(): call it first, or close() that client before")
    change()


guards.append(_change_settings)


def client() -> Client:
    """The client of this process and the running loop: one for all callers, and another one after it was closed.

    It has the settings of `configure()`. Without these its instance is $TIMERD_INSTANCE, else "default", and it is in
    no group. It needs no daemon, and connects at its first use. In a module, where no loop runs, it is the client of
    the loop that uses it first.
    """
    global _unbound
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if _unbound is None or _unbound.closed:
            _unbound = Client(**settings)
        return _unbound
    if _unbound is not None and not _unbound.closed and _unbound._lazy.is_free_for(loop):
        return _unbound
    mine = _clients.get(loop)
    if mine is None or mine.closed:
        mine = _clients[loop] = Client(**settings)
    return mine
