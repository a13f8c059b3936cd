"""The client's protocol while its daemon is lost: errors, and operations that it gives up and later withdraws."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.fakes.fakedaemon import MS, FakeDaemon, World, kinds, link_state, live_world, state_of
from support.fakes.no_sockets import NOWHERE, no_sockets
from timerd_client.errors import SessionGoneError, TimerdUnavailableError
from timerd_client.hot.commands import NOTHING
from timerd_client.link.batch import ThreadedBatch
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.protocol import Protocol
from timerd_client.protocol.session import Identity
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.limits import DAEMON_LOST_NS, GRACE_NS, HEARTBEAT_NS, NO_DEADLINE
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import (
    CommandFlag,
    CommandHeader,
    CommandKind,
    DownKind,
    OperationCommand,
    ReportHeader,
    UpKind,
)

LOST_MS = DAEMON_LOST_NS // MS
GRACE_MS = GRACE_NS // MS


@pytest.fixture
def world() -> World:
    return live_world()


def pass_with_heartbeats(world: World, ms: int) -> None:
    """Let time pass, with a daemon that has nothing to send."""
    for _ in range(0, ms, 500):
        world.daemon.announce()
        world.pass_time(500, 50)


def return_of(world: World) -> None:
    """The daemon's frames arrive again, and everything that was kept is exchanged."""
    world.speak()
    world.pass_time(1_500, 25)
    assert link_state(world) is LinkState.LIVE


def error_of(operation: ThreadedOperation) -> str:
    outcome = operation.outcome()
    assert outcome is not None
    with pytest.raises(TimerdUnavailableError) as raised:
        outcome.unwrap()
    assert raised.value is outcome.error
    return str(raised.value)


def still_settles(world: World, operation: ThreadedOperation) -> None:
    """The client has given up neither its daemon nor the operation, and the daemon's outcome arrives."""
    assert link_state(world) is LinkState.LIVE
    assert not operation.done()
    world.daemon.settle(operation.command, Outcome.EXPIRED, b"")
    world.exchange()
    assert state_of(operation) is State.EXPIRED


# when an operation is given up ------------------------------------------------------------------------------------


def test_an_operation_is_unavailable_a_second_after_its_deadline_if_the_daemon_is_lost(world: World) -> None:
    early = world.register(b"early", timeout_ns=100 * MS)
    late = world.register(b"late", timeout_ns=10_000 * MS)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS - 50)
    assert link_state(world) is LinkState.LIVE
    assert not early.done()  # its deadline and the grace are over, but the daemon may still speak
    world.pass_time(100)
    assert link_state(world) is LinkState.LOST
    assert state_of(early) is State.UNAVAILABLE
    assert not early.result(0)
    assert "3.0 s" in error_of(early)
    world.pass_time(10_000 + GRACE_MS - LOST_MS - 100)
    assert not late.done()
    world.pass_time(100)
    assert state_of(late) is State.UNAVAILABLE


