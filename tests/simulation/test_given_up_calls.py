"""Calls that end their processes, and dead letters: the client's steps with the real conductor, on a manual clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from simulation.jobs import (
    Job,
    begun,
    cancel,
    due_call,
    due_call_of_two,
    falls_silent,
    later,
    made,
    pending,
    run,
    through_handler,
    worker_of,
)
from simulation.workers import Failed, Worker
from support.fakes.networks import World
from support.rig.harness import S
from timerd_client.errors import CallGivenUpError
from timerd_client.groups.plan import CALL, ENDS_MAX, PAUSE_S_MAX, Plan, last_run_of
from timerd_client.groups.schedule import Every
from timerd_client.groups.steps import Acknowledge, Ask, Call, Run
from timerd_client.protocol.state import LinkState
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader

AFTER_HANDLER = 2  # the number of steps: the report that the handler begins, and the handler


class Failures:
    """An on_failure that notes the errors that it gets."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def __call__(self, call: Call, error: BaseException) -> None:
        self.errors.append(error)


def worker_with(world: World, job: Job, failures: Failures | None = None, **more: Any) -> Worker:
    worker = Worker(world)
    worker.add("job", job, on_failure=failures, **more)
    return worker.handle()


def dies_in_it(world: World, worker: Worker) -> int:
    """Let the worker die as soon as a handler has run. Returns the time of its death."""
    for _ in range(100):
        if not worker.do_all(AFTER_HANDLER):
            return world.clock.now_ns()
        world.run(S // 10)
    raise AssertionError("nothing has run")


def reasons(world: World) -> list[str]:
    """Why the dead letters of the group were given up, in their order."""
    with ArenaReader.from_bytes(bytes(world.rig.memory)) as reader:
        found = [index for group in range(len(reader.groups)) for index in walk.dead_letters(reader, group)]
        return [last_run_of(reader.blob(reader.ops[index].value)).why for index in found]


def test_a_call_that_ends_its_processes_rests_longer_each_time_and_is_given_up(world: World) -> None:
    job, failures = Job(), Failures()
    workers = [worker_with(world, job, failures)]
    later(workers[0], delay=0, payload=b"p")
    ends = [dies_in_it(world, workers[0])]
    for _ in range(4):
        workers.append(worker_with(world, job, failures))
        ends.append(dies_in_it(world, workers[-1]))
    heir = worker_with(world, job, failures)
    run(world, [heir], 100 * S)
    assert [(call.payload, call.deliveries, call.attempt) for call in job.calls] == [
        (b"p", number, 1) for number in range(1, 6)
    ]
    pauses = [later - earlier for earlier, later in pairwise(ends)]
    assert pauses[0] < S
    assert all(least * S <= pause <= (least + 1) * S for least, pause in zip((1, 2, 4), pauses[1:], strict=True)), (
        pauses
    )
    (error,) = failures.errors
    assert isinstance(error, CallGivenUpError) and "5 processes have ended in its handler (deliveries=5)" in str(error)
    (reason,) = reasons(world)
    assert reason.startswith("CallGivenUpError: 5 processes")
    assert (heir.inbox.calls_failed, heir.inbox.calls_done) == (1, 1)
    assert "given up" in heir.complaints[-1]
    assert world.counter("calls_ended_process") == 5
    assert pending(world) == 0 and later(heir), "the id is not free"


def test_the_pause_doubles_up_to_a_minute() -> None:
    pauses = [Plan(CALL, ends=ends).pause_s() for ends in range(12)]
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert Plan(CALL, ends=ENDS_MAX).pause_s() == PAUSE_S_MAX


def test_after_the_first_end_a_call_runs_again_at_once_and_after_the_second_alone(world: World) -> None:
    job, other = Job(), Job()
    first = worker_with(world, job)
    later(first, delay=0)
    dies_in_it(world, first)
    second = worker_with(world, job)
    dies_in_it(world, second)
    third = Worker(world)
    third.add("job", job)
    third.add("other", other)
    third.handle(at_once=4)
    world.run(S)
    resting = third.take(third.inbox.calls)
    assert resting is not None
    third.do(third.calls.carry_out(resting))
    made(third, third.calls.commands.later("other", 0, b""))
    beside = third.take(third.inbox.calls)
    assert beside is not None and beside.name == "other"
    world.run(5 * S)
    assert third.take(third.inbox.calls) is None, "the call that must run alone did not wait"
    made(third, third.calls.commands.later("other", 0, b""))
    world.run(S)
    after = third.take(third.inbox.calls)
    assert after is not None and after.name == "other", "other calls waited for the call that must run alone"
    for delivered in (beside, after):
        third.do(third.calls.carry_out(delivered))
    alone = third.take(third.inbox.calls)
    assert alone is not None and alone.name == "job"
    made(third, third.calls.commands.later("other", 0, b""))
    world.run(S)
    assert third.take(third.inbox.calls) is None, "a call runs beside the one that must run alone"
    third.do(third.calls.carry_out(alone))
    world.run(S)
    assert third.do_all() and len(job.calls) == len(other.calls) == 3


def test_innocents_beside_a_killer_are_never_given_up(world: World) -> None:
    """The innocents run in the first two processes that the killer ends. After that, each of these calls runs alone."""
    killer, innocent, failures = Job(), Job(), Failures()

    def worker() -> Worker:
        made_one = Worker(world)
        made_one.add("killer", killer, on_failure=failures)
        made_one.add("innocent", innocent, on_failure=failures)
        return made_one.handle(at_once=8)

    first = worker()
    made(first, first.calls.commands.later("killer", 0, b""))
    for number in range(3):
        made(first, first.calls.commands.later("innocent", 0, b"%d" % number))
    now = first
    for _ in range(40):
        world.run(S)
        running, ends = [], False
        while (delivered := now.take(now.inbox.calls)) is not None:
            steps = now.calls.carry_out(delivered)
            step = next(steps)
            assert isinstance(step, Ask)
            try:
                step = steps.send(now.ask(step))
            except StopIteration:  # the call rests
                continue
            ends = ends or (delivered.name == "killer" and isinstance(step, Run) and not failures.errors)
            running.append((delivered, steps, step))
        is_given_up = any(isinstance(step, Run) and step.function is failures for _, _, step in running)
        if ends and not is_given_up:
            now.die()
            now = worker()
            continue
        for _, steps, step in running:
            assert isinstance(step, Run)
            now.error_of(step)
            now.do(steps)
    assert len(failures.errors) == 1
    assert sorted(call.payload for call in innocent.calls) == [b"0", b"1", b"2"]
    assert len(reasons(world)) == 1


@pytest.mark.parametrize("deliveries", [1, 2])
def test_an_on_failure_that_ends_its_processes_is_given_up_as_well(world: World, deliveries: int) -> None:
    job, failures = Job(), Failures()

    def fails(call: Call) -> None:
        raise Failed("no connection")

    job.during = fails
    worker = worker_with(world, job, failures, deliveries=deliveries)
    later(worker, delay=0)
    world.run(S)
    assert not worker.do_all(4), "the worker did not end after its on_failure"
    for number in range(1, deliveries):
        assert len(failures.errors) == number
        dies_in_it(world, worker_with(world, job, failures, deliveries=deliveries))
    heir = worker_with(world, job, failures, deliveries=deliveries)
    run(world, [heir], 3 * S)
    assert len(job.calls) == 1, "a handler that has failed ran again"
    assert len(failures.errors) == deliveries
    assert str(failures.errors[0]) == "no connection"
    assert all(isinstance(error, CallGivenUpError) for error in failures.errors[1:])
    (reason,) = reasons(world)
    ended = "1 process has" if deliveries == 1 else f"{deliveries} processes have"
    assert f"{ended} ended in its on_failure" in reason
    assert later(heir)


def test_a_failed_call_is_a_dead_letter_with_its_error(world: World) -> None:
    job = Job()

    def fails(call: Call) -> None:
        raise Failed("no connection")

    job.during = fails
    worker = worker_with(world, job, retries=1, backoff_s=0.5)
    later(worker, delay=0)
    run(world, [worker], 5 * S)
    assert len(job.calls) == 2
    assert reasons(world) == ["Failed: no connection"]
    assert later(worker), "a dead letter holds its id"


def test_a_failing_schedule_leaves_dead_letters_and_goes_on(world: World) -> None:
    job = Job()

    def fails(call: Call) -> None:
        raise Failed

    job.during = fails
    worker = Worker(world)
    worker.add("job", job, Every(S))
    worker.handle().begin()
    run(world, [worker], 5 * S)
    assert len(job.calls) == len(reasons(world)) == 5
    assert pending(world) == 1
    assert cancel(worker)


def test_a_call_whose_worker_closes_in_it_is_not_counted(world: World) -> None:
    job = Job()
    holder, heir, delivered = due_call_of_two(world, job, periodic=False)
    begun(holder, delivered)
    session = world.sessions.find(holder.protocol.session.secret)
    assert session is not None
    world.sessions.close(session, holder.now_ns, goodbye=True)
    world.settle()
    run(world, [heir], S)
    assert [call.deliveries for call in job.calls] == [2]
    assert world.counter("calls_ended_process") == 0


def test_a_cancelled_call_that_was_delivered_does_not_run(world: World) -> None:
    job = Job()
    worker, delivered = due_call(world, job, periodic=False)
    assert cancel(worker)
    worker.do(worker.calls.carry_out(delivered))
    assert not job.calls and world.rig.arena.in_use()["OPS"] == 0
    assert later(worker, delay=0)
    run(world, [worker], S)
    assert len(job.calls) == 1


def test_a_call_that_runs_is_not_cancelled(world: World) -> None:
    job = Job()
    worker, delivered = due_call(world, job, periodic=False)
    steps = through_handler(worker, delivered)
    assert not cancel(worker)
    worker.do(steps)
    assert len(job.calls) == 1


def test_calls_that_are_made_again_while_one_runs_become_one_further_call(world: World) -> None:
    job = Job()
    worker, other = worker_of(world, job, periodic=False), Worker(world)

    def again(call: Call) -> None:
        job.during = lambda call: None
        assert later(other, delay=0, payload=b"2", if_exists="again")
        assert not later(other, delay=0, payload=b"3", if_exists="again")
        world.run(S)

    job.during = again
    assert later(worker, delay=1, payload=b"1", if_exists="again")
    assert not later(worker, delay=0, payload=b"0", if_exists="again"), "the pending call of the id was not found"
    run(world, [worker], 4 * S)
    assert [(call.payload, call.id) for call in job.calls] == [(b"1", "job"), (b"2", "job")]
    assert later(other), "the id is not free"


def test_a_call_of_an_id_does_not_begin_while_another_call_of_it_runs(world: World) -> None:
    job = Job()
    holder, idle, delivered = due_call_of_two(world, job, periodic=False)
    steps = through_handler(holder, delivered)
    assert later(idle, delay=0, payload=b"next", if_exists="replace")
    world.run(5 * S)
    assert idle.take(idle.inbox.calls) is None
    holder.do(steps)
    run(world, [holder, idle], S)
    assert [call.payload for call in job.calls] == [b"", b"next"]


def test_a_call_of_a_group_whose_bytes_are_used_up_is_retried() -> None:
    """The retry also carries the error, so it needs more bytes than the call frees. Formerly, it was not registered,
    and each worker kept its call for ever.
    """
    world = World(quota_bytes=2_000)
    world.until_quiet()
    job = Job()

    def fails(call: Call) -> None:
        raise Failed("a long text")

    job.during = fails
    worker = worker_with(world, job, retries=1, backoff_s=0.5)
    assert later(worker, delay=2)
    with ArenaReader.from_bytes(bytes(world.rig.memory)) as reader:
        left = reader.header().quota_bytes - reader.groups[0].bytes_held
    size = len(Plan(CALL, id=worker.calls.commands.own_id()).pack())
    made(worker, worker.calls.commands.later("job", 3600, bytes(left - size)))
    run(world, [worker], 5 * S)
    assert [call.attempt for call in job.calls] == [1, 2]


def test_a_call_that_its_former_holder_has_given_up_is_acknowledged_by_the_next_holder(world: World) -> None:
    """Formerly, the next holder kept the call for ever."""
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job, periodic=False)

    def fails(call: Call) -> None:
        raise Failed("too late")

    job.during = fails
    steps, step = begun(slow, delivered)
    falls_silent(world, slow)
    next_step = steps.send(slow.error_of(step))
    assert isinstance(next_step, Ask), "the former holder did not give the call up"
    slow.ask(next_step)
    slow.die()
    run(world, [heir], S)
    assert len(job.calls) == 1, "a call that was given up ran again"
    assert reasons(world) == ["Failed: too late"]
    assert heir.protocol.state is LinkState.LIVE and later(heir, delay=0)
    job.during = lambda call: None
    run(world, [heir], S)
    assert len(job.calls) == 2


