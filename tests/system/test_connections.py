"""Attackers open too many connections, or send bytes that end a process with libzmq 4.3.5, or make it grow.

The daemon runs on, and other clients are served.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

import timerd as td
from support.fakes.descriptors import BESIDE
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from timerd.conductor.transport import CONNECTIONS_BESIDE
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT

ATTACKERS = 3
KEPT = 4_000  # connections of each attacker
LIMIT = 400  # the daemon's limit of open files
CLIENTS = 64
MORE_BYTES = 64 << 20

CROWD = """
import socket, sys, time
kept, greeting = [], bytes.fromhex("ff00000000000000017f0300") + b"NULL".ljust(20, bytes(1)) + bytes(32)
while len(kept) < int(sys.argv[3]):
    each = socket.socket(socket.AF_UNIX)
    each.setblocking(False)
    try:
        each.connect(sys.argv[1 + len(kept) % 2])
        if len(kept) % 3:
            each.send(greeting)
    except OSError:
        each.close()
        time.sleep(0.001)
        continue
    kept.append(each)
print("done", flush=True)
sys.stdin.read()
"""

# A greeting as libzmq sends it, and then: messages, a PING and the end; or parts without a last part; or incomplete
# large frames.
RUDE = """
import socket, sys, time
path, what = sys.argv[1], sys.argv[3]
ready = b"\\x05READY\\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
hello = bytes.fromhex("ff00000000000000017f0300") + b"NULL".ljust(20, bytes(1)) + bytes(32)
hello += bytes((4, len(ready))) + ready
kept = []
def connect():
    each = socket.socket(socket.AF_UNIX)
    each.connect(path)
    each.sendall(hello)
    return each
end = time.monotonic() + 3
while time.monotonic() < end:
    try:
        each = connect()
        if what == "ping":
            each.sendall(b"\\0\\1x" * 150 + b"\\4\\x07\\4PING\\0\\0")
            each.close()
        elif what == "parts":
            while time.monotonic() < end:
                each.sendall((b"\\3" + (60_000).to_bytes(8, "big") + bytes(60_000)) * 4)
        elif len(kept) < 100:
            each.settimeout(0.05)
            kept.append(each)
            each.sendall(b"\\2" + (4 << 20).to_bytes(8, "big") + bytes((4 << 20) - 1))
    except OSError:
        time.sleep(0.001)
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def attackers(daemon: Daemon, program: str, *arguments: str, count: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that keep their connections until the end."""
    paths = (str(daemon.paths.commands), str(daemon.paths.outcomes))
    command = [sys.executable, "-c", program, *paths, *arguments]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def is_served_while(client: td.Client, processes: list[subprocess.Popen[str]]) -> None:
    """The client's operations expire as they should until each attacker is done, or has ended."""
    import select

    until = time.monotonic() + 3 * PATIENCE_S
    left = [process.stdout for process in processes if process.stdout is not None]
    while left:
        assert client.register("k", timeout=0.001).result(PATIENCE_S).state is td.State.EXPIRED
        for said in select.select(left, [], [], 0)[0]:
            left.remove(said)
        assert time.monotonic() < until, "the attackers are not done"


@pytest.fixture
def limited(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that may open LIMIT files."""
    patch = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))"
    return make_daemon(f"--clients={CLIENTS}", f"--quota-clients={CLIENTS}", patch=patch)


@pytest.mark.files(KEPT + BESIDE)
def test_connections_beyond_the_limit_do_not_end_the_daemon_and_harm_no_client(limited: Daemon) -> None:
    """Three processes open 12,000 connections to a daemon that may open 400 files. Old and new clients are served."""
    pid = limited.pid
    with (
        td.connect(timeout=PATIENCE_S) as bystander,
        attackers(limited, CROWD, str(KEPT), count=ATTACKERS) as processes,
    ):
        is_served_while(bystander, processes)
        with td.connect(timeout=PATIENCE_S) as late:
            assert late.fire_wait("k") == 0
        assert limited.pid == pid and psutil.Process(pid).num_fds() <= LIMIT
        eventually(lambda: "a connection was closed" in limited.log)
    assert limited.stop() == 0, "the daemon did not end in order"


@pytest.mark.long
@pytest.mark.files(KEPT + BESIDE)
def test_many_clients_of_one_process_keep_their_connections(limited: Daemon) -> None:
    """Each client keeps its connections, while the attackers have as many as the daemon allows."""
    clients = [td.connect(timeout=PATIENCE_S, name=f"c{number}") for number in range(CLIENTS // 2)]
    try:
        with attackers(limited, CROWD, str(KEPT), count=ATTACKERS):
            eventually(lambda: "a connection was closed" in limited.log)
            for client in clients:
                assert client.fire_wait("k", timeout=PATIENCE_S) == 0
    finally:
        for client in clients:
            client.close()
    assert CONNECTIONS_PER_CLIENT * CLIENTS + CONNECTIONS_BESIDE < LIMIT


@pytest.mark.long
@pytest.mark.parametrize("what", ["ping", "parts", "large"])
def test_no_peer_ends_the_daemon_or_makes_it_grow(daemon: Daemon, what: str) -> None:
    process = psutil.Process(daemon.pid)
    with td.connect(timeout=PATIENCE_S) as bystander:
        before = process.memory_info().rss
        with attackers(daemon, RUDE, what) as processes:
            is_served_while(bystander, processes)
            grown = process.memory_info().rss - before
            assert grown < MORE_BYTES, f"the daemon has grown by {grown:,} bytes"
    assert daemon.stop() == 0
