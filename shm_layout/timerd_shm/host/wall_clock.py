"""Notices that the wall clock was set: for clients with cron schedules, and for the daemon.

A WallWatch compares the wall clock with CLOCK_MONOTONIC. Their distance changes when somebody sets the wall clock, and
when the machine was suspended. It does not change when the clock is slewed: then CLOCK_MONOTONIC is slewed as well.

A WallAlarm is a descriptor that becomes readable when the clock is set: a timerfd with TFD_TIMER_CANCEL_ON_SET. If the
system refuses it, a client notices a little later, with the daemon's next frame, and the daemon with its next turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

JUMP_NS: Final = 100_000_000  # smaller steps, which an NTP client makes now and then, add up until they reach it
TFD_TIMER_ABSTIME: Final = 1
TFD_TIMER_CANCEL_ON_SET: Final = 2
NEVER_S: Final = 1 << 60  # the timer itself never fires


class WallWatch:
    """Compares two clocks, which are given in ns."""

    def __init__(self, wall_ns: Callable[[], int], now_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self._ahead_ns: int | None = None

    @property
    def ahead_ns(self) -> int:
        """How far the wall clock was ahead of the other clock when was_set() last was True, or was first called."""
        assert self._ahead_ns is not None, "the clocks were not compared yet"
        return self._ahead_ns

    def was_set(self) -> bool:
        """Whether the wall clock was set since a call last returned True. The first call only looks."""
        before_ns = self._now_ns()
        wall_ns = self._wall_ns()
        after_ns = self._now_ns()
        # This thread may have stood still between two of the looks, so the distance is known within bounds.
        least_ns, most_ns = wall_ns - after_ns, wall_ns - before_ns
        if self._ahead_ns is not None and least_ns - JUMP_NS < self._ahead_ns < most_ns + JUMP_NS:
            return False
        first, self._ahead_ns = self._ahead_ns is None, (least_ns + most_ns) // 2
        return not first


class _TimerSpec(ctypes.Structure):
    """struct itimerspec, with a long for each time_t and each long in it."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class WallAlarm:
    """The descriptor, and nothing else: the reader compares the clocks."""

    def __init__(self) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: the C library has no such function
            self._descriptor = _armed()

    def fileno(self) -> int:
        """The descriptor; -1 = there is none."""
        return self._descriptor

    def read(self) -> None:
        """Make the descriptor unreadable until the clock is set again."""
        with contextlib.suppress(OSError):  # ECANCELED: the clock was set; EAGAIN: it was not
            os.read(self._descriptor, 8)

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _armed() -> int:
    """A timerfd that is armed. Raises OSError, AttributeError."""
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create failed")
    spec = _TimerSpec(at_s=NEVER_S)
    flags = TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET
    if library.timerfd_settime(descriptor, flags, ctypes.byref(spec), None) != 0:
        os.close(descriptor)
        raise OSError(ctypes.get_errno(), "timerfd_settime failed")
    return descriptor
