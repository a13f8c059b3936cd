"""Named calls in many processes: forked workers, and recycled workers of gunicorn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(group="web", timeout=PATIENCE_S) as made:
        yield made


FORKED = """
import os, signal, time
import timerd as td

client = td.Client(group="web")
calls = td.Calls()

@calls.handler("who")
def who(call):
    os.write(1, b"answered %d\\n" % os.getpid())  # in one piece: all write to one pipe

for _ in range(2):
    if os.fork() == 0:
        client.serve(calls)
        signal.pause()
print("ready", os.getpid(), flush=True)
signal.pause()
"""


def test_a_registry_of_a_module_is_served_by_each_forked_worker(client: td.Client) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            first = parent.stdout.readline().split()
            workers = set()

            def both_have_answered() -> bool:
                client.call_later("who", 0)
                client.flush()
                workers.add(parent.stdout.readline().split()[1])  # type: ignore[union-attr]
                return len(workers) == 2

            eventually(both_have_answered)  # one worker may have answered many calls before the other has begun
            assert first[1] not in workers
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


APPLICATION = """
import os, time
import timerd as td

client = td.Client(group="web")
calls = td.Calls()

def note(word, call):
    fd = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    due = call.due.timestamp()
    os.write(fd, f"{word} {due:.1f} {time.time():.6f} {os.getpid()} {call.deliveries}\\n".encode())
    os.close(fd)

@calls.every("job", seconds=0.2)
def job(call):
    note("begin", call)
    time.sleep(0.03)
    note("end", call)

client.serve(calls)

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]
"""


class Note(NamedTuple):
    """A note of the application."""

    word: str
    due: str
    at: str
    worker: str
    deliveries: str


def notes_in(path: Path) -> list[Note]:
    return [Note(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def visit(port: int) -> None:
    """Send a request. A worker that is just ending may refuse it."""
    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()


@pytest.mark.long
@pytest.mark.parametrize(("workers", "seen", "runs"), [(2, 3, 6), pytest.param(4, 6, 30, marks=pytest.mark.long)])
def test_under_gunicorn_that_recycles_its_workers_every_occurrence_runs_once(
    daemon: Daemon, runtime_dir: Path, port: int, workers: int, seen: int, runs: int
) -> None:
    (runtime_dir / "application.py").write_text(APPLICATION)
    path = runtime_dir / "notes"
    command = [sys.executable, "-m", "gunicorn", f"--bind=127.0.0.1:{port}", f"--workers={workers}", "--max-requests=4"]
    with (runtime_dir / "gunicorn.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, f"--chdir={runtime_dir}", "application"],
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(runtime_dir)},  # some versions of gunicorn keep a control socket there
        )
    try:
        end, restarted, restarted_at = time.monotonic() + 60, False, 0.0
        while len(notes := notes_in(path)) < 2 * runs or len({note.worker for note in notes}) < seen:
            assert time.monotonic() < end, f"{notes}\n{(runtime_dir / 'gunicorn.log').read_text()}"
            visit(port)
            time.sleep(0.03)
            if len(notes) >= runs and not restarted:
                restarted, restarted_at = True, time.time()
                daemon.stop()
                daemon.start()
    finally:
        server.terminate()
        server.wait(30)
    notes = notes_in(path)
    assert [note.word for note in notes] == ["begin", "end"] * (len(notes) // 2), "two calls ran at once"
    begun, ended = notes[::2], notes[1::2]
    assert [note.due for note in begun] == [note.due for note in ended]
    due = [float(note.due) for note in begun]
    # If a call ends while no daemon runs, and its worker ends before a daemon starts, the call runs again. This happens
    # to one call at most.
    again = [number for number in range(1, len(due)) if due[number] == due[number - 1]]
    assert due == sorted(due), "points ran out of order"
    assert len(again) <= 1, f"several points ran again: {due}"
    for number in again:
        assert float(ended[number - 1].at) > restarted_at - 1, "a point ran again without a restart"
        assert int(begun[number].deliveries) > int(begun[number - 1].deliveries)
    after = [following - float(note.at) for note, following in zip(ended, due[1:], strict=False)]
    assert max(after) < 0.2 + 5.0, "the next call did not come soon after the last call's end"
