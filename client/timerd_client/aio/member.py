"""What an asyncio client does as a member of its group: threaded/member.py does the same with a thread.

The handlers of named calls run as tasks, AT_ONCE of them at the same time, but never two of one name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime, timedelta
from typing import Any

from timerd_client.groups import flows
from timerd_client.groups.calls import Calls, answer_of_cancel
from timerd_client.groups.duties import Duties, Duty, Membership
from timerd_client.groups.outcome import GroupOutcome, issue
from timerd_client.groups.steps import Acknowledge, Ask, Pause, Run
from timerd_client.protocol.session import CALLS
from timerd_client.types import Patience, Payload
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .link import LoopLink, drive


class AioGroupOutcome(GroupOutcome):
    """A group outcome of an asyncio client."""

    async def ack_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`ack`, and whether this client still held it: False if it was requeued or acknowledged before.

        Raises TimerdUnavailableError after `timeout` s: then that is unknown.
        """
        return await drive(flows.ack_wait(self, timeout))


class Runner:
    """The task that takes calls, and the tasks that do them."""

    def __init__(self, link: LoopLink, calls: Calls, duties: Duties) -> None:
        self.link = self._link = link
        self._calls = calls
        self._duties = duties
        self._doing: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        link.before_stop.append(self.stop)
        self._task = link.loop.create_task(self._run())

    async def stop(self, timeout: float) -> None:
        """Start no more handlers; wait until those that run have returned and their outcomes are acknowledged."""
        for task in (self._task, *self._beginning):
            task.cancel()
        doing = self._doing - {asyncio.current_task()}
        if doing:
            _, late = await asyncio.wait(doing, timeout=max(timeout, 0))
            for task in late:
                task.cancel()
            if late:
                self._link.complain(f"{len(late)} handlers still ran: their calls are requeued")

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
                    case Ask(command, done):
                        value = await drive(flows.ask(self._link, command, done))
                    case Run():
                        await self._handle(step)
                    case Acknowledge(command, done):
                        issue(self._link, command, done, purgatory=CALLS)
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
        except (StopIteration, ClosedError):
            pass

    async def _handle(self, step: Run) -> None:
        self._calls.handling.set(step.call.name)  # in the context of this task alone
        try:
            result = step.handler(step.call)
            if isinstance(result, Awaitable):
                await result
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._link.complain(f"the handler of {step.call.name!r} failed", error)


class Member(Membership[LoopLink]):
    """The part of an asyncio client that concerns its group."""

    AT_ONCE = 16
    _runner: Runner | None = None

    def outcomes(self, *, timeout: Patience | None = None) -> AsyncIterator[AioGroupOutcome]:
        """Outcomes of the group's operations, for `async for`. See `timerd_client.Client.outcomes`.

        After a `break`, listening ends some time later. With `contextlib.aclosing` it ends at once.
        """
        return self._deliver(self._live(), self._may_listen(timeout))

    async def _deliver(self, link: LoopLink, seconds: float | None) -> AsyncIterator[AioGroupOutcome]:
        flows.listen(link)
        try:
            while (outcome := await drive(flows.next_outcome(link, seconds))) is not None:
                yield AioGroupOutcome(link, outcome)
        finally:
            flows.leave(link)

    # named calls ---------------------------------------------------------------------------------------------------

    async def call_later(self, name: str, delay: float | timedelta, payload: Payload = b"") -> bool:
        """As `timerd_client.Client.call_later`."""
        return self._live_calls().called(name, *await self._asked(self._live_calls().later(name, delay, payload)))

    async def call_at(self, name: str, when: datetime, payload: Payload = b"") -> bool:
        """As `timerd_client.Client.call_at`."""
        return self._live_calls().called(name, *await self._asked(self._live_calls().at(name, when, payload)))

    async def cancel_call(self, name: str) -> bool:
        """As `timerd_client.Client.cancel_call`."""
        return answer_of_cancel(*await self._asked(self._live_calls().cancel(name)))

    def _start_runner(self, link: LoopLink) -> None:
        assert self._calls is not None
        if self._runner is None or self._runner.link is not link:
            self._runner = Runner(link, self._calls, self._duties)

    async def _asked(self, command: bytes) -> tuple[Any, Any]:
        return await drive(flows.asked(self._live(), command))
