"""The server of packets over a real Unix socket: frames of both directions, and the bounds of each process."""

from __future__ import annotations

import array
import os
import socket
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.real.packetpeer import PacketPeer
from support.real.patience import PATIENCE_S, until
from support.real.polled import PolledTransport, would_wake
from timerd.conductor.transport import CONNECTIONS_BESIDE, NOT_ADMITTED
from timerd.config.config import FRAME_MEMORY
from timerd.host.budget import Budget
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT
from timerd.host.listener import NEWCOMERS_PER_CALL
from timerd.host.shares import Share
from timerd.packets.connection import QUEUED_MAX
from timerd.packets.server import BYTES_PER_CALL, STEPS_PER_CALL
from timerd_shm.declare.errors import MalformedError, ResourceLimitError
from timerd_shm.declare.limits import FRAME_SIZE_MAX, PACKET_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.outlet import SUBSCRIBE as SUBSCRIBED
from timerd_wire.outlet import UNSUBSCRIBE
from timerd_wire.packets import FRAME, MORE, PART, SUBSCRIBE, cut

CLIENTS_MAX = 4
MOST = CONNECTIONS_PER_CLIENT * CLIENTS_MAX + CONNECTIONS_BESIDE
PROCESS_MAX = Budget(FRAME_MEMORY).process_max
SESSION, OTHER = bytes(range(16)), bytes(range(1, 17))
PART_OF_300_000 = (300_000).to_bytes(4, "little")


@pytest.fixture
def paths(runtime_dir: Path) -> InstancePaths:
    return InstancePaths(runtime_dir, "t")


@pytest.fixture
def transport(paths: InstancePaths) -> Iterator[PolledTransport]:
    made = PolledTransport(paths, clients_max=CLIENTS_MAX, connections_max=1_000)
    yield made
    made.close()


@pytest.fixture
def peer(transport: PolledTransport, paths: InstancePaths) -> Iterator[PacketPeer]:
    with PacketPeer(paths.packets) as made:
        yield made


def received(transport: PolledTransport) -> list[tuple[int, bytes]]:
    return list(transport.receive(10_000))


def number_of(transport: PolledTransport, peer: PacketPeer) -> int:
    """The number of the peer's connection, which has been accepted and read by now."""
    peer.send(FRAME, b"whose?")
    ((number, _),) = until(lambda: received(transport))
    return number


def share_of(transport: PolledTransport) -> Share:
    (share,) = transport._shares._by_process.values()
    return share


# frames -------------------------------------------------------------------------------------------------------------


def test_frames_of_both_directions_keep_their_order(transport: PolledTransport, peer: PacketPeer) -> None:
    frames = [b"", b"up", os.urandom(255), os.urandom(PACKET_SIZE_MAX), b"last"]
    for frame in frames:
        peer.send(FRAME, frame)
    got = received(transport)
    assert [frame for _, frame in got] == frames
    (connection,) = {number for number, _ in got}
    assert (transport.sender(connection), transport.user(connection)) == (os.getpid(), os.geteuid())
    for frame in frames:
        transport.send(connection, frame)
    assert [peer.receive() for _ in frames] == [(FRAME, frame) for frame in frames]


@pytest.mark.parametrize("size", [PACKET_SIZE_MAX + 1, 2 * PACKET_SIZE_MAX - 4, 300_000, FRAME_SIZE_MAX])
def test_a_large_frame_goes_in_parts_both_ways(transport: PolledTransport, peer: PacketPeer, size: int) -> None:
    connection, frame = number_of(transport, peer), os.urandom(size)
    packets, frames = list(cut(frame)), []
    while packets:
        if peer.try_send(*packets[0]):
            packets.pop(0)
        frames += received(transport)
    assert frames + received(transport) == [(connection, frame)]
    assert share_of(transport).memory == 0
    transport.send(connection, frame)
    transport.send(connection, b"behind it")
    parts: list[tuple[int, bytes]] = []
    while (FRAME, b"behind it") not in parts:
        parts += peer.drain()
        received(transport)
    assert parts[:-1] == list(cut(frame)) and share_of(transport).memory == 0


