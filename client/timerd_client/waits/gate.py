"""A gate: one caller waits at it until one promise has settled."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import ClassVar

from timerd_wire import native

from .slices import slices


class Gate:
    """A gate is closed until a thread opens it."""

    wakes: ClassVar = True  # as in an Aside: if `open` is a callback, its call wakes a waiting caller

    def __init__(self) -> None:
        self._lock = native.lock()
        self._lock.acquire()

    def open(self, promise: object = None) -> None:
        """Open the gate; a second call changes nothing. A promise gets this method as a callback."""
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float | None) -> bool:
        """Wait until the gate is open, `seconds` at most. Returns whether it is open."""
        return any(self._lock.acquire(timeout=_timeout(sleep_s)) for sleep_s in slices(seconds))


def _timeout(seconds: float | None) -> float:
    return -1 if seconds is None else min(seconds, threading.TIMEOUT_MAX)
