"""The link of a threaded client: a thread (io_thread.py) or a caller that waits (caller.py) has its sockets."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from timerd_client.link.flows import Do, Evaluate, Finish, Flow, Settles, Sleep, Step, Until
from timerd_client.link.link import Link
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .caller import Callers
from .io_thread import IoThread
from .sender import ThreadedSender
from .waiters import ThreadedWaiters

Value = TypeVar("Value")


class ThreadedLink(Link):
    """A link whose sockets belong to a thread.

    The thread keeps the link and its descriptors while one of these exists: a client or a purgatory in the caller's
    hands, a pending operation, a grant that nobody has looked at, an unacknowledged command, or a handler of named
    calls. If a client is dropped without close(), its link ends soon afterwards, as if the client had been closed.
    """

    SENDER: ClassVar[type[ThreadedSender]] = ThreadedSender
    WAITERS: ClassVar[type[ThreadedWaiters]] = ThreadedWaiters
    THREAD: ClassVar[type[IoThread]] = IoThread
    sender: ThreadedSender
    waiters: ThreadedWaiters

    def _make_parts(self) -> None:
        waiters = self.waiters = self.WAITERS(self)
        sender = self.sender = self.SENDER(self, self.connection, waiters.moved, waiters.in_own_thread)
        waiters.callers = Callers(self, self.connection, sender, waiters.moved)
        waiters.thread = self.thread = self.THREAD(self, self.connection, sender, waiters.callers, waiters.moved)

    def _begin(self) -> None:
        try:
            self.connection.begin(self.thread)
            self.thread.start()
        except BaseException:  # no file can be opened, or no thread can be started
            self.sealed = self.closed = True
            self.thread.close()
            raise

    def wake(self) -> None:
        self.sender.wake()

    def end_handlers(self, timeout: float | None) -> None:
        for stop in self.before_stop:
            stop(timeout)

    def drive(self, seconds: float) -> None:
        self.thread.go_on(seconds)

    def stop(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """End the thread, which closes the link. Waits `timeout` seconds at most."""
        self.thread.stop(timeout)


def _until(
    link: ThreadedLink,
    condition: Callable[[], bool],
    seconds: float | None,
    then: Callable[[], Any] | None,
    one_of: object | None = None,
) -> Any:
    with link.lock:
        holds = link.waiters.moved.wait_for(condition, seconds, one_of)
        return holds if then is None else then()


def drive(flow: Flow[Value]) -> Value:
    """Do the steps of a flow, and block for each. Returns the result of the flow, or raises its error."""
    done: Any = None
    try:
        while True:
            try:
                step = flow.send(done)
            except StopIteration as end:
                value: Value = end.value
                return value
            done = do(step)
    except BaseException:
        flow.close()  # its `finally` clauses run now, and not when a traceback is freed
        raise


def do(step: Step) -> Any:
    """Do one step, and block for it."""
    match step:
        case Until(link, condition, seconds, then, scope, one_of):
            assert isinstance(link, ThreadedLink)
            if scope is None:
                return _until(link, condition, seconds, then, one_of)

            def end() -> None:
                link.sender.soon(link.waiters.notify_locked)

            scope.add(end)
            try:
                holds = _until(link, lambda: bool(scope.reason) or condition(), seconds, then)
            finally:
                scope.remove(end)
            if scope.reason and not condition():
                raise scope.error()
            return holds
        case Settles(promise, seconds):
            return promise._wait(seconds)
        case Evaluate(function):
            value = function()
            if inspect.iscoroutine(value):
                value.close()
                raise InvalidValueError(
                    f"{function!r} is a coroutine function, and a threaded client awaits nothing: use td.aio"
                )
            return value
        case Do(function):
            return function()
        case Finish(link, seconds):
            assert isinstance(link, ThreadedLink)
            link.waiters.may_block()
            link.end_handlers(seconds)
        case Sleep(seconds):
            time.sleep(seconds)
    return None
