"""A connection of client and daemon, by whose end each of the two notices that the other has ended.

The client shows its session over the connection, and keeps the connection open as long as it lives. The kernel closes
it with the process, however the process ends. The daemon sends nothing. No other process may hold a copy, because a
copy would make a dead client seem alive: an exec closes it, and a forked child closes its copy. Without the connection
(an older daemon, too many clients) everything still works: the daemon looks at the process, or waits for a lease.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Final

from timerd_shm.declare.limits import HEARTBEAT_NS
from timerd_shm.host.paths import InstancePaths, listens
from timerd_wire import native

# If a connection has lasted longer than this, its end means that the daemon has ended. If it ends sooner, it was
# refused, unless no daemon listens.
REFUSED_NS: Final = HEARTBEAT_NS
RETRY_FIRST_NS: Final = 50_000_000
RETRY_LAST_NS: Final = 60_000_000_000

# Held while a connection is made or closed, and during a fork, so that a child knows all copies that it has.
changing = native.recursive_lock()
_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


class Lifeline:
    """One client's connection to NAME.live. It is made when there is a session, and made again after its end."""

    def __init__(self, paths: InstancePaths) -> None:
        self._paths = paths
        self._socket: socket.socket | None = None
        self._session = b""
        self._held_ns = 0  # when the connection was made
        self._retry_at_ns = 0
        self._retry_wait_ns = RETRY_FIRST_NS
        with changing:
            _lifelines.add(self)

    def fileno(self) -> int:
        """The descriptor, which is readable when the connection has ended; -1 = there is no connection."""
        return -1 if self._socket is None else self._socket.fileno()

    def is_held(self, session: bytes) -> bool:
        """Whether the session was shown to the daemon."""
        return self._session == session

    def hold(self, session: bytes, now_ns: int) -> bool:
        """Show this session to the daemon. Returns False if this is not possible now. Does not block."""
        if now_ns < self._retry_at_ns:
            return False
        self.let_go()
        with changing:
            made: socket.socket | None = None
            try:
                made = native.unix_socket(socket.SOCK_STREAM)
                made.setblocking(False)
                self._paths = self._paths.judged()
                self._paths.connect(made, self._paths.liveness)
                made.send(session)
            except OSError:
                if made is not None:
                    made.close()
                self._wait(now_ns)
                return False
            self._socket = made
        self._session = session
        self._held_ns = now_ns
        return True

    def has_ended(self, now_ns: int) -> bool:
        """Whether the daemon has ended; if not, it refused the connection. Call it when the descriptor is readable."""
        if self._socket is None:
            return False
        with contextlib.suppress(BlockingIOError, InterruptedError):
            with contextlib.suppress(ConnectionResetError):
                self._socket.recv(1)
            self.let_go()
            if now_ns - self._held_ns < REFUSED_NS and self._is_refused():
                self._wait(now_ns)
                return False
            self._retry_wait_ns = RETRY_FIRST_NS
            return True
        return False

    def _is_refused(self) -> bool:
        """Whether a daemon listens: then it has ended the connection. A daemon that ends first stops listening."""
        with changing:  # no fork meanwhile: a child would have a copy of the connection that is made here
            return listens(self._paths)

    def let_go(self) -> None:
        """Close the connection."""
        with changing:
            if self._socket is not None:
                self._socket.close()
                self._socket = None
            self._session = b""

    def _wait(self, now_ns: int) -> None:
        self._retry_at_ns = now_ns + self._retry_wait_ns
        self._retry_wait_ns = min(2 * self._retry_wait_ns, RETRY_LAST_NS)


def _after_fork_in_child() -> None:
    for lifeline in list(_lifelines):
        lifeline.let_go()
    changing.release()


os.register_at_fork(before=changing.acquire, after_in_parent=changing.release, after_in_child=_after_fork_in_child)
