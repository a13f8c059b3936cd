"""The points of a schedule that a call stands for, and the next point. No clock is read here.

    due at 10:00, 10:01, 10:02; the call begins at 10:02   it stands for all three: `first_ns` is 10:00, `missed` 2
    the handler returns at 10:04                           10:03 is next, and its call comes at once

So the next call is for the first point after all points that this call stood for, even if that point is past. Times
are on the schedule's clock. A clock that was set back reaches its points again: `Runs` has the points for which a call
has run. schedule.py computes the points themselves.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .schedule import SECOND_NS, Schedule

STRETCHES_MAX: Final = 4
MISSED_MAX: Final = 1_000  # a call counts at most this many missed points: a week has 604,800 seconds
SLACK_NS_MAX: Final = SECOND_NS  # a point may be late by a tenth of the time to the next point, and this much at most

# The points of a cron schedule that have run: stretches of the wall clock, (first, last) in order. Every point of a
# stretch counts as run. A clock that only goes forward makes one stretch. Each jump over points begins another stretch;
# of more than STRETCHES_MAX the two closest become one, with the points between them.
Runs = tuple[tuple[int, int], ...]


class Points(NamedTuple):
    """The points that a call stands for: all that have not run, from `first_ns` until the call begins."""

    first_ns: int
    until_ns: int
    missed: int = 0  # the number of points beside the first one, up to MISSED_MAX


def points_of(runs: Runs, schedule: Schedule, first_ns: int, now_ns: int) -> Points:
    """The points of a call that is due since `first_ns`, and that begins now."""
    until_ns = max(first_ns, now_ns)
    return Points(first_ns, until_ns, count(runs, schedule, first_ns, until_ns))


def in_time(runs: Runs, schedule: Schedule, point_ns: int, now_ns: int, grace_ns: int | None) -> int:
    """`point_ns`, if the grace allows it now; else the next point that the grace allows, or that is still to come."""
    if grace_ns is None:
        return point_ns
    slack_ns = min(SLACK_NS_MAX, (schedule.after(point_ns) - point_ns) // 10)
    latest_ns = now_ns - grace_ns - slack_ns
    return point_ns if point_ns >= latest_ns else next_point(runs, schedule, latest_ns - 1)


def next_point(runs: Runs, schedule: Schedule, after_ns: int) -> int:
    """The first point after `after_ns` that has not run."""
    point = schedule.after(after_ns)
    for first, last in runs:
        if first <= point <= last:
            point = schedule.after(last)
    return point


def count(runs: Runs, schedule: Schedule, after_ns: int, until_ns: int, most: int = MISSED_MAX) -> int:
    """The number of points after `after_ns` and up to `until_ns` that have not run: `most` at most."""
    found = 0
    for first, last in runs:
        found += schedule.count(after_ns, min(first - 1, until_ns), most - found)
        after_ns = max(after_ns, last)
    return found + schedule.count(after_ns, until_ns, most - found)


def with_run(runs: Runs, point: int, schedule: Schedule) -> Runs:
    """The runs with one more point. If there are too many stretches, the two closest stretches become one."""
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
