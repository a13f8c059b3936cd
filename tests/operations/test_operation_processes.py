"""Each named operation across four processes: two that wait, two that act. Tests kill each of these, and the daemon.

The state that the operations look at is a folder: each file stands for something that has happened. A process that acts
makes a file, and fires the key that the operation watches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.suite.tiers import in_tiers

WAITS = """
import json, os, sys, time
import timerd as td
from timerd_client.operations import *

kind, folder, timeout = sys.argv[1], sys.argv[2], float(sys.argv[3])
client = td.connect(timeout={patience})

def there(name):
    return os.path.exists(os.path.join(folder, name))

def reached(name, offset=0):
    return there(name), 0

def answer(*said):
    print("answered", json.dumps(said, default=lambda each: sorted(each)), flush=True)

NAMES = ["a", "b"]
made = {{
    "produce": lambda: DelayedProduce({{n: Appended(5, 9) for n in NAMES}}, reached, answer),
    "fetch": lambda: DelayedFetch(
        {{n: Asked(0) for n in NAMES}}, lambda n, o: Available(9, 10 * there(n)), lambda: answer(), min_bytes=20),
    "delete": lambda: DelayedDeleteRecords({{n: 3 for n in NAMES}}, lambda n: (5 * there(n), 0), answer),
    "topics": lambda: DelayedTopics({{n: 0 for n in NAMES}}, there, answer),
    "join": lambda: DelayedJoin("g", lambda: NAMES, lambda: [n for n in NAMES if there(n)], answer),
    "sync": lambda: DelayedSync("g", 1, NAMES, lambda: [n for n in NAMES if there(n)], lambda: 1, answer),
    "throttle": lambda: ThrottledChannel("c", lambda: None, answer),
}}
if kind == "heartbeat":
    session = DelayedHeartbeat(client, "g", "m", timeout, answer)
else:
    wait = made[kind]().watch(client, timeout=timeout)
client.flush()
print("waits", flush=True)
if kind == "heartbeat":
    while session.is_alive: time.sleep(0.05)
else:
    wait.settled()
    if kind == "sync": print("answered", json.dumps([wait.state.name]), flush=True)
print("ended", flush=True)
time.sleep(600)
"""

ACTS = """
import os, sys, time
import timerd as td

folder, key, name, mode = sys.argv[1:5]
client = td.connect(timeout={patience})
print("acts", flush=True)
sys.stdin.readline()
while True:
    open(os.path.join(folder, name), "w").close()
    client.fire(key)
    client.flush(timeout={patience})
    print("acted", flush=True)
    if mode == "once": break
    time.sleep(0.1)
time.sleep(600)
"""
KEYS = {
    "produce": "{}", "fetch": "{}", "delete": "{}", "topics": "topic:{}",
    "join": "join:g", "sync": "sync:g", "heartbeat": "member:g/m", "throttle": "throttled:c",
}  # fmt: skip
COMPLETE = {
    "produce": [{"a": [0, 5], "b": [0, 5]}], "fetch": [], "delete": [{"a": [0, 5], "b": [0, 5]}],
    "topics": [{"a": [0, -1], "b": [0, -1]}], "join": [[["a", "b"], []]], "sync": ["COMPLETED"],
}  # fmt: skip
TIMED_OUT = {
    "produce": [{"a": [0, 5], "b": [7, -1]}], "fetch": [], "delete": [{"a": [0, 5], "b": [7, -1]}],
    "topics": [{"a": [0, -1], "b": [7, -1]}], "join": [[["a"], ["b"]]], "sync": [["b"]],
}  # fmt: skip
BY_TIME = ("heartbeat", "throttle")


class Process:
    """One of the processes."""

    def __init__(self, program: str, *arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program.format(patience=PATIENCE_S), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def says(self, word: str) -> None:
        assert (line := self.line()) == word, f"{line!r} instead of {word}"

    def answers(self) -> list[Any]:
        """All that the process has answered, up to its end."""
        found = []
        while (line := self.line()) != "ended":
            assert line.startswith("answered "), line
            found.append(json.loads(line.removeprefix("answered ")))
        return found

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Four:
    """Two processes that wait, and two that act: one for "a", the other one for "b"."""

    def __init__(self, kind: str, folder: Path, timeout: float) -> None:
        self.waits = [Process(WAITS, kind, folder, timeout) for _ in range(2)]
        mode = "again" if kind in BY_TIME else "once"
        self.acts = [Process(ACTS, folder, KEYS[kind].format(name), name, mode) for name in "ab"]
        for one in self.waits:
            one.says("waits")
        for one in self.acts:
            one.says("acts")

    def kill(self) -> None:
        for one in (*self.waits, *self.acts):
            one.kill()


@pytest.fixture
def four(daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Four]:
    made = Four(request.param[0], tmp_path, request.param[1])
    yield made
    made.kill()


def each(kinds: Any, timeout: float, short: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "four", in_tiers([((kind, timeout),) for kind in kinds], short), indirect=True, ids=list(kinds)
    )


def kind_of(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["four"][0])


@pytest.mark.long
@each(COMPLETE, 600, 1)
def test_a_waiting_process_that_is_killed_ends_only_its_own_wait(
    four: Four, daemon: Daemon, request: pytest.FixtureRequest
) -> None:
    four.acts[0].go_on()
    four.acts[0].says("acted")
    four.waits[0].kill()
    four.acts[1].go_on()
    assert four.waits[1].answers() == [COMPLETE[kind_of(request)]]
    eventually(lambda: daemon.stats()["counters"]["pending"] == 0)


@pytest.mark.long
@each(TIMED_OUT, 2.5, 1)
def test_if_an_acting_process_is_killed_the_waits_for_its_act_time_out(
    four: Four, request: pytest.FixtureRequest
) -> None:
    four.acts[0].go_on()
    four.acts[0].says("acted")
    four.acts[1].kill()
    for one in four.waits:
        said = one.answers()
        assert said[:1] == [TIMED_OUT[kind_of(request)]] and len(said) == 1 + (kind_of(request) == "sync")


@pytest.mark.long
@each(COMPLETE, 600, 3)
def test_a_daemon_that_is_killed_loses_no_wait(four: Four, daemon: Daemon, request: pytest.FixtureRequest) -> None:
    four.acts[0].go_on()
    four.acts[0].says("acted")
    daemon.kill()
    four.acts[1].go_on()
    daemon.start()
    for one in four.waits:
        assert one.answers() == [COMPLETE[kind_of(request)]]


@each(["heartbeat"], 1.5, 1)
def test_a_session_ends_when_the_last_process_that_sends_its_heartbeats_is_killed(four: Four, daemon: Daemon) -> None:
    for one in four.acts:
        one.go_on()
        one.says("acted")
    four.acts[0].kill()
    four.waits[0].kill()
    daemon.kill()
    daemon.start()
    with td.connect(timeout=PATIENCE_S) as client:
        for _ in range(5):
            client.ping()
    four.acts[1].kill()
    assert four.waits[1].answers() == [[]]


@pytest.mark.long
@each(["throttle"], 1.5, 1)
def test_a_channel_is_unmuted_whoever_is_killed(four: Four, daemon: Daemon) -> None:
    four.acts[0].go_on()
    four.waits[0].kill()
    four.acts[0].kill()
    daemon.kill()
    daemon.start()
    assert four.waits[1].answers() == [[]]
