"""An asyncio client as a member of its group. threaded/member.py has the same with threads.

The handlers of named calls run as tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, ClassVar

from timerd_client.errors import CallTimeLimitError
from timerd_client.groups import flows
from timerd_client.groups.commands import Made
from timerd_client.groups.duties import Duties, Duty
from timerd_client.groups.membership import Membership
from timerd_client.groups.outcome import GroupOutcome, issue
from timerd_client.groups.scheduled import ScheduledCall
from timerd_client.groups.steps import Acknowledge, Ask, Call, Pause, Run
from timerd_client.link.link import take_no_calls_locked
from timerd_client.protocol.session import CALLS
from timerd_client.types import CallExists, Patience, Payload, Timeout
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag

from .link import LoopLink, drive


class AioGroupOutcome(GroupOutcome):
    """A group outcome of an asyncio client."""

    async def ack_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return await drive(flows.ack_wait(self, timeout))


class AioScheduledCall(ScheduledCall):
    """A call of an asyncio client."""

    __slots__ = ()

    async def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(await self._client.cancel_call_wait(self.id, timeout=timeout))

    async def reschedule_wait(self, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(await self._client.reschedule_call_wait(self.id, delay, timeout=timeout))


class Runner:
    """The task that takes calls, and the tasks that run them."""

    def __init__(self, link: LoopLink, duties: Duties) -> None:
        self.link = self._link = link
        self._duties = duties
        self._doing: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        link.before_stop.append(self.stop)
        self._task = link.loop.create_task(self._run())

    async def stop(self, timeout: float | None) -> None:
        """Start no more handlers. Wait until running ones are done and acknowledged; after `timeout` s, cancel them."""
        take_no_calls_locked(self._link)
        for task in (self._task, *self._beginning):
            task.cancel()
        doing = self._doing - {asyncio.current_task()}
        if doing:
            _, late = await asyncio.wait(doing, timeout=timeout)
            for task in late:
                task.cancel()
            if late:
                some = (
                    "1 handler still ran: its call is"
                    if len(late) == 1
                    else f"{len(late)} handlers still ran: their calls are"
                )
                self._link.complain(f"{some} requeued")

    async def _run(self) -> None:
        link, duties = self._link, self._duties
        while not link.closed:
            duty = await drive(flows.take_next(link, duties.next, duties.may_have, None))
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
                    case Ask():
                        value = await drive(flows.ask(self._link, step))
                    case Run(function, arguments, limit_s):
                        value = await _error_of(function, arguments, limit_s)
                    case Acknowledge(command, done):
                        issue(self._link, command, done, purgatory=CALLS)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except (StopIteration, ClosedError):
            self._link.waiters.notify_locked()  # another call of the same name may run now


async def _error_of(
    function: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float | None
) -> BaseException | None:
    """Run a function of the user's. Returns its error, or None.

    The handler has a task of its own. So the steps of a call end only if the runner itself is cancelled, at the close.
    A handler that raises CancelledError, or cancels its task, has failed. A handler that raises SystemExit has failed,
    too: if the task raised SystemExit, the loop would end, and one worker after another would end in this call. After
    `limit_s` seconds a handler has failed, too: its task is cancelled, and this function waits for the task's end.
    """
    try:
        result = function(*arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    if not isinstance(result, Awaitable):
        return None
    task = asyncio.ensure_future(_exit_of(result))
    try:
        _, late = await asyncio.wait({task}, timeout=limit_s)
        if late:
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    if late:
        handler = f"the handler of {arguments[0].name!r}"
        return CallTimeLimitError(f"{handler} ran for longer than its time_limit, {limit_s:g} s: it was cancelled")
    if task.cancelled():
        return asyncio.CancelledError("the handler was cancelled, and not by its client")
    return task.exception() or task.result()


async def _exit_of(awaitable: Awaitable[object]) -> SystemExit | None:
    """Await a handler. Returns the SystemExit that the handler raised, or None."""
    try:
        await awaitable
    except SystemExit as error:
        return error
    return None


class Member(Membership[LoopLink]):
    """The part of an asyncio client that concerns its group."""

    AT_ONCE: ClassVar[int] = 16
    AWAITS: ClassVar[bool] = True
    _runner: Runner | None = None

    def outcomes(self, *, timeout: Patience = None) -> AsyncIterator[AioGroupOutcome]:
        return self._deliver(self._live(), self._may_listen(timeout))

    async def _deliver(self, link: LoopLink, seconds: float | None) -> AsyncIterator[AioGroupOutcome]:
        flows.listen(link)
        try:
            while (outcome := await drive(flows.next_outcome(link, seconds))) is not None:
                yield AioGroupOutcome(link, outcome)
        finally:
            flows.leave(link)

    # named calls ---------------------------------------------------------------------------------------------------

    def call_later(
        self,
        handler: str | Callable[[Call], object],
        delay: Timeout,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
    ) -> AioScheduledCall:
        return self._made(self._commands().later(handler, delay, payload, id, if_exists))

    def call_at(
        self,
        handler: str | Callable[[Call], object],
        when: datetime,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
    ) -> AioScheduledCall:
        return self._made(self._commands().at(handler, when, payload, id, if_exists))

    async def call_later_wait(
        self,
        handler: str | Callable[[Call], object],
        delay: Timeout,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> AioScheduledCall:
        return await self._accepted(self._commands().later(handler, delay, payload, id, if_exists), timeout)

    async def call_at_wait(
        self,
        handler: str | Callable[[Call], object],
        when: datetime,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> AioScheduledCall:
        return await self._accepted(self._commands().at(handler, when, payload, id, if_exists), timeout)

    async def cancel_call_wait(self, id: str, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return await self._was_pending(self._commands().cancel(id, CommandFlag.WANTS_ANSWER), timeout)

    async def reschedule_call_wait(self, id: str, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return await self._was_pending(self._commands().reschedule(id, delay, CommandFlag.WANTS_ANSWER), timeout)

    async def retry_call_wait(self, number: int, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return await drive(self._retry(number, timeout))

    async def drop_call_wait(self, number: int, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return await drive(self._drop(number, timeout))

    def _made(self, made: Made) -> AioScheduledCall:
        self._make(made)
        return AioScheduledCall(self, made.name, made.id)

    async def _accepted(self, made: Made, timeout: Patience) -> AioScheduledCall:
        await drive(flows.accepted(self._make_asking(made), timeout))
        return AioScheduledCall(self, made.name, made.id)

    async def _was_pending(self, command: bytes, timeout: Patience) -> bool:
        return await drive(flows.was_pending(self._ask_for_call(command), timeout))

    def _run_handlers(self, link: LoopLink, at_once: int) -> None:
        if self._runner is None or self._runner.link is not link:
            self._runner = Runner(link, self._duties)
