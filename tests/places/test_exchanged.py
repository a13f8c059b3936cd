"""If another user exchanges a directory or a socket that a client has looked at, the client trusts no daemon of his."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.users import NOBODY, a_member
from timerd_client.transport.lifeline import Lifeline
from timerd_client.transport.unix_sockets import UnixSockets
from timerd_client.transport.zmq_sockets import ZmqSockets
from timerd_shm.declare.errors import ResourceLimitError, TimerdUnavailableError
from timerd_shm.declare.wire import PROTOCOL_VERSION, UpKind
from timerd_shm.host.paths import InstancePaths, daemon_running
from timerd_shm.host.search import find_instance
from timerd_shm.host.trust import distrust

pytestmark = pytest.mark.root("makes files and processes of another user")

OTHERS = "user nobody"
HELLO = bytes((PROTOCOL_VERSION, UpKind.HELLO))
LATER_NS = 100 * 1_000_000_000  # a connection that ends so late was not refused


def names(paths: InstancePaths) -> list[Path]:
    """The sockets that a false daemon needs. A client looks at the last one first."""
    return [paths.commands, paths.packets, paths.outcomes, paths.liveness]


def listen(paths: InstancePaths) -> list[socket.socket]:
    """Listen at the sockets of an instance, as its daemon does."""
    made = []
    for path in names(paths):
        kind = socket.SOCK_SEQPACKET if path == paths.packets else socket.SOCK_STREAM
        made.append(socket.socket(socket.AF_UNIX, kind))
        made[-1].bind(str(path))
        made[-1].listen()
    return made


def made_for(directory: Path, owner: int) -> InstancePaths:
    """A new directory that belongs to `owner`. Nobody else may write it."""
    directory.mkdir()
    os.chown(directory, owner, -1)
    directory.chmod(0o755)
    return InstancePaths(directory, "default")


@pytest.fixture
def place(runtime_dir: Path) -> Iterator[Path]:
    """The name under which a client looks: a link in a directory that everybody may write."""
    runtime_dir.chmod(0o777)
    yield runtime_dir / "place"


@contextmanager
def listening_as_nobody(at: InstancePaths) -> Iterator[None]:
    kept = []

    def act() -> str:
        kept.append(listen(at))
        return ""

    with a_member(NOBODY, act) as said:
        assert said == "-"
        yield


def point(place: Path, to: Path) -> None:
    fresh = place.with_name(".fresh")
    fresh.symlink_to(to)
    fresh.rename(place)


def test_a_place_that_is_exchanged_after_it_was_found_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path, place: Path
) -> None:
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(place))
    roots, others = made_for(runtime_dir / "r", 0), made_for(runtime_dir / "n", NOBODY)
    listeners = listen(roots)
    point(place, roots.directory)
    found = find_instance()
    assert daemon_running(found)
    with listening_as_nobody(others):
        point(place, others.directory)
        with pytest.raises(ResourceLimitError, match=f"{found.liveness}: .*{OTHERS}"):
            daemon_running(found)
        with pytest.raises(TimerdUnavailableError, match=f"{place} is left out, because it belongs to {OTHERS}"):
            find_instance()
    for each in listeners:
        each.close()


def test_a_client_that_connects_again_judges_the_place_again(runtime_dir: Path, place: Path) -> None:
    roots, others = made_for(runtime_dir / "r", 0), made_for(runtime_dir / "n", NOBODY)
    listeners = listen(roots)
    point(place, roots.directory)
    paths = InstancePaths(place, "default")
    now_ns = 0
    sockets, line = UnixSockets(paths, lambda: now_ns), Lifeline(paths)
    try:
        assert not sockets.trouble() and line.hold(b"secret", now_ns)
        for each in listeners:
            each.close()
        with listening_as_nobody(others):
            point(place, others.directory)
            now_ns = LATER_NS
            assert sockets.receive(published=True) is None, "it finds the end"
            now_ns *= 2
            sockets.tend(now_ns)
            assert f"{place} is left out, because it belongs to {OTHERS}" in sockets.trouble()
            assert not line.hold(b"secret", now_ns), "it would show its session to another user"
    finally:
        sockets.close(linger=False)
        line.let_go()


def test_a_socket_of_ours_at_which_another_user_listens_is_refused(runtime_dir: Path) -> None:
    """As if the socket was exchanged between the look at its file and the connection to it."""
    runtime_dir.chmod(0o755)
    others = made_for(runtime_dir / "n", NOBODY)
    with listening_as_nobody(others):
        for path in others.directory.iterdir():
            os.chown(path, 0, -1)
        os.chown(others.directory, 0, -1)
        said = f"a process of {OTHERS} listens there"
        with pytest.raises(ResourceLimitError, match=said):
            daemon_running(others)
        sockets, line = UnixSockets(others), Lifeline(others)
        try:
            assert said in sockets.trouble()
            assert not line.hold(b"secret", 0)
        finally:
            sockets.close(linger=False)
        assert daemon_running(others._replace(daemon_user=NOBODY)), "the named user may listen"


@pytest.mark.parametrize(("owner", "is_used"), [(NOBODY, False), (0, True)])
def test_a_link_that_anybody_may_have_made_chooses_no_user(
    tmp_path: Path, runtime_dir: Path, owner: int, is_used: bool
) -> None:
    """Root gave the directory to the user `nobody`, so it may be used. A link to it that `nobody` made may not."""
    directory = tmp_path / "home-of-nobody"
    directory.mkdir()
    os.chown(directory, NOBODY, -1)
    runtime_dir.chmod(0o777)
    name = runtime_dir / "jobs"
    name.symlink_to(directory)
    os.chown(name, owner, -1, follow_symlinks=False)
    assert not distrust(directory), "root alone may write the directory above it"
    assert (not distrust(name)) == is_used, distrust(name)


def test_over_zeromq_a_lost_client_connects_to_no_daemon_of_another_user(runtime_dir: Path) -> None:
    """Everybody may write the daemon's directory. When the daemon has ended, another user takes its sockets' names.

    If the client connected, this user would get its proof and its session, and could fail its operations.
    """
    runtime_dir.chmod(0o777)
    heard = runtime_dir / "heard"
    with Daemon(runtime_dir) as daemon, td.connect(timeout=PATIENCE_S, transport="zeromq") as client:
        waits = client.register("k", timeout=600)
        client.flush(timeout=PATIENCE_S)
        connection = client._lazy.link().connection
        daemon.stop()

        def act() -> str:
            listeners = dict(zip(listen(daemon.paths), names(daemon.paths), strict=True))

            def note() -> None:
                while True:
                    for each in select.select(list(listeners), [], [])[0]:
                        each.accept()
                        with heard.open("a") as file:
                            file.write(f"{listeners[each].name}\n")

            threading.Thread(target=note, daemon=True).start()
            return ""

        with a_member(NOBODY, act):
            eventually(lambda: OTHERS in connection.sockets.trouble() or heard.exists())
            for path in names(daemon.paths):
                path.unlink()
        assert not heard.exists(), heard.read_text()
        daemon.start()
        client.ready(timeout=PATIENCE_S)
        assert client.fire_wait("k", timeout=PATIENCE_S) == 1
        assert waits.result(PATIENCE_S).state is td.State.COMPLETED


def test_over_zeromq_a_hello_goes_only_to_the_present_socket(runtime_dir: Path) -> None:
    """Between two hellos, libzmq may have connected to a socket that stood there for a moment."""
    paths = InstancePaths(runtime_dir, "default")
    first = listen(paths)
    sockets = ZmqSockets(paths)
    try:
        first[0].accept()
        paths.commands.unlink()
        with socket.socket(socket.AF_UNIX) as second:
            second.bind(str(paths.commands))
            second.listen()
            second.settimeout(PATIENCE_S)
            assert not sockets.send(HELLO), "it is not connected yet"
            second.accept()
        os.chown(paths.commands, NOBODY, -1)
        assert not sockets.send(HELLO) and OTHERS in sockets.trouble()
        assert not sockets.has_room(), "it is disconnected"
    finally:
        sockets.close(linger=False)
        for each in first:
            each.close()


def test_over_zeromq_a_socket_without_a_listener_is_not_connected_to(runtime_dir: Path) -> None:
    """libzmq would connect to whoever replaces it."""
    paths = InstancePaths(runtime_dir, "default")
    left = listen(paths)
    sockets = ZmqSockets(paths)
    try:
        left[0].accept()
        for each in left:
            each.close()  # as a daemon that was killed: the files stay
        assert sockets.lost(0) and not sockets.tend(LATER_NS)
        for path in names(paths):
            path.unlink()
        again = listen(paths)
        assert sockets.tend(2 * LATER_NS), "the session is to be shown again"
        again[0].settimeout(PATIENCE_S)
        again[0].accept()
        for each in again:
            each.close()
    finally:
        sockets.close(linger=False)
