"""The threaded client against a real daemon: features that it alone has.

Only in the threaded client may several threads wait. Any loop can await its operations, although this client has no
loop. The `wait(until="first")` of the asyncio client is tested in test_awaits.py.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

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
        operation.result(PATIENCE_S)  # this does not wait, so there is no warning

    asyncio.run(wait())


@THREADED
def test_errors_of_callbacks_are_logged_and_reach_nobody_else(
    client: td.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Also errors of `on_complete`, and of a callback that runs at once, because its operation has settled before."""

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


# Like the kernel of a notebook, this program runs each cell in its event loop.
NOTEBOOK = """
import asyncio
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell(config=config)

async def run(*cells):
    for cell in cells:
        (await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))).raise_error()

asyncio.run(run(
    "import asyncio, timerd as td; client = td.connect(timeout=30); loop = asyncio.get_running_loop()",
    "client.fire_wait('k', timeout=30)",
    "client.register('k', timeout=0.01).result()",
    "async def blocks(): client.fire_wait('k', timeout=30)",
    *["await asyncio.create_task(blocks())"] * TASKS,
))
"""


@pytest.mark.parametrize(("tasks", "warnings"), [(0, 0), (1, 1)], ids=["cells", "a task"])
def test_a_cell_of_a_notebook_waits_without_a_warning_and_a_task_waits_with_one(
    daemon: Daemon, tmp_path: Path, tasks: int, warnings: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK.replace("TASKS", str(tasks))],
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the loop stands still meanwhile") == warnings


# a callback that waits for a lock of the caller -----------------------------------------------------------------------


def flush_one(client: td.Client) -> None:
    client.fire("another")
    client.flush(timeout=0.5)


WAITS: dict[str, Callable[[td.Client], object]] = {
    "fire_wait": lambda client: client.fire_wait("another", timeout=0.5),
    "flush": flush_one,
    "result": lambda client: client.register("another", timeout=0.1).result(0.5),
    "outcomes": lambda client: client.register_many(["another"], timeout=0.1).outcomes(0.5),
    "check": lambda client: client.check_and_complete("another", timeout=0.5),
    "wait_for": lambda client: client.wait_for(lambda: False, "another", timeout=0.1),
}


@THREADED
@pytest.mark.parametrize("call", WAITS)
def test_a_wait_under_a_lock_that_a_callback_wants_names_the_callback_and_not_the_daemon(
    client: td.Client, call: str
) -> None:
    entered, lock = threading.Event(), threading.Lock()

    def callback(_: td.Operation) -> None:
        entered.set()
        with lock:
            pass

    client.register("k", timeout=PATIENCE_S).add_done_callback(callback)
    with lock:
        client.fire("k")
        assert entered.wait(PATIENCE_S)
        time.sleep(0.2)  # after 0.1 s, a callback that still runs counts as blocked
        with pytest.raises((td.TimerdUnavailableError, td.CheckIncompleteError, TimeoutError)) as raised:
            WAITS[call](client)
    message = str(raised.value)
    assert f"a callback of this client has stood in callback() at {__file__}:" in message
    assert "does it wait for a lock that you hold?" in message
    assert "start it if it has ended" not in message and "is it running" not in message
    assert client.fire_wait("another", timeout=PATIENCE_S) == 0


@THREADED
def test_a_wait_under_the_lock_of_a_delayed_operation_names_that_lock(client: td.Client) -> None:
    lock, evaluated = threading.RLock(), threading.Event()

    def try_complete() -> bool:
        evaluated.set()
        return False

    client.try_complete_else_watch(td.DelayedOperation(try_complete, lock=lock), "k", timeout=PATIENCE_S)
    evaluated.clear()

    def is_named() -> bool:
        try:
            client.fire_wait("k", timeout=0.5)
        except td.TimerdUnavailableError as error:
            return "stood at the lock of a delayed operation for" in str(error)
        return False

    with lock:
        eventually(is_named)  # the client's thread comes to the lock after the first event
    assert evaluated.wait(PATIENCE_S)
