"""The client of this process, and what a fork and the end of the process do to clients."""

from __future__ import annotations

import atexit
import os
import threading

import zmq

from timerd_client.arguments import group_of, label_of, orphans_of, patience_of
from timerd_client.link import link as link_module
from timerd_client.link.link import Link, unacknowledged
from timerd_client.link.sockets import forget_context
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .client import Client, ThreadedLink
from .connection import connect, settings

EXIT_SILENCE_S = 1.0  # the end of a process waits no longer for a daemon that says nothing

_client: Client | None = None
_client_lock = threading.Lock()
_inherited: list[Link | zmq.Context[zmq.Socket[bytes]] | Client] = []  # the parent's: kept, never closed or terminated


def configure(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float | None = None,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
    runtime_dir: str | None = None,
) -> None:
    """What `client()`, timerd_client.aio's too, gives to connect(), here and in forked processes. Connects to nothing.

    So it may stand in a module that gunicorn loads before it forks. Raises what connect() raises for wrong arguments,
    and InvalidValueError if `client()` has been used in this process.
    """
    orphans_of(orphans, group_of(group))
    label_of(name)
    patience_of(timeout)
    with _client_lock:
        if _client is not None and not _client.closed:
            raise InvalidValueError("configure() after client(): it is connected; configure() first, or close() it")
        settings.update(
            instance=instance,
            autostart=autostart,
            timeout=timeout,
            group=group,
            orphans=orphans,
            name=name,
            runtime_dir=runtime_dir,
        )


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
