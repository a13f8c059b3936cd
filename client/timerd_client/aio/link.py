"""The link of an asyncio client: its loop watches the sockets, and nothing blocks.

The calls of one iteration of the loop are sent as one frame, in a pass (`_pump`). A pass ends when nothing came in
after the last send. Then those who wait (`until`) look at their conditions, and a timer is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from timerd_client.arguments import patience_s, unsigned
from timerd_client.link import flows
from timerd_client.link.flows import Do, Evaluate, Finish, Flow, Room, Settles, Sleep, Step, Until
from timerd_client.link.link import Link
from timerd_client.link.process_end import PATIENCE_S, say
from timerd_client.link.use import Use, Users
from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.sockets import Sockets
from timerd_client.types import Patience
from timerd_client.waits.loop_end import at_loop_end
from timerd_client.waits.scope import Scope, noted
from timerd_shm.declare.errors import BackpressureError, TimerdError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S, TAKEOVER_MS
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import InstancePaths
from timerd_wire import native
from timerd_wire.native import ident

from .operation import settled

Value = TypeVar("Value")
TIMER_SLACK_S = 0.0005  # loops sleep for whole milliseconds: this saves a second wake-up


open_links: set[LoopLink] = set()  # else one whose loop has ended could be collected before its last flush


class LoopLink(Link):
    """A link whose sockets are watched by a loop."""

    def __init__(
        self,
        paths: InstancePaths,
        name: str,
        orphans: Orphans,
        group: str | None,
        sockets: Sockets,
        now_ns: Callable[[], int] = time.monotonic_ns,
        purgatories: Sequence[str] | None = None,
        takeover_ms: int = TAKEOVER_MS,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.before_stop: list[Callable[[float], Awaitable[None]]] = []  # what must end before the connection
        self._users = Users()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        super().__init__(paths, name, orphans, group, sockets, now_ns, purgatories, takeover_ms)
        self._thread = ident()
        self._descriptors: list[int] = []
        self.watch_sockets()
        self.wake()
        open_links.add(self)
        self._guard: AsyncGenerator[None, None] | None = at_loop_end(self._loop_ends)

    async def _loop_ends(self) -> None:
        """Close the link."""
        self._guard = None
        if not self.closed and self._pid == os.getpid():
            try:
                await drive(flows.end(self, CLOSE_TIMEOUT_S, PATIENCE_S if self.may_answer() else 0.0))
            except TimerdError as error:
                say(self, f"its event loop ends: {error}")

    def watch_sockets(self) -> None:
        self._descriptors = self.sockets.filenos()
        for number in self._descriptors:
            self.loop.add_reader(number, self._pump)

    def is_outlived(self) -> bool:
        if self.loop.is_closed() and not self.closed:
            self.seal_because("its event loop has ended")
        return super().is_outlived() or self.loop.is_closed()

    def wake(self) -> None:
        self.idle = False
        try:
            if self._thread == ident():
                self.loop.call_soon(self._pump)
            else:
                self.loop.call_soon_threadsafe(self._pump)
        except RuntimeError:  # the loop is closed
            if self.ends_with_process:
                return  # the caller drives it
            self.seal_because("its event loop has ended")
            self.refuse_closed()

    def ring(self) -> None:
        if not self.closed:
            self.wake()

    def notify_locked(self) -> None:
        self.wake()  # the pass then looks at the conditions of those who wait

    def make_room(self) -> None:
        raise noted(BackpressureError(f"{self.fullness()} ({self.plight()}); `await client.room()` before the next"))

    def check_room(self, commands: int) -> None:
        room = self.protocol.outgoing.room
        if commands > room:
            window = self.protocol.ledger.window
            raise noted(
                BackpressureError(
                    f"{commands} at once, and there is room for {max(room, 0)} ({self.fullness()}); nothing was sent: "
                    f"`await client.room({min(commands, window)})` first"
                    + (f", and send {window} at most at once" if commands > window else "")
                )
            )

    def may_block(self) -> None:
        raise RuntimeError("an asyncio client does not block: await it")

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if loop.is_closed():
            return
        if loop is self.loop and self._thread == ident():
            call()
        else:
            loop.call_soon_threadsafe(call)

    def watch(self, descriptor: int) -> None:
        self.loop.add_reader(descriptor, self._on_readable, descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)

    def _on_readable(self, descriptor: int) -> None:
        self.readable(descriptor)
        self._rest()

    async def until(self, condition: Callable[[], bool], timeout: float | None, scope: Scope | None = None) -> bool:
        """Wait until the condition holds, `timeout` seconds at most. Returns whether it holds.

        RequestEnded is raised if the request `scope` ends before.
        """
        if condition():
            return True
        future: asyncio.Future[None] = self.loop.create_future()

        def holds() -> bool:
            return condition() or (scope is not None and bool(scope.reason))

        def end() -> None:
            self.loop.call_soon_threadsafe(self._wake_waiters)

        entry = (holds, future)
        self._waiters.append(entry)
        try:
            if scope is None or scope.add(end):
                async with asyncio.timeout(timeout):  # asyncio.wait_for of Python 3.11 may swallow a cancellation
                    await future
        except TimeoutError:
            return condition()
        finally:
            if scope is not None:
                scope.remove(end)
            if entry in self._waiters:
                self._waiters.remove(entry)
        if scope is not None and scope.reason and not condition():
            raise scope.error()
        return True

    async def finish(self, timeout: float) -> None:
        """Start no more handlers, and wait until those that run have returned, `timeout` seconds at most."""
        for stop in self.before_stop:
            await stop(timeout)

    async def room(self, commands: int = 1, timeout: Patience = BACKPRESSURE_TIMEOUT_S) -> int:
        """Wait until the window has room for so many commands; for how many it has. Raises BackpressureError."""
        ledger, outgoing = self.protocol.ledger, self.protocol.outgoing
        unsigned("commands", commands, ledger.window, 1)
        if outgoing.room < commands:
            self.confirm_locked()
        if not await self.until(lambda: outgoing.room >= commands or self.sealed, patience_s(timeout)):
            raise noted(
                BackpressureError(
                    f"no room for {commands} more in a window of {ledger.window} within {patience_s(timeout):g} s "
                    f"({self.plight()}); " + self.relief()
                )
            )
        if self.sealed:
            self.refuse_closed()
        return outgoing.room

    def _pump(self) -> None:
        # The descriptors are edge-triggered: go on until nothing came in after the last send.
        while not self.closed and self._exchange():
            pass
        self._rest()

    def _exchange(self) -> bool:
        """Take what came in, send what is due; whether there may be more."""
        busy = self.receive_some()
        if self.closed:  # a callback has closed it
            return False
        now_ns = self.now_ns()
        self.tick(now_ns)
        if self.closed:
            return False
        return self.send_some(now_ns) or busy

    def _rest(self) -> None:
        """Rest until a socket, a call or the timer starts a pass."""
        if self.closed:
            return
        self._wake_waiters()
        if self._is_abandoned():
            self._end_abandoned()
            return
        self.idle = True
        if self.protocol.wants_to_send() and self._unsent is None:  # another thread has called since the last send
            self.wake()
            return
        self._arm(min(self.protocol.poll_deadline(), self.sockets.due_ns))

    def use(self) -> Use:
        """The caller keeps what is returned for as long as it uses this link. Afterwards the link ends, and warns."""
        return self._users.begin(self._unused)

    def _unused(self) -> None:
        """Nobody uses this link any more. In any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: this link ends with its sockets, which warn, too
            self.loop.call_soon_threadsafe(self._pump)

    def _is_abandoned(self) -> bool:
        """Whether nobody uses this link, and nothing is pending."""
        return self._users.are_gone and not (self.protocol.incoming.has_pending() or self.before_stop or self._waiters)

    def _end_abandoned(self) -> None:
        self.stop()
        warnings.warn(
            f"unclosed client of {self.paths.instance!r}: nobody refers to it any more, so it was closed; "
            "`await client.close()`, or `async with`",
            ResourceWarning,
            stacklevel=2,
        )

    def _wake_waiters(self) -> None:
        for condition, future in list(self._waiters):
            if not future.done() and condition():
                future.set_result(None)

    def _arm(self, at_ns: int) -> None:
        if at_ns >= self._timer_at:
            return  # the timer that is set comes first, and then sets the next one
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at_ns
        wait_s = max(0, at_ns - self.now_ns()) / 1e9 + TIMER_SLACK_S
        self._timer = self.loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, NEVER
        self._pump()

    def must_not_wait(self) -> bool:
        return asyncio._get_running_loop() is self.loop

    def drive(self, seconds: float) -> None:
        """Send and receive without the loop, unless that runs in another thread."""
        if self.loop.is_running():
            super().drive(seconds)
            return
        with contextlib.suppress(RuntimeError):  # those who wait in the loop are not woken any more
            self._exchange()
        poll = native.poll()
        for number in self._descriptors:
            poll.register(number, select.POLLIN)
        poll.poll(seconds * 1e3)

    def stop(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send BYE and close the sockets."""
        if self.closed:
            return
        open_links.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if not self.loop.is_closed():
            for number in self._descriptors:
                self.loop.remove_reader(number)
        self.protocol.close(self.now_ns())
        while self.send_some(self.now_ns()):
            pass
        self.close_sockets()
        if not self.loop.is_closed():
            self._wake_waiters()
        guard, self._guard = self._guard, None
        if guard is not None:
            with contextlib.suppress(StopIteration):
                guard.aclose().send(None)


async def drive(flow: Flow[Value]) -> Value:
    """Do the steps of a flow, and await each. Returns what the flow returns, or raises its error."""
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
            holds = await link.until(condition, seconds, scope)
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
            await link.room()
        case Finish(link, seconds):
            assert isinstance(link, LoopLink)
            await link.finish(seconds)
        case Sleep(seconds):
            await asyncio.sleep(seconds)
    return None
