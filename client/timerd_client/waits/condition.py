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
    one_of: object | None  # of the callers with the same object, it is enough to wake one


class Condition:
    """A condition at which callers wait with a lock held. They hold it after the wait, even if a signal handler raised.

    With threading.Condition they might not hold it after such an error, and leaving `with lock` would release the lock
    of another thread, such as the client's own. A signal handler runs between two Python calls. So one call of C,
    `extend`, acquires the lock and notes this: both happen, or neither. There is one exception: a second handler raises
    before the first error was handled.
    """

    def __init__(self, lock: threading.Lock, gate: Callable[[], Gate]) -> None:
        self._lock = lock
        self._gate = gate
        self._waiting: list[Waiter] = []
        self.callers = 0  # in wait_for()

    def notify_all(self) -> None:
        """Wake all callers that wait, so that they look at their conditions. Called with the lock held."""
        for waiter in list(self._waiting):
            self._wake(waiter)

    def notify(self) -> None:
        """Like notify_all(), but of the callers with the same `one_of`, wake only the first, if its condition holds.

        For example, 32 threads wait for calls, and a call comes: then one thread wakes. Called with the lock held.
        """
        looked_at: set[object] = set()
        for waiter in list(self._waiting):
            if waiter.one_of is None or (waiter.one_of not in looked_at and waiter.condition()):
                self._wake(waiter)
            looked_at.add(waiter.one_of)

    def _wake(self, waiter: Waiter) -> None:
        """Wake a waiter. Open the gate first: if a signal handler raises here, the waiter stays in the list."""
        waiter.gate.open()
        self._waiting.remove(waiter)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, one_of: object | None = None) -> bool:
        """Wait until the condition holds, `timeout` seconds at most. Returns whether it holds.

        Called with the lock held. Callers with the same `one_of` wait for the same thing, and are woken one at a time.
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
            self.notify()  # this caller was woken, but will not look: wake another caller
        if raised is not None:
            try:
                raise raised
            finally:
                raised = None  # otherwise the traceback, and the objects of its frames, would wait for the collector
