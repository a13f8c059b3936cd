"""A client and its process: fork, autostart, the end of a script, many clients, and how clients look to people.

Some of these tests use only threaded clients. Only a threaded client has a lock that another thread may hold during a
fork, a thread that may import modules, and events to send when its script ends. Forks of a process with an asyncio
client are in test_client_aio.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.fakes.descriptors import BESIDE
from support.real.daemons import SMALL_BY_ENVIRONMENT, Daemon, ended
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually
from support.real.shell import command_of
from timerd_client.discovery.autostart import _alone
from timerd_shm.host.paths import daemon_running
from timerd_shm.host.search import find_instance


def test_a_fork_gets_a_client_of_its_own(daemon: Daemon) -> None:
    parent = td.client()
    assert td.client() is parent
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child = td.client()
            operation = child.register("child", timeout=PATIENCE_S)
            child.fire("child")
            if operation.result(PATIENCE_S) and child is parent:
                child.close()
                os.write(write, b"ok")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 2) == b"ok"
    os.close(read)
    operation = parent.register("k", timeout=PATIENCE_S)
    parent.fire("k")
    assert operation.result(PATIENCE_S)
    parent.close()


def test_a_fork_under_the_clients_lock_leaves_the_child_no_lock_to_wait_for(daemon: Daemon) -> None:
    parent = td.connect()
    pending = parent.register("k", timeout=60)
    batch = parent.register_many(["k", "l"], timeout=60)
    read, write = os.pipe()
    with parent._link.lock:  # the child finds this lock held, as if by another thread
        pid = os.fork()
        if pid == 0:
            said = []
            for call in (
                lambda: parent.fire("l"),
                lambda: parent.register("k", timeout=1),
                lambda: parent.register_many(["k"], timeout=1),
                lambda: parent.advance("n", 1),
                parent.mark,
                parent.flush,
                pending.cancel,
                lambda: pending.result().unwrap(),
                lambda: batch.outcomes()[1].unwrap(),
            ):
                signal.alarm(int(PATIENCE_S))  # a child that waits is ended
                try:
                    call()
                    said.append("nothing")
                except BaseException as error:
                    said.append(type(error).__name__)
            os.write(write, " ".join(said).encode())
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 1000).decode().split() == ["nothing"] * 6 + ["ClosedError"] * 3
    os.close(read)
    assert not pending.done()
    parent.close()


@THREADED
def test_events_of_a_script_are_sent_before_it_ends(client: td.Client) -> None:
    operation = client.register("script", timeout=PATIENCE_S)
    code = "import timerd as td; c = td.client(); [c.fire('x') for _ in range(500)]; c.fire('script', value=b'last')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    assert operation.result(PATIENCE_S).value == b"last"


def test_autostart_starts_one_daemon_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    threaded = """
import timerd as td
with td.connect("auto", autostart=True, timeout=10) as client:
    operation = client.register("k", timeout=5)
    client.fire("k")
    assert operation.result(5)
    print(client._protocol.session.daemon_pid)
"""
    looped = """
import asyncio
from timerd_client import aio
async def main():
    async with aio.connect("auto", autostart=True, timeout=10) as client:
        operation = client.register("k", timeout=5)
        client.fire("k")
        assert await operation
        print(client._protocol.session.daemon_pid)
asyncio.run(main())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for code in (threaded, looped, threaded)
    ]
    pids = {process.communicate(timeout=30)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(pids) == 1
    paths = find_instance("auto")
    pid = int(pids.pop())
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not daemon_running(paths) and ended(pid))
    assert [file.name for file in paths.directory.iterdir()] == ["auto.lock"], "only the lock file is left"


def test_a_daemon_that_a_worker_starts_inherits_neither_its_limits_nor_its_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "hidden")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    code = """
import os, resource
import timerd as td
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
with td.connect("auto", autostart=True, timeout=10) as client:
    print(client._protocol.session.daemon_pid, os.getsid(0), flush=True)
"""
    worker = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=30)
    pid, session = map(int, worker.stdout.split())
    try:
        assert resource.prlimit(pid, resource.RLIMIT_AS) == (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        assert os.getsid(pid) == pid != session
        names = {line.split(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
        assert {b"PYTHON_WORKER_FACTORY_SECRET", b"NOTIFY_SOCKET"} & names == set() and b"PATH" in names
        assert {os.readlink(f"/proc/{pid}/fd/{standard}") for standard in range(2)} == {"/dev/null"}
    finally:
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: ended(pid))


def test_a_failed_autostart_says_why_it_failed_and_leaves_no_files(
    face: Face, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    monkeypatch.setenv("TIMERD_TICK", "an hour")
    with pytest.raises(td.TimerdUnavailableError, match="ended with status 2: timerd: tick = 'an hour'"):
        face.connect("auto", autostart=True)
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.long
def test_a_lock_file_that_its_holder_removes_is_never_held_by_two(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            with _alone(tmp_path / "lock"):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.0001)
                inside.pop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (400, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.files(150 * 10 + BESIDE)
def test_150_clients_work_in_one_process(make_daemon: Callable[..., Daemon], face: Face) -> None:
    make_daemon("--clients=256", "--quota-clients=256", instance="many")
    clients = [face.connect("many", timeout=PATIENCE_S) for _ in range(150)]
    try:
        operations = [one.register_wait("all", timeout=PATIENCE_S) for one in clients]
        assert clients[0].fire_wait("all") == len(clients)
        assert all(operation.result(PATIENCE_S) for operation in operations)
    finally:
        for one in clients:
            one.close()


def test_the_repr_of_public_objects_is_readable(client: Any) -> None:
    operation = client.register("k", timeout=None)
    batch = client.register_many(["a", "b"], timeout=None)
    client.fire("a")
    eventually(lambda: batch.settled() == 1)
    assert repr(batch) == "<Batch 1 of 2 settled>"
    assert repr(client) == "<Client of 'default' live>"
    assert repr(client.purgatory("fetch")) == "<Purgatory 'fetch' of 'default'>"
    assert repr(operation) == "<Operation 'k' PENDING>"
    assert operation.cancel_wait()
    assert repr(operation.result(0).state) == "State.CANCELLED"


@pytest.mark.long
def test_a_client_may_be_called_anything_that_can_be_printed(daemon: Daemon, face: Face, runtime_dir: Path) -> None:
    name = "gunicorn: worker 7 (漢字)"
    with face.connect(name=name):
        found = subprocess.run(command_of("clients", "--json"), capture_output=True, check=True).stdout
        (shown,) = json.loads(found)["rows"]
    assert shown["name"] == name


@pytest.mark.long
def test_the_threads_of_a_client_import_nothing(daemon: Daemon) -> None:
    """If one of them imported a module during a fork, the module's lock would be held for ever in the child."""
    program = (
        "import sys\n"
        "import timerd as td\n"
        "connect, before = td.connect, set(sys.modules)\n"
        "with connect(timeout=10) as client:\n"
        "    operation = client.register('k', timeout=30)\n"
        "    client.fire('k', value=b'v')\n"
        "    assert operation.result().value == b'v'\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
