"""Named calls: the client's steps against the real conductor, on a manual clock, cut at every point."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime, timedelta

import pytest

from harness import S
from networks import World
from timerd.messages import bare_header
from timerd_client.calls import CALL_PAYLOAD_MAX, Ask, Call, Pause, Run, Say, answer_of_cancel
from timerd_client.group import say
from timerd_client.protocol import LinkState
from timerd_client.schedule import Every, datetime_of
from timerd_shm.errors import (
    ArenaFullError,
    InvalidKeyError,
    InvalidValueError,
    KeyTooLongError,
    NotAMemberError,
    PayloadTooLargeError,
    SessionGoneError,
    TimeoutOutOfRangeError,
    TimerdUnavailableError,
)
from timerd_shm.layout import OpState, Region
from timerd_shm.limits import GROUP_KEPT_NS
from timerd_shm.wire import DownKind
from workers import Worker

MS = 1_000_000
PERIOD_NS = 10 * S


@pytest.fixture
def world() -> World:
    return World().until_quiet()


class Job:
    """A handler that keeps what it was called with; `during` runs inside of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.during: Callable[[Call], None] = lambda call: None

    def __call__(self, call: Call) -> None:
        self.calls.append(call)
        self.during(call)

    def due(self) -> list[int]:
        """Which occurrences, counted in periods from the first one seen."""
        points = [round(call.due.timestamp() * 1e9) // PERIOD_NS for call in self.calls if call.due is not None]
        return [point - points[0] for point in points]


def worker_of(
    world: World, job: Job, name: str = "job", *, periodic: bool = True, period_ns: int = PERIOD_NS
) -> Worker:
    """A worker that handles the job."""
    worker = Worker(world)
    worker.calls.add(name, job, Every(period_ns) if periodic else None)
    return worker.handle()


def pending(world: World) -> int:
    """Operations that have not settled yet."""
    return sum(record.state == OpState.PENDING for record in world.rig.arena.records(Region.OPS))


def later(worker: Worker, name: str = "job", delay: float = 1.0, payload: bytes = b"") -> bool:
    answer = worker.issue(worker.calls.later(name, delay, payload))
    return worker.calls.called(name, answer.value, answer.error)


def cancel(worker: Worker, name: str = "job") -> bool:
    answer = worker.issue(worker.calls.cancel(name))
    return answer_of_cancel(answer.value, answer.error)


def run(world: World, workers: list[Worker], for_ns: int) -> None:
    """Let time pass, with workers that do what they are told."""
    for _ in range(for_ns // S):
        world.run(S)
        for worker in workers:
            worker.do_all()


# schedules ---------------------------------------------------------------------------------------------------------


def test_however_many_workers_name_it_each_occurrence_runs_once(world: World) -> None:
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
        (1, 2, "after the handler"),
        (2, 1, "after the next one is registered, and it is acknowledged"),
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
    assert [call.deliveries for call in job.calls[:first]] == {0: [2], 1: [1, 2]}.get(cut, [1])
    assert job.due()[first:] == [1, 2, 3, 4], f"dead {point}"
    assert pending(world) == 1
    assert not victim.complaints + heir.complaints


def test_a_worker_that_dies_in_the_handler_has_it_run_again_elsewhere(world: World) -> None:
    job = Job()
    victim, heir = worker_of(world, job), worker_of(world, job)
    victim.begin()
    world.run(PERIOD_NS)
    told = victim.take(victim.inbox.calls)
    if told is None:
        victim, heir = heir, victim
        told = victim.take(victim.inbox.calls)
    assert told is not None
    steps = victim.calls.carry_out(told)
    step = next(steps)
    assert isinstance(step, Run)
    step.handler(step.call)
    victim.die()
    run(world, [heir], S)
    assert [call.deliveries for call in job.calls] == [1, 2]


def test_what_was_handed_on_is_not_run_again_once_it_was_done(world: World) -> None:
    """Taken for silent in its handler, it ends all the same; who is told after that sees the next one pending."""
    job = Job()
    slow = worker_of(world, job)
    slow.begin()
    heir = worker_of(world, job)
    world.run(PERIOD_NS)
    told = slow.take(slow.inbox.calls)
    if told is None:
        slow, heir = heir, slow
        told = slow.take(slow.inbox.calls)
    assert told is not None
    steps = slow.calls.carry_out(told)
    step = next(steps)
    assert isinstance(step, Run)
    step.handler(step.call)
    for _ in range(20):
        world.run(S)
        heir.pump()
    assert len(heir.inbox.calls) == 1, "it was handed on"
    step = next(steps)
    assert isinstance(step, Ask)
    assert slow.issue(step.command, step.done).error is None
    heir.do_all()
    assert len(job.calls) == 1
    assert pending(world) == 1


def test_a_refused_registration_leaves_the_call_undone(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.run(PERIOD_NS)
    told = worker.take(worker.inbox.calls)
    assert told is not None
    steps = worker.calls.carry_out(told)
    next(steps)
    step = next(steps)
    assert isinstance(step, Ask)
    assert worker.holds(told)
    assert isinstance(steps.send((0, ArenaFullError("full"))), Pause)
    worker.do(steps)
    assert not worker.holds(told)
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
    assert len(job.calls) == 1
    run(world, [busy], 2 * PERIOD_NS)
    assert job.due()[:2] == [0, 4], "what was missed is one, and it is a point of the grid"
    assert pending(world) == 1


def test_a_schedule_goes_on_in_its_next_occurrence_after_all_workers_were_gone(world: World) -> None:
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
    assert len(job.calls) in (done + 1, done + 2), "the overdue one at once, then the grid"
    assert len(set(job.due())) == len(job.calls)
    assert pending(world) == 1


def test_a_schedule_whose_group_was_empty_for_too_long_begins_anew(world: World) -> None:
    job = Job()
    only = worker_of(world, job)
    only.begin()
    only.die()
    world.run(PERIOD_NS + S)
    world.run(GROUP_KEPT_NS + S)
    world.run(S)
    assert world.counter("group_outcomes_dropped") == 1
    heir = worker_of(world, job)
    heir.begin()
    run(world, [heir], PERIOD_NS)
    assert len(job.calls) == 1


def test_another_arena_is_a_reason_to_begin_again() -> None:
    """The steps end when the daemon knows nothing any more; the face starts them again (test_members)."""
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
    """Told again only where somebody died or was stopped; in order; never ended; never two of them."""
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
            cut = rng.randrange(4) if rng.random() < 0.1 else None
            if not worker.do_all(cut):
                workers.remove(worker)
                disturbed += 1
    calls = len(job.calls)
    workers.append(worker_of(world, job))
    workers[-1].begin()
    run(world, workers, 10 * PERIOD_NS)
    assert len(job.calls) >= calls + 8, "it goes on"
    assert pending(world) == 1
    first = list(dict.fromkeys(call.due for call in job.calls))
    assert first == sorted(first, key=str), "in order"
    again = [call for number, call in enumerate(job.calls) if call.due in {each.due for each in job.calls[:number]}]
    assert all(call.deliveries > 1 for call in again)
    assert len(again) <= disturbed


# names that some do not know ------------------------------------------------------------------------------------------


def test_a_call_is_told_only_to_who_handles_its_name_however_many_do_not(world: World) -> None:
    other, job = Job(), Job()
    old = [worker_of(world, other, "other", periodic=False) for _ in range(3)]
    new = worker_of(world, job)
    new.begin()
    run(world, [*old, new], 5 * PERIOD_NS)
    assert job.due() == [0, 1, 2, 3, 4]
    assert {call.deliveries for call in job.calls} == {1}
    assert not other.calls
    assert pending(world) == 1


def test_a_call_that_nobody_handles_yet_waits_for_who_does(world: World) -> None:
    other, job = Job(), Job()
    old = worker_of(world, other, "other", periodic=False)
    assert later(old, payload=b"early")
    run(world, [old], 10 * S)
    assert not later(old), "it is kept"
    new = worker_of(world, job, periodic=False)
    run(world, [old, new], 2 * S)
    assert [(call.payload, call.deliveries) for call in job.calls] == [(b"early", 1)]
    assert later(old), "the name is free"


def test_a_long_handler_keeps_no_call_back_that_another_could_do(world: World) -> None:
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


def test_a_name_that_is_handled_later_on_is_told_from_then_on(world: World) -> None:
    job = Job()
    worker = worker_of(world, Job(), "other", periodic=False)
    worker.calls.add("job", job, None)
    later(worker, delay=0)
    run(world, [worker], 2 * S)
    assert not job.calls
    worker.handle()
    run(world, [worker], S)
    assert len(job.calls) == 1


def test_what_is_handled_is_known_again_after_a_restart_and_in_another_arena(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.restart()
    world.until_quiet()
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due() == [0, 1]
    worker.protocol.receive(gone(worker), worker.now_ns, published=False)
    worker.wait(lambda: worker.protocol.state is LinkState.LIVE)
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due() == [0, 1, 2, 3]


def gone(worker: Worker) -> bytes:
    """The daemon knows this client no more."""
    world = worker.world
    session = world.sessions.find(worker.protocol.session)
    assert session is not None
    world.sessions.close(session, worker.now_ns, goodbye=True)
    return bare_header(DownKind.SESSION_GONE, world.core.incarnation, 0, worker.now_ns)


# a schedule that has changed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("periods", [(100, 10), (10, 35)])
def test_a_changed_schedule_counts_as_soon_as_a_worker_with_it_starts(world: World, periods: tuple[int, int]) -> None:
    job = Job()
    old = worker_of(world, job, period_ns=periods[0] * S)
    old.begin()
    old.die()
    new = worker_of(world, job, period_ns=periods[1] * S)
    new.begin()
    new.do_all()
    assert not job.calls, "the old one is cancelled, not run"
    assert pending(world) == 1
    run(world, [new], 2 * periods[1] * S + S)
    points = [call.due.timestamp() for call in job.calls if call.due is not None]
    assert points and all(point % periods[1] == 0 for point in points)
    assert len(points) == 2
    assert pending(world) == 1


def test_the_same_schedule_leaves_the_pending_call_as_it_is_even_if_that_is_overdue(world: World) -> None:
    """What was missed while nobody was there is one call, not none: whoever starts first must not replace it."""
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


def registrations(world: World) -> int:
    return world.rig.arena.header.registrations


def test_a_changed_schedule_does_not_touch_what_is_being_done(world: World) -> None:
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


# what is done is done -------------------------------------------------------------------------------------------------


def told_again_to_the_same(world: World, worker: Worker) -> None:
    """It is taken for silent, and comes back, with nobody else there."""
    session = world.sessions.find(worker.protocol.session)
    assert session is not None
    world.core.silence(session.slot, worker.now_ns)
    world.turn()
    world.core.revive(session.slot, worker.now_ns)
    world.settle()
    worker.hear()


@pytest.mark.parametrize("periodic", [True, False])
def test_a_call_that_is_told_again_while_the_word_that_it_is_done_is_on_its_way_does_not_run_again(
    world: World, periodic: bool
) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=periodic)
    worker.begin() if periodic else later(worker, delay=10)
    world.run(PERIOD_NS)
    told = worker.take(worker.inbox.calls)
    assert told is not None
    steps = worker.calls.carry_out(told)
    step = next(steps)
    assert isinstance(step, Run)
    step.handler(step.call)
    step = next(steps)
    assert isinstance(step, Ask | Say)
    say(worker.link, step.command, step.done)  # and it is not sent yet
    told_again_to_the_same(world, worker)
    assert not worker.inbox.calls, "it is done"
    run(world, [worker], S)
    assert len(job.calls) == 1
    assert world.rig.arena.in_use()["OPS"] == periodic


def test_the_word_that_something_is_done_is_not_said_to_another_arena(world: World) -> None:
    """Op ids of two arenas are the same numbers: what another arena has told would be lost."""
    job = Job()
    worker = worker_of(world, job, periodic=False)
    later(worker, delay=0)
    world.run(S)
    told = worker.take(worker.inbox.calls)
    assert told is not None
    told.client = b"another incarnation"
    assert worker.ack(told) == 0
    worker.do(worker.calls.carry_out(told))
    assert len(job.calls) == 1
    told.client = worker.protocol.incarnation
    assert worker.holds(told), "this one is another"


def test_a_handler_that_outlived_its_arena_schedules_nothing_in_the_next(world: World) -> None:
    """There it has begun anew, and may be being done."""
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.run(PERIOD_NS)
    told = worker.take(worker.inbox.calls)
    assert told is not None
    told.arena += 1
    before = registrations(world)
    worker.do(worker.calls.carry_out(told))
    assert len(job.calls) == 1
    assert registrations(world) == before


def test_a_call_whose_next_one_was_taken_though_nobody_heard_so_is_not_scheduled_twice(world: World) -> None:
    """The daemon is lost when the answer is due: what was asked may have been done."""
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.run(PERIOD_NS)
    told = worker.take(worker.inbox.calls)
    assert told is not None
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
    worker = worker_of(world, job)
    worker.begin()
    world.run(PERIOD_NS)
    told = worker.take(worker.inbox.calls)
    assert told is not None
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


def test_who_was_taken_for_silent_in_a_handler_does_not_free_a_name_that_was_given_again(world: World) -> None:
    job = Job()
    slow, heir = worker_of(world, job, periodic=False), worker_of(world, job, periodic=False)
    later(slow, delay=0)
    world.run(S)
    told = slow.take(slow.inbox.calls)
    if told is None:
        slow, heir = heir, slow
        told = slow.take(slow.inbox.calls)
    assert told is not None
    steps = slow.calls.carry_out(told)
    next(steps)
    for _ in range(20):
        world.run(S)
        heir.do_all()
    assert [call.deliveries for call in job.calls] == [2]
    assert later(heir, payload=b"new", delay=5)
    step = next(steps)
    assert isinstance(step, Say)
    say(slow.link, step.command, step.done)
    slow.pump()
    assert not later(heir), "the name is taken"
    run(world, [heir], 6 * S)
    assert [call.payload for call in job.calls] == [b"", b"new"]


# once -----------------------------------------------------------------------------------------------------------------


def test_a_call_is_made_once_by_however_many_ask_for_it(world: World) -> None:
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


def test_a_call_outlives_who_made_it(world: World) -> None:
    job = Job()
    maker = Worker(world)
    assert later(maker)
    maker.die()
    worker = worker_of(world, job, periodic=False)
    run(world, [worker], 2 * S)
    assert len(job.calls) == 1


def test_a_name_is_taken_while_its_handler_runs_but_for_the_handler(world: World) -> None:
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
def test_a_handler_that_outlived_its_arena_or_client_takes_no_pending_calls_place(world: World, lost: str) -> None:
    """There it is not its own: somebody else's call of that name, with its payload, is left alone."""
    job = Job()
    worker, other = worker_of(world, job, periodic=False), Worker(world)
    answers: list[bool] = []

    def again(call: Call) -> None:
        job.during = lambda call: None
        assert told is not None
        told.arena, told.client = (1, told.client) if lost == "arena" else (told.arena, b"before")
        assert cancel(other) is False
        say(worker.link, worker.calls._done_and_free("job", kept), kept)  # so the name is free, as in another arena
        worker.pump()
        answers.append(later(other, payload=b"other's", delay=0))
        handling = worker.calls.handling.set("job")
        answers.append(later(worker, payload=b"mine", delay=0))
        worker.calls.handling.reset(handling)

    job.during = again
    later(worker, delay=0)
    world.run(S)
    told = worker.take(worker.inbox.calls)
    assert told is not None
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
def test_a_one_shot_is_done_by_another_if_its_worker_dies(world: World, cut: int) -> None:
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


def test_a_cancelled_call_is_not_made_and_its_name_is_free(world: World) -> None:
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


def test_a_call_whose_time_has_not_come_by_the_wall_clock_is_registered_again(world: World) -> None:
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


def test_an_occurrence_that_was_a_bit_early_does_not_come_again(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    worker.begin()
    world.wall_ahead_ns -= S // 2
    run(world, [worker], 2 * PERIOD_NS)
    assert job.due() == list(range(len(job.calls)))


def test_a_schedule_goes_on_after_the_clock_was_a_year_ahead(world: World) -> None:
    job = Job()
    worker = worker_of(world, job)
    world.wall_ahead_ns += 365 * 86_400 * S
    worker.begin()
    job.during = lambda call: setattr(world, "wall_ahead_ns", 1_800_000_000 * S)
    run(world, [worker], 5 * PERIOD_NS)
    assert len(job.calls) >= 4


# what callers may pass ------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_call_is_said_at_once(world: World) -> None:
    worker = Worker(world)
    calls, issued = worker.calls, worker.protocol.issued
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
    assert worker.protocol.issued == issued


def test_the_first_moment_of_all_is_in_the_past(world: World) -> None:
    assert Worker(world).calls.at("job", datetime(1, 1, 1, tzinfo=UTC), b"")


def test_a_moment_in_the_past_is_due_at_once(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    worker.issue(worker.calls.at("job", datetime(2020, 1, 1, tzinfo=UTC), b""))
    worker.do_all()
    assert len(job.calls) == 1
