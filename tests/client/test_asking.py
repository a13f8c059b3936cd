"""A client asks for reports that it has missed: over two connections as with ZeroMQ, and over one as with packets."""

from __future__ import annotations

import pytest

from support.fakes.fakedaemon import FakeDaemon, World, kinds, live_world, state_of
from timerd_client.link.operation import ThreadedOperation
from timerd_client.outcome import State
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.limits import ANNOUNCE_FIRST_NS, COMMANDS_PER_FRAME_MAX, PACKET_SIZE_MAX, PAYLOAD_SIZE_MAX
from timerd_shm.declare.wire import CommandHeader, DownFlag, DownKind, ReportHeader, UpKind


@pytest.fixture(params=[False, True], ids=["two ways", "one way"])
def world(request: pytest.FixtureRequest) -> World:
    return live_world(one_way=request.param)


def that_missed(world: World, number: int) -> list[ThreadedOperation]:
    """Operations that the daemon has completed, whose outcomes were lost."""
    operations = [world.register(b"k%d" % index) for index in range(number)]
    for index in range(number):
        world.fire(b"k%d" % index)
    world.lose_down = lambda frame: unpack(ReportHeader, frame).outcomes > 0
    world.exchange()
    world.lose_down = lambda frame: False
    world.sent.clear()
    assert not any(operation.done() for operation in operations)
    return operations


def test_a_client_whose_answer_was_cut_asks_for_the_rest_at_once(world: World) -> None:
    operations = that_missed(world, 10)
    world.daemon.outcomes_max = 3
    world.daemon.announce()
    world.exchange()  # and no time passes
    assert [state_of(operation) for operation in operations] == [State.COMPLETED] * 10
    assert world.daemon.asked == 4  # the answers have 3, 3, 3 and 1 outcomes
    assert kinds(world.sent).count(UpKind.ASK) == 4


def test_a_client_whose_answer_was_complete_does_not_ask_again(world: World) -> None:
    operations = that_missed(world, 10)
    world.daemon.announce()
    world.pass_time(2 * ANNOUNCE_FIRST_NS / 1e6)
    assert all(operation.done() for operation in operations)
    assert world.daemon.asked == 1


def test_a_client_asks_for_nothing_behind_a_report_that_it_has_not_asked_for(world: World) -> None:
    """The daemon publishes new outcomes in parts. The next part is on its way, and the client must not ask for it."""
    that_missed(world, 3)
    world.daemon.announce()
    world.down()
    assert kinds(world.up()) == [UpKind.ASK]
    world.daemon.outcomes_max = 1
    report = world.daemon.report(DownKind.REPORT, everything=True)
    world.protocol.receive(report, world.now, published=True)
    assert world.up() == []


def test_the_lost_rest_of_an_answer_is_asked_for_after_a_while(world: World) -> None:
    operations = that_missed(world, 4)
    world.daemon.outcomes_max = 2
    lost: list[bytes] = []

    def lose_the_second(frame: bytes) -> bool:
        header = unpack(ReportHeader, frame)
        if header.flags != DownFlag.ASKED or header.outcome_first != 3 or lost:
            return False
        lost.append(frame)
        return True

    world.lose_down = lose_the_second
    world.daemon.announce()
    world.exchange()
    assert lost
    assert [operation.done() for operation in operations] == [True, True, False, False]
    world.pass_time(2 * ANNOUNCE_FIRST_NS / 1e6)
    assert all(operation.done() for operation in operations)


def test_frames_of_commands_fit_into_packets_if_the_sockets_send_packets(world: World) -> None:
    world.protocol.outgoing.frame_size_max = PACKET_SIZE_MAX
    for _ in range(20):
        world.fire(value=b"x" * PAYLOAD_SIZE_MAX)
    for _ in range(COMMANDS_PER_FRAME_MAX):
        world.fire(value=b"x" * 100)
    frames = world.up()
    sizes = [len(frame) for frame in frames]
    assert max(sizes) <= PACKET_SIZE_MAX
    assert min(sizes[:-1]) > PACKET_SIZE_MAX // 4, "frames are smaller than they need to be"
    headers = [unpack(CommandHeader, frame) for frame in frames]
    assert sum(header.count for header in headers) == 20 + COMMANDS_PER_FRAME_MAX
    daemon: FakeDaemon = world.daemon
    for frame in frames:
        daemon.receive(frame)
    assert daemon.applied == 20 + COMMANDS_PER_FRAME_MAX
