"""A grant that no caller has looked at goes to another operation as soon as nobody holds the granted operation."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

import timerd_client
from support.fakes.fakedaemon import MS, FakeDaemon, World, live_world, state_of
from support.fakes.interrupts import Interrupt
from timerd_client.errors import ClosedError, OperationCancelled, SessionGoneError
from timerd_client.hot import Ledger, Pending, is_held, settle_all
from timerd_client.link.batch import Batch, ThreadedBatch
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation, grant_of
from timerd_client.outcome import State
from timerd_client.protocol.grants import BEHIND_BYTES_MAX, BEHIND_OUTCOMES_MAX
from timerd_shm.declare.fields import size_of, struct_of
from timerd_shm.declare.limits import PAYLOAD_SIZE_MAX
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import OutcomeFlag, OutcomeRecord, ReportHeader


@pytest.fixture
def world() -> World:
    return live_world()


def grant(world: World, limit: int = 1) -> None:
    """A limited event completes the oldest operations, up to `limit`, and their outcomes arrive."""
    world.fire(value=b"job", limit=limit)
    world.exchange()


def pass_time(world: World, ms: int = 3_000) -> None:
    """Let time pass, with a daemon that reminds while something is not acknowledged."""
    for _ in range(0, ms, 500):
        world.daemon.announce()
        world.pass_time(500, 50)


def is_acknowledged(world: World) -> bool:
    """Whether all that the daemon has sent is acknowledged, in time."""
    pass_time(world)
    return not world.daemon.outcomes


# nobody holds the operation when its grant comes -------------------------------------------------------------------


def timed_out(operation: ThreadedOperation) -> None:
    with pytest.raises(TimeoutError):
        operation.result(0)


def interrupted(operation: ThreadedOperation) -> None:
    operation._link.waiters.gate = lambda: SimpleNamespace(open=print, wait=interrupt)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(KeyboardInterrupt):
        operation.result()


def interrupt(seconds: float | None) -> bool:
    raise KeyboardInterrupt


def in_vain(operation: ThreadedOperation) -> None:
    assert timerd_client.wait([operation], 0).pending == [operation]
    with pytest.raises(TimeoutError):
        list(timerd_client.as_completed([operation], 0))
    assert not operation.done() and operation.outcome() is None and "PENDING" in repr(operation)


@pytest.mark.parametrize("leave", [lambda operation: None, timed_out, interrupted, in_vain])
def test_a_grant_that_nobody_can_see_is_requeued_before_it_is_acknowledged(
    world: World, leave: Callable[[ThreadedOperation], None]
) -> None:
    world.link.waiters.queue = SimpleQueue  # type: ignore[method-assign]
    leave(world.register())
    world.exchange()
    world.daemon.apply_up_to = world.protocol.ledger.issued + 1
    grant(world)
    pass_time(world)
    assert list(world.daemon.outcomes) == [1] and not world.daemon.requeued
    world.daemon.apply_up_to += 1
    assert is_acknowledged(world) and world.daemon.requeued == [1]
    assert world.protocol.statistics().grants_requeued == 1
    assert not world.protocol.ledger.pending and not world.protocol.incoming.grants.unseen


def test_a_grant_that_is_held_goes_to_nobody_else_and_is_acknowledged_when_it_is_looked_at(world: World) -> None:
    operation, behind = world.register(), world.register(b"other")
    world.exchange()
    grant(world)
    world.fire(b"other")
    assert not is_acknowledged(world) and not world.daemon.requeued
    assert behind.done() and sorted(world.daemon.outcomes) == [1, 2], (
        "an acknowledgement covers all outcomes up to a number"
    )
    assert operation.result(0).value == b"job"
    assert is_acknowledged(world)
    del operation
    assert is_acknowledged(world) and not world.daemon.requeued


# looks ------------------------------------------------------------------------------------------------------------


def awaited(operation: ThreadedOperation) -> None:
    with pytest.raises(StopIteration):
        next(iter(operation.__await__()))


LOOKS: dict[str, Callable[[ThreadedOperation], object]] = {
    "result": lambda operation: operation.result(0),
    "outcome": lambda operation: operation.outcome(),
    "done": lambda operation: operation.done(),
    "await": awaited,
    "a callback": lambda operation: operation.add_done_callback(lambda _: None),
    "wait": lambda operation: timerd_client.wait([operation], 0),
    "wait for the first": lambda operation: timerd_client.wait([operation], 0, until="first"),
    "as_completed": lambda operation: list(timerd_client.as_completed([operation], 1)),
}
NO_LOOKS: dict[str, Callable[[ThreadedOperation], object]] = {
    "repr": repr,
    "cancel": lambda operation: operation.cancel(),
    "cancel_wait": lambda operation: operation.cancel_wait(timeout=0),
    "reschedule": lambda operation: operation.reschedule(1),
    "keys": lambda operation: (operation.keys, operation.id, operation.payload, operation.deadline_ns),
    "another one's end": lambda operation: next(timerd_client.as_completed([settled(operation), operation])),
}


def settled(like: ThreadedOperation) -> ThreadedOperation:
    other = ThreadedOperation(like._link, 0, "other", b"", 0)
    other._abandon(OperationCancelled("settled"))
    return other


@pytest.mark.parametrize("way", [*LOOKS, *NO_LOOKS])
def test_a_dropped_operation_is_requeued_unless_a_caller_has_looked_at_its_outcome(world: World, way: str) -> None:
    world.link.waiters.queue = SimpleQueue  # type: ignore[method-assign]
    operation = world.register()
    world.exchange()
    grant(world)
    pass_time(world)
    assert world.daemon.outcomes
    (LOOKS | NO_LOOKS)[way](operation)
    del operation
    assert is_acknowledged(world)
    assert world.daemon.requeued == ([] if way in LOOKS else [1])


def test_a_callback_holds_a_dropped_operation_and_has_looked_when_it_was_called(world: World) -> None:
    called: list[bytes] = []
    world.register().add_done_callback(lambda done: called.append(done.outcome().value))
    world.register().add_done_callback(lambda _: called.append(b"it has come"))
    world.exchange()
    grant(world, limit=2)
    assert is_acknowledged(world) and not world.daemon.requeued
    assert called == [b"job", b"it has come"]


def test_a_callback_that_only_traces_an_operation_does_not_hold_it(world: World) -> None:
    world.register()._call_aside(lambda _: None, wakes=False)
    world.exchange()
    grant(world)
    assert is_acknowledged(world) and world.daemon.requeued == [1]


def test_an_operation_that_as_completed_has_not_yielded_is_requeued(world: World) -> None:
    world.link.waiters.queue = SimpleQueue  # type: ignore[method-assign]
    settling = timerd_client.as_completed([world.register(), world.register()], 1)
    world.exchange()
    taken = iter(settling)
    thread = threading.Thread(target=next, args=(taken,))
    thread.start()
    grant(world, limit=2)
    thread.join()
    pass_time(world)
    assert sorted(world.daemon.outcomes) == [2]
    del settling, taken, thread
    assert is_acknowledged(world) and world.daemon.requeued == [2]


# references to an operation ---------------------------------------------------------------------------------------


def test_a_traceback_holds_an_operation_until_it_is_dropped(world: World) -> None:
    def give_up(operation: ThreadedOperation) -> TimeoutError:
        try:
            operation.result(0)
        except TimeoutError as error:
            return error
        raise AssertionError("it is pending")

    errors = [give_up(world.register())]
    world.exchange()
    grant(world)
    pass_time(world, 10_000)
    assert world.daemon.outcomes and not world.daemon.requeued
    errors.clear()
    assert is_acknowledged(world) and world.daemon.requeued == [1]


def test_a_cycle_holds_an_operation_until_the_collector_has_run(world: World) -> None:
    gc.disable()
    try:
        cycle: list[object] = [world.register()]
        cycle.append(cycle)
        del cycle
        world.exchange()
        grant(world)
        pass_time(world, 10_000)
        assert world.daemon.outcomes and not world.daemon.requeued
        gc.collect()
        assert is_acknowledged(world) and world.daemon.requeued == [1]
    finally:
        gc.enable()


def test_a_thread_that_waits_holds_an_operation(world: World) -> None:
    operation = world.register()
    world.exchange()
    waiting = threading.Thread(target=lambda: operation.result(30))
    waiting.start()
    grant(world)
    waiting.join()
    assert is_acknowledged(world) and not world.daemon.requeued


# outcomes after a grant - ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "size"), [(BEHIND_OUTCOMES_MAX, 0), (BEHIND_BYTES_MAX // PAYLOAD_SIZE_MAX, PAYLOAD_SIZE_MAX)]
)
def test_a_grant_that_is_kept_unseen_holds_back_a_bounded_number(world: World, count: int, size: int) -> None:
    operation = world.register()
    others = [world.register(b"other") for _ in range(count)]
    world.exchange()
    grant(world)
    for other in others:
        world.daemon.settle(other.command, Outcome.COMPLETED, bytes(size))
    world.exchange()
    pass_time(world, 500)
    assert len(world.daemon.outcomes) == 1 + count, "the grant came less than a second ago"
    assert is_acknowledged(world)
    statistics = world.protocol.statistics()
    assert (statistics.grants_requeued, statistics.grants_unseen) == (0, 1)
    assert operation.result(0).value == b"job", "the owner of the operation may still look at it"


def test_each_grant_behind_another_is_requeued_as_soon_as_nobody_holds_it(world: World) -> None:
    operations = [world.register() for _ in range(20)]
    world.exchange()
    grant(world, limit=20)
    pass_time(world)
    order = random.Random(1).sample(range(20), 20)
    for done, at in enumerate(order):
        assert sorted(world.daemon.requeued) == sorted(1 + before for before in order[:done])
        operations[at] = None  # type: ignore[call-overload]
        pass_time(world, 500)
    assert is_acknowledged(world) and len(world.daemon.requeued) == 20


# the end ----------------------------------------------------------------------------------------------------------


def error_of(operation: ThreadedOperation) -> Exception | None:
    outcome = operation.outcome()
    assert outcome is not None and outcome.state is State.FAILED
    return outcome.error


def test_a_close_leaves_unseen_grants_to_the_daemon_and_a_later_look_gets_an_error(world: World) -> None:
    seen, unseen = world.register(), world.register()
    world.register()
    world.exchange()
    grant(world, limit=3)
    assert seen.done()
    world.daemon.apply_up_to = world.daemon.applied  # so the grant of the dropped operation is not requeued yet
    world.protocol.close(world.now)
    world.exchange()
    assert world.daemon.byes == 1 and sorted(world.daemon.outcomes) == [2, 3], "the owner of these outcomes is dead now"
    assert state_of(seen) is State.COMPLETED
    assert isinstance(error_of(unseen), ClosedError) and "it is requeued" in str(error_of(unseen))


def test_a_grant_that_the_daemon_has_requeued_meanwhile_is_not_seen_any_more(world: World) -> None:
    seen, unseen = world.register(), world.register()
    world.exchange()
    grant(world, limit=2)
    assert seen.done()
    world.daemon.gone = world.protocol.ledger.issued
    world.silence()
    world.pass_time(4_000)
    world.speak()
    world.pass_time(1_500, 25)
    assert state_of(seen) is State.COMPLETED and isinstance(error_of(unseen), SessionGoneError)
    assert not world.protocol.incoming.grants.unseen and not world.daemon.requeued


def test_a_grant_of_an_earlier_session_does_not_concern_the_next_one(world: World) -> None:
    operation = world.register()
    world.exchange()
    grant(world)
    world.daemon.__init__(arena=78)  # type: ignore[misc]
    world.pass_time(6_000, 25)
    next_one = world.register()
    world.exchange()
    grant(world)
    assert world.daemon.outcomes and next_one.done()
    del operation
    assert is_acknowledged(world) and not world.daemon.requeued


def test_a_grant_that_its_client_requeues_is_not_seen_any_more(world: World) -> None:
    operation, looked_at = world.register(), world.register()
    world.exchange()
    grant(world, limit=2)
    assert looked_at.done()
    for one in (operation, looked_at):
        world.protocol.incoming.grants.requeue(grant_of(one._settlement), OperationCancelled("not wanted"))
    assert is_acknowledged(world) and world.daemon.requeued == [operation.command]
    assert isinstance(error_of(operation), OperationCancelled) and state_of(looked_at) is State.COMPLETED


# batches ----------------------------------------------------------------------------------------------------------


class Grantor:
    """Batches in a table of pending operations, as register_many puts them there, and outcomes for their rows."""

    def __init__(self) -> None:
        self.ledger = Ledger(1 << 16)
        self.grants: dict[int, Any] = {}
        self.ready: list[Any] = []
        self._number = 0

    @property
    def pending(self) -> Pending:
        pending: Pending = self.ledger.pending
        return pending

    def add(self, rows: int, parts: list[int] | None = None) -> ThreadedBatch:
        """A batch, in parts of these sizes; a part of one row is registered singly."""
        made = ThreadedBatch(cast(Link, None), ["k"] * rows, b"", 0, 0)
        row = 0
        for part in parts or [rows]:
            first = self.ledger.issue_all([b"command"] * part)
            made.add_part(first, row, part)
            if part == 1:
                self.pending[first] = made
            else:
                self.pending.add_all(first, part, made)
            row += part
        return made

    def settle(self, *commands: int, granted: bool = True) -> None:
        rows = b""
        for command in commands:
            self._number += 1
            flags = OutcomeFlag.GRANTED if granted else 0
            record = OutcomeRecord(
                command, self._number, 5, 2_000, 1_500, 1_000, 6, 1, 0, 0, 0, 0, 0, 0, 1, 1, flags, 0
            )
            rows += struct_of(OutcomeRecord).pack(*record)
        frame = bytes(size_of(ReportHeader)) + rows
        settle_all(self.pending, self.ready, frame, len(commands), 0, 77, lambda *unclaimed: None, self.grants)

    def held(self) -> list[bool]:
        """Whether each grant is held, in order."""
        return [is_held(self.pending, self.grants[number]) for number in list(self.grants)]


@pytest.mark.parametrize("parts", [[1], [2], [15], [16], [40], [16, 15], [1, 1, 1], [20, 1, 30, 2], [64, 64, 16]])
def test_a_batch_is_held_as_long_as_somebody_refers_to_it_or_to_a_row(parts: list[int]) -> None:
    grantor = Grantor()
    before, batch = grantor.add(17), grantor.add(sum(parts), parts)
    commands = list(batch.commands())
    for command in commands[: len(commands) // 2 + 1]:
        grantor.settle(command)
        assert all(grantor.held())
    row = batch[0]
    del batch
    assert all(grantor.held())
    del row
    assert not any(grantor.held())
    del before


def test_the_references_to_batches_are_counted_whatever_was_settled(seed: int) -> None:
    rng = random.Random(seed)
    grantor, batches = Grantor(), list[Batch | None]()
    for _ in range(12):
        parts = [rng.choice((1, 2, 3, 15, 16, 17, 64, 200)) for _ in range(rng.randrange(1, 5))]
        batches.append(grantor.add(sum(parts), parts))
        if rng.random() < 0.5:
            grantor.ledger.issue(b"another command")
    rows = [(at, command) for at, batch in enumerate(batches) for command in cast(Batch, batch).commands()]
    owners = {command: at for at, command in rows}
    rng.shuffle(rows)
    dropped: set[int] = set()
    for step, (_, command) in enumerate(rows):
        grantor.settle(command, granted=rng.random() < 0.3)
        if step % 50 == 49 and len(dropped) < len(batches) - 1:
            at = rng.choice([at for at in range(len(batches)) if at not in dropped])
            batches[at] = None
            dropped.add(at)
        if step % 10 == 0:
            wanted = [owners[pair[0]] not in dropped for pair in grantor.grants.values()]
            grantor.ready.clear()
            assert grantor.held() == wanted, f"step {step} of seed {seed}"


BATCH_LOOKS: dict[str, Callable[[ThreadedBatch], object]] = {
    "outcomes": lambda batch: batch.outcomes(0),
    "states": lambda batch: batch.states(0),
    "values": lambda batch: batch.values(0),
    "completed": lambda batch: batch.completed(0),
    "done": lambda batch: batch.done(),
    "rows": lambda batch: [row.outcome() for row in batch],
    "rows done": lambda batch: [row.done() for row in batch],
    "a callback": lambda batch: batch.add_done_callback(lambda _: None),
}
BATCH_NO_LOOKS: dict[str, Callable[[ThreadedBatch], object]] = {
    "repr": lambda batch: (repr(batch), repr(batch[0])),
    "settled": lambda batch: batch.settled(),
    "refused": lambda batch: batch.refused(),
}


def batch_of(world: World, rows: int) -> ThreadedBatch:
    operations = [world.register() for _ in range(rows)]
    batch = ThreadedBatch(world.link, ["k"] * rows, b"", world.now, 30_000 * MS)
    pending = world.protocol.ledger.pending
    for operation in operations:
        pending.pop(operation.command)
    batch.add_part(operations[0].command, 0, rows)
    pending.add_all(operations[0].command, rows, batch)
    return batch


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("way", [*BATCH_LOOKS, *BATCH_NO_LOOKS])
def test_rows_at_which_nobody_has_looked_go_to_others_when_their_batch_is_dropped(
    world: World, way: str, rows: int
) -> None:
    batch = batch_of(world, rows)
    world.exchange()
    grant(world, limit=rows)
    pass_time(world)
    assert len(world.daemon.outcomes) == rows
    (BATCH_LOOKS | BATCH_NO_LOOKS)[way](batch)
    del batch
    assert is_acknowledged(world)
    assert world.daemon.requeued == ([] if way in BATCH_LOOKS else list(range(1, rows + 1)))


@pytest.mark.parametrize("rows", [3, 40])
def test_a_row_of_a_dropped_batch_is_requeued_though_others_are_pending(world: World, rows: int) -> None:
    batch = batch_of(world, rows)
    world.exchange()
    grant(world)
    assert batch[0].done()
    grant(world)
    pass_time(world)
    assert list(world.daemon.outcomes) == [2] and not world.daemon.requeued
    del batch
    assert is_acknowledged(world) and world.daemon.requeued == [2]
    grant(world)
    assert is_acknowledged(world) and world.daemon.requeued == [2, 3]
    assert len(world.protocol.ledger.pending) == rows - 3


def test_rows_that_a_close_has_requeued_have_an_error_and_the_others_have_their_outcomes(world: World) -> None:
    batch = batch_of(world, 3)
    world.exchange()
    grant(world, limit=3)
    assert batch[1].done()
    world.protocol.close(world.now)
    world.exchange()
    assert sorted(world.daemon.outcomes) == [1, 2, 3], "an acknowledgement covers all outcomes up to a number"
    assert batch.states(0) == [State.FAILED, State.COMPLETED, State.FAILED]
    assert batch.values(0) == [b"", b"job", b""] and isinstance(batch.outcomes(0)[2].error, ClosedError)


# interrupts -------------------------------------------------------------------------------------------------------


def test_a_result_that_is_interrupted_anywhere_is_either_returned_or_goes_to_another_operation() -> None:
    """A signal handler may raise after any call. If it raises in `result()`, nobody has looked at the outcome."""
    places: set[str] = set()
    for at in range(1, 200):
        world = live_world()
        got = granted_and_interrupted(world, Interrupt(at, ("/timerd_client/link/", "/hot/", "/outcome.py")), places)
        assert is_acknowledged(world)
        assert world.daemon.requeued == ([] if got else [1]), f"at place {at}: {got!r}"
        if got:
            break
    assert len(places) >= 3 and got, places


def granted_and_interrupted(world: World, interrupt: Interrupt, places: set[str]) -> bytes:
    operation, got = world.register(), b""
    world.exchange()
    grant(world)
    with suppress(KeyboardInterrupt):
        with interrupt:
            outcome = operation.result(0)
        got = outcome.value
    places.add(interrupt.where)
    interrupt._before.clear()  # it kept frames of the stack, which refer to the operation
    return got


def test_a_daemon_that_numbers_outcomes_at_random_ends_no_client(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        world = live_world()
        kept = [world.register() for _ in range(rng.randrange(1, 8))]
        for _ in range(4):
            world.register()
        world.exchange()
        world.fire(limit=rng.randrange(1, 12))
        for frame in world.up():
            world.daemon.receive(frame)
        shuffle_numbers(world.daemon, rng)
        world.exchange()
        world.pass_time(2_000, 100)
        kept.clear()
        world.pass_time(2_000, 100)


def shuffle_numbers(daemon: FakeDaemon, rng: random.Random) -> None:
    for number, (record, value) in list(daemon.outcomes.items()):
        told = rng.choice((0, number, rng.randrange(20), sys.maxsize))
        daemon.outcomes[number] = record._replace(number=told), value
