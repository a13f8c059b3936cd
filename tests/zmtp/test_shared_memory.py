"""The memory for frames over real sockets: a process over its share gives way, and the others lose nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.real.polled import PolledTransport
from timerd.clients.process import Process
from timerd.clients.session import Session
from timerd.conductor.deferred import Deferred
from timerd.host.budget import Budget
from timerd.host.shares import Share
from timerd.zmtp.peer import EASY_SIZE_MAX, LONG, SIGNATURE
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.limits import PACKET_SIZE_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_wire.packets import FRAME, PART

MIB = 1 << 20
MOST = 8 * MIB
READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
HELLO = SIGNATURE + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32) + bytes((4, len(READY))) + READY
SPENT = "a connection was closed: the 8 MiB of --frame-memory are in use, and it has more than its share"


class Net:
    """A transport, and its peers. The test chooses the number of each peer's process."""

    def __init__(self, directory: Path, stack: ExitStack, name: str) -> None:
        self.transport = PolledTransport(
            InstancePaths(directory, "t"), clients_max=100, connections_max=1_000, budget=Budget(MOST)
        )
        stack.callback(self.transport.close)
        self.coming = 0  # the process of the next connection
        self._stack = stack
        self._name = name

    def peer(self, process: int) -> tuple[int, socket.socket]:
        """Make a connection of a process, and send a frame. Returns its number in the transport, and its socket."""
        self.coming = process
        is_stream = self._name == "commands"
        made = self._stack.enter_context(socket.socket(socket.AF_UNIX, getattr(socket, KINDS[self._name])))
        made.connect(str(getattr(self.transport.paths, self._name)))
        made.setblocking(False)
        made.send(HELLO + b"\0\1x" if is_stream else bytes((FRAME,)) + b"x")
        found: list[tuple[int, bytes]] = []
        while not found:
            found = self.read()
        return found[0][0], made

    def read(self) -> list[tuple[int, bytes]]:
        return list(self.transport.receive(1_000))

    def share(self, process: int) -> Share:
        return self.transport._shares._by_process[process]

    def fill(self, process: int, size: int) -> list[int]:
        """Leave answers of a process unread, as far as the daemon takes them. Returns its connections."""
        connections: list[int] = []
        before = -1
        while before < (before := self.share(process).memory if connections else 0) < size:
            connections.append(self.peer(process)[0])
            for _ in range(20):
                self.transport.send(connections[-1], bytes(100_000))
        return connections


KINDS = {"commands": "SOCK_STREAM", "packets": "SOCK_SEQPACKET"}


@pytest.fixture(params=["commands", "packets"])
def net(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Net]:
    with ExitStack() as stack:
        made = Net(runtime_dir, stack, request.param)
        monkeypatch.setattr("timerd.host.listener.process_of", lambda descriptor: made.coming)
        yield made


def test_a_process_below_its_share_gets_its_frames_and_a_process_above_it_loses_a_connection(net: Net) -> None:
    net.fill(1, 6 * MIB)
    net.fill(2, 6 * MIB)
    number, light = net.peer(3)
    budget, before = net.transport._shares.budget, net.transport.connections()
    assert budget.used > 6 * MIB and net.transport.complaints(), "the second process took no memory from the first"
    frames = [os.urandom(100_000) for _ in range(15)]
    for frame in frames:
        net.transport.send(number, frame)
    got = b""
    while len(got) < sum(map(len, frames)):
        try:
            got += light.recv(1 << 20)
        except BlockingIOError:
            net.read()
    assert all(frame in got for frame in frames), "a process below its share lost a frame"
    assert budget.used <= MOST
    complaints = net.transport.complaints()
    assert complaints and {pid for pid, _ in complaints} <= {1, 2}
    assert all(isinstance(error, ResourceLimitError) and SPENT in str(error) for _, error in complaints)
    assert net.transport.connections() == before - len(complaints)


def test_processes_above_their_share_get_no_more_and_keep_their_connections(net: Net) -> None:
    connections = net.fill(1, 6 * MIB) + net.fill(2, 6 * MIB)
    net.transport.complaints()
    before = net.transport.connections()
    for connection in connections:
        for _ in range(20):
            net.transport.send(connection, bytes(100_000))
    assert net.transport._shares.budget.used <= MOST
    assert net.transport.connections() == before and net.transport.complaints() == []


@pytest.mark.parametrize("size", [20_000, PACKET_SIZE_MAX])
def test_a_process_at_its_maximum_gets_frames_over_a_connection_that_it_reads(net: Net, size: int) -> None:
    net.fill(1, 8 * MIB)
    number, healthy = net.peer(1)
    budget, share = net.transport._shares.budget, net.share(1)
    share.charge(budget.process_max - share.memory)  # takes the small rest that the unread frames leave
    assert not share.has_room(1)
    before = share.memory
    for _ in range(50):
        frame = os.urandom(size)
        net.transport.send(number, frame)
        assert share.memory == before
        got = b""
        while not got.endswith(frame):
            got += healthy.recv(1 << 20)  # it has come: the socket does not block


def test_a_process_at_its_maximum_gets_no_more_memory_for_frames_that_it_does_not_read(net: Net) -> None:
    connections = net.fill(1, MOST)
    connections += [net.peer(1)[0] for _ in range(10)]
    before = net.share(1).memory
    for connection in connections:
        for _ in range(10):
            net.transport.send(connection, bytes(100_000))
    assert net.share(1).memory == before


