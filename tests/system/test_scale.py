"""Many clients and many waits: up to 500 clients and 50,000 asyncio waits in two processes, and their cost.

Each process holds up to 250 clients on one event loop and waits for 25,000 operations at once. A client of the *other*
process fires each key. Every operation must complete, with the value that was fired for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from support.fakes.descriptors import BESIDE
from support.real.daemons import Daemon
from support.real.trees import python_path
from timerd.host.descriptors import CONNECTIONS_PER_CLIENT, DESCRIPTORS_BESIDE

WAITS = 100  # the operations of each client
DESCRIPTORS_PER_CLIENT_MAX = 8
BYTES_PER_WAIT_MAX = 8_192
TIMEOUT_S = 60.0


async def wait_and_fire(own: str, other: str, count: int) -> dict[str, int]:
    """One of the two processes: it registers and awaits its own keys, and fires the other process's keys."""
    from timerd_client import aio

    process = psutil.Process()
    before, opened = process.memory_info().rss, process.num_fds()
    clients = [await aio.connect(timeout=20) for _ in range(count)]
    connected = process.memory_info().rss
    waits = []
    for number, client in enumerate(clients):
        for wait in range(WAITS):
            waits.append(asyncio.ensure_future(client.register(f"{own}/{number}/{wait}", timeout=TIMEOUT_S)))
    await asyncio.gather(*(client.flush() for client in clients))
    found = {"descriptors": process.num_fds() - opened, "rss": process.memory_info().rss}
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for number, client in enumerate(clients):
        for wait in range(WAITS):
            client.fire(f"{other}/{number}/{wait}", value=f"{other}/{number}/{wait}".encode())
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*waits)
    right = sum(
        bool(outcome) and outcome.value == f"{own}/{index // WAITS}/{index % WAITS}".encode()
        for index, outcome in enumerate(outcomes)
    )
    await asyncio.gather(*(client.close() for client in clients))
    return {
        "right": right,
        "descriptors_per_client": found["descriptors"] // count,
        "bytes_per_client": (connected - before) // count,
        "bytes_per_wait": (found["rss"] - connected) // (count * WAITS),
    }


MANY = 250  # clients of each process
FILES = pytest.mark.files(DESCRIPTORS_PER_CLIENT_MAX * MANY + BESIDE)


@pytest.mark.long
@pytest.mark.parametrize("count", [25, pytest.param(MANY, marks=[pytest.mark.long, FILES])])
def test_two_processes_hold_many_clients_and_many_pending_operations(
    make_daemon: Callable[..., Daemon], tmp_path: Path, count: int
) -> None:
    arena = f"--arena-file={tmp_path}/arena"  # 28 MiB: not in /dev/shm, which other tests use at the same time
    clients = 2 * count + 12
    daemon = make_daemon(
        "--capacity=65536", "--blocks=65536", f"--clients={clients}", f"--quota-clients={clients}", arena
    )
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, own, other, str(count)],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for own, other in (("a", "b"), ("b", "a"))
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        stats = daemon.stats()
        assert stats["counters"]["pending"] == 2 * count * WAITS
        assert stats["counters"]["clients"] == 2 * count
        opened = psutil.Process(daemon.pid).num_fds()
        print(f"daemon: {opened} descriptors")
        per_client = CONNECTIONS_PER_CLIENT + 1  # one more connection, to NAME.live
        assert 0 < opened - 2 * count * per_client <= DESCRIPTORS_BESIDE, "not three descriptors for each client"
        assert per_client == 3
        results = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            out, _ = process.communicate(timeout=TIMEOUT_S)
            results.append(json.loads(out))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for result in results:
        print(result)
        assert result["right"] == count * WAITS, result
        assert result["descriptors_per_client"] <= DESCRIPTORS_PER_CLIENT_MAX, result
        assert result["bytes_per_wait"] <= BYTES_PER_WAIT_MAX, result
    counters = daemon.stats()["counters"]
    assert counters["completed"] == 2 * count * WAITS
    assert counters["pending"] == counters["watched"] == 0


if __name__ == "__main__":
    print(json.dumps(asyncio.run(wait_and_fire(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
