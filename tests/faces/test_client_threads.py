"""The threaded client against a real daemon: features that it alone has.

Only the threaded client is shared by threads. Only it has `wait(until="first")`:
a loop has tasks and asyncio.wait() for that. Its operations can be awaited in a loop, which is not its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.faces import THREADED
from support.real.patience import PATIENCE_S, eventually
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
def test_errors_of_callbacks_are_logged_and_reach_nobody_else(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Of `on_complete`, and of a callback that is added when its operation has settled: it runs in the caller then."""

    def fails(_: object = None) -> None:
        raise ZeroDivisionError

    delayed = td.DelayedOperation(lambda: True, on_complete=fails)
    client.try_complete_else_watch(delayed, "k", timeout=PATIENCE_S)
    operation = client.register("k", timeout=0)
    assert operation.result(PATIENCE_S).state is State.EXPIRED
    operation.add_done_callback(fails)
    logged = [record for record in caplog.records if record.name == "timerd_client"]
    assert [record.exc_info and record.exc_info[0] for record in logged] == [ZeroDivisionError] * 2


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
