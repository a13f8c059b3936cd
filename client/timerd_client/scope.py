"""The scope of a request. When the request ends, the waits in its scope end: its peer has gone, or its worker drains.

    scope = Scope()
    with scope.entered():
        view()                     # result() in it raises RequestEnded once another thread calls scope.end("drain")

A context variable names the scope, so it goes with a thread, a task or a greenlet, and with the tasks that it begins.
Only waits for events look for it: `result()`, `await`, `wait_for`, `td.wait` and `as_completed`. When such a wait ends,
its operations are withdrawn, and a limited event that was on its way goes to another operation. A question to the
daemon (`fire_wait`, `flush`) is answered within milliseconds, and its command was sent already. So it is not ended, or
a client that tries again would do it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from timerd_client.errors import RequestEnded

ErrorT = TypeVar("ErrorT", bound=Exception)


class Scope:
    """A request. Any thread may end it, once. A handler of a signal may end it, too.

    There is no lock, because such a handler may interrupt add() in its own thread. add() notes the ender first and
    looks at the reason afterwards. end() sets the reason first. So the ender is called, or add() returns False.
    """

    def __init__(self) -> None:
        self._enders: list[Callable[[], object]] = []
        self.reason = ""  # why it has ended; empty while it goes on
        self.trouble: Exception | None = None  # the last error of timerd that a caller got
        self.failure: BaseException | None = None  # the error that has left the view, if the framework tells

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Waits in this block belong to the scope."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def end(self, reason: str) -> None:
        """End all waits of the scope, and each that begins later. A second call changes nothing."""
        if self.reason:
            return
        self.reason = reason
        for ender in list(self._enders):
            ender()

    def add(self, ender: Callable[[], object]) -> bool:
        """Call `ender` at the scope's end, in the thread that ends it. False: it has ended. It may be called twice."""
        self._enders.append(ender)
        if not self.reason:
            return True
        self.remove(ender)
        return False

    def remove(self, ender: Callable[[], object]) -> None:
        """Do not call this ender any more."""
        if ender in self._enders:
            self._enders.remove(ender)

    def error(self) -> RequestEnded:
        """The error of a wait that the end of the scope has ended."""
        return RequestEnded(f"the request in which this waits has ended: {self.reason}", self.reason)


_current: ContextVar[Scope | None] = ContextVar("timerd_scope", default=None)


def current_scope() -> Scope | None:
    """The scope in which the caller waits, if there is one."""
    return _current.get()


def noted(error: ErrorT) -> ErrorT:
    """Note the error in the caller's scope, and return it: a framework may make a 500 of it without its reason."""
    scope = _current.get()
    if scope is not None:
        scope.trouble = error
    return error
