"""A delayed operation of an asyncio client: its functions, or coroutine functions, are called in the client's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from timerd_client.delayed.operation import Whole
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.outcome import State
from timerd_client.types import IfExists, Key, OrphanPolicy, Patience, Payload, Timeout
from timerd_client.waits.evaluating import evaluating
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .link import LoopLink
from .operation import answer_of, settled


async def called(function: Callable[[], Any]) -> Any:
    """What it returns, or what its coroutine does."""
    with evaluating():
        value = function()
        return await value if isinstance(value, Awaitable) else value


class DelayedOperation(Whole[LoopLink]):
    """An operation whose condition its owner evaluates, as `td.DelayedOperation`; its functions may be coroutines.

    `lock` is held while a function of it runs (default: a lock of its own).
    """

    def __init__(
        self,
        try_complete: Callable[[], bool | Awaitable[bool]] | None = None,
        *,
        on_complete: Callable[[], object] | None = None,
        on_expiration: Callable[[], object] | None = None,
        lock: asyncio.Lock | None = None,
    ) -> None:
        super().__init__(try_complete, on_complete, on_expiration)
        self.lock = asyncio.Lock() if lock is None else lock
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps weak references alone

    async def force_complete_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`force_complete`, and whether this call has completed it. Raises TimerdUnavailableError after `timeout` s."""
        self._raise_if_never()
        reply = Reply(self._link)
        return self._complete(reply) and bool(await answer_of(reply, timeout))

    async def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`cancel`, and whether it was cancelled, not settled otherwise. Raises TimerdUnavailableError."""
        self.cancel()
        if not await self.settled(timeout):
            raise self._link.unavailable(timeout)
        return self.state is State.CANCELLED

    async def settled(self, timeout: Patience | None = None) -> bool:
        """Wait until it has settled and its callbacks have run, `timeout` seconds at most; whether that is so."""
        end = self._raise_if_never()
        return await settled(end, timeout) and bool(end.get())

    def wake(self) -> None:
        self._run(self._evaluate())

    def ended(self, state: State) -> None:
        if self._link.loop.is_closed():
            return
        self._run(self._finish(state))

    def _run(self, coroutine: Any) -> None:
        task = self._link.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _evaluate(self) -> None:
        async with self.lock:
            while looks := self._take_looks():
                self._answer_looks(looks, await self._try())

    async def _try(self) -> bool:
        try:
            return bool(await called(self.try_complete))
        except Exception as error:
            self._failed("try_complete", error)
            return False

    async def _finish(self, state: State) -> None:
        async with self.lock:
            for name, function in self._callbacks(state):
                try:
                    await called(function)
                except Exception as error:
                    self._failed(name, error)
        self._tell()

    async def _start(
        self,
        surface: Surface[Any, LoopLink],
        keys: Key | Iterable[Key],
        timeout: Timeout,
        payload: Payload,
        id: Key | None,
        if_exists: IfExists,
        orphans: OrphanPolicy | None,
    ) -> None:
        mark = self._begin(surface, keys, timeout)
        async with self.lock:
            if not await called(self.try_complete):
                self._watch(surface, timeout, payload, id, if_exists, orphans, mark, may_exceed=False)
        if self._parts:
            self._follow()
        else:
            self._state = self._state or State.COMPLETED
            await self._finish(self._state)
