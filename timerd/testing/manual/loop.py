"""The link of an asyncio client on a manual clock, and a loop on the same clock.

When nothing is ready, the loop does not sleep. It moves the clock to what is due next: a deadline, or a timer of its
own, so that `asyncio.sleep(30)` takes no time. In real time it waits only for other threads: while one runs a function
of asyncio.to_thread(), or for OTHERS_S when nothing is ever due.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from selectors import DefaultSelector
from typing import Any

from timerd_client.aio.link import LoopLink
from timerd_client.aio.passes import LoopPasses
from timerd_client.discovery.identity import identity
from timerd_client.discovery.target import Target
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.protocol import Protocol
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_wire import native
from timerd_wire.native import ident

from .driver import Driver
from .errors import HangsError
from .network import ManualSockets, is_at_rest
from .threaded import ManualWall
from .threads import place_in

OTHERS_S = 0.5  # how long, in real time, a loop waits for other threads when nothing of timerd is ever due


class ManualPasses(LoopPasses):
    """Passes of a link (see DrivenLink) that are made when they are due, in the thread of the loop."""

    _link: ManualLoopLink
    is_woken = True
    passing = False

    def watch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def unwatch(self, descriptor: int) -> None:
        """Do nothing: each pass looks whether the connection to the daemon (the lifeline) has ended."""

    def go_on(self, seconds: float) -> None:
        self._link.manual.settle()
        native.sleep(seconds)

    def _arm(self, at_ns: int) -> None:
        """Do nothing: `next_ns` says when the next pass is due."""

    def make(self) -> None:
        """In its loop: do all pending work."""
        self.is_woken = True
        self._link.manual.settle()

    def wants(self, now_ns: int) -> bool:
        """Whether a pass is due now, and this thread may make it."""
        link = self._link
        if self.passing or link.stands:
            return False
        wants = self.is_woken or link.held.is_cut or link.wants_to_send() or link.next_ns <= now_ns
        if wants and ident() != link._thread:
            self.is_woken = True
            self._loop.call_soon_threadsafe(self.make)
            return False
        return wants

    def make_one(self) -> None:
        """Make one pass."""
        self.is_woken = False
        self.passing = True
        try:
            if self._link.held.is_cut:
                self._link.connection.lifeline_ended()
            super().make()
        finally:
            self.passing = False


class ManualLoopLink(LoopLink):
    """An asyncio link whose passes are made when they are due."""

    PASSES = ManualPasses
    WALL = ManualWall
    passes: ManualPasses

    def __init__(self, manual: Driver, target: Target, purgatories: Sequence[str]) -> None:
        self.manual = manual
        self.held = manual.lifeline()
        clock = manual.clock
        who = identity(target.label, target.orphans, target.group, target.takeover_ms)
        sockets = self._sockets = ManualSockets(manual.daemon.network, self.held, manual.daemon.map_arena)
        super().__init__(manual.paths, Protocol(who, clock.now_ns()), sockets, clock.now_ns, purgatories)
        sockets.arrived = self._arrived

    def _arrived(self) -> None:
        self.passes.is_woken = True

    def is_outlived(self) -> bool:
        return self.manual.is_over or super().is_outlived()

    def stop(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        super().stop(timeout)
        self.manual.forget(self)

    # for the manual daemon --------------------------------------------------------------------------------------------

    @property
    def next_ns(self) -> int:
        """When its next pass is due; NEVER if no thread can make it."""
        return NEVER if self.stands else min(self.protocol.poll_deadline(), self.connection.sockets.due_ns)

    @property
    def stands(self) -> bool:
        """Whether its loop is closed, or is another thread's and does not run. Then its client sends nothing."""
        return self.loop.is_closed() or (ident() != self._thread and not self.loop.is_running())

    @property
    def is_at_rest(self) -> bool:
        """Whether it only exchanges heartbeats. A loop in another thread may be busy, so it counts as not at rest."""
        return ident() == self._thread and is_at_rest(self)

    def wants_to_send(self) -> bool:
        """Whether there is something to send, and a daemon."""
        connection = self.connection
        return connection.sockets.has_room() and (connection.unsent is not None or self.protocol.wants_to_send())

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now, and this thread may make it."""
        return self.passes.wants(now_ns)

    def make_pass(self) -> None:
        """Make one pass."""
        self.passes.make_one()

    def die(self) -> None:
        """End as if the client's process was killed. Its loop cancels the handlers that run."""
        self._sockets.cut()
        if self.loop.is_running():
            for stop in self.before_stop:
                self.loop.call_soon_threadsafe(self.loop.create_task, stop(0))
        self.stop(0)


class JumpingSelector(DefaultSelector):
    """A loop's selector, which moves the clock instead of sleeping."""

    loop: ManualLoop

    def __init__(self, manual: Driver) -> None:
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
        if self.loop.threads:  # the clock stands still until the functions there have returned
            found = super().select(manual.threads.handler_timeout_s)
            if not found:
                raise HangsError(self.loop.what_hangs(manual.threads.handler_timeout_s))
            return found
        if timeout is None and manual.is_idle and (found := super().select(OTHERS_S)):
            return found
        manual.jump(None if timeout is None else self.loop.due_ns(), is_ready)
        return super().select(0)


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop on a manual clock."""

    _ready: Any
    _scheduled: Any
    _clock_resolution: float

    def __init__(self, manual: Driver) -> None:
        self._manual = manual
        selector = JumpingSelector(manual)
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-9
        self.threads = 0  # threads that run a function of asyncio.to_thread()

    def time(self) -> float:
        return self._manual.clock.now_ns() / 1e9

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = super().run_in_executor(executor, function, *args)
        self.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: object) -> None:
        self.threads -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the executor's threads in real time. From CPython 3.13 on, asyncio would set a timer of 300 s."""
        self.threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.threads -= 1

    def what_hangs(self, seconds: float) -> str:
        """Where the functions of asyncio.to_thread() stand."""
        executor = getattr(self, "_default_executor", None)
        places = sorted({place_in(thread.ident) for thread in getattr(executor, "_threads", ())})
        return (
            f"a function of asyncio.to_thread() hangs {' or '.join(places) or 'in an executor'}: still there after "
            f"{seconds:g} s of real time. The clock stands still until it returns. Replace what it waits for by "
            "something that returns, or increase timerd_manual.handler_timeout"
        )

    def has_something_ready(self) -> bool:
        """Whether a callback is ready to run."""
        return bool(self._ready)

    def due_ns(self) -> int:
        """When the loop's next timer is due."""
        when: float = self._scheduled[0].when()
        return math.ceil(when * 1e9)