def test_the_largest_packet_is_sent_where_the_system_gives_small_buffers(
    transport: PolledTransport, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, net.core.wmem_default is 64 KiB. In an earlier version no largest packet arrived then."""
    accept = socket.socket.accept

    def accept_with_little(listener: socket.socket) -> tuple[socket.socket, Any]:
        accepted, address = accept(listener)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        return accepted, address

    monkeypatch.setattr(socket.socket, "accept", accept_with_little)
    with PacketPeer(paths.packets) as peer:
        frame = os.urandom(PACKET_SIZE_MAX)
        transport.send(number_of(transport, peer), frame)
        assert peer.receive() == (FRAME, frame)


def test_frames_of_many_connections_take_turns(transport: PolledTransport, paths: InstancePaths) -> None:
    with PacketPeer(paths.packets) as loud, PacketPeer(paths.packets) as calm:
        while loud.try_send(FRAME, b"loud"):
            pass
        calm.send(FRAME, b"calm")
        first = list(transport.receive(10))
        assert b"calm" in [frame for _, frame in first], "one connection was read to its end first"


def test_peers_of_zeromq_and_of_packets_take_turns_where_each_could_fill_a_call(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    hello = b"\xff" + bytes(8) + b"\x7f\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
    with socket.socket(socket.AF_UNIX) as stream, PacketPeer(paths.packets) as packets:
        stream.connect(str(paths.commands))
        stream.sendall(hello + bytes((4, len(ready))) + ready + b"\0\1z" * 2_000)
        while packets.try_send(FRAME, b"p"):
            pass
        received_of: dict[bytes, int] = {b"z": 0, b"p": 0}
        for _ in range(6):  # a turn of the daemon may take few frames, whatever is there
            for _, frame in transport.receive(20):
                received_of[frame] += 1
        assert min(received_of.values()) >= 40, received_of


# bounds of a call ---------------------------------------------------------------------------------------------------


def test_a_call_takes_a_bounded_number_of_connections_packets_and_bytes(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(PacketPeer(paths.packets)) for _ in range(40)]
        assert received(transport) == [] and transport.connections() == NEWCOMERS_PER_CALL
        while transport.connections() < len(peers):
            received(transport)
        for peer in peers:
            while peer.try_send(FRAME, b""):
                pass
        assert len(received(transport)) <= STEPS_PER_CALL
        assert not transport.is_dry() and transport.has_input()
        while received(transport):
            pass
        assert transport.is_dry()
        for peer in peers:
            peer.send(FRAME, bytes(PACKET_SIZE_MAX))
        sizes = sum(len(frame) for _, frame in received(transport))
        assert sizes <= BYTES_PER_CALL + PACKET_SIZE_MAX
    while transport.connections() or transport.has_input():
        received(transport)
    assert transport.is_dry()


def test_sessions_that_are_shown_again_and_again_are_looked_at_once_a_turn(
    transport: PolledTransport, peer: PacketPeer
) -> None:
    while peer.try_send(SUBSCRIBE, SESSION):
        pass
    peer.drain()
    received(transport)
    assert len(list(transport.outlet_messages(64))) == 1


def test_a_turn_answers_a_bounded_number_of_sessions_that_are_shown(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(PacketPeer(paths.packets)) for _ in range(30)]
        for peer in peers:
            peer.send(SUBSCRIBE, SESSION)
        for _ in range(4):
            received(transport)
        assert len(list(transport.outlet_messages(20))) == 20 and transport.has_input()
        assert len(list(transport.outlet_messages(20))) == 10 and not transport.has_input()


def test_sockets_that_one_poll_does_not_report_are_not_taken_for_silent(
    transport: PolledTransport, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd.host.selector.EVENTS_PER_POLL", 2)
    with ExitStack() as stack:
        peers = [stack.enter_context(PacketPeer(paths.packets)) for _ in range(5)]
        for _ in range(5):
            received(transport)
        for peer in peers:
            peer.send(FRAME, b"x")
        assert len(received(transport)) == 2 and not transport.is_dry()
        assert sum(len(received(transport)) for _ in range(3)) == 3 and transport.is_dry()


# what waits ---------------------------------------------------------------------------------------------------------


def test_packets_that_a_client_leaves_unread_are_bounded(transport: PolledTransport, peer: PacketPeer) -> None:
    connection, size = number_of(transport, peer), 100_000
    began = time.monotonic()
    for number in range(100):
        transport.send(connection, bytes((number,)) * size)
    assert time.monotonic() - began < PATIENCE_S, "the daemon waited for its client"
    assert QUEUED_MAX - size < share_of(transport).memory <= QUEUED_MAX
    assert not would_wake(transport.selector), "a socket without room wakes nobody"
    got: list[bytes] = []
    while share_of(transport).memory:
        got += [body for _, body in peer.drain()]
        received(transport)
    got += [body for _, body in peer.drain()]
    assert got == [bytes((number,)) * size for number in range(len(got))] and 40 < len(got) < 60
    transport.send(connection, b"after")
    assert peer.receive() == (FRAME, b"after")
    assert not would_wake(transport.selector)


def test_packets_for_many_clients_that_read_nothing_are_bounded_for_their_process(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with ExitStack() as stack:
        connections = []
        for _ in range(40):
            connections.append(number_of(transport, stack.enter_context(PacketPeer(paths.packets))))
        for connection in connections:
            for _ in range(12):
                transport.send(connection, bytes(1_300_000))
                transport.send(connection, bytes(100_000))
        assert PROCESS_MAX - QUEUED_MAX < share_of(transport).memory <= PROCESS_MAX
    while transport.connections():
        received(transport)
    assert not transport._shares._by_process


@pytest.mark.long
def test_small_frames_that_wait_are_charged_with_what_they_cost(transport: PolledTransport, peer: PacketPeer) -> None:
    connection = number_of(transport, peer)
    tracemalloc.start()
    for _ in range(100_000):
        transport.send(connection, os.urandom(97))  # as many bytes as a refusal has
    cost, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1_000_000 < cost < 1.4 * share_of(transport).memory


def test_a_small_frame_goes_to_a_client_whose_process_has_no_memory_left(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(PacketPeer(paths.packets)) for _ in range(9)]
        connections = [number_of(transport, peer) for peer in peers]
        for connection in connections[:8]:
            for _ in range(50):
                transport.send(connection, bytes(100_000))
        assert share_of(transport).memory > PROCESS_MAX - 100_000
        for number in range(400):  # more than the kernel holds: some wait for the next turn
            transport.send(connections[8], b"%d" % number)
            if number % 100 == 99:
                assert peers[8].drain()
                received(transport)
        transport.send(connections[8], b"outcome")
        assert (FRAME, b"outcome") in peers[8].drain()


def test_a_packet_that_cannot_be_sent_at_all_does_not_wake_the_daemon_for_ever(
    transport: PolledTransport, peer: PacketPeer
) -> None:
    """The kernel refuses a packet above the buffer's size (EMSGSIZE), and the socket stays writable."""
    connection = number_of(transport, peer)
    for _ in range(30):
        transport.send(connection, bytes(PACKET_SIZE_MAX))
    found = transport._packets.get(connection)
    assert found is not None and found.waits_to_send
    with socket.socket(fileno=os.dup(found.descriptor)) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
    peer.drain()
    for _ in range(3):
        received(transport)
    assert not would_wake(transport.selector) and share_of(transport).memory == 0
    transport.send(connection, b"small")
    assert peer.receive() == (FRAME, b"small")


# frames in parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packets", "frames"),
    [
        (
            [(PART, PART_OF_300_000 + b"a" * 100_000), (FRAME, b"x"), (MORE, b"a" * 100_000), (FRAME, b"y")],
            [b"x", b"y"],
        ),
        ([(PART, PART_OF_300_000 + b"a" * 100_000), (SUBSCRIBE, SESSION), (MORE, b"a" * 100_000)], []),
        ([(PART, PART_OF_300_000 + b"a"), *cut(b"b" * 140_000)], [b"b" * 140_000]),
        ([*list(cut(b"a" * 400_000))[:2], *cut(b"b" * 140_000)], [b"b" * 140_000]),
    ],
    ids=["a frame between", "a session between", "a new one begins", "no last"],
)
def test_a_frame_of_which_parts_are_lost_does_not_arrive(
    transport: PolledTransport, peer: PacketPeer, packets: list[tuple[int, bytes]], frames: list[bytes]
) -> None:
    got: list[bytes] = []
    for packet in packets:
        peer.send(*packet)
        got += [frame for _, frame in received(transport)]
    assert got == frames and transport.connections() == 1 and transport.complaints() == []
    peer.send(FRAME, b"next")
    assert [frame for _, frame in received(transport)] == [b"next"]
    assert share_of(transport).memory == 0


