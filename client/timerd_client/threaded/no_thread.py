"""A link without a thread: CPython starts none after the main thread has ended. Waiting callers make the passes.

In a pass, a link receives, does what is due, and sends.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

from timerd_client.waits.gate import Gate
from timerd_wire import native

PASS_S: Final = 0.05  # how often a caller looks at its condition


class NoThread:
    """Stands for the thread of the sockets."""

    def __init__(
        self, exchange: Callable[[], bool], sleep: Callable[[int], None], end_passes: Callable[[], None]
    ) -> None:
        """`exchange` makes a pass (False: the last one), `sleep` sleeps up to the given ns, `end_passes` closes all."""
        self._exchange = exchange
        self._sleep = sleep
        self._end_passes = end_passes
        self._lock = native.lock()
        self._by = 0  # the thread that is making a pass
        self._has_ended = False

    def start(self) -> None:
        """Do nothing: there is no thread."""

    def is_current(self) -> bool:
        """Whether the caller is a callback, which runs in a pass."""
        return self._by == native.ident()

    def go_on(self, seconds: float) -> None:
        """Make a pass, and sleep for `seconds` at most. While another thread makes passes, only wait."""
        if self._has_ended or not self._lock.acquire(timeout=seconds):
            return
        try:
            self._by = native.ident()
            if self._exchange():
                self._sleep(int(seconds * 1e9))
            else:
                self._has_ended = True
                self._end_passes()
        finally:
            self._by = 0
            self._lock.release()

    def join(self, seconds: float) -> bool:
        """Make passes until the last one, for `seconds` at most. Returns whether the last one was made."""
        end = monotonic() + seconds
        while not self._has_ended and (left := end - monotonic()) > 0:
            self.go_on(min(left, PASS_S))
        return self._has_ended


class DrivenGate(Gate):
    """A gate whose caller makes the passes that open it."""

    def __init__(self, drive: Callable[[float], None]) -> None:
        super().__init__()
        self._drive = drive

    def wait(self, seconds: float | None) -> bool:
        end = None if seconds is None else monotonic() + seconds
        while not super().wait(0.0):
            left = PASS_S if end is None else end - monotonic()
            if left <= 0:
                return False
            self._drive(min(left, PASS_S))
        return True
