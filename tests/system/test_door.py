"""Connections beyond what clients need are ended, so that libzmq does not run out of files and end the daemon."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

import timerd as td
from daemons import Daemon
from patience import PATIENCE_S, eventually
from timerd.conductor.door import (
    EXCESS_MAX,
    UNSEEN_MAX,
    descriptors,
    files_max,
    files_needed,
    level_of,
    open_files,
)

ATTACKERS = 3
LIMIT = 2_800  # of open files
CLIENTS = 64

ATTACKER = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 12, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept, greeting = [], bytes.fromhex("ff00000000000000017f0300") + b"NULL".ljust(20, bytes(1)) + bytes(32)
while len(kept) < 4_000:
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


@contextmanager
def attackers(daemon: Daemon) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that open thousands of connections, half of them to the outlet of slot 0, and keep them."""
    command = [sys.executable, "-c", ATTACKER, str(daemon.paths.commands), str(daemon.paths.outlet(0))]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(ATTACKERS)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.fixture
def limited(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that may open LIMIT files."""
    patch = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))"
    return make_daemon(f"--clients={CLIENTS}", f"--quota-clients={CLIENTS}", patch=patch)


def test_connections_beyond_the_limit_of_open_files_do_not_end_the_daemon(limited: Daemon) -> None:
    """12,000 of them, by three processes. Clients that were there, and new ones, go on."""
    pid, lost = limited.pid, 0
    with td.connect(timeout=PATIENCE_S) as bystander, attackers(limited) as processes:
        until = time.monotonic() + 4 * PATIENCE_S
        while any(process.poll() is None and not _has_said(process) for process in processes):
            lost += bystander.register("k", timeout=0.001).result(PATIENCE_S).state is not td.State.EXPIRED
            assert time.monotonic() < until, "the attackers are not done"
        with td.connect(timeout=PATIENCE_S) as late:
            assert late.fire_wait("k") == 0
        assert limited.pid == pid and psutil.Process(pid).is_running()
        most = files_max(files_needed(CLIENTS), LIMIT)
        eventually(lambda: psutil.Process(pid).num_fds() <= most)
        assert lost == 0
    assert "connections were ended" in limited.log
    assert limited.stop() == 0, "and it ends in order"


def _has_said(process: subprocess.Popen[str]) -> bool:
    """Whether an attacker has opened all of its connections."""
    import select

    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0)[0])


def test_many_clients_of_one_process_are_left_alone(limited: Daemon) -> None:
    """They have a right to their connections, also while others have too many."""
    clients = [td.connect(timeout=PATIENCE_S, name=f"c{number}") for number in range(CLIENTS - 4)]
    try:
        with attackers(limited):
            eventually(lambda: "connections were ended" in limited.log)
            for client in clients:
                assert client.fire_wait("k", wait=PATIENCE_S) == 0
    finally:
        for client in clients:
            client.close()


def test_a_connection_that_was_closed_hides_no_open_file() -> None:
    before, kept = open_files(), [os.dup(0) for _ in range(40)]
    try:
        os.close(kept.pop(0))  # its number is the lowest that is free
        assert open_files() == before + len(kept)
        assert set(kept) <= set(descriptors())
    finally:
        for each in kept:
            os.close(each)


def test_the_level_lowers_the_highest_first(rng: random.Random) -> None:
    for _ in range(300):
        excess = [rng.randrange(rng.choice((3, 50, 5_000))) for _ in range(rng.randrange(9))]
        most = rng.randrange(2_000)
        level = level_of(excess, most)
        lowered = [min(each, level) for each in excess]
        assert sum(lowered) <= most or sum(excess) <= most
        if lowered != excess:
            assert most - sum(lowered) < len(excess), "and no lower than it has to be"


def test_what_libzmq_may_accept_unseen_is_kept_free_where_clients_leave_room() -> None:
    assert files_max(needed=1_600, limit=1 << 20) == 1_600 + EXCESS_MAX
    assert files_max(needed=12_352, limit=16_384) == 12_352 + EXCESS_MAX <= 16_384 - UNSEEN_MAX
    assert files_max(needed=256, limit=LIMIT) == LIMIT - UNSEEN_MAX
    assert 256 < files_max(needed=256, limit=300) < 300
    assert files_max(needed=1_600, limit=-1) == 1_600 + EXCESS_MAX
