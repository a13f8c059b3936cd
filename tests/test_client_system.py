"""The client against real daemons: threads, loops, forks, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import timerd as td
from daemons import SMALL_BY_ENVIRONMENT, Daemon
from timerd import ALL, ALL_SETTLED, State, at_least, total
from timerd_client import aio
from timerd_client.arguments import Keys
from timerd_client.connection import _alone
from timerd_client.protocol import LinkState
from timerd_shm.rundir import daemon_running, find_instance

PATIENCE_S = 10.0


@pytest.fixture
def client(daemon: Daemon) -> Iterator[td.Client]:
    with td.connect(timeout=PATIENCE_S) as made:
        yield made


def ended(pid: int) -> bool:
    """Whether a process that is not our child has ended; whose it is may not have noticed yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_event_completes_an_operation_with_its_value(client: td.Client) -> None:
    operation = client.register("inbox/7", timeout=PATIENCE_S, payload=b"mine")
    client.fire("inbox/7", value=b"hello")
    outcome = operation.result(PATIENCE_S)
    assert (outcome.state, outcome.key, outcome.value, outcome.payload) == (
        State.COMPLETED,
        "inbox/7",
        b"hello",
        b"mine",
    )
    assert outcome
    assert outcome.unwrap() == b"hello"


def test_an_operation_without_event_expires_late_never_early(client: td.Client) -> None:
    start = time.monotonic_ns()
    outcome = client.register("quiet", timeout=0.05).result(PATIENCE_S)
    assert time.monotonic_ns() - start >= 50_000_000
    assert outcome.state is State.EXPIRED
    assert outcome.lateness_ns >= 0
    assert not outcome
    with pytest.raises(td.OperationExpired):
        outcome.unwrap()
    with pytest.raises(TimeoutError):
        outcome.unwrap()


def test_an_own_earlier_event_does_not_complete_a_later_operation(client: td.Client) -> None:
    for _ in range(200):
        client.fire("session")
        operation = client.register("session", timeout=0.0)
        assert operation.result(PATIENCE_S).state is State.EXPIRED


def test_quorums_say_who_answered(client: td.Client) -> None:
    operation = client.register(["r1", "r2", "r3"], timeout=PATIENCE_S, when=at_least(2))
    client.fire("r1")
    client.fire("r3")
    outcome = operation.result(PATIENCE_S)
    assert (outcome.satisfied, outcome.missing) == (("r1", "r3"), ("r2",))


def test_watermarks_totals_and_failures(client: td.Client) -> None:
    offsets = client.register({"p0": 812, "p1": 455}, timeout=PATIENCE_S, when=ALL)
    amount = client.register("topic", timeout=PATIENCE_S, when=total(100))
    settled = client.register(["a", "b"], timeout=PATIENCE_S, when=ALL_SETTLED)
    failing = client.register("leader", timeout=PATIENCE_S)
    client.advance("p0", 900)
    client.advance("p1", 455)
    client.fire("topic", amount=60)
    client.fire("topic", amount=40)
    client.fail("a", code=3)
    client.fire("b")
    client.fail("leader", code=6, value=b"not leader")
    assert offsets.result(PATIENCE_S)
    assert amount.result(PATIENCE_S)
    assert settled.result(PATIENCE_S).failed == ("a",)
    outcome = failing.result(PATIENCE_S)
    assert outcome.state is State.FAILED
    assert isinstance(outcome.error, td.OperationFailed)
    assert (outcome.error.fail_code, outcome.error.value) == (6, b"not leader")


def test_a_payload_beyond_the_quota_is_refused_with_its_size_the_limit_and_the_flag(
    make_daemon: Callable[..., Daemon],
) -> None:
    make_daemon("--quota-bytes=1000")
    with td.connect() as client:
        with pytest.raises(td.QuotaExceededError, match=r"payload of 2000 bytes.* 1000 bytes in all.* --quota-bytes"):
            client.register("k", timeout=1, payload=bytes(2000), wait=True)
        first, second = client.register_many(["a", "b"], timeout=0.05, payloads=[bytes(600), bytes(700)]).outcomes(30)
        assert first.state is State.EXPIRED
        assert "payload of 700 bytes is too much now" in str(second.error)


def test_cancel_tells_whether_it_won(client: td.Client) -> None:
    operation = client.register("k", timeout=None)
    assert operation.cancel() is True
    assert operation.result(0).state is State.CANCELLED
    completed = client.register("k", timeout=None)
    client.fire("k")
    assert completed.cancel() is False


