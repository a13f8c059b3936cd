"""Named calls: the client's steps against the real conductor, on a manual clock, cut at every point."""

from __future__ import annotations

from copy import copy
from datetime import UTC, datetime, timedelta

import pytest

from harness import S
from jobs import (
    PERIOD_NS,
    Job,
    cancel,
    due_call,
    due_call_of_two,
    later,
    pending,
    registrations,
    run,
    session_gone,
    through_handler,
    worker_of,
)
from networks import World
from timerd_client.groups.calls import CALL_PAYLOAD_MAX
from timerd_client.groups.outcome import issue
from timerd_client.groups.schedule import datetime_of
from timerd_client.groups.steps import Acknowledge, Ask, Call
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import (
    ArenaFullError,
    InvalidKeyError,
    InvalidValueError,
    KeyTooLongError,
    NotAMemberError,
    PayloadTooLargeError,
    TimeoutOutOfRangeError,
    TimerdUnavailableError,
)
from workers import Worker

# names that some do not know ------------------------------------------------------------------------------------------


def test_a_call_is_delivered_only_to_handlers_of_its_name_however_many_members_there_are(world: World) -> None:
    other, job = Job(), Job()
    old = [worker_of(world, other, "other", periodic=False) for _ in range(3)]
    new = worker_of(world, job)
    new.begin()
    run(world, [*old, new], 5 * PERIOD_NS)
    assert job.due() == [0, 1, 2, 3, 4]
    assert {call.deliveries for call in job.calls} == {1}
    assert not other.calls
    assert pending(world) == 1


def test_a_call_without_a_handler_is_kept_for_a_later_handler(world: World) -> None:
    other, job = Job(), Job()
    old = worker_of(world, other, "other", periodic=False)
    assert later(old, payload=b"early")
    run(world, [old], 10 * S)
    assert not later(old), "it is kept"
    new = worker_of(world, job, periodic=False)
    run(world, [old, new], 2 * S)
    assert [(call.payload, call.deliveries) for call in job.calls] == [(b"early", 1)]
    assert later(old), "the name is free"


def test_a_long_handler_delays_no_call_that_another_worker_can_run(world: World) -> None:
    slow, quick = Job(), Job()
    busy = worker_of(world, slow, "slow", periodic=False)
    busy.calls.add("job", quick, None)
    busy.handle()

    def long(_: Call) -> None:
        idle = worker_of(world, quick, periodic=False)
        later(idle, delay=0)
        run(world, [idle], 2 * S)
        idle.die()

    slow.during = long
    later(busy, "slow", delay=0)
    run(world, [busy], S)
    assert len(slow.calls) == len(quick.calls) == 1


def test_calls_of_a_name_are_delivered_once_a_handler_is_added(world: World) -> None:
    job = Job()
    worker = worker_of(world, Job(), "other", periodic=False)
    worker.calls.add("job", job, None)
    later(worker, delay=0)
    run(world, [worker], 2 * S)
    assert not job.calls
    worker.handle()
    run(world, [worker], S)
    assert len(job.calls) == 1


