"""The plan of a call, which stands before its payload: when the call is due, by which clock, and for which schedule.

    Plan(CALL, due_ns=.., id="user-8")   call_at: due by the wall clock (due_ns=0: call_later, due at its deadline)
    Plan(WALL, point_ns=.., runs=..)     a point of a cron schedule, and the schedule's points that have run
    Plan(DAEMON, point_ns=..)            a point of a period, on the daemon's monotonic clock

So a worker that has a call can plan the next call, even if another worker planned this call. The plan also has the end
of the last run, and the number of the attempt, so `timerctl calls` needs only the arena. No clock is read here.
"""

from __future__ import annotations

import struct
from datetime import datetime
from hashlib import blake2b
from typing import Final, NamedTuple

from timerd_shm.declare.limits import CALL_REASON_SIZE_MAX, ID_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import CallPhase

from .points import STRETCHES_MAX, Runs, with_run
from .schedule import Schedule, datetime_of

CALL: Final = 7  # older plans, which had no first point, had the kinds 1 to 6
WALL: Final = 8
DAEMON: Final = 9
ALONE_FROM: Final = 2  # from this number of ended processes on, a call runs alone in its process
PAUSE_S_MAX: Final = 60.0  # the longest pause between runs of a call that ends processes
ENDS_MAX: Final = 255
COUNT_MAX: Final = (1 << 32) - 1
ERROR_SIZE_MAX: Final = 200  # bytes of the last error's text
WALL_NS_END: Final = 1 << 63
_NUMBERS_BEGIN: Final = "\0"
SCHEDULE_SIZE: Final = 10  # the first bytes: equal in all points of a schedule for which nothing has run
_HEAD: Final = struct.Struct("<BBQqqqqIIBBBBB")  # whether it stays, the fields in their order, sizes of what follows
_STRETCH: Final = struct.Struct("<qq")
PLAN_SIZE_MAX: Final = _HEAD.size + STRETCHES_MAX * _STRETCH.size + ID_SIZE_MAX + ERROR_SIZE_MAX
CALL_PAYLOAD_MAX: Final = 64_900
assert PLAN_SIZE_MAX + CALL_PAYLOAD_MAX <= PAYLOAD_SIZE_MAX, f"{PLAN_SIZE_MAX=} {CALL_PAYLOAD_MAX=}"


class Plan(NamedTuple):
    """When a call is due. Times in ns: `due_ns` of the wall clock, `at_ns` of the daemon's monotonic clock."""

    kind: int
    text: int = 0  # hash of the schedule's text; 0 = none
    due_ns: int = 0  # under DAEMON: the expected wall clock at the point; it decides nothing
    at_ns: int = 0  # the deadline as it was planned
    # The first point that a schedule's call is for, on the schedule's clock. Under CALL the due time by the wall clock,
    # if `due_ns` is 0. A retry keeps this field.
    point_ns: int = 0
    last_run_ns: int = 0  # when the last run ended, by the wall clock; 0 = it has not run
    failures: int = 0  # attempts of this run that came before this one
    earlier: int = 0  # deliveries of this attempt before the call was registered with a pause
    phase: int = 0  # CallPhase at which the call goes on
    ends: int = 0  # processes that have ended in this phase
    runs: Runs = ()
    id: str = ""  # empty under WALL and DAEMON: a schedule's id is its name
    error: str = ""  # the error of the last run; empty = it did not fail

    def pack(self) -> bytes:
        """The bytes before the payload."""
        id = self.id.encode()
        error = self.error.encode(errors="replace")[:ERROR_SIZE_MAX].decode(errors="ignore").encode()
        counts = (min(self.failures, COUNT_MAX), min(self.earlier, COUNT_MAX), self.phase)
        head = _HEAD.pack(self.stays, *self[:6], *counts, min(self.ends, ENDS_MAX), len(self.runs), len(id), len(error))
        return head + b"".join(_STRETCH.pack(*stretch) for stretch in self.runs) + id + error

    @property
    def stays(self) -> bool:
        """Whether this call stays when the schedule changes: something has run for it, or it belongs to no schedule."""
        return self.kind == CALL or bool(self.failures or self.ends or self.phase)

    def pause_s(self) -> float:
        """The pause of a call after its processes have ended: 0, 1, 2, 4, ... s, a minute at most."""
        return 0.0 if self.ends < ALONE_FROM else min(2.0 ** (self.ends - ALONE_FROM), PAUSE_S_MAX)

    def is_of(self, schedule: Schedule) -> bool:
        """Whether this call is a point of that schedule."""
        return self.text == text_of(schedule)

    def once(self, id: str) -> Plan:
        """The same call with an id of its own, apart from its schedule."""
        return self._replace(kind=CALL, text=0, due_ns=0, point_ns=self.due_wall_ns, runs=(), id=id)

    @property
    def due_wall_ns(self) -> int:
        """The time for which the call was planned, by the wall clock, also in a retry; 0 = it has only a deadline."""
        return self.due_ns if self.kind == DAEMON else self.point_ns or self.due_ns

    @property
    def due(self) -> datetime | None:
        """The due time that a handler sees. None if the call has only a deadline."""
        return datetime_of(self.due_wall_ns) if self.due_wall_ns else None

    def after_run(self, schedule: Schedule) -> Runs:
        """The points that have run, together with this call's point."""
        return with_run(self.runs, self.point_ns, schedule)


