"""A delayed operation of an asyncio client: its functions, or coroutine functions, are called in the client's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from timerd_client.arguments import patience_s
from timerd_client.declared import DelayedArguments
from timerd_client.delayed.operation import Delayed, DelayedDriver
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.outcome import State
from timerd_client.types import Key, Patience
from timerd_client.waits.evaluating import evaluating
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .link import LoopLink
from .operation import answer_of, settled


async def called(function: Callable[[], Any]) -> Any:
    """The value of the function, or of its coroutine."""
    with evaluating():
        value = function()
        return await value if isinstance(value, Awaitable) else value


def ends_task(error: BaseException) -> bool:
    """Whether a function raised this error because its task was cancelled, or its loop is to end.

    The caller raises such an error again. A CancelledError may also come from something that the function awaited: then
    it is an error like others.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, (SystemExit, KeyboardInterrupt))


class DelayedOperation(Delayed):
    """An operation whose condition its owner evaluates, as `td.DelayedOperation`; its functions may be coroutines.

    `lock` is held while one of these functions runs (default: a new lock).
    """

    NAME = "td.aio.DelayedOperation"
    _delayed: LoopDriver

    def __init__(
        self,
        try_complete: Callable[[], bool | Awaitable[bool]] | None = None,
        *,
        on_complete: Callable[[], object] | None = None,
        on_expiration: Callable[[], object] | None = None,
        on_error: Callable[[], object] | None = None,
        lock: asyncio.Lock | None = None,
    ) -> None:
        super().__init__(
            try_complete=try_complete, on_complete=on_complete, on_expiration=on_expiration, on_error=on_error
        )
        self._delayed = LoopDriver(self, asyncio.Lock() if lock is None else lock)

    @property
    def lock(self) -> asyncio.Lock:
        return self._delayed.lock

    async def force_complete_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        driver = self._delayed
        if driver.force_alone():
            await driver.until_called_back(timeout)
            return True
        if driver.is_alone:
            return False
        driver.end()
        reply = Reply(driver.link)
        return driver.complete(reply) and bool(await answer_of(reply, timeout))

    async def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        self.cancel()
        if not await self.settled(timeout):
            raise self._delayed.link.connection.unavailable(timeout)
        return self.state is State.CANCELLED

    async def settled(self, timeout: Patience = None) -> bool:
        if self.done():
            return await self._delayed.until_called_back(timeout)
        end = self._delayed.end()
        return await settled(end, timeout) and bool(end.get())


class LoopDriver(DelayedDriver[LoopLink]):
    """The asyncio client's side of a delayed operation."""

    def __init__(self, owner: DelayedOperation, lock: asyncio.Lock) -> None:
        super().__init__(owner)
        self.lock = lock
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references

    def wake(self) -> None:
        self._run(self._evaluate())

    def _ended(self, state: State) -> None:
        if self.link.loop.is_closed():
            return
        self._run(self._finish(state))

    def _finish_alone(self) -> None:
        self._run(self._finish(State.COMPLETED), asyncio.get_running_loop())

    async def until_called_back(self, timeout: Patience) -> bool:
        """Whether the callbacks return within `timeout` seconds. Called after the operation has settled."""
        if self._tasks:
            await asyncio.wait(self._tasks.copy(), timeout=patience_s(timeout))
        return not self._tasks

    def _run(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        task = (loop or self.link.loop).create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _evaluate(self) -> None:
        async with self.lock:
            try:
                while looks := self._take_looks():
                    self._answer_looks(looks, self.is_complete or await self._try())
            except BaseException:  # the task was cancelled, or its loop is to end
                self._rest()
                raise

    async def _try(self) -> bool:
        try:
            return bool(await called(self.owner.try_complete))
        except BaseException as error:
            if ends_task(error):
                raise
            self._failed("try_complete", error)
            return False

    async def _finish(self, state: State) -> None:
        try:
            async with self.lock:
                for name, function in self._callbacks(state):
                    try:
                        await called(function)
                    except BaseException as error:
                        if ends_task(error):
                            raise
                        self._failed(name, error)
        finally:
            self._tell()

    async def start(
        self, surface: Surface[Any, LoopLink], keys: Key | Iterable[Key], arguments: DelayedArguments
    ) -> None:
        """Call `try_complete`; if the operation is not complete, watch its keys."""
        if self.is_alone:
            return
        mark = self._begin(surface, keys, arguments)
        async with self.lock:
            complete = await called(self.owner.try_complete)
            if not (complete or self.forced):
                self._watch(surface, arguments, mark, may_exceed=False)
        if self.parts:
            self._follow()
        else:
            self.state = self.state or State.COMPLETED
            await self._finish(self.state)
