"""The link of a client to its daemon, for both faces (threaded/ and aio/). It has three parts.

    connection    sockets, discovery, the lifeline, the mapped arena: connection.py
    sender        the window, and when frames are sent: sender.py, completed by each face
    waiters       how callers wait: waiters.py, completed by each face

A link forwards nothing: code that needs the sender asks for `link.sender`.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from timerd_client.protocol.protocol import Protocol
from timerd_client.transport.sockets import Sockets
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.wall_clock import WallAlarm

from .base import LinkBase, Use, Users, logger
from .connection import Connection
from .flush import Flushes
from .sender import Sender
from .waiters import Waiters


class Links:
    """The links of this process. Other threads may make and end links at any time, also while a caller lists them."""

    def __init__(self) -> None:
        self._made: set[weakref.ref[Link]] = set()
        self.take_calls = True  # False: the process drains, and takes no further calls of its groups

    def add(self, link: Link) -> None:
        """A link was made."""
        self._made.add(weakref.ref(link, self._made.discard))

    def discard(self, link: Link) -> None:
        """A link has ended."""
        self._made.discard(weakref.ref(link))

    def clear(self) -> None:
        """Begin anew in a forked child, which has no link yet and does not drain."""
        self._made.clear()
        self.take_calls = True

    def __iter__(self) -> Iterator[Link]:
        for made in self._made.copy():  # no thread interrupts the copy, as it would interrupt a loop over a WeakSet
            if (link := made()) is not None:
                yield link

    def __bool__(self) -> bool:
        return any(True for _ in self)


links: Final = Links()


class Wall:
    """The wall clock, and a descriptor that is readable when somebody has set it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._alarm: WallAlarm | None = None

    def now_ns(self) -> int:
        """CLOCK_REALTIME in ns since the epoch."""
        return time.time_ns()

    def watch(self) -> None:
        """From the link's next pass on, notice as soon as somebody sets the clock. Called with the lock held.

        In a pass, the link's thread or loop receives, does what is due, and sends.
        """
        self._link.sender.in_next_pass(self._arm)

    def _arm(self) -> None:
        if self._alarm is None and not self._link.closed:
            self._alarm = WallAlarm()
            if self._alarm.fileno() >= 0:
                self._link.connection.passes.watch(self._alarm.fileno())

    def is_alarm(self, descriptor: int) -> bool:
        """Whether this is the descriptor of the clock's alarm."""
        return self._alarm is not None and self._alarm.fileno() == descriptor

    def was_set(self) -> None:
        """The clock was set: wake the callers that wait, so that they look at the clock."""
        if self._alarm is not None:
            self._alarm.read()
        with self._link.lock:
            self._link.waiters.notify_locked()

    def close(self) -> None:
        """Close the descriptor."""
        if self._alarm is not None and self._alarm.fileno() >= 0:
            self._link.connection.passes.unwatch(self._alarm.fileno())
            self._alarm.close()


class Link(LinkBase):
    """A connection to one daemon. Its own thread or loop receives, or with threads the caller that has the seat
    (threaded/seat.py). A thread that holds the lock may send.
    """

    CONNECTION: ClassVar[type[Connection]] = Connection
    SENDER: ClassVar[type[Sender]] = Sender
    WAITERS: ClassVar[type[Waiters]] = Waiters
    WALL: ClassVar[type[Wall]] = Wall
    sender: Sender
    waiters: Waiters

    def __init__(
        self,
        paths: InstancePaths,
        protocol: Protocol,
        sockets: Sockets,
        now_ns: Callable[[], int] = time.monotonic_ns,
        purgatories: Sequence[str] | None = None,
    ) -> None:
        """`sockets` become this link's own. `now_ns` is CLOCK_MONOTONIC.

        With `purgatories`, calls may be made before the connection: the first HELLO has these names.
        """
        super().__init__(protocol, now_ns)
        self._pid = os.getpid()
        self._users = Users()
        self.before_stop: list[Callable[[float | None], Any]] = []  # called before the connection ends
        self.connection = self.CONNECTION(self, paths, sockets)
        self._make_parts()
        self.flushes = Flushes(self, self.connection, self.sender)
        self.wall = self.WALL(self)
        if purgatories is not None:
            self.connection.expect(purgatories)
        links.add(self)
        self._begin()

    def _make_parts(self) -> None:
        """Make the parts that each face completes."""
        self.waiters = self.WAITERS(self)
        self.sender = self.SENDER(self, self.connection)

    def _begin(self) -> None:
        """Begin to receive and send."""

    def is_outlived(self) -> bool:
        """Whether the client needs a new link: this one belongs to the parent process, or its loop has ended."""
        return self._pid != os.getpid()

    def use(self) -> Use:
        """The caller keeps the result while it uses this link."""
        return self._users.begin()

    def is_abandoned(self) -> bool:
        """Whether nobody uses this link, and nothing is pending. Called with the lock held."""
        return self._users.are_gone and not (
            self.protocol.incoming.has_pending() or self.before_stop or self.waiters.some_wait()
        )

    def seal(self) -> None:
        """Issue no more commands: further calls raise ClosedError. A flush can still wait for earlier commands."""
        with self.lock:
            self.sealed = True
            self.waiters.notify_locked()  # for callers that wait for room

    def end_handlers(self, timeout: float | None) -> None:
        """Start no more handlers, and wait `timeout` seconds at most for those that run."""

    def stop(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Send BYE and close the sockets. Takes `timeout` seconds at most."""

    def readable(self, descriptor: int) -> None:
        """A watched descriptor of the connection or of the wall clock is readable."""
        if descriptor == self.connection.lifeline.fileno():
            self.connection.lifeline_ended()
        elif self.wall.is_alarm(descriptor):
            self.wall.was_set()

    def end(self) -> None:
        """Send BYE and close everything, in the thread or loop of the link."""
        self.protocol.close(self.now_ns())
        while self.connection.send_some(self.now_ns()):
            pass
        self.connection.close()
        self.wall.close()
        links.discard(self)


def take_no_calls_locked(link: Link) -> None:
    """Take no further calls of the group, and give back those that have not begun. Running handlers go on."""
    if not link.closed and link.protocol.inbox.takes_calls:
        link.protocol.inbox.handle_no_more(link.now_ns())
        link.wake_if_due(link.protocol.ledger.issued)


def take_no_calls() -> None:
    """From now on no client of this process takes calls, not even one that is made or begins to serve later.

    A forked child takes calls again. Any thread and any handler of a signal may call this.
    """
    links.take_calls = False  # first: see Membership._begin()
    for link in links:
        try:
            link.sender.in_next_pass(partial(take_no_calls_locked, link))
        except ClosedError:
            pass  # its event loop has ended
        except Exception:
            logger.exception("a client of this process could not be kept from taking calls")
