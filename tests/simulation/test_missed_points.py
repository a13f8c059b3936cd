"""Points of a schedule that were missed for any reason become one call at once, within the schedule's grace.

The tests do a client's steps with the real conductor, on a manual clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from simulation.jobs import Job, pending
from simulation.workers import Failed, Worker
from support.fakes.networks import World
from support.rig.harness import S
from timerd_client.groups.points import MISSED_MAX, count, in_time
from timerd_client.groups.registry import Calls
from timerd_client.groups.schedule import Cron, Every, Schedule
from timerd_client.groups.steps import Call
from timerd_shm.declare.errors import InvalidValueError

MINUTE, HOUR, DAY = 60 * S, 3_600 * S, 86_400 * S
EACH_MINUTE = Cron("* * * * *", ZoneInfo("UTC"))
NIGHTLY = Cron("0 3 * * *", ZoneInfo("UTC"))


def member(world: World, job: Job, schedule: Schedule, **more: Any) -> Worker:
    """A worker that has begun the schedule."""
    worker = Worker(world)
    worker.add("job", job, schedule, **more)
    worker.handle().serve()
    return worker


def run(world: World, workers: list[Worker], for_ns: int, step_ns: int = S) -> None:
    """Let time pass. After each step all workers do what is due."""
    end_ns = world.clock.now_ns() + for_ns
    while world.clock.now_ns() < end_ns:
        world.run(step_ns)
        for worker in workers:
            worker.serve()


def takes(world: World, for_ns: int, starts: list[int], calls: int) -> Callable[[Call], None]:
    """A handler whose first `calls` runs take `for_ns`. `starts` gets all starts, in seconds of the daemon's clock."""

    def handler(call: Call) -> None:
        starts.append(world.clock.now_ns() // S)
        if len(starts) <= calls:
            world.run(for_ns)

    return handler


def found(job: Job, since_s: int = 0) -> list[tuple[int, int]]:
    """For each call: its first point, in seconds after `since_s`, and how many more points it is for."""
    return [(round(call.due.timestamp()) - since_s, call.missed) for call in job.calls if call.due is not None]


def until(world: World, second: int, of: int) -> None:
    """Let time pass until the wall clock shows this second of a minute, an hour or a day (`of` seconds)."""
    world.run((second * S - world.wall_ns()) % (of * S))


# reasons for a missed point ------------------------------------------------------------------------------------------


def test_a_handler_that_is_slower_than_its_period_runs_back_to_back(world: World) -> None:
    job, starts = Job(), list[int]()
    job.during = takes(world, 3 * S, starts, 4)
    worker = member(world, job, Every(2 * S))
    run(world, [worker], 3 * S)
    assert [start - starts[0] for start in starts] == [0, 3, 6, 9, 12]
    assert found(job, found(job)[0][0]) == [(0, 0), (2, 0), (4, 1), (8, 0), (10, 1)]


def test_with_a_grace_of_0_a_slow_handler_leaves_out_what_it_has_missed(world: World) -> None:
    job, starts = Job(), list[int]()
    job.during = takes(world, 3 * S, starts, 4)
    worker = member(world, job, Every(2 * S), grace_ns=0)
    run(world, [worker], 14 * S)
    assert [start - starts[0] for start in starts[:4]] == [0, 4, 8, 12]
    assert {call.missed for call in job.calls} == {0}
    assert worker.inbox.calls_skipped == 4
    assert len(worker.complaints) == 1 and "later than its grace" in worker.complaints[0]


@pytest.mark.parametrize("schedule", [EACH_MINUTE, Every(MINUTE)])
def test_points_that_pass_while_a_handler_runs_are_one_call_at_once(world: World, schedule: Schedule) -> None:
    job = Job()
    worker = member(world, job, schedule)
    until(world, 59, 60)

    def during(call: Call) -> None:
        if len(job.calls) == 1:
            world.run(5 * MINUTE)

    job.during = during
    run(world, [worker], 61 * S)
    first = found(job)[0][0]
    assert found(job, first)[:2] == [(0, 0), (60, 4)], "one call is for the five minutes that have passed"
    run(world, [worker], 2 * MINUTE)
    assert found(job, first)[2][0] == 360 and pending(world) == 1


def test_hours_that_the_clock_skips_in_a_handler_are_one_call(world: World) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE)

    def during(call: Call) -> None:
        if len(job.calls) == 1:
            world.wall_ahead_ns += 3 * HOUR

    job.during = during
    run(world, [worker], MINUTE)
    first = found(job)[0][0]
    assert found(job, first) == [(0, 0), (60, 179)]
    run(world, [worker], 2 * MINUTE)
    assert found(job, first)[2:] == [(181 * 60, 0), (182 * 60, 0)]


