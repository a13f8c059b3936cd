"""The client of this process, and what a fork and the end of the process do to clients."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

import zmq

from timerd_client.link import link as link_module
from timerd_client.link.link import Link, unacknowledged
from timerd_client.link.settings import guards, settings
from timerd_client.link.sockets import forget_context
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .client import Client
from .connection import connect
from .link import ThreadedLink

EXIT_SILENCE_S = 1.0  # the end of a process waits no longer for a daemon that says nothing

_client: Client | None = None
_client_lock = threading.Lock()
_inherited: list[Link | zmq.Context[zmq.Socket[bytes]] | Client] = []  # the parent's: kept, never closed or terminated


def _change_settings(change: Callable[[], None]) -> None:
    """Change what the next client is made with; raises InvalidValueError while one is connected."""
    with _client_lock:
        if _client is not None and not _client.closed:
            raise InvalidValueError("configure() after client(): it is connected; configure() first, or close() it")
        change()


guards.append(_change_settings)


def client() -> Client:
    """The client of this process: made on first use, and again after a fork or after it was closed.

    It is made as `configure()` said; else its instance is $TIMERD_INSTANCE, else "default", and it is in no group.
    Raises TimerdUnavailableError, and PermissionError where this user may not look.
    """
    global _client
    mine = _client
    if mine is not None and not mine.closed:
        return mine
    with _client_lock:
        if _client is None or _client.closed:
            _client = connect(**settings)
        return _client


def _after_fork_in_child() -> None:
    # The I/O thread does not exist here, locks may be held for ever, and the sockets are the parent's.
    global _client, _client_lock
    _client_lock = threading.Lock()
    if _client is not None:
        _inherited.append(_client)
        _client = None
    for link in list(link_module.links):
        link.sealed = link.closed = True
        link.idle = False
        link.lock = threading.Lock()
        _inherited.append(link)
    link_module.links.clear()
    context = forget_context()
    if context is not None:
        _inherited.append(context)


def _at_exit() -> None:
    """Say what was issued and goodbye: as in close() while the daemon answers, and nothing to one that is not there.

    A handler that runs is waited for, and so is the word that its call is done: else another would be told, and run it
    again.
    """
    for link in list(link_module.links):
        if isinstance(link, ThreadedLink) and not link.closed:
            link.finish(CLOSE_TIMEOUT_S)
            link.seal()
            left = link.wait_applied(CLOSE_TIMEOUT_S, EXIT_SILENCE_S)
            if left:
                link.complain(f"the process ends, and {unacknowledged(left)} ({link.plight()})")
            link.stop(EXIT_SILENCE_S)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
