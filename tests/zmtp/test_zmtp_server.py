"""The server of ZMTP over real Unix sockets: libzmq's peers are served, and each process has its bounds."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from support.real.patience import PATIENCE_S, until
from support.real.polled import PolledTransport, would_wake
from timerd.conductor.transport import CONNECTIONS_BESIDE, NOT_ADMITTED
from timerd.config.config import FRAME_MEMORY
from timerd.host.accepting import accept
from timerd.host.budget import Budget
from timerd.host.shares import Share, Shares, Why
from timerd.zmtp.connection import QUEUED_MAX
from timerd.zmtp.peer import LONG, SIGNATURE
from timerd.zmtp.server import BYTES_PER_CALL, STEPS_PER_CALL
from timerd_shm.declare.errors import MalformedError, ResourceLimitError
from timerd_shm.declare.limits import FRAME_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.outlet import SUBSCRIBE, UNSUBSCRIBE, connect_outlet

READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
HELLO = SIGNATURE + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32) + bytes((4, len(READY))) + READY
SESSION = bytes(range(16))
CLIENTS_MAX = 4
PROCESS_MAX = Budget(FRAME_MEMORY).process_max
MOST = 2 * CLIENTS_MAX + CONNECTIONS_BESIDE


@pytest.fixture
def paths(runtime_dir: Path) -> InstancePaths:
    return InstancePaths(runtime_dir, "t")


@pytest.fixture
def transport(paths: InstancePaths) -> Iterator[PolledTransport]:
    made = PolledTransport(paths, clients_max=CLIENTS_MAX, connections_max=1_000)
    yield made
    made.close()


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


def raw(path: Path, said: bytes = HELLO) -> socket.socket:
    """A connection without libzmq, over which `said` was sent."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(path))
    made.sendall(said)
    made.setblocking(False)
    return made


def received(transport: PolledTransport) -> list[tuple[int, bytes]]:
    return list(transport.receive(10_000))


# as libzmq's sockets do ---------------------------------------------------------------------------------------------


def test_a_dealers_frames_are_answered(transport: PolledTransport, paths: InstancePaths, context: Any) -> None:
    dealer = context.socket(zmq.DEALER)
    dealer.connect(paths.commands_endpoint)
    for frame in (b"", b"up", os.urandom(255), os.urandom(256), os.urandom(FRAME_SIZE_MAX)):
        dealer.send(frame)
        ((connection, got),) = until(lambda: received(transport))
        assert got == frame
        assert (transport.sender(connection), transport.user(connection)) == (os.getpid(), os.geteuid())
        transport.send(connection, got[: 1 << 20] + b"!")
        end = time.monotonic() + PATIENCE_S
        while not dealer.poll(10):  # what waits to be sent goes out in the server's calls
            received(transport)
            assert time.monotonic() < end
        assert dealer.recv() == frame[: 1 << 20] + b"!"


def test_an_xsub_gets_the_frames_of_its_slot_and_a_newer_xsub_takes_its_place(
    transport: PolledTransport, paths: InstancePaths, context: Any
) -> None:
    subscribers = []
    for _ in range(2):
        xsub = context.socket(zmq.XSUB)
        xsub.set(zmq.RECONNECT_IVL, -1)
        xsub.send(SUBSCRIBE)
        connect_outlet(xsub, paths.outcomes_endpoint, SESSION)
        messages: list[tuple[int, bytes]] = []
        while len(messages) < 2:
            for connection, slot, message in transport.outlet_messages(10):
                messages.append((slot, message))
                if slot == NOT_ADMITTED:
                    transport.admit(connection, 3)
        assert messages == [(NOT_ADMITTED, SESSION), (3, SUBSCRIBE)]
        transport.publish(3, b"outcome")
        assert xsub.poll(int(PATIENCE_S * 1_000)) and xsub.recv() == b"outcome"
        subscribers.append(xsub)
    transport.publish(3, b"second")
    assert subscribers[1].poll(int(PATIENCE_S * 1_000)) and not subscribers[0].poll(50)
    assert list(transport.outlet_messages(10)) == [], "the end of a replaced connection is not reported"
    subscribers[1].close()
    assert [each[1:] for each in until(lambda: list(transport.outlet_messages(10)))] == [(3, UNSUBSCRIBE)]


