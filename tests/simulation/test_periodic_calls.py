"""Schedules: the client's steps with the real conductor, on a manual clock. Workers die between any two steps."""

from __future__ import annotations

import random

import pytest

from simulation.jobs import (
    PERIOD_NS,
    Job,
    cancel,
    due_call,
    due_call_of_two,
    made,
    pending,
    registrations,
    run,
    through_handler,
    worker_of,
)
from support.fakes.networks import World
from support.rig.harness import S
from timerd_client.groups.duties import Duty
from timerd_client.groups.steps import Acknowledge, Ask, Call, Pause
from timerd_shm.declare.errors import ArenaFullError, SessionGoneError
from timerd_shm.declare.limits import GROUP_KEPT_NS


def test_each_point_runs_once_however_many_workers_name_the_schedule(world: World) -> None:
    job = Job()
    workers = [worker_of(world, job) for _ in range(4)]
    for worker in workers:
        worker.begin()
    assert pending(world) == 1
    run(world, workers, 100 * S)
    assert job.due() == list(range(10))
    assert {call.deliveries for call in job.calls} == {1}
    assert pending(world) == 1


@pytest.mark.parametrize(
    ("cut", "runs", "point"),
    [
        (0, 1, "before the handler"),
        (1, 1, "before the handler, but after the worker has announced the handler"),
        (2, 2, "after the handler"),
        (3, 1, "after the next call is registered, and this one is acknowledged"),
    ],
)
def test_a_worker_that_dies_at_any_point_neither_ends_nor_doubles_the_schedule(
    world: World, cut: int, runs: int, point: str
) -> None:
    job = Job()
    victim = worker_of(world, job)
    victim.begin()
    world.run(PERIOD_NS)
    assert not victim.do_all(cut)
    heir = worker_of(world, job)
    heir.begin()
    run(world, [heir], 40 * S)
    first = job.due().count(0)
    assert first == runs, f"dead {point}"
    assert [call.deliveries for call in job.calls[:first]] == {0: [2], 1: [2], 2: [1, 2]}.get(cut, [1])
    assert job.due()[first:] == [1, 2, 3, 4], f"dead {point}"
    assert pending(world) == 1
    assert not victim.complaints + heir.complaints


def test_a_call_runs_again_on_another_worker_if_its_worker_dies_in_the_handler(world: World) -> None:
    job = Job()
    victim, heir, delivered = due_call_of_two(world, job)
    through_handler(victim, delivered)
    victim.die()
    run(world, [heir], S)
    assert [call.deliveries for call in job.calls] == [1, 2]


def test_a_requeued_call_does_not_run_again_once_it_is_done(world: World) -> None:
    """A worker is taken for silent in its handler. It still ends the call. The next holder learns that it is over."""
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job)
    steps = through_handler(slow, delivered)
    for _ in range(20):
        world.run(S)
        heir.pump()
    assert len(heir.inbox.calls) == 1, "the call was requeued"
    step = next(steps)
    assert isinstance(step, Ask)
    assert slow.issue(step.command, step.done).error is None
    heir.do_all()
    slow.do_all()
    assert job.due() == [0, 1], "the points that were missed meanwhile are one call"
    assert [call.deliveries for call in job.calls] == [1, 1]
    assert pending(world) == 1


def test_a_call_whose_worker_stood_still_before_the_handler_is_not_run_by_both(world: World) -> None:
    """The daemon has let the worker begin. Then the worker stands still, and the call is requeued."""
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job)
    steps = slow.calls.carry_out(delivered)
    asks = next(steps)
    assert isinstance(asks, Ask)
    answer = slow.ask(asks)
    for _ in range(20):
        world.run(S)
        heir.pump()
    heir.do_all()
    again = steps.send(answer)
    assert isinstance(again, Ask), "the slow worker ran the handler without asking again"
    answer = slow.ask(again)
    with pytest.raises(StopIteration):
        steps.send(answer)
    assert [call.deliveries for call in job.calls].count(1) <= 1 and job.due().count(0) == 1


