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

Time: schedules and `call_at` are on the wall clock, the daemon's deadlines on CLOCK_MONOTONIC. After the wall clock was
set back, a call may be due more than a second before its time: it is registered again. After the clock was set forward,
the pending calls are late.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextvars import ContextVar
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

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
    SessionGoneError,
)
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX
from timerd_shm.declare.states import Condition, Orphans
from timerd_shm.declare.states import Outcome as Settled
from timerd_shm.declare.wire import GROUP_ACK_NOT_FOLLOWED, CommandFlag, CommandKind, RegisterFlag

from .schedule import Schedule, datetime_of, wall_ns_of

if TYPE_CHECKING:
    from timerd_client.protocol.protocol import Protocol
    from timerd_shm.declare.errors import TimerdError

EARLY_NS: Final = 1_000_000_000  # a call is due so much before its time: the wall clock was set back
RETRY_S: Final = 1.0  # after a refusal that will not last (the arena is full)
LOOK_AGAIN_S: Final = 60.0  # for a schedule whose occurrence was running
REPLACE: Final = int(RegisterFlag.REPLACE)
CLAIM: Final = int(RegisterFlag.REPLACE_CANCELLED)
BEGIN: Final = CLAIM | int(RegisterFlag.REPLACE_CHANGED)
OF_CALL: Final = int(
    RegisterFlag.FOR_GROUP | RegisterFlag.CALL | RegisterFlag.HAS_ID | RegisterFlag.NO_MARK | RegisterFlag.WANTS_ANSWER
)
GONE: Final = (ErrorCode.SESSION_GONE, ErrorCode.CLOSED)  # this client holds nothing of its group any more
# Before the payload: kind, hash of the schedule's text (0 = none), wall clock in ns when it is due (0 = any).
_ENVELOPE: Final = struct.Struct("<BQq")
_SCHEDULE_SIZE: Final = 9  # so many first bytes are the same in all occurrences of a schedule
_CALL: Final = 1
_OCCURRENCE: Final = 2
CALL_PAYLOAD_MAX: Final = PAYLOAD_SIZE_MAX - _ENVELOPE.size
WALL_NS_END: Final = 1 << 63


class Call(NamedTuple):
    """What a handler is given. When the handler returns, the call is acknowledged."""

    name: str
    payload: bytes
    due: datetime | None  # in UTC; None after call_later()
    deliveries: int  # above 1: the call was delivered before, to a worker that may have run its handler
    lateness_ns: int  # after its deadline, when it settled


class Job(NamedTuple):
    """A handler, and the schedule of one that is periodic."""

    handler: Callable[[Call], Any]
    schedule: Schedule | None


class Ask(NamedTuple):
    """A step: issue this command when the daemon is not lost; the steps go on with (value, error) of its answer.

    With `done`, the command acknowledges that call. It is not issued if the call was delivered to an earlier
    incarnation of this client, or in another arena: the steps go on with NOT_ACKNOWLEDGED then.
    """

    command: bytes
    done: DeliveredOutcome | None = None


class Run(NamedTuple):
    """A step: run the handler. An exception from it is logged."""

    handler: Callable[[Call], Any]
    call: Call


class Pause(NamedTuple):
    """A step: go on in so many seconds."""

    seconds: float


class Acknowledge(NamedTuple):
    """A step: issue this command, which acknowledges a call; the steps do not wait for an answer."""

    command: bytes
    done: DeliveredOutcome


Step: TypeAlias = Ask | Run | Pause | Acknowledge
Steps: TypeAlias = Generator[Step, Any, None]


NOT_ACKNOWLEDGED: Final = (0, SessionGoneError("the daemon has lost sight of this client since the call was delivered"))


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
        return self._register(name, exists, _ENVELOPE.pack(_CALL, 0, due_ns) + body, timeout)

    def _is_its_own_again(self, name: str) -> bool:
        """Whether a handler calls its own name again. It may have the name, which is not free while the handler runs.

        False if the daemon does not know this client any more, or in another arena: the name may be another call's.
        """
        told = self._doing.get(name)
        return self.handling.get() == name and told is not None and self._protocol.inbox.is_ours(told)

    # steps of a runner

    def begin(self, name: str) -> Steps:
        """Begin a schedule: register its next occurrence, unless one is pending, or one is running."""
        job = self.jobs[name]
        assert job.schedule is not None, f"{name!r} has no schedule"
        while True:
            value, error = yield Ask(self._occurrence(name, BEGIN, job.schedule, self._wall_ns()))
            if error is None or error.code in GONE:
                return
            if error.code is ErrorCode.UNAVAILABLE:
                continue
            if error.code is not ErrorCode.OPERATION_EXISTS:
                self._complain(f"{name!r} is not scheduled yet: {error}")
                yield Pause(RETRY_S)
            elif value:  # settled, not pending: it runs, and a next one follows; or it was dropped, and none does
                yield Pause(LOOK_AGAIN_S)
            else:
                return

    def carry_out(self, told: DeliveredOutcome) -> Steps:
        """The steps for a call that was delivered to this client."""
        record = told.record
        name = told.keys[0] if told.keys else ""
        if record.state == Settled.CANCELLED:
            yield Acknowledge(self._done(told), told)
            return
        job = self.jobs.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or job is None or len(told.payload) < _ENVELOPE.size:
            self._complain(f"a call came that this client does not handle: {name!r} with {len(told.payload)} bytes")
            yield Acknowledge(self._done(told), told)
            return
        _, _, due_ns = _ENVELOPE.unpack_from(told.payload)
        left_ns = due_ns - self._wall_ns()
        if due_ns and left_ns > EARLY_NS and record.state == Settled.EXPIRED:
            yield from self._insist(name, told, lambda: self._register(name, REPLACE, told.payload, left_ns, told))
        elif record.deliveries == 1 or not (yield from self._is_done(name, told)):
            yield from self._run(name, job, told, due_ns)

    def _run(self, name: str, job: Job, told: DeliveredOutcome, due_ns: int) -> Steps:
        record = told.record
        lateness_ns = max(0, record.settled_ns - record.deadline_ns) if record.state == Settled.EXPIRED else 0
        due = datetime_of(due_ns) if due_ns else None
        self._called_again.discard(name)  # an earlier run may have left it there
        self._doing[name] = told
        try:
            yield Run(job.handler, Call(name, told.payload[_ENVELOPE.size :], due, record.deliveries, lateness_ns))
        finally:
            del self._doing[name]
        if (schedule := job.schedule) is not None:
            yield from self._insist(name, told, lambda: self._next(name, schedule, due_ns, told))
        else:
            yield Acknowledge(self._done(told) if name in self._called_again else self._done_and_free(name, told), told)

    def _next(self, name: str, schedule: Schedule, done_ns: int, told: DeliveredOutcome) -> bytes:
        """The occurrence after the one that has run; one that ran a bit early does not come again."""
        after_ns = self._wall_ns()
        if done_ns - after_ns <= EARLY_NS:
            after_ns = max(after_ns, done_ns)
        return self._occurrence(name, REPLACE, schedule, after_ns, told)

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
        self, name: str, exists: int, schedule: Schedule, after_ns: int, told: DeliveredOutcome | None = None
    ) -> bytes:
        due_ns = schedule.after(after_ns)
        text = int.from_bytes(blake2b(schedule.text.encode(), digest_size=8).digest(), "little")
        return self._register(name, exists, _ENVELOPE.pack(_OCCURRENCE, text, due_ns), due_ns - self._wall_ns(), told)

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
            _SCHEDULE_SIZE if exists & RegisterFlag.REPLACE_CHANGED else 0,
        )
        return head + tail

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