def test_a_call_that_fails_in_its_former_holder_ends_as_it_does_in_the_member_that_runs_it(world: World) -> None:
    """Formerly, the former holder acknowledged the call, and the other member's result did not count."""
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job, periodic=False)
    steps, _ = begun(slow, delivered)
    falls_silent(world, slow)
    again = heir.take(heir.inbox.calls)
    assert again is not None
    others, run = begun(heir, again)
    next_step = steps.send(Failed("too late"))
    assert isinstance(next_step, Ask), "the former holder did not give the call up"
    with pytest.raises(StopIteration):
        steps.send(slow.ask(next_step))
    assert heir.holds(again)
    next_step = others.send(heir.error_of(run))
    assert isinstance(next_step, Acknowledge)
    assert heir.ack(again) == 1
    assert reasons(world) == []


def test_deliveries_before_a_pause_are_counted_too(world: World) -> None:
    """A worker fell silent in the handler, then two processes ended in it. Formerly, the pause lost the first count."""
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job, periodic=False)
    begun(slow, delivered)
    falls_silent(world, slow)
    slow.die()
    dies_in_it(world, heir)
    dies_in_it(world, worker_of(world, job, periodic=False))
    last = worker_of(world, job, periodic=False)
    run(world, [last], 3 * S)
    assert [call.deliveries for call in job.calls] == [2, 3, 4]


def test_a_call_with_only_its_on_failure_left_does_not_keep_other_calls_of_its_id_away(world: World) -> None:
    """Formerly, the resting call stood for a later call with if_exists="again", though its handler never ran again."""
    job, failures = Job(), Failures()
    failing: list[Call] = []

    def fails(call: Call) -> None:
        failing.append(call)
        raise Failed("no connection")

    job.during = fails
    first = worker_with(world, job, failures)
    assert later(first, delay=0, payload=b"first")  # of id "job"
    world.run(S)
    first.do_all(4)  # the process ends in the on_failure
    dies_in_it(world, worker_with(world, job, failures))
    heir = worker_with(world, job, failures)
    world.run(S // 10)
    resting = heir.take(heir.inbox.calls)
    assert resting is not None
    heir.do(heir.calls.carry_out(resting))
    assert pending(world) == 1, "the call does not rest"
    assert later(heir, delay=0, payload=b"second", if_exists="again")
    job.during = lambda call: None
    run(world, [heir], 3 * S)
    assert [call.payload for call in job.calls] == [b"first", b"second"]
    assert len(reasons(world)) == 1 and pending(world) == 0