def test_a_refused_registration_of_the_next_call_leaves_the_call_undone(world: World) -> None:
    job = Job()
    worker, delivered = due_call(world, job)
    steps = through_handler(worker, delivered)
    step = next(steps)
    assert isinstance(step, Ask)
    assert worker.holds(delivered)
    assert isinstance(steps.send((0, ArenaFullError("full"))), Pause)
    worker.do(steps)
    assert not worker.holds(delivered)
    assert pending(world) == 1


def test_a_worker_that_starts_while_the_handler_runs_makes_no_second_schedule(world: World) -> None:
    job = Job()
    busy = worker_of(world, job)
    busy.begin()

    def long(call: Call) -> None:
        job.during = lambda call: None
        late = worker_of(world, job)
        late.begin()
        for _ in range(31):
            world.run(S)
            busy.pump()
        assert late.take(late.inbox.calls) is None
        assert pending(world) == 0
        late.die()

    job.during = long
    run(world, [busy], PERIOD_NS + S)
    assert (job.due(), job.calls[-1].missed) == ([0, 1], 2), "all missed points are one call"
    run(world, [busy], 2 * PERIOD_NS)
    assert job.due()[:3] == [0, 1, 4], "then the schedule's points in time"
    assert pending(world) == 1


def test_a_schedule_continues_with_its_next_point_after_all_workers_had_ended(world: World) -> None:
    job = Job()
    only = worker_of(world, job)
    only.begin()
    run(world, [only], 2 * PERIOD_NS)
    done = len(job.calls)
    only.die()
    world.run(5 * PERIOD_NS)
    heir = worker_of(world, job)
    heir.begin()
    run(world, [heir], PERIOD_NS)
    assert len(job.calls) in (done + 1, done + 2), "the overdue call at once, then the schedule's points in time"
    assert len(set(job.due())) == len(job.calls)
    assert pending(world) == 1


def test_a_schedule_whose_group_was_empty_past_its_retention_begins_again() -> None:
    world = World(schedule_retention=2 * GROUP_KEPT_NS)
    world.until_quiet()
    job = Job()
    only = worker_of(world, job)
    only.begin()
    only.die()
    world.run(PERIOD_NS + S)
    world.run(GROUP_KEPT_NS + S)
    assert world.counter("dead_letters") == 0
    world.run(GROUP_KEPT_NS + S)
    assert (world.counter("dead_letters"), world.counter("group_outcomes_dropped")) == (1, 0)
    heir = worker_of(world, job)
    heir.begin()
    run(world, [heir], PERIOD_NS)
    assert len(job.calls) == 1


def test_a_call_that_was_cut_runs_again_after_hours_and_its_schedule_does_not_begin_beside_it(world: World) -> None:
    """Formerly, the call's id was forgotten after an hour: the heir found no schedule, and began a second one."""
    job = Job()
    victim, delivered = due_call(world, job)
    through_handler(victim, delivered)
    victim.die()
    world.run(2 * GROUP_KEPT_NS)
    heir = worker_of(world, job)
    heir.begin()
    assert pending(world) == 0
    run(world, [heir], 2 * PERIOD_NS)
    assert [call.deliveries for call in job.calls[:2]] == [1, 2]
    assert job.calls[0].due == job.calls[1].due and job.calls[1].missed > 700
    assert pending(world) == 1


def test_a_schedule_begins_again_in_another_arena() -> None:
    """The steps end when the daemon has another arena. The client starts them again (test_named_calls.py)."""
    world = World()
    world.until_quiet()
    job = Job()
    worker = worker_of(world, job)
    steps = worker.calls.begin("job")
    step = next(steps)
    assert isinstance(step, Ask)
    with pytest.raises(StopIteration):
        steps.send((None, SessionGoneError("another arena")))


