"""Events in the order of their time, and callers: threads that may block. Only one thread runs at a time.

Nothing runs by itself. The schedule moves the clock to the next event and runs this event. A caller is a real thread,
but it runs only while it has the baton: from the event that wakes it until it ends or blocks (at a gate, at a
condition, in `sleep`). So every run of a seed takes the same steps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from timerd.clock import ManualClock

Act = Callable[[], None]


class Killed(BaseException):
    """The process of this caller was killed: its thread unwinds."""


class Schedule:
    """The one clock, and the events to come. Events of the same time run in an order drawn from the seed."""

    def __init__(self, clock: ManualClock, rng: Random) -> None:
        self.clock = clock
        self.current: Caller | None = None
        self.failure: BaseException | None = None  # a caller's error; it is raised in the schedule's own thread
        self.baton = threading.Lock()
        self.baton.acquire()
        self.idle: list[Runner] = []
        self._rng = rng
        self._due: list[tuple[int, float, int, Act]] = []
        self._made = 0

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def at(self, when_ns: int, act: Act) -> None:
        """Run `act` at `when_ns`, or now if this time has passed."""
        self._made += 1
        heappush(self._due, (max(when_ns, self.now_ns), self._rng.random(), self._made, act))

    def after(self, delay_ns: int, act: Act) -> None:
        """Run `act` after `delay_ns`."""
        self.at(self.now_ns + delay_ns, act)

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._due:
            return False
        when_ns, _, _, act = heappop(self._due)
        self.clock.move(when_ns - self.now_ns)
        act()
        return True

    def block(self, timeout: float | None) -> bool:
        """The current caller waits to be woken, for `timeout` seconds at most. Returns whether it was woken."""
        caller = self.current
        assert caller is not None, "the thread of a client, or the schedule itself, would block"
        return caller.block(None if timeout is None else self.now_ns + max(1, math.ceil(timeout * 1e9)))

    def sleep(self, delay_ns: int) -> None:
        """The current caller waits for `delay_ns`."""
        self.block(delay_ns / 1e9)

    def end(self) -> None:
        """End the threads. All waiting callers must have been killed before."""
        for runner in self.idle:
            runner.go_on(None)
            runner.join()
        self.idle.clear()


class Runner(threading.Thread):
    """A thread that runs callers, one after the other."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(daemon=True)
        self._schedule = schedule
        self._body: Act | None = None
        self.go = threading.Lock()
        self.go.acquire()
        self.start()

    def go_on(self, body: Act | None) -> None:
        """Run `body` now; with None, end the thread."""
        self._body = body
        self.go.release()

    def run(self) -> None:
        while True:
            self.go.acquire()
            body = self._body
            if body is None:
                return
            try:
                body()
            except Killed:
                pass
            except BaseException as error:  # to be raised where the schedule runs
                self._schedule.failure = self._schedule.failure or error
            self._schedule.idle.append(self)
            self._schedule.baton.release()


