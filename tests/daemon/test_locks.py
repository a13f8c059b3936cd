"""Locks: a neighbour that locks every file that it may open prevents no start, and cannot pretend to be a daemon."""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon, arenas_of
from support.real.patience import PATIENCE_S
from support.real.polled import PolledWatches
from support.real.users import a_member
from support.suite.tiers import in_tiers
from timerctl import main
from timerctl.exits import Exit
from timerd.host.lock import InstanceLock
from timerd_client.discovery.find_daemon import has_run_lately
from timerd_client.discovery.target import target_of
from timerd_shm.declare.errors import InstanceRunningError
from timerd_shm.host.paths import InstancePaths, daemon_running, read_location

ANYWHERE = target_of("connect", None, {})
MakeDaemon = Callable[..., Daemon]

only_root = pytest.mark.root("starts a process of another user")


def lock_all(paths: list[Path]) -> str:
    """Take a shared POSIX lock, and if possible an exclusive flock, on each file that opens. Returns the names."""
    opened = []
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue  # a socket, or a file that the group may not read
        opened.append(path.name)
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for operation in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            with suppress(OSError):
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    return " ".join(opened)


@pytest.fixture
def group(runtime_dir: Path) -> grp.struct_group:
    """A group that the test's user is in, or may give files to. Skips where other users cannot reach the files."""
    for parent in runtime_dir.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"other users cannot come through {parent}: set TMPDIR to another directory")
    return grp.getgrgid(os.getgroups()[-1] if os.getgroups() else os.getgid())


@pytest.mark.long
@only_root
@pytest.mark.parametrize("end", in_tiers([Daemon.kill, Daemon.stop], 1))
@pytest.mark.parametrize("flags", [(), ("--arena-file={}/file.arena",), ("--journal={}/journal",)])
def test_a_neighbour_that_locks_every_file_that_it_can_open_prevents_no_restart(
    make_daemon: MakeDaemon, runtime_dir: Path, group: grp.struct_group, end: Callable[[Daemon], int], flags: tuple[str]
) -> None:
    daemon = make_daemon(f"--unix-group={group.gr_name}", *(flag.format(runtime_dir) for flag in flags))
    with td.connect(timeout=PATIENCE_S) as client:
        pending = client.register("k", timeout=60)
        client.flush()
        end(daemon)
        files = [runtime_dir, *runtime_dir.rglob("*"), *arenas_of(runtime_dir)]
        with a_member(group.gr_gid, lambda: lock_all(files)) as opened:
            arena = read_location(daemon.paths).path.name
            assert {runtime_dir.name, "default.arena", arena} <= set(opened.split()), (
                "the neighbour holds nothing: this is no attack"
            )
            assert not daemon_running(daemon.paths), "a lock of a neighbour is no daemon"
            daemon.start()
            assert daemon_running(daemon.paths)
            client.fire("k", value=b"v")
            assert pending.result(PATIENCE_S).value == b"v"
            daemon.stop()
            files += arenas_of(runtime_dir)
            with a_member(group.gr_gid, lambda: lock_all(files)):
                daemon.start()


@only_root
def test_a_neighbour_learns_whether_the_daemon_runs_and_can_neither_open_its_lock_nor_stand_in_for_it(
    make_daemon: MakeDaemon, runtime_dir: Path, group: grp.struct_group
) -> None:
    daemon = make_daemon(f"--unix-group={group.gr_name}")
    locks = [daemon.paths.lock, read_location(daemon.paths).lock, read_location(daemon.paths).seed]

    def look() -> str:
        opens = any(os.access(path, mode) for path in locks for mode in (os.R_OK, os.W_OK))
        return f"{daemon_running(daemon.paths)} {has_run_lately(ANYWHERE)} {opens}"

    def impersonate() -> str:
        could = []
        with socket.socket(socket.AF_UNIX) as listener:
            with suppress(PermissionError):
                os.utime(daemon.paths.lock)
                could.append("touch the lock")
            with suppress(PermissionError):
                daemon.paths.liveness.unlink()
                could.append("unlink the socket")
            with suppress(OSError):
                listener.bind(str(daemon.paths.liveness))
                could.append("bind the socket")
        return ", ".join(could) or "nothing"

    with a_member(group.gr_gid, look) as seen:
        assert seen == "True True False"
    daemon.kill()
    with a_member(group.gr_gid, look) as seen:
        assert seen == "False True False"
    with a_member(group.gr_gid, impersonate) as result:
        assert result == "nothing"
    assert not daemon_running(daemon.paths)


