"""Something that the daemon settles later: an operation, a batch of operations, an answer.

A promise has one slot for its settlement and one for its callbacks. Both change with the link's lock held (threaded
client) or in its loop (asyncio client). Callbacks run without the lock, in the link's thread or loop. They must not
block.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from timerd_client.arguments import callback_of, patience_s, shown
from timerd_client.errors import RequestEnded
from timerd_client.hot import Promised
from timerd_client.scope import Scope, noted
from timerd_client.types import Patience
from timerd_client.waiter import Settlement, local
from timerd_client.waits.aside import Aside
from timerd_client.waits.gate import Gate
from timerd_client.waits.green import GreenCallback
from timerd_shm.declare.errors import ClosedError, InvalidValueError, TimerdError
from timerd_wire.refusals import NO_SUBJECT, Subject

from .link import Link

PromiseT = TypeVar("PromiseT", bound="Promise")
IN_LOOP = (
    "a threaded client waits in a thread that runs an event loop, and the loop stands still meanwhile: "
    "`await` the operation, use td.aio, or wait in asyncio.to_thread()"
)


NOTEBOOKS = ("IPython", "marimo")  # a cell runs in the loop of its kernel, which waits for the cell in any case


def _warn_in_loop() -> None:
    """Warn a caller that blocks its event loop: at the line from which this package was called.

    A cell of a notebook is not warned. Its kernel has a loop, and waits for the cell, as it waits for any computation.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("timerd_client."):
        frame, level = frame.f_back, level + 1
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in NOTEBOOKS:
            return
        frame = frame.f_back
    warnings.warn(IN_LOOP, RuntimeWarning, stacklevel=level)


def _wakes(callback: Any) -> bool | None:
    """Whether a callback wakes a waiting caller; None = it is a user's callback."""
    owner = getattr(callback, "__self__", callback)
    if isinstance(owner, GreenCallback):
        owner = owner.callback
    return owner.wakes if isinstance(owner, (Aside, Gate)) else None


