"""Whose files a client uses: what another user has laid under a name of ours is refused, and never waited for."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path

import pytest

import timerd as td
from support.real.planted_files import PLANTED, socket_at, within
from support.real.users import NOBODY, shut_out
from timerctl import main
from timerctl.exits import Exit
from timerd_shm.declare.errors import InvalidNameError, ResourceLimitError, TimerdError, TimerdUnavailableError
from timerd_shm.host.paths import ArenaLocation, InstancePaths, open_arena_file, remove_arena, write_location
from timerd_shm.host.search import find_instance, make_instance
from timerd_shm.host.trust import daemon_user_of, distrust
from timerd_shm.read.reader import ArenaReader

LONG_S = 60.0  # a call that takes longer hangs: no call here may wait
LEAD_NOWHERE = {"a link to itself", "a link to nothing"}  # links that lead to no file
CLONE_NEWUSER = 0x10000000  # of linux/sched.h
PR_SET_DUMPABLE = 4  # of linux/prctl.h
OTHER_USER = 4711
SKIPPED = "-"
NOT_READABLE = {"a file without a number, unreadable", "no text", "a gigabyte"}  # plain files, with other errors


@pytest.fixture
def paths(runtime_dir: Path) -> InstancePaths:
    return InstancePaths(runtime_dir, "default")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory of root's that everybody may write, like /tmp."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    for parent in made.parents:
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    yield made


def raised_by(call: Callable[[], object]) -> str:
    """The error of a call that must not wait."""

    def act() -> str:
        try:
            return f"returned {call()!r}"
        except (TimerdError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    said = within(LONG_S, act)
    assert said, "the call waits"
    return str(said[0])


def timerctl(command: str) -> str:
    with redirect_stderr(StringIO()) as said:
        status = main(command.split())
    return f"{status} {said.getvalue()}"


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_that_stands_in_place_of_an_arenas_location_is_waited_for(paths: InstancePaths, kind: str) -> None:
    PLANTED[kind](paths.arena)
    said = raised_by(lambda: open_arena_file(paths))
    assert str(paths.arena) in said and not said.startswith("returned"), said
    if kind not in NOT_READABLE:
        assert said.startswith("ResourceLimitError"), said
        assert ": no daemon made it: remove it, and start the daemon again" in said
    found = raised_by(lambda: td.connect(timeout=0.0))
    assert found.startswith("TimerdUnavailableError: "), found
    said = raised_by(lambda: timerctl("stats"))
    status = Exit.NO_INSTANCE if kind in LEAD_NOWHERE else Exit.PROBLEM
    assert said.startswith((f"returned '{status} timerctl: ", f'returned "{status} timerctl: ')), said
    assert str(paths.directory if kind in LEAD_NOWHERE else paths.arena) in said


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_in_place_of_an_arena_is_waited_for(paths: InstancePaths, tmp_path: Path, kind: str) -> None:
    arena = tmp_path / "arena"
    PLANTED[kind](arena)
    write_location(paths, ArenaLocation("file", str(arena), 1))
    said = raised_by(lambda: ArenaReader.from_descriptor(open_arena_file(paths)))
    assert not said.startswith("returned"), said
    if kind not in NOT_READABLE:
        assert said.startswith(f"ResourceLimitError: {arena}: "), said
    if "link" not in kind:
        assert not raised_by(lambda: ArenaReader.from_path(arena)).startswith("returned")


@pytest.mark.parametrize(
    "held",
    [
        b"\xff",
        b"[" * 10_000,
        b"{}",
        b'{"kind": "shm", "name": 7, "incarnation": 1}',
        b'{"kind": "file", "name": "arena", "incarnation": 1}',
        b'{"kind": "file", "name": "/a\\u0000b", "incarnation": 1}',
        b'{"kind": "file", "name": "/\\ud800", "incarnation": 1}',
        json.dumps({"kind": "file", "name": "/" + "a" * 20_000, "incarnation": 1}).encode(),
    ],
    ids=range(8),
)
def test_any_bytes_in_place_of_a_location_give_the_same_error(paths: InstancePaths, held: bytes) -> None:
    paths.arena.write_bytes(held)
    said = raised_by(lambda: open_arena_file(paths))
    assert said.startswith(f"LayoutMismatchError: {paths.arena} does not name an arena: it holds "), said


@pytest.mark.parametrize("transport", ["zeromq", "unix"])
@pytest.mark.parametrize("kind", ["a plain file", "a directory", "a link", "a FIFO"])
def test_a_client_names_what_stands_in_place_of_a_socket(
    paths: InstancePaths, kind: str, transport: td.Transport
) -> None:
    elsewhere = paths.directory / "elsewhere"
    socket_at(elsewhere)
    laid: dict[str, Callable[[Path], object]] = {
        "a plain file": Path.touch,
        "a directory": Path.mkdir,
        "a link": lambda path: path.symlink_to(elsewhere),
        "a FIFO": os.mkfifo,
    }
    laid[kind](paths.liveness)
    said = raised_by(lambda: td.connect(timeout=0.0, transport=transport))
    assert said.startswith("TimerdUnavailableError") and f"{paths.liveness}: it is no socket: no daemon made it" in said


@pytest.mark.parametrize("transport", ["zeromq", "unix"])
def test_a_client_connects_to_no_socket_that_was_replaced(paths: InstancePaths, transport: td.Transport) -> None:
    """NAME.live is there and listens, but the socket of this transport is a plain file."""
    laid = paths.commands if transport == "zeromq" else paths.packets
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.liveness))
        listener.listen()
        laid.touch()
        said = raised_by(lambda: td.connect(timeout=0.1, transport=transport))
    assert f"{laid}: it is no socket" in said, said


def test_command_lines_in_errors_are_quoted(tmp_path: Path) -> None:
    """A person copies them, maybe as root."""
    odd = tmp_path / "a b; c"
    assert InstancePaths(odd, "x").command == f"`timerd --instance x --runtime-dir '{odd}'`"
    odd.touch()
    assert distrust(odd) == f"is no directory: remove it (`rm '{odd}'`)"
    odd.unlink()
    odd.mkdir()
    odd.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(odd, NOBODY, -1)
    assert f"(`chmod o-w '{odd}'`)" in distrust(odd)


@pytest.mark.root("makes directories of another user")
@pytest.mark.parametrize(
    ("owner", "mode", "within_shared", "why"),
    [
        (0, 0o777, True, ""),
        (0, 0o1777, False, ""),
        (0, 0o770, True, ""),
        (NOBODY, 0o755, False, ""),
        (NOBODY, 0o770, False, ""),
        (NOBODY, 0o777, False, "belongs to user nobody, and others may write it (mode 0777): take that away"),
        (NOBODY, 0o1777, False, "belongs to user nobody, and others may write it (mode 1777): take that away"),
        (NOBODY, 0o700, True, "belongs to user nobody: if its daemon is to be trusted, name that user"),
    ],
)
def test_which_directories_are_used(shared: Path, owner: int, mode: int, within_shared: bool, why: str) -> None:
    place = shared / "place" if within_shared else shared.parent / "place"
    place.mkdir()
    os.chown(place, owner, -1)
    place.chmod(mode)
    assert distrust(place).startswith(why) and bool(distrust(place)) == bool(why), distrust(place)
    assert distrust(place, NOBODY) == ""
    inner = place / "inner"
    inner.mkdir()
    os.chown(inner, NOBODY, -1)
    chosen = owner == NOBODY and not within_shared
    assert bool(distrust(inner)) != chosen, "trusted only if root gave the outer directory to `nobody`"


@pytest.mark.root("makes a directory of another user")
def test_a_directory_of_another_user_that_others_may_write_is_refused_by_client_tool_and_daemon(
    monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    place = shared.parent / "p"  # a short name: the path of a socket has 107 bytes
    place.mkdir()
    os.chown(place, NOBODY, -1)
    place.chmod(0o777)
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(place))
    refused = f"{place} is left out, because it belongs to user nobody, and others may write it (mode 0777): take that"
    with pytest.raises(TimerdUnavailableError) as error:
        td.connect()
    assert refused in str(error.value) and "daemon_user=" in str(error.value)
    assert refused in timerctl("stats")
    with pytest.raises(ResourceLimitError, match=r"others may write it .*start the daemon as the user of"):
        make_instance()
    assert "others may write it (mode 0777)" in shut_out(lambda: raised_by(make_instance)), (
        "the owner of the directory does not get this error"
    )
    write_location(InstancePaths(place, "default"), ArenaLocation("shm", "/timerd-none", 1))
    monkeypatch.setenv("TIMERD_DAEMON_USER", "nobody")
    assert find_instance().owners == {0, NOBODY}
    monkeypatch.delenv("TIMERD_DAEMON_USER")
    assert find_instance(daemon_user=NOBODY).owners == {0, NOBODY}
    with pytest.raises(TimerdUnavailableError, match="the daemon of instance 'default' is not running"):
        td.connect(daemon_user="nobody")


@pytest.mark.root("makes files of another user")
@pytest.mark.parametrize("laid", ["location", "arena", "socket"])
def test_a_file_of_another_user_in_a_directory_that_all_may_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, shared: Path, laid: str
) -> None:
    paths, arena = InstancePaths(shared, "default"), shared / "arena"
    arena.write_bytes(bytes(65_536))
    write_location(paths, ArenaLocation("file", str(arena), 1))
    file = {"location": paths.arena, "arena": arena, "socket": paths.liveness}[laid]
    monkeypatch.setenv("TIMERD_RUNTIME_DIR", str(shared))
    with socket.socket(socket.AF_UNIX) as listener:
        if laid == "socket":
            monkeypatch.chdir(shared)
            listener.bind(paths.liveness.name)
            listener.listen()
        os.chown(file, NOBODY, -1)
        look = td.connect if laid == "socket" else lambda: open_arena_file(find_instance())
        said = raised_by(look)
        assert said.startswith("ResourceLimitError") and f"{file}: it belongs to user nobody" in said, said
        named = raised_by(lambda: open_arena_file(find_instance(daemon_user="nobody")))
    assert named.startswith("returned"), named


@pytest.mark.root("makes files of another user")
def test_root_removes_with_an_arena_only_files_of_the_user_who_named_it(tmp_path: Path) -> None:
    """Otherwise a user could name any file as the arena, and root would remove it when it destroys the instance."""
    place, other = tmp_path / "place", tmp_path / "precious"
    place.mkdir()
    other.touch()
    paths = InstancePaths(place, "default")
    write_location(paths, ArenaLocation("file", str(other), 1))
    os.chown(place, NOBODY, -1)
    os.chown(paths.arena, NOBODY, -1)
    remove_arena(paths)
    assert other.exists() and not paths.arena.exists()


@pytest.mark.parametrize("wrong", ["no-such-user", "", -1, 1 << 32, True, "99999999999"])
def test_a_user_who_does_not_exist_is_named(wrong: str | int) -> None:
    with pytest.raises(InvalidNameError, match=r"daemon_user = .*: .*user"):
        daemon_user_of(wrong)
    with pytest.raises(InvalidNameError):
        td.Client(daemon_user=wrong)
    assert daemon_user_of("root") == daemon_user_of(0) == daemon_user_of("0") == 0 and daemon_user_of() is None


def in_a_namespace_without_root(act: Callable[[], str]) -> str:
    """The result of `act` in a user namespace that maps this user alone, as bwrap and `unshare -U` make one."""

    def unshared() -> str:
        me, libc = os.geteuid(), ctypes.CDLL(None)
        libc.prctl(PR_SET_DUMPABLE, 1)  # setuid() has given /proc/self to root
        if libc.unshare(CLONE_NEWUSER):
            return SKIPPED
        Path("/proc/self/uid_map").write_text(f"{me} {me} 1")
        return act()

    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(OTHER_USER, OTHER_USER, OTHER_USER)
            os.write(writes, unshared().encode())
        finally:
            os._exit(1)
    os.close(writes)
    with open(reads, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.root("becomes another user; and the user nobody, who may run the tests, has the uid in question")
def test_in_a_user_namespace_without_root_the_error_says_who_nobody_is() -> None:
    """There, root's files show as files of uid 65534 (`nobody`), so /usr does not look like a choice of root."""
    said = in_a_namespace_without_root(lambda: distrust(Path("/usr")) + "\n" + distrust(Path("/usr"), NOBODY))
    if said == SKIPPED:
        pytest.skip("this machine allows no user namespace")
    without, named = said.split("\n")
    stands_for = f"uid {NOBODY} stands for each user that this user namespace does not map, such as the machine's root"
    assert without.startswith("belongs to ") and f" ({stands_for}): if its daemon is to be trusted" in without, without
    assert named == "", "TIMERD_DAEMON_USER=nobody helps"


def test_the_name_of_a_user_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """getpwnam() may ask a directory service, and a look for the daemon holds up forks and other clients."""
    client = td.Client(daemon_user="root")
    asked: list[str] = []
    monkeypatch.setattr(pwd, "getpwnam", asked.append)
    for _ in range(2):
        with pytest.raises(TimerdUnavailableError):
            client.ping(timeout=0)
        with suppress(TimerdUnavailableError):
            find_instance(daemon_user="root")
    assert not asked


@pytest.mark.root("makes a directory of another user")
def test_the_owner_of_a_refused_directory_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch, shared: Path, runtime_dir: Path
) -> None:
    """Each look for the daemon makes the message anew."""
    stranger, asked = 4712, []
    place = shared / "place"
    place.mkdir()
    os.chown(place, stranger, -1)

    def getpwuid(uid: int) -> object:
        asked.append(uid)
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    for _ in range(3):
        assert f"belongs to uid {stranger}: " in distrust(place)
    assert asked == [stranger]
