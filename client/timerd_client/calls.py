"""Named calls: work that belongs to a group, not to a process, once or again and again. No I/O, no thread.

A call is an operation of the group with its deadline, in the purgatory "calls"; its watch key is the name, and so is
its id (the group's name before it). One member is told when it is due, and does this:

    told --> run the handler --> register the next occurrence, and with it, if it was taken: acknowledge
                                 (one-shot: free the name, and acknowledge)

The acknowledgement counts only if an operation of that id is pending (GROUP_ACK with an id), so it travels in the same
frame, and nothing lies between the two. A refused registration is repeated, with its acknowledgement.

That keeps a schedule alive and single. The id is that of one operation at a time. It names the pending call; while the
call is told and being done it stands as "has settled", which refuses everybody's registration, so a worker that starts
meanwhile makes no second one; the one that has done it *replaces* it. A worker that dies

    in the handler, or before the next is registered     the call is told again: it runs again, deliveries 2
    after that                                           it was done
    taken for dead or silent in the handler, but alive   it is told again: who is told before this one has ended runs it
                                                         beside it; who is told later sees the next one pending under
                                                         its id, and only acknowledges

A name is free when its last operation was cancelled: by `cancel_call`, or by the worker that has done a one-shot, which
puts an operation in its place and cancels it. (The id of what settled otherwise is remembered for an hour.)

A member without a handler for the name passes the call on: it registers it again, a little later, for the next one;
after PASSES_MAX it lets the name go. So new workers may name what old ones do not know, and what nobody names ends.

Time: a schedule and `call_at` are on the wall clock, the daemon's deadlines on CLOCK_MONOTONIC. A call that is told
more than a second before its time (the clock was set back) is registered again; after a clock was set forward the
calls that were pending are told late.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from contextvars import ContextVar
from datetime import datetime
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from timerd_shm.errors import (
    ErrorCode,
    InvalidKeyError,
    InvalidValueError,
    NotAMemberError,
    PayloadTooLargeError,
)
from timerd_shm.layout import Condition, Orphans
from timerd_shm.layout import Outcome as Settled
from timerd_shm.limits import PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX
from timerd_shm.wire import CommandFlag, CommandKind, RegisterFlag

from .arguments import EVENT_PREFIX, Payload, Timeout, id_hash, key_bytes, payload_bytes, shown, timeout_ns
from .commands import REGISTER_SIZE, operation_command, pack_register
from .group import CALLS, Told
from .schedule import Schedule, datetime_of, wall_ns_of

if TYPE_CHECKING:
    from timerd_shm.errors import TimerdError

    from .protocol import Protocol

EARLY_NS: Final = 1_000_000_000  # told so much before its time: the wall clock was set back
PASSES_MAX: Final = 32  # members asked for a handler, within a minute
PASS_FIRST_S: Final = 0.05  # doubling to
PASS_LAST_S: Final = 2.0
RETRY_S: Final = 1.0  # after a refusal that will not last (the arena is full)
LOOK_AGAIN_S: Final = 60.0  # for a schedule whose occurrence was being done
REPLACE: Final = int(RegisterFlag.REPLACE)
CLAIM: Final = int(RegisterFlag.REPLACE_CANCELLED)
GONE: Final = (ErrorCode.SESSION_GONE, ErrorCode.CLOSED)  # nothing that this client was told counts any more
_ENVELOPE: Final = struct.Struct("<BBq")  # before the payload: kind, passes, wall clock in ns when it is due, 0 = any
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
    """A step: issue these commands when the daemon is not lost, go on with (value, error) of the first one's answer."""

    commands: list[bytes]


class Run(NamedTuple):
    """A step: run the handler; what it raises is logged."""

    handler: Callable[[Call], Any]
    call: Call


class Pause(NamedTuple):
    """A step: go on in so many seconds."""

    seconds: float


class Say(NamedTuple):
    """A step: issue these commands; no answer is waited for."""

    commands: list[bytes]


Step: TypeAlias = Ask | Run | Pause | Say
Steps: TypeAlias = Generator[Step, Any, None]


