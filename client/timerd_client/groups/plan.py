"""The plan of a call: what stands before its payload. It says when the call is due, by which clock, of which schedule.

    Plan(CALL, due_ns=..)            call_at: by the wall clock; with 0 call_later: at its deadline, whatever the clock
    Plan(WALL, due_ns=.., runs=..)   a point of a cron schedule, and which of its points have run
    Plan(DAEMON, due_ns=.., at_ns=)  a point of a period: `at_ns` on the daemon's monotonic clock

So a worker that has a call knows all that it needs to plan the next one, whoever planned this one. Here is no clock.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final, NamedTuple

from .schedule import Schedule

CALL: Final = 1
WALL: Final = 2
DAEMON: Final = 3
STRETCHES_MAX: Final = 4
WALL_NS_END: Final = 1 << 63
SCHEDULE_SIZE: Final = 9  # so many first bytes are the same in all occurrences of a schedule
_HEAD: Final = struct.Struct("<BQq")  # kind, hash of the schedule's text, due_ns
_AT: Final = struct.Struct("<q")
_STRETCH: Final = struct.Struct("<qq")
PLAN_SIZE: Final = _HEAD.size  # of a call that is no schedule's


class Plan(NamedTuple):
    """When a call is due. Times in ns: `due_ns` of the wall clock, `at_ns` of the daemon's monotonic clock."""

    kind: int
    text: int = 0  # hash of the schedule's text; 0 = none
    due_ns: int = 0  # under DAEMON: what the wall clock was expected to show then; it decides nothing
    at_ns: int = 0
    runs: Runs = ()

    def pack(self) -> bytes:
        """The bytes before the payload."""
        head = _HEAD.pack(self.kind, self.text, self.due_ns)
        if self.kind == DAEMON:
            return head + _AT.pack(self.at_ns)
        return head + b"".join(_STRETCH.pack(*stretch) for stretch in self.runs)

    def is_of(self, schedule: Schedule) -> bool:
        """Whether it is a point of this schedule."""
        return self.text == text_of(schedule)

    def after_run(self, schedule: Schedule) -> Runs:
        """The points that have run, with this one."""
        return with_run(self.runs, self.due_ns, schedule)


def unpack(payload: bytes) -> tuple[Plan, bytes] | None:
    """The plan, and the caller's payload behind it. None if it is no plan: another program has registered this call."""
    if len(payload) < _HEAD.size:
        return None
    kind, text, due_ns = _HEAD.unpack_from(payload)
    rest = payload[_HEAD.size :]
    if kind == CALL:
        return Plan(CALL, 0, due_ns), rest
    if kind == DAEMON and len(rest) == _AT.size:
        return Plan(DAEMON, text, due_ns, *_AT.unpack(rest)), b""
    if kind == WALL and len(rest) % _STRETCH.size == 0 and len(rest) <= STRETCHES_MAX * _STRETCH.size:
        runs = tuple(_STRETCH.iter_unpack(rest))
        ends = [end for stretch in runs for end in stretch]
        if ends == sorted(ends) and due_ns >= 0 and (not ends or ends[0] >= 0):
            return Plan(WALL, text, due_ns, 0, runs), b""
    return None


def text_of(schedule: Schedule) -> int:
    """The hash of a schedule's text."""
    return int.from_bytes(blake2b(schedule.text.encode(), digest_size=8).digest(), "little")


# The points of a cron schedule that have run: stretches of the wall clock, (first, last) in order, in each of which
# every point has run. A clock that only goes forward makes one. Each jump over points makes another one.
Runs = tuple[tuple[int, int], ...]


def next_point(runs: Runs, schedule: Schedule, wall_ns: int) -> int:
    """The first point after that time that has not run."""
    point = schedule.after(wall_ns)
    for first, last in runs:
        if first <= point <= last:
            point = schedule.after(last)
    return point


def with_run(runs: Runs, point: int, schedule: Schedule) -> Runs:
    """The same with one more point. Of too many stretches, the two that are closest become one."""
    stretches = sorted([*runs, (point, point)])
    at = 0
    while at + 1 < len(stretches):
        (first, last), (next_first, next_last) = stretches[at : at + 2]
        if next_first <= last or schedule.after(last) >= next_first:
            stretches[at : at + 2] = [(first, max(last, next_last))]
        else:
            at += 1
    while len(stretches) > STRETCHES_MAX:
        at = min(range(len(stretches) - 1), key=lambda each: stretches[each + 1][0] - stretches[each][1])
        stretches[at : at + 2] = [(stretches[at][0], stretches[at + 1][1])]
    return tuple(stretches)