@pytest.mark.parametrize(
    ("packets", "complaint"),
    [
        ([(PART, b"abc")], "the first part of a frame has 3 bytes"),
        ([(PART, (300_000).to_bytes(4, "little"))], "a part of a frame is empty"),
        ([(PART, (PACKET_SIZE_MAX).to_bytes(4, "little") + b"a")], "a frame in parts has 131072 bytes"),
        ([(PART, (FRAME_SIZE_MAX + 1).to_bytes(4, "little") + b"a")], "a frame in parts has 4194305 bytes"),
        ([(PART, b"\xff\xff\xff\xffa")], "a frame in parts has 4294967295 bytes"),
        ([(PART, PART_OF_300_000 + b"a"), (MORE, b"")], "a part of a frame is empty"),
        ([next(cut(bytes(140_000))), (MORE, bytes(100_000))], "the parts of a frame of 140000 bytes have 231068"),
        ([(MORE, b"of nothing")], "a part of 10 bytes continues no frame"),
        ([*cut(bytes(140_000)), (MORE, b"late")], "a part of 4 bytes continues no frame"),
        (
            [(PART, PART_OF_300_000 + bytes(100_000)), (FRAME, b"x"), (MORE, bytes(100_000)), (MORE, bytes(100_001))],
            "a part of 100001 bytes continues no frame",
        ),
        ([(SUBSCRIBE, SESSION[:15])], "a packet of kind 2 has 15 bytes"),
        ([(SUBSCRIBE, SESSION + b"a")], "a packet of kind 2 has 17 bytes"),
        ([(SUBSCRIBE, b"")], "a packet of kind 2 has 0 bytes"),
        ([(0, b"a")], "a packet of kind 0 has 1 bytes"),
        ([(255, SESSION)], "a packet of kind 255 has 16 bytes"),
        ([(FRAME, bytes(PACKET_SIZE_MAX + 1))], "a packet has "),
    ],
)
def test_a_packet_that_no_client_sends_ends_its_connection_and_is_named(
    transport: PolledTransport, peer: PacketPeer, packets: list[tuple[int, bytes]], complaint: str
) -> None:
    for packet in packets:
        received(transport)
        peer.send(*packet)
    peer.send(FRAME, b"behind it")
    assert received(transport) == []
    assert transport.connections() == 0 and peer.is_ended()
    ((pid, error),) = transport.complaints()
    assert pid == os.getpid() and isinstance(error, MalformedError)
    assert f"process {pid}: a connection was closed: {complaint}" in str(error)
    assert not transport._shares._by_process and not transport.has_input()


