"""`error.in_doubt`: True only if the command may have been applied, or may be applied later; also for batches."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, stop
from timerd_client.discovery.autostart import await_daemon
from timerd_client.link import flows
from timerd_client.protocol.state import LinkState
from timerd_shm.host.paths import InstancePaths


@contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    stop(daemon.pid)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def error_of(call: Callable[[], Any]) -> td.TimerdError:
    with pytest.raises(td.TimerdError) as raised:
        call()
    return raised.value


def questions(client: Any) -> list[Callable[[], Any]]:
    """Calls that wait for an answer."""
    return [
        lambda: client.fire_wait("k", timeout=0.05),
        lambda: client.register_wait("k", timeout=60),
        lambda: client.cancel_wait("id", timeout=0.05),
        lambda: client.reschedule_wait("id", 1, timeout=0.05),
    ]


@pytest.fixture
def lost(face: Face, daemon: Daemon) -> Iterator[Any]:
    """A client whose daemon is lost. At the end it is dropped without a goodbye."""
    made = face.connect(timeout=PATIENCE_S)
    daemon.kill()

    def hasten() -> None:
        made._link.protocol.silence.lost_ns = 300_000_000
        made._link.sender.ring()

    face.run(hasten)
    eventually(lambda: made.state is LinkState.LOST)
    yield made
    face.drop(made)


def test_without_an_instance_nothing_is_sent(face: Face) -> None:
    client = face.make("nowhere")
    for call in (*questions(client), lambda: face.connect("nowhere"), client.ready):
        error = error_of(call)
        assert isinstance(error, td.TimerdUnavailableError) and error.in_doubt is False, error
    face.drop(client)


class Started:
    """A daemon that was just started: it has ended with this status, or (None) it does not serve yet."""

    pid = 7

    def __init__(self, returncode: int | None) -> None:
        self.returncode = returncode

    def poll(self) -> int | None:
        return self.returncode


@pytest.mark.parametrize("status", [1, None])
def test_a_daemon_that_does_not_serve_was_sent_nothing(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr("timerd_client.discovery.autostart.AUTOSTART_TIMEOUT_S", 0.0)
    daemon: Any = Started(status)
    assert error_of(lambda: await_daemon(daemon, InstancePaths(runtime_dir, "auto"))).in_doubt is False


def test_a_daemon_that_cannot_be_started_was_sent_nothing(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_daemon(target: object) -> InstancePaths:
        raise td.TimerdUnavailableError("7 elephants", in_doubt=False)

    monkeypatch.setattr("timerd_client.discovery.late_sockets.start_daemon", start_daemon)
    client = face.make("auto", autostart=True)
    errors: list[td.TimerdError] = []

    def has_failed_to_start() -> bool:
        """Whether the start failed. Commands of earlier calls are kept: those calls have waited for the daemon."""
        errors.append(error_of(lambda: client.fire_wait("k", timeout=0.05)))
        return errors[-1].in_doubt is False

    eventually(has_failed_to_start, "no call is known to have sent nothing", 4 * PATIENCE_S)
    issued = client._protocol.ledger.issued
    assert issued == len(errors) - 1 == [error.in_doubt for error in errors].count(True)
    face.drop(client)


def test_a_command_that_is_kept_when_no_daemon_is_expected_any_more_is_in_doubt(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon had run lately, so the call waits; then none is expected. The command stays, for a daemon that comes."""
    late = "timerd_client.discovery.late_sockets.has_run_lately"
    monkeypatch.setattr(late, lambda target: True)
    client = face.make("nowhere")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(error_of, lambda: client.fire_wait("k", timeout=None))
        eventually(lambda: hasattr(client, "_protocol") and client._protocol.ledger.issued == 1)
        monkeypatch.setattr(late, lambda target: False)
        error = asked.result(PATIENCE_S)
    assert "no timerd instance 'nowhere'" in str(error) and "is kept" in str(error) and error.in_doubt is True
    assert error_of(lambda: client.fire_wait("k")).in_doubt is False
    error = error_of(lambda: client.register_many_wait(["k"], timeout=60))
    assert "is kept" in str(error) and error.in_doubt is True
    face.drop(client)


def test_a_question_to_a_lost_daemon_is_not_sent_and_a_column_is_kept(lost: Any) -> None:
    client = lost
    for call in questions(client):
        error = error_of(call)
        assert "was not asked" in str(error) and error.in_doubt is False
    error = error_of(lambda: client.register_many_wait(["k"] * 3, timeout=60))
    assert error.in_doubt is True and "was not asked" not in str(error), "the rows are sent when the daemon is back"
    assert error_of(lambda: client.register_many_wait([], timeout=60)).in_doubt is False
    assert error_of(lambda: client.flush(timeout=0.05)).in_doubt is True


def test_a_question_that_a_stopped_daemon_does_not_answer_is_in_doubt(client: Any, daemon: Daemon) -> None:
    client._protocol.silence.lost_ns = 3_600_000_000_000  # on a slow machine, too, the daemon is not lost yet
    with stopped(daemon):
        for call in questions(client)[:1]:
            assert error_of(call).in_doubt is True
        purgatory = client.purgatory("default")
        together = [(getattr(purgatory, "_target", purgatory), "k", b"value")]
        for call in (
            lambda: client.fire_together_wait(together, timeout=0.05),
            lambda: client.register_many_wait(["k"], timeout=60, receipt_timeout=0.05),
            lambda: client.flush(timeout=0.05),
        ):
            assert error_of(call).in_doubt is True


