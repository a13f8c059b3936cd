"""A condition at which callers wait with a lock held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from .gate import Gate


class Waiter(NamedTuple):
    """A caller that waits at a Condition."""

    gate: Gate
    condition: Callable[[], bool]
    one_of: object | None  # of the callers with the same object, one is enough


class Condition:
    """A condition at which callers wait with a lock held. Afterwards they hold it, even if a signal handler has raised.

    With threading.Condition they may not hold it then. Leaving `with lock` would then release the lock of another
    thread, such as the client's own. A signal handler runs between calls of Python. So one call of C, `extend`,
    acquires the lock and notes that: it does both, or neither. If a second handler raises before the first error was
    handled, this does not hold.
    """

    def __init__(self, lock: threading.Lock, gate: Callable[[], Gate]) -> None:
        self._lock = lock
        self._gate = gate
        self._waiting: list[Waiter] = []
        self.callers = 0  # in wait_for()

    def notify_all(self) -> None:
        """With the lock held: wake all callers that wait, so that they look at their conditions."""
        for waiter in list(self._waiting):
            self._wake(waiter)

    def notify(self) -> None:
        """With the lock held: like notify_all(), but of callers with the same `one_of`, wake one whose condition holds.

        For example, 32 threads wait for calls, and a call comes: then one thread wakes.
        """
        looked_at: set[object] = set()
        for waiter in list(self._waiting):
            if waiter.one_of is None or (waiter.one_of not in looked_at and waiter.condition()):
                self._wake(waiter)
            looked_at.add(waiter.one_of)

    def _wake(self, waiter: Waiter) -> None:
        """Wake a waiter. The order matters: a signal handler that raises here leaves the other waiters in the list."""
        waiter.gate.open()
        self._waiting.remove(waiter)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, one_of: object | None = None) -> bool:
        """With the lock held: wait until the condition holds, `timeout` seconds at most. Returns whether it holds.

        Callers with the same `one_of` wait for the same. They are woken one at a time.
        """
        end = None if timeout is None else monotonic() + timeout
        self.callers += 1
        try:
            while not condition():
                left = -1 if end is None else end - monotonic()
                if end is not None and left <= 0:
                    return False
                self._wait(min(left, threading.TIMEOUT_MAX), condition, one_of)
            return True
        finally:
            self.callers -= 1

    def _wait(self, seconds: float, condition: Callable[[], bool], one_of: object | None) -> None:
        waiter = Waiter(self._gate(), condition, one_of)
        gate = waiter.gate
        self._waiting.append(waiter)
        acquired: list[bool] = []
        raised: BaseException | None = None
        try:
            self._lock.release()
            gate.wait(None if seconds < 0 else seconds)
        except BaseException as error:
            raised = error
        while not acquired:
            try:
                acquired.extend(map(self._lock.acquire, (True,)))
            except BaseException as error:
                raised = error
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif raised is not None and one_of is not None:
            self.notify()  # this caller was woken, but will not look: wake another one
        if raised is not None:
            try:
                raise raised
            finally:
                raised = None  # else its traceback, and all that its frames hold, would wait for the collector
