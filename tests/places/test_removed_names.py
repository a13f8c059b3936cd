"""A daemon whose files another process removes while it serves: what it logs, and what it leaves alone at its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import Run
from timerctl.exits import Exit
from timerd_shm.host.paths import daemon_running, read_location

MakeDaemon = Callable[..., Daemon]
OFTEN = "import timerd.names; timerd.names.LOOK_NS = 20_000_000"


def test_a_daemon_whose_arena_logind_removes_says_what_helps_and_goes_on(make_daemon: MakeDaemon, run: Run) -> None:
    daemon = make_daemon(patch=OFTEN)
    arena = read_location(daemon.paths).path
    with td.connect(timeout=PATIENCE_S) as before:
        pending = before.register("k", timeout=60)
        before.flush()
        for path in read_location(daemon.paths).files:
            path.unlink(missing_ok=True)  # as logind does with RemoveIPC=yes
        eventually(lambda: f"the arena {arena}: removed by another process" in daemon.log)
        (line,) = (line for line in daemon.log.splitlines() if "removed by another process" in line)
        assert "Its operations go on, and end with this daemon" in line
        assert "`loginctl enable-linger " in line and "RemoveIPC=no" in line and "systemd/timerd.service" in line
        status, _, err = run("stats")
        assert status == Exit.PROBLEM and "the daemon runs" in err and "RemoveIPC" in err
        with td.connect(timeout=PATIENCE_S) as after:
            late = after.register("late", timeout=60, since=after.mark())
            assert after.fire_wait("k", value=b"v") == 1
            assert after.fire_wait("late", value=b"w") == 1
            assert late.result(PATIENCE_S).value == b"w"
        assert pending.result(PATIENCE_S).value == b"v"
    daemon.stop()
    assert daemon.log.count("removed by another process") == 1


def test_a_daemon_whose_sockets_are_removed_says_that_nobody_finds_it(
    make_daemon: MakeDaemon, runtime_dir: Path
) -> None:
    """logind removes /run/user/UID at the end of the user's last session."""
    daemon = make_daemon(patch=OFTEN)
    for path in daemon.paths.sockets:
        path.unlink()
    eventually(lambda: "removed by another process" in daemon.log)
    names = ", ".join(path.name for path in daemon.paths.sockets)
    assert f"{names} in {runtime_dir}: removed by another process" in daemon.log
    assert "New clients do not find this daemon" in daemon.log


def test_a_daemon_that_ends_late_leaves_the_files_of_the_next_one(make_daemon: MakeDaemon, runtime_dir: Path) -> None:
    """The user has logged out and in again: directory and arena were removed, and made anew by the next daemon."""
    place = runtime_dir / "timerd"
    place.mkdir()
    first = Daemon(place, "--ephemeral")
    for path in read_location(first.paths).files:
        path.unlink(missing_ok=True)
    log = runtime_dir / "log"
    first.log_path.rename(log)
    first.log_path = log
    place.rename(runtime_dir / "gone")
    place.mkdir()
    with Daemon(place) as second:
        files = {path.name for path in place.iterdir()}
        assert first.stop() == 0
        assert {path.name for path in place.iterdir()} == files
        assert all(path.exists() for path in read_location(second.paths).files[:1])
        assert daemon_running(second.paths)
        with td.connect(runtime_dir=str(place), timeout=PATIENCE_S) as client:
            assert client.fire_wait("k") == 0
