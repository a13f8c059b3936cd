"""Files that a user may not open, or does not see: each error names the file, what that means, and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import LOOKING
from support.real.users import NOBODY, a_member, shut_out
from timerctl import main
from timerctl.exits import Exit
from timerd.host.group import change_group
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.access import denied, user_named
from timerd_shm.host.paths import read_location

MakeDaemon = Callable[..., Daemon]
LONG_S = 60.0


def said_by(command: str) -> str:
    """The exit status and the error output of timerctl for a user who may not open the daemon's files."""

    def act() -> str:
        with redirect_stderr(StringIO()) as said:
            status = main(command.split())
        return f"{status} {said.getvalue()}"

    return shut_out(act)


def close_sockets(daemon: Daemon) -> None:
    """Let others enter the directory, but open no socket, as if root's daemon was in a directory of its clients."""
    daemon.paths.directory.chmod(0o711)
    if os.geteuid() != 0:
        for path in daemon.paths.sockets:
            path.chmod(0)


def raised_by(act: Callable[[], object]) -> str:
    try:
        act()
    except (OSError, td.TimerdError) as error:
        return f"{type(error).__name__} {error}"
    return "nothing"


def test_a_socket_that_this_user_may_not_open_is_not_called_an_overloaded_daemon(daemon: Daemon) -> None:
    close_sockets(daemon)
    me = user_named(NOBODY if os.geteuid() == 0 else os.geteuid())
    facts = f"the socket belongs to {user_named(os.geteuid())} and "
    for said in (
        shut_out(lambda: raised_by(td.connect)),
        shut_out(lambda: raised_by(lambda: td.Client().fire_wait("k"))),
        shut_out(lambda: raised_by(lambda: td.Client(transport="unix").fire_wait("k"))),
        said_by("fire k"),
    ):
        assert str(daemon.paths.liveness) in said and "Permission denied" in said and facts in said, said
        assert f"this is {me}" in said and "`timerd --unix-group GROUP`" in said and "start a daemon of your" in said
        assert "overloaded" not in said and "None" not in said


@pytest.mark.long
@pytest.mark.parametrize("transport", ["zeromq", "unix"])
@pytest.mark.root("has a client of another user")
def test_a_client_learns_that_the_daemon_came_back_without_its_group(
    make_daemon: MakeDaemon, runtime_dir: Path, transport: td.Transport
) -> None:
    """The error says which socket refuses this user. It does not say that the daemon has to be started."""
    daemon = make_daemon("--unix-group=nogroup")
    connected, restarted = runtime_dir / "connected", runtime_dir / "restarted"
    connected.touch()
    connected.chmod(0o666)

    def act() -> str:
        client = td.connect(transport=transport, timeout=LONG_S)
        connected.write_text("yes")
        eventually(lambda: restarted.exists() and client.state is LinkState.LOST, seconds=LONG_S)
        return raised_by(client.ping)

    def restart() -> None:
        eventually(lambda: connected.read_text(), seconds=LONG_S)
        daemon.stop()
        daemon.flags = daemon.flags[:-1]
        daemon.start()
        restarted.touch()

    thread = threading.Thread(target=restart)
    thread.start()
    with a_member(NOBODY, act) as said:
        thread.join()
    assert said.startswith("TimerdUnavailableError the daemon is lost"), said
    assert f"{daemon.paths.liveness}: Permission denied: the socket belongs to user root and group root" in said
    assert "start it" not in said


def test_the_directory_that_keeps_a_user_out_is_named_and_not_the_file_in_it(runtime_dir: Path) -> None:
    inner = runtime_dir / "closed" / "inner"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700 if os.geteuid() == 0 else 0)
    runtime_dir.chmod(0o711)
    said = shut_out(lambda: str(denied(inner / "file").filename))
    inner.parent.chmod(0o700)
    assert said == str(inner.parent)


@pytest.mark.root("gives files to groups")
def test_a_user_learns_which_group_it_has_to_join(runtime_dir: Path) -> None:
    path = runtime_dir / "file"
    path.touch()
    runtime_dir.chmod(0o711)
    os.chown(path, 0, 1)
    path.chmod(0o640)
    said = shut_out(lambda: str(denied(path).strerror))
    assert "(mode 0640), and this is user nobody: become a member of the group (`usermod -aG daemon nobody`" in said
    path.chmod(0o600)
    assert "run this as user root, or let a group in" in shut_out(lambda: str(denied(path).strerror))


@pytest.mark.long
def test_an_arena_that_this_process_does_not_see_is_not_called_a_dead_daemon(daemon: Daemon, runtime_dir: Path) -> None:
    """For example, timerctl runs in another container, which has a /dev/shm of its own."""
    script = 'mount -t tmpfs none /dev/shm && exec "$@"'
    inside = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, timeout=30).returncode:
        pytest.skip("this machine does not allow a mount of /dev/shm")
    arena = read_location(daemon.paths).path
    look = [*inside, sys.executable, "-m", "timerctl", "stats"]
    done = subprocess.run(look, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert done.returncode == Exit.PROBLEM
    assert f"names {arena}, which does not exist: the daemon runs, so this process may be in another container" in (
        done.stderr
    )
    assert "mount the daemon's /dev/shm here" in done.stderr and "start the daemon" not in done.stderr
    daemon.stop()
    done = subprocess.run(look, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert "start the daemon, which makes it anew" in done.stderr


@pytest.mark.parametrize("command", LOOKING)
def test_each_command_that_looks_names_the_directory_that_it_may_not_enter(runtime_dir: Path, command: str) -> None:
    runtime_dir.chmod(0o700 if os.geteuid() == 0 else 0)
    said = said_by(command)
    runtime_dir.chmod(0o700)
    assert said.startswith(f"1 timerctl: {runtime_dir}: Permission denied: the directory belongs to "), said
    assert "start a daemon of your own (`timerd`), in another directory if TIMERD_RUNTIME_DIR names this one" in said


@pytest.mark.root("becomes another user")
def test_a_group_to_which_this_user_may_give_nothing_is_named(runtime_dir: Path) -> None:
    path = runtime_dir / "file"
    path.touch()
    runtime_dir.chmod(0o711)
    os.chown(path, NOBODY, NOBODY)

    def act() -> str:
        with pytest.raises(ResourceLimitError) as error:
            change_group(path, 1)
        return str(error.value)

    assert "cannot be given to group daemon (Operation not permitted): only root and members" in shut_out(act)
