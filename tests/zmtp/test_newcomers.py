"""Newcomers, connections that have shown nothing yet: they end after some seconds, or when connections run out."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.real.polled import PolledTransport
from timerd.conductor.transport import NOT_ADMITTED
from timerd.config.config import FRAME_MEMORY
from timerd.host.budget import Budget
from timerd.host.listener import NEWCOMERS_PER_CALL
from timerd.host.newcomers import ENDS_PER_TURN, SHOWN_WITHIN_NS, Newcomers
from timerd.host.shares import Share, Shares, Why
from timerd.zmtp.peer import SIGNATURE
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.host.paths import InstancePaths
from timerd_wire.packets import FRAME, SUBSCRIBE

READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
GREETING = SIGNATURE + b"\3\0" + b"NULL".ljust(20, b"\0") + bytes(32)
HELLO = GREETING + bytes((4, len(READY))) + READY


class Holder:
    """A connection."""

    wanted_memory = memory = 0
    is_admitted = is_listed = False
    is_new = True

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.fixture
def transport(runtime_dir: Path) -> Iterator[PolledTransport]:
    made = PolledTransport(InstancePaths(runtime_dir, "t"), clients_max=40, connections_max=20)
    yield made
    made.close()


def path_of(runtime_dir: Path, name: str) -> str:
    path: Path = getattr(InstancePaths(runtime_dir, "t"), name)
    return str(path)


def read_all(transport: PolledTransport) -> None:
    for _ in range(4):
        list(transport.outlet_messages(64))
        list(transport.receive(1_000))


def connected(path: str, name: str, said: bytes = b"") -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if name == "packets" else socket.SOCK_STREAM)
    made.connect(path)
    made.setblocking(False)
    if said:
        made.send(said)
    return made


# the deadline -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("commands", b""),
        ("commands", HELLO[:40]),
        ("commands", GREETING),
        ("outcomes", b""),
        ("outcomes", GREETING.replace(b"NULL", b"PLAIN")[:64]),
        ("packets", b""),
        ("packets", bytes((FRAME,)) + b"a frame without a session"),
    ],
    ids=["nothing", "half a greeting", "no READY", "nothing for outcomes", "no password", "no packet", "no session"],
)
def test_a_connection_that_does_not_show_itself_is_closed_after_some_seconds(
    transport: PolledTransport, runtime_dir: Path, name: str, said: bytes
) -> None:
    with connected(path_of(runtime_dir, name), name, said):
        read_all(transport)
        transport.tend(1)
        assert transport.connections() == 1 and transport.due_ns == 1 + SHOWN_WITHIN_NS
        transport.tend(SHOWN_WITHIN_NS)
        assert transport.connections() == 1
        transport.tend(1 + SHOWN_WITHIN_NS)
        assert transport.connections() == 0 and transport.due_ns == NO_DEADLINE
    ((pid, error),) = transport.complaints()
    assert pid == os.getpid() and isinstance(error, ResourceLimitError)
    assert str(error) == f"process {pid}: a connection was closed: it had shown nothing after 5 s"


@pytest.mark.parametrize(
    ("name", "said"),
    [("commands", HELLO), ("packets", bytes((SUBSCRIBE,)) + bytes(range(16)))],
    ids=["zmtp", "packets"],
)
def test_a_connection_that_has_shown_itself_may_be_silent_for_ever(
    transport: PolledTransport, runtime_dir: Path, name: str, said: bytes
) -> None:
    with connected(path_of(runtime_dir, name), name, said):
        for _ in range(3):
            for connection, slot, _ in transport.outlet_messages(10):
                if slot == NOT_ADMITTED:
                    transport.admit(connection, 3)
            list(transport.receive(100))
        transport.tend(1)
        assert transport.due_ns == NO_DEADLINE
        transport.tend(100 * SHOWN_WITHIN_NS)
        assert transport.connections() == 1 and transport.complaints() == []


def test_a_connection_whose_bytes_wait_to_be_read_is_not_closed(transport: PolledTransport, runtime_dir: Path) -> None:
    """For example, the daemon was stopped for a while. Then it first reads what has come."""
    with connected(path_of(runtime_dir, "commands"), "commands") as peer:
        read_all(transport)
        transport.tend(0)
        peer.send(HELLO)
        transport.selector.poll(0)
        transport.tend(10 * SHOWN_WITHIN_NS)
        read_all(transport)
        transport.tend(20 * SHOWN_WITHIN_NS)
        assert transport.connections() == 1


def test_a_turn_ends_a_bounded_number_of_newcomers() -> None:
    newcomers: Newcomers[Holder] = Newcomers()
    for number in range(3 * ENDS_PER_TURN):
        newcomers.add(Holder(number))
    assert newcomers.overdue(0) == [] and len(newcomers) == 3 * ENDS_PER_TURN
    found = []
    for _ in range(3):
        ended = newcomers.overdue(SHOWN_WITHIN_NS)
        assert len(ended) == ENDS_PER_TURN
        for each in ended:
            newcomers.remove(each)
        found += [each.number for each in ended]
    assert found == list(range(3 * ENDS_PER_TURN)) and not len(newcomers)


# when connections run out -------------------------------------------------------------------------------------------


def test_silent_connections_go_first_when_connections_run_out(transport: PolledTransport, runtime_dir: Path) -> None:
    """Twenty connections may be open: five have shown themselves, and fifteen are silent."""
    commands = path_of(runtime_dir, "commands")
    with ExitStack() as stack:
        shown = [stack.enter_context(connected(commands, "commands", HELLO)) for _ in range(5)]
        read_all(transport)
        for _ in range(15):
            stack.enter_context(connected(commands, "commands"))
        read_all(transport)
        assert transport.connections() == 20
        for _ in range(15):  # each takes the place of a silent connection
            shown.append(stack.enter_context(connected(commands, "commands", HELLO)))
            read_all(transport)
        for number, each in enumerate(shown):
            each.send(b"\0\1%c" % (65 + number))
        frames = {frame for _ in range(4) for _, frame in transport.receive(100)}
        assert frames == {b"%c" % (65 + number) for number in range(20)}
        refused = transport.complaints()
    assert len(refused) == 15 and "no more files may be open" in str(refused[0][1])


def test_connections_that_are_refused_leave_the_queue_in_one_call(
    transport: PolledTransport, runtime_dir: Path
) -> None:
    """Otherwise a newcomer waits behind them: a process that is refused connects again at once."""
    commands = path_of(runtime_dir, "commands")
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(commands, "commands"))
        read_all(transport)
        assert transport.connections() == 20 and not transport.complaints()
        for _ in range(3 * NEWCOMERS_PER_CALL):
            stack.enter_context(connected(commands, "commands"))
        list(transport.receive(1_000))
        assert len(transport.complaints()) == 3 * NEWCOMERS_PER_CALL
        assert transport.connections() == 20


class Places:
    """`most` connections may be open. `ended`: those that were closed, as (process, number)."""

    def __init__(self, most: int = 10) -> None:
        self.shares = Shares(100, most, Budget(FRAME_MEMORY))
        self.ended: list[tuple[int, int]] = []

    def come(self, process: int) -> Holder | None:
        """A process connects."""
        shares, ended = self.shares, self.ended

        class Coming(Holder):
            def __init__(self, share: Share) -> None:
                super().__init__(shares.new_number())
                self.share = share
                shares.add(share, self)

            def wake(self) -> None: ...

            def end(self) -> None:
                ended.append((self.share.process, self.number))
                shares.remove(self.share, self)

        share = shares.open(process)
        return None if share is None else Coming(share)


def test_of_several_processes_the_one_with_most_connections_loses_its_oldest_newcomer() -> None:
    places = Places()
    for process in (7, 7, 7, 7, 7, 7, 8, 8, 8, 8):
        assert places.come(process)
    assert places.come(9) and places.ended == [(7, 1)]
    assert places.come(7) and places.ended == [(7, 1), (7, 2)], "it takes no other process's place"
    assert places.come(9) and places.ended[2] == (7, 3)
    assert places.shares.take_refused() == {(7, Why.NO_FILES): 3}


def test_a_process_with_many_newcomers_is_refused_and_makes_room_for_others() -> None:
    places = Places(20)
    for _ in range(20):
        assert places.come(7)
    assert places.come(7) is None and not places.ended
    assert places.come(8) and places.ended == [(7, 1)]
    assert places.shares.take_refused() == {(7, Why.NO_FILES): 2}


def test_processes_that_the_daemon_cannot_tell_apart_are_not_refused_for_each_other() -> None:
    """A newcomer of one of them takes the place of the oldest, which has shown nothing for the longest time."""
    places = Places(20)
    for _ in range(20):
        assert places.come(0)
    assert places.come(0) and places.ended == [(0, 1)]


def test_workers_that_connect_together_take_the_places_of_a_hog_and_not_of_each_other() -> None:
    places = Places()
    for _ in range(10):
        assert places.come(7)
    (hog,) = places.shares._by_process.values()
    for connection in hog.connections.values():
        places.shares.shown(hog, connection)
    for process in range(100, 106):
        assert places.come(process)
    assert places.ended == [(7, number) for number in range(10, 4, -1)]


def test_where_each_process_has_one_newcomer_the_oldest_of_earlier_turns_gives_way() -> None:
    places = Places()
    for process in range(10):
        assert places.come(process)
    assert places.come(11) is None, "all have come in this turn"
    places.shares.tend(1)
    assert places.come(11) and places.ended == [(0, 1)]


def test_after_a_standstill_of_the_daemon_the_time_of_newcomers_begins_anew() -> None:
    places = Places()
    assert places.come(7)
    places.shares.tend(1)
    later = 1 + 10 * SHOWN_WITHIN_NS
    places.shares.renew(later)
    places.shares.tend(later)
    assert not places.ended and places.shares.due_ns == later + SHOWN_WITHIN_NS
    places.shares.tend(later + SHOWN_WITHIN_NS)
    assert places.ended == [(7, 1)]