def test_while_the_daemon_lives_the_client_waits_for_its_outcome_however_late(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    pass_with_heartbeats(world, 8_000)
    still_settles(world, operation)


def test_one_heartbeat_in_three_seconds_keeps_the_daemon_from_being_lost(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    world.exchange()
    for _ in range(4):
        world.silence()
        world.pass_time(LOST_MS - 100, 50)
        world.speak()
        world.daemon.announce()
        world.exchange()
    assert not operation.done()


def test_an_operation_registered_while_the_daemon_is_lost_is_unavailable_in_time(world: World) -> None:
    world.protocol.grace_ns = 50 * MS  # less than the time between two hellos
    world.register(b"other", timeout_ns=60_000 * MS)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 100)
    for _ in range(10):
        operation = world.register(timeout_ns=30 * MS)
        world.pass_time(70)
        assert not operation.done()
        world.pass_time(20)
        assert state_of(operation) is State.UNAVAILABLE


def test_operations_of_a_client_that_never_found_its_daemon_become_unavailable() -> None:
    world = World()
    world.silence()
    operation = world.register(timeout_ns=100 * MS)
    forever = world.register(timeout_ns=NO_DEADLINE)
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE
    return_of(world)
    assert world.daemon.applied_commands[0][1] == NOTHING
    assert list(world.daemon.pending) == [forever.command]


def test_an_operation_without_a_deadline_is_pending_until_the_daemon_is_back(world: World) -> None:
    operation = world.register(timeout_ns=NO_DEADLINE)
    world.exchange()
    world.silence()
    world.pass_time(60_000, 500)
    assert not operation.done()
    with pytest.raises(TimeoutError):
        operation.result(0)
    return_of(world)
    world.fire(value=b"at last")
    world.exchange()
    assert operation.result(0).value == b"at last"


def test_a_rescheduled_deadline_decides_when_an_operation_is_unavailable(world: World) -> None:
    later = world.register(b"later", timeout_ns=1_000 * MS)
    sooner = world.register(b"sooner", timeout_ns=60_000 * MS)
    world.exchange()
    later.move(world.now + 20_000 * MS)
    world.silence()
    world.pass_time(LOST_MS + 100)
    assert not later.done()
    sooner.move(world.now)
    world.pass_time(GRACE_MS + 50)
    assert state_of(sooner) is State.UNAVAILABLE
    later.move(world.now + 40_000 * MS)
    world.pass_time(30_000, 100)
    assert not later.done()
    world.pass_time(10_000 + GRACE_MS + 100, 100)
    assert state_of(later) is State.UNAVAILABLE


def test_a_deadline_moved_between_two_outages_counts_in_the_second(world: World) -> None:
    operation = world.register(timeout_ns=60_000 * MS)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 100)
    return_of(world)
    operation.move(world.now)
    world.silence()
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE


def test_each_row_of_a_batch_is_unavailable_after_its_own_deadline(world: World) -> None:
    link, protocol = world.link, world.protocol
    batch = ThreadedBatch(link, [b"a", b"b"], b"", world.now, [100 * MS, 9_000 * MS])
    for row in range(2):
        number = world.register().command
        batch.add_part(number, row, 1)
        protocol.ledger.pending[number] = batch
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 50)
    assert batch.settled() == 1
    world.pass_time(9_000 + GRACE_MS - LOST_MS)
    assert batch.states(0) == [State.UNAVAILABLE, State.UNAVAILABLE]
    assert batch.completed(0) == 0
    assert all(isinstance(outcome.error, TimerdUnavailableError) for outcome in batch.outcomes(0))


