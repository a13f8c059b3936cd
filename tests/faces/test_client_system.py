"""The threaded client against a real daemon: what each call does."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from daemons import Daemon
from patience import PATIENCE_S, eventually
from timerd import ALL, ALL_SETTLED, State, at_least, total
from timerd_client import aio


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


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


def test_a_refused_registration_does_not_hide_the_one_that_keeps_the_id(client: td.Client) -> None:
    first = client.register("k", timeout=PATIENCE_S, id="y", wait=True)
    assert isinstance(client.register("k", timeout=1, id="y").result(PATIENCE_S).error, td.OperationExistsError)
    assert client.register("k", timeout=1, id="y", if_exists="keep") is first


@pytest.mark.parametrize("timeout", ["x", -1, float("nan"), True])
def test_a_wrong_timeout_of_connect_is_a_named_error(daemon: Daemon, timeout: Any) -> None:
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        td.connect(timeout=timeout)
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        asyncio.run(aio.connect(timeout=timeout))
