"""A request in whose name callers wait. When it ends, their waits end: its peer has gone, or its worker drains.

    scope = Scope()
    with scope.entered():
        view()                     # result() in it raises RequestEnded once another thread calls scope.end("drain")

A context variable names the scope, so it goes with a thread, a task or a greenlet, and with the tasks that it begins.
Only waits look for it. What a wait was for is withdrawn, and a limited event that was on its way goes to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from timerd_client.errors import RequestEnded
from timerd_wire.native import lock


class Scope:
    """A request. Any thread may end it, once."""

    def __init__(self) -> None:
        self._lock = lock()
        self._enders: list[Callable[[], object]] = []
        self.reason = ""  # why it has ended; empty while it goes on

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within this block waits are in its name."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def end(self, reason: str) -> None:
        """End all waits in its name, and each that would begin. Once more changes nothing."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            enders, self._enders = self._enders, []
        for ender in enders:
            ender()

    def add(self, ender: Callable[[], object]) -> bool:
        """Call `ender` when it ends, in the thread that ends it; False if it has ended."""
        with self._lock:
            if self.reason:
                return False
            self._enders.append(ender)
            return True

    def remove(self, ender: Callable[[], object]) -> None:
        """Do not call it any more."""
        with self._lock:
            if ender in self._enders:
                self._enders.remove(ender)

    def error(self) -> RequestEnded:
        """The error of a wait that has ended with it."""
        return RequestEnded(f"the request in which this waits has ended: {self.reason}", self.reason)


_current: ContextVar[Scope | None] = ContextVar("timerd_scope", default=None)


def current_scope() -> Scope | None:
    """The scope in which the caller waits, if there is one."""
    return _current.get()
