"""Connections that leave before they are accepted: they hold nobody up, and what they have sent is read."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real.polled import PolledTransport, PolledWatches
from timerd.clients.liveness import ACCEPTS_PER_TURN
from timerd.config.config import FRAME_MEMORY
from timerd.host.accepting import LEFT, accept, credentials_of
from timerd.host.budget import Budget
from timerd.host.listener import ACCEPTS_PER_CALL, NEWCOMERS_PER_CALL
from timerd_shm.host.paths import InstancePaths
from timerd_wire.packets import FRAME

HAVE_LEFT = 500
KINDS = {"commands": socket.SOCK_STREAM, "outcomes": socket.SOCK_STREAM, "packets": socket.SOCK_SEQPACKET}


@pytest.fixture
def paths(runtime_dir: Path) -> InstancePaths:
    return InstancePaths(runtime_dir, "t")


@pytest.fixture
def transport(paths: InstancePaths) -> Iterator[PolledTransport]:
    made = PolledTransport(paths, clients_max=4, connections_max=1_000, budget=Budget(FRAME_MEMORY))
    yield made
    made.close()


def connect(path: Path, kind: int = socket.SOCK_STREAM) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, kind)
    made.connect(str(path))
    return made


def read_once(transport: PolledTransport, name: str) -> list[bytes]:
    """One call of the server with this name. Returns what it has read."""
    if name == "outcomes":
        return [each.message for each in transport.outlet_messages(64)]
    return [frame for _, frame in transport.receive(64)]


@pytest.mark.parametrize("name", KINDS)
def test_a_newcomer_does_not_wait_behind_connections_that_have_left(
    transport: PolledTransport, paths: InstancePaths, name: str
) -> None:
    path = getattr(paths, name)
    for _ in range(HAVE_LEFT):
        connect(path, KINDS[name]).close()
    with connect(path, KINDS[name]):
        calls = 0
        while not transport.connections():
            read_once(transport, name)
            calls += 1
        assert calls == HAVE_LEFT // ACCEPTS_PER_CALL + 1
        assert transport.connections() == 1
    assert not list(transport.complaints()), "nothing was broken"


def test_a_call_begins_a_bounded_number_of_connections(transport: PolledTransport, paths: InstancePaths) -> None:
    newcomers = [connect(paths.commands) for _ in range(3 * NEWCOMERS_PER_CALL)]
    for call in (1, 2, 3):
        read_once(transport, "commands")
        assert transport.connections() == call * NEWCOMERS_PER_CALL
    for each in newcomers:
        each.close()


def test_what_a_client_has_sent_before_it_left_is_read(transport: PolledTransport, paths: InstancePaths) -> None:
    for number in range(NEWCOMERS_PER_CALL):
        with connect(paths.packets, socket.SOCK_SEQPACKET) as client:
            client.send(bytes((FRAME, number)))
    assert read_once(transport, "packets") == [bytes((number,)) for number in range(NEWCOMERS_PER_CALL)]


def test_a_lifeline_does_not_wait_behind_checks_whether_a_daemon_runs(paths: InstancePaths) -> None:
    watches = PolledWatches(paths, watches_max=1_000)
    try:
        for _ in range(HAVE_LEFT):
            connect(paths.liveness).close()
        with connect(paths.liveness):
            calls = 0
            while not len(watches):
                assert watches.signs(64, 0) == []
                calls += 1
            assert calls == HAVE_LEFT // ACCEPTS_PER_TURN + 1 and watches.take_refused() == 0
    finally:
        watches.close()


def test_a_connection_is_accepted_without_waiting_and_names_its_process(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            accept(listening.fileno())
        connect(path).close()
        assert accept(listening.fileno()) == LEFT
        with connect(path):
            descriptor = accept(listening.fileno())
            assert credentials_of(descriptor) == (os.getpid(), os.geteuid())
            assert not os.get_blocking(descriptor) and not os.get_inheritable(descriptor)
            os.close(descriptor)
