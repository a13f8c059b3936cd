"""The main thread waits in slices, because a signal may come without waking it.

CPython runs signal handlers in the main thread, between two calls. A signal that comes just before that thread begins
to sleep does not end the sleep. Neither does a signal that the system delivers to another thread. In both cases the
handler runs when the sleep ends. So in a wait without a limit, SIGTERM and Ctrl-C would never be noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, TypeVar

from timerd_wire.native import ident

Value = TypeVar("Value")
SLICE_S: Final = 1.0
DRIVE_S: Final = 0.05


def is_main_thread() -> bool:
    """Whether the caller runs in the main thread, in which signal handlers run."""
    return ident() == threading.main_thread().ident


def slices(seconds: float | None) -> Iterator[float | None]:
    """The sleeps of a wait of `seconds`, in seconds; at least one sleep. None = sleep until woken."""
    if not is_main_thread():
        yield None if seconds is None else max(seconds, 0.0)
        return
    end = None if seconds is None else monotonic() + seconds
    while True:
        left = None if end is None else end - monotonic()
        if left is not None and left <= SLICE_S:
            yield max(left, 0.0)
            return
        yield SLICE_S


class SlicedQueue(SimpleQueue[Value]):
    """A queue whose getter waits in slices."""

    def get(self, block: bool = True, timeout: float | None = None) -> Value:
        for sleep_s in slices(timeout if block else 0.0):
            try:
                return super().get(block=sleep_s != 0.0, timeout=sleep_s)
            except Empty:
                pass
        raise Empty


class DrivenQueue(SimpleQueue[Value]):
    """A queue whose getter calls `drive(seconds)` again and again. `drive` fills the queue."""

    def __init__(self, drive: Callable[[float], None]) -> None:
        self._drive = drive

    def get(self, block: bool = True, timeout: float | None = None) -> Value:
        end = None if timeout is None else monotonic() + timeout
        while block and self.empty():
            left = DRIVE_S if end is None else end - monotonic()
            if left <= 0:
                break
            self._drive(min(left, DRIVE_S))
        return super().get(block=False)
