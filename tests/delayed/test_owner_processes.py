"""Owners in processes of their own, with a real daemon: many checks at once; processes and daemons that are killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually

OWNER = """
import sys, threading
import timerd as td

number, operations, checkers, keys = map(int, sys.argv[1:5])
client = td.connect(timeout={patience})
ready = set()
ran = []
lock = threading.Lock()

class Delayed(td.DelayedOperation):
    def __init__(self, name):
        super().__init__()
        self.name = name
    def try_complete(self):
        return self.name in ready
    def on_complete(self):
        ran.append(self.name)

waits = [Delayed(n) for n in range(operations)]
for n, one in enumerate(waits):
    client.try_complete_else_watch(one, [f"k{{n % keys}}", f"k{{(n + 3) % keys}}"], timeout=None)
client.flush()
print("registered", flush=True)
sys.stdin.readline()
counted = 0

def check(at):
    global counted
    for turn in range(10):
        ready.update(n for n in range(operations) if n % checkers == at and n % 10 <= turn)
        found = client.check_and_complete(f"k{{(at + turn) % keys}}", timeout={patience})
        with lock:
            counted += found

threads = [threading.Thread(target=check, args=(at,)) for at in range(checkers)]
for one in threads: one.start()
for one in threads: one.join()
print("checked", flush=True)
sys.stdin.readline()
for key in range(keys):
    counted += client.check_and_complete(f"k{{key}}", timeout={patience})
print("counted", counted, flush=True)
sys.stdin.readline()
assert all(one.settled({patience}) and one.state is td.State.COMPLETED for one in waits), waits
assert sorted(ran) == list(range(operations)), ran
print("done", flush=True)
"""

DIES = """
import os, sys, time
import timerd as td

client = td.connect(timeout={patience}, group="replicas")
looks = []

def never():
    looks.append(1)
    if len(looks) == 2:
        print("looking", flush=True)
        time.sleep(600)
    return len(looks) > 1

delayed = client.try_complete_else_watch(never, "k", timeout=float(sys.argv[2]), payload=b"mine", orphans=sys.argv[1])
client.flush()
print("registered", flush=True)
time.sleep(600)
"""


class Process:
    """A process that runs a program of this file. At each step the program prints a word, and waits for a line."""

    def __init__(self, program: str, *arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program.format(patience=PATIENCE_S), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def says(self, word: str) -> str:
        """Wait for a line that begins with this word. Returns the rest of the line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(word), f"{line!r} instead of {word}"
        return line[len(word) :].strip()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Wait until the process has ended by itself. Returns its exit status."""
        return self._process.wait(PATIENCE_S)


def pending(daemon: Daemon) -> int:
    return int(daemon.stats()["counters"]["pending"])


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for one in started:
        one.kill()


def test_a_hundred_operations_and_twenty_checkers_in_four_processes(daemon: Daemon, processes: list[Process]) -> None:
    """Kafka's DelayedOperationTest, over processes: each process has 25 operations and 5 threads that check."""
    processes += [Process(OWNER, number, 25, 5, 10) for number in range(4)]
    for word in ("registered", "checked"):
        for one in processes:
            one.says(word)
        for one in processes:
            one.go_on()
    assert sum(int(one.says("counted")) for one in processes) == 100
    for one in processes:
        one.go_on()
    for one in processes:
        one.says("done")
        assert one.end() == 0


@pytest.mark.long
@pytest.mark.parametrize("orphans", ["cancel", "keep", "group"])
def test_an_owner_killed_between_event_and_look_leaves_its_operation_to_its_policy(
    daemon: Daemon, processes: list[Process], orphans: str
) -> None:
    owner = Process(DIES, orphans, 3 if orphans != "cancel" else 600)
    processes.append(owner)
    owner.says("registered")
    with td.connect(timeout=PATIENCE_S, group="replicas") as client:
        client.fire("k")
        owner.says("looking")
        owner.kill()
        if orphans == "cancel":
            eventually(lambda: pending(daemon) == 0)
            assert client.check_and_complete("k") == 0
        elif orphans == "keep":
            assert client.check_and_complete("k") == 0, "nobody looks any more"
            assert pending(daemon) == 1
            eventually(lambda: pending(daemon) == 0)
        else:
            for outcome in client.outcomes(timeout=PATIENCE_S):
                assert (outcome.state, outcome.payload) == (td.State.EXPIRED, b"mine")
                outcome.ack()
                break


@pytest.mark.long
def test_a_daemon_that_is_killed_while_owners_look_loses_no_look(daemon: Daemon) -> None:
    looks: list[int] = []

    def third() -> bool:
        looks.append(1)
        return len(looks) >= 6

    with td.connect(timeout=PATIENCE_S) as owner, td.connect(timeout=PATIENCE_S) as other:
        delayed = owner.try_complete_else_watch(third, "k", timeout=None)
        owner.flush()
        while not delayed.done():
            before = len(looks)
            other.fire("k")
            daemon.kill()
            daemon.start()
            eventually(lambda before=before: len(looks) > before or delayed.done())  # type: ignore[misc]
        assert delayed.settled(PATIENCE_S) and delayed.state is td.State.COMPLETED and len(looks) == 6, (
            "an evaluation that was true is the last one, whatever comes before the daemon has confirmed"
        )
