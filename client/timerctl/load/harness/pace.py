"""An absolute schedule: a row that is due is sent at once, however late, and its lateness is kept (open loop).

Rows are sent in passes: one pass sends all rows that are due, ROWS_MAX at most. A run measures two kinds of lateness.
The lateness of a row is the time when it was sent, less the time when it was due. It includes the time of earlier
calls. The harness's *own* lateness does not: it is the delay of a pass because the process was not woken in time, or
was busy with its own bookkeeping.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right

PERIOD_NS = 1_000_000  # in bulk: from one call to the next; each call takes all due rows
PASS_NS = 500_000  # otherwise: from pass to pass; sleeps of a few microseconds would take all the time of the process
ROWS_MAX = 4_096  # in one pass: outcomes are collected, and a stop is seen, only between passes
SLEEP_S_MAX = 0.05


class Pace:
    """The schedule of one process: `due_ns` are offsets from `start_ns`."""

    def __init__(self, due_ns: array[int], start_ns: int, bulk: bool) -> None:
        self.own_lateness_ns = array("q")
        self._due_ns = due_ns
        self._start_ns = start_ns
        self._period_ns = PERIOD_NS if bulk else PASS_NS
        self._began_ns = 0  # when the last pass began
        self._free_ns = 0  # when the calls of the last pass had returned: only later delays are the harness's own

    def begin(self, row: int) -> int:
        """Sleep until the row is due, SLEEP_S_MAX at most. Returns the row after the due rows (ROWS_MAX at most)."""
        planned_ns = self._planned_ns(row)
        left_ns = planned_ns - self._now_ns()
        if left_ns > 0:
            time.sleep(min(left_ns / 1e9, SLEEP_S_MAX))
        now_ns = self._now_ns()
        if now_ns < planned_ns:
            return row
        self._began_ns = now_ns
        self.own_lateness_ns.append(now_ns - max(planned_ns, self._free_ns))
        return bisect_right(self._due_ns, now_ns, row, min(row + ROWS_MAX, len(self._due_ns)))

    def end(self) -> None:
        """Note that the calls of a pass have returned."""
        self._free_ns = self._now_ns()

    def _planned_ns(self, row: int) -> int:
        return max(self._due_ns[row], self._began_ns + self._period_ns)

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns
