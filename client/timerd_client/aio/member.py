"""What an asyncio client does as a member of its group: as member.py, in the loop.

The handlers of named calls run as tasks, AT_ONCE at once; those of one name never do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from timerd_client.groups.calls import NOT_SAID, Ask, Calls, Pause, Run, Say, answer_of_cancel
from timerd_client.groups.duties import Duties, Duty, Membership
from timerd_client.groups.outcome import GroupOutcome, acknowledge, say
from timerd_client.link.link import monotonic_deadline, seconds_left
from timerd_client.link.promise import Reply
from timerd_client.protocol.inbox import Told
from timerd_client.types import Payload
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

if TYPE_CHECKING:
    from .client import LoopLink

Found = TypeVar("Found")


class AioGroupOutcome(GroupOutcome):
    """A group outcome of an asyncio client."""

    async def ack_wait(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """`ack`, and whether this client still held it: False if it had been handed on, or was acknowledged before.

        Raises TimerdUnavailableError after `timeout` s: then it is not known.
        """
        reply = Reply(self._link)
        acknowledge(self._link, self._told, reply)
        try:
            return bool(await asyncio.wait_for(reply, timeout))
        except TimeoutError:
            raise self._link.unavailable(timeout) from None


class Runner:
    """The task that takes calls, and the tasks that do them."""

    def __init__(self, link: LoopLink, calls: Calls, duties: Duties) -> None:
        self._link = link
        self._calls = calls
        self._duties = duties
        self._doing: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._task = link.loop.create_task(self._run())

    async def stop(self, timeout: float) -> None:
        """Take no more; wait until the handlers that run have returned and their outcomes are acknowledged."""
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
        link, duties = self._link, self._duties
        while not link.closed:
            duty = await wait_for_next(link, duties.next, duties.may_have, None)
            if duty is not None:
                tasks = self._doing if duty.is_call else self._beginning
                task = link.loop.create_task(self._go_on(duty))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _go_on(self, duty: Duty) -> None:
        """Do the steps until they end."""
        value: Any = None
        try:
            while True:
                step = duty.steps.send(value)
                value = None
                match step:
                    case Ask(command, done):
                        value = await self._ask(command, done)
                    case Run():
                        await self._handle(step)
                    case Say(command, done):
                        say(self._link, command, done)
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

    async def _ask(self, command: bytes, done: Told | None) -> tuple[Any, Any]:
        """(value, error) of its answer, however long that takes."""
        link = self._link
        await link.until(lambda: not link.protocol.lost or link.closed, None)
        reply = Reply(link)
        if not say(link, command, done, reply):
            return NOT_SAID
        await reply.settled()
        return reply.result()


async def wait_for_next(
    link: LoopLink, take: Callable[[int], Found | None], may_have: Callable[[], bool], until: float | None
) -> Found | None:
    """What `take` gives; None when it is `until` (of time.monotonic), or closed."""
    while not link.closed:
        if (found := take(link.now_ns())) is not None:
            return found
        if link.protocol.wants_to_send():
            link.wake_if_due(link.protocol.ledger.issued)
        left = seconds_left(until)
        if left == 0.0:
            break
        await link.until(lambda: may_have() or link.closed, left)
    return None


class Member(Membership):
    """The part of an asyncio client that concerns its group."""

    AT_ONCE = 16
    _member_link: LoopLink
    _runner: Runner | None = None

    async def _finish(self, timeout: float) -> None:
        if self._runner is not None:
            await self._runner.stop(timeout)

    def outcomes(self, timeout: float | timedelta | None = None) -> AsyncIterator[AioGroupOutcome]:
        """What this process is told without having registered it: `async for`, as `timerd_client.Client.outcomes`.

        A loop that is left by `break` ends its listening a moment later: `contextlib.aclosing` makes that sure.
        """
        return self._told(self._may_listen(timeout))

    async def _told(self, seconds: float | None) -> AsyncIterator[AioGroupOutcome]:
        link = self._member_link
        inbox = link.protocol.inbox
        inbox.listen(link.now_ns())
        link.wake_if_due(link.protocol.ledger.issued)
        try:
            while True:
                told = await wait_for_next(
                    link,
                    lambda now_ns: inbox.next(inbox.outcomes, now_ns),
                    lambda: inbox.may_have(inbox.outcomes),
                    monotonic_deadline(seconds),
                )
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

    def _start_runner(self) -> None:
        if self._runner is None:
            self._runner = Runner(self._member_link, self._calls, self._duties)

    async def _asked(self, command: bytes) -> tuple[Any, Any]:
        link = self._member_link
        reply = Reply(link)
        link.refuse_lost()
        link.protocol.incoming.replies[link.issue(command)] = reply
        try:
            await asyncio.wait_for(reply.settled(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            raise link.unavailable(CLOSE_TIMEOUT_S) from None
        return reply.result()