class LastRun(NamedTuple):
    """The end of a call that is given up. The plan in a dead letter is older: it was made before the last attempt."""

    why: str
    at_ns: int = 0  # when the last attempt ended, by the wall clock; 0 = none has begun
    deliveries: int = 0  # of this attempt to members that ran the handler
    ends: int = 0  # processes that have ended in that attempt

    def pack(self) -> bytes:
        """The reason that the daemon keeps: a text, and the numbers after it."""
        numbers = _NUMBERS_BEGIN + " ".join(map(str, self[1:]))
        room = CALL_REASON_SIZE_MAX - len(numbers)
        why = self.why.replace(_NUMBERS_BEGIN, " ").encode(errors="replace")[:room].decode(errors="ignore")
        return (why + numbers).encode()


def last_run_of(reason: bytes) -> LastRun:
    """The end of a call that was given up. Another program's reason is a text without numbers."""
    why, _, numbers = reason.decode(errors="replace").partition(_NUMBERS_BEGIN)
    found = [int(each) for each in numbers.split(" ") if each.isascii() and each.isdigit() and len(each) < 20]
    if len(found) != 3 or found[0] >= WALL_NS_END:
        return LastRun(why)
    return LastRun(why, *found)


def unpack(payload: bytes) -> tuple[Plan, bytes] | None:
    """The plan, and the caller's payload after it. None if there is no plan: another program has made this call."""
    if len(payload) < _HEAD.size:
        return None
    head: tuple[int, ...] = _HEAD.unpack_from(payload)
    stays, kind, text, due_ns, at_ns, point_ns, last_run_ns, failures, earlier, phase, ends = head[:11]
    stretches, id_size, error_size = head[11:]
    ids_at = _HEAD.size + stretches * _STRETCH.size
    error_at = ids_at + id_size
    end = error_at + error_size
    if (
        kind not in (CALL, WALL, DAEMON)
        or phase > CallPhase.ON_FAILURE
        or stretches > STRETCHES_MAX
        or end > len(payload)
    ):
        return None
    runs = tuple(_STRETCH.iter_unpack(payload[_HEAD.size : ids_at]))
    times = [time for stretch in runs for time in stretch]
    if times != sorted(times) or min((due_ns, point_ns, *times)) < 0:
        return None
    try:
        id, error = payload[ids_at:error_at].decode(), payload[error_at:end].decode()
    except UnicodeDecodeError:
        return None
    plan = Plan(kind, text, due_ns, at_ns, point_ns, last_run_ns, failures, earlier, phase, ends, runs, id, error)
    return (plan, payload[end:]) if stays == plan.stays else None


def text_of(schedule: Schedule) -> int:
    """The hash of a schedule's text."""
    return int.from_bytes(blake2b(schedule.text.encode(), digest_size=8).digest(), "little")
