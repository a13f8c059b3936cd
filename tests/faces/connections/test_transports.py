"""Effects of a client's connection on its process, its children and its daemon, over each transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from support.fakes.descriptors import BESIDE
from support.real.daemons import Daemon
from support.real.faces import Face
from support.real.patience import PATIENCE_S, eventually
from timerd_client import aio
from timerd_client.discovery.late_sockets import LateSockets
from timerd_client.link import lazy, link
from timerd_client.transport.make import make_sockets
from timerd_shm.host.paths import read_location
from timerd_shm.read.reader import ArenaReader
from timerd_wire.transports import TRANSPORT_VARIABLE

MakeDaemon = Callable[..., Daemon]
AT_ONCE_S = 0.1

# A process with a pending operation, and with a child that outlives the process. It prints the child's pid, and waits.
WITH_A_CHILD = """
import os, subprocess, sys, time
import timerd as td
client = td.connect()
client.register_wait("k", timeout=600)
if sys.argv[1] == "fork":
    child = os.fork()
    if child == 0:
        time.sleep(600)
else:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False).pid
time.sleep(0.2)
print(child, flush=True)
time.sleep(600)
"""


def pending(daemon: Daemon) -> int:
    with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
        return int(sum(client.pending for client in reader.clients))


@pytest.mark.long
@pytest.mark.parametrize("how", ["fork", "exec"])
def test_a_killed_client_is_noticed_at_once_although_its_child_lives(make_daemon: MakeDaemon, how: str) -> None:
    """Without pidfds, only the end of the connection shows the death, so no child may hold a copy of the connection."""
    refused = "import os\ndef refuse(pid, flags=0): raise PermissionError(1, 'no')\nos.pidfd_open = refuse\n"
    daemon = make_daemon(patch=refused)
    took = []
    for _ in range(3):
        parent = subprocess.Popen([sys.executable, "-c", WITH_A_CHILD, how], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert pending(daemon) == 1
            parent.kill()
            took.append(eventually(lambda: not pending(daemon), "the end was not noticed"))
        finally:
            parent.wait()
            os.kill(child, signal.SIGKILL)
            parent.stdout.close()
    assert min(took) < AT_ONCE_S, f"the client's end was noticed after {took} s"


def test_a_worker_that_is_forked_from_a_connected_master_has_a_client_of_its_own(daemon: Daemon) -> None:
    """As under gunicorn with --preload: workers come and go, and the master's client goes on."""
    with td.connect() as master:
        for number in range(3):
            operation = master.register(f"worker/{number}", timeout=PATIENCE_S)
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    master.fire(f"worker/{number}", value=b"%d" % os.getpid())
                    master.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
            assert operation.result(PATIENCE_S).value == b"%d" % pid


@pytest.mark.long
def test_a_caller_that_waits_gets_its_outcome_after_the_daemon_was_killed_and_started(
    daemon: Daemon, face: Face
) -> None:
    with face.connect() as client, face.connect() as other:
        for number in range(3):
            operation = client.register_wait(f"k/{number}", timeout=60)
            outcomes: list[td.Outcome] = []
            waiting = threading.Thread(target=lambda op=operation, to=outcomes: to.append(op.result(3 * PATIENCE_S)))
            waiting.start()
            daemon.kill()
            other.fire(f"k/{number}", value=b"%d" % number)  # while no daemon runs
            daemon.start()
            waiting.join(3 * PATIENCE_S)
            assert [outcome.value for outcome in outcomes] == [b"%d" % number]
        assert client.stats().commands_unknown == 0


@pytest.mark.long
@pytest.mark.files(300 * 8 + BESIDE)
def test_very_many_clients_of_a_process_are_served_and_leave_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon("--clients=400", "--quota-clients=400")
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    number = 300 if os.environ[TRANSPORT_VARIABLE] == "unix" else 60  # over ZeroMQ all share libzmq's threads
    clients = [td.connect(timeout=PATIENCE_S) for _ in range(number)]
    operations = [client.register(f"k/{index}", timeout=60) for index, client in enumerate(clients)]
    for index, client in enumerate(reversed(clients)):
        client.fire(f"k/{index}")
    assert all(operation.result(PATIENCE_S) for operation in operations)
    for client in clients:
        client.close()
    eventually(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) <= before, "connections are left")


