"""The link of an asyncio client on a manual clock, and a loop on the same clock.

The loop never sleeps. When nothing is ready, it moves the clock to what is due next: a deadline, or a timer of its own,
so that `asyncio.sleep(30)` takes no time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
from typing import Any

from timerd_client.aio.link import LoopLink
from timerd_client.discovery.target import Target
from timerd_wire import native
from timerd_wire.native import ident

from .driver import ManualDriver
from .network import ManualSockets

OTHERS_S = 0.5  # so long (of real time) a loop that waits for nothing of timerd waits for other threads


class ManualLoopLink(LoopLink):
    """An asyncio link whose passes are made when they are due, in the thread of its loop."""

    def __init__(self, manual: ManualDriver, target: Target, purgatories: Sequence[str]) -> None:
        self.manual = manual
        self.is_woken = False
        self.passing = False
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
        sockets.arrived = self._arrived
        self.is_woken = True

    def _arrived(self) -> None:
        self.is_woken = True

    def is_outlived(self) -> bool:
        return self.manual.is_over or super().is_outlived()

    def wall_ns(self) -> int:
        return self.manual.clock.wall_ns()

    def watch_wall_clock(self) -> None:
        """Do nothing: whoever sets the clock calls `wall_clock_set`."""

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks at the lifeline."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks at the lifeline."""

    def drive(self, seconds: float) -> None:
        self.manual.settle()
        native.sleep(seconds)

    def _arm(self, at_ns: int) -> None:
        """Do nothing: `next_ns` says when the next pass is due."""

    def _pump(self) -> None:
        """In its loop: have all done that is under way."""
        self.is_woken = True
        self.manual.settle()

    def stop(self, *timeout: float) -> None:
        super().stop(*timeout)
        self.manual.forget(self)

    # for the manual daemon --------------------------------------------------------------------------------------------

    @property
    def next_ns(self) -> int:
        """When its next pass is due."""
        return min(self.protocol.poll_deadline(), self.sockets.due_ns)

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now, and this is the thread for it."""
        if self.passing or self.loop.is_closed():
            return False
        wants = self.is_woken or self.held.is_cut or self.wants_to_send() or self.next_ns <= now_ns
        if wants and ident() != self._thread:
            self.is_woken = True
            self.loop.call_soon_threadsafe(self._pump)
            return False
        return wants

    def wants_to_send(self) -> bool:
        """Whether there is something to send, and a daemon."""
        return self.sockets.has_room() and (self._unsent is not None or self.protocol.wants_to_send())

    def make_pass(self) -> None:
        """One pass."""
        self.is_woken = False
        self.passing = True
        try:
            if self.held.is_cut:
                self.lifeline_ended()
            super()._pump()
        finally:
            self.passing = False


class JumpingSelector(DefaultSelector):
    """A loop's selector, which moves the clock instead of sleeping."""

    loop: ManualLoop

    def __init__(self, manual: ManualDriver) -> None:
        super().__init__()
        self._manual = manual

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        manual, is_ready = self._manual, self.loop.has_something_ready
        manual.settle()
        if is_ready():
            return []
        if self.loop.threads:  # the clock stands still until what runs there has returned
            return super().select()
        if timeout is None and manual.is_idle and (found := super().select(OTHERS_S)):
            return found
        manual.jump(None if timeout is None else self.loop.due_ns(), is_ready)
        return super().select(0)


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop on a manual clock."""

    _ready: Any
    _scheduled: Any
    _clock_resolution: float

    def __init__(self, manual: ManualDriver) -> None:
        self._manual = manual
        selector = JumpingSelector(manual)
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-9
        self.threads = 0  # that run something of asyncio.to_thread()

    def time(self) -> float:
        return self._manual.clock.now_ns() / 1e9

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, function, *args)
        self.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: object) -> None:
        self.threads -= 1

    def has_something_ready(self) -> bool:
        """Whether a callback is ready to run."""
        return bool(self._ready)

    def due_ns(self) -> int:
        """When its next timer is due."""
        when: float = self._scheduled[0].when()
        return math.ceil(when * 1e9)
