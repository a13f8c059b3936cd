"""The link of a client: made at the first use, and made anew in a forked child and after the end of its loop.

    client = td.Client()        # gunicorn's master, or a module: no file, no thread
    client.fire("inbox/7")      # a worker: now there is a link, of this process's own

A client and its purgatories share one Lazy. They ask it for the link when the one that they have is sealed: so a call
of the fast path costs no look-up. Nothing here waits for a daemon.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from timerd_client.discovery.identity import identity
from timerd_client.discovery.late_sockets import LateSockets, files_named
from timerd_client.discovery.target import Target
from timerd_client.hot import Ledger, Line
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.state import LinkState
from timerd_client.protocol.statistics import Statistics
from timerd_client.transport.lifeline import changing
from timerd_client.transport.make import make_sockets
from timerd_client.transport.sockets import Sockets
from timerd_shm.declare.errors import ClosedError, TimerdError
from timerd_shm.host.paths import InstancePaths, instance_name
from timerd_wire.native import lock
from timerd_wire.transports import Transport

from .base import Use
from .link import Link
from .process_end import process_end
from .withdrawals import withdraw

LinkT = TypeVar("LinkT", bound=Link)

# The newest opener makes every link of this process, from (make, target, purgatories) of `Lazy`. See timerd.testing.
openers: list[Callable[[Callable[..., Any], Target, list[str]], Any]] = []
_all: weakref.WeakSet[Lazy[Any]] = weakref.WeakSet()
_inherited: list[object] = []  # the parent's links: kept, never closed


class Dormant(Line):
    """Stands for the link of a client before its first use. It is sealed, so each call asks for the link."""

    def __init__(self) -> None:
        super().__init__(lambda: 0)
        self.sealed = True


DORMANT: Final = Dormant()
NO_LEDGER: Final = Ledger(0)


class Lazy(Generic[LinkT]):
    """The link of a client, in this process."""

    def __init__(self, target: Target, make: Callable[..., LinkT], made: LinkT | None = None) -> None:
        """`make` makes a link of (paths, protocol, sockets, purgatories=names)."""
        self.target = target
        self.closed = False
        self.purgatories: list[str] = []  # those that were named, without the default one
        self._make = make
        self._lock = lock()
        self._link = made
        self._use: Use | None = None if made is None else made.use()  # while it is referred to, the link goes on
        _all.add(self)

    @property
    def made(self) -> LinkT | None:
        """The link, if there is one in this process."""
        return self._link

    @property
    def instance(self) -> str:
        """The name of the instance."""
        return instance_name(self.target.instance)

    def link(self) -> LinkT:
        """The link, which is made now if there is none. Raises ClosedError, ResourceLimitError."""
        link = self._link
        if link is not None and not link.is_outlived():
            return link
        with self._lock:
            link = self._link
            if link is not None and not link.is_outlived():
                return link
            if openers:
                self._refuse_closed()
                return self._use_link(openers[-1](self._make, self.target, self.purgatories))
            late = LateSockets(self.target, 0)
            late.tend(0)
            return self._open(late.paths, lambda: late.found or late)

    def open(self, paths: InstancePaths) -> LinkT:
        """Make the link to the daemon that was found there. Raises ClosedError, ResourceLimitError."""
        with self._lock:
            return self._open(paths, lambda: make_sockets(self.target.transport, paths))

    def _open(self, paths: InstancePaths, sockets_to: Callable[[], Sockets]) -> LinkT:
        self._refuse_closed()
        target = self.target
        with changing, files_named():  # a fork waits, because a child closes whole links
            sockets = sockets_to()
            try:
                who = identity(target.label, target.orphans, target.group, target.takeover_ms)
                link = self._make(paths, Protocol(who, monotonic_ns()), sockets, purgatories=self.purgatories)
            except BaseException:
                sockets.close(linger=False)
                raise
        return self._use_link(link)

    def _use_link(self, link: LinkT) -> LinkT:
        self._link, self._use = link, link.use()
        process_end.watch(link)
        return link

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ClosedError("this client is closed: close() was called; make another one, or use td.client()")

    def close(self) -> LinkT | None:
        """From now on, make no link. Returns the present link, if there is one."""
        with self._lock:
            self.closed = True
            return self._link

    def forked(self) -> None:
        """In a forked child: the link is the parent's."""
        self._lock = lock()
        if self._link is not None:
            _inherited.append((self._link, self._use))
            self._link = self._use = None


class CommonClient(Generic[LinkT]):
    """The common base of the clients of both faces, beside their purgatory and their group."""

    _lazy: Lazy[LinkT]

    if TYPE_CHECKING:

        def _live(self) -> LinkT: ...

    @property
    def name(self) -> str:
        """The label of this client in `timerctl clients`."""
        return self._lazy.target.label

    @property
    def instance(self) -> str:
        """The name of its instance."""
        return self._lazy.instance

    @property
    def group(self) -> str | None:
        """The group of which it is a member, or None."""
        return self._lazy.target.group

    @property
    def transport(self) -> Transport:
        """The transport: "zeromq" or "unix"."""
        return self._lazy.target.transport

    @property
    def state(self) -> LinkState:
        """CONNECTING (also before the first use), HELLO, LIVE, LOST or CLOSED."""
        link = self._lazy.made
        if link is not None:
            return link.protocol.state
        return LinkState.CLOSED if self._lazy.closed else LinkState.CONNECTING

    @property
    def connected(self) -> bool:
        """Whether the daemon is there: False before its first frame, after 3 s without one, and 2 s after its end."""
        return self.state is LinkState.LIVE

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._lazy.closed

    @property
    def incarnation(self) -> bytes:
        """The 16 bytes that name this client at the daemon; others after the daemon has forgotten it."""
        return self._live().protocol.session.incarnation

    def stats(self) -> Statistics:
        """The counters of this client: pending operations, operations given up, late outcomes, and more."""
        link = self._live()
        with link.lock:
            return link.protocol.statistics()

    def cancel_all(self) -> None:
        """Cancel all operations that this client has pending, in every purgatory. Returns at once."""
        link = self._live()
        with link.lock:
            pending = list(link.protocol.ledger.pending)
        withdraw(link, pending)

    def _close_has_raised(self, failure: TimerdError, error: BaseException | None) -> None:
        """At the end of a `with` block: raise the failure. If the block raises `error`, log the failure instead."""
        link = self._lazy.made
        if error is None or link is None:
            raise failure
        link.complain(f"close() after {type(error).__name__} raises {type(failure).__name__}: {failure}")

    def __repr__(self) -> str:
        return f"<Client of {self.instance!r} {self.state.value}>"


def _after_fork_in_child() -> None:
    for lazy in list(_all):
        lazy.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
