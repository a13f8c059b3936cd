"""A directory or a socket that another user exchanges after somebody has looked at it leads no client to his daemon."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.real.users import NOBODY, a_member
from timerd_client.transport.lifeline import Lifeline
from timerd_client.transport.unix_sockets import UnixSockets
from timerd_shm.declare.errors import ResourceLimitError, TimerdUnavailableError
from timerd_shm.host.paths import InstancePaths, daemon_running
from timerd_shm.host.search import find_instance
from timerd_shm.host.trust import distrust

pytestmark = pytest.mark.root("makes files and processes of another user")

OTHERS = "user nobody"
LATER_NS = 100 * 1_000_000_000  # a connection that ends so late was not refused


class Place:
    """A directory, and the sockets of an instance in it, which a process of that user listens at."""

    def __init__(self, directory: Path, owner: int) -> None:
        directory.mkdir()
        os.chown(directory, owner, -1)
        directory.chmod(0o755)
        self.paths = InstancePaths(directory, "default")

    def listen(self) -> list[socket.socket]:
        made = []
        for path in (self.paths.commands, self.paths.liveness, self.paths.packets):
            kind = socket.SOCK_SEQPACKET if path == self.paths.packets else socket.SOCK_STREAM
            made.append(socket.socket(socket.AF_UNIX, kind))
            made[-1].bind(str(path))
            made[-1].listen()
        return made


@pytest.fixture
def place(runtime_dir: Path) -> Iterator[Path]:
    """The name under which a client looks: a link in a directory that everybody may write."""
    runtime_dir.chmod(0o777)
    yield runtime_dir / "place"


@contextmanager
def listening_as_nobody(at: Place) -> Iterator[None]:
    kept = []

    def act() -> str:
        kept.append(at.listen())
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
    roots, others = Place(runtime_dir / "r", 0), Place(runtime_dir / "n", NOBODY)
    listeners = roots.listen()
    point(place, roots.paths.directory)
    found = find_instance()
    assert daemon_running(found)
    with listening_as_nobody(others):
        point(place, others.paths.directory)
        with pytest.raises(ResourceLimitError, match=f"{found.liveness}: .*{OTHERS}"):
            daemon_running(found)
        with pytest.raises(TimerdUnavailableError, match=f"{place} is left out, because it belongs to {OTHERS}"):
            find_instance()
    for each in listeners:
        each.close()


def test_a_client_that_connects_again_judges_the_place_again(runtime_dir: Path, place: Path) -> None:
    roots, others = Place(runtime_dir / "r", 0), Place(runtime_dir / "n", NOBODY)
    listeners = roots.listen()
    point(place, roots.paths.directory)
    paths = InstancePaths(place, "default")
    now_ns = 0
    sockets, line = UnixSockets(paths, lambda: now_ns), Lifeline(paths)
    try:
        assert not sockets.trouble() and line.hold(b"secret", now_ns)
        for each in listeners:
            each.close()
        with listening_as_nobody(others):
            point(place, others.paths.directory)
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
    others = Place(runtime_dir / "n", NOBODY)
    with listening_as_nobody(others):
        for path in others.paths.directory.iterdir():
            os.chown(path, 0, -1)
        os.chown(others.paths.directory, 0, -1)
        said = f"a process of {OTHERS} listens there"
        with pytest.raises(ResourceLimitError, match=said):
            daemon_running(others.paths)
        sockets, line = UnixSockets(others.paths), Lifeline(others.paths)
        try:
            assert said in sockets.trouble()
            assert not line.hold(b"secret", 0)
        finally:
            sockets.close(linger=False)
        assert daemon_running(others.paths._replace(daemon_user=NOBODY)), "the named user may listen"


@pytest.mark.parametrize(("owner", "is_used"), [(NOBODY, False), (0, True)])
def test_a_link_that_anybody_may_have_made_chooses_no_user(
    tmp_path: Path, runtime_dir: Path, owner: int, is_used: bool
) -> None:
    """Root has chosen nobody for nobody's directory, and not for the name that nobody has given to it."""
    directory = tmp_path / "home-of-nobody"
    directory.mkdir()
    os.chown(directory, NOBODY, -1)
    runtime_dir.chmod(0o777)
    name = runtime_dir / "jobs"
    name.symlink_to(directory)
    os.chown(name, owner, -1, follow_symlinks=False)
    assert not distrust(directory), "root alone may write the directory above it"
    assert (not distrust(name)) == is_used, distrust(name)
