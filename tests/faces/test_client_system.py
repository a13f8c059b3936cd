"""The threaded client against a real daemon: what it alone does. test_both_faces.py has what both faces do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from daemons import Daemon
from faces import THREADED
from patience import PATIENCE_S, eventually
from timerd import State
from timerd_client import aio


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


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


@THREADED
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


@THREADED
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


@THREADED
def test_the_operation_of_a_threaded_client_can_be_awaited(client: td.Client) -> None:
    async def main() -> td.Outcome:
        operation = client.register("k", timeout=PATIENCE_S)
        client.fire("k", value=b"v")
        return await operation

    assert asyncio.run(main()).value == b"v"


@THREADED
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


@THREADED
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


@THREADED
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


@pytest.mark.parametrize("timeout", ["x", -1, float("nan"), True])
def test_a_wrong_timeout_of_connect_is_a_named_error(daemon: Daemon, timeout: Any) -> None:
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        td.connect(timeout=timeout)
    with pytest.raises(td.TimeoutOutOfRangeError, match="timeout="):
        asyncio.run(aio.connect(timeout=timeout))