def test_a_deadline_can_be_moved(client: td.Client) -> None:
    operation = client.register("idle", timeout=PATIENCE_S, id="session/9", wait=True)
    assert operation.reschedule(60, wait=True)
    with td.connect() as other:
        assert other.reschedule("session/9", 0.01)
    assert operation.result(PATIENCE_S).state is State.EXPIRED
    assert operation.reschedule(1) is False
    with pytest.raises(td.UnknownOperationError, match="of id 'never' is pending in purgatory 'default'"):
        client.reschedule("never", 1)
    with pytest.raises(td.UnknownOperationError, match="of id 'never' is pending in purgatory 'fetch'"):
        client.purgatory("fetch").cancel("never")


def test_an_id_makes_a_registration_idempotent(client: td.Client) -> None:
    first = client.register("k", timeout=PATIENCE_S, id="x", wait=True)
    assert client.register("k", timeout=1, id="x", if_exists="keep") is first
    refused = client.register("k", timeout=PATIENCE_S, id="x").result(PATIENCE_S)
    assert isinstance(refused.error, td.OperationExistsError)
    with pytest.raises(td.OperationExistsError, match=r"id 'x' exists in purgatory 'default' \(it is pending\)"):
        client.register("k", timeout=PATIENCE_S, id="x", wait=True)
    second = client.register("k", timeout=PATIENCE_S, id="x", if_exists="replace")
    assert first.result(PATIENCE_S).state is State.CANCELLED
    assert client.cancel("x")
    assert second.result(PATIENCE_S).state is State.CANCELLED


def test_purgatories_are_apart(client: td.Client) -> None:
    fetch = client.purgatory("fetch")
    assert client.purgatory("fetch") is fetch
    operation = fetch.register("k", timeout=PATIENCE_S)
    assert client.fire_wait("k") == 0
    assert fetch.fire_wait("k") == 1
    assert operation.result(PATIENCE_S)
    with pytest.raises(td.InvalidNameError):
        client.purgatory("Not a name")


def test_columns_come_back_in_their_order(client: td.Client) -> None:
    keys = [f"k{index}" for index in range(400)]
    batch = client.register_many(keys, timeout=PATIENCE_S, payloads=[key.encode() for key in keys])
    client.fire_many(keys[::-1], values=[key.encode() for key in keys[::-1]])
    assert batch.values(PATIENCE_S) == [key.encode() for key in keys]
    assert [outcome.payload for outcome in batch.outcomes()] == [key.encode() for key in keys]
    assert set(batch.states()) == {State.COMPLETED}
    assert batch.completed() == len(keys)
    assert client.register_many([], timeout=1).outcomes(0) == []


def test_wait_for_sees_what_another_process_does(client: td.Client, tmp_path: Path) -> None:
    row = tmp_path / "row"
    code = f"import timerd as td; open({str(row)!r}, 'w').close(); td.client().fire('orders/42')"
    process = subprocess.Popen([sys.executable, "-c", code])
    assert client.wait_for(row.exists, keys="orders/42", timeout=PATIENCE_S)
    assert process.wait(PATIENCE_S) == 0
    assert client.wait_for(lambda: 0, keys="never", timeout=0.02) == 0


def test_wait_for_never_misses_an_event_between_check_and_registration(client: td.Client) -> None:
    state = {"rows": 0}

    def check() -> bool:
        if state["rows"] == 0:
            state["rows"] = 1  # somebody else writes, and fires, after this check has seen nothing
            other.fire_wait("rows")
            return False
        return True

    with td.connect() as other:
        start = time.monotonic()
        assert client.wait_for(check, keys="rows", timeout=PATIENCE_S)
        assert time.monotonic() - start < PATIENCE_S / 2


def test_kafkas_purgatory_calls(client: td.Client) -> None:
    ready: list[int] = []
    told: list[td.Delayed] = []
    purgatory = client.purgatory("produce")
    delayed = purgatory.try_complete_else_watch(lambda: bool(ready), "acks", timeout=PATIENCE_S, on_done=told.append)
    assert purgatory.check_and_complete("acks") == 1
    assert not delayed.wait(0.05)
    ready.append(1)
    eventually(lambda: purgatory.check_and_complete("acks") == 1 or delayed.done())
    assert delayed.wait(PATIENCE_S)
    assert delayed.state is State.COMPLETED
    expiring = purgatory.try_complete_else_watch(lambda: False, "never", timeout=0.02)
    assert expiring.wait(PATIENCE_S)
    assert expiring.state is State.EXPIRED
    cancelled = purgatory.try_complete_else_watch(lambda: False, "gone", timeout=None)
    assert purgatory.cancel_for_key_wait("gone") == 1
    assert cancelled.wait(PATIENCE_S)
    assert cancelled.state is State.CANCELLED
    assert told == [delayed]


