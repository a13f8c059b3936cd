"""The client of this process, and the effect of a fork on clients."""

from __future__ import annotations

import os
from collections.abc import Callable

from timerd_client.discovery.settings import guards, settings
from timerd_client.link import link as link_module
from timerd_client.link.base import logger
from timerd_shm.declare.errors import InvalidValueError
from timerd_wire.native import lock

from .client import Client

_client: Client | None = None
_client_lock = lock()
_inherited: list[object] = []  # the parent's links: kept, never closed


def _change_settings(change: Callable[[], None]) -> None:
    """Change the settings of the next client. Raises InvalidValueError while a client is open."""
    with _client_lock:
        if _client is not None and not _client.closed:
            raise InvalidValueError("configure() after client(): call it first, or close() that client before")
        change()


guards.append(_change_settings)


def client() -> Client:
    """The client of this process: one for all callers, and a new client after it was closed. Making it needs no daemon.

    The client has the settings of `configure()`. Without settings, its instance is $TIMERD_INSTANCE, else "default",
    and it is in no group. It connects at its first use, and anew in a forked child. Raises InvalidNameError for a wrong
    $TIMERD_INSTANCE.
    """
    global _client
    mine = _client
    if mine is not None and not mine.closed:
        return mine
    with _client_lock:
        if _client is None or _client.closed:
            _client = Client(**settings)
        return _client


def _after_fork_in_child() -> None:
    # The child has no I/O thread, its locks may stay held without end, and the sockets belong to the parent.
    global _client_lock
    _client_lock = lock()
    for link in link_module.links:
        _inherited.append(link)
        try:
            link.seal_because("it was made before a fork, in the parent")
            link.idle = False
            link.lock = lock()
            link.connection.sockets.forked()
        except Exception:  # go on with the other links
            logger.exception("this forked child may have copies of descriptors of its parent")
    link_module.links.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
