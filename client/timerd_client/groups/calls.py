"""Named calls: work that belongs to a group, not to a process, once or again and again. No I/O, no thread.

A call is an operation of the group with its deadline, in the purgatory "calls"; its watch key is the name, and so is
its id (the group's name before it). One member is told when it is due, and does this:

    told --> run the handler --> register the next occurrence, with which this one is done (FOLLOWS)
                                 (one-shot: acknowledge, with which its name is free: FREES_ID)

Either is one command, so nothing lies between its two parts. What is refused is said again; what may have been taken
though nobody heard so, too: it is refused then, because the one that it follows is over.

That keeps a schedule alive and single. The id is that of one operation at a time. It names the pending call; while the
call is told and being done it stands as "has settled", which refuses everybody's registration, so a worker that starts
meanwhile makes no second one; the one that has done it *replaces* it. A worker that dies

    in the handler, or before the next is registered     the call is told again: it runs again, deliveries 2
    after that                                           it was done
    taken for dead or silent in the handler, but alive   it is told again: who is told before this one has ended runs it
                                                         beside it, and the first that ends has done it; who has not
                                                         begun by then asks, because it is told again, and does nothing

A name is free when its last operation stands as cancelled: by `cancel_call`, or because the worker that has done a
one-shot says so. The id of what settled otherwise is remembered for an hour.

A call is told only to a member that handles its name, and as many at a time as it does at once. So new workers may name
what old ones do not know, a long handler keeps nothing back that another could do, and what nobody handles is dropped
when it was kept for the retention.

A schedule whose text differs from that of the pending occurrence takes its place (REPLACE_CHANGED), so a changed one
counts as soon as a worker with it starts. While workers with the old one are there, the last to start or run decides.

Time: a schedule and `call_at` are on the wall clock, the daemon's deadlines on CLOCK_MONOTONIC. A call that is told
more than a second before its time (the clock was set back) is registered again; after a clock was set forward the
calls that were pending are told late.
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
from timerd_client.protocol.inbox import Told
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

EARLY_NS: Final = 1_000_000_000  # told so much before its time: the wall clock was set back
RETRY_S: Final = 1.0  # after a refusal that will not last (the arena is full)
LOOK_AGAIN_S: Final = 60.0  # for a schedule whose occurrence was being done
REPLACE: Final = int(RegisterFlag.REPLACE)
CLAIM: Final = int(RegisterFlag.REPLACE_CANCELLED)
BEGIN: Final = CLAIM | int(RegisterFlag.REPLACE_CHANGED)
OF_CALL: Final = int(
    RegisterFlag.FOR_GROUP | RegisterFlag.CALL | RegisterFlag.HAS_ID | RegisterFlag.NO_MARK | RegisterFlag.WANTS_ANSWER
)
GONE: Final = (ErrorCode.SESSION_GONE, ErrorCode.CLOSED)  # nothing that this client was told counts any more
# Before the payload: kind, hash of the schedule's text (0 = none), wall clock in ns when it is due (0 = any).
_ENVELOPE: Final = struct.Struct("<BQq")
_SCHEDULE_SIZE: Final = 9  # what of it is the same in all occurrences of a schedule
_CALL: Final = 1
_OCCURRENCE: Final = 2
CALL_PAYLOAD_MAX: Final = PAYLOAD_SIZE_MAX - _ENVELOPE.size
WALL_NS_END: Final = 1 << 63


class Call(NamedTuple):
    """What a handler is given. Returning from it is the acknowledgement."""

    name: str
    payload: bytes
    due: datetime | None  # in UTC; None after call_later()
    deliveries: int  # above 1: another worker was told before, and may have acted
    lateness_ns: int  # after its deadline, when it settled


class Job(NamedTuple):
    """A handler, and the schedule of one that is periodic."""

    handler: Callable[[Call], Any]
    schedule: Schedule | None


class Ask(NamedTuple):
    """A step: say this when the daemon is not lost, go on with (value, error) of the answer.

    With NOT_ACKNOWLEDGED if it is not said, because what is done with it was told to a client that is no more.
    """

    command: bytes
    done: Told | None = None


class Run(NamedTuple):
    """A step: run the handler; what it raises is logged."""

    handler: Callable[[Call], Any]
    call: Call


class Pause(NamedTuple):
    """A step: go on in so many seconds."""

    seconds: float


class Say(NamedTuple):
    """A step: say that something is done; no answer is waited for."""

    command: bytes
    done: Told


Step: TypeAlias = Ask | Run | Pause | Say
Steps: TypeAlias = Generator[Step, Any, None]


NOT_ACKNOWLEDGED: Final = (0, SessionGoneError("the daemon has lost sight of this client since it was told"))


class Calls:
    """The calls of one client: what it handles, and what it has to do when it is told."""

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
        self._doing: dict[str, Told] = {}  # calls whose handlers run
        self._called_again: set[str] = set()  # by their own handlers

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

    # what callers ask for

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
        """Whether the handler of a call asks for the next one, so that it may take the name, which is not free yet.

        Where this client is not known any more, and in another arena, the name is another's, or anybody's.
        """
        told = self._doing.get(name)
        return self.handling.get() == name and told is not None and self._protocol.inbox.is_ours(told)

    # what a runner does

    def begin(self, name: str) -> Steps:
        """Have a schedule run: register its next occurrence, unless there is one, or one is being done."""
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
            elif value:  # settled, not pending: being done, and then there is a next one; or it was lost
                yield Pause(LOOK_AGAIN_S)
            else:
                return

    def carry_out(self, told: Told) -> Steps:
        """Do what a member is told to do."""
        record = told.record
        name = told.keys[0] if told.keys else ""
        if record.state == Settled.CANCELLED:
            yield Say(self._done(told), told)
            return
        job = self.jobs.get(name) if isinstance(name, str) else None
        if not isinstance(name, str) or job is None or len(told.payload) < _ENVELOPE.size:
            self._complain(f"what was told as a call is none of this client's: {name!r} with {len(told.payload)} bytes")
            yield Say(self._done(told), told)
            return
        _, _, due_ns = _ENVELOPE.unpack_from(told.payload)
        left_ns = due_ns - self._wall_ns()
        if due_ns and left_ns > EARLY_NS and record.state == Settled.EXPIRED:
            yield from self._insist(name, told, lambda: self._register(name, REPLACE, told.payload, left_ns, told))
        elif record.deliveries == 1 or not (yield from self._is_over(name, told)):
            yield from self._run(name, job, told, due_ns)

    def _run(self, name: str, job: Job, told: Told, due_ns: int) -> Steps:
        record = told.record
        lateness_ns = max(0, record.settled_ns - record.deadline_ns) if record.state == Settled.EXPIRED else 0
        due = datetime_of(due_ns) if due_ns else None
        self._called_again.discard(name)  # by what an earlier run has left behind
        self._doing[name] = told
        try:
            yield Run(job.handler, Call(name, told.payload[_ENVELOPE.size :], due, record.deliveries, lateness_ns))
        finally:
            del self._doing[name]
        if (schedule := job.schedule) is not None:
            yield from self._insist(name, told, lambda: self._next(name, schedule, due_ns, told))
        else:
            yield Say(self._done(told) if name in self._called_again else self._done_and_free(name, told), told)

    def _next(self, name: str, schedule: Schedule, done_ns: int, told: Told) -> bytes:
        """The occurrence after the one that has been done, which does not come again if it was a bit early."""
        after_ns = self._wall_ns()
        if done_ns - after_ns <= EARLY_NS:
            after_ns = max(after_ns, done_ns)
        return self._occurrence(name, REPLACE, schedule, after_ns, told)

    def _insist(self, name: str, told: Told, command: Callable[[], bytes]) -> Steps:
        """Register what follows until the daemon has taken it, or what it follows is over."""
        while True:
            _, error = yield Ask(command(), told)
            if error is None or error.code in (*GONE, ErrorCode.UNKNOWN_OPERATION):
                return  # where this client is not known any more, the schedule begins anew
            if error.code is not ErrorCode.UNAVAILABLE:
                self._complain(f"{name!r} is not scheduled yet: {error}")
                yield Pause(RETRY_S)

    def _is_over(self, name: str, told: Told) -> Generator[Step, Any, bool]:
        """Whether nothing is to be done here: it is another's, it was done, or its name has been given again."""
        flags = CommandFlag.WANTS_ANSWER
        while True:
            value, error = yield Ask(self._by_id(CommandKind.GROUP_ACK, name, flags, told.record.operation))
            if error is None:
                return bool(value != GROUP_ACK_NOT_FOLLOWED)
            if error.code is not ErrorCode.UNAVAILABLE:
                return True  # nothing that this client was told counts any more

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

    def _occurrence(self, name: str, exists: int, schedule: Schedule, after_ns: int, told: Told | None = None) -> bytes:
        due_ns = schedule.after(after_ns)
        text = int.from_bytes(blake2b(schedule.text.encode(), digest_size=8).digest(), "little")
        return self._register(name, exists, _ENVELOPE.pack(_OCCURRENCE, text, due_ns), due_ns - self._wall_ns(), told)

    def _register(self, name: str, exists: int, payload: bytes, timeout: int, told: Told | None = None) -> bytes:
        """A call; with it `told` is done."""
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

    def _done(self, told: Told) -> bytes:
        return operation_command(CommandKind.GROUP_ACK, told.record.operation)

    def _done_and_free(self, name: str, told: Told) -> bytes:
        """That it is done, and its name is free."""
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
    """What `cancel_call` returns: False if nothing of that name is pending."""
    if error is None:
        return bool(value)
    if error.code is ErrorCode.UNKNOWN_OPERATION:
        return False
    raise error