def test_handled_names_are_known_again_after_a_restart_and_in_another_arena(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.restart()
    world.until_quiet()
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due() == [0, 1]
    worker.protocol.receive(session_gone(worker), worker.now_ns, published=False)
    worker.wait(lambda: worker.protocol.state is LinkState.LIVE)
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due() == [0, 1, 2, 3]


# what is done is done -------------------------------------------------------------------------------------------------


def told_again_to_the_same(world: World, worker: Worker) -> None:
    """It is taken for silent, and comes back, with nobody else there."""
    session = world.sessions.find(worker.protocol.session.secret)
    assert session is not None
    world.core.silence(session.slot, worker.now_ns)
    world.turn()
    world.core.revive(session.slot, worker.now_ns)
    world.settle()
    worker.hear()


@pytest.mark.parametrize("periodic", [True, False])
def test_a_call_redelivered_while_its_done_is_on_its_way_does_not_run_again(world: World, periodic: bool) -> None:
    job = Job()
    worker, told = due_call(world, job, periodic=periodic)
    steps = through_handler(worker, told)
    step = next(steps)
    assert isinstance(step, Ask | Acknowledge)
    issue(worker.link, step.command, step.done)  # and it is not sent yet
    told_again_to_the_same(world, worker)
    assert not worker.inbox.calls, "it is done"
    run(world, [worker], S)
    assert len(job.calls) == 1
    assert world.rig.arena.in_use()["OPS"] == periodic


def test_a_done_is_not_sent_to_another_arena(world: World) -> None:
    """Op ids of two arenas are the same numbers: what another arena has told would be lost."""
    job = Job()
    worker, told = due_call(world, job, periodic=False)
    told.client = b"another incarnation"
    assert worker.ack(told) == 0
    worker.do(worker.calls.carry_out(told))
    assert len(job.calls) == 1
    told.client = worker.protocol.session.incarnation
    assert worker.holds(told), "this one is another"


def test_a_handler_that_outlived_its_arena_schedules_no_call_in_the_next(world: World) -> None:
    """There it has begun anew, and may be being done."""
    job = Job()
    worker, told = due_call(world, job)
    told.arena += 1
    before = registrations(world)
    worker.do(worker.calls.carry_out(told))
    assert len(job.calls) == 1
    assert registrations(world) == before


def test_a_call_whose_next_registration_lost_its_answer_is_not_scheduled_twice(world: World) -> None:
    """The daemon is lost when the answer is due: what was asked may have been done."""
    job = Job()
    worker, told = due_call(world, job)
    steps = worker.calls.carry_out(told)
    next(steps)
    step = next(steps)
    assert isinstance(step, Ask)
    worker.issue(step.command, step.done)
    before = registrations(world)
    world.run(PERIOD_NS)  # and the next one has been told by now
    step = steps.send((None, TimerdUnavailableError("lost")))
    assert isinstance(step, Ask)
    answer = worker.issue(step.command, step.done)
    with pytest.raises(StopIteration):
        steps.send((answer.value, answer.error))
    assert registrations(world) == before, "what it follows is over"


def test_a_call_is_done_even_if_the_next_one_is_due_when_it_is_registered(world: World) -> None:
    """Else its worker would hold it for ever, and be told nothing more."""
    job = Job()
    worker, told = due_call(world, job)
    steps = worker.calls.carry_out(told)
    next(steps)
    step = next(steps)
    assert isinstance(step, Ask)
    world.run(2 * PERIOD_NS)  # the way takes so long
    worker.issue(step.command, step.done)
    assert not worker.holds(told)
    run(world, [worker], 3 * PERIOD_NS)
    assert len(job.calls) >= 3
    assert pending(world) == 1


def test_a_worker_taken_for_silent_in_a_handler_does_not_free_a_name_used_again(world: World) -> None:
    job = Job()
    slow, heir, told = due_call_of_two(world, job, periodic=False)
    steps = slow.calls.carry_out(told)
    next(steps)
    for _ in range(20):
        world.run(S)
        heir.do_all()
    assert [call.deliveries for call in job.calls] == [2]
    assert later(heir, payload=b"new", delay=5)
    step = next(steps)
    assert isinstance(step, Acknowledge)
    issue(slow.link, step.command, step.done)
    slow.pump()
    assert not later(heir), "the name is taken"
    run(world, [heir], 6 * S)
    assert [call.payload for call in job.calls] == [b"", b"new"]


# once -----------------------------------------------------------------------------------------------------------------


def test_a_call_is_registered_once_however_many_workers_ask_for_it(world: World) -> None:
    job = Job()
    workers = [worker_of(world, job, periodic=False) for _ in range(4)]
    assert [later(worker, payload=b"do") for worker in workers] == [True, False, False, False]
    run(world, workers, 3 * S)
    assert [(call.name, call.payload, call.due, call.deliveries) for call in job.calls] == [("job", b"do", None, 1)]
    assert pending(world) == 0
    assert later(workers[1]), "the name is free again"
    run(world, workers, 3 * S)
    assert len(job.calls) == 2
    assert not [complaint for worker in workers for complaint in worker.complaints]


def test_a_call_outlives_the_client_that_registered_it(world: World) -> None:
    job = Job()
    maker = Worker(world)
    assert later(maker)
    maker.die()
    worker = worker_of(world, job, periodic=False)
    run(world, [worker], 2 * S)
    assert len(job.calls) == 1


def test_a_name_is_in_use_while_its_handler_runs_except_for_the_handler(world: World) -> None:
    job = Job()
    worker, other = worker_of(world, job, periodic=False), Worker(world)
    answers: list[bool] = []

    def again(call: Call) -> None:
        job.during = lambda call: None
        answers.append(later(other))
        handling = worker.calls.handling.set("job")
        answers.append(later(worker))
        worker.calls.handling.reset(handling)

    job.during = again
    later(worker)
    run(world, [worker], 5 * S)
    assert answers == [False, True]
    assert len(job.calls) == 2
    assert later(other)


@pytest.mark.parametrize("lost", ["arena", "client"])
def test_a_handler_that_outlived_its_arena_or_client_replaces_no_pending_call(world: World, lost: str) -> None:
    """There it is not its own: somebody else's call of that name, with its payload, is left alone."""
    job = Job()
    other = Worker(world)
    worker, told = due_call(world, job, periodic=False)
    answers: list[bool] = []

    def again(call: Call) -> None:
        job.during = lambda call: None
        told.arena, told.client = (1, told.client) if lost == "arena" else (told.arena, b"before")
        assert cancel(other) is False
        issue(worker.link, worker.calls._done_and_free("job", kept), kept)  # so the name is free, as in another arena
        worker.pump()
        answers.append(later(other, payload=b"other's", delay=0))
        handling = worker.calls.handling.set("job")
        answers.append(later(worker, payload=b"mine", delay=0))
        worker.calls.handling.reset(handling)

    job.during = again
    kept = copy(told)
    worker.do(worker.calls.carry_out(told))
    assert answers == [True, False]
    run(world, [worker], 3 * S)
    assert [call.payload for call in job.calls] == [b"", b"other's"]


def test_a_handler_whose_next_call_was_refused_leaves_its_name_free(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)

    def again(call: Call) -> None:
        handling = worker.calls.handling.set("job")
        worker.calls.later("job", 1, b"")
        with pytest.raises(ArenaFullError):
            worker.calls.called("job", 0, ArenaFullError("full"))
        worker.calls.handling.reset(handling)

    job.during = again
    later(worker)
    run(world, [worker], 5 * S)
    assert len(job.calls) == 1
    assert later(worker)


@pytest.mark.parametrize("cut", [0, 1])
def test_a_single_call_runs_on_another_worker_if_its_worker_dies(world: World, cut: int) -> None:
    job = Job()
    victim = worker_of(world, job, periodic=False)
    later(victim)
    world.run(2 * S)
    assert not victim.do_all(cut)
    heir = worker_of(world, job, periodic=False)
    run(world, [heir], 3 * S)
    assert len(job.calls) == (2 if cut == 1 else 1)
    assert pending(world) == 0
    assert later(heir)


def test_a_cancelled_call_does_not_run_and_its_name_is_free(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    assert later(worker)
    assert cancel(worker)
    assert not cancel(worker)
    assert later(worker, payload=b"second")
    run(world, [worker], 3 * S)
    assert [call.payload for call in job.calls] == [b"second"]
    assert not worker.complaints


def test_two_groups_may_use_the_same_name(world: World) -> None:
    assert later(Worker(world, "web"))
    assert later(Worker(world, "batch"))


# the wall clock -------------------------------------------------------------------------------------------------------


def test_a_call_that_is_early_by_the_wall_clock_is_registered_again(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    when = datetime_of(world.wall_ns()) + timedelta(seconds=10)
    answer = worker.issue(worker.calls.at("job", when, b""))
    assert worker.calls.called("job", answer.value, answer.error)
    world.wall_ahead_ns -= 5 * S  # somebody sets the clock back
    run(world, [worker], 12 * S)
    assert job.calls == []
    run(world, [worker], 4 * S)
    assert [call.due for call in job.calls] == [when]


# what callers may pass ------------------------------------------------------------------------------------------------


def test_a_wrong_call_is_refused_at_once(world: World) -> None:
    worker = Worker(world)
    calls, issued = worker.calls, worker.protocol.ledger.issued
    with pytest.raises(InvalidValueError, match="time zone"):
        calls.at("job", datetime(2027, 1, 1), b"")
    with pytest.raises(InvalidValueError, match="datetime"):
        calls.at("job", 1_800_000_000, b"")
    with pytest.raises(InvalidValueError, match="the year 2262"):
        calls.at("job", datetime(9999, 1, 1, tzinfo=UTC), b"")
    with pytest.raises(InvalidValueError, match="delay"):
        calls.later("job", None, b"")
    with pytest.raises(TimeoutOutOfRangeError):
        calls.later("job", -1, b"")
    with pytest.raises(InvalidKeyError):
        calls.later(b"job", 1, b"")
    with pytest.raises(InvalidKeyError):
        calls.later("", 1, b"")
    with pytest.raises(KeyTooLongError):
        calls.later("n" * 254, 1, b"")
    with pytest.raises(PayloadTooLargeError, match=str(CALL_PAYLOAD_MAX)):
        calls.later("job", 1, bytes(CALL_PAYLOAD_MAX + 1))
    with pytest.raises(NotAMemberError, match="group"):
        Worker(world, None).calls.later("job", 1, b"")
    with pytest.raises(InvalidValueError, match="one argument"):
        calls.add("job", lambda: None, None)  # type: ignore[arg-type,misc]
    calls.add("job", print, None)
    with pytest.raises(InvalidValueError, match="another name"):
        calls.add("job", print, None)
    assert worker.protocol.ledger.issued == issued


def test_the_first_possible_moment_is_in_the_past(world: World) -> None:
    assert Worker(world).calls.at("job", datetime(1, 1, 1, tzinfo=UTC), b"")


def test_a_moment_in_the_past_is_due_at_once(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    worker.issue(worker.calls.at("job", datetime(2020, 1, 1, tzinfo=UTC), b""))
    worker.do_all()
    assert len(job.calls) == 1
