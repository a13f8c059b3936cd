"""The daemon of --own: for one run, in a new temporary directory. It leaves nothing behind."""

from __future__ import annotations

import math
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from timerctl.load.harness.marks import KEPT_NS
from timerd_client.discovery.autostart import await_daemon
from timerd_client.workload import NS, Workload
from timerd_shm.declare.errors import TimerdUnavailableError
from timerd_shm.declare.limits import CAPACITY_MAX, CAPACITY_MIN, RING_EVENTS_DEFAULT, RING_EVENTS_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.host.paths import InstancePaths, daemon_running, remove_arena
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

INSTANCE = "load"
PREFIX = "td-load-"
STARTING_S = 60.0  # a younger directory may be of a run whose daemon does not hold its lock yet
SPARE_NS = 500_000_000  # extra room, for the arrivals of this time: outcomes are under way, and a daemon may lag
END_TIMEOUT_S = 10.0


def capacity_of(workload: Workload, pending: int) -> int:
    """Operations that the run may hold at once."""
    at_once = round(workload.rate * (workload.timeout_ns + SPARE_NS) / NS)
    return max(min(at_once, workload.count) + pending + CAPACITY_MIN, 4_096)


def ring_of(workload: Workload) -> int:
    """The size of the ring: the events of 4 * KEPT_NS. Marks may be KEPT_NS old, and calls may wait for the window."""
    events = min(max(workload.rate * 4 * KEPT_NS / NS, RING_EVENTS_DEFAULT), RING_EVENTS_MAX)
    return 1 << math.ceil(math.log2(events))


def blocks_of(payload: int) -> int:
    """Blocks that a payload takes."""
    return -(-payload // BLOCK_DATA)


def flags_of(workload: Workload, pending: int) -> list[str]:
    """The flags of the run's daemon: room for the run, and no quota below that room."""
    capacity = min(capacity_of(workload, pending), CAPACITY_MAX)
    blocks = capacity * blocks_of(workload.payload) + ring_of(workload) + capacity
    return [
        f"--capacity={capacity}",
        f"--nodes={max(capacity * (workload.keys_per_op - 1), 1)}",
        f"--blocks={blocks}",
        f"--ring-events={ring_of(workload)}",
        f"--quota-operations={capacity}",
        f"--quota-outcomes={capacity}",
        f"--quota-bytes={blocks * BLOCK_DATA}",
    ]


def remove_remains() -> None:
    """Remove the directories of killed runs, once their daemons, which are ephemeral, have ended."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another run removes it as well
            status = directory.lstat()
            old = time.time() - status.st_mtime > STARTING_S
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            paths = InstancePaths(directory, INSTANCE)
            if old and ours and not daemon_running(paths):
                remove_arena(paths)
                shutil.rmtree(directory)


@contextmanager
def private_daemon(flags: Sequence[str]) -> Iterator[InstancePaths]:
    """Run a daemon with these flags. Gives its files. If it does not start: TimerdUnavailableError with its log."""
    remove_remains()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    paths = InstancePaths(directory, INSTANCE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMERD_")}
    log = directory / "log"
    try:
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                [sys.executable, "-m", "timerd", f"--instance={INSTANCE}", "--ephemeral", *flags],
                env=environment | {RUNTIME_DIR_VARIABLE: str(directory)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the load test alone
            )
        try:
            try:
                await_daemon(daemon, paths)
            except TimerdUnavailableError:
                raise TimerdUnavailableError(
                    f"the run's own daemon did not start: {log.read_text(errors='replace').strip()}"
                ) from None
            yield paths
        finally:
            daemon.terminate()
            try:
                daemon.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
    finally:
        # The daemon has removed its own arena, unless it was killed.
        remove_arena(paths)
        shutil.rmtree(directory, ignore_errors=True)
