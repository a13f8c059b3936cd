"""When periodic work is due: computed points on the daemon's clock (periods) or on the wall clock (cron)."""

from __future__ import annotations

import builtins
import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from timerd_client.groups.plan import CALL, DAEMON, WALL, Plan, unpack
from timerd_client.groups.points import STRETCHES_MAX, Runs, next_point, with_run
from timerd_client.groups.schedule import Every, datetime_of, schedule_of, wall_ns_of
from timerd_shm.declare.errors import InvalidValueError, NotSupportedError

BERLIN = ZoneInfo("Europe/Berlin")


def test_the_points_of_a_period_are_the_same_from_any_start(rng: random.Random) -> None:
    for seconds in (0.2, 1, 60, 86_400, timedelta(minutes=7)):
        schedule = schedule_of(seconds, None, "UTC")
        period_ns = schedule.after(0)
        for _ in range(100):
            at = rng.randrange(2_000_000_000_000_000_000)
            point = schedule.after(at)
            assert at < point <= at + period_ns
            assert point % period_ns == 0
            assert schedule.after(rng.randrange(point - period_ns, point)) == point
            assert schedule.after(point) == point + period_ns


def test_cron_points_only_move_forward_from_any_start(rng: random.Random) -> None:
    for expression in ("*/5 * * * *", "30 2 * * *", "0 3 29 2 *", "15 1,2,3 * * 7"):
        schedule = schedule_of(None, expression, "Europe/Berlin")
        around = wall_ns_of(datetime(2026, 10, 25, tzinfo=UTC))
        for _ in range(50):
            at = around + rng.randrange(5 * 3_600_000_000_000)
            point = schedule.after(at)
            assert point > at
            assert schedule.after(point - 1) == point, "from just before a point, the next point is this point"


@pytest.mark.parametrize(
    ("seconds", "cron", "timezone", "said"),
    [
        (None, None, "UTC", "one of them"),
        (60, "* * * * *", "UTC", "one of them"),
        (0, None, "UTC", "seconds=0"),
        (-1, None, "UTC", "seconds=-1"),
        (math.nan, None, "UTC", "seconds=nan"),
        (True, None, "UTC", "seconds=True"),
        ("60", None, "UTC", "seconds='60'"),
        (None, "61 * * * *", "UTC", "61"),
        (None, "* * *", "UTC", "give minute hour day month weekday, or six fields with the second first"),
        (None, "0 0 31 2 *", "UTC", "31 2"),
        (None, 5, "UTC", "cron=5"),
        (None, "0 3 * * *", "Europe/Atlantis", "Atlantis"),
        (None, "0 3 * * *", "../etc", "etc"),
        (None, "0 3 * * *", None, "timezone=None"),
    ],
)
def test_a_wrong_schedule_is_refused_with_the_reason(seconds: Any, cron: Any, timezone: Any, said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        schedule_of(seconds, cron, timezone)


def test_without_its_package_cron_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(NotSupportedError, match=r"timerd\[cron\]"):
        schedule_of(None, "0 3 * * *", "UTC")
    assert schedule_of(60, None, "UTC").after(0)


def test_a_moment_is_exact_to_the_microsecond() -> None:
    when = datetime(2027, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    assert datetime_of(wall_ns_of(when)) == when
    assert wall_ns_of(when.astimezone(BERLIN)) == wall_ns_of(when)


def test_a_time_zone_is_refused_without_cron() -> None:
    with pytest.raises(InvalidValueError, match=r"timezone='Mars/X' goes with cron="):
        schedule_of(60, None, "Mars/X")


# plans ----------------------------------------------------------------------------------------------------------------


def test_stretches_remember_every_point_that_has_run(rng: random.Random) -> None:
    """Points run in any order. A stretch is a range of points that have run.

    Of too many stretches, the closest two become one: the points between them then count as run, too.
    """
    schedule = Every(10)
    for _ in range(200):
        runs: Runs = ()
        done: set[int] = set()
        now = rng.randrange(5_000)
        for _ in range(rng.randrange(40)):
            point = next_point(runs, schedule, now)
            assert point > now and point not in done
            runs = with_run(runs, point, schedule)
            done.add(point)
            skipped = {each for first, last in runs for each in range(first, last + 1, 10)}
            assert done <= skipped
            assert len(runs) <= STRETCHES_MAX and [*runs] == sorted(runs)
            now = rng.randrange(5_000) if rng.random() < 0.1 else point


def test_a_plan_is_read_as_it_was_written_and_other_bytes_are_no_plan() -> None:
    for plan in (Plan(WALL, 7, 8, runs=((1, 2), (4, 4))), Plan(DAEMON, 7, 8, 9), Plan(WALL, 7, 8)):
        assert unpack(plan.pack()) == (plan, b"")
    call = Plan(
        CALL,
        due_ns=5,
        at_ns=6,
        last_run_ns=7,
        failures=8,
        earlier=3,
        phase=2,
        ends=9,
        id="user-8/\u00e9",
        error="ValueError: no",
    )
    assert unpack(call.pack() + b"payload") == (call, b"payload")
    found = unpack(call._replace(error="\u00e9" * 500).pack())
    assert found is not None and found[0].error == "\u00e9" * 100, "a long error is cut, between characters"
    found = unpack(call._replace(failures=1 << 32, earlier=1 << 40, ends=1 << 9).pack())
    assert found is not None and found[0][6:10] == ((1 << 32) - 1, (1 << 32) - 1, 2, 255), (
        "a count that is too large becomes the largest"
    )
    for wrong in (
        b"",
        b"\x01" * 16,
        b"\x01" * 60,
        call.pack()[:-1],
        Plan(6).pack(),
        Plan(DAEMON, 7, 8, 9).pack()[:-1],
        Plan(WALL, 7, 8, runs=((2, 1),)).pack(),
        Plan(WALL, 7, 8, runs=((1, 5), (4, 6))).pack(),
        Plan(WALL, 7, 8, runs=((-1, 5),)).pack(),
        Plan(WALL, 7, -8).pack(),
        Plan(WALL, 7, 8, runs=((1, 1),) * 5).pack(),
        b"\x01" + Plan(WALL, 7, 8).pack()[1:],
    ):
        assert unpack(wrong) is None, wrong
