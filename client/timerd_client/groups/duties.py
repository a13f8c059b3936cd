"""What a member does for its group, in either face: the next duty of its runner, and the decorators for handlers.

No I/O, no thread: the faces (threaded/member.py, aio/member.py) wait, and do the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from timerd_client.arguments import timeout_ns
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.types import Patience

from .calls import Calls
from .steps import Call, Steps
from .wall_watch import WallWatch

if TYPE_CHECKING:
    from timerd_client.link.link import Link

    from .schedule import Schedule

Handler = TypeVar("Handler", bound=Callable[[Call], object])
LinkT = TypeVar("LinkT", bound="Link")


class Duty(NamedTuple):
    """Steps to do: for a call that was delivered (`is_call`), or to begin a schedule, which may stop at any step."""

    steps: Steps
    is_call: bool


class Duties:
    """What a runner has to do now. The caller of every method holds the link's lock, or is the only thread."""

    def __init__(self, link: Link, calls: Calls) -> None:
        self._protocol = link.protocol
        self._calls = calls
        self._begun: dict[str, tuple[int, bytes]] = {}  # schedule -> arena and incarnation in which it was begun
        self._doing: set[object] = set()  # names
        self._wall = WallWatch(link.wall_ns, link.now_ns)

    def may_have(self) -> bool:
        """Whether next() is worth a call. It is asked after each frame of the daemon, so each second at least."""
        self._look_at_clock()
        inbox = self._protocol.inbox
        return self._to_begin() is not None or (inbox.may_have(inbox.calls) and self._turn_to_idle())

    def next(self, now_ns: int) -> Duty | None:
        """What to do next. None: nothing, or the daemon has first been asked whether this client still holds a call."""
        self._look_at_clock()
        if (name := self._to_begin()) is not None:
            self._begun[name] = self._here()
            return Duty(self._calls.begin(name), False)
        inbox = self._protocol.inbox
        told = inbox.next(inbox.calls, now_ns) if self._turn_to_idle() else None
        return None if told is None else Duty(self._carry_out(told), True)

    def _here(self) -> tuple[int, bytes]:
        return self._protocol.session.arena, self._protocol.session.incarnation

    def _look_at_clock(self) -> None:
        """When the wall clock was set, the schedules on it begin anew: what is pending was planned by another clock."""
        by_wall = [name for name, job in list(self._calls.jobs.items()) if job.schedule and job.schedule.by_wall]
        if by_wall and self._wall.was_set():
            for name in by_wall:
                self._begun.pop(name, None)

    def _to_begin(self) -> str | None:
        """A schedule that has to be begun: a new one, or any in another arena, or one of a clock that was set."""
        here = self._here()
        if not self._protocol.session.arena:
            return None
        jobs = list(self._calls.jobs.items())
        return next((name for name, job in jobs if job.schedule and self._begun.get(name) != here), None)

    def _turn_to_idle(self) -> bool:
        """Bring a call to the front whose name does not run here; a call may be redelivered while it runs."""
        calls = self._protocol.inbox.calls
        for _ in range(len(calls)):
            if calls[0].keys[:1] not in self._doing:
                return True
            calls.rotate(-1)
        return False

    def _carry_out(self, told: DeliveredOutcome) -> Generator[Any, Any, None]:
        name = told.keys[:1]
        self._doing.add(name)
        try:
            yield from self._calls.carry_out(told)
        finally:
            self._doing.discard(name)


class Membership(Generic[LinkT]):
    """What both faces of a client have in common as members of a group."""

    AT_ONCE = 1
    """Handlers that run at once."""

    _calls: Calls | None = None

    def _live(self) -> LinkT:
        """The link of this process."""
        raise NotImplementedError

    def _join(self, link: LinkT) -> None:
        """Be a member over this link, with the handlers that there are."""
        jobs = {} if self._calls is None else self._calls.jobs
        self._calls = Calls(link.protocol, link.complain, link.wall_ns, link.now_ns)
        self._duties = Duties(link, self._calls)
        self._calls.jobs.update(jobs)
        if jobs:
            with link.lock:
                self._begin_locked(link)

    def _live_calls(self) -> Calls:
        self._live()
        assert self._calls is not None
        return self._calls

    def handles(self, name: str) -> Callable[[Handler], Handler]:
        """Decorate the handler of a named call. It is given a `Call`; when it returns, the call is acknowledged.

        Handlers run one after the other in a thread of this client; with asyncio they run as tasks, and may be
        coroutine functions. An exception from a handler is logged, and the call is done. If this process dies in a
        handler, another member runs its own, with `call.deliveries` above 1. A call is delivered only to members that
        handle its name. Raises NotAMemberError, InvalidKeyError, KeyTooLongError.
        """
        self._live_calls().checked(name)
        return lambda handler: self._handle(name, handler, None)

    def every(
        self,
        name: str,
        *,
        seconds: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
    ) -> Callable[[Handler], Handler]:
        """Decorate a handler that is called by a schedule, each time in one worker of the group.

        `seconds`: at its multiples on the daemon's monotonic clock, which nobody can set; a reboot begins it anew.
        `cron`: "0 3 * * *", in `timezone` (needs `timerd[cron]`). When the wall clock is set, cron is planned anew:
        all that was missed is one call, and no point runs twice.
        All missed occurrences are one call. The next one is set when the handler has returned, so calls do not overlap.
        A changed schedule replaces the pending call of the old one. A schedule that no worker names any more ends.
        Raises as `handles`, and InvalidValueError, NotSupportedError.
        """
        from .schedule import schedule_of

        self._live_calls().checked(name)
        schedule = schedule_of(seconds, cron, timezone)
        return lambda handler: self._handle(name, handler, schedule)

    def _handle(self, name: str, handler: Handler, schedule: Schedule | None) -> Handler:
        link, calls = self._live(), self._live_calls()
        with link.lock:
            if link.sealed:
                link.refuse_closed()
            calls.add(name, handler, schedule)
            self._begin_locked(link)
            link.notify_locked()
            link.wake_if_due(link.protocol.ledger.issued)
        return handler

    def _begin_locked(self, link: LinkT) -> None:
        """Begin to handle calls over this link, with the lock held."""
        assert self._calls is not None
        jobs = self._calls.jobs
        if any(job.schedule is not None and job.schedule.by_wall for job in jobs.values()):
            link.watch_wall_clock()
        self._start_runner(link)
        link.protocol.inbox.handle(list(jobs), self.AT_ONCE, link.now_ns())

    def _start_runner(self, link: LinkT) -> None:
        """Start what runs the handlers, with the first of them. The caller holds the lock."""
        raise NotImplementedError

    def _may_listen(self, timeout: Patience | None) -> float | None:
        """The timeout of `outcomes()` in seconds. Raises ClosedError, NotAMemberError, TimeoutOutOfRangeError."""
        link = self._live()
        if link.sealed:
            link.refuse_closed()
        link.protocol.inbox.check_member()  # here, not in the first iteration
        return None if timeout is None else timeout_ns(timeout) / 1e9
