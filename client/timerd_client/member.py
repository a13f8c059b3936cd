"""What a threaded client does as a member of its group: outcomes that it is told, and named calls.

`outcomes()` runs in the thread that iterates; the handlers of named calls run one after the other in one daemon thread
of the client, which starts when it begins to listen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from timerd_shm.errors import ClosedError
from timerd_shm.limits import CLOSE_TIMEOUT_S

from .arguments import Payload, timeout_ns
from .calls import Ask, Call, Calls, Pause, Run, Say, Steps, answer_of_cancel
from .group import GroupOutcome, Told, acknowledge
from .promise import Reply

if TYPE_CHECKING:
    from .threaded import ThreadedLink

Handler = TypeVar("Handler", bound=Callable[[Call], object])


class ThreadedGroupOutcome(GroupOutcome):
    """A group outcome of a threaded client."""

    def ack_wait(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """`ack`, and whether this client still held it: False if it had been handed on, or was acknowledged before.

        Raises TimerdUnavailableError after `timeout` s: then it is not known.
        """
        reply = Reply(self._link)
        acknowledge(self._link, self._told, reply)
        if not reply.wait(timeout):
            raise self._link.unavailable(timeout)
        return bool(reply.get())


class Runner:
    """The thread that runs the handlers."""

    def __init__(self, link: ThreadedLink, calls: Calls) -> None:
        self._link = link
        self._calls = calls
        self._stopping = False
        self._asks = False  # and waits for the answer
        self._ended = False
        self._begun: dict[str, tuple[int, bytes]] = {}  # schedule -> arena and incarnation in which it was begun
        self._paused: deque[tuple[float, Steps]] = deque()
        self._thread = link.thread(self._run, "timerd-calls")

        link.before_stop.append(self.stop)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Take no more; wait until the handler that runs has returned and its outcome is acknowledged."""
        link = self._link
        with link.lock:
            self._stopping = True
            link.notify_locked()
            if threading.current_thread() is self._thread:
                return
            ended = link.wait_locked(lambda: self._ended or (self._asks and link.protocol.lost), max(timeout, 0))
        if not ended:
            link.complain("a handler still runs: its call is told to another member")

    def _run(self) -> None:
        link = self._link
        inbox = link.protocol.inbox
        try:
            while not (self._stopping or link.closed):
                if (steps := self._due()) is not None:
                    self._go_on(steps)
                    continue
                until = min((at for at, _ in self._paused), default=None)
                told = next_told(link, inbox.calls, until, lambda: self._stopping or bool(self._not_begun()))
                if told is not None:
                    self._go_on(self._calls.carry_out(told))
        except ClosedError:
            pass
        finally:
            with link.lock:
                self._ended = True
                link.notify_locked()

    def _not_begun(self) -> list[str]:
        """The schedules that have to be begun: new ones, and all in another arena."""
        protocol = self._link.protocol
        if not protocol.arena:
            return []
        now = (protocol.arena, protocol.incarnation)
        return [name for name, job in list(self._calls.jobs.items()) if job.schedule and self._begun.get(name) != now]

    def _due(self) -> Steps | None:
        """Steps to go on with, if it is time for some."""
        with self._link.lock:
            for name in self._not_begun():
                self._begun[name] = (self._link.protocol.arena, self._link.protocol.incarnation)
                return self._calls.begin(name)
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
                    case Ask(commands):
                        value = self._ask(commands)
                    case Run():
                        self._handle(step)
                    case Say(commands):
                        self._say(commands)
                    case Pause(seconds):
                        self._paused.append((self._link.now_ns() / 1e9 + seconds, steps))
                        return

    def _handle(self, step: Run) -> None:
        handling = self._calls.handling.set(step.call.name)
        try:
            step.handler(step.call)
        except BaseException as error:  # also SystemExit: the thread must live on, and so must the schedule
            self._link.complain(f"the handler of {step.call.name!r} failed", error)
        finally:
            self._calls.handling.reset(handling)

    def _ask(self, commands: list[bytes]) -> tuple[Any, Any]:
        """(value, error) of the first one's answer, however long that takes."""
        link = self._link
        with link.lock:
            self._asks = True
            link.wait_locked(lambda: not link.protocol.lost or link.closed, None)
        reply = Reply(link)
        self._say(commands, reply)
        reply.wait()
        self._asks = False
        return reply.result()

    def _say(self, commands: list[bytes], reply: Reply | None = None) -> None:
        """Issue commands, beyond a full window too: what a member has to say is bounded by what it is told."""
        link = self._link
        with link.lock:
            if link.closed:
                link.refuse_closed()
            number = link.protocol.issue_all(commands)
            if reply is not None:
                link.protocol.replies[number] = reply
            if link.idle:
                link.wake()


def next_told(
    link: ThreadedLink, queue: deque[Told], until: float | None, stop: Callable[[], bool] = lambda: False
) -> Told | None:
    """The next one for the caller; None when it is `until` (seconds of the link's clock), or `stop()`, or closed."""
    link.may_block()
    inbox, protocol = link.protocol.inbox, link.protocol
    with link.lock:
        while not link.closed and not stop():
            told = inbox.next(queue, link.now_ns())
            if told is not None:
                return told
            if link.idle and protocol.wants_to_send():
                link.wake()
            left = link.seconds_left(until)
            if left == 0.0:
                break
            link.wait_locked(lambda: inbox.may_have(queue) or link.closed or stop(), left)
    return None


