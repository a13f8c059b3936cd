"""timerctl calls and timerctl worker, with real daemons and processes."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.registries import serve
from support.real.shell import Run, command_of, json_of
from timerctl.exits import Exit
from timerd_shm.declare.states import ClientState
from timerd_shm.host.paths import read_location
from timerd_shm.read.reader import ArenaReader

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(group="web", timeout=PATIENCE_S) as made:
        yield made


def rows(run: Run, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json_of(run, "calls", *arguments)
    return found


# calls ----------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_pending_calls_are_listed_with_their_ids_in_order_of_time(client: td.Client, run: Run) -> None:
    client.call_later_wait("mail/late", 10_800, b"x", id="user-8")
    own = client.call_later_wait("mail/soon", 7200)
    serve(client, "cleanup", print, seconds=3600)  # at multiples of an hour: hardly ever while the test looks
    eventually(lambda: len(rows(run)) == 3)
    found = rows(run)
    assert [row["name"] for row in found] == ["cleanup", "mail/soon", "mail/late"]
    assert [row["id"] for row in found] == ["cleanup", own.id, "user-8"]
    assert [row["scheduled"] for row in found] == [True, False, False]
    assert {(row["state"], row["group"], row["attempt"], row["last_run"]) for row in found} == {
        ("pending", "web", 1, None)
    }
    assert [row["name"] for row in rows(run, "--match", "mail/*")] == ["mail/soon", "mail/late"]
    assert rows(run, "--group", "other") == rows(run, "--failed") == []
    status, out, _ = run("calls", "--limit", "2")
    assert status == Exit.OK and "raise --limit" in out
    assert " now " in out and "cleanup" in out and "user-8" not in out


@pytest.mark.long
def test_a_schedule_and_a_retried_call_show_their_last_run_and_its_error(client: td.Client, run: Run) -> None:
    runs: list[int] = []

    def often(call: td.Call) -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("no\nconnection")

    serve(client, "often", often, seconds=0.1)
    eventually(lambda: rows(run, "--match", "often") and rows(run, "--match", "often")[0]["last_run"])
    eventually(lambda: len(runs) >= 3)
    eventually(lambda: [row["last_error"] for row in rows(run, "--match", "often")] == [""])

    def fails(call: td.Call) -> None:
        raise ValueError("no\nconnection")

    serve(client, "fails", fails, retries=1, backoff=60)
    client.call_later("fails", 0)
    eventually(lambda: [row["state"] for row in rows(run, "--match", "fails")] == ["paused"])
    (row,) = rows(run, "--match", "fails")
    assert (row["name"], row["attempt"], row["last_error"]) == ("fails", 2, "ValueError: no connection")
    assert abs(datetime.fromisoformat(row["last_run"]).timestamp() - datetime.now().timestamp()) < PATIENCE_S
    assert "ValueErr" in run("calls", "--match", "fails")[1]


@pytest.mark.long
def test_a_due_call_shows_why_it_waits_or_which_process_runs_it(client: td.Client, run: Run) -> None:
    client.call_later("nobody's", 0)
    eventually(lambda: [row["state"] for row in rows(run)] == ["unhandled"])
    assert "no handler" in run("calls")[1]
    going_on: list[bool] = []

    def slow(call: td.Call) -> None:
        eventually(lambda: going_on)

    serve(client, "nobody's", slow, time_limit=0.01)
    eventually(lambda: [row["state"] for row in rows(run)] == ["late"])
    client.call_later("nobody's", 0)
    eventually(lambda: [row["state"] for row in rows(run)] == ["late", "busy"])
    row = rows(run)[0]
    assert (row["pid"], row["deliveries"]) == (os.getpid(), 1) and row["client"] is not None
    assert "runs in" in run("calls")[1]
    going_on.append(True)
    eventually(lambda: not rows(run))


def test_a_dead_letter_is_listed_with_its_reason_retried_and_dropped(client: td.Client, run: Run) -> None:
    fails = [True]

    def work(call: td.Call) -> None:
        if fails[0]:
            raise ValueError("no connection")

    serve(client, "mail", work)
    for name in ("one", "two", "three"):
        client.call_later_wait("mail", 0, name.encode(), id=name)
        eventually(lambda: any(row["payload"]["text"] == name for row in rows(run, "--failed")))  # noqa: B023
    found = rows(run, "--failed")
    assert [(row["number"], row["reason"], row["payload"]["text"]) for row in found] == [
        (1, "ValueError: no connection", "one"),
        (2, "ValueError: no connection", "two"),
        (3, "ValueError: no connection", "three"),
    ]
    assert {(row["attempt"], row["deliveries"], row["ended"], row["point"]) for row in found} == {(1, 1, 0, None)}
    assert all(row["last_run"] and row["last_error"] == row["reason"] for row in found)
    assert re.search(r"^ *number +name +for +last run ", run("calls", "--failed")[1], re.MULTILINE)
    assert [letter.number for letter in client.dead_letters()] == [1, 2, 3]
    assert rows(run) == [] == client.calls(), "a dead letter is not a waiting call"
    fails[0] = False
    assert run("calls", "retry", "1") == (Exit.OK, "Dead letter 1 of group web was retried.\n", "")
    eventually(lambda: [row["number"] for row in rows(run, "--failed")] == [2, 3])
    eventually(lambda: client.stats().calls_done == 4)
    status, out, _ = run("calls", "drop", "2", "1")
    assert status == Exit.PROBLEM and "no dead letter 1" in out
    assert client.drop_call_wait(3) and not client.drop_call_wait(3)
    assert rows(run, "--failed") == []


@pytest.mark.long
def test_a_call_that_is_due_can_be_cancelled_at_the_shell_until_it_runs(client: td.Client, run: Run) -> None:
    client.call_later_wait("nobody's", 0, id="user-9")
    eventually(lambda: [row["state"] for row in rows(run)] == ["unhandled"])
    status, _, err = run("cancel", "user-9")
    assert status == Exit.PROBLEM and "  timerctl calls cancel user-9\n" in err, "the operation with this id is a call"
    status, out, _ = run("calls", "cancel", "nobody's")
    assert status == Exit.PROBLEM and "give a call's id instead (user-9)" in out, "not by its name"
    assert run("calls", "cancel", "user-9") == (Exit.OK, "Call user-9 of group web was cancelled.\n", "")
    assert rows(run) == []
    client.register_wait("k", timeout=60, id="session/9")
    assert "  timerctl cancel session/9\n" in run("calls", "cancel", "session/9")[1]
    assert run("calls", "cancel", "user-9")[0] == Exit.PROBLEM
    going_on: list[bool] = []
    serve(client, "slow", lambda call: eventually(lambda: going_on))
    client.call_later_wait("slow", 0, id="user-9")
    eventually(lambda: [row["state"] for row in rows(run)] == ["runs"])
    status, out, _ = run("calls", "--json", "cancel", "user-9")
    assert status == Exit.PROBLEM and json.loads(out)["done"] is False, "a handler is not interrupted"
    assert [hint["kind"] for hint in json.loads(out)["hints"]] == ["runs"]
    going_on.append(True)


# worker ---------------------------------------------------------------------------------------------------------------

TASKS = """
import os, sys, time
import timerd as td