def test_many_operations_are_waited_for(client: td.Client) -> None:
    operations = [client.register(f"w{index}", timeout=PATIENCE_S) for index in range(3)]
    client.fire("w1")
    done, pending = td.wait(operations, PATIENCE_S, until="first")
    assert (done, pending) == ([operations[1]], [operations[0], operations[2]])
    client.fire("w2")
    client.fire("w0")
    assert set(td.as_completed(operations, PATIENCE_S)) == set(operations)
    assert td.wait(operations, PATIENCE_S).pending == []
    with pytest.raises(TimeoutError):
        list(td.as_completed([client.register("never", timeout=None)], 0.01))


def test_a_mark_travels_to_another_process(client: td.Client) -> None:
    mark = pickle.loads(pickle.dumps(client.mark()))
    with td.connect() as other:
        other.fire_wait("k", value=b"between")
        assert client.register("k", timeout=PATIENCE_S, since=mark).result(PATIENCE_S).value == b"between"
        assert other.register("k", timeout=PATIENCE_S, since=mark).result(PATIENCE_S).value == b"between"


def test_the_operation_of_a_threaded_client_can_be_awaited(client: td.Client) -> None:
    async def main() -> td.Outcome:
        operation = client.register("k", timeout=PATIENCE_S)
        client.fire("k", value=b"v")
        return await operation

    assert asyncio.run(main()).value == b"v"


def test_a_callback_may_fire_and_register_but_not_wait(client: td.Client) -> None:
    seen: list[object] = []
    again = threading.Event()

    def callback(operation: td.Operation) -> None:
        client.fire("second")
        try:
            client.register("other", timeout=1).result()
        except RuntimeError as error:
            seen.append(error)
        again.set()

    second = client.register("second", timeout=PATIENCE_S)
    client.register("first", timeout=PATIENCE_S).add_done_callback(callback)
    client.fire("first")
    assert second.result(PATIENCE_S)
    assert again.wait(PATIENCE_S)
    assert len(seen) == 1


def test_many_threads_share_a_client(client: td.Client) -> None:
    failures: list[object] = []

    def work(thread: int) -> None:
        for index in range(200):
            operation = client.register(f"{thread}/{index}", timeout=PATIENCE_S)
            client.fire(f"{thread}/{index}", value=b"%d" % index)
            if operation.result(PATIENCE_S).value != b"%d" % index:
                failures.append((thread, index))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_no_daemon_is_said_within_the_stated_time(daemon: Daemon, runtime_dir: Path) -> None:
    with pytest.raises(td.TimerdUnavailableError, match=str(runtime_dir)):
        td.connect("absent")
    daemon.stop()
    start = time.monotonic()
    with pytest.raises(td.TimerdUnavailableError):
        td.connect(timeout=0.3)
    assert 0.2 < time.monotonic() - start < 2


def test_a_client_lives_through_a_restart_of_its_daemon(client: td.Client, daemon: Daemon) -> None:
    before = client.register("before", timeout=60, wait=True)
    daemon.stop()
    during = client.register("during", timeout=60)
    daemon.start()
    client.fire("before", value=b"1")
    client.fire("during", value=b"2")
    assert before.result(PATIENCE_S).value == b"1"
    assert during.result(PATIENCE_S).value == b"2"


def test_in_a_new_arena_what_was_waiting_fails_and_the_client_goes_on(client: td.Client, daemon: Daemon) -> None:
    purgatory = client.purgatory("p1")
    operation = client.register("k", timeout=60, wait=True)
    daemon.destroy()
    daemon.start()
    assert isinstance(operation.result(PATIENCE_S).error, td.SessionGoneError)
    eventually(lambda: client.state is LinkState.LIVE)
    again = purgatory.register("k", timeout=60)
    purgatory.fire("k")
    assert again.result(PATIENCE_S)


