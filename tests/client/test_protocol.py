"""The client's protocol against a daemon in memory, on a manual clock: what it does when frames are lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.fakes.fakedaemon import MS, FakeDaemon, World, kinds, link_state, live_world, state_of
from timerd_client.errors import (
    ArenaFullError,
    SessionGoneError,
    TimerdError,
    UnsupportedVersionError,
)
from timerd_client.hot.commands import operation_command
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.deadlines import NEVER
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import ErrorCode, MalformedError
from timerd_shm.declare.fields import offset_of, struct_of, unpack
from timerd_shm.declare.limits import (
    COMMANDS_PER_FRAME_MAX,
    DAEMON_LOST_NS,
    FRAME_SIZE_MAX,
    HEARTBEAT_NS,
    PAYLOAD_SIZE_MAX,
)
from timerd_shm.declare.wire import (
    PROTOCOL_VERSION,
    CommandHeader,
    CommandKind,
    DownKind,
    FrameFlag,
    RegisterCommand,
    ReportHeader,
    UpKind,
)


@pytest.fixture
def world() -> World:
    return live_world()


def test_a_client_is_live_only_after_its_first_report() -> None:
    world = World()
    assert link_state(world) is LinkState.CONNECTING
    for frame in world.up():
        world.daemon.receive(frame)
    world.down()
    assert link_state(world) is LinkState.HELLO
    assert world.protocol.session.secret == world.daemon.session
    world.exchange()
    assert link_state(world) is LinkState.LIVE


def test_hello_is_sent_again_until_a_daemon_answers() -> None:
    world = World()
    world.lose_up = lambda frame: True
    world.pass_time(2_000)
    assert link_state(world) is LinkState.CONNECTING
    assert 3 <= kinds(world.sent).count(UpKind.HELLO) <= 6
    world.lose_up = lambda frame: False
    world.pass_time(1_100)
    assert link_state(world) is LinkState.LIVE


def asking(world: World) -> list[bool]:
    """Send what is due. Returns for each frame whether it asks the daemon to confirm at once."""
    return [bool(unpack(CommandHeader, memoryview(frame)).flags & FrameFlag.CONFIRM) for frame in world.up()]


def test_a_client_asks_once_for_a_report_of_applied_commands(world: World) -> None:
    """The question goes with the frame of the commands if this frame is not sent yet, else in a frame of its own."""
    world.fire(b"k")
    assert asking(world) == [False], "nobody waits"
    world.protocol.confirm()
    assert asking(world) == [True] and kinds(world.sent)[-1] is UpKind.ACK
    world.protocol.confirm()
    assert asking(world) == [], "the daemon was asked before"
    world.fire(b"k")
    world.protocol.confirm()
    assert asking(world) == [True] and kinds(world.sent)[-1] is UpKind.COMMANDS
    world.fire(b"k")
    assert asking(world) == [False]


def test_a_question_that_is_lost_is_asked_again_with_the_commands(world: World) -> None:
    world.lose_up = lambda frame: True
    world.fire(b"k")
    world.protocol.confirm()
    assert asking(world) == [True]
    world.now += 251 * MS
    world.protocol.tick(world.now)
    assert asking(world) == [True]


def test_a_window_that_fills_asks_before_it_is_full() -> None:
    world = live_world(window=8)
    asked = []
    for _ in range(8):
        world.fire(b"k")
        asked += asking(world)
    assert asked == [False] * 4 + [True] * 4


def test_commands_that_piled_up_are_sent_in_one_frame(world: World) -> None:
    operations = [world.register(b"k%d" % index) for index in range(100)]
    for index in range(100):
        world.fire(b"k%d" % index, b"v%d" % index)
    assert kinds(world.up()) == [UpKind.COMMANDS]
    world.daemon.receive(world.sent[-1])
    world.daemon.turn()
    world.down()
    assert all(operation.done() for operation in operations)
    outcome = operations[7].result(0)
    assert (outcome.state, outcome.key, outcome.value) == (State.COMPLETED, b"k7", b"v7")
    assert outcome.wait_ns == 1_000
    assert outcome.mark.incarnation == world.daemon.arena
    assert not world.protocol.ledger.pending


def test_a_kept_outcome_does_not_keep_its_frame(world: World) -> None:
    operation = world.register()
    world.fire(value=b"x" * 10)
    world.exchange()
    record, value, _, _ = operation._settlement
    assert (type(record), len(record), type(value), len(value)) == (bytes, 96, bytes, 10)


def test_a_frame_has_no_more_commands_and_bytes_than_allowed(world: World) -> None:
    for _ in range(COMMANDS_PER_FRAME_MAX + 1):
        world.fire()
    headers = [unpack(CommandHeader, frame) for frame in world.up()]
    assert [header.count for header in headers] == [COMMANDS_PER_FRAME_MAX, 1]
    assert headers[1].first_command == COMMANDS_PER_FRAME_MAX + 1
    for _ in range(100):
        world.fire(value=b"x" * PAYLOAD_SIZE_MAX)
    frames = world.up()
    assert len(frames) > 1
    assert max(map(len, frames)) <= FRAME_SIZE_MAX
    assert sum(unpack(CommandHeader, frame).count for frame in frames) == 100


def test_a_lost_batch_is_sent_again_and_applied_once(world: World) -> None:
    operation = world.register()
    world.up()  # lost
    world.fire()
    world.exchange()  # the daemon gets command 2, and expects 1
    assert state_of(operation) is State.COMPLETED
    assert [number for number, _ in world.daemon.applied_commands] == [1, 2]


def test_a_lost_last_batch_is_sent_again_after_250_ms(world: World) -> None:
    operation = world.register()
    world.fire()
    world.up()
    world.pass_time(240)
    assert not operation.done()
    world.pass_time(30)
    assert state_of(operation) is State.COMPLETED


def test_a_doubled_frame_is_applied_and_settled_once(world: World) -> None:
    operation = world.register()
    calls: list[object] = []
    operation.add_done_callback(calls.append)
    world.fire()
    for frame in world.up():
        world.daemon.receive(frame)
        world.daemon.receive(frame)
    world.daemon.turn()
    world.daemon.published *= 2
    world.down()
    assert len(calls) == 1
    assert len(world.daemon.applied_commands) == 2


def test_frames_behind_a_lost_one_do_not_multiply_the_resent_commands(world: World) -> None:
    world.fire()
    world.up()
    for _ in range(20):
        world.fire()
        for frame in world.up():
            world.daemon.receive(frame)
    assert len(world.daemon.routed) == 20  # each frame says "expected 1"
    world.sent.clear()
    world.down()
    world.exchange()
    assert sum(unpack(CommandHeader, frame).count for frame in world.sent) == 21
    assert world.protocol.ledger.applied == 21


def test_the_client_asks_for_a_report_that_the_pub_socket_dropped(world: World) -> None:
    operation = world.register()
    world.fire(value=b"v")
    world.lose_down = lambda frame: unpack(ReportHeader, frame).outcomes > 0
    world.exchange()
    assert not operation.done()
    world.lose_down = lambda frame: False
    world.daemon.announce()
    world.exchange()
    assert world.daemon.asked == 1
    assert state_of(operation) is State.COMPLETED


def test_an_outcome_after_a_gap_waits_for_the_missing_outcomes(world: World) -> None:
    first, second = world.register(b"a"), world.register(b"b")
    world.exchange()
    world.fire(b"a")
    for frame in world.up():
        world.daemon.receive(frame)
    world.daemon.outcomes_saved = dict(world.daemon.outcomes)  # type: ignore[attr-defined]
    world.daemon.outcomes.clear()  # outcome 1 is lost on its way; only 2 arrives
    world.fire(b"b")
    for frame in world.up():
        world.daemon.receive(frame)
    world.daemon.turn()
    taken, world.daemon.published[:] = list(world.daemon.published), []
    for frame in taken:
        world.protocol.receive(frame, world.now, published=True)
    assert not first.done()
    assert not second.done()
    world.daemon.outcomes.update(world.daemon.outcomes_saved)  # type: ignore[attr-defined]
    world.exchange()
    assert (state_of(first), state_of(second)) == (State.COMPLETED, State.COMPLETED)


def test_outcomes_are_acknowledged_without_traffic_from_the_caller(world: World) -> None:
    world.register()
    world.fire()
    world.exchange()
    assert world.daemon.outcomes
    world.pass_time(30)
    assert not world.daemon.outcomes
    assert kinds(world.sent)[-1] is UpKind.ACK


def test_a_refusal_settles_the_operation_with_its_error(world: World) -> None:
    world.daemon.refuse[1] = ErrorCode.ARENA_FULL
    operation = world.register()
    world.exchange()
    outcome = operation.result(0)
    assert outcome.state is State.FAILED
    assert isinstance(outcome.error, ArenaFullError)
    with pytest.raises(ArenaFullError, match="the limit is 9"):
        outcome.unwrap()


def test_the_client_asks_for_a_lost_refusal(world: World) -> None:
    world.daemon.refuse[1] = ErrorCode.QUOTA_EXCEEDED
    operation = world.register()
    world.lose_down = lambda frame: unpack(ReportHeader, frame).answers > 0
    world.exchange()
    world.lose_down = lambda frame: False
    world.daemon.announce()
    world.exchange()
    assert state_of(operation) is State.FAILED


def test_the_answer_to_fire_wait_is_the_number_of_completed_operations(world: World) -> None:
    world.register()
    world.register()
    reply = Reply(world.link)
    world.fire(reply=reply)
    world.exchange()
    assert reply.get() == 2


def test_a_live_client_sends_a_frame_each_heartbeat(world: World) -> None:
    for _ in range(5):
        world.daemon.announce()
        world.pass_time(HEARTBEAT_NS / MS, 100)
    assert 4 <= kinds(world.sent).count(UpKind.ACK) <= 6


def test_a_silent_daemon_is_lost_and_found_again(world: World) -> None:
    operation = world.register()
    world.exchange()
    world.lose_up = world.lose_down = lambda frame: True
    world.pass_time(DAEMON_LOST_NS / MS + 100, 100)
    assert link_state(world) is LinkState.LOST
    world.fire()  # the command is kept
    world.lose_up = world.lose_down = lambda frame: False
    world.pass_time(1_200, 50)
    assert link_state(world) is LinkState.LIVE
    assert state_of(operation) is State.COMPLETED
    assert [number for number, _ in world.daemon.applied_commands] == [1, 2]


def test_after_a_restart_the_command_numbers_continue(world: World) -> None:
    operation = world.register()
    world.exchange()
    world.daemon.session = bytes(16 * [9])  # a daemon that knows the client, but not the session
    world.daemon.subscribed = False
    world.fire()
    world.pass_time(400)
    assert [hello["waits"] for hello in world.daemon.hellos] == [[], [1]]
    assert link_state(world) is LinkState.LIVE
    assert world.protocol.session.secret == world.daemon.session
    assert state_of(operation) is State.COMPLETED
    assert [number for number, _ in world.daemon.applied_commands] == [1, 2]


def test_a_second_welcome_after_a_report_changes_nothing() -> None:
    """ROUTER answers a hello twice if it was sent twice. Meanwhile, PUB reports commands as applied."""
    world = World()
    hello = next(frame for frame in world.up() if kinds([frame]) == [UpKind.HELLO])
    world.daemon.receive(hello)
    world.exchange()
    world.daemon.receive(hello)
    late, world.daemon.routed[:] = list(world.daemon.routed), []
    operation = world.register()
    world.exchange()
    assert world.protocol.ledger.applied == 1
    for frame in late:
        world.protocol.receive(frame, world.now, published=False)
    assert (link_state(world), world.protocol.frames_ignored) == (LinkState.LIVE, 1)
    world.fire()
    world.pass_time(400)
    assert state_of(operation) is State.COMPLETED


def test_a_client_connects_to_its_outlet_once_however_many_hellos_a_stopped_daemon_answers(world: World) -> None:
    connected: list[bytes] = []
    subscribe = world.daemon.subscribe

    def note(session: bytes) -> None:
        connected.append(session)
        subscribe(session)

    world.daemon.subscribe = note  # type: ignore[method-assign]
    socket = world.stop()
    world.pass_time(40_000)
    assert (link_state(world), len(socket) > 30) == (LinkState.LOST, True)
    world.speak()
    for frame in socket:
        world.daemon.receive(frame)
    world.pass_time(400)
    assert (link_state(world), len(connected)) == (LinkState.LIVE, 1)


def test_a_client_whose_outlet_was_closed_connects_again_although_its_questions_are_answered(world: World) -> None:
    """Otherwise the loss of this connection may stay unnoticed, because frames of the DEALER keep the client LIVE."""
    world.daemon.subscribed = False
    operation = world.register()
    world.fire()
    for _ in range(10):
        world.protocol.query({"query": "purgatory", "name": "x"}, Reply(world.link), world.now)
        world.pass_time(DAEMON_LOST_NS / MS / 8)
    assert (link_state(world), state_of(operation)) == (LinkState.LIVE, State.COMPLETED)


def test_answers_to_an_earlier_incarnation_are_ignored() -> None:
    """A daemon that was stopped answers all hellos at once. Numbers of the old session mean nothing to the new one."""
    world = World()
    hello = next(frame for frame in world.up() if kinds([frame]) == [UpKind.HELLO])
    world.daemon.receive(hello)
    world.exchange()
    world.daemon.receive(hello)
    welcome = world.daemon.routed.pop()
    gone = world.daemon.report(DownKind.SESSION_GONE)
    world.protocol.receive(gone, world.now, published=False)
    operation = world.register()
    for frame in (welcome, gone):
        world.protocol.receive(frame, world.now, published=False)
    assert (link_state(world), world.protocol.frames_ignored) == (LinkState.CONNECTING, 2)
    world.fire()
    world.pass_time(400)
    assert (link_state(world), state_of(operation)) == (LinkState.LIVE, State.COMPLETED)


def test_operations_that_the_daemon_lacks_after_a_restart_fail(world: World) -> None:
    operation = world.register()
    world.exchange()
    world.daemon.unknown = [1]
    world.daemon.session = bytes(16 * [9])
    world.fire(b"other")
    world.pass_time(400)
    assert isinstance(operation.result(0).error, SessionGoneError)


def test_another_arena_fails_the_pending_operations_and_the_client_begins_a_new_session(world: World) -> None:
    applied, unacknowledged = world.register(), world.register()
    world.exchange()
    before = world.protocol.session.incarnation
    world.daemon = FakeDaemon(arena=88)
    kept = world.fire(b"x")
    assert kept == 3
    world.pass_time(400)
    assert link_state(world) is LinkState.LIVE
    assert world.protocol.session.incarnation != before
    assert world.protocol.session.arena == 88
    for operation in (applied, unacknowledged):
        assert isinstance(operation.result(0).error, SessionGoneError)
    again = world.register()
    world.fire()
    world.exchange()
    assert again.command == 1
    assert state_of(again) is State.COMPLETED


def test_a_client_that_the_daemon_no_longer_knows_begins_a_new_session(world: World) -> None:
    operation = world.register()
    world.exchange()
    world.daemon.known = None
    world.fire()
    world.pass_time(400)
    assert isinstance(operation.result(0).error, SessionGoneError)
    assert link_state(world) is LinkState.LIVE


def test_a_client_whose_session_another_process_uses_notices_that_and_begins_a_new_session(world: World) -> None:
    """The other process has used the next numbers. So this client's next commands would be skipped as repeated."""
    operation = world.register()
    world.exchange()
    before = world.protocol.session.incarnation
    world.daemon.applied = 4
    report = world.daemon.report(DownKind.REPORT)
    world.daemon.known, world.daemon.applied = None, 0
    world.protocol.receive(report, world.now, published=True)
    again = world.register()
    world.pass_time(400)
    assert isinstance(operation.result(0).error, SessionGoneError)
    assert world.protocol.session.incarnation != before
    assert (link_state(world), again.command) == (LinkState.LIVE, 1)
    world.fire()
    world.exchange()
    assert state_of(again) is State.COMPLETED