def test_a_lock_file_of_an_earlier_version_that_the_group_may_read_is_closed_to_it(runtime_dir: Path) -> None:
    paths = InstancePaths(runtime_dir, "default")
    paths.lock.touch()
    paths.lock.chmod(0o640)
    lock = InstanceLock(paths)
    assert paths.lock.stat().st_mode & 0o777 == 0o600
    lock.release()


def test_two_daemons_of_one_arena_file_are_excluded_although_their_directories_differ(
    make_daemon: MakeDaemon, runtime_dir: Path, tmp_path: Path
) -> None:
    arena = tmp_path / "arena"
    daemon = make_daemon(f"--arena-file={arena}")
    other = runtime_dir / "other"
    other.mkdir(0o700)
    second = subprocess.run(
        [sys.executable, "-m", "timerd", *daemon.flags, "--runtime-dir", str(other)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert second.returncode == 3
    assert f"another daemon uses the arena {arena}: stop it first" in second.stderr
    daemon.kill()
    daemon.start()


def test_a_start_is_refused_while_a_daemon_listens_though_its_lock_file_was_removed(daemon: Daemon) -> None:
    """A clean-up may have removed the file. The lock of the arena also prevents a second daemon of the same arena."""
    daemon.paths.lock.unlink()
    with pytest.raises(InstanceRunningError, match=r"'default' is running in .*\(pid not known\)"):
        InstanceLock(daemon.paths)
    assert daemon_running(daemon.paths)
    with td.connect(timeout=PATIENCE_S) as client:
        assert client.fire_wait("k") == 0


def test_destroy_is_refused_while_a_daemon_listens_though_its_lock_file_was_removed(
    daemon: Daemon, run: Callable[..., tuple[int, str, str]]
) -> None:
    daemon.paths.lock.unlink()
    status, _, err = run("destroy", "--yes")
    assert status == Exit.PROBLEM and "stop it first" in err
    assert daemon.paths.arena.exists()


def test_a_lock_that_is_held_where_no_daemon_runs_is_named_with_the_way_to_find_its_holder(
    runtime_dir: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the lock by hand (`flock NAME.lock ...`). The message must not suggest that a daemon runs."""
    monkeypatch.setattr("timerd.host.lock.ATTEMPTS", 1)
    paths = InstancePaths(runtime_dir, "default")
    paths.arena.write_text("{}")
    said = f"some process holds {paths.lock}, and no daemon of instance 'default' answers: end that process (`fuser "
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in ("", f"{ended.pid}\n"):
        paths.lock.write_text(pid)
        with paths.lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(InstanceRunningError) as refused:
                InstanceLock(paths)
            assert said in str(refused.value)
            status, _, err = run("destroy", "--yes")
            assert status == Exit.PROBLEM and said in err
    paths.lock.unlink()
    paths.arena.unlink()


@only_root
@pytest.mark.parametrize("command", ["destroy", "check"])
def test_a_neighbour_learns_who_may_run_a_command_that_it_may_not_run(
    make_daemon: MakeDaemon, group: grp.struct_group, command: str
) -> None:
    """`destroy` is for the daemon's user alone, whoever is in the unix group."""
    daemon = make_daemon(f"--unix-group={group.gr_name}")
    daemon.stop()
    if command == "check":
        read_location(daemon.paths).path.chmod(0o600)

    def act() -> str:
        with redirect_stderr(StringIO()) as said:
            main([command, *(["--yes"] if command == "destroy" else [])])
        return said.getvalue()

    with a_member(group.gr_gid, act) as said:
        user = pwd.getpwuid(os.geteuid()).pw_name
        remedies = {
            "destroy": f"only user {user}, who runs the daemon, may remove it",
            "check": f"run this as user {user}, or let a group in (`timerd --unix-group GROUP`)",
        }
        assert "Permission denied: " in said and remedies[command] in said, said


def test_a_full_queue_of_connections_shows_that_a_daemon_runs(runtime_dir: Path) -> None:
    paths = InstancePaths(runtime_dir, "default")
    watches = PolledWatches(paths, watches_max=8)
    watches._listener.listen(8)  # so that a few connections fill the queue; usually it has room for 4,096
    waiting = []
    try:
        while True:
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            waiting[-1].connect(str(paths.liveness))
    except BlockingIOError:
        assert daemon_running(paths)
    finally:
        for connection in waiting:
            connection.close()
        watches.close()
    assert not daemon_running(paths)


def test_probes_for_a_running_daemon_are_not_counted_as_refused_connections(runtime_dir: Path) -> None:
    paths = InstancePaths(runtime_dir, "default")
    watches = PolledWatches(paths, watches_max=8)
    for _ in range(10):
        assert daemon_running(paths)
        watches.signs(256, 0)
    assert (len(watches), watches.take_refused()) == (0, 0)
    watches.close()
