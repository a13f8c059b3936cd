"""A full window, a daemon that stands still, flush() and close(): how a client treats unacknowledged commands.

When the window is full, a thread's call waits for up to a second; in a loop, `await client.room()` waits. So only
in the threaded client may a registration wait for the window. And only the threaded client has a thread of its own, in
which a callback may run during close().
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, stop
from timerd_client.protocol.state import LinkState


def test_backpressure_is_raised_after_a_second_and_flush_returns_in_time(
    client: Any, daemon: Daemon, face: Face
) -> None:
    client.flush()
    stop(daemon.pid)
    try:
        client._protocol.ledger.window = 100
        start = time.monotonic()
        with pytest.raises(td.BackpressureError, match="100 of 100"):
            for _ in range(101):
                client.fire("k")
        if not face.waits_for_room:
            with pytest.raises(td.BackpressureError, match="no room for 1 more in a window of 100 within 1 s"):
                client.room()
        assert 0.9 < time.monotonic() - start < PATIENCE_S / 2
        with pytest.raises(td.TimerdUnavailableError):
            client.flush(timeout=0.1)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(timeout=PATIENCE_S)
    if not face.waits_for_room:
        assert client.room() == 100


def test_a_batch_that_met_backpressure_is_withdrawn_as_a_whole(client: Any, daemon: Daemon) -> None:
    client.flush()
    client._protocol.ledger.window = 100
    stop(daemon.pid)
    try:
        with pytest.raises(td.BackpressureError):
            client.register_many(["k"] * 150, timeout=60)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(timeout=PATIENCE_S)
    assert client.fire_wait("k") == 0
    assert not client._protocol.ledger.pending


def test_a_registration_without_an_answer_is_withdrawn_because_its_caller_has_no_handle(
    client: Any, daemon: Daemon, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.flush()
    stop(daemon.pid)
    try:
        monkeypatch.setattr(f"timerd_client.{face.name}.purgatory.CLOSE_TIMEOUT_S", 0.05)
        with pytest.raises(td.TimerdUnavailableError):
            client.register_wait("k", timeout=60)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(timeout=PATIENCE_S)
    assert client.fire_wait("k") == 0


@THREADED
def test_the_time_in_a_full_window_counts_against_the_timeout_and_events_meanwhile_are_seen(
    client: td.Client, daemon: Daemon
) -> None:
    client.flush()
    with td.connect() as other:
        client._protocol.ledger.window = 10
        with client._link.lock:
            client._protocol.ledger.applied -= 10  # now the window is full
        started = time.monotonic_ns()
        registered: list[td.Operation] = []
        thread = threading.Thread(target=lambda: registered.append(client.register("k", timeout=PATIENCE_S)))
        thread.start()
        eventually(lambda: client._link.waiters.moved.callers > 0)
        other.fire_wait("k", value=b"meanwhile")
        waited = time.monotonic_ns() - started
        with client._link.lock:
            client._protocol.ledger.applied += 10
            client._link.waiters.notify_locked()
        thread.join(PATIENCE_S)
        outcome = registered[0].result(PATIENCE_S)
        assert outcome.value == b"meanwhile"
        assert outcome._record is not None
        assert outcome._record.registered_ns < started + waited


@pytest.mark.long
def test_flush_raises_session_gone_when_it_cannot_know_what_was_applied(client: Any, daemon: Daemon) -> None:
    daemon.kill()
    for _ in range(10):
        client.fire("k")
    daemon.destroy()
    daemon.start()
    with pytest.raises(td.SessionGoneError):
        client.flush(timeout=PATIENCE_S)
    eventually(lambda: client.state is LinkState.LIVE)
    client.fire("k")
    client.flush(timeout=PATIENCE_S)


@pytest.mark.long
def test_close_may_be_called_twice_and_fails_pending_operations(daemon: Daemon, face: Face) -> None:
    client = face.connect()
    operation = client.register("k", timeout=60)
    for _ in range(1000):
        client.fire("other")
    client.close()
    client.close()
    assert isinstance(operation.result(0).error, td.ClosedError)
    with pytest.raises(td.ClosedError):
        client.fire("k")
    with pytest.raises(td.ClosedError):
        client.mark()


def test_close_does_not_wait_for_ever_for_a_callback(daemon: Daemon) -> None:
    client = td.connect()
    entered, leave = threading.Event(), threading.Event()
    operation = client.register("k", timeout=PATIENCE_S)
    operation.add_done_callback(lambda _: entered.set())
    operation.add_done_callback(lambda _: leave.wait())
    client.fire("k")
    assert entered.wait(PATIENCE_S)
    start = time.monotonic()
    client.close(timeout=0.1)
    assert time.monotonic() - start < PATIENCE_S / 2
    leave.set()
    eventually(lambda: client.closed)


def test_a_value_that_was_left_out_raises_and_the_same_mark_finds_it_when_there_is_room(
    make_daemon: Callable[..., Daemon], face: Face
) -> None:
    """A view that answers with check() must not say that an empty message has come."""
    make_daemon("--quota-bytes=8192")
    client = face.make()
    client.ready(timeout=PATIENCE_S)
    mark = client.mark()
    hold = client.register("hold", timeout=600, payload=bytes(8_000))
    client.fire("k", value=b"y" * 3_000)
    outcome = client.register("k", timeout=600, since=mark).result(PATIENCE_S)
    assert outcome.state is td.State.COMPLETED and outcome.value_dropped
    for take in (outcome.check, outcome.unwrap):
        with pytest.raises(td.QuotaExceededError, match="'k' was fired, but its value was left out"):
            take()
    assert hold.cancel_wait(timeout=PATIENCE_S)
    again = client.register("k", timeout=600, since=mark).result(PATIENCE_S)
    assert again.check() == b"y" * 3_000
    client.close()
