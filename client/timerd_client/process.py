"""The client of this process, and what a fork and the end of the process do to clients."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading

import zmq

from timerd_shm.errors import TimerdError

from . import link as link_module
from .connection import connect
from .link import Link
from .protocol import LinkState
from .threaded import Client, ThreadedLink

EXIT_TIMEOUT_S = 1.0

_client: Client | None = None
_client_lock = threading.Lock()
_inherited: list[Link | zmq.Context[zmq.Socket[bytes]] | Client] = []  # the parent's: kept, never closed or terminated


def client() -> Client:
    """The client of this process: made on first use, and again after a fork or after it was closed.

    Its instance is $TIMERD_INSTANCE, else "default". Raises TimerdUnavailableError.
    """
    global _client
    mine = _client
    if mine is not None and not mine.closed:
        return mine
    with _client_lock:
        if _client is None or _client.closed:
            _client = connect()
        return _client


def _after_fork_in_child() -> None:
    # The I/O thread does not exist here, locks may be held for ever, and the sockets are the parent's.
    global _client, _client_lock
    _client_lock = threading.Lock()
    if _client is not None:
        _inherited.append(_client)
        _client = None
    for link in list(link_module.links):
        link.closed = True
        link.idle = False
        link.lock = threading.Lock()
        _inherited.append(link)
    link_module.links.clear()
    context = link_module.forget_context()
    if context is not None:
        _inherited.append(context)


def _at_exit() -> None:
    """Say what was issued and goodbye; a second at most, and nothing to a daemon that is not there."""
    for link in list(link_module.links):
        if isinstance(link, ThreadedLink) and not link.closed:
            protocol = link.protocol
            if protocol.state is LinkState.LIVE:
                with contextlib.suppress(TimerdError), link.lock:
                    link.wait_locked(lambda p=protocol: p.applied >= p.issued, EXIT_TIMEOUT_S)  # type: ignore[misc]
            link.stop(EXIT_TIMEOUT_S)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
