"""A client that is made opens nothing. A process connects at its first use. Commands are kept until a daemon runs."""

from __future__ import annotations

import os
import re
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
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, stop
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S


def in_child(child: Callable[[], str]) -> str:
    """The result of `child` in a forked process, or the error that it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = child()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    said = os.read(read, 10_000).decode()
    os.close(read)
    return said


def opened() -> set[str]:
    """The files and threads of this process."""
    return {*os.listdir("/proc/self/task"), *(f"fd {name}" for name in os.listdir("/proc/self/fd"))}


def test_a_client_that_is_made_opens_no_file_and_starts_no_thread(face: Face) -> None:
    face.run(lambda: None)  # now all that the face itself starts is there
    before = opened()
    client = face.make("nowhere")
    assert (client.connected, client.closed, client.state.name) == (False, False, "CONNECTING")
    assert opened() == before


def test_calls_from_before_a_daemon_runs_are_done_when_one_runs(face: Face, make_daemon: Callable[..., Daemon]) -> None:
    client = face.make("late")
    operation = client.register("k", timeout=PATIENCE_S)
    client.fire("k", value=b"early bird")
    assert not operation.done()
    make_daemon(instance="late")
    assert operation.result(PATIENCE_S).value == b"early bird"
    assert client.connected
    client.close()


def test_a_call_that_waits_says_at_once_that_no_daemon_runs_and_works_when_one_does(
    face: Face, make_daemon: Callable[..., Daemon]
) -> None:
    client = face.make("late")
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(td.TimerdUnavailableError, match=r"start it .*timerd --instance late.*autostart=True"):
            client.fire_wait("k")
    assert time.monotonic() - start < CONNECT_TIMEOUT_S, "a call has waited for a daemon"
    make_daemon(instance="late")
    client.ready(timeout=PATIENCE_S)
    assert client.fire_wait("k") == 0
    client.close()


def test_a_deadline_counts_from_the_call_and_not_from_the_connection(
    face: Face, make_daemon: Callable[..., Daemon]
) -> None:
    daemon = make_daemon(instance="late")
    stop(daemon.pid)  # a stopped daemon goes on sooner than another daemon starts
    client = face.make("late")
    called_ns = time.monotonic_ns()
    operation = client.register("k", timeout=0.2)
    returned_ns = time.monotonic_ns()
    time.sleep(0.3)  # longer than the timeout
    os.kill(daemon.pid, signal.SIGCONT)
    outcome = operation.result(PATIENCE_S)
    assert outcome.state is td.State.EXPIRED
    assert called_ns <= operation.deadline_ns - 200_000_000 <= returned_ns
    assert outcome.lateness_ns > 50_000_000
    client.close()


@pytest.mark.long
def test_a_registration_before_the_connection_counts_from_the_mark_of_its_call(
    face: Face, make_daemon: Callable[..., Daemon]
) -> None:
    daemon = make_daemon(instance="kept")
    with td.connect("kept") as before:
        before.fire("k", value=b"too early")
        before.flush()
    daemon.stop()  # the arena stays
    client = face.make("kept")
    operation = client.register("k", timeout=PATIENCE_S)
    daemon.start()
    client.ready(timeout=PATIENCE_S)
    assert client.fire_wait("k", value=b"after") == 1
    assert operation.result(PATIENCE_S).value == b"after"
    client.close()


def test_without_an_arena_a_registration_counts_from_the_first_event_of_the_new_arena(
    face: Face, make_daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd_client.discovery.late_sockets.LOOK_FIRST_NS", 4_000_000_000)  # time for the calls below
    client = face.make("new")
    operation = client.register("k", timeout=PATIENCE_S)
    mark = client.mark()
    make_daemon(instance="new")
    with td.connect("new") as other:
        other.fire("k", value=b"first")
        other.flush()
    assert operation.result(PATIENCE_S).value == b"first", operation
    assert client.register("k", timeout=PATIENCE_S, since=mark).result(PATIENCE_S).value == b"first"
    client.close()


@pytest.mark.long
def test_no_call_is_lost_if_the_arena_is_replaced_before_the_connection(
    face: Face, make_daemon: Callable[..., Daemon]
) -> None:
    daemon = make_daemon(instance="kept")
    with td.connect("kept") as other:
        other.fire("k", value=b"of the old arena")
        foreign = other.mark()
    daemon.stop()
    client = face.make("kept")
    operation = client.register("k", timeout=PATIENCE_S)
    since_another = client.register("k", timeout=PATIENCE_S, since=foreign)
    daemon.destroy()
    daemon.start()
    client.fire("k", value=b"of the new one")
    assert operation.result(PATIENCE_S).value == b"of the new one"
    error = since_another.result(PATIENCE_S).error
    assert isinstance(error, td.MarkTooOldError), "events after the mark in the old arena are not known"
    client.close()


def test_purgatories_may_be_named_before_there_is_a_daemon(face: Face, make_daemon: Callable[..., Daemon]) -> None:
    client = face.make("late")
    boxes = [client.purgatory(f"box-{number}") for number in range(3)]
    operations = [box.register("k", timeout=PATIENCE_S) for box in boxes]
    boxes[1].fire("k", value=b"1")
    make_daemon(instance="late")
    assert operations[1].result(PATIENCE_S).value == b"1"
    assert [one.done() for one in operations] == [False, True, False]
    boxes[2].fire("k", value=b"2")
    assert operations[2].result(PATIENCE_S).value == b"2" and not operations[0].done()
    assert [box.name for box in boxes] == ["box-0", "box-1", "box-2"]
    client.close()


@THREADED
def test_a_forked_child_has_a_client_of_its_own_by_the_same_name(daemon: Daemon, face: Face) -> None:
    client = td.Client(name="shared")
    box = client.purgatory("box")
    mine = client.register("k", timeout=60)
    batch = client.register_many(["k", "l"], timeout=60)
    client.flush()
    incarnation = client._link.protocol.session.incarnation

    def child() -> str:
        assert box.register("child", timeout=PATIENCE_S) and client.register("own", timeout=PATIENCE_S)
        assert (box.fire_wait("child"), client.fire_wait("own")) == (1, 1)
        assert client._link.protocol.session.incarnation != incarnation
        for inherited in (mine.cancel, lambda: mine.result(1).unwrap(), lambda: batch.outcomes(1)[0].unwrap()):
            with pytest.raises(td.ClosedError, match="fork"):
                inherited()
        client.close()
        return "ok"

    assert in_child(child) == "ok"
    assert not mine.done()
    assert client.fire_wait("k") == 2 and mine.result(PATIENCE_S)
    client.close()


@THREADED
def test_a_child_of_a_client_that_was_never_used_connects_by_itself(daemon: Daemon, face: Face) -> None:
    client = td.Client()
    assert in_child(lambda: str(client.fire_wait("k"))) == "0"
    assert not client.connected
    client.close()
    with pytest.raises(td.ClosedError, match=r"close\(\) was called"):
        client.fire("k")
    assert "ClosedError" in in_child(lambda: str(client.fire("k")))


@THREADED
def test_the_client_of_a_process_is_one_for_all_threads_and_needs_no_daemon(face: Face, runtime_dir: Path) -> None:
    begin, seen, errors = threading.Barrier(8), [], []

    def use() -> None:
        begin.wait()
        client = td.client()
        seen.append(client)
        try:
            client.fire_wait("k")
        except td.TimerdUnavailableError as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(8)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - start < CONNECT_TIMEOUT_S, "a call has waited for a daemon"
    assert len({id(client) for client in seen}) == 1 and len(errors) == 8
    with pytest.raises(td.InvalidValueError, match=r"configure\(\) after (aio\.)?client"):
        td.configure("other")
    td.client().close()


@THREADED
def test_a_module_loaded_before_a_fork_works_in_each_worker(daemon: Daemon, face: Face, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import timerd as td\nclient = td.client()\nbox = client.purgatory('box')\n")
    program = (
        "import os, app\n"
        "for number in range(3):\n"
        "    if os.fork() == 0:\n"
        "        operation = app.box.register(f'k/{number}', timeout=30)\n"
        "        app.client.purgatory('box').fire(f'k/{number}', value=b'%d' % number)\n"
        "        os.write(1, operation.result(30).value + b'\\n')\n"  # in one piece: all write to one pipe
        "        os._exit(0)\n"
        "for _ in range(3): os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert sorted(done.stdout.split()) == ["0", "1", "2"], done.stderr


def test_a_client_without_a_daemon_starts_one_where_it_may(
    face: Face, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    monkeypatch.setenv("TIMERD_CAPACITY", "2048")
    monkeypatch.setenv("TIMERD_RING_EVENTS", "1024")
    client = face.make("auto", autostart=True)
    operation = client.register("k", timeout=PATIENCE_S)
    client.fire("k")
    assert operation.result(PATIENCE_S)
    pid = client._link.protocol.session.daemon_pid
    client.close()
    os.kill(pid, 15)
    eventually(lambda: not (runtime_dir / "auto.arena").exists())


def test_a_client_whose_daemon_cannot_be_started_says_why_each_time(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMERD_CAPACITY", "7 elephants")
    client = face.make("auto", autostart=True)
    for _ in range(2):
        with pytest.raises(td.TimerdUnavailableError, match="7 elephants"):
            client.fire_wait("k", timeout=PATIENCE_S)
        time.sleep(0.6)  # longer than LOOK_LAST_NS: the client has looked for the daemon again
    face.drop(client)


def test_an_operation_whose_deadline_passes_without_a_daemon_is_unavailable(face: Face) -> None:
    client = face.make("never")
    outcome: Any = client.register("k", timeout=0.1).result(PATIENCE_S)
    assert outcome.state is td.State.UNAVAILABLE
    with pytest.raises(td.TimerdUnavailableError):
        client.flush(timeout=0.1)
    face.drop(client)


def test_the_log_says_why_a_registration_is_kept(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    client = face.make("never")
    client.register("k", timeout=PATIENCE_S)
    eventually(lambda: "does not answer yet" in caplog.text)
    assert re.search("is there; no timerd instance 'never' in .*: start it", caplog.text), caplog.text
    face.drop(client)