def test_nights_without_a_worker_are_one_call_when_a_worker_is_back(world: World) -> None:
    """The first night's call waits for a worker, and the daemon knows its id. So nobody begins a second schedule."""
    job = Job()
    first = member(world, job, NIGHTLY)
    until(world, 86_000, 86_400)
    first.die()
    world.run(3 * DAY + 13 * HOUR)
    heirs = [member(world, job, NIGHTLY) for _ in range(2)]
    run(world, heirs, 5 * S)
    ((due, missed),) = found(job)
    assert (due % 86_400, missed) == (3 * 3_600, 3)
    assert pending(world) == 1
    until(world, 3 * 3_600, 86_400)
    run(world, heirs, 2 * S)
    assert found(job)[1:] == [(due + 4 * 86_400, 0)]


def test_a_jump_between_two_calls_is_one_call_that_counts_what_was_missed(world: World) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE)
    run(world, [worker], MINUTE)
    first = found(job)[0][0]
    world.wall_ahead_ns += 10 * MINUTE
    run(world, [worker], 2 * S)
    assert found(job, first) == [(0, 0), (60, 9)]


@pytest.mark.parametrize("schedule", [Every(S), Cron("* * * * * *", ZoneInfo("UTC"))])
def test_no_more_than_1000_missed_points_are_counted(world: World, schedule: Schedule) -> None:
    job = Job()
    first = member(world, job, schedule)
    run(world, [first], 2 * S)
    before = found(job)[-1][0]
    first.die()
    world.run(50 * MINUTE)
    heir = member(world, job, schedule)
    run(world, [heir], 3 * S)
    due = found(job, before)[-4:]
    assert due[0] == (1, MISSED_MAX)
    assert [missed for _, missed in due[1:]] == [0, 0, 0] and due[1][0] >= 3_000


def test_a_retry_is_for_the_same_points_and_for_those_that_have_passed_since(world: World) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE, retries=1, backoff_s=150.0)

    def during(call: Call) -> None:
        if len(job.calls) == 1:
            raise Failed

    job.during = during
    until(world, 59, 60)
    run(world, [worker], 4 * MINUTE)
    first = found(job)[0][0]
    assert found(job, first) == [(0, 0), (0, 2), (180, 0)]
    assert [call.attempt for call in job.calls] == [1, 2, 1]


def test_a_clock_that_was_set_back_comes_again_to_points_that_had_no_call_of_their_own(world: World) -> None:
    """A clock that is wrong for a moment must not silence a schedule."""
    job = Job()
    worker = member(world, job, EACH_MINUTE)
    run(world, [worker], MINUTE)
    first = found(job)[0][0]
    world.wall_ahead_ns += HOUR
    run(world, [worker], 2 * S)
    world.wall_ahead_ns -= HOUR
    run(world, [worker], 5 * MINUTE)
    assert found(job, first)[:2] == [(0, 0), (60, 59)]
    assert [due for due, _ in found(job, first)][2:] == [120, 180, 240, 300]


# grace ----------------------------------------------------------------------------------------------------------------


def test_a_nightly_run_of_last_week_does_not_come_at_noon(world: World) -> None:
    job = Job()
    first = member(world, job, NIGHTLY, grace_ns=2 * HOUR)
    until(world, 86_000, 86_400)
    first.die()
    world.run(3 * DAY + 13 * HOUR)
    heir = member(world, job, NIGHTLY, grace_ns=2 * HOUR)
    run(world, [heir], MINUTE)
    assert job.calls == [] and heir.inbox.calls_skipped == 4
    until(world, 3 * 3_600, 86_400)
    run(world, [heir], 3 * S)  # silent all night, the heir asks what it holds: the daemon may first answer "not yet"
    ((due, missed),) = found(job)
    assert (due % 86_400, missed) == (3 * 3_600, 0)


