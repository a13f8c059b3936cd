"""The wall clock jumps. A schedule with a period goes on. A cron schedule makes one call for all points that it missed.

No point of a cron schedule runs twice. The tests do a client's steps with the real conductor, on a manual clock.
"""

from __future__ import annotations

import random
from collections import Counter
from zoneinfo import ZoneInfo

import pytest

from simulation.jobs import Job, pending
from simulation.workers import Worker
from support.fakes.networks import World
from support.rig.harness import S
from support.suite.tiers import in_tiers
from timerd_client.groups.schedule import Cron, Every, Schedule
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import OpState

MINUTE, HOUR = 60 * S, 3_600 * S
EACH_SECOND = Cron("* * * * * *", ZoneInfo("UTC"))
EACH_MINUTE = Cron("* * * * *", ZoneInfo("UTC"))


def member(world: World, job: Job, schedule: Schedule) -> Worker:
    """A worker that has begun the schedule."""
    worker = Worker(world)
    worker.add("job", job, schedule)
    worker.handle().serve()
    return worker


def run(world: World, workers: list[Worker], for_ns: int) -> None:
    """Let time pass. Every second all workers do what is due."""
    for _ in range(for_ns // S):
        world.run(S)
        for worker in workers:
            worker.serve()


def jump(world: World, by_ns: int) -> None:
    """Somebody sets the wall clock."""
    world.wall_ahead_ns += by_ns


def deadline(world: World) -> int:
    """The deadline of the one pending operation."""
    (found,) = [each.deadline_ns for each in world.rig.arena.records(Region.OPS) if each.state == OpState.PENDING]
    return int(found)


def seconds(job: Job) -> list[int]:
    """The points for which the handler was called, in seconds since the epoch."""
    return [round(call.due.timestamp()) for call in job.calls if call.due is not None]


def now_s(world: World) -> int:
    return world.wall_ns() // S


def once_each(job: Job) -> bool:
    return max(Counter(seconds(job)).values()) == 1


# seconds= -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_ns", [HOUR, -HOUR])
def test_a_wall_clock_that_is_wrong_for_two_seconds_does_not_silence_a_period(world: World, by_ns: int) -> None:
    job = Job()
    workers = [member(world, job, Every(S)) for _ in range(3)]
    run(world, workers, 3 * S)
    jump(world, by_ns)
    run(world, workers, 2 * S)
    jump(world, -by_ns)
    before = len(job.calls)
    run(world, workers, 10 * S)
    assert len(job.calls) - before == 10
    assert pending(world) == 1


def test_a_period_keeps_its_phase_over_restarts_of_workers_and_daemon(world: World) -> None:
    """The points are the multiples of the period on the daemon's monotonic clock, whatever the wall clock shows."""
    job = Job()
    worker = member(world, job, Every(7 * S))
    for act in ("worker", "daemon", "clock", "worker"):
        assert deadline(world) % (7 * S) == 0, act
        run(world, [worker], 24 * S)
        match act:
            case "worker":
                worker.die()
                world.run(3 * S)
                worker = member(world, job, Every(7 * S))
            case "daemon":
                world.restart()
                world.until_quiet()
            case "clock":
                jump(world, 1_234_567_890)
    assert len(job.calls) >= 12
    assert {call.lateness_ns < S for call in job.calls} == {True}


# cron -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 4])
def test_after_a_jump_forward_one_call_is_for_all_missed_points(world: World, workers: int) -> None:
    job = Job()
    members = [member(world, job, EACH_MINUTE) for _ in range(workers)]
    run(world, members, 2 * MINUTE)
    before, missed = len(job.calls), now_s(world) // 60 * 60 + 60
    jump(world, 3 * HOUR)
    run(world, members, 2 * S)
    assert seconds(job)[before:] == [missed]
    run(world, members, 2 * MINUTE)
    assert len(job.calls) == before + 3
    assert seconds(job)[-1] == now_s(world) // 60 * 60
    assert pending(world) == 1


@pytest.mark.long
@pytest.mark.parametrize(("back_ns", "workers"), in_tiers([(S, 1), (S, 4), (HOUR, 1), (HOUR, 4)], 3))
def test_after_a_jump_back_no_point_runs_twice(world: World, back_ns: int, workers: int) -> None:
    job = Job()
    members = [member(world, job, EACH_MINUTE) for _ in range(workers)]
    run(world, members, back_ns // MINUTE * MINUTE + 5 * MINUTE)
    last = seconds(job)[-1]
    assert last == now_s(world), "the clock must go back just after a point"
    jump(world, -back_ns)
    run(world, members, back_ns + 5 * MINUTE)
    assert once_each(job)
    assert seconds(job)[-5:] == [last + 60 * each for each in range(1, 6)]
    assert pending(world) == 1


def test_a_clock_that_is_wrong_for_two_seconds_does_not_silence_a_cron_schedule(world: World) -> None:
    """Points that ran while the clock was wrong do not run again when their time comes."""
    job = Job()
    members = [member(world, job, EACH_SECOND) for _ in range(2)]
    run(world, members, 5 * S)
    before = now_s(world)
    jump(world, 5 * MINUTE)
    run(world, members, 3 * S)
    jump(world, -5 * MINUTE)
    run(world, members, 10 * S)
    assert len([each for each in seconds(job) if before < each <= before + 13]) >= 9
    run(world, members, 5 * MINUTE + 10 * S)
    assert once_each(job)
    ran = set(seconds(job))
    assert ran >= set(range(before + 6, before + 5 * 60 + 15))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_worker_that_starts_after_a_jump_forward_makes_the_missed_call(world: World, restarts: bool) -> None:
    job = Job()
    only = member(world, job, EACH_MINUTE)
    run(world, [only], MINUTE)
    before, missed = len(job.calls), now_s(world) // 60 * 60 + 60
    only.die()
    world.run(S)
    jump(world, 30 * 24 * HOUR)
    if restarts:
        world.restart()
        world.until_quiet()
    heir = member(world, job, EACH_MINUTE)
    run(world, [heir], S)
    assert seconds(job)[before:] == [missed]
    run(world, [heir], 3 * MINUTE)
    assert len(job.calls) == before + 4


def test_a_worker_that_starts_after_a_jump_back_goes_on_and_runs_no_point_twice(world: World) -> None:
    """The clock was a day ahead when the schedule began. The pending call is a day away, and must not stay there."""
    job = Job()
    jump(world, 24 * HOUR)
    first = member(world, job, EACH_MINUTE)
    run(world, [first], 5 * MINUTE)
    first.die()
    world.run(S)
    jump(world, -24 * HOUR)
    heir = member(world, job, EACH_MINUTE)
    before = len(job.calls)
    run(world, [heir], 5 * MINUTE)
    assert len(job.calls) == before + 5
    assert once_each(job)


def test_a_new_worker_does_not_run_a_pending_point_early(world: World) -> None:
    job = Job()
    first = member(world, job, EACH_MINUTE)
    run(world, [first], MINUTE - now_s(world) % 60 * S + 30 * S)
    before = len(job.calls)
    others = [member(world, job, EACH_MINUTE) for _ in range(2)]
    run(world, [first, *others], 29 * S)
    assert len(job.calls) == before
    run(world, [first, *others], S)
    assert len(job.calls) == before + 1
    assert not any(worker.complaints for worker in (first, *others))


def test_a_jump_while_a_handler_runs_is_found_when_it_returns(world: World) -> None:
    job = Job()
    worker = member(world, job, EACH_MINUTE)
    job.during = lambda call: jump(world, -10 * MINUTE) if len(job.calls) == 12 else None
    run(world, [worker], 25 * MINUTE)
    assert once_each(job)
    assert len(job.calls) == 15, "12 calls until the jump back, and 3 after it, were expected"


def test_no_point_runs_twice_and_none_is_kept_back_however_the_clock_jumps(rng: random.Random) -> None:
    """Workers come, go and stand still; daemons restart. At the end, the schedule runs all points that have not run.

    But a schedule keeps only four stretches of points that have run (points.py). If the jumps make more, it counts the
    points between two stretches as run.
    """
    world = World(clients=64)
    world.until_quiet()
    job = Job()
    members = [member(world, job, EACH_SECOND)]
    for _ in range(60):
        match rng.randrange(6):
            case 0:
                members.append(member(world, job, EACH_SECOND))
            case 1 if members:
                members.pop(rng.randrange(len(members))).die()
            case 2:
                world.restart()
                world.until_quiet()
            case 3 | 4:
                jump(world, round(rng.choice((-1, 1)) * 2 ** rng.uniform(0, 14) * S))
        serving = [each for each in members if rng.random() < 0.9]
        run(world, serving, rng.randrange(1, 8) * S)
    world.run(S)
    members.append(member(world, job, EACH_SECOND))
    # A worker that tries to begin a schedule while a call of the schedule runs tries again after LOOK_AGAIN_S (60 s).
    run(world, members, 90 * S)
    first = [call for call in job.calls if call.deliveries == 1]
    assert max(Counter(call.due for call in first).values()) == 1
    done = {*seconds(job)}
    start = now_s(world)
    run(world, members, 10 * S)
    open_points = [each for each in range(start + 1, start + 11) if each not in done]
    stretches = len([each for each in sorted(done) if each + 1 not in done])
    assert set(open_points) <= {*seconds(job)} or stretches > 4, open_points
    assert pending(world) == 1