def test_a_schedule_outlives_random_deaths_stops_and_restarts(rng: random.Random) -> None:
    """A call runs again only if a worker died or was stopped. The schedule goes on, and its points run in order."""
    world = World(clients=64)
    world.until_quiet()
    job = Job()
    workers = [worker_of(world, job) for _ in range(3)]
    for worker in workers:
        worker.begin()
    disturbed = 0
    for _ in range(80):
        world.run(rng.randrange(1, 60) * S // 10)
        act = rng.random()
        if act < 0.1 or not workers:
            workers.append(worker_of(world, job))
            workers[-1].begin()
        elif act < 0.2:
            workers.pop(rng.randrange(len(workers))).die()
            disturbed += 1
        elif act < 0.25:
            world.restart()
            world.until_quiet()
        stopped = rng.choice(workers) if workers and rng.random() < 0.2 else None
        disturbed += stopped is not None
        for worker in [worker for worker in workers if worker is not stopped]:
            worker.pump()
            cut = rng.randrange(5) if rng.random() < 0.1 else None
            if not worker.do_all(cut):
                workers.remove(worker)
                disturbed += 1
    calls = len(job.calls)
    workers.append(worker_of(world, job))
    workers[-1].begin()
    run(world, workers, 10 * PERIOD_NS)
    assert len(job.calls) >= calls + 8, "the schedule does not go on"
    assert pending(world) == 1
    first = list(dict.fromkeys(call.due for call in job.calls))
    assert first == sorted(first, key=str), "points ran out of order"
    again = [call for number, call in enumerate(job.calls) if call.due in {each.due for each in job.calls[:number]}]
    assert all(call.deliveries > 1 for call in again)
    assert len(again) <= disturbed


# a schedule that has changed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("periods", [(100, 10), (10, 35)])
def test_a_changed_schedule_takes_effect_when_the_first_worker_with_it_starts(
    world: World, periods: tuple[int, int]
) -> None:
    job = Job()
    old = worker_of(world, job, period_ns=periods[0] * S)
    old.begin()
    old.die()
    new = worker_of(world, job, period_ns=periods[1] * S)
    new.begin()
    new.do_all()
    assert not job.calls, "the call of the old schedule is cancelled, not run"
    assert pending(world) == 1
    run(world, [new], 2 * periods[1] * S + S)
    points = [call.due.timestamp() - world.wall_ahead_ns // S for call in job.calls if call.due is not None]
    assert points and all(point % periods[1] == 0 for point in points), "on the daemon's monotonic clock"
    assert len(points) == 2
    assert pending(world) == 1


def test_a_worker_with_the_same_schedule_keeps_the_pending_call_even_if_it_is_overdue(world: World) -> None:
    """Points that were missed while no worker lived are one call, which the next worker must not replace."""
    job = Job()
    first = worker_of(world, job)
    first.begin()
    first.die()
    second = worker_of(world, job)
    before = registrations(world)
    world.clock.move(5 * PERIOD_NS)  # the daemon does not turn
    second.begin()
    assert registrations(world) == before
    run(world, [second], S)
    assert len(job.calls) == 1


def test_a_changed_schedule_does_not_touch_a_running_call(world: World) -> None:
    job = Job()
    old = worker_of(world, job)
    old.begin()

    def during(_: Call) -> None:
        new = worker_of(world, job, period_ns=3 * S)
        new.begin()
        assert pending(world) == 0
        new.die()

    job.during = during
    run(world, [old], PERIOD_NS)
    assert len(job.calls) == 1 and pending(world) == 1


def test_a_cancelled_schedule_begins_with_the_next_worker_that_starts(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    assert cancel(worker)
    run(world, [worker], 2 * PERIOD_NS)
    assert not job.calls and pending(world) == 0
    worker_of(world, job).begin()
    assert pending(world) == 1


def test_a_schedule_that_begins_anew_after_a_call_of_its_id_is_no_part_of_that_call(world: World) -> None:
    """The steps that begin a schedule may pause for minutes. As a part of the call, they would keep it running."""
    job, other = Job(), Job()
    worker = worker_of(world, job)
    worker.add("other", other)
    worker.handle()
    assert made(worker, worker.calls.commands.later("other", 1.0, b"", "job", "error"))

    def duty() -> Duty:
        found = worker.duties.next(worker.now_ns)
        worker.pump()
        found = found or worker.duties.next(worker.now_ns)
        assert found is not None
        return found

    first = duty()
    assert not first.is_call and worker.do(first.steps)
    world.run(2 * S)
    worker.receive()
    call = duty()
    assert call.is_call and worker.do(call.steps)
    assert len(other.calls) == 1 and isinstance(worker.steps[-1], Acknowledge) and not worker.inbox.begun
    again = duty()
    assert not again.is_call and worker.do(again.steps)
    assert not worker.duties.may_have()
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due()[:1] == [0]
