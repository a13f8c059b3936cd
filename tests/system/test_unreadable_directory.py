"""A start by `su` or `sudo -u` in a directory of root: the working directory can be neither read nor written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.real.daemons import SMALL, SMALL_BY_ENVIRONMENT
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import command_of
from support.real.trees import python_path
from timerctl.exits import Exit

Run = Callable[..., "subprocess.CompletedProcess[str]"]
not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write every directory")


@pytest.fixture
def run_there(tmp_path: Path) -> Iterator[Run]:
    """Runs a command in an unreadable directory."""
    there = tmp_path / "there"
    there.mkdir()

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        shell = ("sh", "-c", 'cd "$0" && chmod 0 . && exec "$@"', str(there))
        return subprocess.run([*shell, *command], capture_output=True, text=True, timeout=4 * PATIENCE_S)

    yield run
    there.chmod(0o700)


def test_a_client_starts_its_daemon_in_an_unreadable_directory(
    run_there: Run, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    program = "import timerd as td\nwith td.Client(autostart=True) as client: client.fire_wait('k')\n"
    program += "print(client._protocol.session.daemon_pid)"
    done = run_there(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    os.kill(int(done.stdout), signal.SIGTERM)
    eventually(lambda: not (runtime_dir / "default.arena").exists())


def test_timerctl_says_how_to_start_a_daemon(run_there: Run) -> None:
    done = run_there(*command_of("stats"))
    assert done.returncode == Exit.NO_INSTANCE and "start it (`timerd --instance default`)" in done.stderr


def test_the_helpers_of_the_tests_are_imported_in_an_unreadable_directory(
    run_there: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest itself fails in such a directory, so only the import is tested. (`make -C` enters the tree first.)"""
    monkeypatch.setenv("PYTHONPATH", python_path())
    done = run_there(sys.executable, "-c", "import support.real.interpreted")
    assert done.returncode == 0, done.stderr


@not_root
@pytest.mark.parametrize("flag", ["--arena-file", "--journal"])
@pytest.mark.parametrize("only", [(), ("--show-config",)], ids=["serve", "look"])
def test_a_path_relative_to_an_unreadable_directory_is_refused_with_the_remedy(
    run_there: Run, flag: str, only: tuple[str, ...]
) -> None:
    done = run_there(sys.executable, "-m", "timerd", *SMALL, f"{flag}=made", *only)
    assert done.returncode == 4
    assert "/there/made" in done.stderr and "choose" in done.stderr and flag in done.stderr
