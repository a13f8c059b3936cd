"""A descriptor that becomes readable when somebody sets the wall clock: a timerfd with TFD_TIMER_CANCEL_ON_SET.

Without one (the system refuses it) a client notices a little later, with the next frame of the daemon; the daemon, in
its next turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import Final

TFD_TIMER_ABSTIME: Final = 1
TFD_TIMER_CANCEL_ON_SET: Final = 2
NEVER_S: Final = 1 << 60  # the timer itself never fires


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
        """Make it unreadable until the clock is set again."""
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
