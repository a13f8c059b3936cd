"""Notices that the wall clock was set: its distance to CLOCK_MONOTONIC has changed.

The distance changes when somebody sets the clock, and when the machine was suspended. It does not change when the
clock is slewed: then CLOCK_MONOTONIC is slewed as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

JUMP_NS: Final = 100_000_000  # steps of less, which an NTP client makes now and then, add up until they are as much


class WallWatch:
    """Compares two clocks, which are given in ns."""

    def __init__(self, wall_ns: Callable[[], int], now_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self._ahead_ns: int | None = None

    @property
    def ahead_ns(self) -> int:
        """How far the wall clock was ahead when it was last found to be set, or first looked at."""
        assert self._ahead_ns is not None, "the clocks were not compared yet"
        return self._ahead_ns

    def was_set(self) -> bool:
        """Whether the wall clock was set since it was last found so; the first call only looks."""
        before_ns = self._now_ns()
        wall_ns = self._wall_ns()
        after_ns = self._now_ns()
        # This thread may have stood still between two of the looks, so the distance is known within bounds.
        least_ns, most_ns = wall_ns - after_ns, wall_ns - before_ns
        if self._ahead_ns is not None and least_ns - JUMP_NS < self._ahead_ns < most_ns + JUMP_NS:
            return False
        first, self._ahead_ns = self._ahead_ns is None, (least_ns + most_ns) // 2
        return not first
