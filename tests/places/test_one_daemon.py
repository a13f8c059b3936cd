"""`autostart`: processes of one user start one daemon, however their environments differ."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import timerd as td
from support.fakes.own_places import OwnPlaces
from support.real.daemons import SMALL_BY_ENVIRONMENT, Daemon, ended
from support.real.patience import PATIENCE_S, eventually
from timerd_shm.host.paths import InstancePaths

# All begin to connect at the same time. Each prints the pid of its daemon, and stays until all have done so.
PROCESSES = """
import os, sys
import timerd as td
from timerd_client.discovery import autostart
autostart.AUTOSTART_TIMEOUT_S = 60
pipe, gate, end = os.pipe(), os.pipe(), os.pipe()
environments = [
    {},
    {"XDG_RUNTIME_DIR": "/run/user/%d" % os.geteuid()},
    {"XDG_RUNTIME_DIR": "/nowhere"},
    {"TMPDIR": sys.argv[1]},
    {"TMPDIR": "/var/tmp", "XDG_RUNTIME_DIR": sys.argv[1]},
]
children = []
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
            os.environ.pop(name, None)
        os.environ.update(environments[number % len(environments)])
        try:
            os.close(gate[1])
            os.close(end[1])
            os.read(gate[0], 1)
            client = td.Client("one", autostart=True) if number % 2 else td.connect("one", autostart=True, timeout=60)
            client.ready(timeout=60)
            os.write(pipe[1], b"%d\\n" % client._protocol.session.daemon_pid)
            os.read(end[0], 1)
        except BaseException as error:
            os.write(pipe[1], repr(error).encode() + b"\\n")
        finally:
            os._exit(0)
    children.append(child)
os.close(gate[1])
lines = os.fdopen(pipe[0])
for child in children:
    print(lines.readline(), end="", flush=True)
os.close(end[1])
for child in children:
    os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.parametrize("is_logged_in", [True, False])
def test_twenty_processes_with_different_environments_start_one_daemon(
    own: OwnPlaces, monkeypatch: pytest.MonkeyPatch, tmp_path: object, is_logged_in: bool
) -> None:
    """The processes are of a login, of cron, of su, of services, and of users who set TMPDIR."""
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    if is_logged_in:
        own.log_in()
    done = subprocess.run(
        [sys.executable, "-c", own.prelude + PROCESSES, str(tmp_path), "20"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    pids = done.stdout.splitlines()
    assert len(pids) == 20
    assert len(set(pids)) == 1, pids
    assert InstancePaths(own.session if is_logged_in else own.temporary, "one").lock.exists()
    os.kill(int(pids[0]), signal.SIGTERM)
    eventually(lambda: ended(int(pids[0])))


def test_processes_of_cron_and_of_the_login_find_the_daemon_from_before_the_login(
    own: OwnPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was started before the login, so it is not in the first place that the login may write."""
    own.temporary.mkdir(mode=0o700)
    with Daemon(own.temporary) as daemon:
        own.log_in()
        for value in ("", str(own.session.parent)):
            monkeypatch.setenv("XDG_RUNTIME_DIR", value)
            with td.connect(autostart=True, timeout=PATIENCE_S) as client:
                assert client._link.protocol.session.daemon_pid == daemon.pid
        assert not own.session.exists()


def test_the_lock_of_a_start_is_in_the_place_that_every_process_has(own: OwnPlaces) -> None:
    from timerd_client.discovery.autostart import _place_of_lock

    own.log_in()
    assert _place_of_lock(None, None) == own.temporary
    own.temporary.chmod(0o777)
    assert _place_of_lock(None, None) == own.session, "others may write the usual place"
    only = own.temporary.with_name("only")
    assert _place_of_lock(None, str(only)) == only
