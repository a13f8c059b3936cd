"""Real workers whose handlers end the process. A call that has ended a number of processes is given up."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.suite.tiers import in_tiers
from timerd_client import aio
from timerd_client.errors import CallTimeLimitError

WORKER = """
import ctypes, os, signal, sys, time
import timerd as td

calls = td.Calls(group="web")

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

def end(how):
    if how == b"exit":
        os._exit(139)
    if how == b"segfault":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)

def gone(call, error):
    note("gone", call.payload.decode(), type(error).__name__)
    if call.name == "kills twice":
        os._exit(1)

@calls.handler("kills", deliveries=3, retries=3, concurrency=4, on_failure=gone)
def kills(call):
    note("kills", call.payload.decode(), call.deliveries)
    while sum(line.startswith("innocent") for line in open("notes")) < 3 and call.deliveries == 1:
        time.sleep(0.01)
    end(call.payload)

@calls.handler("kills twice", deliveries=2, on_failure=gone)
def kills_twice(call):
    note("kills", call.payload.decode(), call.deliveries)
    os._exit(1)

@calls.handler("innocent", concurrency=4)
def innocent(call):
    note("innocent", call.payload.decode(), call.deliveries)
    time.sleep(0.2)
    note("done", call.payload.decode())

worker = td.connect({instance!r}, group="web", timeout={patience})
worker.serve(calls, at_once=4)
while True:
    time.sleep(60)
