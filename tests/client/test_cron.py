"""Cron lines: when each is due, also where clocks change. Brute force over all moments is the judge.

By Debian's rule a line whose second, minute or hour begins with `*` follows real time. Any other line is due once for
each local time. If clocks skip this time, the line is due right after the gap; if the time comes twice (a fold), the
line is due at the first.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest

from timerd_client.groups.schedule import Schedule, datetime_of, schedule_of, wall_ns_of

EPOCH = datetime(1970, 1, 1)
SECOND_NS = 1_000_000_000
MINUTE, HOUR, DAY = 60, 3_600, 86_400
RANGES = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
FIRST, LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2025, 2028))


def points(line: str, zone: str, start: str, number: int) -> list[str]:
    """The first points after the local time `start`, as local times."""
    schedule, there = schedule_of(None, line, zone), ZoneInfo(zone)
    found, at = [], wall_ns_of(datetime.fromisoformat(start).replace(tzinfo=there))
    for _ in range(number):
        at = schedule.after(at)
        found.append(datetime_of(at).astimezone(there).strftime("%m-%d %H:%M:%S %z"))
    return found


# examples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *"])
def test_a_daily_line_is_due_right_after_a_gap_and_once_in_a_fold(line: str) -> None:
    assert points(line, "Europe/Berlin", "2026-03-28 00:00", 3) == [
        "03-28 02:30:00 +0100",
        "03-29 03:00:00 +0200",
        "03-30 02:30:00 +0200",
    ]
    assert points(line, "Europe/Berlin", "2026-10-24 12:00", 2) == ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"]


@pytest.mark.parametrize("line", ["*/30 * * * *", "0 */30 * * * *"])
def test_a_wildcard_line_follows_real_time(line: str) -> None:
    assert points(line, "Europe/Berlin", "2026-03-29 01:15", 2) == ["03-29 01:30:00 +0100", "03-29 03:00:00 +0200"]
    assert points(line, "Europe/Berlin", "2026-10-25 01:45", 5) == [
        "10-25 02:00:00 +0200",
        "10-25 02:30:00 +0200",
        "10-25 02:00:00 +0100",
        "10-25 02:30:00 +0100",
        "10-25 03:00:00 +0100",
    ]


@pytest.mark.parametrize(
    ("line", "zone", "start", "expected"),
    [
        ("*/15 3 * * *", "Pacific/Chatham", "2026-04-05 03:30", ["04-05 03:00:00 +1245", "04-05 03:15:00 +1245"]),
        ("0 0 0 * * *", "America/Santiago", "2026-09-05 12:00", ["09-06 01:00:00 -0300", "09-07 00:00:00 -0300"]),
        ("0 0 0 * * *", "Africa/Cairo", "2026-04-23 12:00", ["04-24 01:00:00 +0300", "04-25 00:00:00 +0300"]),
        ("0 */6 * * *", "Australia/Lord_Howe", "2026-04-05 00:00", ["04-05 06:00:00 +1030", "04-05 12:00:00 +1030"]),
        ("0 */6 * * *", "Australia/Lord_Howe", "2026-10-04 00:00", ["10-04 06:00:00 +1100", "10-04 12:00:00 +1100"]),
        ("*/10 5 * * *", "Australia/Lord_Howe", "2026-04-05 00:00", ["04-05 05:00:00 +1030", "04-05 05:10:00 +1030"]),
        ("*/15 1 * * 0", "America/Santiago", "2026-09-05 12:00", ["09-06 01:00:00 -0300", "09-06 01:15:00 -0300"]),
        ("0 */2 * * 0", "America/Havana", "2026-03-07 12:00", ["03-08 02:00:00 -0400", "03-08 04:00:00 -0400"]),
    ],
)
def test_zones_with_unusual_changes(line: str, zone: str, start: str, expected: list[str]) -> None:
    assert points(line, zone, start, len(expected)) == expected


def test_a_range_of_one_value_with_a_step_is_that_value() -> None:
    assert points("0 3-3/2 * * *", "UTC", "2026-01-01", 2) == ["01-01 03:00:00 +0000", "01-02 03:00:00 +0000"]
    assert points("0 3 * jan-jan/2 Mon-Mon/2", "UTC", "2026-01-27", 1) == ["01-04 03:00:00 +0000"]


def test_the_first_of_six_fields_is_for_seconds() -> None:
    at = wall_ns_of(datetime(2026, 10, 25, tzinfo=UTC))
    schedule = schedule_of(None, "*/20 * * * * *", "UTC")
    assert [schedule.after(at) - at, schedule.after(at + 20 * SECOND_NS) - at] == [20 * SECOND_NS, 40 * SECOND_NS]


def test_after_a_moment_within_a_second_the_next_point_is_the_next_whole_second() -> None:
    schedule = schedule_of(None, "* * * * * *", "Europe/Berlin")
    assert schedule.after(5 * SECOND_NS - 1) == 5 * SECOND_NS
    assert schedule.after(5 * SECOND_NS) == schedule.after(5 * SECOND_NS + 1) == 6 * SECOND_NS


def test_a_rare_line_is_found_over_years_of_changes() -> None:
    for line in ("0 3 29 2 *", "* 3 29 2 *"):
        assert points(line, "Europe/Berlin", "2025-01-01", 1) == ["02-29 03:00:00 +0100"]


# brute force ----------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A cron line, and per field the values that match."""

    text: str
    values: list[set[int]]  # second, minute, hour, day, month, weekday (Sunday is 0)
    step: int  # seconds between two moments at which the line can be due

    def matches(self, local: datetime) -> bool:
        seconds, minutes, hours, days, months, weekdays = self.values
        if local.minute not in minutes or local.hour not in hours or local.second not in seconds:
            return False
        day, weekday = local.day in days, local.isoweekday() % 7 in weekdays
        both = any(field.startswith("*") for field in (self.text.split()[-3], self.text.split()[-1]))
        return local.month in months and (day and weekday if both else day or weekday)

    def due(self, window: list[tuple[int, datetime]]) -> list[int]:
        """The moments of a window at which the line is due."""
        if any(field.startswith("*") for field in self.text.split()[:-3]):
            return [at for at, local in window if self.matches(local)]
        step = timedelta(seconds=self.step)
        found, newest = [], window[0][1] - step
        for at, local in window:
            if any(self.matches(local - step * back) for back in range((local - newest) // step)):
                found.append(at)
            newest = max(newest, local)
        return found


def drawn(rng: random.Random, *, seconds: bool) -> Line:
    """A random line that is often due within two days. It has no names, such as `jan`: `values_of` reads numbers."""
    fields = [drawn_field(rng, *RANGES[number]) for number in range(3)]
    day, month, weekday = ("*", drawn_day(rng), "*/2"), ("*", "1-12", "*/1"), ("*", "*/2", "0-6")
    fields += [drawn_one(rng, *day, low=1, high=31), drawn_one(rng, *month, low=1, high=12)]
    fields.append(drawn_one(rng, *weekday, low=0, high=6))
    texts, values = [text for text, _ in fields], [found for _, found in fields]
    if not seconds:
        texts, values[0] = texts[1:], {0}
    return Line(" ".join(texts), values, 1 if seconds else MINUTE)


def drawn_day(rng: random.Random) -> str:
    low = rng.randint(1, 20)
    return f"{low}-{rng.randint(low, 31)}"


def drawn_one(rng: random.Random, *texts: str, low: int, high: int) -> tuple[str, set[int]]:
    text = rng.choices(texts, (6, 1, 1))[0]
    return text, values_of(text, low, high)


def drawn_field(rng: random.Random, low: int, high: int) -> tuple[str, set[int]]:
    some = sorted(rng.sample(range(low, high + 1), 3))
    forms = ["*", "*/{s}", "{a}", "{a}-{b}", "{a}-{b}/{s}", "{a}-{a}/{s}", "{a},{b},{c}", "{a}-{b},{c}"]
    text = rng.choice(forms).format(a=some[0], b=some[1], c=some[2], s=rng.choice((1, 2, 3, 5, 7, 15)))
    return text, values_of(text, low, high)


def values_of(text: str, low: int, high: int) -> set[int]:
    found = set[int]()
    for part in text.split(","):
        ends, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if ends == "*" else ends).partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def offset(zone: ZoneInfo, at: int) -> timedelta:
    return datetime.fromtimestamp(at, zone).utcoffset() or timedelta()


def changes(zone: ZoneInfo) -> Iterator[int]:
    """The last full hour before each change of the zone's offset within the three years."""
    offsets = ((at, offset(zone, at)) for at in range(FIRST, LAST, HOUR))
    return (before[0] for before, after in itertools.pairwise(offsets) if before[1] != after[1])


def moments(zone: ZoneInfo, around: int, reach: int, step: int) -> list[tuple[int, datetime]]:
    """The moments of a window, each with the local time."""
    return [
        (at, EPOCH + timedelta(seconds=at) + offset(zone, at)) for at in range(around - reach, around + reach, step)
    ]


def compare(line: Line, name: str, window: list[tuple[int, datetime]], rng: random.Random) -> None:
    """Compare the schedule's points in a window with `line.due`: one after the other, and from random moments on."""
    schedule: Schedule = schedule_of(None, line.text, name)
    first, last = window[0][0], window[-1][0]
    due = [at for at in line.due(window) if at > first + 3 * HOUR]  # the window may begin in a fold
    found, at = list[int](), (first + 3 * HOUR) * SECOND_NS
    while len(found) <= len(due) + 1 and (at := schedule.after(at)) <= last * SECOND_NS:
        found.append(at // SECOND_NS)
    assert found == due, f"{line.text!r} in {name}"
    for _ in range(5):
        start = rng.randrange(first + 3 * HOUR, last)
        following = next((each for each in due if each > start), None)
        point = schedule.after(start * SECOND_NS) // SECOND_NS
        assert point == following if following is not None else point > last, f"{line.text!r} in {name} from {start}"


def play(names: list[str], rng: random.Random, *, lines: int, windows: int) -> int:
    """Compare random lines in these zones, around changes of their offsets. Returns the number of lines."""
    compared = 0
    for name in names:
        zone = ZoneInfo(name)
        found = list(changes(zone)) or [rng.randrange(FIRST, LAST, DAY)]
        for around in rng.sample(found, min(windows, len(found))):
            minutes, seconds = moments(zone, around, 36 * HOUR, MINUTE), None
            for number in range(lines):
                line = drawn(rng, seconds=number % 4 == 3)
                if line.step == 1:
                    seconds = seconds or moments(zone, around, 4 * HOUR, 1)
                compare(line, name, seconds if line.step == 1 and seconds else minutes, rng)
                compared += 1
    return compared


@pytest.mark.long
def test_random_lines_are_due_when_brute_force_finds_them_due(rng: random.Random) -> None:
    unusual = ["Australia/Lord_Howe", "Pacific/Chatham", "America/Santiago", "Africa/Casablanca", "Africa/Cairo"]
    names = [*unusual, *rng.sample(sorted(available_timezones()), 5)]
    assert play(names, rng, lines=8, windows=1) == 80


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_random_lines_on_all_change_days_of_all_zones(rng: random.Random) -> None:
    assert play(sorted(available_timezones()), rng, lines=4, windows=1_000) > 3_000