class Member:
    """The part of a threaded client that concerns its group."""

    def _join(self, link: ThreadedLink) -> None:
        self._member_link = link
        self._calls = Calls(link.protocol, link.complain)
        self._runner: Runner | None = None

    def outcomes(self, timeout: float | timedelta | None = None) -> Generator[ThreadedGroupOutcome, None, None]:
        """What this process is told without having registered it: outcomes of its group's operations, as they come.

            for outcome in client.outcomes():
                save(outcome.payload)
                outcome.ack()

        One member of the group at a time is told. What is not acknowledged is told to another when this process dies or
        falls silent, and when this client listens no more: when the loop is left, unless there is another loop or a
        handler. So `ack()` before that. Listening begins with the first iteration. The loop ends when the client is
        closed, and when nothing has come for `timeout` seconds. Raises NotAMemberError, ClosedError.
        """
        seconds = None if timeout is None else timeout_ns(timeout) / 1e9
        link = self._member_link
        link.may_block()
        with link.lock:
            if link.closed:
                link.refuse_closed()
            self._calls.group  # noqa: B018  # raises NotAMemberError here, not in the first iteration
        return self._told(seconds)

    def _told(self, seconds: float | None) -> Generator[ThreadedGroupOutcome, None, None]:
        link = self._member_link
        inbox = link.protocol.inbox
        with link.lock:
            self._listen_locked()
        try:
            while True:
                told = next_told(link, inbox.outcomes, link.deadline(seconds))
                if told is None:
                    return
                yield ThreadedGroupOutcome(link, told)
        finally:
            inbox.leave()
            link.ring()

    # named calls ---------------------------------------------------------------------------------------------------

    def call_later(self, name: str, delay: float | timedelta, payload: Payload = b"") -> bool:
        """Have one worker of the group call the handler of `name` in `delay` seconds, even if this process ends before.

        Idempotent: False, and nothing is changed, while a call of that name is pending or being done. (Its own handler
        may call it again.) Returns when the daemon has it. `payload` has 65,526 bytes at most. Raises NotAMemberError,
        ArenaFullError, QuotaExceededError, TimerdUnavailableError, and what is wrong with the arguments.
        """
        return self._calls.called(name, *self._asked(self._calls.later(name, delay, payload)))

    def call_at(self, name: str, when: datetime, payload: Payload = b"") -> bool:
        """`call_later` for a moment: an aware datetime, else InvalidValueError. One in the past is due at once."""
        return self._calls.called(name, *self._asked(self._calls.at(name, when, payload)))

    def cancel_call(self, name: str) -> bool:
        """Withdraw the pending call of that name, a schedule's next one too; False if none is pending.

        One that is being done goes on. A schedule begins anew when a worker that names it starts.
        """
        return answer_of_cancel(*self._asked(self._calls.cancel(name)))

    def handles(self, name: str) -> Callable[[Handler], Handler]:
        """Decorate the handler of a named call; it is given a `Call`, and returning is the acknowledgement.

        Handlers run one after the other in a thread of this client. What one raises is logged, and the call is done.
        If this process dies in a handler, another member runs its own, with `call.deliveries` above 1.
        """
        return lambda handler: self._handle(name, handler, None)

    def every(
        self,
        name: str,
        *,
        seconds: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
    ) -> Callable[[Handler], Handler]:
        """Decorate a handler that one worker of the group calls again and again, however many name it so.

        `seconds`: at its multiples since 1970 in UTC. `cron`: "0 3 * * *", in `timezone` (needs `timerd[cron]`).
        What was missed is one call; the next one is set when the handler has returned, so they do not overlap. A
        schedule that no worker names any more ends. Raises InvalidValueError, NotSupportedError, NotAMemberError.
        """
        from .schedule import schedule_of

        schedule = schedule_of(seconds, cron, timezone)
        return lambda handler: self._handle(name, handler, schedule)

    def _handle(self, name: str, handler: Handler, schedule: Any) -> Handler:
        link = self._member_link
        with link.lock:
            if link.closed:
                link.refuse_closed()
            first = not self._calls.jobs
            self._calls.add(name, handler, schedule)
            if first:
                self._listen_locked()
            link.notify_locked()
        return handler

    def _listen_locked(self) -> None:
        """With the lock held. Who listens is told calls too: without a handler they are passed on."""
        link = self._member_link
        if self._runner is None:
            self._runner = Runner(link, self._calls)
        link.protocol.inbox.listen(link.now_ns())
        if link.idle:
            link.wake()

    def _asked(self, command: bytes) -> tuple[Any, Any]:
        link = self._member_link
        reply = Reply(link)
        with link.lock:
            link.refuse_lost()
            link.protocol.replies[link.issue_locked(command)] = reply
        if not reply.wait(CLOSE_TIMEOUT_S):
            raise link.unavailable(CLOSE_TIMEOUT_S)
        return reply.result()