def test_a_client_that_was_stopped_itself_makes_no_operation_unavailable(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    world.exchange()
    world.now += 60_000 * MS  # meanwhile the client did not run
    world.up()  # the client's sockets are still empty: the daemon's frames are still on their way
    still_settles(world, operation)


def test_a_client_that_is_stopped_again_and_again_still_finds_the_daemon_lost(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    world.exchange()
    world.silence()
    for _ in range(LOST_MS * MS // HEARTBEAT_NS):
        assert not operation.done()
        world.now += 60_000 * MS
        world.exchange()
    assert state_of(operation) is State.UNAVAILABLE


def test_the_bounds_of_a_lost_daemon_are_passed_in() -> None:
    world = World()
    world.protocol = Protocol(Identity("test"), world.now, lost_ns=200 * MS, grace_ns=50 * MS)
    world.link.protocol = world.protocol
    world.exchange()
    operation = world.register(timeout_ns=300 * MS)
    world.exchange()
    world.silence()
    world.pass_time(210)
    assert link_state(world) is LinkState.LOST
    world.pass_time(120)
    assert not operation.done()
    world.pass_time(20)
    assert state_of(operation) is State.UNAVAILABLE


# answers to questions ---------------------------------------------------------------------------------------------


def test_open_requests_fail_when_the_daemon_is_lost_and_the_operation_stays_pending(world: World) -> None:
    world.silence()
    fired, asked, registered = Reply(world.link), Reply(world.link), Reply(world.link)
    world.fire(b"other", reply=fired)
    world.protocol.query({"query": "ping"}, asked, world.now)
    operation = world.register(reply=registered, timeout_ns=60_000 * MS)
    world.pass_time(LOST_MS - 50)
    assert not fired.done()
    world.pass_time(100)
    for reply in (fired, asked, registered):
        with pytest.raises(TimerdUnavailableError, match=r"3\.0 s.*unknown"):
            reply.get()
    assert not operation.done()
    return_of(world)
    assert [CommandKind(command[0]) for _, command in world.daemon.applied_commands] == [
        CommandKind.FIRE,
        CommandKind.REGISTER,
    ]
    world.fire()
    world.exchange()
    assert state_of(operation) is State.COMPLETED


def test_no_question_is_sent_to_a_lost_daemon(world: World) -> None:
    link = Link(NOWHERE, world.protocol, no_sockets(), lambda: world.now)
    link.connection.refuse_lost()
    world.silence()
    world.pass_time(LOST_MS + 1_000)
    with pytest.raises(TimerdUnavailableError, match=r"state: lost, silent for 4\.0 s"):
        link.connection.refuse_lost()


def test_a_daemon_that_refuses_the_client_counts_as_lost_and_its_reason_is_reported() -> None:
    world = World()
    operation = world.register(timeout_ns=100 * MS)
    refusal = {"code": int(ErrorCode.ARENA_FULL), "message": "64 of 64 clients", "id": None}
    world.daemon._hello = lambda *_: world.daemon.routed.append(world.daemon.message(DownKind.ERROR, refusal))  # type: ignore[method-assign]
    world.pass_time(LOST_MS + 100, 50)
    assert state_of(operation) is State.UNAVAILABLE
    assert "64 of 64 clients" in world.protocol.status(world.now)


# what becomes of an operation when the daemon is back ---------------------------------------------------------------


def test_a_registration_that_was_never_sent_does_nothing_and_needs_no_cancel(world: World) -> None:
    world.silence()
    world.pass_time(LOST_MS + 100)
    operation = world.register(timeout_ns=0)
    world.pass_time(GRACE_MS + 50)
    assert state_of(operation) is State.UNAVAILABLE
    fired = world.fire(b"x")
    assert fired == operation.command + 1
    return_of(world)
    assert world.daemon.applied_commands[0] == (operation.command, NOTHING)
    assert world.daemon.applied_commands[1][0] == fired
    assert len(world.daemon.applied_commands) == 2
    assert not world.daemon.pending


def test_a_registration_that_may_have_been_sent_is_cancelled_even_if_it_arrives_late(world: World) -> None:
    on_their_way = world.stop()
    operation = world.register(timeout_ns=100 * MS)
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE
    commands = [frame for frame in on_their_way if unpack(CommandHeader, frame).kind == UpKind.COMMANDS]
    world.daemon.receive(commands[0])  # the daemon was only stopped: it reads what lay in its socket
    assert world.daemon.pending
    return_of(world)
    assert not world.daemon.pending
    assert [number for number, _ in world.daemon.applied_commands] == [1, 2]
    assert world.protocol.statistics().outcomes_after_giving_up == 0  # the operation was cancelled, as asked


def test_an_unavailable_operation_is_cancelled_and_a_pending_one_stays_pending(world: World) -> None:
    given_up = world.register(b"a", timeout_ns=100 * MS)
    pending = world.register(b"b", timeout_ns=60_000 * MS)
    told: list[Any] = []
    given_up.add_done_callback(told.append)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 100)
    return_of(world)
    number, command = world.daemon.applied_commands[-1]
    cancel = unpack(OperationCommand, command)
    assert (number, cancel.kind, cancel.operation) == (3, CommandKind.CANCEL, given_up.command)
    assert cancel.flags == CommandFlag.REQUEUE
    assert list(world.daemon.pending) == [pending.command]
    assert (told, state_of(given_up)) == ([given_up], State.UNAVAILABLE)
    assert not world.daemon.outcomes  # the cancelled outcome was acknowledged, and given to nobody
    assert world.protocol.statistics()[:4] == (1, 0, 0, 1)
    assert not world.protocol.incoming._abandoned


def test_an_outcome_after_unavailable_is_acknowledged_silently_and_counted(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    told: list[Any] = []
    operation.add_done_callback(told.append)
    world.exchange()
    world.daemon.settle(operation.command, Outcome.EXPIRED, b"")
    world.silence()
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE
    return_of(world)
    assert (told, state_of(operation)) == ([operation], State.UNAVAILABLE)
    assert not world.daemon.outcomes
    statistics = world.protocol.statistics()
    assert (statistics.given_up, statistics.outcomes_after_giving_up, statistics.outcomes_unknown) == (1, 1, 0)
    assert not world.protocol.incoming.complaints


def lose_a_refusal(world: World) -> None:
    """A registration is refused, and the refusal is lost on its way down. So the registration is given up."""
    world.daemon.refuse[1] = ErrorCode.QUOTA_EXCEEDED
    operation = world.register(timeout_ns=100 * MS)
    world.lose_down = lambda frame: True
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE


def test_a_late_refusal_of_an_unavailable_operation_is_not_reported(world: World) -> None:
    lose_a_refusal(world)
    return_of(world)
    assert not world.protocol.incoming.complaints
    assert not world.daemon.answers


def test_a_late_refusal_that_arrives_after_the_withdrawal_is_not_reported(world: World) -> None:
    lose_a_refusal(world)
    world.lose_down = lambda frame: unpack(ReportHeader, frame).answers > 0
    world.pass_time(1_500, 25)
    world.daemon.announce()
    world.pass_time(100)
    assert (world.protocol.ledger.applied, list(world.daemon.answers)) == (2, [1])
    return_of(world)
    assert not world.daemon.answers
    assert not world.protocol.incoming.complaints
    assert world.protocol.statistics().commands_refused == 0
    assert not world.protocol.incoming._abandoned


def test_a_grant_of_an_unavailable_operation_is_requeued_before_it_is_acknowledged(world: World) -> None:
    before = world.register(b"before", timeout_ns=60_000 * MS)
    operation = world.register(timeout_ns=100 * MS)
    world.exchange()
    world.fire(limit=1)
    world.lose_down = lambda frame: True
    world.pass_time(LOST_MS + 100)
    assert state_of(operation) is State.UNAVAILABLE
    world.daemon.settle(before.command, Outcome.EXPIRED, b"")
    world.sent.clear()
    world.speak()
    # The outcome of `before` comes after the grant. Its acknowledgement would acknowledge the grant, too.
    # The withdrawing command is lost at first, the acknowledgements are not.
    world.lose_up = lambda frame: unpack(CommandHeader, frame).kind == UpKind.COMMANDS
    world.pass_time(600, 25)
    assert link_state(world) is LinkState.LIVE
    assert state_of(before) is State.EXPIRED
    assert world.daemon.outcomes
    assert UpKind.ACK in kinds(world.sent)
    return_of(world)
    assert world.daemon.requeued == [operation.command]
    assert not world.daemon.outcomes
    assert world.protocol.statistics().outcomes_after_giving_up == 1


def test_a_grant_without_a_number_holds_back_every_acknowledgement(world: World) -> None:
    world.register(timeout_ns=100 * MS)
    world.exchange()
    world.fire(limit=1)
    world.lose_down = lambda frame: True
    world.pass_time(LOST_MS + 100)
    for number, (record, value) in world.daemon.outcomes.items():
        world.daemon.outcomes[number] = record._replace(number=0), value  # no real daemon does this
    world.sent.clear()
    world.speak()
    world.lose_up = lambda frame: unpack(CommandHeader, frame).kind == UpKind.COMMANDS
    world.pass_time(600, 25)
    headers = [unpack(CommandHeader, frame) for frame in world.sent]
    assert {header.acknowledged_outcome for header in headers if header.kind == UpKind.ACK} == {0}


def test_a_grant_that_was_requeued_before_its_outcome_arrived_is_acknowledged_at_once(world: World) -> None:
    operation = world.register(timeout_ns=100 * MS)
    world.exchange()
    world.fire(limit=1)
    world.lose_down = lambda frame: True
    world.pass_time(LOST_MS + 100)
    world.lose_down = lambda frame: unpack(ReportHeader, frame).outcomes > 0
    world.pass_time(1_500, 25)
    assert world.daemon.requeued == [operation.command]
    return_of(world)
    assert not world.daemon.outcomes


@pytest.mark.parametrize(("timeouts_ms", "kept"), [((50, 100), [2, 1, 0]), ((100, 50), [2, 2, 0])])
def test_a_grant_and_the_outcomes_behind_it_are_acknowledged_when_the_grant_is_requeued(
    world: World, timeouts_ms: tuple[int, int], kept: list[int]
) -> None:
    operations = [world.register(timeout_ns=timeout_ms * MS) for timeout_ms in timeouts_ms]
    world.exchange()
    world.fire(limit=2)
    world.lose_down = lambda frame: True
    world.pass_time(LOST_MS + 100)
    assert [state_of(operation) for operation in operations] == [State.UNAVAILABLE] * 2
    world.daemon.apply_up_to = world.daemon.applied
    world.speak()
    for given_back in range(2):
        world.pass_time(1_500, 25)
        assert len(world.daemon.requeued) == given_back
        assert len(world.daemon.outcomes) == kept[given_back]
        world.daemon.apply_up_to += 1
    return_of(world)
    assert sorted(world.daemon.requeued) == [operation.command for operation in operations]
    assert not world.daemon.outcomes


def test_an_operation_without_a_handle_is_withdrawn_while_the_daemon_lives(world: World) -> None:
    reply = Reply(world.link)
    operation = world.register(reply=reply)
    world.up()  # on its way
    assert world.protocol.incoming.abandon([operation.command], TimerdUnavailableError("nobody waits")) == 1
    assert world.protocol.incoming.abandon([operation.command], TimerdUnavailableError("nobody waits")) == 0
    assert reply.done()
    pass_with_heartbeats(world, 500)
    assert not world.daemon.pending
    assert not world.protocol.incoming.replies
    assert world.protocol.statistics().given_up == 0  # a withdrawal does not count


def test_in_another_arena_unavailable_operations_are_forgotten_and_pending_ones_fail(world: World) -> None:
    given_up = world.register(timeout_ns=100 * MS)
    forever = world.register(timeout_ns=NO_DEADLINE)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 100)
    world.daemon = FakeDaemon(arena=88)
    return_of(world)
    assert state_of(given_up) is State.UNAVAILABLE
    assert isinstance(forever.result(0).error, SessionGoneError)
    assert world.protocol.statistics().commands_unknown == 1  # the command that cancels `given_up`
    assert not world.protocol.incoming._abandoned
    world.silence()
    world.pass_time(LOST_MS + 100)
    unsent = world.register(timeout_ns=0)
    world.pass_time(GRACE_MS + 50)
    assert state_of(unsent) is State.UNAVAILABLE
    return_of(world)
    assert world.daemon.applied_commands == [(1, NOTHING)]


def test_a_daemon_that_no_longer_knows_the_client_is_not_lost(world: World) -> None:
    world.register(timeout_ns=NO_DEADLINE)
    world.exchange()
    world.silence()
    world.pass_time(LOST_MS + 100)
    world.daemon.known = None
    world.lose_up = lambda frame: False
    world.lose_down = lambda frame: unpack(ReportHeader, frame).kind != DownKind.SESSION_GONE
    world.pass_time(1_100)
    assert link_state(world) is LinkState.CONNECTING
    operation = world.register(timeout_ns=0)
    world.pass_time(1_500)  # a second beyond the deadline, and more
    assert not operation.done()
    return_of(world)
    assert list(world.daemon.pending) == [operation.command]


def test_a_daemon_that_was_stopped_and_continues_makes_no_outcome_wrong(world: World) -> None:
    short = world.register(b"short", timeout_ns=1_500 * MS)
    long = world.register(b"long", timeout_ns=10_000 * MS)
    world.exchange()
    in_its_socket = world.stop()
    world.fire(b"short", value=b"too late")
    world.pass_time(5_000)
    assert (state_of(short), state_of(long)) == (State.UNAVAILABLE, None)
    world.speak()
    for frame in in_its_socket:  # among them all hellos of the client
        world.daemon.receive(frame)
    world.pass_time(1_500, 25)
    assert link_state(world) is LinkState.LIVE
    assert (state_of(short), state_of(long)) == (State.UNAVAILABLE, None)
    assert world.protocol.statistics().outcomes_after_giving_up == 1
    world.fire(b"long")
    world.exchange()
    assert state_of(long) is State.COMPLETED
    assert [number for number, _ in world.daemon.applied_commands] == list(range(1, world.protocol.ledger.issued + 1))


def test_random_outages_settle_no_operation_twice_and_lose_no_operation_and_no_grant(
    rng: random.Random,
) -> None:
    world = live_world()
    protocol, daemon = world.protocol, world.daemon
    settled: dict[int, int] = {}
    operations: list[ThreadedOperation] = []

    def count(operation: ThreadedOperation) -> None:
        settled[operation.command] = settled.get(operation.command, 0) + 1
        if state_of(operation) is State.UNAVAILABLE:
            assert link_state(world) is LinkState.LOST
            assert world.now >= operation.deadline_ns + GRACE_NS

    for _ in range(12):
        outage_ms = rng.choice([500, 2_000, 4_000, 8_000])
        stopped = rng.random() < 0.5  # otherwise the frames in its socket are lost
        in_its_socket = world.stop()
        if rng.random() < 0.7:
            world.lose_down = lambda frame: True
        for _ in range(outage_ms // 100):
            if rng.random() < 0.5:
                timeout_ns = rng.choice([0, 500, 3_000, 30_000]) * MS
                name, asks = b"%d" % rng.randrange(5), rng.random() < 0.2
                operation = world.register(name, timeout_ns=timeout_ns, reply=Reply(world.link) if asks else None)
                operation.add_done_callback(count)
                operations.append(operation)
            if rng.random() < 0.3:
                world.fire(b"%d" % rng.randrange(5), limit=1)
            world.pass_time(100, 50)
        world.speak()
        for frame in in_its_socket if stopped else ():
            daemon.receive(frame)
        for _ in range(20):
            daemon.announce()
            world.pass_time(100, 50)
            if rng.random() < 0.3:
                world.fire(b"%d" % rng.randrange(5), limit=1)
    for key in range(5):
        world.fire(b"%d" % key, limit=len(operations))
    for _ in range(20):
        daemon.announce()
        world.pass_time(100, 50)

    assert settled == {operation.command: 1 for operation in operations}
    assert not daemon.pending
    assert not daemon.outcomes
    assert [number for number, _ in daemon.applied_commands] == list(range(1, protocol.ledger.issued + 1))
    states = {operation.command: state_of(operation) for operation in operations}
    assert {State.UNAVAILABLE, State.COMPLETED} <= set(states.values())
    completed = {command for command, state in states.items() if state is State.COMPLETED}
    assert sorted([*completed, *daemon.requeued]) == sorted(daemon.granted)
    statistics = protocol.statistics()
    assert statistics.outcomes_after_giving_up == len(daemon.requeued)
    assert (statistics.waiting, statistics.unacknowledged, statistics.commands_unknown) == (0, 0, 0)
    assert not protocol.incoming._abandoned
