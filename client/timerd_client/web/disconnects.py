"""For WSGI: notices when the peer of a request has gone. One system thread sleeps at the sockets of all requests.

    peer closes --> epoll says EPOLLRDHUP --> the request's scope ends --> its wait raises RequestEnded

For ASGI, the server reports this, and asgi.py ends the scope. A peer that has only shut down its sending side counts as
gone, as with nginx. With gevent this is a system thread, too: a hub cannot wait for EPOLLRDHUP alone, and unread data
of the peer would wake the hub again and again.
"""

from __future__ import annotations

import contextlib
import os
import select
from typing import Final

from timerd_client.scope import Scope
from timerd_wire import native

from .requests import DISCONNECT

GONE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class Disconnects:
    """Ends the requests whose peers go away."""

    def __init__(self) -> None:
        self._lock = native.lock()
        self._epoll = native.epoll()
        self._requests: dict[int, Scope] = {}
        self._thread = native.Thread(self._run, "timerd-disconnects")
        self._thread.start()

    def watch(self, descriptor: int, request: Scope) -> None:
        """Until `unwatch`, end this request when the peer of its socket has gone."""
        with self._lock:
            self._requests[descriptor] = request
            try:
                self._epoll.register(descriptor, GONE | select.EPOLLONESHOT)
            except FileExistsError:
                self._epoll.modify(descriptor, GONE | select.EPOLLONESHOT)

    def unwatch(self, descriptor: int, request: Scope) -> None:
        """Stop watching. Call it before the socket is closed."""
        with self._lock:
            if self._requests.get(descriptor) is request:
                del self._requests[descriptor]
                with contextlib.suppress(OSError, ValueError):
                    self._epoll.unregister(descriptor)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._epoll.poll():
                request = self._whose_peer_has_gone(descriptor)
                if request is not None:
                    request.end(DISCONNECT)

    def _whose_peer_has_gone(self, descriptor: int) -> Scope | None:
        """The request whose peer has gone. Checks the socket, because the event may belong to an earlier one."""
        with self._lock:
            request = self._requests.get(descriptor)
            if request is None:
                return None
            looking = native.poll()
            looking.register(descriptor, select.POLLRDHUP)
            return request if looking.poll(0) else None


_disconnects: Disconnects | None = None
_lock = native.lock()


def disconnects() -> Disconnects:
    """The Disconnects of this process."""
    global _disconnects
    if _disconnects is None:
        with _lock:
            if _disconnects is None:
                _disconnects = Disconnects()
    return _disconnects


def _after_fork_in_child() -> None:
    global _disconnects, _lock
    _lock = native.lock()
    _disconnects = None


os.register_at_fork(after_in_child=_after_fork_in_child)
