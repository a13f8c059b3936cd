"""Schedules: points on a clock, which every process computes alike. No clock is read here.

    Every(60 s)            the multiples of 60 s on the daemon's monotonic clock, which nobody can set
    Cron("0 3 * * *", tz)  03:00 in that time zone, with the rule of Debian's cron for nights when the clocks change

`after(t)` is the first point after t. points.py says which points a call stands for.
Times are nanoseconds: of the daemon's CLOCK_MONOTONIC, or (`by_wall`) since the epoch, as `time.time_ns()`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Protocol

from timerd_client.arguments import shown
from timerd_shm.declare.errors import InvalidValueError, NotSupportedError
from timerd_shm.declare.limits import TIMEOUT_NS_MAX

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

PERIOD_NS_MIN: Final = 1_000_000  # a tick
SECOND_NS: Final = 1_000_000_000
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_SECOND: Final = timedelta(seconds=1)
_FAR: Final = 2 * 86_400  # more than any zone's clocks were ever moved
_STRETCH_MIN: Final = 900  # no two changes of a zone's offset are closer than this
_RANGE_OF_ONE: Final = re.compile(r"\b(\w+)-\1/\d+")  # cronsim reads 3-3/2 as 3/2, which goes on after 3


class Schedule(Protocol):
    """Points in time, without end."""

    @property
    def by_wall(self) -> bool:
        """Whether the points are on the wall clock; otherwise they are on the daemon's monotonic clock."""

    @property
    def text(self) -> str:
        """A text that is different for different schedules."""

    def after(self, now_ns: int) -> int:
        """The first point after `now_ns`."""

    def count(self, after_ns: int, until_ns: int, most: int) -> int:
        """The number of points after `after_ns`, up to `until_ns`: `most` at most."""


