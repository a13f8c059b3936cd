"""The link of an asyncio client: its loop receives and sends in passes (passes.py), and nothing blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, ClassVar, TypeVar

from timerd_client.link import flows
from timerd_client.link.base import Use
from timerd_client.link.flows import Do, Evaluate, Finish, Flow, Room, Settles, Sleep, Step, Until
from timerd_client.link.link import Link
from timerd_client.link.process_end import PATIENCE_S, say
from timerd_client.waits.loop_end import at_loop_end
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_wire.native import ident

from .operation import settled
from .passes import LoopPasses
from .sender import LoopSender
from .waiters import LoopWaiters

Value = TypeVar("Value")


open_links: set[LoopLink] = set()  # so that a link whose loop has ended is not collected before its last flush


class LoopLink(Link):
    """A link whose sockets a loop watches: the loop that runs when the link is made."""

    PASSES: ClassVar[type[LoopPasses]] = LoopPasses
    sender: LoopSender
    waiters: LoopWaiters

    def _make_parts(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = ident()
        self.waiters = LoopWaiters(self)
        self.sender = LoopSender(self, self.connection, self.waiters)
        self.passes = self.PASSES(self, self.waiters)

    def _begin(self) -> None:
        self.connection.begin(self.passes)
        self.wake()
        open_links.add(self)
        self._guard: AsyncGenerator[None, None] | None = at_loop_end(self._loop_ends)

    async def _loop_ends(self) -> None:
        """Close the link before its loop ends."""
        self._guard = None
        if not self.closed and self._pid == os.getpid():
            try:
                await drive(flows.end(self, CLOSE_TIMEOUT_S, PATIENCE_S if self.connection.may_answer() else 0.0))
            except TimerdError as error:
                say(self, f"its event loop ends: {error}")

    def is_outlived(self) -> bool:
        if self.loop.is_closed() and not self.closed:
            self.seal_because("its event loop has ended")
        return super().is_outlived() or self.loop.is_closed()

    def wake(self) -> None:
        self.idle = False
        try:
            if self._thread == ident():
                self.loop.call_soon(self.passes.make)
            else:
                self.loop.call_soon_threadsafe(self.passes.make)
        except RuntimeError:  # the loop is closed
            if self.ends_with_process:
                return  # the caller drives this link
            self.seal_because("its event loop has ended")
            self.refuse_closed()

    def use(self) -> Use:
        """Keep the result while you use this link. When nobody keeps one any more, the link ends, and warns."""
        return self._users.begin(self._unused)

    def _unused(self) -> None:
        """Nobody uses this link any more: the next pass ends it. Any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: this link ends with its sockets, and they warn
            self.loop.call_soon_threadsafe(self.passes.make)

    def end_handlers(self, timeout: float | None) -> None:
        if not self.loop.is_running():
            self.protocol.inbox.begun.clear()  # the loop does not go on with any handler

    def drive(self, seconds: float) -> None:
        self.passes.go_on(seconds)

    def stop(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Send BYE and close the sockets."""
        if self.closed:
            return
        open_links.discard(self)
        self.passes.end()
        self.end()
        if not self.loop.is_closed():
            self.waiters.look()
        guard, self._guard = self._guard, None
        if guard is not None:
            with contextlib.suppress(StopIteration):
                guard.aclose().send(None)


async def drive(flow: Flow[Value]) -> Value:
    """Do the steps of a flow, and await each. Returns the result of the flow, or raises its error."""
    done: Any = None
    try:
        while True:
            try:
                step = flow.send(done)
            except StopIteration as end:
                value: Value = end.value
                return value
            done = await _do(step)
    except BaseException:
        flow.close()  # its `finally` clauses run now, and not when a traceback is freed
        raise


async def _do(step: Step) -> Any:
    match step:
        case Until(link, condition, seconds, then, scope, _):
            assert isinstance(link, LoopLink)
            holds = await link.waiters.until(condition, seconds, scope)
            return holds if then is None else then()
        case Settles(promise, seconds):
            return await settled(promise, seconds)
        case Evaluate(function):
            value = function()
            return await value if isinstance(value, Awaitable) else value
        case Do(function):
            return await asyncio.to_thread(function)
        case Room(link):
            assert isinstance(link, LoopLink)
            await link.sender.room()
        case Finish(link, seconds):
            assert isinstance(link, LoopLink)
            for stop in link.before_stop:
                await stop(seconds)
        case Sleep(seconds):
            await asyncio.sleep(seconds)
    return None
