"""What an asyncio client does as a member of its group: as member.py, in the loop.

The handlers of named calls run as tasks, HANDLERS_MAX at once; those of one name never do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from timerd_shm.errors import ClosedError
from timerd_shm.limits import CLOSE_TIMEOUT_S

from .arguments import Payload, timeout_ns
from .calls import Ask, Calls, Pause, Run, Say, Steps, answer_of_cancel
from .group import GroupOutcome, Told, acknowledge
from .link import monotonic_deadline, seconds_left
from .member import Handler
from .promise import Reply

if TYPE_CHECKING:
    from collections import deque

    from .aio import LoopLink

HANDLERS_MAX: Final = 16


class AioGroupOutcome(GroupOutcome):
    """A group outcome of an asyncio client."""

    async def ack_wait(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """`ack`, and whether this client still held it: False if it had been handed on, or was acknowledged before.

        Raises TimerdUnavailableError after `timeout` s: then it is not known.
        """
        reply = Reply(self._link)
        acknowledge(self._link, self._told, reply)
        return bool(await _answered(reply, timeout))


async def _answered(reply: Reply, timeout: float) -> Any:
    try:
        return await asyncio.wait_for(reply, timeout)
    except TimeoutError:
        raise reply._link.unavailable(timeout) from None


class Runner:
    """The task that takes calls, and the tasks that do them."""

    def __init__(self, link: LoopLink, calls: Calls) -> None:
        self._link = link
        self._calls = calls
        self._stopping = False
        self._begun: dict[str, tuple[int, bytes]] = {}  # schedule -> arena and incarnation in which it was begun
        self._doing: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._task = link.loop.create_task(self._run())

    async def stop(self, timeout: float) -> None:
        """Take no more; wait until the handlers that run have returned and their outcomes are acknowledged."""
        self._stopping = True
        for task in (self._task, *self._beginning):
            task.cancel()
        doing = self._doing - {asyncio.current_task()}
        if doing:
            _, late = await asyncio.wait(doing, timeout=max(timeout, 0))
            for task in late:
                task.cancel()
            if late:
                self._link.complain(f"{len(late)} handlers still ran: their calls are told to another member")

    async def _run(self) -> None:
        link = self._link
        inbox = link.protocol.inbox
        while not link.closed:
            for name in self._not_begun():
                self._begun[name] = (link.protocol.arena, link.protocol.incarnation)
                self._start(self._calls.begin(name), self._beginning)
            told = None
            if len(self._doing) < HANDLERS_MAX:
                told = await next_told(link, inbox.calls, None, lambda: bool(self._not_begun()))
            else:
                await asyncio.wait(self._doing, return_when=asyncio.FIRST_COMPLETED)
            if told is not None:
                self._start(self._calls.carry_out(told), self._doing)

    def _not_begun(self) -> list[str]:
        """The schedules that have to be begun: new ones, and all in another arena."""
        protocol = self._link.protocol
        if not protocol.arena:
            return []
        now = (protocol.arena, protocol.incarnation)
        return [name for name, job in self._calls.jobs.items() if job.schedule and self._begun.get(name) != now]

    def _start(self, steps: Steps, tasks: set[asyncio.Task[None]]) -> None:
        task = self._link.loop.create_task(self._go_on(steps))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _go_on(self, steps: Steps) -> None:
        """Do the steps until they end."""
        value: Any = None
        try:
            while True:
                step = steps.send(value)
                value = None
                match step:
                    case Ask(commands):
                        value = await ask(self._link, commands)
                    case Run():
                        await self._handle(step)
                    case Say(commands):
                        say(self._link, commands)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except (StopIteration, ClosedError):
            pass

    async def _handle(self, step: Run) -> None:
        self._calls.handling.set(step.call.name)  # in this task's context alone
        try:
            result = step.handler(step.call)
            if isinstance(result, Awaitable):
                await result
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._link.complain(f"the handler of {step.call.name!r} failed", error)


async def next_told(
    link: LoopLink, queue: deque[Told], until: float | None, stop: Callable[[], bool] = lambda: False
) -> Told | None:
    """The next one for the caller; None when it is `until` (of time.monotonic), or `stop()`, or closed."""
    inbox, protocol = link.protocol.inbox, link.protocol
    while not link.closed and not stop():
        told = inbox.next(queue, time.monotonic_ns())
        if told is not None:
            return told
        if protocol.wants_to_send():
            link.wake()
        left = seconds_left(until)
        if left == 0.0:
            break
        await link.until(lambda: inbox.may_have(queue) or link.closed or stop(), left)
    return None


async def ask(link: LoopLink, commands: list[bytes]) -> tuple[Any, Any]:
    """Issue commands, beyond a full window too; (value, error) of the first one's answer, however long that takes."""
    await link.until(lambda: not link.protocol.lost or link.closed, None)
    reply = Reply(link)
    say(link, commands, reply)
    await reply.settled()
    return reply.result()