class Every:
    """The multiples of a period, on the daemon's monotonic clock."""

    by_wall = False

    def __init__(self, period_ns: int) -> None:
        self._period_ns = period_ns

    @property
    def text(self) -> str:
        return f"every {self._period_ns} ns"

    def after(self, now_ns: int) -> int:
        """The first multiple after `now_ns`."""
        return (now_ns // self._period_ns + 1) * self._period_ns

    def count(self, after_ns: int, until_ns: int, most: int) -> int:
        """Computes the number without a loop."""
        return max(0, min(until_ns // self._period_ns - after_ns // self._period_ns, most))


class Cron:
    """The points of a cron expression with five fields, or six with the seconds first; needs the package cronsim.

    Debian's rule holds when clocks change. If the second, the minute or the hour begins with `*`, the expression
    follows real time: it is due whenever the local time matches. Any other expression is due once for each local time
    that matches: at the end of the gap if the clocks skip that time, and at the first moment if the clocks show it
    twice.

    cronsim gets local times without a zone here. The zone's changes are found by its offset from UTC.
    """

    by_wall = True

    def __init__(self, expression: str, zone: ZoneInfo) -> None:
        """Raises InvalidValueError, NotSupportedError (cronsim is not installed)."""
        try:
            import cronsim
        except ImportError:
            raise NotSupportedError(
                f"cron={expression!r} needs the package cronsim: pip install 'timerd[cron]', or give seconds="
            ) from None
        self._expression = expression
        self._zone = zone
        fields = _RANGE_OF_ONE.sub(r"\1", expression).split()
        self._follows_real_time = any(field.startswith("*") for field in fields[:-3])
        self._matches = partial(cronsim.CronSim, " ".join(fields))
        try:
            self.after(0)
        except cronsim.CronSimError as error:
            raise InvalidValueError(
                f"cron={expression!r}: {error}; give minute hour day month weekday, or six fields with the second first"
            ) from None
        except StopIteration:
            raise InvalidValueError(f"cron={expression!r} is never due") from None

    @property
    def text(self) -> str:
        return f"cron {' '.join(self._expression.split())} {self._zone.key}"

    def after(self, now_ns: int) -> int:
        """The first point after `now_ns`."""
        return next(self._after(now_ns))

    def count(self, after_ns: int, until_ns: int, most: int) -> int:
        """Counts the points one by one."""
        if until_ns <= after_ns:
            return 0
        return sum(1 for _ in islice(takewhile(lambda point: point <= until_ns, self._after(after_ns)), most))

    def _after(self, now_ns: int) -> Iterator[int]:
        """All points after `now_ns`, in order."""
        points = self._in_real_time if self._follows_real_time else self._once_each
        return (point * SECOND_NS for point in points(now_ns // SECOND_NS))

    # Below, times are in seconds since the epoch, and local times are datetimes without a zone.

    def _once_each(self, now: int) -> Iterator[int]:
        local = datetime.fromtimestamp(now, self._zone)
        if local.fold:  # the clocks show these local times for the second time: go on after the last of them
            first = round(local.replace(fold=0).timestamp())
            local = _local(self._next_change(first, now) or now, self._offset(first)) - _SECOND
        for match in self._matches(local.replace(tzinfo=None, fold=0)):
            point = self._first_moment(match)
            if point > now:  # otherwise this point is in the same gap as the last point
                now = point
                yield point

    def _in_real_time(self, now: int) -> Iterator[int]:
        steady, offset = now, self._offset(now)  # the clocks have this offset from `steady` on
        local: datetime | None = _local(now, offset)
        while local is not None:
            matches, local = self._matches(local), None
            for match in matches:
                point = _seconds(match) - offset
                change = self._next_change(steady, min(point, steady + _FAR))
                if change is None and point <= steady + _FAR:
                    yield point
                    steady = point
                    continue
                # The offset changes here. Or the match is far away, and nothing is due until shortly before it.
                steady = point - _FAR if change is None else change
                offset = self._offset(steady)
                local = _local(steady, offset) - _SECOND
                break

    def _first_moment(self, local: datetime) -> int:
        """The moment at which the clocks show this local time first, or skip it."""
        moment = round(local.replace(tzinfo=self._zone).timestamp())
        skipped = self._offset(moment) - (_seconds(local) - moment)
        return moment if skipped <= 0 else self._next_change(moment - skipped, moment) or moment

    def _next_change(self, after: int, until: int) -> int | None:
        """The first moment after `after`, and up to `until`, with another offset from UTC; None if there is none."""
        offset = self._offset(after)
        while after < until:
            end = min(after + _STRETCH_MIN, until)
            if self._offset(end) != offset:
                return bisect_left(range(end), True, after, end, key=lambda at: self._offset(at) != offset)
            after = end
        return None

    def _offset(self, at: int) -> int:
        """Local time minus UTC, in seconds."""
        offset = datetime.fromtimestamp(at, self._zone).utcoffset()
        return 0 if offset is None else round(offset.total_seconds())


def _local(at: int, offset: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=at + offset)


def _seconds(local: datetime) -> int:
    return round((local - datetime(1970, 1, 1)).total_seconds())


def schedule_of(seconds: object, cron: object, timezone: object) -> Schedule:
    """The schedule of `every()`; raises InvalidValueError, NotSupportedError."""
    if (seconds is None) == (cron is None):
        raise InvalidValueError(f"seconds={shown(seconds)}, cron={shown(cron)}: give one of them")
    if cron is not None:
        if not isinstance(cron, str) or not isinstance(timezone, str):
            raise InvalidValueError(
                f"cron={shown(cron)}, timezone={shown(timezone)}: give strings, like '0 3 * * *' and 'UTC'"
            )
        from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

        try:
            zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidValueError(
                f"timezone={shown(timezone)} is not known here: give a name like 'Europe/Berlin', or install tzdata"
            ) from None
        return Cron(cron, zone)
    if timezone != "UTC":
        raise InvalidValueError(
            f"timezone={shown(timezone)} goes with cron=; seconds= count on the daemon's monotonic clock"
        )
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidValueError(f"seconds={shown(seconds)}: give an int, a float or a timedelta")
    if not PERIOD_NS_MIN / 1e9 <= seconds <= TIMEOUT_NS_MAX / 1e9:  # also refuses NaN
        raise InvalidValueError(
            f"seconds={shown(seconds)} is not within {PERIOD_NS_MIN / 1e9} to {TIMEOUT_NS_MAX / 1e9:.0f}"
        )
    return Every(round(seconds * 1e9))


def wall_ns_of(when: object) -> int:
    """An aware datetime in ns since the epoch, exactly; raises InvalidValueError."""
    if not isinstance(when, datetime):
        raise InvalidValueError(f"when={shown(when)} is {type(when).__name__}; give a datetime")
    if when.utcoffset() is None:
        raise InvalidValueError(
            f"when={shown(when)} has no time zone, so which moment it means depends on the reader: "
            "datetime.now(UTC) + ..., or when.astimezone()"
        )
    return (when - _EPOCH) // timedelta(microseconds=1) * 1_000


def datetime_of(wall_ns: int) -> datetime:
    """The moment in UTC."""
    return _EPOCH + timedelta(microseconds=wall_ns // 1_000)