def test_a_frame_that_comes_in_is_charged_from_its_beginning(net: Net) -> None:
    _, peer = net.peer(1)
    size = 4 * MIB
    if net._name == "commands":
        peer.send(bytes((LONG,)) + size.to_bytes(8, "big") + bytes(100))
        net.read()
        assert net.share(1).memory == 100, "the frame is read on before there is room for it"
        peer.send(bytes(EASY_SIZE_MAX))
    else:
        peer.send(bytes((PART,)) + size.to_bytes(4, "little") + bytes(100))
    net.read()
    net.read()
    assert net.share(1).memory == size
    peer.close()
    while net.transport.connections():
        net.read()
    assert net.transport._shares.budget.used == 0 and not net.transport._shares._by_process


def test_deferred_frames_are_in_the_budget_and_the_largest_of_them_give_way(net: Net) -> None:
    sheds: list[int] = []

    def drop(process: int) -> None:
        sheds.append(process)
        net.transport.defer(process, -7 * MIB - 1)

    net.transport.on_shed(drop)
    assert net.transport.defer(1, MIB), "there is no room, though nothing is in use"
    net.transport.defer(1, -MIB)
    net.transport.defer(1, 6 * MIB)
    assert not net.transport.defer(1, MIB + 1), "there is room, though most of the budget is in use"
    net.fill(2, 2 * MIB)
    assert sheds == [1]
    ((pid, error),) = net.transport.complaints()
    assert (pid, "its deferred frames were dropped: the 8 MiB of --frame-memory" in str(error)) == (1, True)


def test_deferred_frames_of_many_processes_stay_within_the_budget_and_small_ones_are_kept(runtime_dir: Path) -> None:
    """In an earlier version, each process could have 2 MiB and one frame of 4 MiB deferred: the sum had no bound."""
    with ExitStack() as stack:
        transport = Net(runtime_dir, stack, "commands").transport
        deferred = Deferred(transport.hold, transport.defer)
        transport.on_shed(deferred.drop)
        light = Session(0, 0, Process(0, 0), 15_000_000_000, 0)
        deferred.add(light, 1_000, b"small")
        for process in range(1, 51):
            deferred.add(Session(process, process, Process(0, 0), 15_000_000_000, 0), process, bytes(MIB))
            assert transport._shares.budget.used <= MOST
        assert deferred.has(light) and deferred.frames > 5
        dropped = [str(error) for _, error in transport.complaints()]
        assert len(dropped) == 51 - deferred.frames and all(
            "its deferred frames were dropped" in each for each in dropped
        )
        while deferred.frames:
            deferred.first()
            deferred.pass_on(done=True)
        assert transport._shares.budget.used == 0 and not transport._shares._by_process


@pytest.mark.parametrize("whole", [False, True], ids=["half a frame", "more frames than a turn deals with"])
def test_small_bytes_that_were_read_are_charged_while_they_are_kept(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """In an earlier version, a connection kept up to 48 KiB that no budget counted, even if all frames were applied."""
    with ExitStack() as stack:
        net = Net(runtime_dir, stack, "commands")
        monkeypatch.setattr("timerd.host.listener.process_of", lambda descriptor: net.coming)
        _, peer = net.peer(1)
        assert net.share(1).memory == 0
        sent = b"\0\1y" * 1_000 if whole else bytes((LONG,)) + (10_000).to_bytes(8, "big") + bytes(9_000)
        peer.send(sent)
        frames = list(net.transport.receive(1))
        assert len(frames) == whole and net.share(1).memory == len(sent)
        peer.send(b"" if whole else bytes(1_000))
        while net.share(1).memory:
            frames += net.read()
        assert len(frames) == (1_000 if whole else 1)


@pytest.mark.parametrize("name", ["commands", "outcomes"])
def test_a_connection_that_ends_because_of_bytes_after_its_message_ends_nothing_else(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The peer's process is over its share because of other memory. The message is lost with the connection."""
    password = b"\x05HELLO\0" + bytes((16,)) + bytes(16)
    greeting = HELLO if name == "commands" else SIGNATURE + b"\3\0" + b"PLAIN".ljust(20, b"\0") + bytes(32)
    message = b"\0\1y" if name == "commands" else bytes((4, len(password))) + password
    half = bytes((LONG,)) + (10_000).to_bytes(8, "big") + bytes(9_000)
    with ExitStack() as stack:
        net = Net(runtime_dir, stack, "commands")
        monkeypatch.setattr("timerd.host.listener.process_of", lambda descriptor: 1)
        peer = stack.enter_context(socket.socket(socket.AF_UNIX))
        peer.connect(str(getattr(net.transport.paths, name)))
        peer.sendall(greeting)
        for _ in range(3):
            net.read()
            list(net.transport.outlet_messages(10))
        net.share(1).charge(MOST - 1_000)
        peer.sendall(message + half)
        for _ in range(4):
            assert net.read() == [] and list(net.transport.outlet_messages(10)) == []
        assert net.transport.connections() == 0
        assert [SPENT in str(error) for _, error in net.transport.complaints()] == [True]