def test_a_stranger_is_closed_and_nothing_is_published_to_it(
    transport: PolledTransport, paths: InstancePaths, context: Any
) -> None:
    stranger = context.socket(zmq.XSUB)
    stranger.set(zmq.RECONNECT_IVL, -1)
    stranger.send(SUBSCRIBE)
    connect_outlet(stranger, paths.outcomes_endpoint, bytes(16))
    messages = until(lambda: list(transport.outlet_messages(10)))
    assert [(each.slot, each.message) for each in messages] == [(NOT_ADMITTED, bytes(16))]
    assert transport.connections() == 0
    transport.publish(NOT_ADMITTED, b"secret")
    assert not stranger.poll(50)


def test_frames_of_many_connections_take_turns(transport: PolledTransport, paths: InstancePaths) -> None:
    loud, calm = raw(paths.commands), raw(paths.commands)
    loud.sendall(b"\0\1L" * 5_000)
    calm.sendall(b"\0\1c")
    first: list[tuple[int, bytes]] = []
    while (b"c") not in [frame for _, frame in first]:
        first += list(transport.receive(10))
        assert len(first) < 50, "one connection was read to its end first"
    loud.close()
    calm.close()


def test_a_process_with_many_connections_has_no_more_turns_than_a_process_with_one(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    with loud_process(paths.commands, connections=40), raw(paths.commands, HELLO + b"\0\1c"):
        frames = [frame for _ in range(5) for _, frame in transport.receive(1)]
        assert b"L" in frames, "the other process had no turn"
        while b"c" not in frames:
            frames += [frame for _, frame in transport.receive(10)]
            assert len(frames) < 40, "each connection had a turn of its own"


@contextmanager
def loud_process(path: Path, connections: int) -> Iterator[None]:
    """A process of its own, with a pile of messages on each connection."""
    said = HELLO + b"\0\1L" * 2_000
    code = f"""
import socket, sys
made = [socket.socket(socket.AF_UNIX) for _ in range({connections})]
for each in made:
    each.connect({str(path)!r})
    each.sendall({said!r})
print("loud", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"loud\n"
        yield
        process.kill()


# bounds -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_call_reads_a_bounded_amount(transport: PolledTransport, paths: InstancePaths) -> None:
    peers = [raw(paths.commands) for _ in range(40)]
    assert received(transport) == []
    for peer in peers:
        peer.send(b"\0\0" * 10_000)
    found = [received(transport) for _ in range(4)]
    assert found[-1] and max(map(len, found)) <= STEPS_PER_CALL
    assert not transport.is_dry() and transport.has_input()
    with ExitStack() as stack:
        for peer in peers:
            stack.enter_context(peer)
    while received(transport):
        pass
    assert transport.is_dry() and transport.connections() == 0
    assert BYTES_PER_CALL >= 1 << 20


def test_sockets_that_one_poll_does_not_report_are_not_taken_for_silent(
    transport: PolledTransport, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd.host.selector.EVENTS_PER_POLL", 2)
    peers = [raw(paths.commands) for _ in range(5)]
    for _ in range(5):
        received(transport)
    for peer in peers:
        peer.send(b"\0\1x")
    assert len(received(transport)) == 2 and not transport.is_dry()
    assert sum(len(received(transport)) for _ in range(3)) == 3 and transport.is_dry()
    for peer in peers:
        peer.close()


def test_the_connections_of_a_process_are_bounded(transport: PolledTransport, paths: InstancePaths) -> None:
    with ExitStack() as stack:
        for number in range(MOST + 30):
            stack.enter_context(raw((paths.commands, paths.outcomes)[number % 2], b""))
        for _ in range(20):
            received(transport)
            list(transport.outlet_messages(10))
        assert transport.connections() == MOST
        refused = transport.complaints()
        pid, error = refused[0]
        assert pid == os.getpid() and isinstance(error, ResourceLimitError)
        assert f"process {pid}: a connection was closed: it has {MOST}, as many as it may" in str(error)
        assert len(refused) == 30, "one error for each closed connection"
    while transport.connections():
        received(transport)
        list(transport.outlet_messages(10))
    assert transport.complaints() == []


def test_if_all_places_are_taken_the_newest_connection_of_the_process_with_most_makes_room() -> None:
    shares, ended = Shares(100, 10, Budget(FRAME_MEMORY)), []

    class Holder:
        wanted_memory = memory = 0
        is_admitted = is_listed = False
        is_new = True

        def __init__(self, share: Share) -> None:
            self.share, self.number = share, shares.new_number()
            shares.add(share, self)
            shares.shown(share, self)

        def wake(self) -> None: ...

        def end(self) -> None:
            ended.append((self.share.process, self.number))
            shares.remove(self.share, self)

    def come(pid: int) -> bool:
        share = shares.open(pid)
        return share is not None and bool(Holder(share))

    assert all(come(7) for _ in range(10)) and not ended
    assert come(8) and ended == [(7, 10)]
    assert all(come(8) for _ in range(4)) and ended == [(7, number) for number in (10, 9, 8, 7, 6)]
    assert not come(8), "each process has five of the ten places"
    assert not come(7)
    assert come(9) and len(shares) == 10
    assert set(shares.take_refused()) == {(7, Why.NO_FILES), (8, Why.NO_FILES)} and not shares.take_refused()


def test_connections_of_clients_are_no_excess() -> None:
    """A process with many clients keeps their connections, however many connections other processes open."""
    shares = Shares(100, 100, Budget(FRAME_MEMORY))
    many, other = Share(7, shares), Share(8, shares)
    many.clients, many.connections = 30, dict.fromkeys(range(62))  # type: ignore[assignment]
    other.connections = dict.fromkeys(range(10))  # type: ignore[assignment]
    assert (many.excess, other.excess) == (2, 10)


def test_the_memory_of_a_process_is_bounded(transport: PolledTransport, paths: InstancePaths) -> None:
    """Some large frames wait in the kernel until others are complete. In the end all of them arrive."""
    head = bytes((LONG,)) + FRAME_SIZE_MAX.to_bytes(8, "big")
    peers = [raw(paths.commands) for _ in range(10)]
    left = {peer: head + bytes(FRAME_SIZE_MAX) for peer in peers}
    for peer in peers:
        left[peer] = left[peer][peer.send(left[peer][:40_000]) :]
    frames = []
    for _ in range(5):
        frames += received(transport)
    share = next(iter(transport._shares._by_process.values()))
    # Five frames fit, and the beginnings of the five others.
    assert PROCESS_MAX - FRAME_SIZE_MAX < share.memory <= PROCESS_MAX and len(share.waiting) == 5
    deadline = time.monotonic() + PATIENCE_S
    while len(frames) < len(peers):
        for peer in peers:
            if left[peer]:
                with suppress(BlockingIOError):
                    left[peer] = left[peer][peer.send(left[peer]) :]
        frames += received(transport)
        transport.tend(0)
        assert share.memory <= PROCESS_MAX
        assert time.monotonic() < deadline, "a frame never came"
    assert {frame for _, frame in frames} == {bytes(FRAME_SIZE_MAX)}
    assert share.memory == 0 and not share.waiting
    for peer in peers:
        peer.close()


def test_frames_for_many_peers_that_read_nothing_are_bounded_for_their_process(
    transport: PolledTransport, paths: InstancePaths
) -> None:
    peers = [raw(paths.commands, HELLO + b"\0\1x") for _ in range(40)]
    connections: set[int] = set()
    while len(connections) < len(peers):
        connections |= {connection for connection, _ in transport.receive(100)}
    for connection in connections:
        transport.send(connection, bytes(1_300_000))
    share = next(iter(transport._shares._by_process.values()))
    assert 0 < share.memory <= PROCESS_MAX
    for peer in peers:
        peer.close()


def test_a_large_frame_that_waits_ends_with_its_connection(transport: PolledTransport, paths: InstancePaths) -> None:
    head = bytes((LONG,)) + FRAME_SIZE_MAX.to_bytes(8, "big")
    peers = [raw(paths.commands, HELLO + head + bytes(40_000)) for _ in range(10)]
    for _ in range(5):
        received(transport)
    share = next(iter(transport._shares._by_process.values()))
    assert share.waiting
    for peer in reversed(peers):
        peer.close()
    for _ in range(5):
        received(transport)
    assert transport.connections() == 0 and share.memory == 0 and not share.waiting
    assert not transport.has_input() and not would_wake(transport.selector)


def test_frames_that_a_peer_leaves_unread_are_bounded(transport: PolledTransport, paths: InstancePaths) -> None:
    peer = raw(paths.commands, HELLO + b"\0\1x")
    ((connection, _),) = received(transport)
    for _ in range(20):
        transport.send(connection, bytes(1 << 20))
    share = next(iter(transport._shares._by_process.values()))
    assert 1 << 20 < share.memory <= QUEUED_MAX + (1 << 20)
    assert not would_wake(transport.selector), "a socket without room wakes nobody"
    got = 0
    while share.memory:
        try:
            got += len(peer.recv(1 << 20))
        except BlockingIOError:
            received(transport)
    transport.send(connection, b"after")
    while b"after" not in (data := peer.recv(1 << 20)):
        got += len(data)
    assert got // (1 << 20) >= 3, "whole messages came, and the stream is in order"
    peer.close()


def test_a_connection_that_ends_after_any_byte_leaves_nothing_open(
    transport: PolledTransport, paths: InstancePaths, rng: Any
) -> None:
    """More messages than libzmq's RCVHWM, a PING, and the end: such bytes end a process that uses libzmq 4.3.5."""
    large = bytes((LONG,)) + (300_000).to_bytes(8, "big") + bytes(300_000)
    wire = HELLO + b"\0\1x" * 500 + b"\4\x07\x04PING\0\0" + large
    before = len(os.listdir("/proc/self/fd"))
    for path in (paths.commands, paths.outcomes):
        for _ in range(200):
            peer = raw(path, b"")
            peer.send(wire[: rng.randrange(len(wire))])
            if rng.random() < 0.5:
                received(transport)
                list(transport.outlet_messages(10))
            peer.close()
    while transport.connections() or transport.has_input():
        transport.tend(0)
        received(transport)
        list(transport.outlet_messages(10))
    received(transport)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(isinstance(error, MalformedError) for _, error in transport.complaints())


def test_without_a_file_left_a_connection_is_turned_away_and_later_ones_are_served(
    transport: PolledTransport, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = [socket.socket(socket.AF_UNIX) for _ in range(3)]

    def full(listening: int) -> int:
        spare = os.open(os.devnull, os.O_RDONLY)
        os.close(spare)
        if spare > highest:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    highest = transport._commands._listener._spare.fileno()
    with monkeypatch.context() as patched:
        patched.setattr("timerd.host.listener.accept", full)
        turned_away = raw(paths.commands, b"")
        for _ in range(3):
            received(transport)
        assert not would_wake(transport.selector), "the daemon would be woken for ever"
        assert turned_away.recv(1) == b"", "the connection is closed, and its peer notices"
    for each in (*opened, turned_away):
        each.close()
    ((pid, error),) = transport.complaints()
    assert f"process {pid}: a connection was closed: no more files may be open" in str(error)
    served = raw(paths.commands, HELLO + b"\0\1x")
    assert until(lambda: received(transport))[0][1] == b"x"
    served.close()


def test_a_path_that_cannot_be_bound_is_an_error_that_names_it(paths: InstancePaths) -> None:
    paths.outcomes.mkdir()  # a directory, as with daemons before 0.4
    with pytest.raises(ResourceLimitError, match=r"t\.pub cannot be made: Is a directory"):
        PolledTransport(paths, clients_max=1, connections_max=10)
    assert not paths.commands.exists()


def test_a_spare_file_that_another_thread_has_taken_ends_nothing(
    transport: PolledTransport, paths: InstancePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("timerd.host.listener.accept", refuse)
        patched.setattr("timerd.host.listener._spare_file", refuse)
        waiting = raw(paths.commands, HELLO + b"\0\1x")
        for _ in range(3):
            assert received(transport) == []
    assert until(lambda: received(transport))[0][1] == b"x"
    waiting.close()