def test_without_a_shared_clock_the_remaining_time_is_sent() -> None:
    world = World(shared_clock=False)
    world.exchange()
    world.register()
    start = world.now
    world.up()  # lost
    world.pass_time(300)
    _, command = world.daemon.applied_commands[0]
    record = unpack(RegisterCommand, command)
    assert record.registered_ns == 0
    assert record.timeout_ns <= 30_000 * MS - 250 * MS
    assert record.timeout_ns >= 30_000 * MS - (world.now - start)


def test_a_command_that_the_daemon_cannot_read_fails_and_is_skipped(world: World) -> None:
    operation = world.register()
    after = world.register(b"after")
    world.up()
    refusal = world.daemon.message(
        DownKind.ERROR, {"code": int(ErrorCode.MALFORMED), "message": "command 1", "id": None}
    )
    world.protocol.receive(refusal, world.now, published=False)
    world.fire(b"after")
    world.exchange()
    assert isinstance(operation.result(0).error, MalformedError)
    assert state_of(after) is State.COMPLETED
    assert world.daemon.applied_commands[0] == (1, operation_command(CommandKind.CANCEL, 0))


def test_a_query_is_sent_again_until_it_is_answered(world: World) -> None:
    reply = Reply(world.link)
    world.protocol.query({"query": "purgatory", "name": "x"}, reply, world.now)
    world.up()  # lost
    world.pass_time(300)
    assert reply.get()["index"] == 3
    assert world.protocol.poll_deadline() < NEVER


