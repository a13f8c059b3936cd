"""Named calls: work of a group, which one of its workers does, once or by a schedule. No I/O, no thread.

For example, call_later("remind", 0.5) in the group "web" registers an operation of that group in the purgatory "calls".
Its watch key is "remind", its id is "web/remind", and its deadline is the time of the call. When it expires, the call
is due. It is delivered to one member, which does this:

    run the handler --> a schedule: register the next occurrence, which acknowledges this one (FOLLOWS)
                        one-shot:   acknowledge it, which frees its name (FREES_ID)

Either is one command, so a worker cannot die between its two effects. A refused registration is sent again. So is one
whose answer was lost. If the daemon has applied that one, it refuses the second: what that follows is done already.

So a schedule goes on, and there is only one of it. An id belongs to one operation at a time. It belongs to the pending
call first. While the handler runs, the call has settled, and the daemon refuses every registration with its id. A
worker that starts meanwhile therefore makes no second call. The worker whose handler has returned registers the next
occurrence in place of the settled call (REPLACE). When a worker

    dies before it has registered the next one   the call is redelivered: it runs again, with deliveries 2
    dies after that                              the call is done
    lives, but is taken for dead or silent       the call is redelivered. A member that has it before the first handler
                                                 has returned runs it at the same time: the first to return has done
                                                 it. A member that begins later asks the daemon first, because
                                                 deliveries is above 1, and then does nothing.

A name is free when its last operation is cancelled: by `cancel_call`, or by the acknowledgement of a one-shot. The id
of an operation that settled otherwise is remembered for an hour.

A call is delivered only to a member that handles its name, and to no member more calls than it runs at once. So new
workers may name calls that old workers do not know, and a long handler holds back no call that another member could
run. A call whose name no member handles is dropped at the end of the group's retention.

A changed schedule takes the place of the pending occurrence as soon as a worker with it starts (REPLACE_CHANGED
compares the texts). While workers with the old schedule are there, the last worker to start or to run decides.

Time: a period counts on the daemon's CLOCK_MONOTONIC, as its deadlines do. `call_at` and cron are on the wall clock. A
call that is early by the wall clock, because that was set back, is planned anew. Each worker notices when the clock is
set (duties.py), and each new worker supposes it: the worker makes the pending call of a cron schedule due now. So the
call comes to a worker, which runs it if its point has come by the wall clock, and else plans it anew (plan.py). A call
of `call_at` is late after the clock was set forward.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerd_client.arguments import EVENT_PREFIX, id_hash, key_bytes, payload_bytes, shown, timeout_ns
from timerd_client.hot.commands import REGISTER_SIZE, operation_command, pack_register
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.session import CALLS
from timerd_client.types import Payload, Timeout
from timerd_shm.declare.errors import (
    ErrorCode,
    InvalidKeyError,
    InvalidValueError,
    NotAMemberError,
    PayloadTooLargeError,
)
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX
from timerd_shm.declare.states import Condition, Orphans
from timerd_shm.declare.states import Outcome as Settled
from timerd_shm.declare.wire import GROUP_ACK_NOT_FOLLOWED, CommandFlag, CommandKind, RegisterFlag

from .plan import CALL, DAEMON, PLAN_SIZE, SCHEDULE_SIZE, WALL, WALL_NS_END, Plan, next_point, text_of, unpack
from .schedule import Schedule, datetime_of, wall_ns_of
from .steps import Acknowledge, Ask, Call, Pause, Run, Step, Steps

if TYPE_CHECKING:
    from timerd_client.protocol.protocol import Protocol
    from timerd_shm.declare.errors import TimerdError

EARLY_NS: Final = 1_000_000  # a call that comes so much before its time by the wall clock is planned anew
RETRY_S: Final = 1.0  # after a refusal that will not last (the arena is full)
LOOK_AGAIN_S: Final = 60.0  # for a schedule whose occurrence was running
REPLACE: Final = int(RegisterFlag.REPLACE)
CLAIM: Final = int(RegisterFlag.REPLACE_CANCELLED)
BEGIN: Final = CLAIM | int(RegisterFlag.REPLACE_CHANGED)
OF_CALL: Final = int(
    RegisterFlag.FOR_GROUP | RegisterFlag.CALL | RegisterFlag.HAS_ID | RegisterFlag.NO_MARK | RegisterFlag.WANTS_ANSWER
)
GONE: Final = (ErrorCode.SESSION_GONE, ErrorCode.CLOSED)  # this client holds nothing of its group any more
CALL_PAYLOAD_MAX: Final = PAYLOAD_SIZE_MAX - PLAN_SIZE


class Job(NamedTuple):
    """A handler, and the schedule of one that is periodic."""

    handler: Callable[[Call], Any]
    schedule: Schedule | None


class Calls:
    """The calls of one client: the names that it handles, and the steps for each call that is delivered to it."""

    def __init__(
        self,
        protocol: Protocol,
        complain: Callable[[str], None],
        wall_ns: Callable[[], int],
        now_ns: Callable[[], int],
    ) -> None:
        self._protocol = protocol
        self._complain = complain
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self.jobs: dict[str, Job] = {}
        self.handling: ContextVar[str | None] = ContextVar("timerd_handling", default=None)  # set around a handler
        self._doing: dict[str, DeliveredOutcome] = {}  # calls whose handlers run
        self._called_again: set[str] = set()  # names that their own handlers have called again

    @property
    def group(self) -> str:
        """The client's group; raises NotAMemberError."""
        group = self._protocol.session.identity.group
        if group is None:
            raise NotAMemberError("named calls are a group's, and this client is in none: connect(group=NAME)")
        return group

    def add(self, name: object, handler: Callable[[Call], Any], schedule: Schedule | None) -> str:
        """Take a handler; raises NotAMemberError, InvalidKeyError, KeyTooLongError, InvalidValueError."""
        import inspect

        checked = self.checked(name)
        if checked in self.jobs:
            raise InvalidValueError(f"{shown(checked)} has a handler in this client; give the other another name")
        try:
            inspect.signature(handler).bind(None)
        except TypeError:
            raise InvalidValueError(
                f"the handler of {shown(checked)} takes one argument, the call: {shown(handler)}"
            ) from None
        self.jobs[checked] = Job(handler, schedule)
        return checked

    # commands of callers

    def later(self, name: object, delay: Timeout, payload: Payload) -> bytes:
        """The command of `call_later`."""
        if delay is None:
            raise InvalidValueError("delay=None: a call has a time; give seconds or a timedelta")
        return self._called(self.checked(name), 0, timeout_ns(delay, "delay", ""), payload)

    def at(self, name: object, when: object, payload: Payload) -> bytes:
        """The command of `call_at`."""
        due_ns = wall_ns_of(when)
        if due_ns >= WALL_NS_END:
            raise InvalidValueError(f"when={shown(when)} is beyond what 64 bits of nanoseconds hold: the year 2262")
        due_ns = max(due_ns, 0)  # before 1970 is as much in the past as 1970
        return self._called(self.checked(name), due_ns, due_ns - self._wall_ns(), payload)

    def called(self, name: str, value: Any, error: TimerdError | None) -> bool:
        """What `call_later` and `call_at` return: False if the name is taken. Raises any other refusal."""
        if error is not None:
            if error.code is ErrorCode.OPERATION_EXISTS:
                return False
            raise error
        if self.handling.get() == name:
            self._called_again.add(name)
        return True

    def cancel(self, name: object) -> bytes:
        """The command of `cancel_call`."""
        return self._by_id(CommandKind.CANCEL_ID, self.checked(name), CommandFlag.WANTS_ANSWER)

    def _called(self, name: str, due_ns: int, timeout: int, payload: Payload) -> bytes:
        body = payload_bytes(payload)
        if len(body) > CALL_PAYLOAD_MAX:
            raise PayloadTooLargeError(
                f"the payload of a call has {len(body)} bytes of at most {CALL_PAYLOAD_MAX}; pass a reference instead"
            )
        exists = REPLACE if self._is_its_own_again(name) else CLAIM
        return self._register(name, exists, Plan(CALL, due_ns=due_ns).pack() + body, timeout)

    def _is_its_own_again(self, name: str) -> bool:
        """Whether a handler calls its own name again. It may have the name, which is not free while the handler runs.

        False if the daemon does not know this client any more, or in another arena: the name may be another call's.
        """
        told = self._doing.get(name)
        return self.handling.get() == name and told is not None and self._protocol.inbox.is_ours(told)

    # steps of a runner

    def begin(self, name: str) -> Steps:
        """Begin a schedule: register its next occurrence, unless one is pending, or one is running.

        Where the clock may have been set since, the pending one is made due now: whoever gets it plans it anew.
        """
        job = self.jobs[name]
        assert job.schedule is not None, f"{name!r} has no schedule"
        while True:
            value, error = yield Ask(self._occurrence(name, BEGIN, job.schedule, None))
            if error is not None and error.code is ErrorCode.OPERATION_EXISTS and not value:
                if not job.schedule.by_wall:
                    return
                _, error = yield Ask(self._due_now(name))
            if error is None or error.code in GONE:
                return
            if error.code is ErrorCode.UNAVAILABLE:
                continue
            if error.code in (ErrorCode.OPERATION_EXISTS, ErrorCode.UNKNOWN_OPERATION):
                yield Pause(LOOK_AGAIN_S)  # it runs, and a next one follows; or it was dropped, and none does
            else:
                self._complain(f"{name!r} is not scheduled yet: {error}")
                yield Pause(RETRY_S)

    def carry_out(self, told: DeliveredOutcome) -> Steps:
        """The steps for a call that was delivered to this client."""
        record = told.record
        name = told.keys[0] if told.keys else ""
        if record.state == Settled.CANCELLED:
            yield Acknowledge(self._done(told), told)
            return
        job = self.jobs.get(name) if isinstance(name, str) else None
        found = unpack(told.payload)
        if not isinstance(name, str) or job is None or found is None:
            self._complain(f"a call came that this client does not handle: {name!r} with {len(told.payload)} bytes")
            yield Acknowledge(self._done(told), told)
            return
        plan, payload = found
        left_ns = plan.due_ns - self._wall_ns()
        if plan.kind != DAEMON and plan.due_ns and left_ns > EARLY_NS and record.state == Settled.EXPIRED:
            yield from self._insist(name, told, lambda: self._again(name, job, told, plan))
        elif record.deliveries == 1 or not (yield from self._is_done(name, told)):
            yield from self._run(name, job, told, plan, payload)

    def _run(self, name: str, job: Job, told: DeliveredOutcome, plan: Plan, payload: bytes) -> Steps:
        record = told.record
        lateness_ns = max(0, record.settled_ns - record.deadline_ns) if record.state == Settled.EXPIRED else 0
        due = datetime_of(plan.due_ns) if plan.due_ns else None
        self._called_again.discard(name)  # an earlier run may have left it there
        self._doing[name] = told
        try:
            yield Run(job.handler, Call(name, payload, due, record.deliveries, lateness_ns))
        finally:
            del self._doing[name]
        if (schedule := job.schedule) is not None:
            done = plan._replace(runs=plan.after_run(schedule)) if schedule.by_wall and plan.is_of(schedule) else plan
            yield from self._insist(name, told, lambda: self._occurrence(name, REPLACE, schedule, done, told))
        else:
            yield Acknowledge(self._done(told) if name in self._called_again else self._done_and_free(name, told), told)

    def _again(self, name: str, job: Job, told: DeliveredOutcome, plan: Plan) -> bytes:
        """The command that registers a call again which came too early by the wall clock."""
        if plan.kind == WALL and job.schedule is not None:
            return self._occurrence(name, REPLACE, job.schedule, plan, told)
        return self._register(name, REPLACE, told.payload, plan.due_ns - self._wall_ns(), told)

    def _insist(self, name: str, told: DeliveredOutcome, command: Callable[[], bytes]) -> Steps:
        """Register the call that follows `told` until the daemon has applied it, or until `told` is done otherwise."""
        while True:
            _, error = yield Ask(command(), told)
            if error is None or error.code in (*GONE, ErrorCode.UNKNOWN_OPERATION):
                return  # where this client is not known any more, the schedule begins anew
            if error.code is not ErrorCode.UNAVAILABLE:
                self._complain(f"{name!r} is not scheduled yet: {error}")
                yield Pause(RETRY_S)

    def _is_done(self, name: str, told: DeliveredOutcome) -> Generator[Step, Any, bool]:
        """Whether a redelivered call is not to be run: another member holds it, it is done, or its name is in use."""
        flags = CommandFlag.WANTS_ANSWER
        while True:
            value, error = yield Ask(self._by_id(CommandKind.GROUP_ACK, name, flags, told.record.operation))
            if error is None:
                return bool(value != GROUP_ACK_NOT_FOLLOWED)
            if error.code is not ErrorCode.UNAVAILABLE:
                return True  # this client holds nothing of its group any more

    # commands

    def checked(self, name: object) -> str:
        """The name of a call; raises NotAMemberError, InvalidKeyError, KeyTooLongError."""
        if not isinstance(name, str):
            raise InvalidKeyError(f"the name of a call is str, not {type(name).__name__}: {shown(name)}")
        key_bytes(name)
        self._id(name)
        return name

    def _id(self, name: str) -> bytes:
        return id_hash(f"{self.group}/{name}")

    def _occurrence(
        self, name: str, exists: int, schedule: Schedule, last: Plan | None, told: DeliveredOutcome | None = None
    ) -> bytes:
        """The command that registers the next point of a schedule; `last` is the plan of the call that it follows."""
        wall_ns = self._wall_ns()
        plan = Plan(WALL if schedule.by_wall else DAEMON, text_of(schedule))
        follows = last if last is not None and last.is_of(schedule) else plan
        if schedule.by_wall:
            due_ns = next_point(follows.runs, schedule, wall_ns)
            plan = plan._replace(due_ns=due_ns, runs=follows.runs)
        else:
            now_ns = self._protocol.session.daemon_clock(self._now_ns())
            at_ns = schedule.after(max(now_ns, min(follows.at_ns, now_ns + EARLY_NS)))
            due_ns = wall_ns + at_ns - now_ns
            plan = plan._replace(due_ns=due_ns, at_ns=at_ns)
        return self._register(name, exists, plan.pack(), due_ns - wall_ns, told)

    def _register(
        self, name: str, exists: int, payload: bytes, timeout: int, told: DeliveredOutcome | None = None
    ) -> bytes:
        """The command that registers a call; with `told`, it acknowledges that one."""
        if told is not None:
            exists |= RegisterFlag.FOLLOWS
        key = name.encode()
        tail = self._id(name) + EVENT_PREFIX[len(key)] + key + payload
        head: bytes = pack_register(
            CommandKind.REGISTER,
            self._protocol.session.purgatories[CALLS],
            OF_CALL | exists,
            REGISTER_SIZE + len(tail),
            Condition.AT_LEAST,
            1,
            1,
            Orphans.CANCEL,
            len(payload),
            self._now_ns(),
            min(max(0, timeout), TIMEOUT_NS_MAX),
            0 if told is None else told.record.operation,
            0,
            SCHEDULE_SIZE if exists & RegisterFlag.REPLACE_CHANGED else 0,
        )
        return head + tail

    def _due_now(self, name: str) -> bytes:
        """The command that makes the pending call of that name due now."""
        return self._by_id(CommandKind.RESCHEDULE_ID, name, CommandFlag.WANTS_ANSWER, registered_ns=self._now_ns())

    def _done(self, told: DeliveredOutcome) -> bytes:
        return operation_command(CommandKind.GROUP_ACK, told.record.operation)

    def _done_and_free(self, name: str, told: DeliveredOutcome) -> bytes:
        """The command that acknowledges a call and frees its name."""
        record = told.record
        return self._by_id(
            CommandKind.GROUP_ACK, name, CommandFlag.FREES_ID, record.operation, registered_ns=record.settled_ns
        )

    def _by_id(self, kind: CommandKind, name: str, flags: int = 0, operation: int = 0, registered_ns: int = 0) -> bytes:
        return operation_command(
            kind,
            operation,
            flags=flags,
            purgatory=self._protocol.session.purgatories[CALLS],
            registered_ns=registered_ns,
            id_hash=self._id(name),
        )


def answer_of_cancel(value: Any, error: TimerdError | None) -> bool:
    """What `cancel_call` returns: False if no call of that name is pending."""
    if error is None:
        return bool(value)
    if error.code is ErrorCode.UNKNOWN_OPERATION:
        return False
    raise error