class Caller:
    """Code that may block. Before it goes on, `hold` is called: a stopped process lets its callers go on later."""

    def __init__(self, schedule: Schedule, body: Act, hold: Callable[[Act], bool]) -> None:
        self.over = False
        self.killed = False
        self._schedule = schedule
        self._body = body
        self._hold = hold
        self._runner: Runner | None = None
        self._ticket = 0  # goes up at each wake-up, so that an older wake-up has no effect
        self._woken = False

    def start(self) -> None:
        """Begin now."""
        self._schedule.at(self._schedule.now_ns, lambda: self._continue(0, False))

    def join(self, timeout: float | None = None) -> None:
        """Return at once, because the schedule ends callers."""

    def is_alive(self) -> bool:
        return not self.over

    def wake(self) -> Act:
        """A function that wakes the caller soon, if the caller's present wait still goes on then."""
        ticket = self._ticket
        return lambda: self._schedule.at(self._schedule.now_ns, lambda: self._continue(ticket, True))

    def block(self, until_ns: int | None) -> bool:
        """Wait to be woken, until `until_ns` at most. Returns whether the caller was woken."""
        if self.killed:
            raise Killed
        ticket = self._ticket
        if until_ns is not None:
            self._schedule.at(until_ns, lambda: self._continue(ticket, False))
        runner = self._runner
        assert runner is not None
        self._schedule.baton.release()
        runner.go.acquire()
        if self.killed:
            raise Killed
        return self._woken

    def kill(self) -> None:
        """Unwind the caller's thread now."""
        self.killed = True
        if self._runner is None:
            self.over = True
        elif not self.over:
            self._run(lambda runner: runner.go.release())

    def _continue(self, ticket: int, woken: bool) -> None:
        if self.over or ticket != self._ticket or self._hold(lambda: self._continue(ticket, woken)):
            return
        self._ticket += 1
        self._woken = woken
        if self._runner is None:
            runners = self._schedule.idle
            self._runner = runners.pop() if runners else Runner(self._schedule)
            self._run(lambda runner: runner.go_on(self._all))
        else:
            self._run(lambda runner: runner.go.release())

    def _all(self) -> None:
        try:
            self._body()
        finally:
            self.over = True

    def _run(self, begin: Callable[[Runner], None]) -> None:
        assert self._runner is not None
        schedule = self._schedule
        before, schedule.current = schedule.current, self
        begin(self._runner)
        schedule.baton.acquire()
        schedule.current = before
        if schedule.failure is not None:
            failure, schedule.failure = schedule.failure, None
            raise failure


class Gate:
    """A lock at which callers wait, like `threading.Lock`. With `closed`, it is like timerd_client.waits.gate.Gate."""

    def __init__(self, schedule: Schedule, *, closed: bool = False) -> None:
        self._schedule = schedule
        self._held = closed
        self._wake: Act | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._held:
            assert self._schedule.current is not None, "a client's own thread would block"
            self._wake = self._schedule.current.wake()
            self._schedule.block(None if timeout < 0 else timeout)
            if self._held:
                return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._wake is not None:
            self._wake()

    def open(self, promise: object = None) -> None:
        self.release()

    def wait(self, seconds: float | None) -> bool:
        return self.acquire(timeout=-1 if seconds is None else max(seconds, 0))


class Condition:
    """Like `threading.Condition`: a caller waits without holding the lock."""

    def __init__(self, schedule: Schedule, lock: threading.Lock) -> None:
        self._schedule = schedule
        self._lock = lock
        self._waiting: list[tuple[Act, Callable[[], bool], object | None]] = []
        self.callers = 0  # the number of callers in wait_for()

    def wait_for(self, holds: Callable[[], bool], timeout: float | None = None, one_of: object | None = None) -> bool:
        self.callers += 1
        try:
            return self._wait_for(holds, timeout, one_of)
        finally:
            self.callers -= 1

    def _wait_for(self, holds: Callable[[], bool], timeout: float | None, one_of: object | None) -> bool:
        end_ns = None if timeout is None else self._schedule.now_ns + math.ceil(timeout * 1e9)
        while not holds():
            left_ns = None if end_ns is None else end_ns - self._schedule.now_ns
            if left_ns is not None and left_ns <= 0:
                return False
            assert self._schedule.current is not None, "a client's own thread would block"
            waiter = self._schedule.current.wake(), holds, one_of
            self._waiting.append(waiter)
            self._lock.release()
            try:
                self._schedule.block(None if left_ns is None else left_ns / 1e9)
            finally:
                self._lock.acquire()
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wake, _, _ in waiting:
            wake()

    def notify(self) -> None:
        """Wake callers. Of callers with the same `one_of`, only the first is woken, and only if its condition holds."""
        waiting, self._waiting = self._waiting, []
        looked_at: set[object] = set()
        for wake, holds, one_of in waiting:
            if one_of is None or (one_of not in looked_at and holds()):
                wake()
            else:
                self._waiting.append((wake, holds, one_of))
            looked_at.add(one_of)
