"""The link of a threaded client on a manual clock. The thread that does pending work makes the link's passes.

In a pass a link receives frames, does what is due, and sends frames.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from timerd_client.discovery.identity import identity
from timerd_client.discovery.target import Target
from timerd_client.link.link import Wall
from timerd_client.protocol.protocol import Protocol
from timerd_client.threaded.io_thread import IoThread
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.sender import Bell, ThreadedSender
from timerd_client.threaded.waiters import ThreadedWaiters
from timerd_wire import native

from .clock import JumpingClock
from .driver import Driver
from .network import ManualSockets, is_at_rest
from .threads import Helper, Killed
from .waiting import ManualCondition, ManualGate, ManualQueue


class NoSpacing:
    """Frames follow each other at once: on a clock that stands still, the next frame would never be due."""

    due_ns = interval_ns = 0

    def done(self, now_ns: int, took_ns: int = 0) -> None:
        """Nothing to do."""


class ManualBell(Bell):
    """When it is rung, the next pass is due."""

    is_rung = False

    def open(self) -> int:
        self.ring()
        return -1

    def ring(self) -> None:
        self.is_rung = True


class ManualSender(ThreadedSender):
    """Sends at once while the daemon serves."""

    def __init__(self, link: ManualLink, *others: Any) -> None:
        super().__init__(link, *others)
        self._manual = link.manual
        self.bell: ManualBell = ManualBell()
        self._spacing: Any = NoSpacing()

    def ring(self) -> None:
        self.bell.ring()
        self._manual.threads.changed()

    def is_due(self) -> bool:
        """Whether there is something to send, and a daemon."""
        connection = self._connection
        return connection.sockets.has_room() and (connection.unsent is not None or self._protocol.wants_to_send())


class ManualWaiters(ThreadedWaiters):
    """Waiters of a manual daemon: a thread that would block does all pending work first."""

    def __init__(self, link: ManualLink) -> None:
        self._manual = link.manual
        super().__init__(link)

    def _condition(self) -> Any:
        return ManualCondition(self._manual, self._link.lock)

    def gate(self) -> Any:
        return ManualGate(self._manual)

    def queue(self) -> ManualQueue:
        return ManualQueue(self._manual)

    def new_thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return Helper(self._manual.threads, run, name, self._link)


class Pump(IoThread):
    """Takes the place of a client's thread for its sockets: the thread that does pending work makes the passes."""

    _link: ManualLink
    _sender: ManualSender
    passing = 0  # the thread that makes a pass
    has_ended = False

    def start(self) -> None:
        self._sender.bell.open()

    def is_current(self) -> bool:
        """Whether the caller is a callback, which runs in a pass."""
        return self.passing == threading.get_ident()

    def go_on(self, seconds: float) -> None:
        self._link.manual.settle()
        native.sleep(seconds)

    def _join(self, timeout: float | None) -> bool:
        self._link.manual.settle()
        return self.has_ended

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now."""
        sender = self._sender
        is_due = sender.bell.is_rung or self._link.held.is_cut or sender.is_due() or sender.due_ns() <= now_ns
        return is_due and not self.passing

    def make(self) -> None:
        """Make one pass, in place of the client's thread. Callbacks run in it."""
        self._sender.bell.is_rung = self._link.idle = False
        self.passing = threading.get_ident()
        try:
            if self._link.held.is_cut:
                self._connection.lifeline_ended()
            if not self.exchange():
                self.end_passes()
                self._link.manual.forget(self._link)
                self.has_ended = True
        finally:
            self.passing = 0


class ManualWall(Wall):
    """The wall clock of the manual clock. Manual calls `was_set` when a test sets it."""

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self._clock: JumpingClock = link.manual.clock

    def now_ns(self) -> int:
        return self._clock.wall_ns()

    def watch(self) -> None:
        """Do nothing."""


class ManualLink(ThreadedLink):
    """A threaded link whose passes are made when they are due."""

    SENDER = ManualSender
    WAITERS = ManualWaiters
    THREAD = Pump
    WALL = ManualWall
    sender: ManualSender
    thread: Pump

    def __init__(self, manual: Driver, target: Target, purgatories: Sequence[str]) -> None:
        self.manual = manual
        self.held = manual.lifeline()
        clock = manual.clock
        who = identity(target.label, target.orphans, target.group, target.takeover_ms)
        sockets = self._sockets = ManualSockets(manual.daemon.network, self.held, manual.daemon.map_arena)
        super().__init__(manual.paths, Protocol(who, clock.now_ns()), sockets, clock.now_ns, purgatories)
        sockets.arrived = self.sender.bell.ring

    def is_outlived(self) -> bool:
        return self.manual.is_over or super().is_outlived()

    # for the manual daemon --------------------------------------------------------------------------------------------

    @property
    def next_ns(self) -> int:
        """When the link's next pass is due."""
        return self.sender.due_ns()

    @property
    def is_at_rest(self) -> bool:
        """Whether it only exchanges heartbeats."""
        return is_at_rest(self)

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now."""
        return self.thread.wants_pass(now_ns)

    def make_pass(self) -> None:
        """Make one pass."""
        self.thread.make()

    def die(self) -> None:
        """End as if the client's process was killed."""
        if not self.is_in_handler():
            self.manual.threads.forget(self)
        self._sockets.cut()
        self.stop(0)

    def is_in_handler(self) -> bool:
        """Whether the calling thread runs handlers of this client."""
        me = threading.current_thread()
        return isinstance(me, Helper) and me.link is self

    def end_handlers(self, timeout: float | None) -> None:
        super().end_handlers(0 if self.manual.threads.hang(self) else timeout)

    def complain(self, what: str, error: BaseException | None = None, *, often: bool = False) -> None:
        if not isinstance(error, Killed):
            super().complain(what, error, often=often)
