"""Time, passed in: the conductor and everything below it never ask the system for it (DESIGN.md, rule 10)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The times that the daemon uses, in integer nanoseconds."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC: deadlines, lateness, turns."""

    def wall_ns(self) -> int:
        """CLOCK_REALTIME: for people (logs, `timerctl clients`), and for calls that are due by the wall clock."""

    def cpu_ns(self) -> int:
        """CLOCK_THREAD_CPUTIME_ID: the CPU time of the thread that calls, for statistics."""


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)
    cpu_ns = staticmethod(time.thread_time_ns)


class ManualClock:
    """A clock that stands still until a test moves it, always forwards."""

    def __init__(self, now_ns: int = 1_000_000_000_000, wall_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ns
        self.spent_ns = 0  # CPU time; a test may set it

    def cpu_ns(self) -> int:
        return self.spent_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def move(self, by_ns: int) -> int:
        """Move both clocks on by `by_ns`. Returns the new monotonic time."""
        assert by_ns >= 0, f"by_ns={by_ns}"
        self._now_ns += by_ns
        self._wall_ns += by_ns
        return self._now_ns