def test_an_empty_packet_is_the_end(transport: PolledTransport, peer: PacketPeer) -> None:
    peer.send(FRAME, b"x")
    peer.send_raw(b"")
    peer.send(FRAME, b"y")
    assert [frame for _, frame in received(transport)] == [b"x"]
    assert transport.connections() == 0 and transport.complaints() == [] and peer.is_ended()


@pytest.mark.long
def test_parts_of_a_process_are_bounded_and_frames_still_become_complete(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    """70 connections begin a frame of 4 MiB each. When 69 of them have ended, the last one sends a whole frame."""
    with ExitStack() as stack:
        peers = [stack.enter_context(PacketPeer(paths.packets)) for _ in range(70)]
        left = {peer: list(cut(os.urandom(FRAME_SIZE_MAX))) for peer in peers}
        for _ in range(6):
            received(transport)
        for _ in range(5):
            for peer in peers:
                peer.send(*left[peer].pop(0))
            for _ in range(12):
                received(transport)
                assert share_of(transport).memory <= PROCESS_MAX
        for peer in peers[1:]:
            peer.close()
        while transport.connections() > 1:
            received(transport)
        frame = os.urandom(FRAME_SIZE_MAX)
        packets, frames = list(cut(frame)), []
        while packets:
            if peers[0].try_send(*packets[0]):
                packets.pop(0)
            frames += received(transport)
        frames += received(transport)
        assert [got for _, got in frames] == [frame] and share_of(transport).memory == 0


# sessions -----------------------------------------------------------------------------------------------------------


def admit(transport: PolledTransport, peer: PacketPeer, session: bytes, slot: int) -> None:
    peer.send(SUBSCRIBE, session)
    received(transport)
    messages = list(transport.outlet_messages(10))
    number = messages[-1].connection
    assert messages[-1][1:] == (NOT_ADMITTED, session)
    transport.admit(number, slot)
    assert [each[1:] for each in transport.outlet_messages(10)] == [(slot, SUBSCRIBED)]


def test_reports_go_to_the_newest_connection_of_a_session(transport: PolledTransport, paths: InstancePaths) -> None:
    with PacketPeer(paths.packets) as first, PacketPeer(paths.packets) as second:
        admit(transport, first, SESSION, 3)
        transport.publish(3, b"outcome")
        assert first.receive() == (FRAME, b"outcome")
        admit(transport, second, SESSION, 3)
        transport.publish(3, b"second")
        assert second.receive() == (FRAME, b"second") and first.is_ended()
        assert list(transport.outlet_messages(10)) == [], "the end of a replaced connection is not reported"
        assert transport.adopted == [(1, SESSION), (1, False), (2, SESSION)], "the client has not ended"
        assert share_of(transport).clients == 1
        second.close()
        received(transport)
        assert [each[1:] for each in transport.outlet_messages(10)] == [(3, UNSUBSCRIBE)]
        assert transport.adopted[3:] == [(2, True)], "the end of the newest connection is the end of the client"


def test_a_session_may_be_shown_twice_over_one_connection(transport: PolledTransport, peer: PacketPeer) -> None:
    for _ in range(2):
        admit(transport, peer, SESSION, 3)
    assert transport.adopted == [(1, SESSION)] and share_of(transport).clients == 1
    transport.publish(3, b"outcome")
    assert peer.receive() == (FRAME, b"outcome")


def test_a_connection_that_shows_another_session_is_watched_for_the_newer_session_alone(
    transport: PolledTransport, peer: PacketPeer
) -> None:
    admit(transport, peer, SESSION, 3)
    admit(transport, peer, OTHER, 4)
    assert transport.adopted == [(1, SESSION), (1, False), (2, OTHER)], (
        "the first client is to be watched in another way"
    )
    assert share_of(transport).clients == 1
    transport.publish(3, b"of the first")
    transport.publish(4, b"of the second")
    assert peer.receive() == (FRAME, b"of the second")
    peer.close()
    received(transport)
    assert transport.adopted[3:] == [(2, True)] and not transport._shares._by_process


def test_a_stranger_gets_nothing_and_may_still_say_hello(transport: PolledTransport, peer: PacketPeer) -> None:
    peer.send(SUBSCRIBE, bytes(16))
    received(transport)
    ((connection, slot, message),) = transport.outlet_messages(10)
    assert (slot, message) == (NOT_ADMITTED, bytes(16))
    transport.publish(NOT_ADMITTED, b"secret")
    peer.send(FRAME, b"hello")
    assert received(transport) == [(connection, b"hello")] and peer.drain() == []


def test_a_connection_whose_session_has_ended_belongs_to_no_client(
    transport: PolledTransport, peer: PacketPeer
) -> None:
    admit(transport, peer, SESSION, 3)
    transport.close_outlet(3)
    assert share_of(transport).clients == 0, "otherwise this connection would be kept in place of a client's"
    transport.publish(3, b"secret")
    peer.send(FRAME, b"hello")
    assert len(received(transport)) == 1 and peer.drain() == []
    admit(transport, peer, OTHER, 5)
    assert share_of(transport).clients == 1


def test_the_connections_of_a_process_are_bounded_over_all_sockets(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with ExitStack() as stack:
        for _ in range(MOST + 30):
            stack.enter_context(PacketPeer(paths.packets))
        for _ in range(20):
            received(transport)
        assert transport.connections() == MOST
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(paths.commands))
            received(transport)
            assert transport.connections() == MOST
        refused = transport.complaints()
        assert len(refused) == 31 and all(isinstance(error, ResourceLimitError) for _, error in refused)


# ends ---------------------------------------------------------------------------------------------------------------


def test_packets_from_before_a_clients_end_arrive_although_it_left_something_unread(
    transport: PolledTransport, peer: PacketPeer
) -> None:
    """The kernel reports ECONNRESET once, before the last packets (unix(7))."""
    connection = number_of(transport, peer)
    transport.send(connection, b"unread")
    for number in range(100):
        peer.send(FRAME, b"%d" % number)
    peer.close()
    transport.send(connection, b"to nobody")  # the send takes the reset off the socket, or finds a broken pipe
    assert [frame for _, frame in received(transport)] == [b"%d" % number for number in range(100)]
    assert transport.connections() == 0


@pytest.mark.parametrize("sends", [False, True], ids=["silent", "sending"])
def test_the_end_comes_behind_the_last_frames(transport: PolledTransport, peer: PacketPeer, sends: bool) -> None:
    admit(transport, peer, SESSION, 3)
    transport.publish(3, b"unread")
    for number in range(30):
        peer.send(FRAME, b"%d" % number)
    peer.close()
    if sends:
        transport.publish(3, b"to nobody")
    assert len(list(transport.receive(10))) == 10 and transport.adopted == [(1, SESSION)]
    assert len(received(transport)) == 20 and transport.adopted[1:] == [(1, True)]


def test_a_connection_that_ends_after_any_packet_leaves_nothing_open(
    transport: PolledTransport, paths: InstancePaths, rng: Any
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    kinds = (0, FRAME, FRAME, SUBSCRIBE, PART, MORE, 9)
    for _ in range(300):
        with PacketPeer(paths.packets) as peer:
            for _ in range(rng.randrange(6)):
                body = rng.choice([b"", SESSION, PART_OF_300_000 + b"a", rng.randbytes(rng.randrange(100_000))])
                packet = b"" if rng.random() < 0.05 else bytes((rng.choice(kinds),)) + body
                if not peer.try_send_raw(packet):
                    break
            if rng.random() < 0.5:
                received(transport)
            for connection, _, _ in transport.outlet_messages(10):
                if rng.random() < 0.5:
                    transport.admit(connection, rng.randrange(3))
                transport.send(connection, rng.randbytes(rng.randrange(200_000)))
    while transport.connections() or transport.has_input():
        transport.tend(0)
        received(transport)
        list(transport.outlet_messages(10))
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(isinstance(error, MalformedError) for _, error in transport.complaints())
    assert not transport._shares._by_process and not would_wake(transport.selector)


@pytest.mark.parametrize("name", ["packets", "commands", "outcomes"])
def test_descriptors_that_come_along_are_not_kept(transport: PolledTransport, paths: InstancePaths, name: str) -> None:
    """From Linux 6.16 on, nobody can send them. An older kernel delivers them, and the receiver closes them at once."""
    path: Path = getattr(paths, name)
    kind = socket.SOCK_SEQPACKET if name == "packets" else socket.SOCK_STREAM
    with socket.socket(socket.AF_UNIX, kind) as sender, open(os.devnull) as file:
        sender.connect(str(path))
        for _ in range(3):
            received(transport)
            list(transport.outlet_messages(10))
        before = len(os.listdir("/proc/self/fd"))
        along = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()] * 200))]
        refused = 0
        for _ in range(20):
            try:
                sender.sendmsg([bytes((FRAME,)) + b"x"], along)
            except (PermissionError, BrokenPipeError):
                refused += 1
            received(transport)
            list(transport.outlet_messages(10))
        assert len(os.listdir("/proc/self/fd")) <= before
        release = tuple(int(part) for part in os.uname().release.split(".")[:2])
        assert refused == 20 or release < (6, 16), "closing the last copy may block the daemon"
