"""How coroutines of an asyncio client wait: after it has received, the loop looks at their conditions (passes.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from timerd_client.link.base import LinkBase
from timerd_client.link.waiters import Waiters
from timerd_client.scope import Scope
from timerd_wire.native import ident


class LoopWaiters(Waiters):
    """Coroutines that wait in the loop of the link."""

    def __init__(self, link: LinkBase) -> None:
        super().__init__(link)
        self._loop = asyncio.get_running_loop()
        self._thread = ident()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def may_block(self) -> None:
        raise RuntimeError("an asyncio client does not block: await it")

    def must_not_wait(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if loop.is_closed():
            return
        if loop is self._loop and self._thread == ident():
            call()
        else:
            loop.call_soon_threadsafe(call)

    def notify_locked(self) -> None:
        self._link.wake()  # the pass then looks at the conditions of the waiters

    def some_wait(self) -> bool:
        return bool(self._waiting)

    async def until(self, condition: Callable[[], bool], timeout: float | None, scope: Scope | None = None) -> bool:
        """Wait until the condition holds, `timeout` seconds at most. Returns whether it holds.

        Raises RequestEnded if the request `scope` ends first.
        """
        if condition():
            return True
        future: asyncio.Future[None] = self._loop.create_future()

        def holds() -> bool:
            return condition() or (scope is not None and bool(scope.reason))

        def end() -> None:
            self._loop.call_soon_threadsafe(self.look)

        entry = (holds, future)
        self._waiting.append(entry)
        try:
            if scope is None or scope.add(end):
                async with asyncio.timeout(timeout):  # asyncio.wait_for of Python 3.11 may swallow a cancellation
                    await future
        except TimeoutError:
            return condition()
        finally:
            if scope is not None:
                scope.remove(end)
            if entry in self._waiting:
                self._waiting.remove(entry)
        if scope is not None and scope.reason and not condition():
            raise scope.error()
        return True

    def look(self) -> None:
        """Wake the waiters whose condition holds. Called in the loop."""
        for condition, future in list(self._waiting):
            if not future.done() and condition():
                future.set_result(None)