"""


class Workers:
    """Worker processes. A worker that ends is started again."""

    def __init__(self, directory: Path, instance: str) -> None:
        self.directory = directory
        self.source = WORKER.format(instance=instance, patience=PATIENCE_S)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ended: list[int] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            self.processes.append(
                subprocess.Popen([sys.executable, "-c", self.source], cwd=self.directory, stderr=subprocess.DEVNULL)
            )

    def tend(self) -> bool:
        """Start one ended worker again. Returns False, so that a condition may go on with `or`."""
        for at, process in enumerate(self.processes):
            if process.poll() is not None:
                self.ended.append(process.returncode)
                del self.processes[at]
                self.start(1)
                break
        return False

    def notes(self) -> list[list[str]]:
        path = self.directory / "notes"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def workers(daemon: Daemon, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path, "default")
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def letters(client: td.Client, workers: Workers, count: int) -> list[str]:
    """The payloads of the dead letters, as soon as there are `count` of them."""
    eventually(lambda: workers.tend() or len(client.dead_letters()) >= count)
    return sorted(letter.payload.decode() for letter in client.dead_letters())


@pytest.mark.parametrize("how", in_tiers(["exit", "kill", "segfault"], 2))
def test_one_killer_beside_three_innocents_gives_one_dead_letter(workers: Workers, how: str) -> None:
    (workers.directory / "notes").touch()
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.call_later_wait("kills", 0, how.encode(), id="killer")
        for number in range(3):
            client.call_later_wait("innocent", 0, b"%d" % number)
        workers.start(1)
        assert letters(client, workers, 1) == [how]
        eventually(lambda: workers.tend() or sum(note[0] == "done" for note in workers.notes()) >= 3)
        (letter,) = client.dead_letters()
        assert "3 processes have ended in its handler (deliveries=3)" in letter.reason
        assert (letter.number, letter.state, letter.attempt, letter.ended, letter.id) == (1, "failed", 1, 3, "killer")
        eventually(lambda: not client.calls())  # a handler has made its note before its call is acknowledged
        assert not client.cancel_call_wait("killer"), "the id is not free"
    notes = workers.notes()
    assert [note[2] for note in notes if note[0] == "kills"] == ["1", "2", "3"]
    assert ["gone", how, "CallGivenUpError"] in notes
    assert {note[1] for note in notes if note[0] == "done"} == {"0", "1", "2"}
    assert len(workers.ended) == 3


def test_a_call_that_has_ended_a_process_shows_that_while_it_waits_for_a_worker(workers: Workers) -> None:
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.call_later_wait("kills twice", 0, b"x")
        workers.start(1)
        eventually(lambda: [(call.state, call.ended, call.pid) for call in client.calls()] == [("unhandled", 1, 0)])


@pytest.mark.long
def test_an_on_failure_that_kills_is_given_up_after_as_many_processes(workers: Workers) -> None:
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.call_later_wait("kills twice", 0, b"x")
        workers.start(1)
        assert letters(client, workers, 1) == ["x"]
        assert "2 processes have ended in its on_failure" in client.dead_letters()[0].reason
        client.call_later_wait("innocent", 0, b"after")
        eventually(lambda: workers.tend() or ["done", "after"] in workers.notes())
    assert [note[0] for note in workers.notes()][:4] == ["kills", "kills", "gone", "gone"]


@pytest.mark.long
def test_a_worker_that_is_killed_while_calls_wait_in_it_condemns_none_of_them(workers: Workers) -> None:
    """Only a handler that had begun is counted."""
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.call_later_wait("kills twice", 0, b"x")
        for number in range(3):
            client.call_later_wait("innocent", 0, b"%d" % number)
        workers.start(1)
        eventually(lambda: workers.tend() or client.dead_letters())
        eventually(lambda: workers.tend() or sum(note[0] == "done" for note in workers.notes()) >= 3)
        assert len(client.dead_letters()) == 1


def test_a_worker_that_is_closed_while_its_handler_runs_is_not_counted(daemon: Daemon) -> None:
    started: list[int] = []
    calls = td.Calls(group="web")

    @calls.handler("slow", deliveries=1)
    def slow(call: td.Call) -> None:
        started.append(call.deliveries)
        if len(started) < 3:
            eventually(lambda: closed)

    closed: list[bool] = []
    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.call_later_wait("slow", 0, b"x")
        for _ in range(2):
            closed.clear()
            member = td.connect(group="web", timeout=PATIENCE_S)
            before = len(started)
            member.serve(calls)
            eventually(lambda: len(started) > before)  # noqa: B023
            member.close(timeout=0.5)  # long enough for the goodbye, and the handler runs on
            closed.append(True)
        client.serve(calls)
        eventually(lambda: client.stats().calls_done == 1)
        assert not client.dead_letters() and started == [1, 2, 3]


def test_a_handler_that_takes_longer_than_its_time_limit_is_cancelled_and_has_failed(daemon: Daemon) -> None:
    """An asyncio client cancels the handler, and waits until the handler has dealt with that."""
    cleaned: list[str] = []
    errors: list[BaseException] = []
    calls = td.Calls(group="web")

    @calls.handler("slow", time_limit=0.05, on_failure=lambda call, error: errors.append(error))
    async def slow(call: td.Call) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            cleaned.append("cleaned")

    async def main() -> None:
        async with aio.connect(group="web", timeout=PATIENCE_S) as client:
            client.serve(calls)
            await client.call_later_wait("slow", 0)
            async with asyncio.timeout(PATIENCE_S):
                while not client.dead_letters():
                    await asyncio.sleep(0.01)
            (letter,) = client.dead_letters()
            assert "time_limit, 0.05 s" in letter.reason
            assert client.stats().calls_late == 1

    asyncio.run(main())
    assert cleaned == ["cleaned"]
    assert [type(error) for error in errors] == [CallTimeLimitError]


def test_a_thread_that_takes_longer_than_its_time_limit_is_late_and_counted(daemon: Daemon) -> None:
    goes_on: list[bool] = []
    calls = td.Calls(group="web")

    @calls.handler("slow", time_limit=0.01)
    def slow(call: td.Call) -> None:
        time.sleep(0.02)  # past the limit in this client, too: the daemon counts from the call's announcement
        eventually(lambda: goes_on)

    with td.connect(group="web", timeout=PATIENCE_S) as client:
        client.serve(calls)
        client.call_later_wait("slow", 0)
        eventually(lambda: [call.state for call in client.calls()] == ["late"])
        goes_on.append(True)
        eventually(lambda: client.stats().calls_done == 1)
        assert client.stats().calls_late == 1 and not client.dead_letters(), "a late call has failed"
