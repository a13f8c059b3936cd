"""Commands that are issued while a client is being closed: each command is refused, or arrives.

In the threaded face, threads race with a close. In the asyncio face, tasks do. So each face has a test of its own.
Only a task can be cancelled while it awaits. Only a threaded client still runs when its process ends: a loop has ended
by then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import timerd_client as td
from support.real.daemons import Daemon
from support.real.faces import THREADED, Face
from support.real.patience import PATIENCE_S, eventually, stop
from support.real.registries import serve
from timerd_client import aio
from timerd_client.link.process_end import ProcessEnd
from timerd_client.threaded.seat import Seat
from timerd_shm.declare.errors import ClosedError

# Threads fire until they are refused, while another thread closes the client. Prints how many fires returned.
RACE = """
import sys, threading
import timerd_client as td

sys.setswitchinterval(1e-5)
returned = 0
for round in range({rounds}):
    client = td.connect()
    counts = [0] * 3
    begun = threading.Barrier(len(counts) + 1)

    def fire(mine):
        begun.wait()
        try:
            while True:
                client.fire("k")
                counts[mine] += 1
        except td.ClosedError:
            pass

    threads = [threading.Thread(target=fire, args=(mine,)) for mine in range(len(counts))]
    for thread in threads:
        thread.start()
    begun.wait()
    while sum(counts) < 1_000:
        pass
    client.close()
    for thread in threads:
        thread.join()
    returned += sum(counts)
print(returned)
"""


def events_of(client: td.Client) -> int:
    """The number of events that the daemon has taken."""
    return client.mark().sequence


@THREADED
def test_calls_that_returned_before_a_close_in_another_thread_are_applied(client: td.Client) -> None:
    before = events_of(client)
    ran = subprocess.run(
        [sys.executable, "-c", RACE.format(rounds=6)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S * 4,
    )
    assert events_of(client) - before == int(ran.stdout)


@pytest.mark.long
@THREADED
def test_events_that_tasks_fired_before_a_close_are_applied(client: td.Client) -> None:
    before = events_of(client)

    async def fire(closing: aio.Client) -> int:
        fired = 0
        try:
            while True:
                await closing.room()
                closing.fire("k")
                fired += 1
                if fired % 10 == 0:
                    await asyncio.sleep(0)
        except ClosedError:
            return fired

    async def race() -> int:
        closing = await aio.connect()
        tasks = [asyncio.create_task(fire(closing)) for _ in range(3)]
        await asyncio.sleep(0.02)
        await closing.close()
        return sum(await asyncio.gather(*tasks))

    fired = sum(asyncio.run(race()) for _ in range(5))
    assert fired and events_of(client) - before == fired


def test_a_caller_that_waits_for_room_gets_an_error_when_the_client_closes(daemon: Daemon, face: Face) -> None:
    client = face.connect()
    client._protocol.ledger.window = 4
    wait_for_room = (lambda: client.fire("k")) if face.waits_for_room else client.room
    stop(daemon.pid)
    try:
        for _ in range(4):
            client.fire("k")
        refused: list[Exception] = []

        def wait() -> None:
            try:
                wait_for_room()
            except td.TimerdError as error:
                refused.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: client._link.waiters.some_wait())
        with pytest.raises(td.TimerdUnavailableError, match="4 commands are unacknowledged"):
            client.close(timeout=0.2)
        waiting.join(PATIENCE_S)
        assert [type(error) for error in refused] == [ClosedError]
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_an_await_that_is_cancelled_while_its_client_closes_is_cancelled(daemon: Daemon) -> None:
    async def main() -> None:
        client = await aio.connect()
        operation = client.register("k", timeout=PATIENCE_S)
        waiting = asyncio.ensure_future(operation)
        await client.flush()
        stop(daemon.pid)
        try:
            client.fire("other")
            closing = asyncio.create_task(client.close(timeout=1.0))
            while not client.closed:
                await asyncio.sleep(0)
            assert not closing.done()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(td.TimerdUnavailableError):
                await closing
        finally:
            os.kill(daemon.pid, signal.SIGCONT)

    asyncio.run(main())


def test_a_handler_that_runs_while_its_client_is_closed_may_fire(daemon: Daemon, face: Face, client: Any) -> None:
    worker = face.connect(group="closing")
    runs, goes_on = threading.Event(), threading.Event()

    def last(call: Any) -> None:
        runs.set()
        goes_on.wait(PATIENCE_S)
        worker.fire("done", value=b"by the last")

    serve(worker, "last", last)

    operation = client.register_wait("done", timeout=PATIENCE_S)
    worker.call_later("last", 0)
    assert runs.wait(PATIENCE_S)
    closing = threading.Thread(target=worker.close)
    closing.start()
    time.sleep(0.02)
    goes_on.set()
    closing.join(PATIENCE_S)
    assert operation.result(PATIENCE_S).value == b"by the last"
    with pytest.raises(ClosedError):
        worker.fire("done")


# the end of the process -------------------------------------------------------------------------------------------

FOLLOWS = """
import threading
import timerd_client as td
client = td.connect()
subscription = client.subscribe("k")
def follow():
    for item in subscription:
        pass
begun = threading.Event()
threading.Thread(target=lambda: (begun.set(), follow()), daemon=True).start()
begun.wait()
client.fire_wait("k")
"""


@pytest.mark.long
def test_a_subscription_of_a_daemon_thread_ends_with_its_process_without_a_message(daemon: Daemon) -> None:
    ran = subprocess.run([sys.executable, "-c", FOLLOWS], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stderr) == (0, "")


@THREADED
def test_a_caller_that_receives_must_not_wait_for_another_receiver_at_the_end(
    client: td.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`must_not_wait()` is true in the thread that receives, and only while it receives."""
    seen: list[bool] = []
    sleep = Seat.sleep

    def look(seat: Seat, timeout_ns: int) -> list[int]:
        seen.append(client._link.waiters.must_not_wait())
        return sleep(seat, timeout_ns)

    monkeypatch.setattr(Seat, "sleep", look)
    eventually(lambda: (client.register("k", timeout=0.02).result(PATIENCE_S), seen)[1])
    assert all(seen)
    assert not client._link.waiters.must_not_wait()


@THREADED
def test_a_process_at_its_end_waits_for_a_daemon_that_answers(client: td.Client) -> None:
    link = client._link
    send, lost_until = link.connection.sockets.send, time.monotonic() + 1.2
    link.connection.sockets.send = lambda frame: time.monotonic() < lost_until or send(frame)  # type: ignore[method-assign]
    client.fire("k")
    ProcessEnd().flush([link])
    assert link.protocol.ledger.applied == link.protocol.ledger.issued
    assert time.monotonic() >= lost_until
