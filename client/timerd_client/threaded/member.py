"""A threaded client as a member of its group: the group's outcomes, and named calls.

`outcomes()` runs in the thread that iterates. Handlers run in daemon threads of the client, which start with the first
handler; with gevent they are greenlets.
"""

from __future__ import annotations

import inspect
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar

from timerd_client.groups import flows
from timerd_client.groups.commands import Made
from timerd_client.groups.duties import Duties, Duty
from timerd_client.groups.membership import Membership
from timerd_client.groups.outcome import GroupOutcome, issue
from timerd_client.groups.scheduled import ScheduledCall
from timerd_client.groups.steps import Acknowledge, Ask, Call, Pause, Run, Steps, nobody_awaits
from timerd_client.link.flows import Flow
from timerd_client.link.link import take_no_calls_locked
from timerd_client.protocol.session import CALLS
from timerd_client.types import CallExists, Patience, Payload, Timeout
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag

from .link import ThreadedLink, drive


class ThreadedGroupOutcome(GroupOutcome):
    """A group outcome of a threaded client."""

    def ack_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return drive(flows.ack_wait(self, timeout))


class ThreadedScheduledCall(ScheduledCall):
    """A call of a threaded client."""

    __slots__ = ()

    def cancel_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(self._client.cancel_call_wait(self.id, timeout=timeout))

    def reschedule_wait(self, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return bool(self._client.reschedule_call_wait(self.id, delay, timeout=timeout))


class Runner:
    """The threads that run the handlers of a client over one link."""

    def __init__(self, link: ThreadedLink, duties: Duties) -> None:
        self.link = link
        self.duties = duties
        self.stopping = False
        self._hands: list[Hand] = []
        self._paused: deque[tuple[float, Steps]] = deque()
        self._pauses = 0  # how many pauses have begun
        link.before_stop.append(self.stop)

    def start(self, count: int) -> None:
        """Make threads until there are `count`. Called without the link's lock: starting a greenlet switches to it."""
        with self.link.lock:
            made = [Hand(self, number) for number in range(len(self._hands), count)]
            self._hands += made
        for hand in made:
            hand.thread.start()

    def stop(self, timeout: float | None) -> None:
        """Start no more handlers; wait until those that run have returned and their outcomes are acknowledged."""
        link, me = self.link, threading.current_thread()
        with link.lock:
            take_no_calls_locked(link)
            self.stopping = True
            link.waiters.notify_locked()
            others = [hand for hand in self._hands if hand.thread is not me]
            if len(others) < len(self._hands):
                return  # a handler closes its client
            link.waiters.moved.wait_for(lambda: not _busy(others, lost=link.protocol.lost), timeout)
            late = _busy(others, lost=link.protocol.lost)
        if not late:
            self.duties.drop_paused()
        else:
            link.complain("a handler still runs: its call is requeued")

    def next_duty(self) -> Flow[Duty | None]:
        """The next duty. None: a pause has ended or begun, or the client ends."""
        duties, pauses = self.duties, self._pauses
        return flows.take_next(
            self.link,
            duties.next,
            duties.may_have,
            self._next_due(),
            lambda: self.stopping or self._pauses != pauses,
            one_of=self,
        )

    def pause(self, seconds: float, steps: Steps) -> None:
        """Go on with these steps after `seconds`, in any thread: the present thread may be busy then."""
        with self.link.lock:
            self._paused.append((self.link.now_ns() / 1e9 + seconds, steps))
            self._pauses += 1
            self.link.waiters.notify_locked()

    def due(self) -> Steps | None:
        """The steps whose pause has ended."""
        with self.link.lock:
            for _ in range(len(self._paused)):
                at, steps = self._paused.popleft()
                if at <= self.link.now_ns() / 1e9:
                    return steps
                self._paused.append((at, steps))
        return None

    def _next_due(self) -> float | None:
        """When the first pause ends, by the link's clock."""
        with self.link.lock:
            return min((at for at, _ in self._paused), default=None)


def _busy(hands: list[Hand], *, lost: bool) -> list[Hand]:
    """The threads that have not ended, except those that only wait for the answer of a lost daemon."""
    return [hand for hand in hands if not (hand.ended or (hand.asks and lost))]


class Hand:
    """A thread that carries out one call at a time."""

    def __init__(self, runner: Runner, number: int) -> None:
        self._runner = runner
        self.asks = False  # a command about the call was sent, and this thread waits for its answer
        self.ended = False
        self.thread = runner.link.waiters.new_thread(self._run, f"timerd-calls-{number}" if number else "timerd-calls")

    def _run(self) -> None:
        runner, link = self._runner, self._runner.link
        try:
            while not (runner.stopping or link.closed):
                if (steps := runner.due()) is None:
                    duty = drive(runner.next_duty())
                    steps = duty and duty.steps
                if steps is not None:
                    self._go_on(steps)
        except ClosedError:
            pass
        finally:
            with link.lock:
                self.ended = True
                link.waiters.notify_locked()

    def _go_on(self, steps: Steps) -> None:
        """Do the steps until they end, or pause."""
        value: Any = None
        with suppress(StopIteration):
            while True:
                step = steps.send(value)
                value = None
                match step:
                    case Ask():
                        value = self._ask(step)
                    case Run(function, arguments):
                        value = _error_of(function, arguments)
                    case Acknowledge(command, done):
                        issue(self._runner.link, command, done, purgatory=CALLS)
                    case Pause(seconds):
                        self._runner.pause(seconds, steps)
                        return

    def _ask(self, step: Ask) -> tuple[Any, Any]:
        """The answer's (value, error). Waits for it without a limit."""
        self.asks = True
        try:
            return drive(flows.ask(self._runner.link, step))
        finally:
            self.asks = False


def _error_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> BaseException | None:
    """Run a user's function. Returns its error, or None. Catches also SystemExit: thread and schedule have to go on."""
    try:
        result = function(*arguments)
    except BaseException as error:
        return error
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return nobody_awaits(function)
    return None


class Member(Membership[ThreadedLink]):
    """The part of a threaded client that concerns its group."""

    AT_ONCE: ClassVar[int] = 1
    _runner: Runner | None = None

    def outcomes(self, *, timeout: Patience = None) -> Generator[ThreadedGroupOutcome, None, None]:
        link = self._live()
        link.waiters.may_block()
        return self._deliver(link, self._may_listen(timeout))

    def _deliver(self, link: ThreadedLink, seconds: float | None) -> Generator[ThreadedGroupOutcome, None, None]:
        flows.listen(link)
        try:
            while True:
                link.waiters.may_block()
                outcome = drive(flows.next_outcome(link, seconds))
                if outcome is None:
                    return
                yield ThreadedGroupOutcome(link, outcome)
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
    ) -> ThreadedScheduledCall:
        return self._made(self._commands().later(handler, delay, payload, id, if_exists))

    def call_at(
        self,
        handler: str | Callable[[Call], object],
        when: datetime,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
    ) -> ThreadedScheduledCall:
        return self._made(self._commands().at(handler, when, payload, id, if_exists))

    def call_later_wait(
        self,
        handler: str | Callable[[Call], object],
        delay: Timeout,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> ThreadedScheduledCall:
        return self._accepted(self._commands().later(handler, delay, payload, id, if_exists), timeout)

    def call_at_wait(
        self,
        handler: str | Callable[[Call], object],
        when: datetime,
        payload: Payload = b"",
        *,
        id: str | None = None,
        if_exists: CallExists = "error",
        timeout: Patience = CLOSE_TIMEOUT_S,
    ) -> ThreadedScheduledCall:
        return self._accepted(self._commands().at(handler, when, payload, id, if_exists), timeout)

    def cancel_call_wait(self, id: str, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return self._was_pending(self._commands().cancel(id, CommandFlag.WANTS_ANSWER), timeout)

    def reschedule_call_wait(self, id: str, delay: Timeout, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return self._was_pending(self._commands().reschedule(id, delay, CommandFlag.WANTS_ANSWER), timeout)

    def retry_call_wait(self, number: int, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return drive(self._retry(number, timeout))

    def drop_call_wait(self, number: int, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        return drive(self._drop(number, timeout))

    def _made(self, made: Made) -> ThreadedScheduledCall:
        self._make(made)
        return ThreadedScheduledCall(self, made.name, made.id)

    def _accepted(self, made: Made, timeout: Patience) -> ThreadedScheduledCall:
        drive(flows.accepted(self._make_asking(made), timeout))
        return ThreadedScheduledCall(self, made.name, made.id)

    def _was_pending(self, command: bytes, timeout: Patience) -> bool:
        return drive(flows.was_pending(self._ask_for_call(command), timeout))

    def _run_handlers(self, link: ThreadedLink, at_once: int) -> None:
        with link.lock:
            if self._runner is None or self._runner.link is not link:
                self._runner = Runner(link, self._duties)
            runner = self._runner
        runner.start(at_once)
