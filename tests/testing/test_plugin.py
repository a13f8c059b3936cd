"""The fixtures of timerd.testing, as a user's tests have them: each run is a pytest of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.real.daemons import arenas_of
from support.real.patience import PATIENCE_S
from support.suite.user_tests import environment_of, run_pytest

REAL = """
import os
import subprocess
import sys

import pytest

import timerd as td

lazy = td.Client()                             # a client of the module: it connects at its first use


@pytest.mark.parametrize("number", range(4))
def test_nothing_of_another_test_is_left(timerd_client, number):
    assert timerd_client is td.client() and timerd_client.connected
    with pytest.raises(td.UnknownOperationError):
        timerd_client.cancel_wait("job/7")
    assert not timerd_client.register({"p0": 1}, timeout=0.001).result()
    timerd_client.register("job", timeout=60, id="job/7")
    timerd_client.advance("p0", 1)
    timerd_client.flush()


def test_the_client_of_the_application_reaches_the_daemon(timerd_daemon):
    waits = lazy.register("inbox/7", timeout=60)
    td.client().fire("inbox/7", value=b"hello")
    assert waits.result().value == b"hello"


def test_another_process_reaches_the_daemon(timerd_client):
    waits = timerd_client.register("inbox/7", timeout=60)
    timerd_client.flush()
    program = "import timerd as td; td.client().fire_wait('inbox/7', value=b'hello')"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert waits.result().value == b"hello"


def test_a_daemon_that_is_lost(timerd_daemon, timerd_client):
    timerd_daemon.kill()
    with pytest.raises(td.TimerdUnavailableError):
        timerd_client.fire_wait("inbox/7", timeout=0.1)


def test_the_next_test_has_a_daemon_again(timerd_client):
    assert timerd_client.fire_wait("inbox/7") == 0


def test_a_daemon_of_the_session(timerd_session_daemon):
    assert timerd_session_daemon.running
    assert "TIMERD_RUNTIME_DIR" not in os.environ
"""


def run(path: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a user's test file with a pytest of its own. The files that it makes lie below `path`."""
    return run_pytest(path, {"test_user.py": text}, *words, "test_user.py")


def left_in(path: Path) -> list[str]:
    """Remains of daemons after runs of pytest: directories and arenas."""
    directories = list((path / "tmp").glob("timerd-*"))
    return [str(left) for directory in directories for left in (directory, *arenas_of(directory))]


MANUAL = """
import asyncio
import threading

import timerd as td

lazy = td.Client()                             # a client of the module


def poll(key):                                 # the application
    return td.client().register(key, timeout=25).result().state


def test_the_application_waits_in_no_time(timerd_manual):
    with timerd_manual.autojump():
        assert poll("inbox/7") is td.State.EXPIRED
    assert timerd_manual.now == 25


def test_the_application_waits_in_a_thread(timerd_manual):
    found = []
    thread = threading.Thread(target=lambda: found.append(poll("inbox/7")))
    thread.start()
    timerd_manual.until_waiting(1)
    lazy.fire("inbox/7")
    timerd_manual.advance()
    thread.join()
    assert found == [td.State.COMPLETED]


def test_the_clock_begins_anew(timerd_manual):
    assert timerd_manual.now == 0
    assert lazy.fire_wait("inbox/7") == 0


def test_coroutines(timerd_manual):
    async def main():
        return await td.aio.client().register("inbox/7", timeout=3600)

    assert timerd_manual.run(main()).state is td.State.EXPIRED


def test_both(timerd_daemon, timerd_client, timerd_manual):
    assert timerd_client is td.client()         # now a client of the manual daemon
    assert timerd_client.fire_wait("inbox/7") == 0
    assert timerd_manual._driver.daemon.map_arena().header().incarnation == timerd_client.mark().incarnation
"""


def test_a_users_tests_on_a_manual_clock_pass(place: Path) -> None:
    ended = run(place, MANUAL, "-n0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not left_in(place)


@pytest.fixture
def place(runtime_dir: Path) -> Path:
    """The directory of a user's tests. It is not below tmp_path, which is too long for the path of a socket."""
    return runtime_dir


@pytest.mark.long
@pytest.mark.parametrize("words", [("-n0",), ("-n2",)], ids=["one process", "two workers"])
def test_each_test_has_a_daemon_that_knows_nothing_of_other_tests(place: Path, words: tuple[str, ...]) -> None:
    ended = run(place, REAL, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "9 passed" in ended.stdout
    assert not left_in(place)


@pytest.mark.long
def test_flags_and_instance_come_from_the_configuration(place: Path) -> None:
    (place / "pytest.ini").write_text("[pytest]\ntimerd_flags = --capacity=1000\ntimerd_instance = shop\n")
    text = """
import timerd as td

def test_it(timerd_daemon, timerd_client):
    assert timerd_client.instance == timerd_daemon.instance == "shop"
    assert "an arena of 1,000 operations" in timerd_daemon.log
"""
    ended = run(place, text, "-n0")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_run_without_the_fixtures_imports_nothing_of_timerd(place: Path) -> None:
    text = """
import sys

def test_it(request):
    found = {name for name in sys.modules if name.partition(".")[0] in
             ("timerd", "timerd_client", "timerd_shm", "timerd_wire", "zmq", "msgpack")}
    light = {"timerd_shm", "timerd_shm.host", "timerd_shm.host.reach"}  # packages without code, and one flag
    assert found == {"timerd", "timerd.testing", "timerd.testing.plugin"} | light
    assert request.config.pluginmanager.has_plugin("timerd")
"""
    ended = run(place, text, "-n0")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_tests_that_are_killed_leave_no_daemon(place: Path) -> None:
    (place / "test_user.py").write_text(
        "import os, signal\n"
        "def test_it(timerd_daemon):\n"
        "    open('pid', 'w').write(f'{timerd_daemon.pid} {timerd_daemon.runtime_dir}')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    words = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "test_user.py"]
    ended = subprocess.run(words, cwd=place, env=environment_of(place), capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    pid, directory = (place / "pid").read_text().split()
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(PATIENCE_S)
    assert not arenas_of(Path(directory))