def test_frames_of_another_version_are_refused_and_the_version_is_named() -> None:
    world = World()
    for frame in world.up():
        world.daemon.receive(frame)
    welcome = bytearray(world.daemon.routed[-1])
    welcome[offset_of(ReportHeader, "version")] = 9
    world.protocol.receive(bytes(welcome), world.now, published=False)
    assert isinstance(world.protocol.refused, UnsupportedVersionError)
    assert "version 9" in str(world.protocol.refused)


def test_garbage_from_a_socket_is_ignored(world: World, rng: random.Random) -> None:
    operation = world.register()
    for _ in range(300):
        frame = bytearray(rng.randbytes(rng.randrange(0, 300)))
        if len(frame) >= 32 and rng.random() < 0.7:
            frame[8], frame[9] = 1, rng.choice([2, 4, 5, 6])
        world.protocol.receive(bytes(frame), world.now, published=rng.random() < 0.5)
    gone = bytearray(rng.randbytes(300))
    gone[8], gone[9] = PROTOCOL_VERSION, DownKind.SESSION_GONE
    world.protocol.receive(bytes(gone), world.now, published=False)
    header = struct_of(ReportHeader).pack(5, 1, DownKind.REPORT, 0, 1 << 31, 1 << 31, 0, 77, 0, 1, 9, 9, 0, 0, 0, 0)
    world.protocol.receive(header, world.now, published=True)
    assert world.protocol.frames_ignored > 0
    world.fire()
    world.pass_time(300)
    assert state_of(operation) is State.COMPLETED