def test_points_within_the_grace_remain(world: World) -> None:
    job = Job()
    first = member(world, job, EACH_MINUTE, grace_ns=3 * MINUTE)
    until(world, 30, 60)
    first.die()
    begin = world.wall_ns() // S
    world.run(10 * MINUTE)
    heir = member(world, job, EACH_MINUTE, grace_ns=3 * MINUTE)
    run(world, [heir], S)
    assert found(job, begin) == [(7 * 60 + 30, 2)]
    assert heir.inbox.calls_skipped == 7


@pytest.mark.parametrize(("late_ns", "runs"), [(S // 10, 1), (S - S // 10, 1), (2 * S, 0)])
def test_a_call_that_is_a_little_late_is_in_time(world: World, late_ns: int, runs: int) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE, grace_ns=0)
    until(world, 59, 60)
    world.run(S + late_ns)
    worker.serve()
    assert len(job.calls) == runs
    assert worker.inbox.calls_skipped == 1 - runs


def test_a_retry_comes_whatever_the_grace(world: World) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE, retries=1, backoff_s=20.0, grace_ns=0)

    def during(call: Call) -> None:
        if call.attempt == 1:
            raise Failed

    job.during = during
    until(world, 59, 60)
    run(world, [worker], 40 * S)
    assert [call.attempt for call in job.calls] == [1, 2]


def test_a_call_that_a_caller_has_put_off_comes_whatever_the_grace(world: World) -> None:
    job = Job()
    worker = member(world, job, Every(HOUR), grace_ns=0)
    worker.issue(worker.calls.commands.reschedule("job", 2 * 3_600, 8))
    run(world, [worker], 2 * HOUR + S, MINUTE)
    assert len(job.calls) == 1 and job.calls[0].missed >= 1


@pytest.mark.parametrize("grace", [-1, "60", True, float("nan"), timedelta(seconds=-1)])
def test_a_wrong_grace_is_refused_by_name(grace: Any) -> None:
    with pytest.raises(InvalidValueError, match="grace="):
        Calls().every("job", seconds=60, grace=grace)


def test_a_grace_is_seconds_or_a_timedelta_and_belongs_to_schedules() -> None:
    calls = Calls()
    calls.every("seconds", seconds=60, grace=0.5)(lambda call: None)
    calls.every("timedelta", seconds=60, grace=timedelta(minutes=1))(lambda call: None)
    calls.every("none", seconds=60)(lambda call: None)
    assert {name: job.grace_ns for name, job in calls} == {"seconds": S // 2, "timedelta": MINUTE, "none": None}


# counting -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        Every(7),
        Cron("*/30 * * * *", ZoneInfo("Europe/Berlin")),
        Cron("30 2 * * *", ZoneInfo("Europe/Berlin")),
        Cron("0 0 29 2 *", ZoneInfo("UTC")),
    ],
)
def test_points_are_counted_as_if_one_by_one(schedule: Schedule, rng: random.Random) -> None:
    span = 500 if isinstance(schedule, Every) else 3 * DAY
    for _ in range(50):
        # Around the night in which clocks go back, and the night in which they go forward.
        start = rng.choice((1_793_000_000, 1_774_700_000)) * S + rng.randrange(-span, span)
        end = start + rng.randrange(-span // 10, span)
        most = rng.choice((3, 1_000))
        points, at = list[int](), start
        while (at := schedule.after(at)) <= end and len(points) < most:
            points.append(at)
        assert schedule.count(start, end, most) == len(points)
        stretches = sorted(rng.sample(points, 4)) if len(points) >= 4 else []
        runs = tuple(zip(stretches[::2], stretches[1::2], strict=True))
        left = [point for point in points if not any(first <= point <= last for first, last in runs)]
        assert most == 3 or count(runs, schedule, start, end) == len(left)


def test_the_first_point_that_is_not_too_late_is_the_one_that_a_walk_finds(rng: random.Random) -> None:
    schedule = Every(10 * S)
    for _ in range(200):
        point = schedule.after(rng.randrange(HOUR))
        now = point + rng.randrange(HOUR)
        grace = rng.randrange(HOUR)
        at = point
        while now - at > grace + S:
            at = schedule.after(at)
        assert in_time((), schedule, point, now, grace) == at
        assert in_time((), schedule, point, now, None) == point
