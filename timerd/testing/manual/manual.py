"""A daemon in this process on a clock of its own, with the calls for a test: fixture `timerd_manual`.

    timerd_manual.advance(30)              # everything happens that is due within 30 s, and then the call returns
    with timerd_manual.autojump(): ...     # a wait moves the clock itself to what is due next
    timerd_manual.run(main())              # a coroutine, in a loop on the same clock

Nothing runs by itself. All pending work is done when a thread waits or moves the clock, in that thread. So every run
takes the same steps. Only handlers of named calls have a thread. A thread that moves the clock waits for the handlers.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from timerd.core import NEVER
from timerd.testing.clients import connected_anew
from timerd_client.aio.link import LoopLink
from timerd_client.arguments import TIMEOUT_S_MAX, patience_s
from timerd_client.discovery.target import Target
from timerd_client.link import lazy
from timerd_client.types import Patience
from timerd_shm.declare.limits import HEARTBEAT_NS
from timerd_shm.host.paths import InstancePaths

from .clock import JumpingClock
from .daemon import ManualDaemon
from .ends import Lifeline
from .loop import ManualLoop, ManualLoopLink
from .threaded import ManualLink

Value = TypeVar("Value")
STEPS_MAX = 100_000  # in which all pending work is done
JUMP_NS_MAX = 3_600_000_000_000  # autojump goes no further than an hour after the last deadline that is pending,
JUMPS_MAX = 50_000  # and makes no more steps than these, without anything that settles
HANDLER_S_MAX = 60.0  # of real time: the longest that a handler of a named call may run
NOW_NS = 1_000_000_000_000  # when a manual clock begins
S = 1_000_000_000


class WouldBlockError(AssertionError):
    """A test waits for something that cannot come before the clock moves."""


class Helper(threading.Thread):
    """The thread in which a client calls handlers. It runs while the test's thread waits for it."""

    def __init__(self, manual: Manual, run: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._manual = manual
        self._body = run

    def start(self) -> None:
        self._manual.begin_helper()
        super().start()

    def run(self) -> None:
        try:
            self._body()
        finally:
            self._manual.end_helper()


class Manual:
    """A daemon, the clock, and the clients of this process. A context manager; the fixture enters it."""

    def __init__(self) -> None:
        self.clock = JumpingClock(NOW_NS)
        self.daemon = ManualDaemon(self.clock)
        self.paths = InstancePaths(Path("/timerd_manual"), "manual")
        self.is_over = False
        self._thread = threading.get_ident()  # the test's: it would wait in vain, because nobody else moves the clock
        self._links: list[ManualLink | ManualLoopLink] = []
        self._jumps = False
        self._settling = threading.RLock()  # held by the thread that does pending work
        self._depth = 0
        self._settling_by = 0
        self._changed = threading.Condition(threading.Lock())  # a leaf: whoever holds it takes no other lock
        self._changes = 0
        self._running_helpers = 0
        self._parked_helpers = 0
        self._parked = 0  # threads that the test has begun, and that wait
        self._ends: list[int] = []  # the times at which waits of threads end

    def __enter__(self) -> Self:
        lazy.openers.append(self._open)
        self.daemon.start()
        self._clients = connected_anew(lambda target: True, self.autojump)  # a lost daemon is not waited for
        self._clients.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        lazy.openers.remove(self._open)  # a thread that goes on with its subscription does so outside of this test
        self._clients.__exit__(None, None, None)
        for link in list(self._links):
            link.stop(0)
        self.is_over = True
        self.changed()
        self.daemon.stop()

    # for a test -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the clock began."""
        return (self.clock.now_ns() - NOW_NS) / S

    def advance(self, seconds: float | timedelta = 0.0) -> None:
        """Move the clock, and return when everything is done that was due by then. In whole ticks of 1 ms, rounded up.

        `advance(0)` does what is under way: for example, it delivers what was fired to callbacks.
        """
        wanted_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not isinstance(wanted_s, (int, float)) or isinstance(wanted_s, bool) or not 0 <= wanted_s <= TIMEOUT_S_MAX:
            raise ValueError(f"advance({seconds!r}): give the seconds from now, 0 to {TIMEOUT_S_MAX}, or a timedelta")
        tick_ns = self.daemon.tick_ns
        self._move_to(-(-(self.clock.now_ns() + math.ceil(wanted_s * S)) // tick_ns) * tick_ns)

    @contextmanager
    def autojump(self) -> Iterator[None]:
        """Within this block a wait moves the clock to the next due time, again and again, until the wait ends."""
        before, self._jumps = self._jumps, True
        try:
            yield
        finally:
            self._jumps = before

    def run(self, main: Coroutine[Any, Any, Value]) -> Value:
        """As asyncio.run(), in a loop on this clock. The clock moves when all tasks wait: sleep(30) takes no time."""
        with asyncio.Runner(loop_factory=lambda: ManualLoop(self)) as runner:
            return runner.run(main)

    def set_wall_clock(self, to: datetime) -> None:
        """Set the wall clock, by which `cron=` and `call_at` go. Raises ValueError for a datetime without a zone."""
        if to.tzinfo is None:
            raise ValueError(f"{to!r} has no time zone: datetime(..., tzinfo=UTC)")
        self.clock.jump(round(to.timestamp() * S) - self.clock.wall_ns())
        for link in list(self._links):
            link.wall.was_set()
        self.daemon.wall_clock_set()
        self.settle()

    def stop(self) -> None:
        """End the daemon, as if it was killed. Its arena stays."""
        with self._settling:
            self.daemon.stop()
        self.settle()

    def start(self) -> None:
        """Start the daemon again, on its arena. Raises RuntimeError if it has not been stopped."""
        if self.daemon.serves:
            raise RuntimeError("start(): the daemon of this test runs; timerd_manual.stop() ends it")
        with self._settling:
            self.daemon.start()
        self.settle()

    def until_waiting(self, threads: int = 1, timeout: Patience = 10) -> None:
        """Return when `threads` threads that the test has begun wait for timerd. `timeout` is real time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._parked >= threads, patience_s(timeout)):
                raise AssertionError(f"{self._parked} of {threads} threads wait for timerd after {timeout} s")

    # for links --------------------------------------------------------------------------------------------------------

    def lifeline(self) -> Lifeline:
        """The connection by whose end the daemon notices the end of a client."""
        return Lifeline(lambda: self.daemon.lifelines)

    def _open(self, make: object, target: Target, purgatories: Sequence[str]) -> ManualLink | ManualLoopLink:
        """The link of a client that connects; `make` is the class of the link that it would have otherwise."""
        kind = ManualLoopLink if make is LoopLink else ManualLink
        link = kind(self, target, purgatories)
        self._links.append(link)
        return link

    def forget(self, link: ManualLink | ManualLoopLink) -> None:
        """Forget a link that has ended."""
        if link in self._links:
            self._links.remove(link)

    def changed(self) -> None:
        """Make all waiting threads look again. The caller may hold any lock."""
        with self._changed:
            self._changes += 1
            # Handlers count as running before they have woken, so that a thread that moves the clock waits for them.
            self._running_helpers += self._parked_helpers
            self._parked_helpers = 0
            self._changed.notify_all()

    def thread(self, run: Callable[[], None], name: str) -> threading.Thread:
        """A thread of a client, for handlers."""
        return Helper(self, run, name)

    def begin_helper(self) -> None:
        with self._changed:
            self._running_helpers += 1

    def end_helper(self) -> None:
        with self._changed:
            self._running_helpers -= 1
            self._changed.notify_all()

    # time -------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Do all pending work, without moving the clock, and let handlers run until they wait or have ended."""
        if self.is_over:
            return
        self._do_all()
        nested = self._depth and self._settling_by == threading.get_ident()
        while not (nested or isinstance(threading.current_thread(), Helper)) and self._helpers_rest():
            self._do_all()

    def _do_all(self) -> None:
        """Passes and turns, until none is due. A callback that comes here again finds that all is being done."""
        with self._settling:
            self._settling_by = threading.get_ident()
            self._depth += 1
            try:
                steps = 0
                while self._do_some():
                    steps += 1
                    if steps > STEPS_MAX:
                        raise AssertionError("timerd never comes to rest: a callback does something again and again")
            finally:
                self._depth -= 1
        if steps:
            self.changed()

    def _do_some(self) -> bool:
        """Make the passes that are due, one of each link, and a turn. Returns whether there was anything to do."""
        now_ns, busy = self.clock.now_ns(), False
        for link in list(self._links):
            if link.wants_pass(now_ns):
                link.make_pass()
                busy = True
        if self.daemon.wants_turn():
            self.daemon.turn()
            busy = True
        return busy

    def _helpers_rest(self) -> bool:
        """Wait until no handler runs. Returns whether any has run."""
        end = time.monotonic() + HANDLER_S_MAX
        with self._changed:
            if not self._running_helpers:
                return False
            while self._running_helpers:
                if not self._changed.wait(end - time.monotonic()):
                    raise AssertionError(f"a handler of a named call still runs after {HANDLER_S_MAX:g} s of real time")
            return True

    def _next_ns(self) -> int:
        """The next due time."""
        return min([self.daemon.due_ns, *(link.next_ns for link in list(self._links)), *list(self._ends)])

    def _rests_until_ns(self) -> int:
        """Until when daemon and clients would only exchange heartbeats, so that the clock may move on without these.

        A rest ends a heartbeat before: then all exchange one, as after a pause of the whole machine.
        """
        if not all(link.is_at_rest for link in list(self._links)):
            return 0
        return min([self.daemon.rests_until_ns(), *list(self._ends)])

    def _step(self, end_ns: int) -> None:
        """Move the clock to the next due time, or to `end_ns`, and do the work that is due."""
        with self._settling:
            to_ns, rest_ns = min(self._next_ns(), end_ns), min(self._rests_until_ns(), end_ns) - HEARTBEAT_NS
            if to_ns < rest_ns:
                to_ns = rest_ns
                self.daemon.rest_until(to_ns)
            self.clock.move(max(0, to_ns - self.clock.now_ns()))
        self.changed()
        self.settle()

    def _move_to(self, end_ns: int) -> None:
        self.settle()
        while self.clock.now_ns() < end_ns:
            self._step(end_ns)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ever due: no pending operation has a deadline, and no call is planned."""
        return self.daemon.serves and self.daemon.wake_ns == NEVER and not self._ends

    def jump(self, end_ns: int | None, is_enough: Callable[[], bool]) -> None:
        """Move the clock until `is_enough()`, to `end_ns` at most. Raises WouldBlockError if nothing is ever due."""
        if end_ns is None and self.is_idle:
            raise WouldBlockError(f"{self._why_blocked()}: fire an event, or give the wait a timeout")
        last_ns = max([self.clock.now_ns(), *self.daemon.deadlines_ns()]) + JUMP_NS_MAX if end_ns is None else end_ns
        began, steps = self.now, 0
        while self.clock.now_ns() < last_ns and not is_enough():
            self._step(last_ns)
            steps += 1
            if end_ns is None and steps >= JUMPS_MAX:
                break
        if end_ns is None and not is_enough():
            raise WouldBlockError(
                f"nothing has settled it from {began:g} s to {self.now:g} s of the manual clock: fire an event, or "
                "give the wait a timeout"
            )

    # waiting ----------------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until the condition holds, `seconds` of this clock at most. Returns whether it holds.

        The test's own thread moves the clock within `autojump()`; without `autojump()` it gets WouldBlockError. Another
        thread waits until the test moves the clock.
        """
        end_ns = None if seconds is None else self.clock.now_ns() + math.ceil(seconds * S)
        while True:
            with self._changed:
                seen = self._changes
            self.settle()
            if condition():
                return True
            if self.is_over or (end_ns is not None and self.clock.now_ns() >= end_ns):
                return False
            if threading.get_ident() != self._thread:
                self._park(seen, end_ns)
            elif self._jumps:
                self.jump(end_ns, condition)
            else:
                raise WouldBlockError(f"{self._why_blocked()}; or `with timerd_manual.autojump():`")

    def _park(self, seen: int, end_ns: int | None) -> None:
        """Another thread waits until something has changed."""
        is_helper = isinstance(threading.current_thread(), Helper)
        with self._changed:
            if self._changes != seen:
                return
            if end_ns is not None:
                self._ends.append(end_ns)
            if is_helper:
                self._running_helpers -= 1
                self._parked_helpers += 1  # changed() counts it as running again
            else:
                self._parked += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._changes != seen)
            if end_ns is not None:
                self._ends.remove(end_ns)
            if not is_helper:
                self._parked -= 1

    def _why_blocked(self) -> str:
        """Why a wait would not end, and the remedy."""
        what = f"nothing will settle it before the clock moves (now {self.now:g} s)"
        if not self.daemon.serves:
            return f"{what}, and the daemon of this test is stopped: timerd_manual.start()"
        deadlines_ns = self.daemon.deadlines_ns()
        if not deadlines_ns:
            return f"{what}, and no operation has a deadline"
        return f"{what}: timerd_manual.advance({(min(deadlines_ns) - self.clock.now_ns()) / S:g}) for the next deadline"
