"""A delayed operation of a threaded client: its functions are called in the client's thread, or in a greenlet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from timerd_client.arguments import is_coroutine_function
from timerd_client.declared import DelayedArguments
from timerd_client.delayed.operation import Delayed, DelayedDriver
from timerd_client.link.flows import Evaluate
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.outcome import State
from timerd_client.types import Key, Patience
from timerd_client.waits.evaluating import evaluating
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .link import ThreadedLink, do


class DelayedOperation(Delayed):
    """An operation whose condition its owner evaluates: `try_complete()` after each event on its keys.

        class Fetch(td.DelayedOperation):
            def try_complete(self): return len(self.messages) >= 10
            def on_complete(self): self.respond(self.messages)

        client.try_complete_else_watch(Fetch(...), ["topic/0", "topic/1"], timeout=0.5)

    `on_complete()` runs exactly once if the operation completes or expires: when the daemon has confirmed the
    completion, or after the deadline. After the deadline `on_expiration()` runs as well. If the operation ends in
    another way, neither runs. `lock` is held while one of the functions runs (default: a lock for this operation
    alone); several operations may share a lock. The functions must not block; a thread that holds the lock must not
    wait for the client.

    Source: Kafka, kafka.server.DelayedOperation. docs/howto/delayed.md says what differs.
    """

    NAME = "td.DelayedOperation"
    _delayed: ThreadedDriver

    def __init__(
        self,
        try_complete: Callable[[], bool] | None = None,
        *,
        on_complete: Callable[[], object] | None = None,
        on_expiration: Callable[[], object] | None = None,
        on_error: Callable[[], object] | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        super().__init__(
            try_complete=try_complete, on_complete=on_complete, on_expiration=on_expiration, on_error=on_error
        )
        for function in (self.try_complete, self.on_complete, self.on_expiration, self.on_error):
            if is_coroutine_function(function):
                raise InvalidValueError(
                    f"{function!r} is a coroutine function, and a threaded client awaits nothing: use td.aio"
                )
        self._delayed = ThreadedDriver(self, threading.RLock() if lock is None else lock)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._delayed.lock

    def force_complete_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        driver = self._delayed
        if driver.force_alone():
            return True
        if driver.is_alone:
            return False
        driver.end()
        reply = Reply(driver.link)
        return driver.complete(reply) and bool(reply.answer_in_time(timeout))

    def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        self.cancel()
        if not self.settled(timeout):
            raise self._delayed.link.connection.unavailable(timeout)
        return self.state is State.CANCELLED

    def settled(self, timeout: Patience = None) -> bool:
        if self._delayed.is_alone:
            with self.lock:  # another thread may still be running the callbacks, with this lock held
                return True
        end = self._delayed.end()
        return end._wait(timeout) and bool(end.get())


class ThreadedDriver(DelayedDriver[ThreadedLink]):
    """The threaded client's side of a delayed operation."""

    def __init__(self, owner: DelayedOperation, lock: AbstractContextManager[Any]) -> None:
        super().__init__(owner)
        self.lock = lock

    def wake(self) -> None:
        self._run(lambda _: self._evaluate())

    def _ended(self, state: State) -> None:
        self._run(lambda _: self._finish(state))

    def _finish_alone(self) -> None:
        self._finish(State.COMPLETED)

    def _run(self, function: Callable[[Any], object]) -> None:
        """Run the function here, in the client's thread; with gevent in a new greenlet."""
        self.link.waiters.callback(function)(self)

    def _evaluate(self) -> None:
        with self.lock:
            while looks := self._take_looks():
                self._answer_looks(looks, self.is_complete or self._try())

    def _try(self) -> bool:
        try:
            with evaluating():
                return bool(do(Evaluate(self.owner.try_complete)))
        except BaseException as error:  # also SystemExit: the client's thread has to live on
            self._failed("try_complete", error)
            return False

    def _finish(self, state: State) -> None:
        with self.lock:
            for name, function in self._callbacks(state):
                try:
                    with evaluating():
                        do(Evaluate(function))
                except BaseException as error:
                    self._failed(name, error)
        self._tell()

    def start(
        self, surface: Surface[Any, ThreadedLink], keys: Key | Iterable[Key], arguments: DelayedArguments
    ) -> None:
        """Call `try_complete`; if the operation is not complete, watch its keys."""
        if self.is_alone:
            return
        mark = self._begin(surface, keys, arguments)
        with self.lock:
            with evaluating():
                complete = do(Evaluate(self.owner.try_complete))
            if not (complete or self.forced):
                # In the client's own thread this call cannot wait for room.
                own = self.link.waiters.in_own_thread()
                self._watch(surface, arguments, mark, may_exceed=own)
        if self.parts:
            self._follow()
        else:
            self.state = self.state or State.COMPLETED
            self._finish(self.state)
