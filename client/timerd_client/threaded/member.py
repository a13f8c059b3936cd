"""What a threaded client does as a member of its group: the group's outcomes, and named calls.

`outcomes()` runs in the thread that iterates. The handlers of named calls run one after another in one daemon thread of
the client, which starts with the first handler.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from timerd_client.groups import flows
from timerd_client.groups.calls import Calls, answer_of_cancel
from timerd_client.groups.duties import Duties, Membership
from timerd_client.groups.outcome import GroupOutcome, issue
from timerd_client.groups.steps import Acknowledge, Ask, Pause, Run, Steps
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.session import CALLS
from timerd_client.types import Patience, Payload
from timerd_shm.declare.errors import ClosedError
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S

from .link import ThreadedLink, drive


class ThreadedGroupOutcome(GroupOutcome):
    """A group outcome of a threaded client."""

    def ack_wait(self, *, timeout: Patience = CLOSE_TIMEOUT_S) -> bool:
        """`ack`, and whether this client still held it: False if it was requeued or acknowledged before.

        Raises TimerdUnavailableError after `timeout` s: then that is unknown.
        """
        return drive(flows.ack_wait(self, timeout))


class Runner:
    """The thread that runs the handlers."""

    def __init__(self, link: ThreadedLink, calls: Calls, duties: Duties) -> None:
        self.link = self._link = link
        self._calls = calls
        self._duties = duties
        self._stopping = False
        self._asks = False  # a handler's outcome was sent, and its answer is waited for
        self._ended = False
        self._paused: deque[tuple[float, Steps]] = deque()
        self._thread = link.thread(self._run, "timerd-calls")

        link.before_stop.append(self.stop)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Start no more handlers; wait until the one that runs has returned and its outcome is acknowledged."""
        link = self._link
        with link.lock:
            self._stopping = True
            link.notify_locked()
            if threading.current_thread() is self._thread:
                return
            ended = link.wait_locked(lambda: self._ended or (self._asks and link.protocol.lost), max(timeout, 0))
        if not ended:
            link.complain("a handler still runs: its call is requeued")

    def _run(self) -> None:
        link, duties = self._link, self._duties
        try:
            while not (self._stopping or link.closed):
                if (steps := self._due()) is None:
                    until = min((at for at, _ in self._paused), default=None)
                    duty = drive(flows.take_next(link, duties.next, duties.may_have, until, lambda: self._stopping))
                    steps = duty and duty.steps
                if steps is not None:
                    self._go_on(steps)
        except ClosedError:
            pass
        finally:
            with link.lock:
                self._ended = True
                link.notify_locked()

    def _due(self) -> Steps | None:
        """The steps whose pause has ended."""
        for _ in range(len(self._paused)):
            at, steps = self._paused.popleft()
            if at <= self._link.now_ns() / 1e9:
                return steps
            self._paused.append((at, steps))
        return None

    def _go_on(self, steps: Steps) -> None:
        """Do the steps until they end, or pause."""
        value: Any = None
        with suppress(StopIteration):
            while True:
                step = steps.send(value)
                value = None
                match step:
                    case Ask(command, done):
                        value = self._ask(command, done)
                    case Run():
                        self._handle(step)
                    case Acknowledge(command, done):
                        issue(self._link, command, done, purgatory=CALLS)
                    case Pause(seconds):
                        self._paused.append((self._link.now_ns() / 1e9 + seconds, steps))
                        return

    def _handle(self, step: Run) -> None:
        handling = self._calls.handling.set(step.call.name)
        try:
            step.handler(step.call)
        except BaseException as error:  # also SystemExit: the thread and the schedule have to live on
            self._link.complain(f"the handler of {step.call.name!r} failed", error)
        finally:
            self._calls.handling.reset(handling)

    def _ask(self, command: bytes, done: DeliveredOutcome | None) -> tuple[Any, Any]:
        """(value, error) of the answer, however long that takes."""
        self._asks = True
        try:
            return drive(flows.ask(self._link, command, done))
        finally:
            self._asks = False


class Member(Membership[ThreadedLink]):
    """The part of a threaded client that concerns its group."""

    _runner: Runner | None = None

    def outcomes(self, *, timeout: Patience | None = None) -> Generator[ThreadedGroupOutcome, None, None]:
        """Outcomes of the group's operations, as they come. This process need not have registered them.

            for outcome in client.outcomes():
                save(outcome.payload)
                outcome.ack()

        An outcome is delivered to one member of the group at a time. Unacknowledged outcomes are requeued when this
        process dies or falls silent, and when the client stops listening: when its last loop is left. So call `ack()`
        before that. Up to 256 unacknowledged outcomes are delivered ahead. Listening begins with the first iteration.
        The loop ends when the client is closed, and when nothing has come for `timeout` seconds. Raises
        NotAMemberError, ClosedError.
        """
        link = self._live()
        link.may_block()
        return self._deliver(link, self._may_listen(timeout))

    def _deliver(self, link: ThreadedLink, seconds: float | None) -> Generator[ThreadedGroupOutcome, None, None]:
        flows.listen(link)
        try:
            while True:
                link.may_block()
                outcome = drive(flows.next_outcome(link, seconds))
                if outcome is None:
                    return
                yield ThreadedGroupOutcome(link, outcome)
        finally:
            flows.leave(link)

    # named calls ---------------------------------------------------------------------------------------------------

    def call_later(self, name: str, delay: float | timedelta, payload: Payload = b"") -> bool:
        """Have one worker of the group call the handler of `name` in `delay` seconds, even if this process ends before.

        Idempotent: False, and nothing is changed, while a call of that name is pending or being done. (Its own handler
        may call this; then the last of its calls counts.) Returns when the daemon has accepted it.
        `payload` has 65,519 bytes at most. Raises NotAMemberError, ArenaFullError, QuotaExceededError,
        TimerdUnavailableError, and what is wrong with the arguments.
        """
        return self._live_calls().called(name, *self._asked(self._live_calls().later(name, delay, payload)))

    def call_at(self, name: str, when: datetime, payload: Payload = b"") -> bool:
        """`call_later` for an aware datetime; another one raises InvalidValueError. A past one is due at once."""
        return self._live_calls().called(name, *self._asked(self._live_calls().at(name, when, payload)))

    def cancel_call(self, name: str) -> bool:
        """Cancel the pending call of that name, also the next one of a schedule; False if none is pending.

        A call that is due is not pending any more: it is made, even if no worker is free yet. A schedule begins anew
        when a worker that names it starts.
        """
        return answer_of_cancel(*self._asked(self._live_calls().cancel(name)))

    def _start_runner(self, link: ThreadedLink) -> None:
        assert self._calls is not None
        if self._runner is None or self._runner.link is not link:
            self._runner = Runner(link, self._calls, self._duties)

    def _asked(self, command: bytes) -> tuple[Any, Any]:
        return drive(flows.asked(self._live(), command))
