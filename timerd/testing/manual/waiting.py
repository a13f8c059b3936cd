"""The waits of threaded clients: where a thread would block, it does all pending work, and looks again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from .driver import Driver


class ManualGate:
    """As waits.gate.Gate: where a caller waits for one promise. (Gate is compiled, so no class derives from it.)"""

    def __init__(self, manual: Driver) -> None:
        self._manual = manual
        self._is_open = False

    def open(self, promise: object = None) -> None:
        self._is_open = True
        self._manual.threads.changed()

    def wait(self, seconds: float | None) -> bool:
        return self._manual.wait(lambda: self._is_open, seconds)


class ManualCondition:
    """As waits.condition.Condition: callers wait with a lock held, and hold it afterwards."""

    def __init__(self, manual: Driver, lock: threading.Lock) -> None:
        self._manual = manual
        self._lock = lock
        self.callers = 0  # in wait_for()

    def notify_all(self) -> None:
        self._manual.threads.changed()

    notify = notify_all

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, one_of: object | None = None) -> bool:
        def holds() -> bool:
            with self._lock:
                return condition()

        if condition():
            return True
        self.callers += 1
        self._lock.release()
        try:
            self._manual.wait(holds, timeout)
        finally:
            self._lock.acquire()
            self.callers -= 1
        return condition()


class ManualQueue(SimpleQueue[Any]):
    """A queue whose getter waits on the manual clock."""

    def __init__(self, manual: Driver) -> None:
        self._manual = manual

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        self._manual.threads.changed()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and not self._manual.wait(lambda: not self.empty(), timeout):
            raise Empty
        return super().get(block=False)