calls = td.Calls(group="web")

def note(*words):
    with open("notes", "a") as file:
        print(*words, os.getpid(), file=file)

@calls.handler("remind", concurrency=2)
def remind(call):
    note("begin", call.payload.decode(), call.deliveries)
    if call.payload == b"slow" and call.deliveries == 1:
        time.sleep({slow})
    note("end", call.payload.decode())

@calls.every("often", seconds=0.1)
{often} often(call):
    note("often")

nothing = td.Calls()
other = 5
"""


@pytest.fixture
def start(runtime_dir: Path) -> Iterator[Start]:
    """Starts workers in a directory with the module `tasks`."""
    made: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, slow: float = 0.3, often: str = "def") -> subprocess.Popen[str]:
        (runtime_dir / "tasks.py").write_text(TASKS.format(slow=slow, often=often))
        made.append(
            subprocess.Popen(
                command_of("worker", *arguments),
                cwd=runtime_dir,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        )
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def notes(runtime_dir: Path) -> list[list[str]]:
    path = runtime_dir / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def noted(runtime_dir: Path, *words: str) -> bool:
    return any(note[: len(words)] == [*words] for note in notes(runtime_dir))


@pytest.mark.long
@pytest.mark.parametrize("often", ["def", "async def"])
def test_a_worker_serves_a_module_and_sigterm_waits_for_its_handlers(
    client: td.Client, start: Start, runtime_dir: Path, often: str
) -> None:
    worker = start("tasks:calls", often=often)
    client.call_later("remind", 0, b"quick")
    eventually(lambda: noted(runtime_dir, "end", "quick") and noted(runtime_dir, "often"))
    client.call_later("remind", 0, b"slow")
    eventually(lambda: noted(runtime_dir, "begin", "slow"))
    worker.send_signal(signal.SIGTERM)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == Exit.OK, said
    assert noted(runtime_dir, "end", "slow")
    assert "serves remind, often for group 'web' at instance" in said and "SIGTERM: waits up to 30 s" in said


@pytest.mark.long
def test_a_signal_to_any_thread_of_a_worker_ends_the_worker(client: td.Client, start: Start, runtime_dir: Path) -> None:
    """If another thread takes the signal, the main thread may sleep on, and the Python handler does not run."""
    worker = start("tasks:calls")
    eventually(lambda: noted(runtime_dir, "often"))
    others = [task for task in threads_that_take(worker.pid, signal.SIGTERM) if task != worker.pid]
    ctypes.CDLL(None).tgkill(worker.pid, others[0], signal.SIGTERM)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == Exit.OK, said


def threads_that_take(pid: int, number: signal.Signals) -> list[int]:
    """The threads of a process that do not block a signal. The threads of libzmq block all signals."""
    takes = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        blocked = re.search("SigBlk:\\s*(\\w+)", (task / "status").read_text())
        if blocked and not int(blocked[1], 16) >> number - 1 & 1:
            takes.append(int(task.name))
    return takes


@pytest.mark.long
def test_a_call_that_still_runs_after_the_grace_goes_to_another_worker(
    client: td.Client, start: Start, runtime_dir: Path
) -> None:
    worker = start("tasks", "--grace", "100ms", slow=60)
    client.call_later("remind", 0, b"slow")
    eventually(lambda: noted(runtime_dir, "begin", "slow"))
    other = start("tasks")
    worker.send_signal(signal.SIGINT)
    _, said = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == Exit.PROBLEM, said
    assert "go to other workers: 1" in said
    eventually(lambda: noted(runtime_dir, "begin", "slow", "2", str(other.pid)))


def test_a_worker_that_is_killed_loses_no_call(client: td.Client, start: Start, runtime_dir: Path) -> None:
    first, second = start("tasks", slow=60), start("tasks", slow=60)
    client.call_later("remind", 0, b"slow")
    eventually(lambda: noted(runtime_dir, "begin", "slow"))
    (victim,) = [one for one in (first, second) if str(one.pid) == notes_of(runtime_dir, "begin", "slow")[0][-1]]
    victim.kill()
    eventually(lambda: noted(runtime_dir, "end", "slow"))
    assert notes_of(runtime_dir, "begin", "slow")[1][2] == "2"


def notes_of(runtime_dir: Path, *words: str) -> list[list[str]]:
    return [note for note in notes(runtime_dir) if note[: len(words)] == [*words]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no_such_module:calls"], "there is no module 'no_such_module'"),
        (["tasks:missing"], "there is no 'missing' in the module 'tasks'"),
        (["tasks:other"], "tasks:other is int"),
        (["tasks:nothing", "--group", "web"], "has no handler"),
        (["tasks:nothing"], "belong to no group"),
        (["tasks:calls", "--group", "batch"], "belong to group 'web'"),
        ([":calls"], "is not MODULE:NAME"),
        (["tasks", "--at-once", "0"], "whole number from 1"),
        (["tasks", "--takeover", "1s"], "a takeover of 1s is not within 2s to 60m"),
        (["tasks", "--takeover", "2h"], "a takeover of 2h is not within 2s to 60m"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(start: Start, arguments: list[str], said: str) -> None:
    worker = start(*arguments)
    _, errors = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, said in errors) == (Exit.USAGE, True), errors


@pytest.mark.long
@pytest.mark.parametrize("often", ["def", "async def"])
def test_a_worker_has_the_takeover_of_its_command_line(daemon: Daemon, start: Start, often: str) -> None:
    start("tasks", "--takeover", "90s", often=often)

    def takeovers() -> set[int]:
        with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
            return {client.takeover_ms for client in reader.clients if client.state == ClientState.LIVE}

    eventually(lambda: takeovers() == {90_000})


@pytest.mark.long
def test_a_worker_waits_for_a_daemon(make_daemon: Callable[..., Daemon], start: Start, runtime_dir: Path) -> None:
    start("tasks")
    with td.Client(group="web") as client:
        client.call_later("remind", 0, b"early")
        make_daemon()
        eventually(lambda: noted(runtime_dir, "end", "early"))


@pytest.mark.long
def test_the_help_of_a_worker_teaches_a_whole_example() -> None:
    out = subprocess.run(command_of("worker", "--help"), capture_output=True, text=True, check=True).stdout
    program = "\n".join(line[2:] for line in out.partition("example: tasks.py\n")[2].splitlines()[:10])
    names: dict[str, Any] = {}
    exec(compile(program, sys.executable, "exec"), names)
    assert [name for name, _ in names["calls"]] == ["remind", "cleanup"]
