"""Clients whose real daemon is killed, stopped and started again.

Only the threaded client has `snapshot()`. Only its delayed operations need no await.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, stop
from timerd import State
from timerd_client.protocol.state import LinkState
from timerd_client.waits.polling import Polling
from timerd_shm.declare.limits import BACKPRESSURE_TIMEOUT_S, CLOSE_TIMEOUT_S, DAEMON_LOST_NS, GRACE_NS

MS = 1_000_000
LOST_S = 0.3


class Outage:
    """Kills a daemon and starts it again. Waits each time until a client (threaded or asyncio) has noticed it."""

    def __init__(self, face: Face, client: Any, daemon: Daemon) -> None:
        self._face = face
        self._client = client
        self._daemon = daemon

    def hasten(self, *, lost_ns: int = int(LOST_S * 1e9), grace_ns: int = 100 * MS) -> None:
        """Set short bounds. Without arguments they fit a killed daemon alone: a running one may be silent longer."""

        def change() -> None:
            link, protocol = self._client._link, self._client._protocol
            with link.lock:
                protocol.silence.lost_ns, protocol.grace_ns = lost_ns, grace_ns
            link.sender.ring()  # else the client looks at the bounds a heartbeat later

        self._face.run(change)

    def relax(self) -> None:
        self.hasten(lost_ns=DAEMON_LOST_NS, grace_ns=GRACE_NS)

    def until(self, state: LinkState) -> None:
        eventually(lambda: self._client.state is state, f"the client never was {state}")

    def begin(self) -> None:
        """Kill the daemon, and wait until the client has noticed."""
        self._daemon.kill()
        self.hasten()
        self.until(LinkState.LOST)
        assert not self._client.connected

    def end(self) -> None:
        """Start the daemon again, and wait until the client is connected again."""
        self.relax()
        self._daemon.start()
        self.until(LinkState.LIVE)
        assert self._client.connected


@pytest.fixture
def outage(face: Face, client: Any, daemon: Daemon) -> Outage:
    """An outage of `daemon`, for `client`."""
    return Outage(face, client, daemon)


@pytest.fixture
def lost(face: Face, daemon: Daemon) -> Iterator[Any]:
    """A client whose daemon was killed and is not started again. At the end it is dropped without a goodbye."""
    made = face.connect(timeout=PATIENCE_S)
    Outage(face, made, daemon).begin()
    yield made
    face.drop(made)


@pytest.mark.long
def test_the_log_says_when_the_daemon_is_lost_and_when_it_is_back(
    client: Any, daemon: Daemon, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "timerd_client"]

    outage.begin()
    eventually(lambda: said())
    assert re.search(r"the daemon of instance 'default' is lost: silent for [\d.]+ s", said()[0])
    outage.end()
    eventually(lambda: len(said()) == 2)
    assert re.search(r"the daemon of instance 'default' is back after [\d.]+ s", said()[1])


def test_operations_survive_a_kill_between_registration_and_event(client: Any, outage: Outage) -> None:
    before = client.register_wait("before", timeout=60)
    batch = client.register_many(["b0", "b1"], timeout=60)
    forever = client.register("forever", timeout=None)
    client.flush()
    outage.begin()
    during = client.register("during", timeout=60)
    client.fire("before", value=b"1")
    outage.end()
    client.fire_many(["during", "forever", "b0", "b1"], values=[b"2", b"3", b"4", b"5"])
    assert [operation.result(PATIENCE_S).value for operation in (before, during, forever)] == [b"1", b"2", b"3"]
    assert batch.values(PATIENCE_S) == [b"4", b"5"]
    assert client.stats().given_up == 0


def test_a_question_to_a_lost_daemon_raises_at_once_and_is_not_sent(lost: Any) -> None:
    client = lost
    operation = client.register("k", timeout=60)
    issued = client._protocol.ledger.issued
    start = time.monotonic()
    for ask in (
        lambda: client.fire_wait("k"),
        lambda: client.cancel_for_key_wait("k"),
        lambda: client.register_wait("k", timeout=1),
        lambda: client.reschedule_wait("id", 1),
        lambda: client.cancel_wait("id"),
        lambda: operation.reschedule_wait(1),
        lambda: client.purgatory("new"),
        client.ping,
        *([client.snapshot] if hasattr(client, "snapshot") else []),  # only the threaded client has it
    ):
        with pytest.raises(td.TimerdUnavailableError, match="state: lost, silent for"):
            ask()
    assert time.monotonic() - start < CLOSE_TIMEOUT_S, "one of the questions waited"
    assert client._protocol.ledger.issued == issued
    assert not operation.done()


@pytest.mark.long
def test_a_question_just_before_the_daemon_is_lost_raises_when_it_is_lost(
    client: Any, daemon: Daemon, outage: Outage
) -> None:
    daemon.kill()
    start = time.monotonic()
    outage.hasten(lost_ns=1_000 * MS)
    with pytest.raises(td.TimerdUnavailableError, match="lost before it answered"):
        client.fire_wait("k", timeout=PATIENCE_S)
    with pytest.raises(td.TimerdUnavailableError):
        client.register_wait("k", timeout=60)
    assert time.monotonic() - start < PATIENCE_S / 2
    outage.end()


@pytest.mark.long
def test_an_unavailable_operation_is_withdrawn_when_the_daemon_is_back(client: Any, outage: Outage) -> None:
    batch = client.register_many(["k"] * 3, timeout=0.4)
    client.flush()
    outage.begin()
    unsent = client.register("k", timeout=0.01)
    assert batch.states(PATIENCE_S) == [State.UNAVAILABLE] * 3
    outcome = unsent.result(PATIENCE_S)
    assert (outcome.state, bool(outcome)) == (State.UNAVAILABLE, False)
    with pytest.raises(td.TimerdUnavailableError, match="not known"):
        outcome.unwrap()
    with pytest.raises(td.TimerdUnavailableError, match="not known"):
        unsent.cancel_wait()
    outage.end()
    assert client.fire_wait("k") == 0
    assert client.stats()[:4] == (0, 0, 0, 4)


@pytest.mark.long
@THREADED
def test_a_delayed_operation_is_given_up_and_withdrawn_too(client: td.Client, outage: Outage) -> None:
    outage.begin()
    delayed = client.try_complete_else_watch(lambda: False, "k", timeout=0.01)
    assert delayed.settled(PATIENCE_S)
    assert delayed.state is State.UNAVAILABLE
    assert isinstance(delayed.error, td.TimerdUnavailableError)
    outage.end()
    assert client.fire_wait("k") == 0
    assert client.stats()[:4] == (0, 0, 0, 1)


def test_flush_and_close_say_in_time_how_many_commands_are_unacknowledged(lost: Any) -> None:
    client = lost
    for _ in range(7):
        client.fire("k")
    start = time.monotonic()
    with pytest.raises(td.TimerdUnavailableError, match=r"7 commands are unacknowledged: .*state: lost"):
        client.flush(timeout=0.1)
    with pytest.raises(td.TimerdUnavailableError, match="7 commands are unacknowledged"):
        client.close(timeout=0.1)
    assert time.monotonic() - start < CLOSE_TIMEOUT_S
    assert client.closed


@pytest.mark.long
def test_flush_reports_commands_kept_for_a_lost_daemon_as_unacknowledged_in_a_new_arena(
    client: Any, daemon: Daemon, outage: Outage
) -> None:
    outage.begin()
    for _ in range(7):
        client.fire("k")
    daemon.start()
    daemon.destroy()
    outage.end()  # in a new arena
    with pytest.raises(
        td.SessionGoneError, match=r"unacknowledged when .* instance 'default' lost sight of this client: 7\..* repeat"
    ):
        client.flush()
    client.flush()
    assert client.stats().commands_unknown == 7


@pytest.mark.long
def test_a_flush_ends_when_the_daemon_comes_back_with_another_arena(
    client: Any, daemon: Daemon, outage: Outage
) -> None:
    outage.begin()
    client.fire("k")
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(client.flush, timeout=2 * PATIENCE_S)
        daemon.start()
        daemon.destroy()
        outage.end()
        with pytest.raises(td.SessionGoneError, match="lost sight of this client: 1"):
            flush.result(PATIENCE_S)


def test_a_full_window_says_that_the_daemon_is_lost(lost: Any, face: Face) -> None:
    client = lost
    client._protocol.ledger.window = 100
    for _ in range(100):
        client.fire("k")
    start = time.monotonic()
    with pytest.raises(td.BackpressureError, match=r"100 of 100 commands .*state: lost, silent for [\d.]+ s"):
        client.fire("k")
    if not face.waits_for_room:
        assert time.monotonic() - start < BACKPRESSURE_TIMEOUT_S / 2, "the loop was blocked"
        with pytest.raises(td.BackpressureError, match=r"window of 100 .*state: lost, silent for [\d.]+ s"):
            client.room()
    assert BACKPRESSURE_TIMEOUT_S * 0.9 < time.monotonic() - start < PATIENCE_S / 2


def test_wait_for_polls_while_the_daemon_is_lost(lost: Any) -> None:
    client = lost
    looks: list[float] = []
    state = {"ready": False}

    def ready() -> bool:
        looks.append(time.monotonic())
        return state["ready"]

    assert client.wait_for(ready, "k", timeout=0.2, unavailable="poll", poll_interval=0.02) is False
    assert 2 <= len(looks) <= 8  # at 0, 0.02, 0.06, 0.14 and 0.2 s, or fewer on a slow machine
    timer = threading.Timer(0.1, lambda: state.update(ready=True))
    timer.start()
    assert client.wait_for(ready, "k", timeout=None, unavailable="poll", poll_interval=0.02) is True
    timer.join()
    state["ready"] = False
    with pytest.raises(td.TimerdUnavailableError):
        client.wait_for(ready, "k", timeout=0.05)
    issued = client._protocol.ledger.issued
    client.wait_for(ready, "k", timeout=0.05, unavailable="poll", poll_interval=0.02)
    assert client._protocol.ledger.issued == issued  # while it polls, wait_for registers no operation
    for wrong in ({"unavailable": "ignore"}, {"poll_interval": 0}, {"poll_interval": float("nan")}):
        with pytest.raises(td.InvalidValueError):
            client.wait_for(ready, "k", timeout=1, **wrong)


def test_the_pauses_of_polling_double_up_to_a_second_and_end_with_the_timeout() -> None:
    polling = Polling("poll", 0.02)
    assert [polling.pause(left) for left in (0.2, 0.18, 0.14, 0.06)] == [0.02, 0.04, 0.08, 0.06]
    assert [polling.pause(None) for _ in range(5)] == [0.32, 0.64, 1.0, 1.0, 1.0]
    assert polling.patience(None) == 1.0  # now the caller waits for an event, so the pauses begin anew
    assert [polling.pause(None) for _ in range(2)] == [0.02, 0.04]


@pytest.mark.long
def test_wait_for_degrades_to_polling_and_returns_to_events(client: Any, outage: Outage) -> None:
    looks: list[bool] = []
    rows: list[int] = []

    def look() -> list[int]:
        looks.append(client.state is not LinkState.LOST)
        return rows

    found: list[list[int]] = []
    waiting = threading.Thread(
        target=lambda: found.append(client.wait_for(look, "rows", timeout=60, unavailable="poll", poll_interval=60))
    )
    waiting.start()
    client.flush()
    outage.begin()
    eventually(lambda: len(looks) >= 2)
    assert looks == [True, False]  # wait_for has stopped waiting for events, and looked by itself
    outage.end()
    eventually(lambda: client.fire_wait("rows") != 0)
    assert looks[:3] == [True, False, True]
    rows.append(1)
    client.fire("rows")
    waiting.join(PATIENCE_S)
    assert found == [[1]]


def test_a_daemon_that_was_stopped_and_continues_makes_no_outcome_wrong(
    client: Any, daemon: Daemon, outage: Outage
) -> None:
    with td.connect(
        timeout=PATIENCE_S
    ) as other:  # first, because a connect may take longer than the timeout of `short`
        long = client.register("long", timeout=60)
        short = client.register("short", timeout=0.6)
        client.flush()
        stop(daemon.pid)
        try:
            other.fire("short")
            outage.hasten()
            assert short.result(PATIENCE_S).state is State.UNAVAILABLE
            assert not long.done()
            time.sleep(1.2)  # long enough for a gap
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        outage.relax()
        outage.until(LinkState.LIVE)
        client.flush(timeout=PATIENCE_S)
        assert other.fire_wait("long") == 1
        assert long.result(PATIENCE_S)
        assert short.result(0).state is State.UNAVAILABLE
        assert client.ping() < PATIENCE_S
        assert client.stats()[:5] == (0, 0, 0, 1, 1)


def test_connect_without_a_daemon_raises_within_its_timeout(face: Face, daemon: Daemon, runtime_dir: Path) -> None:
    with pytest.raises(td.TimerdUnavailableError, match=str(runtime_dir)):
        face.connect("absent")
    daemon.stop()
    start = time.monotonic()
    with pytest.raises(td.TimerdUnavailableError):
        face.connect(timeout=0.3)
    assert 0.3 <= time.monotonic() - start < PATIENCE_S / 2


def test_a_client_survives_a_restart_of_its_daemon(client: Any, daemon: Daemon) -> None:
    before = client.register_wait("before", timeout=60)
    daemon.stop()
    during = client.register("during", timeout=60)
    daemon.start()
    client.fire("before", value=b"1")
    client.fire("during", value=b"2")
    assert before.result(PATIENCE_S).value == b"1"
    assert during.result(PATIENCE_S).value == b"2"


@pytest.mark.long
def test_in_a_new_arena_pending_operations_fail_and_the_client_continues(client: Any, daemon: Daemon) -> None:
    purgatory = client.purgatory("p1")
    operation = client.register_wait("k", timeout=60)
    daemon.destroy()
    daemon.start()
    assert isinstance(operation.result(PATIENCE_S).error, td.SessionGoneError)
    eventually(lambda: client.state is LinkState.LIVE)
    again = purgatory.register("k", timeout=60)
    purgatory.fire("k")
    assert again.result(PATIENCE_S)


@pytest.mark.long
def test_wait_for_says_that_the_daemon_is_lost_and_not_that_no_event_came(face: Face, daemon: Daemon) -> None:
    with face.connect() as client:
        daemon.stop()
        with pytest.raises(td.TimerdUnavailableError):
            client.wait_for(lambda: False, "k", timeout=0.1)
        assert client.wait_for(lambda: True, "k", timeout=0.1)
        daemon.start()