class Promise(Promised):
    """Something that settles once. Then each callback is called once."""

    __slots__ = ()
    _link: Link

    def subject(self, command: int) -> Subject:
        """The subject of this command, for the message of a refusal."""
        return NO_SUBJECT

    def notify(self) -> None:
        """Run the callbacks. An error in a callback is logged, and the other callbacks still run.

        A user's callback counts as a look at the outcome, unless a caller is waiting, too: then the caller will look.
        """
        callbacks, self._callbacks = self._callbacks, None
        if callbacks and self._unseen:
            kinds = {_wakes(callback) for callback in callbacks}
            if None in kinds and True not in kinds:
                self.done()
        for callback in callbacks or ():
            self._run(callback)

    def _run(self, callback: Callable[[Any], object]) -> None:
        try:
            callback(self)
        except BaseException as error:  # also SystemExit: the client's thread has to live on
            self._link.complain(f"callback {callback!r} failed", error)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(self)` when this has settled; at once if it has settled already. The callback must not block.

        It runs in the client's thread or loop, with gevent in a new greenlet. An error in the callback is logged.
        """
        callback_of(callback)
        if not self._add(self._link.waiters.callback(callback)):
            self.done()
            self._run(callback)

    def _call_aside(self, call: Callable[[Any], object], *, wakes: bool = True) -> None:
        """Like add_done_callback, for a call that does not look at the outcome. `_remove(Aside(call))` undoes it."""
        if not self._add(self._link.waiters.callback(Aside(call, wakes=wakes))):
            self._run(call)

    def _add(self, callback: Callable[[Any], object]) -> bool:
        with self._link.lock:
            if self._link.closed and not self._has_settled():
                # close() settles all promises of its process. So this pending promise was made before a fork.
                made = "the client was made before a fork: this can only settle in the parent"
                self._abandon(ClosedError(made, in_doubt=True))
            if self._has_settled():
                return False
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
            return True

    def _abandon(self, error: TimerdError) -> None:
        """Settle this with an error, because the daemon will not settle it. Called with the lock held."""
        self._settlement = local(error)

    def _remove(self, callback: Callable[[Any], object]) -> None:
        def remove() -> None:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

        self._link.sender.soon(remove)

    def _wait(self, timeout: Patience) -> bool:
        """Block until it has settled, `timeout` seconds at most. Returns whether it has. Raises RequestEnded."""
        seconds = patience_s(timeout)
        if self._has_settled():
            return True
        self._link.waiters.may_block()
        if "asyncio" in sys.modules and sys.modules["asyncio"]._get_running_loop() is not None:
            _warn_in_loop()
        scope, gate = self._scope(), self._link.waiters.gate()
        if not self._add(gate.open):
            return True
        try:
            if scope is None or scope.add(gate.open):
                gate.wait(seconds)
        finally:
            if scope is not None:
                scope.remove(gate.open)
            if not self._has_settled():  # a settled promise has dropped its callbacks
                self._remove(gate.open)
        return self._is_done_in(scope)

    def _is_done_in(self, scope: Scope | None) -> bool:
        """After a wait: whether this has settled. If the request has ended, withdraw and raise RequestEnded."""
        if scope is not None:
            if scope.reason and self._end_wait():
                raise scope.error()
            error = None if self._settlement is None else self._settlement[3]
            if error is not None:
                noted(error)
        return self._has_settled()

    def _scope(self) -> Scope | None:
        """The request whose end also ends a wait for this promise; None for an answer of the daemon."""
        return None

    def _end_wait(self) -> bool:
        """Withdraw, because the caller's request has ended. False if this has settled: the caller gets the outcome."""
        return False

    def _wait_in_loop(self, timeout: Patience = None, *, gives_back: bool = True) -> Generator[Any, None, bool]:
        """Wait until it has settled, by `yield from` in a coroutine, `timeout` seconds at most. Returns whether it has.

        If the coroutine is cancelled, the operation is withdrawn, because nobody else waits for its outcome.
        """
        seconds = patience_s(timeout)
        if self._has_settled():
            return True
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        wake_in_loop = Aside(lambda _: self._link.waiters.call_in_loop(loop, wake))

        def end() -> None:
            loop.call_soon_threadsafe(wake)

        scope = self._scope()
        if not self._add(wake_in_loop):
            return True
        timer = None if seconds is None else loop.call_later(max(seconds, 0.0), wake)
        try:
            if scope is None or scope.add(end):
                yield from future
        except asyncio.CancelledError:
            if gives_back:
                self._give_back()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if scope is not None:
                scope.remove(end)
            if not self._has_settled():
                self._remove(wake_in_loop)
        return self._is_done_in(scope)

    def _give_back(self) -> None:
        """Withdraw, because the coroutine that waited was cancelled, and nobody else waits."""


def promises_of(operations: Iterable[PromiseT], kinds: tuple[type[Promise], ...], other: str) -> list[PromiseT]:
    """A list of the given operations. Raises InvalidValueError if one is not of these kinds.

    `other` is the end of the message for promises of the other kind of client, threaded or asyncio.
    """
    given = list(operations)
    for one in given:
        if not isinstance(one, kinds):
            if isinstance(one, Promise):
                raise InvalidValueError(f"{shown(one)} is {other}")
            raise InvalidValueError(f"{shown(one)} is {type(one).__name__}: give operations, or whole batches: [batch]")
    return given


@contextmanager
def withdrawing(promises: Iterable[Promise]) -> Iterator[None]:
    """Withdraw all these promises if the caller's request ends in the block."""
    try:
        yield
    except RequestEnded:
        for promise in promises:
            promise._end_wait()
        raise


class Reply(Promise):
    """The answer to a command that wants one, or to a question."""

    __slots__ = ("_callbacks", "_error", "_link", "_settlement", "_subject", "_value")

    def __init__(self, link: Link, subject: Subject = NO_SUBJECT) -> None:
        self._link = link
        self._settlement: Settlement | None = None
        self._callbacks: list[Callable[[Any], object]] | None = None
        self._subject = subject
        self._value: Any = None
        self._error: TimerdError | None = None

    def subject(self, command: int) -> Subject:
        return self._subject

    def answer(self, value: Any, error: TimerdError | None = None) -> bool:
        """The protocol calls this with the lock held. Returns whether to call `notify` later."""
        self._value, self._error = value, error
        return self.settle(0, local(error) if error is not None else Settlement(None, b"", 0, None))

    def _abandon(self, error: TimerdError) -> None:
        self.answer(None, error)

    def result(self) -> tuple[Any, TimerdError | None]:
        """The answer, and the refusal or None."""
        return self._value, self._error

    def get(self) -> Any:
        """The answer. Raises the refusal."""
        if self._error is not None:
            raise noted(self._error)
        return self._value

    def answer_in_time(self, timeout: Patience) -> Any:
        """Wait for the answer. Raises the refusal, and TimerdUnavailableError after `timeout` s."""
        if not self._wait(timeout):
            raise self._link.connection.unavailable(timeout)
        return self.get()

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._wait_in_loop()
        return self.get()