def connections_of_this_process() -> set[int]:
    """The inodes of this process's connections of packets. A copy in a child has the same inode."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.type == socket.SOCK_SEQPACKET:
                    found.add(os.fstat(copy.fileno()).st_ino)
    return found


def inherited_by_a_child() -> set[int]:
    """The connections of packets that a child gets as copies, if it is forked now."""
    childs, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(told, b" ".join(b"%d" % inode for inode in connections_of_this_process()))
        os._exit(0)
    os.close(told)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(childs, "rb") as reader:
        return set(map(int, reader.read().split()))


class BrokenLink:
    """A link that cannot be closed."""

    def seal_because(self, why: str) -> None:
        raise OSError(why)


def test_a_child_closes_its_other_copies_if_one_cannot_be_closed(
    daemon: Daemon, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, broken = connections_of_this_process(), [BrokenLink() for _ in range(20)]
    with face.connect(timeout=PATIENCE_S):
        links: Any = weakref.WeakSet([*link.links, *broken])
        monkeypatch.setattr(link, "links", links)
        assert not inherited_by_a_child() & (connections_of_this_process() - before)


@pytest.mark.long
@pytest.mark.parametrize("runs_first", [True, False])
def test_a_child_has_no_copy_of_a_connection_that_no_link_has_yet(
    make_daemon: MakeDaemon, face: Face, monkeypatch: pytest.MonkeyPatch, runs_first: bool
) -> None:
    """A thread forks just after the client has found its daemon. A copy would hide the client's death."""
    daemon = make_daemon()
    if not runs_first:
        daemon.stop()
    inherited: list[set[int]] = []
    before = connections_of_this_process()
    tend = LateSockets.tend

    def found(late: LateSockets, now_ns: int) -> None:
        was_there = late.found
        tend(late, now_ns)
        if late.found is not was_there:
            inherited.append(inherited_by_a_child())

    monkeypatch.setattr(LateSockets, "tend", found)
    with face.make() as client:
        client.fire("k")
        if not runs_first:
            daemon.start()
        eventually(lambda: inherited, "the client did not find its daemon")
        own = connections_of_this_process() - before
        assert bool(own) == (os.environ[TRANSPORT_VARIABLE] == "unix")
        assert not own & inherited[0]


def test_a_child_that_is_forked_while_a_client_is_made_has_no_copy_of_its_connection(
    daemon: Daemon, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may fork before the client knows its own connection. A copy would hide the client's death."""
    before = connections_of_this_process()  # earlier tests may have left some
    inherited: list[set[int]] = []
    threads: list[threading.Thread] = []

    def fork() -> None:
        inherited.append(inherited_by_a_child())

    def make(*given: Any) -> Any:
        made = make_sockets(*given)
        threads.append(threading.Thread(target=fork))
        threads[0].start()
        threads[0].join(0.2)  # the thread forks now, or after the client is made
        return made

    monkeypatch.setattr(lazy, "make_sockets", make)
    with face.connect(timeout=PATIENCE_S):
        threads[0].join()
        own = connections_of_this_process() - before
        assert bool(own) == (os.environ[TRANSPORT_VARIABLE] == "unix")
        assert not own & inherited[0]


def test_the_client_of_a_loop_that_has_ended_says_that_it_is_closed(daemon: Daemon) -> None:
    async def leave() -> aio.Client:
        client = await aio.connect()
        await client.flush()
        return client

    client = asyncio.run(leave())
    with pytest.raises(td.ClosedError, match="use it in a coroutine of another loop"):
        client.fire("k")


@pytest.mark.parametrize("given", ["bogus", "Unix", 7])
def test_the_error_of_an_unknown_transport_names_the_known_transports(face: Face, given: object) -> None:
    with pytest.raises(td.InvalidValueError, match=r"transport='?\w+'?: 'zeromq' or 'unix'"):
        face.connect(transport=given)


def test_an_unknown_transport_of_the_environment_is_named_with_its_variable(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRANSPORT_VARIABLE, "bogus")
    with pytest.raises(td.InvalidValueError, match=r"transport='bogus' \(\$TIMERD_TRANSPORT\): 'zeromq' or 'unix'"):
        face.connect()
