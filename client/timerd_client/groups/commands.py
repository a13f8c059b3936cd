"""The commands of named calls, encoded: they make calls, follow calls and end calls. No I/O.

The id of a call is known to the daemon as "GROUP/ID". A schedule's id is its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from timerd_client.arguments import EVENT_PREFIX, id_hash, payload_bytes, shown
from timerd_client.hot.commands import REGISTER_SIZE, operation_command, pack_register, phase_command
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.session import CALLS
from timerd_client.types import CallExists, Payload, Timeout
from timerd_shm.declare.errors import InvalidKeyError, InvalidValueError, NotAMemberError, PayloadTooLargeError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX
from timerd_shm.declare.states import CallPhase, Condition, Orphans
from timerd_shm.declare.wire import CommandFlag, CommandKind, RegisterFlag

from .listing import CallInfo, Clocks
from .plan import (
    ALONE_FROM,
    CALL,
    CALL_PAYLOAD_MAX,
    DAEMON,
    SCHEDULE_SIZE,
    WALL,
    WALL_NS_END,
    LastRun,
    Plan,
    text_of,
)
from .points import count, in_time, next_point
from .registry import Job, name_of_call
from .schedule import Schedule, wall_ns_of
from .steps import delay_ns_of

if TYPE_CHECKING:
    from timerd_client.protocol.protocol import Protocol


EARLY_NS: Final = 1_000_000  # a call that comes before its wall clock time by more than this is planned anew
CLAIM: Final = int(RegisterFlag.REPLACE_CANCELLED)  # take the id, if no call with this id is pending or running
REPLACE: Final = int(RegisterFlag.REPLACE)
BEGIN: Final = CLAIM | int(RegisterFlag.REPLACE_CHANGED)  # as CLAIM, or replace a pending call of another schedule
# Take the id of the followed call. If a caller has made another call with this id meanwhile, the caller's call stays.
FOLLOW: Final = int(RegisterFlag.REPLACE | RegisterFlag.REPLACE_CHANGED)
OF_CALL: Final = int(
    RegisterFlag.FOR_GROUP | RegisterFlag.CALL | RegisterFlag.HAS_ID | RegisterFlag.NO_MARK | RegisterFlag.WANTS_ANSWER
)
AGAIN: Final = int(RegisterFlag.KEEP | RegisterFlag.REPLACE)  # take the id of a call that runs; keep any other call
EXISTS: Final[dict[object, int]] = {"error": CLAIM, "keep": CLAIM, "replace": REPLACE, "again": AGAIN}


class Made(NamedTuple):
    """The command that makes a call, and the fields of its handle."""

    command: bytes
    name: str
    id: str
    keeps: bool


class CallCommands:
    """The commands of one client."""

    def __init__(self, protocol: Protocol, wall_ns: Callable[[], int], now_ns: Callable[[], int]) -> None:
        self._protocol = protocol
        self._wall_ns = wall_ns
        self._now_ns = now_ns

    @property
    def group(self) -> str:
        """The client's group. Raises NotAMemberError."""
        group = self._protocol.session.identity.group
        if group is None:
            raise NotAMemberError("named calls belong to a group, and this client is in no group: Client(group=NAME)")
        return group

    @property
    def clocks(self) -> Clocks:
        """The clocks of this client."""
        return Clocks(self._now_ns, self._wall_ns)

    # of callers

    def later(
        self, handler: object, delay: Timeout, payload: Payload = b"", id: object = None, exists: CallExists = "error"
    ) -> Made:
        """The command of `call_later`."""
        return self._made(name_of_call(handler), 0, delay_ns_of(delay), payload, id, exists)

    def at(
        self, handler: object, when: object, payload: Payload = b"", id: object = None, exists: CallExists = "error"
    ) -> Made:
        """The command of `call_at`."""
        due_ns = wall_ns_of(when)
        if due_ns >= WALL_NS_END:
            raise InvalidValueError(f"when={shown(when)} is too late: 64 bits of nanoseconds end in the year 2262")
        due_ns = max(due_ns, 0)  # a time before 1970 counts as 1970, which is past as well
        return self._made(name_of_call(handler), due_ns, due_ns - self._wall_ns(), payload, id, exists)

    def _made(self, name: str, due_ns: int, timeout: int, payload: Payload, id: object, exists: CallExists) -> Made:
        body = payload_bytes(payload)
        if len(body) > CALL_PAYLOAD_MAX:
            raise PayloadTooLargeError(
                f"the payload of a call has {len(body)} bytes of at most {CALL_PAYLOAD_MAX}; pass a reference instead"
            )
        if exists not in EXISTS:
            raise InvalidValueError(f"if_exists={shown(exists)}: give {', '.join(map(repr, EXISTS))}")
        if id is None and exists != "error":
            raise InvalidValueError(f"if_exists={exists!r} needs an id")
        given = self.own_id() if id is None else self.checked_id(id)
        plan = Plan(CALL, due_ns=due_ns, at_ns=self._at_ns(timeout), id=given)
        command = self._register(name, EXISTS[exists], plan, body, timeout)
        return Made(command, name, given, exists in ("keep", "again"))

    def cancel(self, id: object, flags: int = 0) -> bytes:
        """The command of `cancel_call`."""
        return self._by_id(CommandKind.CANCEL_ID, self.checked_id(id), flags)

    def reschedule(self, id: object, delay: Timeout, flags: int = 0) -> bytes:
        """The command of `reschedule_call`."""
        checked, delay_ns = self.checked_id(id), delay_ns_of(delay)
        return self._by_id(CommandKind.RESCHEDULE_ID, checked, flags, registered_ns=self._now_ns(), timeout_ns=delay_ns)

    def checked_id(self, id: object) -> str:
        """The id of a call. Raises NotAMemberError, InvalidKeyError, KeyTooLongError."""
        if not isinstance(id, str) or not id:
            raise InvalidKeyError(f"the id of a call is a str of one character at least: {shown(id)}")
        id_hash(self.full_id(id))
        return id

    @staticmethod
    def own_id() -> str:
        """An id that no other call has."""
        return uuid4().hex

    def full_id(self, id: str) -> str:
        """The id of the call at the daemon, in the purgatory of calls."""
        return f"{self.group}/{id}"

    # of runners

    def now_of(self, schedule: Schedule) -> int:
        """The time on the schedule's clock."""
        return self._wall_ns() if schedule.by_wall else self._protocol.session.daemon_clock(self._now_ns())

    def left_ns(self, plan: Plan) -> int:
        """How long it is until the time for which a call was planned."""
        return plan.at_ns - self._at_ns(0)

    def begin(self, name: str, schedule: Schedule) -> bytes:
        """Register the next point of a schedule, in place of a pending point of another schedule."""
        now_ns = self.now_of(schedule)
        plan = Plan(_kind(schedule), text_of(schedule))
        return self._point(name, BEGIN, schedule, plan, schedule.after(now_ns), now_ns, None)

    def next(self, name: str, job: Job, last: Plan, told: DeliveredOutcome, until_ns: int) -> tuple[bytes, int]:
        """Register the first point after `until_ns`, on the schedule's clock. Also returns how many points are skipped.

        `last` is the plan of the call that ends. If that call belongs to another schedule, this schedule begins now.
        """
        schedule = job.schedule
        assert schedule is not None, f"{name!r} has no schedule"
        now_ns = self.now_of(schedule)
        if last.is_of(schedule):
            # If the wall clock was set back, points before `until_ns` come again. The daemon's clock is never set, but
            # now_ns may be just before the point of the call that ends, and that point must not come again: EARLY_NS.
            after_ns = min(until_ns, now_ns if schedule.by_wall else now_ns + EARLY_NS)
            plan = last._replace(failures=0, earlier=0, phase=0, ends=0)
        else:
            after_ns = now_ns
            plan = Plan(_kind(schedule), text_of(schedule), last_run_ns=last.last_run_ns, error=last.error)
        first_ns = next_point(plan.runs, schedule, after_ns)
        point_ns = in_time(plan.runs, schedule, first_ns, now_ns, job.grace_ns)
        skipped = count(plan.runs, schedule, first_ns - 1, point_ns - 1)
        return self._point(name, FOLLOW, schedule, plan, point_ns, now_ns, told), skipped

    def again(self, name: str, plan: Plan, payload: bytes, delay_ns: int, told: DeliveredOutcome) -> bytes:
        """Register a call again, to come in `delay_ns`. `plan` has the time and the error of the last run."""
        if plan.kind == CALL:
            plan = plan._replace(due_ns=0, point_ns=plan.due_wall_ns)
        elif plan.kind == WALL:
            # A worker that begins a cron schedule makes the pending call due now. So the plan keeps the time when the
            # call is really due.
            plan = plan._replace(due_ns=self._wall_ns() + delay_ns)
        plan = plan._replace(at_ns=self._at_ns(delay_ns))
        return self._register(name, FOLLOW, plan, payload, delay_ns, told)

    def as_planned(self, name: str, plan: Plan, payload: bytes, told: DeliveredOutcome) -> bytes:
        """Register a call again, for its time by the wall clock."""
        delay_ns = plan.due_ns - self._wall_ns()
        plan = plan._replace(at_ns=self._at_ns(delay_ns))
        return self._register(name, FOLLOW, plan, payload, delay_ns, told)

    def retry(self, letter: CallInfo, plan: Plan, name: str, *, apart: bool) -> bytes:
        """Make a call from a dead letter. The call is due now, and replaces the letter. `apart`: with a new id."""
        given = self.own_id() if apart or plan.kind != CALL else plan.id
        again = plan.once(given)._replace(at_ns=self._at_ns(0), failures=0, earlier=0, phase=0, ends=0)
        return self._register(name, CLAIM | RegisterFlag.OF_LETTER, again, letter.payload, 0, follows=letter.op)

    @staticmethod
    def drop(letter: CallInfo) -> bytes:
        """Drop a dead letter."""
        flags = CommandFlag.WANTS_ANSWER | CommandFlag.OF_LETTER
        return operation_command(CommandKind.GROUP_ACK, letter.op, flags=flags)

    def due_now(self, name: str) -> bytes:
        """Make the pending call of a schedule due now."""
        return self._by_id(CommandKind.RESCHEDULE_ID, name, CommandFlag.WANTS_ANSWER, registered_ns=self._now_ns())

    @staticmethod
    def begin_phase(phase: CallPhase, told: DeliveredOutcome, limit_s: float | None = None) -> bytes:
        """Announce that a user's function is about to run for a call, for `limit_s` at most."""
        return phase_command(told.record.operation, phase, limit_ns=0 if limit_s is None else round(limit_s * 1e9))

    @staticmethod
    def give_up(told: DeliveredOutcome, end: LastRun) -> bytes:
        """Give a call up: it has failed for good. When it is done, it is kept as a dead letter."""
        return phase_command(told.record.operation, CallPhase.FAILED, reason=end.pack())

    @staticmethod
    def done(told: DeliveredOutcome) -> bytes:
        """Acknowledge a call."""
        return operation_command(CommandKind.GROUP_ACK, told.record.operation)

    def done_and_free(self, id: str, told: DeliveredOutcome) -> bytes:
        """Acknowledge a call, and free its id."""
        record = told.record
        return self._by_id(
            CommandKind.GROUP_ACK, id, CommandFlag.FREES_ID, record.operation, registered_ns=record.settled_ns
        )

    def _point(
        self,
        name: str,
        exists: int,
        schedule: Schedule,
        plan: Plan,
        point_ns: int,
        now_ns: int,
        told: DeliveredOutcome | None,
    ) -> bytes:
        """The command that registers a point of a schedule whose clock shows `now_ns`. The point may be past."""
        delay_ns = point_ns - now_ns
        due_ns = point_ns if schedule.by_wall else self._wall_ns() + delay_ns
        plan = plan._replace(due_ns=max(due_ns, 0), at_ns=self._at_ns(delay_ns), point_ns=point_ns)
        return self._register(name, exists, plan, b"", delay_ns, told)

    def _at_ns(self, delay_ns: int) -> int:
        """The deadline of a call that is registered now, on the daemon's clock."""
        return self._protocol.session.daemon_clock(self._now_ns()) + max(0, delay_ns)

    def _register(
        self,
        name: str,
        exists: int,
        plan: Plan,
        payload: bytes,
        timeout: int,
        told: DeliveredOutcome | None = None,
        *,
        follows: int = 0,
    ) -> bytes:
        """The command that registers a call. With `told`, or the op id `follows`, it also acknowledges that call.

        A call that has failed, so that only its on_failure is left, gets a new id: its old id is free for another call.
        """
        flags = OF_CALL | exists
        if told is not None:
            follows = told.record.operation
        if follows:
            flags |= RegisterFlag.FOLLOWS
        if plan.kind != CALL:
            flags |= RegisterFlag.SCHEDULED
        if plan.ends >= ALONE_FROM:
            flags |= RegisterFlag.ALONE
        key = name.encode()
        payload = plan.pack() + payload
        has_failed = plan.kind == CALL and plan.phase == CallPhase.ON_FAILURE
        id = self.own_id() if has_failed else plan.id or name
        tail = id_hash(self.full_id(id)) + EVENT_PREFIX[len(key)] + key + payload
        head: bytes = pack_register(
            CommandKind.REGISTER,
            self._protocol.session.purgatories[CALLS],
            flags,
            REGISTER_SIZE + len(tail),
            Condition.AT_LEAST,
            1,
            1,
            Orphans.CANCEL,
            len(payload),
            self._now_ns(),
            min(max(0, timeout), TIMEOUT_NS_MAX),
            follows,
            plan.due_ns if plan.kind == CALL else 0,  # the daemon plans such a call anew when the wall clock is set
            SCHEDULE_SIZE if exists & CLAIM and exists & RegisterFlag.REPLACE_CHANGED else 0,
        )
        return head + tail

    def _by_id(
        self,
        kind: CommandKind,
        id: str,
        flags: int = 0,
        operation: int = 0,
        registered_ns: int = 0,
        timeout_ns: int = 0,
    ) -> bytes:
        return operation_command(
            kind,
            operation,
            flags=flags,
            purgatory=self._protocol.session.purgatories[CALLS],
            registered_ns=registered_ns,
            timeout_ns=timeout_ns,
            id_hash=id_hash(self.full_id(id)),
        )


def _kind(schedule: Schedule) -> int:
    return WALL if schedule.by_wall else DAEMON
