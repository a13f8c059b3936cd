"""The link of a client: made at the first use, and anew in a forked child, after the end of its loop, and in a test.

    client = td.Client()        # gunicorn's master, or a module: no file, no thread
    client.fire("inbox/7")      # a worker: now the worker has a link of its own

A client and its purgatories share one Lazy. They ask the Lazy for a link only when their present link is sealed or left
(see leave()), so a call of the fast path needs no look-up. Nothing here waits for a daemon.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Unpack

from timerd_client.declared import CLIENT, ClientArguments
from timerd_client.discovery.identity import identity
from timerd_client.discovery.late_sockets import LateSockets, files_named
from timerd_client.discovery.target import Target, target_of
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

# If there are openers, the newest makes all links of this process: it is called with a Lazy's make, target and
# purgatories. See timerd.testing.
openers: list[Callable[[Callable[..., Any], Target, list[str]], Any]] = []
lazies: Final[weakref.WeakSet[Lazy[Any]]] = weakref.WeakSet()  # of all clients of this process
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
        self.purgatories: list[str] = []  # names of purgatories that were used, without "default"
        self.makes_links = made is None  # False: the link was given, and only its maker can make another one
        self._make = make
        self._lock = lock()
        self._link = made
        self._use: Use | None = None if made is None else made.use()  # the link goes on while something refers to this
        lazies.add(self)

    @property
    def made(self) -> LinkT | None:
        """The link, if there is one in this process."""
        return self._link

    @property
    def instance(self) -> str:
        """The name of the instance."""
        return instance_name(self.target.instance)

    def link(self) -> LinkT:
        """The link. It is made now if there is none. Raises ClosedError, ResourceLimitError."""
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
        """Make the link to the daemon at these paths. Raises ClosedError, ResourceLimitError."""
        with self._lock:
            return self._open(paths, lambda: make_sockets(self.target.transport, paths))

    def _open(self, paths: InstancePaths, sockets_to: Callable[[], Sockets]) -> LinkT:
        self._refuse_closed()
        target = self.target
        with changing, files_named():  # no fork meanwhile: a child closes only complete links
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
        """Make no links from now on. Returns the present link, if there is one."""
        with self._lock:
            self.closed = True
            return self._link

    def leave(self) -> LinkT | None:
        """Let the next use make another link. Returns the present one, if there is one: the caller has to end it."""
        with self._lock:
            link, self._link, self._use = self._link, None, None
            if link is not None:
                link.is_left = True
            return link

    def forked(self) -> None:
        """In a forked child: forget the link, which belongs to the parent."""
        self._lock = lock()
        if self._link is not None:
            _inherited.append((self._link, self._use))
            self._link = self._use = None


class CommonClient(Generic[LinkT]):
    """The common base of threaded and asyncio clients, without the calls of a purgatory and of a group."""

    _lazy: Lazy[LinkT]

    if TYPE_CHECKING:

        def _live(self) -> LinkT: ...
        def _take(self, lazy: Any, /) -> None: ...
        @staticmethod
        def _lazy_to(target: Target, link: Any = None) -> Lazy[Any]: ...

    @CLIENT.shown
    def __init__(self, instance: str | None = None, **arguments: Unpack[ClientArguments]) -> None:
        """A client of an instance (default: $TIMERD_INSTANCE, else "default").

        `group` is a named set of clients. Named calls, and operations that the group has adopted, are delivered to one
        live member. `orphans` says what becomes of this client's operations when its process dies: "cancel", "keep"
        (they stay pending, and nobody gets their outcomes) or "group" (the client's group adopts them). `autostart`
        starts the instance's daemon if none runs; such a daemon ends 10 s after its last client. `name` is a label for
        `timerctl clients`: printable text of at most 32 bytes. `runtime_dir` is the instance's directory (default:
        $TIMERD_RUNTIME_DIR, else the first of the user's places in which a daemon listens: docs/howto/operating.md).

        A live process may be silent, for example in a handler that keeps the GIL. The client keeps its unfinished calls
        and outcomes for `takeover` seconds of silence. Then other members of the group get them (default: 300; from 2
        to 3600; a time below the daemon's lease counts as the lease). If the process has ended or is stopped, other
        members get them earlier.

        `transport` is "zeromq", or "unix": packets over one Unix socket, without libzmq and its thread. With "unix",
        outcomes arrive sooner, and need less CPU at up to some 10,000 operations a second (default: $TIMERD_TRANSPORT,
        else "zeromq").

        Raises InvalidNameError, InvalidValueError, NotAMemberError (orphans="group" without a group),
        TimeoutOutOfRangeError (`takeover`).
        """
        self._take(self._lazy_to(target_of("Client", instance, arguments)))

    @classmethod
    def _over(cls, link: LinkT | None, target: Target | None = None) -> Self:
        """A client of this target, with this link if it is given."""
        client = cls.__new__(cls)
        client._take(cls._lazy_to(target or target_of("Client", None, {}), link))
        return client

    @property
    def name(self) -> str:
        """The label of this client in `timerctl clients`."""
        return self._lazy.target.label

    @property
    def instance(self) -> str:
        """The name of the client's instance."""
        return self._lazy.instance

    @property
    def group(self) -> str | None:
        """The group of which the client is a member, or None."""
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
        """The 16 bytes that name this client at the daemon. They change when the daemon has forgotten the client."""
        return self._live().protocol.session.incarnation

    def stats(self) -> Statistics:
        """The counters of this client: pending operations, operations given up, late outcomes, and more."""
        link = self._live()
        with link.lock:
            return link.protocol.statistics()

    def cancel_all(self) -> None:
        """Cancel all pending operations of this client, in every purgatory. Returns at once."""
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

    # threaded/ and aio/ override these calls without docstrings: help() and editors show the docstrings below.

    def ready(self, *given: Any, **named: Any) -> object:
        """Wait until the daemon has accepted this client. Raises the daemon's refusal, or TimerdUnavailableError."""

    def purgatory(self, *given: Any, **named: Any) -> object:
        """The purgatory with this name ([a-z0-9_-]{1,32}), made if it is new. Raises InvalidNameError, ArenaFullError.

        Before the client has connected, it returns at once. Later it asks the daemon, and raises TimerdUnavailableError
        after `timeout` s.
        """

    def ping(self, *given: Any, **named: Any) -> object:
        """Ask the daemon for an answer. Returns how many seconds that took.

        Raises TimerdUnavailableError after `timeout` seconds, or at once if the daemon is lost.
        """

    def fire_together_wait(self, *given: Any, **named: Any) -> object:
        """Fire (purgatory, key, value) of several purgatories in one frame: all events arrive, or none does.

        Returns the positions of the events for whose values the arena had no room. The other events are applied, in
        their order, before any other command. Raises TimerdUnavailableError after `timeout` s: then it is not known
        which were applied. The events and their values have to fit into one frame (4 MiB, and 128 KiB with
        transport="unix").
        """

    def set_orphans(self, *given: Any, **named: Any) -> object:
        """Set the policy of all pending operations, for the end of this client: "cancel", "keep" or "group".

        Later registrations have the policy of the client. Raises NotAMemberError, ClosedError, BackpressureError.
        """

    def flush(self, *given: Any, **named: Any) -> object:
        """Wait until everything issued so far has been applied. Raises TimerdUnavailableError after `timeout` s.

        Raises SessionGoneError if the daemon has forgotten this client since the last flush: then it is not known which
        commands were applied. Raises the refusal (ArenaFullError, QuotaExceededError) of a command without an operation
        to settle: `fire`, `advance`, `fail` and the like, or a deadline or policy that was changed without waiting.
        Each error says how many commands it is about. If there are several refusals, the first one is raised, and the
        log has all.
        """

    def close(self, *given: Any, **named: Any) -> object:
        """Wait until handlers have returned and everything is acknowledged, `timeout` seconds at most, and end.

        When the handlers have returned, new calls raise ClosedError, and close() waits for earlier ones. Pending
        operations follow the orphans policy at the daemon, and fail here with ClosedError. Raises
        TimerdUnavailableError if commands are still unacknowledged, SessionGoneError if it is not known which commands
        were applied, and refusals as flush() does. Even after an error, the client is closed. At the end of a `with`
        block that raises an error, these errors are logged instead.
        """


def _after_fork_in_child() -> None:
    for lazy in list(lazies):
        lazy.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