def test_a_closed_protocol_sends_goodbye_and_has_no_deadline(world: World) -> None:
    world.protocol.close(world.now)
    for frame in world.up():
        world.daemon.receive(frame)
    assert world.daemon.byes == 1
    assert world.protocol.poll_deadline() == NEVER


def test_each_operation_settles_once_whatever_is_lost_doubled_or_reordered(rng: random.Random) -> None:
    world = World()
    world.exchange()
    settled: dict[int, int] = {}
    operations: list[ThreadedOperation] = []
    in_flight: list[tuple[bool, bytes]] = []

    def count(operation: Any) -> None:
        settled[operation.command] = settled.get(operation.command, 0) + 1

    fired = 0
    for _ in range(1_500):
        world.now += 7 * MS
        if len(operations) < 200 and rng.random() < 0.5:
            operation = world.register(b"%d" % len(operations))
            operation.add_done_callback(count)
            operations.append(operation)
        if fired < len(operations) and rng.random() < 0.4:
            world.fire(b"%d" % fired)
            fired += 1
        for frame in world.up():
            for _ in range(rng.choice([0, 1, 1, 1, 2])):
                world.daemon.receive(frame)
        while world.protocol.session.subscriptions:
            world.daemon.subscribe(*world.protocol.session.subscriptions.popleft())
        if rng.random() < 0.3:
            world.daemon.announce()
        world.daemon.turn()
        for frames, published in ((world.daemon.published, True), (world.daemon.routed, False)):
            for frame in frames:
                in_flight += [(published, frame)] * rng.choice([0, 1, 1, 2])
            frames.clear()
        if rng.random() < 0.2:
            rng.shuffle(in_flight)
        arriving, in_flight = in_flight[: rng.randrange(0, 6)], in_flight[rng.randrange(0, 6) :]
        for published, frame in arriving:
            world.protocol.receive(frame, world.now, published=published)
        for waiter in world.protocol.incoming.take_ready():
            waiter.notify()
    while fired < len(operations):
        world.fire(b"%d" % fired)
        fired += 1
    world.daemon.announce()
    for _ in range(8):
        world.pass_time(500, 25)
        world.daemon.announce()
    assert link_state(world) is LinkState.LIVE
    assert settled == {operation.command: 1 for operation in operations}
    assert [number for number, _ in world.daemon.applied_commands] == list(range(1, world.protocol.ledger.issued + 1))


def test_every_error_code_becomes_its_exception() -> None:
    from timerd_wire.refusals import refusal

    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            error = refusal(code, 5)
            assert isinstance(error, TimerdError)
            assert type(error).code is code
