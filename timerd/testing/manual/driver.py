"""Drives a manual daemon and its clients without waiting: it has the clock, and does the work that is due.

Nothing runs by itself. All pending work is done when a thread waits or moves the clock, in that thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from timerd.core import NEVER
from timerd_shm.declare.limits import HEARTBEAT_NS
from timerd_shm.host.paths import InstancePaths

from .clock import JumpingClock
from .daemon import ManualDaemon
from .ends import Lifeline
from .errors import HangsError, WouldBlockError
from .threads import Threads, place_in

STEPS_MAX: Final = 100_000  # the most steps until all pending work is done
# In autojump() a wait without a timeout ends with WouldBlockError: an hour (JUMP_NS_MAX) after the last pending
# deadline, or after JUMPS_MAX steps.
JUMP_NS_MAX: Final = 3_600_000_000_000
JUMPS_MAX: Final = 50_000
NOW_NS: Final = 1_000_000_000_000  # the time at which a manual clock begins
S: Final = 1_000_000_000


class DrivenLink(Protocol):
    """The link of a client of a manual daemon. In a pass it receives frames, does what is due, and sends frames."""

    wall: Any

    @property
    def next_ns(self) -> int:
        """When its next pass is due."""

    @property
    def is_at_rest(self) -> bool:
        """Whether it only exchanges heartbeats."""

    def wants_pass(self, now_ns: int) -> bool:
        """Whether a pass is due now, and this thread may make it."""

    def make_pass(self) -> None:
        """Make one pass."""

    def die(self) -> None:
        """End as if the client's process was killed."""

    def stop(self, timeout: float | None) -> None:
        """End, and take `timeout` seconds at most."""


class Driver:
    """The daemon and the clock of a test, the links of its clients, and the work that is due."""

    def __init__(self) -> None:
        self.clock = JumpingClock(NOW_NS)
        self.daemon = ManualDaemon(self.clock)
        self.paths = InstancePaths(Path("/timerd_manual"), "manual")
        self.threads = Threads()
        self.links: list[DrivenLink] = []
        self.is_over = False  # whether the test has ended, so that clients need other links
        self.jumps = False
        self._thread = threading.get_ident()  # the test's own thread, the only one that moves the clock
        self._settling = threading.RLock()  # held by the thread that does pending work
        self._depth = 0
        self._settling_by = 0
        self._steps = 0
        self._is_stuck = False

    @property
    def now(self) -> float:
        """Seconds since the clock began."""
        return (self.clock.now_ns() - NOW_NS) / S

    # for links --------------------------------------------------------------------------------------------------------

    def lifeline(self) -> Lifeline:
        """The connection by whose end the daemon notices the end of a client."""
        return Lifeline(lambda: self.daemon.lifelines)

    def forget(self, link: DrivenLink) -> None:
        """Forget a link that has ended."""
        if link in self.links:
            self.links.remove(link)

    # work -------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Do all pending work, without moving the clock, and let handlers run until they wait or have ended."""
        if self.is_over:
            return
        is_helper = self.threads.used()
        self._do_all()
        nested = self._depth and self._settling_by == threading.get_ident()
        while not (nested or is_helper) and self.threads.until_helpers_rest():
            self._do_all()

    @contextmanager
    def working(self) -> Iterator[None]:
        """In this block no other thread does pending work. Raises HangsError if a callback in another thread hangs."""
        seen = -1
        while not self._settling.acquire(timeout=0 if self._is_stuck else self.threads.handler_timeout_s):
            if self._steps == seen or self._is_stuck:
                self._is_stuck = True
                raise HangsError(self._who_works())
            seen = self._steps
        self._is_stuck = False
        try:
            yield
        finally:
            self._settling.release()

    def _who_works(self) -> str:
        thread = next((each for each in threading.enumerate() if each.ident == self._settling_by), None)
        return (
            f"the thread {'?' if thread is None else thread.name!r} does the pending work of this test, and for "
            f"{self.threads.handler_timeout_s:g} s of real time a callback has stood "
            f"{place_in(self._settling_by)}: a callback must not block"
        )

    def _do_all(self) -> None:
        """Make passes and turns until none is due. A callback may call this again: its own pass is not due then."""
        with self.working():
            self._settling_by = threading.get_ident()
            self._depth += 1
            try:
                steps = 0
                while self._do_some():
                    steps += 1
                    self._steps += 1
                    if steps > STEPS_MAX:
                        raise AssertionError("timerd never comes to rest: a callback does something again and again")
            finally:
                self._depth -= 1
        if steps:
            self.threads.changed()

    def _do_some(self) -> bool:
        """Make the passes that are due, one of each link, and a turn. Returns whether there was anything to do."""
        now_ns, busy = self.clock.now_ns(), False
        for link in list(self.links):
            if link.wants_pass(now_ns):
                link.make_pass()
                busy = True
        if self.daemon.wants_turn():
            self.daemon.turn()
            busy = True
        return busy

    # time -------------------------------------------------------------------------------------------------------------

    def _next_ns(self) -> int:
        """The next due time."""
        return min([self.daemon.due_ns, *(link.next_ns for link in list(self.links)), *list(self.threads.ends)])

    def _rests_until_ns(self) -> int:
        """Until when daemon and clients would only exchange heartbeats, so that the clock may move on without these.

        The clock moves only to HEARTBEAT_NS before that time. Then daemon and clients exchange a heartbeat, as after a
        pause of the whole machine.
        """
        if not all(link.is_at_rest for link in list(self.links)):
            return 0
        return min([self.daemon.rests_until_ns(), *list(self.threads.ends)])

    def _step(self, end_ns: int) -> None:
        """Move the clock to the next due time, or to `end_ns`, and do the work that is due."""
        with self.working():
            to_ns, rest_ns = min(self._next_ns(), end_ns), min(self._rests_until_ns(), end_ns) - HEARTBEAT_NS
            if to_ns < rest_ns:
                to_ns = rest_ns
                self.daemon.rest_until(to_ns)
            self.clock.move(max(0, to_ns - self.clock.now_ns()))
        self.threads.changed()
        self.settle()

    def move_to(self, end_ns: int) -> None:
        """Move the clock, and do everything that is due by then."""
        self.settle()
        while self.clock.now_ns() < end_ns:
            self._step(end_ns)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ever due: the daemon runs without work to come, and no thread waits with a timeout."""
        return self.daemon.serves and self.daemon.wake_ns == NEVER and not self.threads.ends

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
        thread waits until something changes, for example until the test moves the clock.
        """
        end_ns = None if seconds is None else self.clock.now_ns() + math.ceil(seconds * S)
        while True:
            seen = self.threads.changes
            self.settle()
            if condition():
                return True
            if self.is_over or (end_ns is not None and self.clock.now_ns() >= end_ns):
                return False
            if threading.get_ident() != self._thread:
                self.threads.park(seen, end_ns)
            elif self.jumps:
                self.jump(end_ns, condition)
            else:
                raise WouldBlockError(f"{self._why_blocked()}; or `with timerd_manual.autojump():`")

    def _why_blocked(self) -> str:
        """Why a wait would not end, and the remedy."""
        what = f"nothing will settle it before the clock moves (now {self.now:g} s)"
        if not self.daemon.serves:
            return f"{what}, and the daemon of this test is stopped: timerd_manual.start()"
        deadlines_ns = self.daemon.deadlines_ns()
        if not deadlines_ns:
            return f"{what}, and no operation has a deadline"
        return f"{what}: timerd_manual.advance({(min(deadlines_ns) - self.clock.now_ns()) / S:g}) for the next deadline"