def test_a_connection_that_a_stopped_daemon_does_not_answer_has_sent_nothing(face: Face, daemon: Daemon) -> None:
    with stopped(daemon):
        assert error_of(lambda: face.connect(timeout=0.05)).in_doubt is False


def test_a_question_that_was_kept_for_a_daemon_is_in_doubt(face: Face, daemon: Daemon) -> None:
    client = face.make()
    with stopped(daemon):
        assert error_of(lambda: client.fire_wait("k", timeout=0.05)).in_doubt is True
        assert error_of(lambda: client.ready(timeout=0.05)).in_doubt is False
    client.close(timeout=PATIENCE_S)


def test_a_full_window_tells_whether_a_part_of_a_column_was_sent(client: Any, daemon: Daemon, face: Face) -> None:
    client.flush()
    client._protocol.ledger.window = 100
    with stopped(daemon):
        for call in (
            lambda: client.fire_many(["k"] * 150),
            lambda: client.register_many(["k"] * 150, timeout=60),
        ):
            error = error_of(call)
            assert isinstance(error, td.BackpressureError)
        # A thread sends what has room and waits; in a loop nothing is sent.
        assert error_of(lambda: client.fire_many(["k"] * 150)).in_doubt is False, (
            "the window is full, or nothing is sent"
        )
    client.flush(timeout=PATIENCE_S)
    with stopped(daemon):
        assert error_of(lambda: client.fire_many(["k"] * 150)).in_doubt is face.waits_for_room
    client.flush(timeout=PATIENCE_S)


def test_a_client_that_is_closed_was_not_asked(face: Face, daemon: Daemon) -> None:
    client = face.connect(timeout=PATIENCE_S)
    client.close(timeout=PATIENCE_S)
    assert error_of(lambda: client.fire_wait("k")).in_doubt is False


def test_a_refusal_is_not_in_doubt_and_a_forgotten_session_is() -> None:
    assert not td.ArenaFullError("full").in_doubt and not td.QuotaExceededError("full").in_doubt
    assert td.SessionGoneError("gone").in_doubt and td.CheckIncompleteError("late").in_doubt
    assert td.TimerdUnavailableError("silent").in_doubt, "in doubt unless its maker knows better"
    for in_doubt in (False, True):
        error = td.TimerdUnavailableError("silent", in_doubt=in_doubt)
        copied = pickle.loads(pickle.dumps(error))
        assert (str(copied), copied.in_doubt) == ("silent", in_doubt)


def test_a_client_that_is_closed_between_the_parts_of_a_call_is_in_doubt(
    face: Face, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes it. The rows are kept or sent, owners were asked, or some operations have the policy."""

    def closing(function: Callable[..., Any], link: Any, after: int) -> Callable[..., Any]:
        """The function. After this number of calls, the link is closed when it is called."""
        calls = iter(range(after))

        def call(*given: Any) -> Any:
            if next(calls, None) is None:
                link.sealed = True  # as seal() does; the lock may be held
            return function(*given)

        return call

    for module, name, after, call in (
        (flows, "received", 0, lambda client: client.register_many_wait(["k"] * 3, timeout=60)),
        (flows, "query", 0, lambda client: client.check_and_complete("k", timeout=PATIENCE_S)),
        (None, "ready_locked", 1, lambda client: client.set_orphans("keep")),
    ):
        client = face.connect(timeout=PATIENCE_S)
        batch = client.register_many(["j"] * 2, timeout=60)
        client.flush(timeout=PATIENCE_S)
        with monkeypatch.context() as patch:
            patch.setattr(flows, "ISSUED_AT_ONCE", 1)
            of = module or client._link.sender
            patch.setattr(of, name, closing(getattr(of, name), client._link, after))
            error = error_of(lambda call=call, client=client: call(client))  # type: ignore[misc]
        assert isinstance(error, td.ClosedError) and error.in_doubt is True, name
        client.close(timeout=PATIENCE_S)
        del batch


@THREADED
def test_an_operation_of_the_parent_process_may_settle_there(client: Any) -> None:
    """A forked child cannot know how it settles."""
    operation, batch = client.register("k", timeout=60), client.register_many(["k"], timeout=60)

    pid = os.fork()
    if pid == 0:
        try:
            known = [operation.result(0).error, batch.outcomes(0)[0].error]
            os._exit(all(isinstance(error, td.ClosedError) and error.in_doubt for error in known))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@THREADED
def test_a_flush_whose_client_another_thread_closes_in_vain_raises_an_error(face: Face, daemon: Daemon) -> None:
    """It returned before, as if the daemon had applied the command."""
    client = face.connect(timeout=PATIENCE_S)
    with stopped(daemon), ThreadPoolExecutor(1) as threads:
        client.fire("k")
        flush = threads.submit(client.flush, timeout=PATIENCE_S)
        eventually(lambda: client._link.waiters.some_wait())
        with pytest.raises(td.TimerdUnavailableError):
            client.close(timeout=0)
        error = error_of(flush.result)
    assert isinstance(error, td.ClosedError) and error.in_doubt, error
