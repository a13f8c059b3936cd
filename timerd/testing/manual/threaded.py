"""The link of a threaded client on a manual clock. It has no thread: whoever has things done makes its passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from timerd_client.discovery.target import Target
from timerd_client.threaded.link import ThreadedLink
from timerd_wire import native

from .driver import ManualDriver
from .network import ManualSockets
from .waiting import ManualCondition, ManualGate, ManualQueue


class NoSpacing:
    """Frames follow each other at once: on a clock that stands still, the next one would never be due."""

    due_ns = interval_ns = 0

    def done(self, now_ns: int, took_ns: int = 0) -> None:
        """Nothing to do."""


class Pump:
    """Stands for the thread of the sockets."""

    def __init__(self, link: ManualLink) -> None:
        self._link = link
        self.has_ended = False

    def start(self) -> None:
        self._link.is_woken = True

    def is_current(self) -> bool:
        """Whether the caller is a callback, which runs in a pass."""
        return self._link.passing == threading.get_ident()

    def join(self, seconds: float) -> bool:
        self._link.manual.settle()
        return self.has_ended


class ManualLink(ThreadedLink):
    """A threaded link whose passes are made when they are due."""

    def __init__(self, manual: ManualDriver, target: Target, purgatories: Sequence[str]) -> None:
        self.manual = manual
        self.is_woken = True
        self.passing = 0  # the thread that makes a pass
        self.held = manual.lifeline()
        sockets = ManualSockets(manual.daemon.network, self.held, manual.daemon.map_arena)
        clock = manual.clock
        super().__init__(
            manual.paths,
            target.label,
            target.orphans,
            target.group,
            sockets,
            clock.now_ns,
            purgatories=purgatories,
            takeover_ms=target.takeover_ms,
        )
        self.close_own()
        self._spacing: Any = NoSpacing()
        sockets.arrived = self.wake_thread

    def is_outlived(self) -> bool:
        return self.manual.is_over or super().is_outlived()

    def wall_ns(self) -> int:
        return self.manual.clock.wall_ns()

    def watch_wall_clock(self) -> None:
        """Do nothing: whoever sets the clock calls `wall_clock_set`."""

    def io_thread(self) -> Any:
        self._pump = Pump(self)
        return self._pump

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        return self.manual.thread(run, name)

    def condition(self) -> Any:
        return ManualCondition(self.manual, self.lock)

    def drive(self, seconds: float) -> None:
        self.manual.settle()
        native.sleep(seconds)

    def gate(self) -> Any:
        return ManualGate(self.manual)

    def queue(self) -> ManualQueue:
        return ManualQueue(self.manual)

    def wake_thread(self) -> None:
        self.is_woken = True

    def ring(self) -> None:
        self.is_woken = True
        self.manual.changed()

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks at the lifeline."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks at the lifeline."""

    # for the manual daemon --------------------------------------------------------------------------------------------

    @property
    def next_ns(self) -> int:
        """When its next pass is due."""
        return self.due_ns()

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now."""
        return not self.passing and (
            self.is_woken or self.held.is_cut or self.wants_to_send() or self.next_ns <= now_ns
        )

    def wants_to_send(self) -> bool:
        """Whether there is something to send, and a daemon."""
        return self.sockets.has_room() and (self._unsent is not None or self.protocol.wants_to_send())

    def make_pass(self) -> None:
        """What its thread does when it has woken. Callbacks run in it."""
        self.is_woken, self.idle = False, False
        self.passing = threading.get_ident()
        try:
            if self.held.is_cut:
                self.lifeline_ended()
            if not self.exchange():
                self.end()
                self.manual.forget(self)
                self._pump.has_ended = True
        finally:
            self.passing = 0