def test_backpressure_after_a_second_and_flush_in_time(client: td.Client, daemon: Daemon) -> None:
    client.flush()
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        client._protocol.window = 100
        start = time.monotonic()
        with pytest.raises(td.BackpressureError, match="100 of 100"):
            for _ in range(101):
                client.fire("k")
        assert 0.9 < time.monotonic() - start < 3
        with pytest.raises(td.TimerdUnavailableError):
            client.flush(0.1)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(PATIENCE_S)


def test_closing_acknowledges_first_and_fails_what_waits(daemon: Daemon) -> None:
    client = td.connect()
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


def test_a_fork_gets_a_client_of_its_own(daemon: Daemon) -> None:
    parent = td.client()
    assert td.client() is parent
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                parent.fire("k")
            except td.ClosedError:
                child = td.client()
                operation = child.register("child", timeout=PATIENCE_S)
                child.fire("child")
                if operation.result(PATIENCE_S) and child is not parent:
                    child.close()
                    os.write(write, b"ok")
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 2) == b"ok"
    os.close(read)
    operation = parent.register("k", timeout=PATIENCE_S)
    parent.fire("k")
    assert operation.result(PATIENCE_S)
    parent.close()


def test_a_fork_under_the_clients_lock_leaves_the_child_no_lock_to_wait_for(daemon: Daemon) -> None:
    parent = td.connect()
    pending = parent.register("k", timeout=60)
    batch = parent.register_many(["k", "l"], timeout=60)
    read, write = os.pipe()
    with parent._link.lock:  # another thread's, as far as the child can see
        pid = os.fork()
        if pid == 0:
            said = []
            for call in (
                lambda: parent.fire("k"),
                lambda: parent.register("k", timeout=1),
                lambda: parent.register_many(["k"], timeout=1),
                lambda: parent.advance("k", 1),
                parent.mark,
                parent.flush,
                lambda: pending.result().unwrap(),
                lambda: batch.outcomes()[1].unwrap(),
            ):
                signal.alarm(int(PATIENCE_S))  # a child that waits is ended
                try:
                    call()
                    said.append("nothing")
                except BaseException as error:
                    said.append(type(error).__name__)
            os.write(write, " ".join(said).encode())
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 1000).decode().split() == ["ClosedError"] * 8
    os.close(read)
    assert not pending.done()
    parent.close()


def test_whatever_a_callback_raises_others_are_told_and_the_client_lives(client: td.Client) -> None:
    first = client.register("k", timeout=PATIENCE_S)
    others = [client.register("k", timeout=PATIENCE_S) for _ in range(3)]
    told = threading.Event()

    def leave(_: td.Operation) -> None:
        raise SystemExit

    first.add_done_callback(leave)
    first.add_done_callback(lambda _: told.set())
    threads = [threading.Thread(target=other.result) for other in others]
    for thread in threads:
        thread.start()
    eventually(lambda: all(other._callbacks for other in others))
    client.fire("k")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert told.wait(PATIENCE_S)
    assert client.fire_wait("k") == 0


def test_close_does_not_wait_for_ever_for_a_callback(daemon: Daemon) -> None:
    client = td.connect()
    entered, leave = threading.Event(), threading.Event()
    operation = client.register("k", timeout=PATIENCE_S)
    operation.add_done_callback(lambda _: entered.set())
    operation.add_done_callback(lambda _: leave.wait())
    client.fire("k")
    assert entered.wait(PATIENCE_S)
    start = time.monotonic()
    client.close(0.1)
    assert time.monotonic() - start < PATIENCE_S / 2
    leave.set()
    eventually(lambda: client.closed)


