"""The scope of a request. If the peer disconnects or the worker drains, the scope ends, and so do the waits in it.

    scope = Scope()
    with scope.entered():
        view()                     # its result() raises RequestEnded once another thread calls scope.end("drain")

A context variable holds the scope. So each thread, task or greenlet has its own, and the tasks that a view begins
inherit its scope. The end of a scope ends the waits for events: `result()`, `await`, `wait_for`, `td.wait`,
`as_completed`, and loops over subscriptions. If the wait was for operations, they are withdrawn, and a limited event
that was on its way goes to another operation. A question to the daemon (`fire_wait`, `flush`) does not end with the
scope: the answer comes within milliseconds, and the command was sent already. If the question ended, a client that
tries again would send the command twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from timerd_client.errors import ClosedError, RequestEnded

logger = logging.getLogger("timerd_client")
ErrorT = TypeVar("ErrorT", bound=Exception)


class Scope:
    """A request. Any thread may end it, once. A signal handler may end it, too.

    There is no lock, because a signal handler may interrupt add() in the same thread. add() notes the ender first and
    looks at the reason afterwards. end() sets the reason first. So the ender is called, or add() returns False.
    """

    def __init__(self) -> None:
        self._enders: list[Callable[[], object]] = []
        self.reason = ""  # why the request has ended; empty before its end
        # The mark for the next request, as text: the first one that the view registered with, else the first one that
        # it took. Empty if it took one without an arena.
        self.mark: str | None = None
        self.has_since = False  # whether the view has registered with a mark
        self.trouble: BaseException | None = None  # the last error of timerd that a caller got
        self.failure: BaseException | None = None  # the error that has left the view, if the framework passes it on

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Waits in this block belong to the scope."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def end(self, reason: str) -> None:
        """End all waits of the scope, also the waits that begin later. A second call changes nothing.

        If a wait cannot be ended, its error is logged, not raised: the other waits still end, and the caller goes on. A
        caller that is a handler of a signal has more to do.
        """
        if self.reason:
            return
        self.reason = reason
        for ender in list(self._enders):
            try:
                ender()
            except (RuntimeError, ClosedError):
                pass  # the loop or the client of the wait has ended, so nobody waits
            except Exception:
                logger.exception("a request has ended (%s), and one of its waits could not be ended", reason)

    def add(self, ender: Callable[[], object]) -> bool:
        """Let the end of the scope call `ender`, in the ending thread. Returns False if the scope has ended.

        `ender` is called twice if two threads end the scope at the same time.
        """
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
        error = RequestEnded(f"the request of this wait has ended: {self.reason}", self.reason)
        self.trouble = error
        return error


_current: ContextVar[Scope | None] = ContextVar("timerd_scope", default=None)


def goes_on_from(since: object) -> None:
    """The view registers, or subscribes, since this mark. A mark that it took may be newer, and events lie between."""
    scope = current_scope()
    if scope is not None and not scope.has_since:
        scope.has_since, scope.mark = True, str(since)


def current_scope() -> Scope | None:
    """The scope in which the caller waits, if there is one."""
    return _current.get()


def noted(error: ErrorT) -> ErrorT:
    """Note the error in the caller's scope, and return it. So the scope has the reason if a framework answers 500."""
    scope = _current.get()
    if scope is not None:
        scope.trouble = error
    return error
