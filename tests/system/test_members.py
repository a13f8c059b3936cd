"""Members of a group with real daemons and processes: both faces, workers that are killed, stopped and recycled."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

import timerd as td
from daemons import Daemon
from patience import PATIENCE_S, eventually
from timerd import State
from timerd_client import aio


def member(**more: str) -> td.Client:
    return td.connect(group="web", timeout=PATIENCE_S, **more)  # type: ignore[arg-type]


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with member() as made:
        yield made


def leave_to_group(*payloads: bytes) -> None:
    """A client that ends at once, and whose operations its group adopts; they expire when it has ended."""
    with member(orphans="group") as owner:
        for payload in payloads:
            owner.register("left/behind", timeout=60, payload=payload, id=payload)
    with member() as other:
        for payload in payloads:
            other.reschedule_wait(payload, 0)


# outcomes() -----------------------------------------------------------------------------------------------------------


def test_operations_left_to_a_group_are_delivered_to_a_member(client: td.Client) -> None:
    leave_to_group(b"mine")
    outcome = next(client.outcomes(timeout=PATIENCE_S))
    assert (outcome.state, outcome.payload, outcome.keys, outcome.deliveries) == (
        State.EXPIRED,
        b"mine",
        ("left/behind",),
        1,
    )


def test_an_outcome_with_ack_is_done_and_one_without_is_redelivered(client: td.Client) -> None:
    leave_to_group(b"1", b"2")
    told = client.outcomes(timeout=PATIENCE_S)
    first, second = next(told), next(told)
    assert first.ack_wait()
    assert not first.ack_wait(), "it is done"
    told.close()
    (again,) = client.outcomes(timeout=0.5)
    assert (again.payload, again.deliveries, again.redelivered) == (second.payload, 2, True)
    assert not second.ack_wait() or not again.ack_wait(), "done once"


def test_a_member_whose_loop_has_ended_listens_no_more(client: td.Client) -> None:
    for _ in client.outcomes(timeout=0.05):
        raise AssertionError("there is nothing to be told")
    leave_to_group(b"later")
    with member() as other:
        outcome = next(other.outcomes(timeout=PATIENCE_S))
        assert (outcome.payload, outcome.deliveries) == (b"later", 1)
        outcome.ack()


def test_a_loop_ends_when_the_client_is_closed(client: td.Client) -> None:
    began, ended = threading.Event(), threading.Event()

    def iterate() -> None:
        for outcome in client.outcomes():
            outcome.ack()
            began.set()
        ended.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    leave_to_group(b"the only one")
    assert began.wait(PATIENCE_S)
    client.close()
    assert ended.wait(PATIENCE_S)
    thread.join()
    with pytest.raises(td.ClosedError):
        client.outcomes()


def test_a_call_that_needs_a_group_says_so(daemon: Daemon) -> None:
    with pytest.raises(td.NotAMemberError, match="group=NAME"):
        td.connect(orphans="group")
    with pytest.raises(td.InvalidNameError):
        td.connect(group="The Web")
    with td.connect(timeout=PATIENCE_S) as single:
        with pytest.raises(td.NotAMemberError):
            single.outcomes()
        with pytest.raises(td.NotAMemberError):
            single.call_later("job", 1)
        with pytest.raises(td.NotAMemberError):
            single.every("job", seconds=1)
        with pytest.raises(td.NotAMemberError):
            single.handles("job")
        with pytest.raises(td.NotAMemberError):
            single.register("k", timeout=1, orphans="group")


def test_a_pending_operation_may_be_left_to_the_group(client: td.Client) -> None:
    with member() as owner:
        owner.register("left/behind", timeout=0.05, payload=b"given").set_orphans("group")
        owner.register("left/behind", timeout=0.05, payload=b"kept to itself")
    (outcome,) = client.outcomes(timeout=0.3)
    assert outcome.payload == b"given"


def test_the_client_of_a_process_is_made_with_its_configuration(daemon: Daemon) -> None:
    """As gunicorn --preload does: the module is loaded before the fork, and its client is each worker's own."""
    program = """
import os, timerd as td
td.configure(group="web", orphans="group", timeout=10)
for number in (1, 2):
    if os.fork() == 0:
        td.client().call_later("job", 0.01)
        print(td.client().cancel_call("nothing"), flush=True)
        raise SystemExit
    os.wait()
try:
    td.client(); td.configure()
except td.InvalidValueError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout.startswith("False\nFalse\nconfigure() after client()"), out


# named calls ----------------------------------------------------------------------------------------------------------


def test_handlers_run_and_a_failing_one_does_not_end_its_schedule(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[td.Call] = []

    @client.every("often", seconds=0.05)
    def often(call: td.Call) -> None:
        calls.append(call)
        if len(calls) == 1:
            raise RuntimeError("of the handler")

    with caplog.at_level(logging.WARNING):
        eventually(lambda: len(calls) >= 3)
    assert "of the handler" in caplog.text
    assert len({call.due for call in calls}) == len(calls)
    assert all(call.deliveries == 1 and call.name == "often" for call in calls)


def test_a_call_runs_once_and_may_be_registered_again(client: td.Client) -> None:
    calls: list[bytes] = []
    client.handles("once")(lambda call: calls.append(call.payload))
    with member() as other:
        assert client.call_later("once", 0.5, b"first")
        assert not other.call_at("once", datetime.now(UTC) + timedelta(seconds=0.5), b"second")
        eventually(lambda: calls)
        eventually(lambda: other.call_at("once", datetime.now(UTC), b"third"))
        eventually(lambda: len(calls) == 2)
        assert calls == [b"first", b"third"]
        assert client.call_later("once", 60)
        assert other.cancel_call("once")
        assert not other.cancel_call("once")


def test_close_waits_for_the_handler_that_runs(daemon: Daemon) -> None:
    began, done = threading.Event(), threading.Event()
    with member() as worker:

        @worker.handles("slow")
        def slow(call: td.Call) -> None:
            began.set()
            time.sleep(0.2)
            done.set()

        worker.call_later("slow", 0)
        assert began.wait(PATIENCE_S)
    assert done.is_set()
    with member() as other:
        again: list[td.Call] = []
        other.handles("slow")(again.append)
        time.sleep(0.2)
        assert not again


def test_a_callback_that_closes_the_client_does_not_wait_for_a_handler(client: td.Client) -> None:
    started, release, closed = threading.Event(), threading.Event(), threading.Event()

    @client.handles("slow")
    def slow(call: td.Call) -> None:
        started.set()
        release.wait(PATIENCE_S)

    def close(_: object) -> None:
        try:
            client.close()
        except RuntimeError:  # it would wait for itself
            closed.set()

    assert client.call_later("slow", 0)
    assert started.wait(PATIENCE_S)
    client.register("k", timeout=30).add_done_callback(close)
    client.fire("k")
    assert closed.wait(PATIENCE_S / 2), "the client's own thread waits for the handler"
    release.set()


def test_a_call_whose_handler_outlasts_the_close_runs_again_on_another_worker(client: td.Client) -> None:
    began, hold = threading.Event(), threading.Event()
    worker = member()

    @worker.handles("stuck")
    def stuck(call: td.Call) -> None:
        began.set()
        hold.wait(PATIENCE_S)

    worker.call_later("stuck", 0)
    assert began.wait(PATIENCE_S)
    calls: list[int] = []
    client.handles("stuck")(lambda call: calls.append(call.deliveries))
    worker.close(timeout=0.1)
    eventually(lambda: calls == [2])
    hold.set()


def test_a_schedule_survives_a_killed_daemon_and_a_new_arena(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon()
    calls: list[td.Call] = []
    worker = member()
    worker.every("often", seconds=0.05)(calls.append)
    eventually(lambda: len(calls) >= 2)
    daemon.kill()
    daemon.start()
    before = len(calls)
    eventually(lambda: len(calls) >= before + 2)
    daemon.destroy()  # the arena too
    daemon.start()
    before = len(calls)
    eventually(lambda: len(calls) >= before + 2)
    with suppress(td.SessionGoneError):  # for what was on its way to the arena that is gone
        worker.close()
    assert len({call.due for call in calls}) == len(calls)


def test_an_asyncio_member_iterates_outcomes_and_runs_handlers(daemon: Daemon) -> None:
    async def work() -> None:
        calls: list[td.Call] = []
        async with aio.connect(group="web", timeout=PATIENCE_S) as client:

            @client.every("often", seconds=0.05)
            async def often(call: td.Call) -> None:
                await asyncio.sleep(0.01)
                calls.append(call)
                if len(calls) == 1:
                    raise RuntimeError("of the handler")

            client.handles("once")(calls.append)
            assert await client.call_later("once", 0.01, b"x")
            assert await client.call_at("never", datetime(2100, 1, 1, tzinfo=UTC))
            assert not await client.call_later("never", 0.01)
            assert await client.cancel_call("never")
            async with asyncio.timeout(PATIENCE_S):
                while [call.name for call in calls].count("often") < 3 or len({call.name for call in calls}) < 2:
                    await asyncio.sleep(0.01)

            await asyncio.to_thread(leave_to_group, b"1", b"2")
            async for outcome in client.outcomes(timeout=PATIENCE_S):
                assert await outcome.ack_wait()
                if outcome.payload == b"2":
                    break
            with pytest.raises(td.InvalidValueError):
                client.every("often", seconds=1)(print)
        due = [call.due for call in calls if call.due]
        assert len(set(due)) == len(due)

    asyncio.run(work())


def test_closing_an_asyncio_client_waits_for_its_handlers(daemon: Daemon) -> None:
    async def work() -> list[str]:
        done: list[str] = []
        async with aio.connect(group="web", timeout=PATIENCE_S) as client:
            began = asyncio.Event()

            @client.handles("slow")
            async def slow(call: td.Call) -> None:
                began.set()
                await asyncio.sleep(0.2)
                done.append("slow")

            await client.call_later("slow", 0)
            await asyncio.wait_for(began.wait(), PATIENCE_S)
        return done

    assert asyncio.run(work()) == ["slow"]


def test_an_iterating_member_gets_no_calls_and_a_handling_member_no_outcomes(client: td.Client) -> None:
    """However many of the one wait, the others are told."""
    calls: list[td.Call] = []
    client.handles("job")(calls.append)
    leave_to_group(*(b"%d" % number for number in range(300)))
    assert client.call_later("job", 0)
    eventually(lambda: len(calls) == 1)
    with member() as other:
        assert other.call_later("nobody's", 0)
        for number, outcome in enumerate(other.outcomes(timeout=PATIENCE_S), 1):
            assert (outcome.payload, outcome.deliveries) in {(b"%d" % which, 1) for which in range(300)}
            outcome.ack()
            if number == 300:
                break
    assert client.call_later("job", 0)
    eventually(lambda: len(calls) == 2)


def test_a_changed_schedule_takes_effect_at_once(daemon: Daemon, client: td.Client) -> None:
    with member() as old:
        old.every("job", cron="0 3 * * *")(print)
        eventually(lambda: daemon.stats()["counters"]["pending"] == 1)
    calls: list[td.Call] = []
    client.every("job", seconds=0.1)(calls.append)
    eventually(lambda: len(calls) >= 2)
    assert all(call.deliveries == 1 and call.due and call.due.hour * 60 + call.due.minute != 180 for call in calls)


# processes ------------------------------------------------------------------------------------------------------------

LISTENER = """
import sys, timerd as td
client = td.connect(group="web", timeout=10)
for outcome in client.outcomes(timeout=float(sys.argv[1])):
    print("told", outcome.payload.decode(), outcome.deliveries, flush=True)
    sys.stdin.readline()
    print("done", outcome.payload.decode(), outcome.ack_wait(), flush=True)