class Calls:
    """The calls of one client: what it handles, and what it has to do when it is told."""

    def __init__(
        self,
        protocol: Protocol,
        complain: Callable[[str], None],
        wall_ns: Callable[[], int] = time_ns,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._protocol = protocol
        self._complain = complain
        self._wall_ns = wall_ns
        self._now_ns = now_ns
        self.jobs: dict[str, Job] = {}
        self.handling: ContextVar[str | None] = ContextVar("timerd_handling", default=None)  # set around a handler
        self._called_again: set[str] = set()  # by their own handlers

    @property
    def group(self) -> str:
        """The client's group; raises NotAMemberError."""
        group = self._protocol.identity.group
        if group is None:
            raise NotAMemberError("named calls are a group's, and this client is in none: connect(group=NAME)")
        return group

    def add(self, name: object, handler: Callable[[Call], Any], schedule: Schedule | None) -> str:
        """Take a handler; raises NotAMemberError, InvalidKeyError, KeyTooLongError, InvalidValueError."""
        import inspect

        checked = self._name(name)
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
        return self._called(self._name(name), 0, timeout_ns(delay), payload)

    def at(self, name: object, when: object, payload: Payload) -> bytes:
        """The command of `call_at`."""
        due_ns = wall_ns_of(when)
        if due_ns >= WALL_NS_END:
            raise InvalidValueError(f"when={shown(when)} is beyond what 64 bits of nanoseconds hold: the year 2262")
        due_ns = max(due_ns, 0)  # before 1970 is as much in the past as 1970
        return self._called(self._name(name), due_ns, due_ns - self._wall_ns(), payload)

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
        return self._by_id(CommandKind.CANCEL_ID, self._name(name), CommandFlag.WANTS_ANSWER)

    def _called(self, name: str, due_ns: int, timeout: int, payload: Payload) -> bytes:
        body = payload_bytes(payload)
        if len(body) > CALL_PAYLOAD_MAX:
            raise PayloadTooLargeError(
                f"the payload of a call has {len(body)} bytes of at most {CALL_PAYLOAD_MAX}; pass a reference instead"
            )
        exists = CLAIM
        if self.handling.get() == name:  # its own handler calls it again
            exists = REPLACE
        return self._register(name, exists, _ENVELOPE.pack(_CALL, 0, due_ns) + body, timeout)

    # what a runner does

    def begin(self, name: str) -> Steps:
        """Have a schedule run: register its next occurrence, unless there is one, or one is being done."""
        job = self.jobs[name]
        assert job.schedule is not None, f"{name!r} has no schedule"
        while True:
            due_ns = job.schedule.after(self._wall_ns())
            value, error = yield Ask([self._occurrence(name, CLAIM, due_ns)])
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
        done = operation_command(CommandKind.GROUP_ACK, record.operation)
        if record.state == Settled.CANCELLED:
            yield Say([done])
            return
        if not isinstance(name, str) or len(told.payload) < _ENVELOPE.size:
            self._complain(f"what was told as a call is none: {name!r} with {len(told.payload)} bytes")
            yield Say([done])
            return
        kind, passes, due_ns = _ENVELOPE.unpack_from(told.payload)
        job = self.jobs.get(name)
        left_ns = due_ns - self._wall_ns()
        if due_ns and left_ns > EARLY_NS and record.state == Settled.EXPIRED:
            yield from self._insist(name, told, lambda: self._register(name, REPLACE, told.payload, left_ns))
        elif job is None and passes < PASSES_MAX:
            envelope = _ENVELOPE.pack(kind, passes + 1, due_ns) + told.payload[_ENVELOPE.size :]
            wait_ns = round(min(PASS_LAST_S, PASS_FIRST_S * 2**passes) * 1e9)
            yield from self._insist(name, told, lambda: self._register(name, REPLACE, envelope, wait_ns))
        elif job is None:
            self._complain(f"no member of {self.group!r} has a handler for {name!r}: it ends")
            yield Say([*self._free(name), done])
        elif record.deliveries > 1 and (yield from self._was_done(name)):
            yield Say([done])
        else:
            yield from self._run(name, job, told, due_ns)

    def _run(self, name: str, job: Job, told: Told, due_ns: int) -> Steps:
        record = told.record
        lateness_ns = max(0, record.settled_ns - record.deadline_ns) if record.state == Settled.EXPIRED else 0
        due = datetime_of(due_ns) if due_ns else None
        self._called_again.discard(name)  # by what an earlier run has left behind
        yield Run(job.handler, Call(name, told.payload[_ENVELOPE.size :], due, record.deliveries, lateness_ns))
        schedule = job.schedule
        if schedule is not None:
            yield from self._insist(name, told, lambda: self._occurrence(name, REPLACE, self._next(schedule, due_ns)))
            return
        done = [operation_command(CommandKind.GROUP_ACK, record.operation)]
        if name not in self._called_again:
            done = [*self._free(name), *done]
        yield Say(done)

    def _next(self, schedule: Schedule, done_ns: int) -> int:
        """When the next occurrence is due. The one that has been done does not come again, if it was a bit early."""
        now_ns = self._wall_ns()
        return schedule.after(max(now_ns, done_ns) if done_ns - now_ns <= EARLY_NS else now_ns)

    def _insist(self, name: str, told: Told, command: Callable[[], bytes]) -> Steps:
        """Register until the daemon has taken it, and acknowledge what it follows if it has."""
        acknowledge = self._by_id(CommandKind.GROUP_ACK, name, 0, told.record.operation)
        while True:
            _, error = yield Ask([command(), acknowledge])
            if error is None or error.code in GONE:
                return  # in the latter case the acknowledgement does nothing either
            if error.code is not ErrorCode.UNAVAILABLE:
                self._complain(f"{name!r} is not scheduled yet: {error}")
                yield Pause(RETRY_S)

    def _was_done(self, name: str) -> Generator[Step, Any, bool]:
        """Whether a call that is told again has been done: then something newer is pending under its id, or was.

        If the id has been forgotten, the operation that asks has it until it is replaced.
        """
        value, error = yield Ask([self._placeholder(name, RegisterFlag.WANTS_ANSWER)])
        exists = error is not None and error.code is ErrorCode.OPERATION_EXISTS
        return exists and value in (0, int(Settled.CANCELLED))

    # commands

    def _name(self, name: object) -> str:
        if not isinstance(name, str):
            raise InvalidKeyError(f"the name of a call is str, not {type(name).__name__}: {shown(name)}")
        key_bytes(name)
        self._id(name)
        return name

    def _id(self, name: str) -> bytes:
        return id_hash(f"{self.group}/{name}")

    def _occurrence(self, name: str, exists: int, due_ns: int) -> bytes:
        return self._register(name, exists, _ENVELOPE.pack(_OCCURRENCE, 0, due_ns), due_ns - self._wall_ns())

    def _register(self, name: str, exists: int, payload: bytes, timeout: int) -> bytes:
        flags = RegisterFlag.FOR_GROUP | RegisterFlag.WANTS_ANSWER | exists
        return self._pack(name, flags, payload, min(max(0, timeout), TIMEOUT_NS_MAX))

    def _placeholder(self, name: str, flags: int) -> bytes:
        """An operation of this client under a call's id."""
        return self._pack(name, flags | RegisterFlag.ORPHANS_GIVEN, b"", TIMEOUT_NS_MAX)

    def _free(self, name: str) -> list[bytes]:
        """Cancelled is free: put an operation in its place, and cancel that."""
        return [self._placeholder(name, REPLACE), self._by_id(CommandKind.CANCEL_ID, name, 0)]

    def _by_id(self, kind: CommandKind, name: str, flags: int, operation: int = 0) -> bytes:
        index = self._protocol.purgatories[CALLS]
        return operation_command(kind, operation, flags=flags, purgatory=index, id_hash=self._id(name))

    def _pack(self, name: str, flags: int, payload: bytes, timeout: int) -> bytes:
        key = name.encode()
        tail = self._id(name) + EVENT_PREFIX[len(key)] + key + payload
        head: bytes = pack_register(
            CommandKind.REGISTER,
            self._protocol.purgatories[CALLS],
            RegisterFlag.HAS_ID | RegisterFlag.NO_MARK | flags,
            REGISTER_SIZE + len(tail),
            Condition.AT_LEAST,
            1,
            1,
            Orphans.CANCEL,
            len(payload),
            self._now_ns(),
            timeout,
            0,
            0,
            0,
        )
        return head + tail


def answer_of_cancel(value: Any, error: TimerdError | None) -> bool:
    """What `cancel_call` returns: False if nothing of that name is pending."""
    if error is None:
        return bool(value)
    if error.code is ErrorCode.UNKNOWN_OPERATION:
        return False
    raise error
