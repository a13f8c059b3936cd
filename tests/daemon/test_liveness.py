"""The liveness socket and pidfds, on real sockets and processes; time is passed in."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.fakes.descriptors import free_files
from support.real.patience import PATIENCE_S, stop
from support.real.polled import PolledWatches, would_wake
from timerd.clients.liveness import (
    FULL_NS,
    NEWCOMER_NS,
    NEWCOMERS_PER_TURN,
    Kind,
    Sign,
)
from timerd.core import NEVER
from timerd.host.descriptors import NEWCOMERS_MAX
from timerd_shm.host.paths import InstancePaths

SESSION = bytes(range(16))
LIMIT = 256

MakeWatches = Callable[..., PolledWatches]


@pytest.fixture
def make_watches(runtime_dir: Path) -> Iterator[MakeWatches]:
    made: list[PolledWatches] = []

    def make(watches_max: int = 1_000) -> PolledWatches:
        made.append(PolledWatches(InstancePaths(runtime_dir, "default"), watches_max=watches_max))
        return made[-1]

    yield make
    for watches in made:
        watches.close()


@pytest.fixture
def watches(make_watches: MakeWatches) -> PolledWatches:
    return make_watches()


@pytest.fixture
def connect(runtime_dir: Path) -> Iterator[Callable[..., socket.socket]]:
    """Makes connections that have sent the given bytes."""
    made: list[socket.socket] = []

    def make(said: bytes = b"") -> socket.socket:
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].connect(str(InstancePaths(runtime_dir, "default").liveness))
        made[-1].sendall(said)
        return made[-1]

    yield make
    for connection in made:
        connection.close()


def drain(watches: PolledWatches, now_ns: int = 0) -> list[Sign]:
    """All signs so far."""
    found: list[Sign] = []
    while would_wake(watches.selector):
        found += watches.signs(LIMIT, now_ns)
    return found


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except BlockingIOError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# connections ------------------------------------------------------------------------------------------------------


def test_a_connection_shows_a_session_and_its_end_of_file_is_the_end(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    connection = connect(SESSION)
    [shown] = drain(watches)
    assert (shown.kind, shown.session) == (Kind.SHOWN, SESSION)
    assert drain(watches) == []
    connection.close()
    assert drain(watches) == [Sign(shown.watch, Kind.ENDED)]
    assert (len(watches), watches.take_refused()) == (0, 0)


def test_a_session_may_come_in_pieces(watches: PolledWatches, connect: Callable[..., socket.socket]) -> None:
    connection = connect(SESSION[:5])
    assert drain(watches) == []
    connection.sendall(SESSION[5:])
    assert [sign.session for sign in drain(watches)] == [SESSION]


def test_the_socket_is_for_its_user_alone_and_removed_with_the_daemon(
    watches: PolledWatches, runtime_dir: Path
) -> None:
    path = InstancePaths(runtime_dir, "default").liveness
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    watches.close()
    assert not path.exists()


def test_the_socket_of_a_killed_daemon_is_replaced(
    make_watches: MakeWatches, connect: Callable[..., socket.socket]
) -> None:
    make_watches()
    second = make_watches()
    connect(SESSION)
    assert len(drain(second)) == 1


def test_a_dropped_watch_is_closed_and_gives_no_sign(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    connection = connect(SESSION)
    [shown] = drain(watches)
    watches.drop(shown.watch)
    watches.drop(shown.watch)
    assert is_closed(connection) and drain(watches) == []


# connections that break the rules ---------------------------------------------------------------------------------


def test_a_watch_that_is_dropped_after_its_end_was_polled_leaves_no_sign_to_the_next_descriptor(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    connection = connect(SESSION)
    [shown] = drain(watches)
    connection.close()
    watches.selector.poll(0)
    watches.drop(shown.watch)
    assert watches.watch(os.getpid())
    assert drain(watches) == [] and watches.signs(LIMIT, 0) == []


def test_a_connection_that_shows_no_session_in_time_is_closed(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    silent, slow = connect(), connect(SESSION[:15])
    assert watches.due_ns == NEVER
    assert drain(watches, now_ns=1_000) == []
    assert watches.due_ns == 1_000 + NEWCOMER_NS
    watches.signs(LIMIT, 999 + NEWCOMER_NS)
    assert not is_closed(silent)
    assert watches.signs(LIMIT, 1_000 + NEWCOMER_NS) == []
    assert is_closed(silent) and is_closed(slow)
    assert (len(watches), watches.take_refused(), watches.due_ns) == (0, 2, NEVER)


@pytest.mark.parametrize("said", [SESSION + b"!", b"GET / HTTP/1.1\r\n\r\n", bytes(100_000)])
def test_a_connection_that_sends_more_than_a_session_is_closed(
    watches: PolledWatches, connect: Callable[..., socket.socket], said: bytes
) -> None:
    connection = connect(said)
    assert drain(watches) == []
    assert is_closed(connection)
    assert (len(watches), watches.take_refused()) == (0, 1)


def test_bytes_after_the_session_are_no_end(watches: PolledWatches, connect: Callable[..., socket.socket]) -> None:
    connection = connect(SESSION)
    [shown] = drain(watches)
    connection.sendall(b"?")
    assert drain(watches) == [Sign(shown.watch, Kind.BROKEN)]
    assert is_closed(connection) and watches.take_refused() == 1


def test_a_connection_that_closes_without_a_session_is_only_counted(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    connect(b"x").close()
    assert drain(watches) == []
    assert (len(watches), watches.take_refused()) == (0, 1)


def test_thousands_of_connections_without_a_session_hold_few_descriptors_and_block_no_client(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    held = descriptors()
    for _ in range(10):
        crowd = [connect(b"x") for _ in range(300)]
        honest = connect(SESSION)
        assert [sign.kind for sign in drain(watches)] == [Kind.SHOWN]
        assert len(watches) <= NEWCOMERS_MAX + 10
        for each in crowd:
            each.close()
        honest.close()
        assert [sign.kind for sign in drain(watches)] == [Kind.ENDED]
    assert descriptors() == held
    assert watches.take_refused() == 3_000


def test_a_turn_accepts_a_bounded_number(watches: PolledWatches, connect: Callable[..., socket.socket]) -> None:
    for _ in range(NEWCOMERS_PER_TURN + 10):
        connect(SESSION)
    assert len(watches.signs(LIMIT, 0)) == NEWCOMERS_PER_TURN
    assert len(drain(watches)) == 10


def test_beyond_the_bound_connections_are_closed_and_counted(
    make_watches: MakeWatches, connect: Callable[..., socket.socket]
) -> None:
    watches = make_watches(watches_max=3)
    crowd = [connect(SESSION) for _ in range(5)]
    assert len(drain(watches)) == 3
    assert [is_closed(each) for each in crowd] == [False] * 3 + [True] * 2
    assert watches.take_refused() == 2
    assert watches.watch(os.getpid()) == 0, "a pidfd is watched beyond the bound"


def test_without_a_free_descriptor_the_socket_sleeps_and_accepts_later(
    watches: PolledWatches, connect: Callable[..., socket.socket]
) -> None:
    connect(SESSION)
    with free_files(0):
        assert watches.signs(LIMIT, 0) == []
        assert watches.due_ns == FULL_NS
        assert watches.signs(LIMIT, 1) == []
    assert not would_wake(watches.selector), "a connection in the backlog would wake the daemon again and again"
    watches.signs(LIMIT, FULL_NS)
    assert [sign.session for sign in drain(watches, FULL_NS)] == [SESSION]
    assert watches.due_ns == NEVER


def test_a_connection_that_the_kernel_refuses_to_watch_is_closed_and_counted(
    watches: PolledWatches, connect: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """fs.epoll.max_user_watches is one limit for all processes of a user, so they may have used it up."""

    def refuse(descriptor: int, interest: int, owner: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    connection, held = connect(SESSION), descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(watches.selector, "register", refuse)
        assert watches.signs(LIMIT, 0) == []
        assert watches.watch(os.getpid()) == 0
    assert is_closed(connection) and watches.take_refused() == 1
    assert (len(watches), descriptors()) == (0, held)


# processes --------------------------------------------------------------------------------------------------------


def test_the_end_of_a_process_is_a_sign_and_a_stop_is_none(watches: PolledWatches) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watch = watches.watch(child.pid)
    assert watch > 0
    stop(child.pid)
    assert not select.select([watches.selector], [], [], 0.05)[0]
    child.kill()
    assert select.select([watches.selector], [], [], PATIENCE_S)[0]
    assert drain(watches) == [Sign(watch, Kind.ENDED)], "a zombie has not counted as ended"
    child.wait()
    assert watches.watch(child.pid) == 0, "a process that does not exist is watched"
    assert len(watches) == 0


def test_without_pidfds_no_process_is_watched(watches: PolledWatches, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert watches.watch(os.getpid()) == 0
