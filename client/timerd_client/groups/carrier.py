"""Carries out the calls that were delivered to a client: the steps for each call. No I/O, no thread.

For example, call_later("remind", 0.5) in the group "web" registers an operation of that group in the purgatory "calls".
Its watch key is "remind", its id is "web/" and a random id, and its deadline is the time of the call. When it expires,
the call is due. The call is delivered to one member, which does this:

    run the handler --> for a retry: register the call again, which acknowledges this call (FOLLOWS)
                        for a schedule: register the next point, which acknowledges this call (FOLLOWS)
                        else: acknowledge this call, which frees its id (FREES_ID)

Each step is one command, so a worker cannot die between the two effects of a command. A refused registration is sent
again. A registration whose answer was lost is sent again, too: if the daemon has applied the first one, it refuses the
second, because the call that both follow is already done.

So a schedule goes on, and exists only once. An id belongs to one operation at a time. At first the id belongs to
the pending call. While the handler runs, the call has settled, and the daemon refuses a registration with the same id
and if_exists="error" or "keep". So a worker that starts meanwhile makes no second call of a schedule. When the handler
has returned, its worker registers the next call in place of the settled call. When a worker

    dies before it has registered the next call  the call is redelivered: it runs again, with deliveries 2
    dies after that                              the call is done
    lives, but is taken for dead or silent       the call is redelivered. A member that gets it before the first handler
                                                 has returned runs it at the same time: the call is done when the first
                                                 of them returns. A member that begins later does nothing, because it
                                                 asks the daemon first.

A caller may use if_exists="replace" while the handler runs, or while the call is due. That makes another call, which
gets the id. The next attempt of the first call gets a new id.

A call is delivered only to a member that handles its name. So new workers may name calls that old workers do not know.
A call whose name no member handles becomes a dead letter at the end of its retention. A member gets no more calls than
it runs at a time.

A changed schedule takes the place of the pending point as soon as a worker with that schedule starts (REPLACE_CHANGED
compares the texts). It replaces only a point that is still to come and for which nothing has run: a call that is due,
or that pauses for its next attempt, stays, and the changed schedule follows it. While workers with the old schedule are
there, the last worker to start or to run decides.

Time: a period counts on the daemon's CLOCK_MONOTONIC, as deadlines do. `call_at` and cron are on the wall clock.
The daemon plans calls of `call_at` anew when the wall clock is set. If such a call still comes early, its worker
registers it again. Each worker notices when the clock is set (duties.py), and each new worker assumes that it was set.
Then the worker makes the pending call of a cron schedule due now. So the call comes to some worker. This worker runs
the call if its point has come by the wall clock, and otherwise plans the call anew.

The next call of a schedule is for the first point after all points that the last call stood for (points.py), even if
this point is past. Points that are late by more than the schedule's grace are skipped, when a call is planned and when
it is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, Final

from timerd_client.errors import CallGivenUpError
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import CALL_ENDS_SHIFT
from timerd_shm.declare.states import CallPhase
from timerd_shm.declare.states import Outcome as Settled

from .commands import EARLY_NS, CallCommands
from .plan import CALL, DAEMON, WALL, LastRun, Plan, unpack
from .points import Points, count, in_time, points_of
from .registry import Job
from .steps import Acknowledge, Ask, Call, Pause, Run, Step, Steps

if TYPE_CHECKING:
    from timerd_client.protocol.protocol import Protocol

    from .schedule import Schedule

RETRY_S: Final = 1.0  # the pause after a refusal that will not last (the arena is full)
LOOK_AGAIN_S: Final = 60.0  # the pause before a schedule is begun again, if a call of it was running
NOTICED_S: Final = 0.05  # after this time the daemon, too, has noticed that the wall clock was set
RESCHEDULED_NS: Final = 100_000_000  # if a deadline differs from its plan by more, a caller has rescheduled the call
GONE: Final = (ErrorCode.SESSION_GONE, ErrorCode.CLOSED)  # this client holds nothing of its group any more


class Carrier:
    """The names that a client handles, and the steps for each call that is delivered to it."""

    def __init__(
        self,
        protocol: Protocol,
        complain: Callable[[str, BaseException | None], None],
        wall_ns: Callable[[], int],
        now_ns: Callable[[], int],
    ) -> None:
        self.commands = CallCommands(protocol, wall_ns, now_ns)
        self.jobs: dict[str, Job] = {}
        self.to_begin: set[str] = set()  # schedules to begin anew: a beginning may pause, so it is no step of a call
        self._inbox = protocol.inbox
        self._complain = complain
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self._has_skipped: set[str] = set()

    def begin(self, name: str) -> Steps:
        """Begin a schedule: register its next point, unless a call of the schedule is pending or running.

        A pending call of a cron schedule is made due now, and its worker plans it anew: the wall clock may have been
        set since the call was planned.
        """
        schedule = self.jobs[name].schedule
        assert schedule is not None, f"{name!r} has no schedule"
        while True:
            value, error = yield Ask(self.commands.begin(name, schedule))
            if error is not None and error.code is ErrorCode.OPERATION_EXISTS and not value:
                if not schedule.by_wall:
                    return
                _, error = yield Ask(self.commands.due_now(name))
            if error is None or error.code in GONE:
                return
            if error.code is ErrorCode.UNAVAILABLE:
                continue
            if error.code in (ErrorCode.OPERATION_EXISTS, ErrorCode.UNKNOWN_OPERATION):
                yield Pause(LOOK_AGAIN_S)  # the call runs, and the next one will follow; or the call was dropped
            else:
                self._complain(f"{name!r} is not scheduled yet: {error}", None)
                yield Pause(RETRY_S)

    def carry_out(self, told: DeliveredOutcome) -> Steps:
        """The steps for a call that was delivered to this client."""
        record, commands = told.record, self.commands
        name = told.name
        job = self.jobs.get(name)
        found = unpack(told.payload)
        if job is None or found is None:
            why = "that this client does not handle" if job is None else "whose plan this client cannot read"
            what = f"a call came {why}: {name!r} with {len(told.payload)} bytes"
            self._complain(what, None)
            if (yield from self._give_up(told, LastRun(what))):
                yield Acknowledge(commands.done(told), told)
            return
        plan, payload = found
        counted, phase = divmod(record.error, 1 << CALL_ENDS_SHIFT)
        if phase != plan.phase and phase:
            plan = plan._replace(phase=phase, ends=0)
        plan = plan._replace(ends=plan.ends + counted)
        pause_ns = round(plan.pause_s() * 1e9)
        if phase == CallPhase.FAILED:
            yield from self._end(name, job, told, plan, self._points(job, plan))
        elif counted and plan.ends < job.deliveries and pause_ns:
            self._complain(f"{_ended(plan)} in {name!r}: it runs alone in {pause_ns / 1e9:g} s", None)
            rests = plan._replace(earlier=plan.earlier + record.deliveries - 1)  # without this delivery
            yield from self._call_again(name, told, rests, payload, pause_ns)
        elif self._is_early(plan, told):
            if plan.kind == WALL and not plan.failures and not plan.ends and job.schedule is not None:
                yield from self._plan_next(name, job, told, plan, commands.now_of(job.schedule))
            else:
                yield Pause(min(NOTICED_S, (plan.due_ns - self._wall_ns()) / 1e9))
                yield from self._follow(name, told, lambda: commands.as_planned(name, plan, payload, told))
        elif (left_ns := self._left_of_pause(job, plan, told)) > EARLY_NS:
            yield from self._call_again(name, told, plan, payload, left_ns)
        elif (in_time := self._in_time(name, job, plan, told)) is None:
            yield from self._plan_next(name, job, told, plan, plan.point_ns - 1)
        else:
            yield from self._run(name, job, told, in_time, payload)

    def _is_early(self, plan: Plan, told: DeliveredOutcome) -> bool:
        """Whether a call comes before its time by the wall clock, because that clock was set back.

        A call of `call_at` that a caller has rescheduled no longer has a time by the wall clock. One that was delivered
        before counts as in time: another worker may have run it, and a new registration would lose its delivery count.
        """
        record = told.record
        if plan.kind == DAEMON or record.state != Settled.EXPIRED:
            return False
        due_ns = plan.due_ns
        if plan.kind == CALL:
            due_ns = record.satisfied if record.deliveries == 1 else 0
        return due_ns - self._wall_ns() > EARLY_NS

    def _left_of_pause(self, job: Job, plan: Plan, told: DeliveredOutcome) -> int:
        """How long a period's call must still pause, in ns, if a worker with a cron schedule has made it due now."""
        is_hurried = job.schedule is not None and job.schedule.by_wall and plan.kind == DAEMON and plan.stays
        return self.commands.left_ns(plan) if is_hurried and told.record.deliveries == 1 else 0

    def _in_time(self, name: str, job: Job, plan: Plan, told: DeliveredOutcome) -> Plan | None:
        """The plan without the points that are late by more than the job's grace. None if all points are.

        A retry belongs to a run that has begun in time. A rescheduled call comes when its caller wants it. So both
        keep their plans.
        """
        schedule, put_off_ns = job.schedule, told.record.deadline_ns - plan.at_ns
        if schedule is None or not plan.is_of(schedule) or plan.failures or plan.ends or put_off_ns > RESCHEDULED_NS:
            return plan
        now_ns = self.commands.now_of(schedule)
        point_ns = in_time(plan.runs, schedule, plan.point_ns, now_ns, job.grace_ns)
        if point_ns > max(now_ns, plan.point_ns):
            return None
        self._skipped(name, count(plan.runs, schedule, plan.point_ns - 1, point_ns - 1))
        return plan._replace(point_ns=point_ns, due_ns=plan.due_ns + point_ns - plan.point_ns)

    def _run(self, name: str, job: Job, told: DeliveredOutcome, plan: Plan, payload: bytes) -> Steps:
        """Run the handler, unless too many processes have ended in it. After that, end, retry or follow the call."""
        record, schedule = told.record, job.schedule
        attempt, points = plan.failures + 1, self._points(job, plan)
        is_given_up = plan.phase != CallPhase.ON_FAILURE and plan.ends >= job.deliveries
        deliveries, ended = plan.earlier + record.deliveries - is_given_up, plan.ends
        call = Call(name, plan.id or name, payload, plan.due, attempt, deliveries, 0, points.missed)
        error: BaseException | None
        if plan.phase != CallPhase.ON_FAILURE and not is_given_up:
            if not (yield from self._begin(CallPhase.HANDLER, name, job, told, plan)):
                return
            began_ns = self._now_ns()
            if record.state == Settled.EXPIRED:
                call.lateness_ns = max(0, began_ns - record.deadline_ns)
            error = yield Run(job.handler, (call,), job.time_limit_s)
            if job.time_limit_s is not None and self._now_ns() - began_ns > job.time_limit_s * 1e9:
                self._inbox.calls_late += 1
                self._complain(
                    f"the handler of {name!r} ran for longer than its time_limit, {job.time_limit_s:g} s", None
                )
            plan = self._after_run(plan._replace(earlier=0, phase=0, ends=0), schedule, error)
            pause_ns = call.retry_ns
            if pause_ns is None and error is not None and (pause_s := job.pause_s(plan.failures)) is not None:
                pause_ns = round(pause_s * 1e9)
            if error is not None:
                self._failed(name, job, attempt, pause_ns, error)
            if pause_ns is not None:
                self._inbox.calls_retried += 1
                yield from self._call_again(name, told, plan._replace(failures=attempt), payload, pause_ns)
                return
        else:
            error = self._ended_processes(name, job, plan)
            if plan.phase != CallPhase.ON_FAILURE:
                plan = plan._replace(ends=0)
            plan = self._after_run(plan, schedule, error)
        self._inbox.calls_done += 1
        if error is not None:
            if job.on_failure is not None and plan.ends < job.deliveries:
                if not (yield from self._begin(CallPhase.ON_FAILURE, name, job, told, plan)):
                    return
                failed = yield Run(job.on_failure, (call, error))
                if failed is not None:
                    self._complain(f"on_failure of {name!r} failed", failed)
            end = LastRun(described(error), plan.last_run_ns, deliveries, ended)
            if not (yield from self._give_up(told, end)):
                return
        yield from self._end(name, job, told, plan, points)

    def _begin(
        self, phase: CallPhase, name: str, job: Job, told: DeliveredOutcome, plan: Plan
    ) -> Generator[Step, Any, bool]:
        """Announce that a function is about to run for a call. False if the call is over, or another member holds it.

        The daemon must know this before the function runs: otherwise it does not count an end of this process. A member
        that held the call before may have given it up meanwhile. Then this member only acknowledges the call. If this
        process stood still for longer than its lease before the answer came, other members may have got the call: then
        this process asks again.
        """
        limit_s = job.time_limit_s if phase == CallPhase.HANDLER else None
        asked_ns: int | None = None
        now: int = phase
        while now == phase and (asked_ns is None or self._now_ns() - asked_ns >= self._inbox.lease_ns):
            asked_ns = self._now_ns()
            now = yield from self._set_phase(self.commands.begin_phase(phase, told, limit_s), told)
        if now > phase:
            yield from self._end(name, job, told, plan, self._points(job, plan))
        return now == phase

    def _give_up(self, told: DeliveredOutcome, end: LastRun) -> Generator[Step, Any, bool]:
        """Give the call up. Returns False if the call is over, or another member runs it and will end it."""
        return (yield from self._set_phase(self.commands.give_up(told, end), told)) == CallPhase.FAILED

    @staticmethod
    def _set_phase(command: bytes, told: DeliveredOutcome) -> Generator[Step, Any, int]:
        """Send the command. Returns the phase that the call has now; 0 if this client does not hold the call."""
        while True:
            value, error = yield Ask(command, about=told)
            if error is None or error.code is not ErrorCode.UNAVAILABLE:
                return int(value or 0) if error is None else 0

    def _after_run(self, plan: Plan, schedule: Schedule | None, error: BaseException | None) -> Plan:
        """The plan after an attempt that has just ended, with this error (None: without an error)."""
        plan = plan._replace(last_run_ns=self._wall_ns(), error="" if error is None else described(error))
        if schedule is None or not schedule.by_wall or not plan.is_of(schedule):
            return plan
        return plan._replace(runs=plan.after_run(schedule))

    def _ended_processes(self, name: str, job: Job, plan: Plan) -> BaseException:
        """The error of a call whose handler has ended processes too often, or whose on_failure was not done."""
        if plan.phase == CallPhase.ON_FAILURE and plan.ends < job.deliveries:
            return CallGivenUpError(f"the handler of {name!r} has failed, and {_ended(plan)} in its on_failure")
        what = "its on_failure" if plan.phase == CallPhase.ON_FAILURE else "its handler"
        error = CallGivenUpError(
            f"{_ended(plan)} in {what} (deliveries={job.deliveries}): the call {name!r} is given up"
        )
        self._inbox.calls_failed += 1
        self._complain(str(error), None)
        return error

    def _points(self, job: Job, plan: Plan) -> Points:
        """The points of the schedule that a call stands for if it begins now."""
        schedule = job.schedule
        if schedule is None or not plan.is_of(schedule):
            return Points(0, 0)
        return points_of(plan.runs, schedule, plan.point_ns, self.commands.now_of(schedule))

    def _end(self, name: str, job: Job, told: DeliveredOutcome, plan: Plan, points: Points) -> Steps:
        """Acknowledge a call that is over. For a schedule, register its next point."""
        if job.schedule is not None:
            yield from self._plan_next(name, job, told, plan, points.until_ns)
            return
        yield Acknowledge(self.commands.done_and_free(plan.id or name, told), told)
        if (of_id := self.jobs.get(plan.id)) is not None and of_id.schedule is not None:
            self.to_begin.add(plan.id)  # a caller had used the schedule's id for this call

    def _call_again(self, name: str, told: DeliveredOutcome, plan: Plan, payload: bytes, delay_ns: int) -> Steps:
        """Register the same call again, to come in `delay_ns`.

        The error's text makes the call longer. If the group's quota has no room for the text, the text is left out.
        """
        commands = self.commands
        tries = count_from(1)

        def again(id: str) -> bytes:
            error = plan.error if next(tries) == 1 else ""
            planned = plan if id == plan.id else plan.once(id)
            return commands.again(name, planned._replace(error=error), payload, delay_ns, told)

        apart = partial(again, commands.own_id())
        yield from self._follow(name, told, partial(again, plan.id), apart)

    def _plan_next(self, name: str, job: Job, told: DeliveredOutcome, plan: Plan, until_ns: int) -> Steps:
        """Register the first point after `until_ns` that is not late by more than the job's grace."""
        skipped = 0

        def command() -> bytes:
            nonlocal skipped
            command, skipped = self.commands.next(name, job, plan, told, until_ns)
            return command

        yield from self._follow(name, told, command)
        self._skipped(name, skipped)

    def _skipped(self, name: str, points: int) -> None:
        """Count skipped points. Log this once for each name."""
        self._inbox.calls_skipped += points
        if points and name not in self._has_skipped:
            self._has_skipped.add(name)
            what = f"{points} points of {name!r} were later than its grace and are skipped"
            self._complain(f"{what}; calls_skipped of stats() counts further ones", None)

    def _failed(self, name: str, job: Job, attempt: int, pause_ns: int | None, error: BaseException) -> None:
        """Log and count an error of a handler."""
        self._inbox.calls_failed += 1
        if pause_ns is not None:
            then = f"it is called again in {pause_ns / 1e9:g} s"
        else:
            then = "the call is over" if job.schedule is None else "its schedule goes on"
        self._complain(f"the handler of {name!r} failed in attempt {attempt}: {then}", error)

    def _follow(
        self, name: str, told: DeliveredOutcome, command: Callable[[], bytes], taken: Callable[[], bytes] | None = None
    ) -> Steps:
        """Register the call that follows `told`. Try again until the daemon has applied it, or `told` is done.

        `taken` makes the command if a caller has made another call with the same id meanwhile.
        """
        while True:
            _, error = yield Ask(command(), told)
            if error is None or error.code in (*GONE, ErrorCode.UNKNOWN_OPERATION):
                return  # if the daemon does not know this client any more, the schedule begins anew
            if error.code is ErrorCode.OPERATION_EXISTS:
                if taken is None:
                    yield Acknowledge(self.commands.done(told), told)  # the schedule goes on with the other call
                    return
                command, taken = taken, None
                continue
            if error.code is not ErrorCode.UNAVAILABLE:
                self._complain(f"{name!r} is not scheduled yet: {error}", None)
                yield Pause(RETRY_S)


def described(error: BaseException) -> str:
    """An error in one line, for `timerctl calls`. It also works for an error whose __str__ raises."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _ended(plan: Plan) -> str:
    return "1 process has ended" if plan.ends == 1 else f"{plan.ends} processes have ended"
