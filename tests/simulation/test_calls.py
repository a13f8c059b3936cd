"""Named calls: the client's steps with the real conductor, on a manual clock. Workers die between any two steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from simulation.jobs import (
    PERIOD_NS,
    Job,
    begun,
    cancel,
    due_call,
    due_call_of_two,
    falls_silent,
    later,
    made,
    pending,
    registrations,
    run,
    session_gone,
    through_handler,
    worker_of,
)
from simulation.workers import Failed, Worker
from support.fakes.networks import World
from support.rig.harness import S
from timerd_client.groups.outcome import issue
from timerd_client.groups.plan import CALL_PAYLOAD_MAX, unpack
from timerd_client.groups.schedule import datetime_of
from timerd_client.groups.steps import Acknowledge, Ask, Call
from timerd_client.protocol.state import LinkState
from timerd_client.types import CallExists
from timerd_shm.declare.errors import (
    InvalidKeyError,
    InvalidValueError,
    KeyTooLongError,
    NotAMemberError,
    PayloadTooLargeError,
    TimeoutOutOfRangeError,
    TimerdUnavailableError,
)
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import OpState
from timerd_shm.declare.wire import CommandFlag
from timerd_shm.read.reader import ArenaReader

# names that some workers lack -----------------------------------------------------------------------------------------


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
    assert not later(old), "the early call is kept, with its id"
    new = worker_of(world, job, periodic=False)
    run(world, [old, new], 2 * S)
    assert [(call.payload, call.deliveries) for call in job.calls] == [(b"early", 1)]
    assert later(old), "the id is not free"


def test_a_long_handler_delays_no_call_that_another_worker_can_run(world: World) -> None:
    slow, quick = Job(), Job()
    busy = worker_of(world, slow, "slow", periodic=False)
    busy.add("job", quick)
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
    worker.add("job", job)
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


# a done call stays done -----------------------------------------------------------------------------------------------


def redelivered_to_the_same(world: World, worker: Worker) -> None:
    """The daemon takes the only worker for silent, and then gets frames from it again."""
    falls_silent(world, worker)
    worker.receive()


@pytest.mark.parametrize("periodic", [True, False])
def test_a_call_redelivered_while_its_acknowledgement_travels_does_not_run_again(world: World, periodic: bool) -> None:
    job = Job()
    worker, delivered = due_call(world, job, periodic=periodic)
    steps = through_handler(worker, delivered)
    step = next(steps)
    assert isinstance(step, Ask | Acknowledge)
    issue(worker.link, step.command, step.done)  # the acknowledgement is not sent yet
    redelivered_to_the_same(world, worker)
    assert not worker.inbox.calls, "the done call was taken in again"
    run(world, [worker], S)
    assert len(job.calls) == 1
    assert world.rig.arena.in_use()["OPS"] == periodic


def test_an_acknowledgement_is_not_sent_to_another_arena(world: World) -> None:
    """Two arenas number operations alike. In another arena the acknowledgement would end another call, and lose it."""
    job = Job()
    worker, delivered = due_call(world, job, periodic=False)
    steps = through_handler(worker, delivered)
    delivered.client = b"another incarnation"
    assert worker.ack(delivered) == 0
    worker.do(steps)
    assert len(job.calls) == 1
    delivered.client = worker.protocol.session.incarnation
    assert worker.holds(delivered), "the acknowledgement was sent to another arena"


@pytest.mark.parametrize("began", [False, True])
def test_a_call_that_outlived_its_arena_neither_begins_nor_schedules_another_in_the_next(
    world: World, began: bool
) -> None:
    """In the next arena, another worker may have begun the schedule anew, and may run this call."""
    job = Job()
    worker, delivered = due_call(world, job)
    steps = through_handler(worker, delivered) if began else worker.calls.carry_out(delivered)
    delivered.arena += 1
    before = registrations(world)
    worker.do(steps)
    assert len(job.calls) == began
    assert registrations(world) == before


def test_a_call_whose_next_registration_lost_its_answer_is_not_scheduled_twice(world: World) -> None:
    """The daemon is lost before it answers: it may have applied the command."""
    job = Job()
    worker, delivered = due_call(world, job)
    steps, _ = begun(worker, delivered)
    step = next(steps)
    assert isinstance(step, Ask)
    worker.issue(step.command, step.done)
    before = registrations(world)
    world.run(PERIOD_NS)  # the next call is delivered in this time
    step = steps.send((None, TimerdUnavailableError("lost")))
    assert isinstance(step, Ask)
    answer = worker.issue(step.command, step.done)
    with pytest.raises(StopIteration):
        steps.send((answer.value, answer.error))
    assert registrations(world) == before, "a call that follows a done call was registered"


def test_a_call_is_done_even_if_the_next_call_is_due_when_it_is_registered(world: World) -> None:
    """Otherwise its worker would hold the call for ever, and get no other call."""
    job = Job()
    worker, delivered = due_call(world, job)
    steps, _ = begun(worker, delivered)
    step = next(steps)
    assert isinstance(step, Ask)
    world.run(2 * PERIOD_NS)  # the command is on its way for two periods
    worker.issue(step.command, step.done)
    assert not worker.holds(delivered)
    run(world, [worker], 3 * PERIOD_NS)
    assert len(job.calls) >= 3
    assert pending(world) == 1


def test_a_worker_that_was_taken_for_silent_in_a_handler_does_not_free_the_id_of_a_new_call(world: World) -> None:
    job = Job()
    slow, heir, delivered = due_call_of_two(world, job, periodic=False)
    steps, _ = begun(slow, delivered)
    for _ in range(20):
        world.run(S)
        heir.do_all()
    assert [call.deliveries for call in job.calls] == [2]
    assert later(heir, payload=b"new", delay=5)
    step = next(steps)
    assert isinstance(step, Acknowledge)
    issue(slow.link, step.command, step.done)
    slow.pump()
    assert not later(heir), "the id was freed while a new call has it"
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
    assert later(workers[1]), "the name is not free again"
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


def test_an_id_is_in_use_while_its_call_runs_and_the_call_may_be_replaced(world: World) -> None:
    job = Job()
    worker, other = worker_of(world, job, periodic=False), Worker(world)
    answers: list[bool] = []

    def again(call: Call) -> None:
        job.during = lambda call: None
        answers.append(later(other))
        answers.append(later(worker, if_exists="replace"))

    job.during = again
    later(worker)
    run(world, [worker], 5 * S)
    assert answers == [False, True]
    assert len(job.calls) == 2
    assert later(other)


def test_a_call_that_was_replaced_while_it_ran_goes_on_under_an_id_of_its_own(world: World) -> None:
    job = Job()
    worker, other = Worker(world), Worker(world)
    worker.add("job", job, retries=3)
    worker.handle()

    def fails(call: Call) -> None:
        job.during = lambda call: None
        assert later(other, delay=5, payload=b"instead", if_exists="replace")
        raise Failed

    job.during = fails
    later(worker, payload=b"first")
    run(world, [worker], 3 * S)
    assert [(call.payload, call.attempt) for call in job.calls] == [(b"first", 1), (b"first", 2)]
    assert job.calls[1].id != "job", "two calls have one id"
    assert pending(world) == 1 and not later(other)
    run(world, [worker], 5 * S)
    assert job.calls[-1].payload == b"instead" and job.calls[-1].id == "job"
    assert later(other), "the id is not free"


def test_a_redelivered_call_runs_although_another_call_has_its_id(world: World) -> None:
    """The end of the old call must not end the new call of the same id."""
    job = Job()
    maker, victim = Worker(world), worker_of(world, job, periodic=False)
    assert later(victim, delay=0, payload=b"old")
    world.run(S)
    delivered = victim.take(victim.inbox.calls)
    assert delivered is not None
    through_handler(victim, delivered)
    assert later(maker, delay=60, payload=b"new", if_exists="replace"), "the old call runs"
    victim.die()
    heir = worker_of(world, job, periodic=False)
    run(world, [heir], 3 * S)
    assert [(call.payload, call.deliveries) for call in job.calls] == [(b"old", 1), (b"old", 2)]
    assert pending(world) == 1


def test_a_call_that_does_not_run_now_is_replaced_although_it_has_run_in_a_process_that_ended(world: World) -> None:
    job = Job()
    maker, victim = Worker(world), worker_of(world, job, periodic=False)
    assert later(victim, delay=0, payload=b"old")
    world.run(S)
    assert not victim.do_all(2), "the victim dies after its handler"
    world.run(S)
    assert later(maker, delay=1, payload=b"new", if_exists="replace")
    heir = worker_of(world, job, periodic=False)
    run(world, [heir], 3 * S)
    assert [(call.payload, call.deliveries) for call in job.calls] == [(b"old", 1), (b"new", 1)]
    assert pending(world) == 0 and world.rig.arena.in_use()["OPS"] == 0


def test_without_an_id_each_call_is_its_own(world: World) -> None:
    """Formerly, a second call of a name was dropped, with its payload."""
    job = Job()
    worker = worker_of(world, job, periodic=False)
    calls = [worker.calls.commands.later("job", 1, b"user %d" % number) for number in (7, 8)]
    assert all(made(worker, call) for call in calls)
    run(world, [worker], 4 * S)
    assert sorted(call.payload for call in job.calls) == [b"user 7", b"user 8"]
    assert {call.id for call in job.calls} == {call.id for call in calls}


@pytest.mark.parametrize(("if_exists", "accepted", "ran"), [("keep", False, b"1"), ("replace", True, b"2")])
def test_a_second_call_of_an_id_is_refused_or_dropped_or_replaces_the_first(
    world: World, if_exists: CallExists, accepted: bool, ran: bytes
) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    assert later(worker, payload=b"1")
    assert not later(worker, payload=b"refused")
    assert later(worker, payload=b"2", if_exists=if_exists) is accepted
    run(world, [worker], 4 * S)
    assert [call.payload for call in job.calls] == [ran]


def test_a_call_for_a_time_of_the_wall_clock_may_be_rescheduled_by_its_id(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    when = datetime_of(world.wall_ns()) + timedelta(hours=1)
    assert made(worker, worker.calls.commands.at("job", when, id="later"))
    answer = worker.issue(worker.calls.commands.reschedule("later", 5, CommandFlag.WANTS_ANSWER))
    assert answer.error is None and answer.value == 1
    run(world, [worker], 3 * S)
    assert not job.calls
    run(world, [worker], 4 * S)
    assert len(job.calls) == 1 and pending(world) == 0


# errors ---------------------------------------------------------------------------------------------------------------


def fail_times(job: Job, times: int) -> None:
    """Have a handler fail `times` times."""

    def during(call: Call) -> None:
        if len(job.calls) <= times:
            raise Failed("no connection")

    job.during = during


def test_a_failed_call_is_retried_with_a_longer_pause_each_time_and_then_reported(world: World) -> None:
    job, failed = Job(), list[tuple[Call, BaseException]]()
    worker = Worker(world)
    worker.add("job", job, retries=3, backoff_s=2.0, on_failure=lambda *what: failed.append(what))
    worker.handle()
    fail_times(job, 4)
    began, ran_at = world.clock.now_ns(), list[int]()
    later(worker, delay=0, payload=b"p")
    for _ in range(30):
        count = len(job.calls)
        run(world, [worker], S)
        ran_at += [(world.clock.now_ns() - began) // S] * (len(job.calls) - count)
    assert [(call.attempt, call.payload, call.id) for call in job.calls] == [(n, b"p", "job") for n in (1, 2, 3, 4)]
    pauses = [after - before for before, after in pairwise(ran_at)]
    assert all(planned <= pause <= planned + 1 for planned, pause in zip((2, 4, 8), pauses, strict=True)), pauses
    assert [(call.attempt, str(error)) for call, error in failed] == [(4, "no connection")]
    assert (worker.inbox.calls_failed, worker.inbox.calls_retried, worker.inbox.calls_done) == (4, 3, 1)
    assert "attempt 4: the call is over" in worker.complaints[-1]
    assert pending(world) == 0 and later(worker), "the id is not free"


def test_without_retries_a_failed_call_is_over(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    fail_times(job, 1)
    later(worker)
    run(world, [worker], 10 * S)
    assert len(job.calls) == 1 and pending(world) == 0
    assert worker.inbox.calls_failed == 1


@pytest.mark.parametrize("cut", [2, 3])
def test_a_worker_that_dies_around_a_retry_neither_loses_nor_doubles_it(world: World, cut: int) -> None:
    job = Job()
    victim, heir = Worker(world), Worker(world)
    for worker in (victim, heir):
        worker.add("job", job, retries=1)
    fail_times(job, 1)
    victim.handle()
    later(victim, delay=0)
    world.run(S)
    assert not victim.do_all(cut)
    heir.handle()
    run(world, [heir], 5 * S)
    # If the worker died before the retry was registered, the first attempt runs again, and does not fail this time.
    assert [(call.attempt, call.deliveries) for call in job.calls] == {2: [(1, 1), (1, 2)], 3: [(1, 1), (2, 1)]}[cut]
    assert pending(world) == 0


def test_a_handler_may_have_its_call_come_again(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)

    def during(call: Call) -> None:
        if call.attempt < 4:
            call.retry(3)

    job.during = during
    later(worker, payload=b"p", delay=0)
    run(world, [worker], 4 * S)
    assert [call.attempt for call in job.calls] == [1, 2]
    assert not later(worker), "the retry is pending"
    run(world, [worker], 10 * S)
    assert [call.attempt for call in job.calls] == [1, 2, 3, 4]
    assert worker.inbox.calls_failed == 0 and not worker.complaints
    with pytest.raises(TimeoutOutOfRangeError):
        job.calls[0].retry(-1)
    with pytest.raises(InvalidValueError):
        job.calls[0].retry(None)


def test_the_pending_call_says_how_the_last_attempt_has_ended(world: World) -> None:
    job = Job()
    worker = Worker(world)
    worker.add("job", job, retries=1, backoff_s=60.0)
    worker.handle()
    fail_times(job, 1)
    later(worker, delay=0)
    run(world, [worker], 2 * S)
    (op,) = [record for record in world.rig.arena.records(Region.OPS) if record.state == OpState.PENDING]
    with ArenaReader.from_bytes(bytes(world.rig.memory)) as reader:
        found = unpack(reader.blob(op.payload))
    assert found is not None
    assert (found[0].failures, found[0].error, found[0].id) == (1, "Failed: no connection", "job")
    assert abs(found[0].last_run_ns - world.wall_ns()) < 5 * S


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_single_call_runs_on_another_worker_if_its_worker_dies(world: World, cut: int) -> None:
    job = Job()
    victim = worker_of(world, job, periodic=False)
    later(victim)
    world.run(2 * S)
    assert not victim.do_all(cut)
    heir = worker_of(world, job, periodic=False)
    run(world, [heir], 3 * S)
    assert len(job.calls) == (2 if cut == 2 else 1)
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
    """The worker notices that the clock was set. The daemon does not, so it takes the call for due."""
    world.conductor._wall.was_set = lambda: False  # type: ignore[method-assign]
    job, ran_ns = Job(), list[int]()
    job.during = lambda call: ran_ns.append(world.wall_ns())
    worker = worker_of(world, job, periodic=False)
    when = datetime_of(world.wall_ns()) + timedelta(seconds=10)
    assert made(worker, worker.calls.commands.at("job", when))
    world.wall_ahead_ns -= 5 * S  # somebody sets the clock back
    run(world, [worker], 16 * S)
    assert [call.due for call in job.calls] == [when]
    assert datetime_of(ran_ns[0]) >= when


def test_a_call_whose_worker_has_died_runs_at_once_though_the_clock_was_set_back(world: World) -> None:
    """The call was in time. If it were registered again, its next run would not count as another delivery."""
    job = Job()
    victim, heir = (worker_of(world, job, periodic=False) for _ in range(2))
    when = datetime_of(world.wall_ns()) + timedelta(seconds=10)
    assert made(victim, victim.calls.commands.at("job", when))
    world.run(11 * S)
    for one, other in ((victim, heir), (heir, victim)):
        if (delivered := one.take(one.inbox.calls)) is not None:
            through_handler(one, delivered)
            one.die()
            world.wall_ahead_ns -= 3_600 * S
            run(world, [other], S)
            break
    assert [call.deliveries for call in job.calls] == [1, 2]


# what callers may pass ------------------------------------------------------------------------------------------------


def test_a_wrong_call_is_refused_at_once(world: World) -> None:
    def of_no_registry() -> None: ...

    worker = Worker(world)
    calls, issued = worker.calls.commands, worker.protocol.ledger.issued
    with pytest.raises(InvalidValueError, match="time zone"):
        calls.at("job", datetime(2027, 1, 1))
    with pytest.raises(InvalidValueError, match="datetime"):
        calls.at("job", 1_800_000_000)
    with pytest.raises(InvalidValueError, match="the year 2262"):
        calls.at("job", datetime(9999, 1, 1, tzinfo=UTC))
    with pytest.raises(InvalidValueError, match="delay"):
        calls.later("job", None)
    with pytest.raises(TimeoutOutOfRangeError):
        calls.later("job", -1)
    with pytest.raises(InvalidKeyError):
        calls.later(b"job", 1)
    with pytest.raises(InvalidKeyError):
        calls.later("", 1)
    with pytest.raises(InvalidKeyError, match="no handler of any Calls"):
        calls.later(of_no_registry, 1)
    with pytest.raises(InvalidKeyError, match="one character"):
        calls.later("job", 1, id="")
    with pytest.raises(InvalidKeyError, match="a str"):
        calls.later("job", 1, id=b"id")
    with pytest.raises(KeyTooLongError):
        calls.later("n" * 256, 1)
    with pytest.raises(KeyTooLongError):
        calls.later("job", 1, id="n" * 254)
    with pytest.raises(InvalidValueError, match="'error', 'keep', 'replace', 'again'"):
        calls.later("job", 1, id="id", exists="drop")  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="needs an id"):
        calls.later("job", 1, exists="keep")
    with pytest.raises(PayloadTooLargeError, match=str(CALL_PAYLOAD_MAX)):
        calls.later("job", 1, bytes(CALL_PAYLOAD_MAX + 1))
    with pytest.raises(NotAMemberError, match="group"):
        Worker(world, None).calls.commands.later("job", 1)
    assert worker.protocol.ledger.issued == issued


def test_the_first_possible_moment_is_in_the_past(world: World) -> None:
    assert Worker(world).calls.commands.at("job", datetime(1, 1, 1, tzinfo=UTC), b"", None, "error")


def test_a_moment_in_the_past_is_due_at_once(world: World) -> None:
    job = Job()
    worker = worker_of(world, job, periodic=False)
    assert made(worker, worker.calls.commands.at("job", datetime(2020, 1, 1, tzinfo=UTC)))
    worker.do_all()
    assert len(job.calls) == 1
