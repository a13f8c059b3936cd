"""The link of an asyncio client: its loop watches the sockets, and nothing blocks.

The calls of one iteration of the loop are sent as one frame, in a pass (`_pump`). A pass ends when nothing came in
after the last send. Then those who wait (`until`) look at their conditions, and a timer is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from timerd_client.link.flows import Do, Evaluate, Finish, Flow, Room, Settles, Sleep, Step, Until
from timerd_client.link.link import Link
from timerd_client.link.use import Use, Users
from timerd_client.protocol.deadlines import NEVER
from timerd_client.transport.sockets import Sockets
from timerd_shm.declare.errors import BackpressureError
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S
from timerd_shm.declare.states import Orphans
from timerd_shm.host.paths import InstancePaths

from .operation import settles

Value = TypeVar("Value")
TIMER_SLACK_S = 0.0005  # loops sleep for whole milliseconds: this saves a second wake-up


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
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self.before_stop: list[Callable[[float], Awaitable[None]]] = []  # what must end before the connection
        self._users = Users()
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        super().__init__(paths, name, orphans, group, sockets, now_ns)
        self._descriptors = self.sockets.filenos()
        for number in self._descriptors:
            self.loop.add_reader(number, self._pump)
        self.wake()

    def wake(self) -> None:
        if self.loop.is_closed():
            self.sealed = self.closed = True
            self.refuse_closed()
        self.idle = False
        self.loop.call_soon(self._pump)

    def ring(self) -> None:
        if not self.closed:
            self.wake()

    def notify_locked(self) -> None:
        self.wake()  # the pass then looks at the conditions of those who wait

    def make_room(self) -> None:
        raise BackpressureError(f"{self.fullness()} ({self.plight()}); `await client.room()` before the next")

    def may_block(self) -> None:
        raise RuntimeError("an asyncio client does not block: await it")

    def call_in_loop(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        if not loop.is_closed():
            call()

    def watch(self, descriptor: int) -> None:
        self.loop.add_reader(descriptor, self._on_readable, descriptor)

    def unwatch(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)

    def _on_readable(self, descriptor: int) -> None:
        self.readable(descriptor)
        self._rest()

    async def until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until the condition holds, `timeout` seconds at most. Returns whether it holds."""
        if condition():
            return True
        future: asyncio.Future[None] = self.loop.create_future()
        entry = (condition, future)
        self._waiters.append(entry)
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            return condition()
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)
        return True

    async def finish(self, timeout: float) -> None:
        """Start no more handlers, and wait until those that run have returned, `timeout` seconds at most."""
        for stop in self.before_stop:
            await stop(timeout)

    async def room(self, timeout: float = BACKPRESSURE_TIMEOUT_S) -> int:
        """Wait until the window has room; for how many commands. Raises BackpressureError after `timeout` s."""
        ledger, outgoing = self.protocol.ledger, self.protocol.outgoing
        if outgoing.room <= 0:
            self.confirm_locked()
        if not await self.until(lambda: outgoing.room > 0 or self.sealed, timeout):
            raise BackpressureError(
                f"no room in a window of {ledger.window} commands within {timeout:g} s ({self.plight()}); "
                + self.relief()
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
        ledger = self.protocol.ledger
        return self._users.are_gone and not (
            ledger.pending or ledger.applied < ledger.issued or self.before_stop or self._waiters
        )

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

    def stop(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Send BYE and close the sockets."""
        if self.closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        for number in self._descriptors:
            self.loop.remove_reader(number)
        self.protocol.close(self.now_ns())
        while self.send_some(self.now_ns()):
            pass
        self.close_sockets()
        self._wake_waiters()


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
        case Until(link, condition, seconds, then):
            assert isinstance(link, LoopLink)
            holds = await link.until(condition, seconds)
            return holds if then is None else then()
        case Settles(promise, seconds):
            return await settles(promise, seconds)
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