print("end", flush=True)
"""


@pytest.fixture
def listener(daemon: Daemon) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that listen, and wait for a line before they acknowledge."""
    made: list[subprocess.Popen[str]] = []

    def start(timeout: float = PATIENCE_S) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LISTENER, str(timeout)]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def test_an_outcome_held_by_a_killed_process_is_redelivered(
    client: td.Client, listener: Callable[..., subprocess.Popen[str]]
) -> None:
    victim = listener()
    leave_to_group(b"x")
    assert line(victim) == "told x 1"
    victim.kill()
    told = client.outcomes(timeout=PATIENCE_S)  # kept: when it goes, what is not done goes back to the group
    outcome = next(told)
    assert (outcome.payload, outcome.deliveries, outcome.redelivered) == (b"x", 2, True)
    assert outcome.ack_wait()


def test_a_stopped_process_does_not_act_on_a_requeued_outcome(
    make_daemon: Callable[..., Daemon], listener: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    make_daemon("--lease=2s", instance="short")
    os.environ["TIMERD_INSTANCE"] = "short"
    try:
        leave_to_group(b"1", b"2")
        stopped = listener(1.0)
        assert line(stopped) == "told 1 1"
        time.sleep(0.1)  # and the second one lies in its memory
        stopped.send_signal(signal.SIGSTOP)
        told = []
        with member() as other:
            for outcome in other.outcomes(timeout=PATIENCE_S):
                told.append((outcome.payload, outcome.deliveries))
                assert outcome.ack_wait()
                if len(told) == 2:
                    break
        assert told == [(b"1", 2), (b"2", 2)]
        stopped.send_signal(signal.SIGCONT)
        out, _ = stopped.communicate("\n\n", timeout=PATIENCE_S)
        assert out.splitlines() == ["done 1 False", "end"]
    finally:
        del os.environ["TIMERD_INSTANCE"]


APPLICATION = """
import os, time
import timerd as td

client = td.connect(group="web", timeout=10)

def note(word, call):
    fd = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    due = call.due.timestamp()
    os.write(fd, f"{word} {due:.1f} {time.time():.6f} {os.getpid()} {call.deliveries}\\n".encode())
    os.close(fd)

@client.every("job", seconds=0.2)
def job(call):
    note("begin", call)
    time.sleep(0.03)
    note("end", call)

def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]
"""


class Note(NamedTuple):
    """What the application has noted."""

    word: str
    due: str
    at: str
    worker: str
    deliveries: str


def notes_in(path: Path) -> list[Note]:
    return [Note(*line.split()) for line in path.read_text().splitlines()] if path.exists() else []


def visit(port: int) -> None:
    """A request; a worker that is just ending may refuse it."""
    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()


@pytest.mark.parametrize(("workers", "seen", "runs"), [(2, 3, 6), pytest.param(4, 6, 30, marks=pytest.mark.long)])
def test_under_gunicorn_that_recycles_its_workers_every_occurrence_runs_once(
    daemon: Daemon, runtime_dir: Path, workers: int, seen: int, runs: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (runtime_dir / "application.py").write_text(APPLICATION)
    path = runtime_dir / "notes"
    command = [sys.executable, "-m", "gunicorn", f"--bind=127.0.0.1:{port}", f"--workers={workers}", "--max-requests=4"]
    with (runtime_dir / "gunicorn.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, f"--chdir={runtime_dir}", "application"],
            stdout=log,
            stderr=log,
            env={**os.environ, "HOME": str(runtime_dir)},  # where some versions keep a control socket
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
    assert [note.word for note in notes] == ["begin", "end"] * (len(notes) // 2), "no two at once"
    begun, ended = notes[::2], notes[1::2]
    assert [note.due for note in begun] == [note.due for note in ended]
    due = [float(note.due) for note in begun]
    # What was done while no daemon was there to hear it is done again if its worker ended before one was: one at most.
    again = [number for number in range(1, len(due)) if due[number] == due[number - 1]]
    assert due == sorted(due), "in order"
    assert len(again) <= 1, f"each point once: {due}"
    for number in again:
        assert float(ended[number - 1].at) > restarted_at - 1, "again only because of the restart"
        assert int(begun[number].deliveries) > int(begun[number - 1].deliveries)
    after = [following - float(note.at) for note, following in zip(ended, due[1:], strict=False)]
    assert max(after) < 0.2 + 5.0, "the next one is the first point after the last was done, on a busy machine too"