def say(link: LoopLink, commands: list[bytes], reply: Reply | None = None) -> None:
    """Issue commands, beyond a full window too."""
    if link.closed:
        link.refuse_closed()
    number = link.protocol.issue_all(commands)
    if reply is not None:
        link.protocol.replies[number] = reply
    link.wake()


class Member:
    """The part of an asyncio client that concerns its group."""

    def _join(self, link: LoopLink) -> None:
        self._member_link = link
        self._calls = Calls(link.protocol, link.complain)
        self._runner: Runner | None = None

    async def _finish(self, timeout: float) -> None:
        if self._runner is not None:
            await self._runner.stop(timeout)

    def outcomes(self, timeout: float | timedelta | None = None) -> AsyncIterator[AioGroupOutcome]:
        """What this process is told without having registered it: `async for`, as `timerd_client.Client.outcomes`.

        A loop that is left by `break` ends its listening a moment later: `contextlib.aclosing` makes that sure.
        """
        seconds = None if timeout is None else timeout_ns(timeout) / 1e9
        if self._member_link.closed:
            self._member_link.refuse_closed()
        self._calls.group  # noqa: B018  # raises NotAMemberError here, not in the first iteration
        return self._told(seconds)

    async def _told(self, seconds: float | None) -> AsyncIterator[AioGroupOutcome]:
        link = self._member_link
        inbox = link.protocol.inbox
        self._listen()
        try:
            while True:
                told = await next_told(link, inbox.outcomes, monotonic_deadline(seconds))
                if told is None:
                    return
                yield AioGroupOutcome(link, told)
        finally:
            inbox.leave()
            if not link.closed:
                link.wake()

    # named calls ---------------------------------------------------------------------------------------------------

    async def call_later(self, name: str, delay: float | timedelta, payload: Payload = b"") -> bool:
        """As `timerd_client.Client.call_later`."""
        return self._calls.called(name, *await self._asked(self._calls.later(name, delay, payload)))

    async def call_at(self, name: str, when: datetime, payload: Payload = b"") -> bool:
        """As `timerd_client.Client.call_at`."""
        return self._calls.called(name, *await self._asked(self._calls.at(name, when, payload)))

    async def cancel_call(self, name: str) -> bool:
        """As `timerd_client.Client.cancel_call`."""
        return answer_of_cancel(*await self._asked(self._calls.cancel(name)))

    def handles(self, name: str) -> Callable[[Handler], Handler]:
        """As `timerd_client.Client.handles`; the handler may be a coroutine function, and runs as a task."""
        return lambda handler: self._handle(name, handler, None)

    def every(
        self,
        name: str,
        *,
        seconds: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
    ) -> Callable[[Handler], Handler]:
        """As `timerd_client.Client.every`; the handler may be a coroutine function, and runs as a task."""
        from .schedule import schedule_of

        schedule = schedule_of(seconds, cron, timezone)
        return lambda handler: self._handle(name, handler, schedule)

    def _handle(self, name: str, handler: Handler, schedule: Any) -> Handler:
        link = self._member_link
        if link.closed:
            link.refuse_closed()
        first = not self._calls.jobs
        self._calls.add(name, handler, schedule)
        if first:
            self._listen()
        link.wake()
        return handler

    def _listen(self) -> None:
        """Who listens is told calls too: without a handler they are passed on."""
        link = self._member_link
        if self._runner is None:
            self._runner = Runner(link, self._calls)
        link.protocol.inbox.listen(time.monotonic_ns())
        link.wake()

    async def _asked(self, command: bytes) -> tuple[Any, Any]:
        link = self._member_link
        reply = Reply(link)
        link.refuse_lost()
        link.protocol.replies[link.issue(command)] = reply
        try:
            await asyncio.wait_for(reply.settled(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            raise link.unavailable(CLOSE_TIMEOUT_S) from None
        return reply.result()
