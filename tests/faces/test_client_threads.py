"""The threaded client against a real daemon: what it alone does.

Only the threaded client is shared by threads. Only it has `Delayed`, which calls `on_done`, and `wait(until="first")`:
a loop has tasks and asyncio.wait() for that. Its operations can be awaited in a loop, which is not its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import timerd as td
from daemons import Daemon
from faces import THREADED
from patience import PATIENCE_S, eventually
from timerd import State


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@THREADED
@pytest.mark.parametrize("way", ["result", "cancel_wait", "fire_wait"])
def test_a_wait_in_the_thread_of_a_loop_warns_where_it_is_called(client: td.Client, way: str) -> None:
    operation = client.register("k", timeout=60)
    ways: dict[str, Callable[[], object]] = {
        "result": lambda: operation.result(PATIENCE_S),
        "cancel_wait": lambda: operation.cancel_wait(),
        "fire_wait": lambda: client.fire_wait("k"),
    }

    async def wait() -> None:
        with pytest.warns(RuntimeWarning, match=r"the loop stands still.*use td\.aio") as warned:
            if way == "result":
                threading.Timer(0.05, lambda: client.fire("k")).start()
            ways[way]()
        assert [warning.filename for warning in warned] == [__file__]
        eventually(operation.done)
        operation.result(PATIENCE_S)  # this waits for nothing, so nothing is warned of

    asyncio.run(wait())


@THREADED
def test_the_calls_of_kafkas_purgatory_work(client: td.Client) -> None:
    ready: list[int] = []
    told: list[td.Delayed] = []
    purgatory = client.purgatory("produce")
    delayed = purgatory.try_complete_else_watch(lambda: bool(ready), "acks", timeout=PATIENCE_S, on_done=told.append)
    assert purgatory.check_and_complete("acks") == 1
    assert not delayed.settled(0.05)
    ready.append(1)
    eventually(lambda: purgatory.check_and_complete("acks") == 1 or delayed.done())
    assert delayed.settled(PATIENCE_S)
    assert delayed.state is State.COMPLETED
    expiring = purgatory.try_complete_else_watch(lambda: False, "never", timeout=0.02)
    assert expiring.settled(PATIENCE_S)
    assert expiring.state is State.EXPIRED
    cancelled = purgatory.try_complete_else_watch(lambda: False, "gone", timeout=None)
    assert purgatory.cancel_for_key_wait("gone") == 1
    assert cancelled.settled(PATIENCE_S)
    assert cancelled.state is State.CANCELLED
    assert told == [delayed]


@THREADED
def test_errors_of_callbacks_are_logged_and_reach_nobody_else(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Of `on_done`, and of a callback that is added when its operation has settled: it runs in the caller then."""

    def fails(_: object) -> None:
        raise ZeroDivisionError

    delayed = client.try_complete_else_watch(lambda: False, "k", timeout=PATIENCE_S, on_done=fails)
    assert delayed.cancel() and delayed.state is State.CANCELLED
    operation = client.register("k", timeout=0)
    assert operation.result(PATIENCE_S).state is State.EXPIRED
    operation.add_done_callback(fails)
    logged = [record for record in caplog.records if record.name == "timerd_client"]
    assert [record.exc_info and record.exc_info[0] for record in logged] == [ZeroDivisionError] * 2


@THREADED
def test_a_delayed_operation_looks_again_though_the_window_is_full(client: td.Client) -> None:
    """It registers anew in the client's thread, which cannot wait for room."""
    ledger, looks = client._protocol.ledger, list[int]()
    window = ledger.window

    def look() -> bool:
        looks.append(len(looks))
        ledger.window = 0 if len(looks) == 2 else window
        return len(looks) == 3

    delayed = client.try_complete_else_watch(look, "k", timeout=PATIENCE_S)
    client.fire("k")
    eventually(lambda: len(looks) == 2)
    ledger.window = window
    eventually(lambda: client.fire_wait("k") == 1)
    assert delayed.settled(PATIENCE_S) and (delayed.state, looks) == (State.COMPLETED, [0, 1, 2])


@THREADED
def test_the_first_of_many_operations_is_waited_for(client: td.Client) -> None:
    operations = [client.register(f"w{index}", timeout=PATIENCE_S) for index in range(3)]
    client.fire("w1")
    done, pending = td.wait(operations, PATIENCE_S, until="first")
    assert (done, pending) == ([operations[1]], [operations[0], operations[2]])


@THREADED
def test_the_operation_of_a_threaded_client_can_be_awaited(client: td.Client) -> None:
    async def main() -> td.Outcome:
        operation = client.register("k", timeout=PATIENCE_S)
        client.fire("k", value=b"v")
        return await operation

    assert asyncio.run(main()).value == b"v"


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
