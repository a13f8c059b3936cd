"""A handler that blocks its process: its call runs once, unless the process is stopped, or its takeover is over."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually, stop
from timerd_shm.declare.states import ClientFlag, ClientState, OpState
from timerd_shm.host.paths import read_location
from timerd_shm.read.reader import ArenaReader
from timerd_wire.transports import TRANSPORTS

LEASE = "--lease=2s"
SHORT = 4.0  # seconds: a short takeover

# The handler of each program runs until it gets a byte on stdin, and prints when it begins and ends.
THREADED = """
import ctypes, sys, threading
import timerd as td

calls = td.Calls(group="web")
libc = ctypes.PyDLL(None)  # its functions keep the GIL

@calls.handler("job")
def job(call):
    print("began", call.deliveries, flush=True)
    libc.read(0, ctypes.create_string_buffer(1), 1)
    print("ended", call.deliveries, flush=True)

client = td.connect(group="web", name="worker", timeout=30, takeover=float(sys.argv[1]), transport=sys.argv[2])
client.serve(calls)
print("serves", flush=True)
threading.Event().wait()
"""
LOOP = """
import asyncio, os, sys
import timerd as td

calls = td.Calls(group="web")

@calls.handler("job")
async def job(call):
    print("began", call.deliveries, flush=True)
    os.read(0, 1)  # blocks the loop
    print("ended", call.deliveries, flush=True)

async def main():
    async with td.aio.connect(
        group="web", name="worker", timeout=30, takeover=float(sys.argv[1]), transport=sys.argv[2]
    ) as client:
        client.serve(calls)
        print("serves", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Worker:
    """A process that serves the calls named "job"."""

    def __init__(self, script: str, takeover: float, transport: str) -> None:
        command = [sys.executable, "-c", script, str(takeover), transport]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self.line() == "serves"

    def line(self) -> str:
        """The next line that the worker prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip()

    def let_go_on(self) -> None:
        """Send the byte for which the worker's handler waits."""
        assert self.process.stdin is not None
        self.process.stdin.write(b".")

    def end(self) -> str:
        """Kill the worker. Returns its output after the last `line`."""
        self.process.kill()
        return self.process.communicate()[0].decode()


MakeWorker = Callable[..., Worker]


@pytest.fixture
def worker() -> Iterator[MakeWorker]:
    """Starts workers. Each already serves when it is returned."""
    made: list[Worker] = []

    def start(script: str = THREADED, takeover: float = 300, transport: str = "zeromq") -> Worker:
        made.append(Worker(script, takeover, transport))
        return made[-1]

    yield start
    for each in made:
        each.end()


def workers(daemon: Daemon) -> list[tuple[ClientState, ClientFlag]]:
    """State and flags of each worker's client."""
    with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
        return [
            (ClientState(client.state), ClientFlag(client.flags))
            for client in reader.clients
            if client.name[: client.name_length] == b"worker" and client.state != ClientState.FREE
        ]


def calls_left(daemon: Daemon) -> int:
    with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
        return sum(op.state != OpState.FREE for op in reader.ops.used())


SILENT_AND_KEEPS = (ClientState.SILENT, ClientFlag.KEEPS)
LIVE = (ClientState.LIVE, ClientFlag(0))


@pytest.mark.long
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "script", [THREADED, LOOP], ids=["a handler that keeps the GIL", "a handler that blocks its loop"]
)
def test_a_call_of_a_process_that_is_silent_and_runs_is_not_run_by_another_process(
    make_daemon: Callable[..., Daemon], worker: MakeWorker, script: str, transport: str
) -> None:
    daemon = make_daemon(LEASE)
    with td.connect(group="web", timeout=PATIENCE_S) as caller:
        first = worker(script, transport=transport)
        caller.call_later_wait("job", 0)
        assert first.line() == "began 1"
        second = worker(script, transport=transport)
        eventually(
            lambda: workers(daemon) == [SILENT_AND_KEEPS, LIVE], "the first worker is not silent, or keeps nothing"
        )
        first.let_go_on()
        assert first.line() == "ended 1"
        eventually(lambda: calls_left(daemon) == 0, "the call is not done")
        assert first.end() == "", "the call ran twice"
        caller.call_later_wait("job", 0)
        assert second.line() == "began 1", "the second worker got the first call, too"


def test_a_call_of_a_process_that_is_stopped_is_run_by_another_process_after_the_lease(
    make_daemon: Callable[..., Daemon], worker: MakeWorker
) -> None:
    daemon = make_daemon(LEASE)
    with td.connect(group="web", timeout=PATIENCE_S) as caller:
        first = worker()
        caller.call_later_wait("job", 0)
        assert first.line() == "began 1"
        second = worker()
        stop(first.process.pid)
        assert second.line() == "began 2"
        assert workers(daemon)[0] == (ClientState.SILENT, ClientFlag(0))  # by now the second worker blocks, too


@pytest.mark.long
def test_a_process_that_is_stopped_while_it_keeps_its_call_loses_it(
    make_daemon: Callable[..., Daemon], worker: MakeWorker
) -> None:
    daemon = make_daemon(LEASE)
    with td.connect(group="web", timeout=PATIENCE_S) as caller:
        first = worker()
        caller.call_later_wait("job", 0)
        assert first.line() == "began 1"
        second = worker()
        eventually(
            lambda: workers(daemon) == [SILENT_AND_KEEPS, LIVE], "the first worker is not silent, or keeps nothing"
        )
        stop(first.process.pid)
        assert second.line() == "began 2"


@pytest.mark.long
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_of_a_process_that_is_silent_for_its_takeover_is_run_by_another_process(
    make_daemon: Callable[..., Daemon], worker: MakeWorker, transport: str
) -> None:
    daemon = make_daemon(LEASE)
    with td.connect(group="web", timeout=PATIENCE_S) as caller:
        first = worker(takeover=SHORT, transport=transport)
        caller.call_later_wait("job", 0)
        assert first.line() == "began 1"
        second = worker(transport=transport)
        assert second.line() == "began 2"
    (silent_s,) = re.findall(
        r"has been silent for (\d+) s: what it holds of its group goes to other members", daemon.log
    )
    assert int(silent_s) >= SHORT


def test_the_daemon_gets_the_takeover_of_a_client_of_either_face(daemon: Daemon) -> None:
    async def in_a_loop() -> None:
        async with td.aio.connect(timeout=PATIENCE_S, takeover=2.0001, name="loop"):
            assert takeovers(daemon)["loop"] == 2_001

    with (
        td.connect(timeout=PATIENCE_S, name="default"),
        td.connect(timeout=PATIENCE_S, name="thread", takeover=timedelta(minutes=10)),
    ):
        asyncio.run(in_a_loop())
        found = takeovers(daemon)
    assert (found["default"], found["thread"]) == (300_000, 600_000)


def takeovers(daemon: Daemon) -> dict[str, int]:
    """The takeover of each client in ms, by name."""
    with ArenaReader.from_path(read_location(daemon.paths).path) as reader:
        return {client.name[: client.name_length].decode(): client.takeover_ms for client in reader.clients}


def test_the_takeover_of_a_client_has_limits_and_is_checked(daemon: Daemon) -> None:
    for wrong in (0, 1.9, 3601, -1, float("nan"), "300", True):
        with pytest.raises(td.TimeoutOutOfRangeError, match=r"takeover=.*: give 2 to 3600 s"):
            td.Client(takeover=wrong)  # type: ignore[arg-type]
        with pytest.raises(td.TimeoutOutOfRangeError, match="takeover="):
            td.aio.connect(takeover=wrong)  # type: ignore[arg-type]
