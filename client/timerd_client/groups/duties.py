"""The duties of a member's runner: schedules to begin, and delivered calls to carry out. No I/O, no thread."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_shm.host.wall_clock import WallWatch

from .carrier import Carrier
from .steps import Steps

if TYPE_CHECKING:
    from timerd_client.link.link import Link


class Duty(NamedTuple):
    """Steps to do: for a delivered call (`is_call`), or to begin a schedule. Only a beginning may be broken off."""

    steps: Steps
    is_call: bool


class Duties:
    """The present duties of a runner. The caller of every method holds the link's lock, or is the only thread."""

    def __init__(self, link: Link, carrier: Carrier) -> None:
        self._protocol = link.protocol
        self._carrier = carrier
        self._begun: dict[str, tuple[int, bytes]] = {}  # schedule -> arena and incarnation in which it was begun
        self._doing = link.protocol.inbox.begun
        self._wall = WallWatch(link.wall.now_ns, link.now_ns)

    @property
    def running(self) -> int:
        """The number of calls that are being carried out."""
        return len(self._doing)

    def may_have(self) -> bool:
        """Whether next() may have a duty. A runner asks after each frame of the daemon, so once a second at least."""
        self._look_at_clock()
        inbox = self._protocol.inbox
        return self._to_begin() is not None or (inbox.may_have(inbox.calls) and self._turn_to_idle())

    def next(self, now_ns: int) -> Duty | None:
        """The next duty. None if there is none, or if the daemon must first confirm that this client holds the call."""
        self._look_at_clock()
        if (name := self._to_begin()) is not None:
            self._begun[name] = self._here()
            self._carrier.to_begin.discard(name)
            return Duty(self._carrier.begin(name), False)
        inbox = self._protocol.inbox
        told = inbox.next(inbox.calls, now_ns) if self._turn_to_idle() else None
        if told is None:
            return None
        self._doing[told.record.operation] = told.name
        return Duty(self._carry_out(told), True)

    def drop_paused(self) -> None:
        """Every runner has ended, so nobody goes on with calls that pause."""
        self._doing.clear()

    def _here(self) -> tuple[int, bytes]:
        return self._protocol.session.arena, self._protocol.session.incarnation

    def _look_at_clock(self) -> None:
        """If the wall clock was set, begin all cron schedules anew: their calls were planned by the old time."""
        by_wall = [name for name, job in list(self._carrier.jobs.items()) if job.schedule and job.schedule.by_wall]
        if by_wall and self._wall.was_set():
            for name in by_wall:
                self._begun.pop(name, None)

    def _to_begin(self) -> str | None:
        """A schedule to begin: a new one, one of to_begin, any in a new arena, a cron schedule whose clock was set."""
        here, anew = self._here(), self._carrier.to_begin
        if not self._protocol.session.arena:
            return None
        jobs = list(self._carrier.jobs.items())
        waiting = (name for name, job in jobs if job.schedule and (self._begun.get(name) != here or name in anew))
        return next(waiting, None)

    def _turn_to_idle(self) -> bool:
        """Bring a call that may run now to the front. Returns whether there is one.

        A call may be redelivered while it runs here: then it may not run a second time.
        """
        calls = self._protocol.inbox.calls
        for _ in range(len(calls)):
            if self._may_run(calls[0]):
                return True
            calls.rotate(-1)
        return False

    def _may_run(self, told: DeliveredOutcome) -> bool:
        job = self._carrier.jobs.get(told.name)
        running = list(self._doing.values()).count(told.name)
        return told.record.operation not in self._doing and running < (1 if job is None else job.concurrency)

    def _carry_out(self, told: DeliveredOutcome) -> Generator[Any, Any, None]:
        try:
            yield from self._carrier.carry_out(told)
        finally:
            self._doing.pop(told.record.operation, None)