def test_a_registration_that_was_not_answered_is_withdrawn(
    client: td.Client, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.flush()
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(td.Operation.accepted, "__defaults__", (0.05,))
        with pytest.raises(td.TimerdUnavailableError):
            client.register("k", timeout=60, wait=True)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(PATIENCE_S)
    assert client.fire_wait("k") == 0


def test_a_batch_that_met_backpressure_is_withdrawn_whole(client: td.Client, daemon: Daemon) -> None:
    client.flush()
    client._protocol.window = 100
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        with pytest.raises(td.BackpressureError):
            client.register_many(["k"] * 150, timeout=60)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    client.flush(PATIENCE_S)
    assert client.fire_wait("k") == 0
    assert not client._protocol.waiting


def test_the_time_in_a_full_window_counts_against_the_timeout_and_its_events_are_seen(
    client: td.Client, daemon: Daemon
) -> None:
    client.flush()
    with td.connect() as other:
        client._protocol.window = 10
        with client._link.lock:
            client._protocol.applied -= 10  # full, until it is put right
        started = time.monotonic_ns()
        registered: list[td.Operation] = []
        thread = threading.Thread(target=lambda: registered.append(client.register("k", timeout=PATIENCE_S)))
        thread.start()
        eventually(lambda: client._link._movers > 0)  # type: ignore[attr-defined]
        other.fire_wait("k", value=b"meanwhile")
        waited = time.monotonic_ns() - started
        with client._link.lock:
            client._protocol.applied += 10
            client._link._moved.notify_all()  # type: ignore[attr-defined]
        thread.join(PATIENCE_S)
        outcome = registered[0].result(PATIENCE_S)
        assert outcome.value == b"meanwhile"
        assert outcome._record is not None
        assert outcome._record.registered_ns < started + waited


def test_flush_says_when_it_cannot_know(client: td.Client, daemon: Daemon) -> None:
    daemon.kill()
    for _ in range(10):
        client.fire("k")
    daemon.destroy()
    daemon.start()
    with pytest.raises(td.SessionGoneError):
        client.flush(PATIENCE_S)
    eventually(lambda: client.state is LinkState.LIVE)
    client.fire("k")
    client.flush(PATIENCE_S)


def test_a_refused_registration_does_not_hide_the_one_that_keeps_the_id(client: td.Client) -> None:
    first = client.register("k", timeout=PATIENCE_S, id="x", wait=True)
    assert isinstance(client.register("k", timeout=1, id="x").result(PATIENCE_S).error, td.OperationExistsError)
    assert client.register("k", timeout=1, id="x", if_exists="keep") is first


def test_columns_are_copied_and_checked_before_anything_is_sent(client: td.Client) -> None:
    keys: list[Keys] = ["a", {"w": 5}, ("b", "c"), (name for name in "de")]
    payloads = [b"1", b"2", b"3", b"4"]
    batch = client.register_many(keys, timeout=0.01, payloads=payloads)
    keys.clear()
    payloads.clear()
    assert [(outcome.missing, outcome.payload) for outcome in batch.outcomes(PATIENCE_S)] == [
        (("a",), b"1"),
        (("w",), b"2"),
        (("b", "c"), b"3"),
        (("d", "e"), b"4"),
    ]
    issued = client._protocol.issued
    for wrong in ("abc", b"abc", {"a": 5}, {"a", "b"}, None, 5, ["a", 5], ["a", ""]):
        for when in (td.ANY, ALL):
            with pytest.raises((td.InvalidKeyError, td.InvalidValueError)):
                client.register_many(wrong, timeout=1, when=when)  # type: ignore[arg-type]
        with pytest.raises((td.InvalidKeyError, td.InvalidValueError)):
            client.fire_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(td.InvalidConditionError):
        client.register_many(["a"], timeout=1, when="any")  # type: ignore[arg-type]
    for timeout in (b"1", "1", [1, 2], [-1], [None, None]):
        with pytest.raises((td.TimeoutOutOfRangeError, td.InvalidValueError)):
            client.register_many(["a"], timeout=timeout)  # type: ignore[arg-type]
    for payload in ("x", None, 5, [None], ["x"], [b"x", b"y"]):
        with pytest.raises(td.InvalidValueError):
            client.register_many(["a"], timeout=1, payloads=payload)  # type: ignore[arg-type]
        with pytest.raises(td.InvalidValueError):
            client.fire_many(["a"], values=payload)  # type: ignore[arg-type]
    assert client._protocol.issued == issued


def test_what_a_script_fired_is_sent_before_it_ends(client: td.Client) -> None:
    operation = client.register("script", timeout=PATIENCE_S)
    code = "import timerd as td; c = td.client(); [c.fire('x') for _ in range(500)]; c.fire('script', value=b'last')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    assert operation.result(PATIENCE_S).value == b"last"


def test_autostart_starts_one_daemon_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL_BY_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    code = """
import timerd as td
with td.connect("auto", autostart=True, timeout=10) as client:
    operation = client.register("k", timeout=5)
    client.fire("k")
    assert operation.result(5)
    print(client._protocol.daemon_pid)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    pids = {process.communicate(timeout=30)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(pids) == 1
    paths = find_instance("auto")
    pid = int(pids.pop())
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not daemon_running(paths) and ended(pid))
    assert [file.name for file in paths.directory.iterdir()] == ["auto.lock"], "which is never unlinked"


def test_an_autostart_that_fails_says_how_to_see_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    monkeypatch.setenv("TIMERD_TICK", "an hour")
    with pytest.raises(td.TimerdUnavailableError, match="ended with status 2; run `timerd --instance auto`"):
        td.connect("auto", autostart=True)
    assert list(runtime_dir.iterdir()) == []


def test_a_lock_file_that_goes_with_its_holder_is_never_held_by_two(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(100):
            with _alone(tmp_path / "lock"):
                inside.append(number)
                most.append(len(inside))
                time.sleep(0.0001)
                inside.pop()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), max(most)) == (400, 1)
    assert list(tmp_path.iterdir()) == []


def test_150_clients_in_one_process(make_daemon: Callable[..., Daemon]) -> None:
    make_daemon("--clients=256", instance="many")
    clients = [td.connect("many", timeout=PATIENCE_S) for _ in range(150)]
    try:
        operations = [one.register("all", timeout=PATIENCE_S, wait=True) for one in clients]
        assert clients[0].fire_wait("all") == len(clients)
        assert all(operation.result(PATIENCE_S) for operation in operations)
    finally:
        for one in clients:
            one.close()


def test_asyncio_has_the_same_surface(daemon: Daemon) -> None:
    async def main() -> None:
        async with await aio.connect() as client:
            operation = client.register("k", timeout=PATIENCE_S)
            client.fire("k", value=b"v")
            assert (await operation).value == b"v"
            assert await client.fire_wait("k") == 0
            assert (await client.register("never", timeout=0.02)).state is State.EXPIRED
            assert await client.register("c", timeout=None).cancel()
            fetch = await client.purgatory("fetch")
            watched = fetch.register(["a", "b"], timeout=PATIENCE_S, when=ALL, id="i", wait=True)
            await watched.accepted()
            assert await fetch.reschedule("i", 60)
            fetch.fire("a")
            fetch.fire("b")
            assert (await watched.result(PATIENCE_S)).satisfied == ("a", "b")
            batch = client.register_many(["x", "y"], timeout=PATIENCE_S)
            client.fire_many(["y", "x"], values=[b"1", b"2"])
            assert await batch.values() == [b"2", b"1"]
            assert await client.wait_for(lambda: 0, keys="q", timeout=0.02) == 0
            several = [client.register(f"{index}", timeout=0.01) for index in range(3)]
            assert len([one async for one in aio.as_completed(several, PATIENCE_S)]) == 3
            with pytest.raises(TimeoutError):
                await client.register("t", timeout=5).result(0.01)
            await client.flush()

    asyncio.run(main())


def test_asyncio_has_a_client_of_each_process_and_loop(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> aio.Client:
        client, same = await asyncio.gather(aio.client(), aio.client())
        assert client is same
        operation = client.register("k", timeout=PATIENCE_S)
        client.fire("k")
        assert (await operation).state is State.COMPLETED
        client.register("for ever", timeout=None)
        return client

    async def use_again() -> aio.Client:
        await (await use()).close()
        return await use()

    first = asyncio.run(use())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert asyncio.run(use()) is not first
            assert first.closed
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not first.closed
    second = asyncio.run(use_again())
    assert first.closed, "its loop was closed"
    assert second is not first
    eventually(lambda: daemon.stats()["counters"]["clients"] == 1)
    second._looped.stop()
    assert not caplog.records


def test_asyncio_without_a_daemon_says_so_to_all_who_ask_and_tries_again(make_daemon: Callable[..., Daemon]) -> None:
    async def main() -> None:
        asked = await asyncio.gather(aio.client(), aio.client(), return_exceptions=True)
        assert [type(error) for error in asked] == [td.TimerdUnavailableError] * 2
        make_daemon()
        await (await aio.client()).close()

    asyncio.run(main())


def test_what_people_print_is_readable(client: td.Client) -> None:
    operation = client.register("k", timeout=None)
    batch = client.register_many(["a", "b"], timeout=None)
    client.fire("a")
    eventually(lambda: batch.settled() == 1)
    assert repr(batch) == "<ThreadedBatch 1 of 2 settled>"
    assert repr(client) == "<Client of 'default' live>"
    assert repr(client.purgatory("fetch")) == "<Purgatory 'fetch' of 'default'>"
    assert repr(operation) == "<ThreadedOperation 'k' PENDING>"
    assert operation.cancel()
    assert repr(operation.result(0).state) == "State.CANCELLED"

    async def main() -> str:
        async with await aio.connect() as other:
            return repr(other)

    assert asyncio.run(main()) == "<Client of 'default' live>"


def test_a_client_may_be_called_anything_that_can_be_printed(daemon: Daemon, runtime_dir: Path) -> None:
    name = "gunicorn: worker 7 (漢字)"
    command = [sys.executable, "-m", "timerd_client.timerctl", "clients", "--json"]
    with td.connect(name=name):
        (shown,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert shown["name"] == name


@pytest.mark.parametrize("timeout", ["x", -1, None, float("nan"), True])
def test_a_wrong_timeout_of_connect_is_a_named_error(daemon: Daemon, timeout: Any) -> None:
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        td.connect(timeout=timeout)
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        asyncio.run(aio.connect(timeout=timeout))


def test_a_column_says_which_of_its_rows_is_wrong(client: td.Client) -> None:
    columns: list[Any] = [["a", ""], [["a"], []], ["a", 5]]
    for keys in columns:
        with pytest.raises(td.InvalidKeyError, match=r"^keys\[1\]: "):
            client.register_many(keys, timeout=1)
    with pytest.raises(td.TimeoutOutOfRangeError, match=r"^timeout\[1\]: "):
        client.register_many(["a", "b"], timeout=[1, -1])
    with pytest.raises(td.PayloadTooLargeError, match=r"^payloads\[1\]: "):
        client.register_many(["a", "b"], timeout=1, payloads=[b"", bytes(65_537)])
    with pytest.raises(td.InvalidValueError, match=r"^amounts\[2\]: "):
        client.fire_many(["a", "b", "c"], amounts=[1, 2, 0])


def test_a_cancelled_await_cancels_its_operation(daemon: Daemon) -> None:
    async def main() -> None:
        async with await aio.connect() as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.register("k", timeout=None), 0.02)
            assert await client.fire_wait("k") == 0

    asyncio.run(main())


def test_awaits_that_are_cancelled_in_a_full_window_cancel_their_operations(daemon: Daemon) -> None:
    async def wait(client: aio.Client, key: str) -> td.Outcome:
        return await client.register(key, timeout=None)

    async def main() -> None:
        async with await aio.connect() as client:
            tasks = [asyncio.create_task(wait(client, "k")) for _ in range(50)]
            await asyncio.sleep(0)
            client._protocol.window = 50
            with pytest.raises(td.BackpressureError):
                client.fire("other")
            for task in tasks:
                task.cancel()
            assert {type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)} == {
                asyncio.CancelledError
            }
            await client.room()
            assert await client.fire_wait("k") == 0

    asyncio.run(main())


def test_a_client_whose_loop_is_closed_says_so(daemon: Daemon) -> None:
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(aio.connect())
    loop.close()
    for _ in range(2):
        with pytest.raises(td.ClosedError):
            client.fire("k")
        with pytest.raises(td.ClosedError):
            client.register("k", timeout=1)


def test_asyncio_backpressure_is_said_at_once_and_room_is_awaited(daemon: Daemon) -> None:
    async def main() -> None:
        async with await aio.connect() as client:
            client._protocol.window = 50
            with pytest.raises(td.BackpressureError, match="room"):
                for _ in range(51):
                    client.fire("k")
            assert await client.room() > 0
            client.fire("k")

    asyncio.run(main())


def test_a_thousand_asyncio_waits_in_one_loop(daemon: Daemon) -> None:
    async def main() -> None:
        async with await aio.connect() as client:
            operations = [client.register(f"w{index}", timeout=PATIENCE_S) for index in range(1000)]

            async def outcome(operation: aio.AioOperation) -> td.Outcome:
                return await operation

            waits = asyncio.gather(*map(outcome, operations))
            client.fire_many([f"w{index}" for index in range(1000)])
            assert all(await waits)

    asyncio.run(main())


def test_wait_for_says_that_the_daemon_is_gone_and_not_that_nothing_came(daemon: Daemon) -> None:
    with td.connect() as client:
        daemon.stop()
        with pytest.raises(td.TimerdUnavailableError):
            client.wait_for(lambda: False, "k", timeout=0.1)
        assert client.wait_for(lambda: True, "k", timeout=0.1)
        daemon.start()
