"""Starting a daemon if none runs. If several processes try at the same time, one daemon is started."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from timerd_shm.declare.errors import ResourceLimitError, TimerdUnavailableError
from timerd_shm.host.lock import open_lock
from timerd_shm.host.paths import InstancePaths, listens
from timerd_shm.host.places import places
from timerd_shm.host.search import make_instance

from .find_daemon import find
from .target import Target

# How long a daemon that was started here may take until it serves. The timeout of connect() begins when it serves.
AUTOSTART_TIMEOUT_S = 15.0
AUTOSTART_POLL_S = 0.01
LAST_BYTES = 4_096
EXIT_RUNNING = 3  # the exit status of a daemon whose instance another daemon has
# Variables that the daemon must not inherit: systemd's sockets and watchdog, and variables of Spark's workers.
NOT_INHERITED = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_UNIX_DOMAIN_")

_children: list[subprocess.Popen[bytes]] = []  # kept, because subprocess warns when a running process is forgotten


def start_daemon(target: Target) -> InstancePaths:
    """Start the instance's daemon unless it runs, and return when it serves. Raises TimerdUnavailableError.

    If several processes call this at the same time, a lock file lets one of them start the daemon. The place of the
    file depends only on the user (places.py) and on the directory that is given.
    """
    if found := _running(target):
        return found
    paths = make_instance(target.instance, target.runtime_dir)
    with _alone(_place_of_lock(target.instance, target.runtime_dir) / f"{paths.instance}.autostart"):
        if found := _running(target):
            return found
        # Without -P, Python would import a folder `timerd` of the caller's directory instead of the package.
        # The daemon logs to a file without a name. It ends 10 s after its last client, so the file stays small.
        with tempfile.TemporaryFile() as said:
            daemon = subprocess.Popen(
                # The directory is given, so the daemon looks for no place itself.
                [
                    *(sys.executable, "-P", "-m", "timerd", "--ephemeral"),
                    *("--instance", paths.instance, "--runtime-dir", str(paths.directory)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                close_fds=True,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)},
            )
            free_memory_of(daemon.pid)
            await_daemon(daemon, paths, said)
        _children.append(daemon)
        return paths


def _running(target: Target) -> InstancePaths | None:
    """The instance, if its daemon runs in one of the places where this process looks."""
    try:
        paths, is_running = find(target)
    except (TimerdUnavailableError, PermissionError):
        return None  # make_instance() makes a place, if this user may
    return paths if is_running else None


def _place_of_lock(instance: str | None, runtime_dir: str | None) -> Path:
    """The last place: /tmp/timerd-UID, or the directory that is given. All processes of the user agree on it.

    If that place cannot be used, because /tmp is read-only or another user has made the directory: the place before it.
    """
    for place in places(runtime_dir)[:0:-1]:
        with suppress(ResourceLimitError):
            return make_instance(instance, str(place)).directory
    return make_instance(instance, runtime_dir).directory


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`. The file exists only while the lock is held.

    A process that has waited may get the lock of a file that the last holder has removed. Then it tries again. So two
    processes never hold the lock at the same time.
    """
    while True:
        descriptor = open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                mine = os.path.samestat(os.stat(path), os.fstat(descriptor))
            except FileNotFoundError:
                mine = False
            if mine:
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def free_memory_of(pid: int) -> None:
    """Lift the bound on the daemon's address space: Spark sets one for its workers (spark.executor.pyspark.memory)."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    for wanted in (resource.RLIM_INFINITY, most):  # a process without a capability cannot exceed its hard limit
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_AS, (wanted, wanted))
            return


def await_daemon(daemon: subprocess.Popen[bytes], paths: InstancePaths, said: BinaryIO | None = None) -> None:
    """Wait until a daemon that was just started serves. Raises TimerdUnavailableError if it ends or is too slow.

    `said` is the file to which the daemon writes its log.
    """
    end = time.monotonic() + AUTOSTART_TIMEOUT_S
    while not (listens(paths) and paths.arena.exists() and paths.commands.exists() and paths.outcomes.exists()):
        # Another daemon, which was started by hand, may still be opening the arena. Then ours has ended with
        # EXIT_RUNNING, and we wait for the other.
        if daemon.poll() not in (None, EXIT_RUNNING):
            raise TimerdUnavailableError(
                f"the daemon that was started for instance {paths.instance!r} ended with status "
                f"{daemon.returncode}: {last_line(said) or f'run {paths.command} to see why'}",
                in_doubt=False,
            )
        if time.monotonic() >= end:
            raise TimerdUnavailableError(
                f"the daemon that was started for instance {paths.instance!r} (pid {daemon.pid}) does not serve "
                f"after {AUTOSTART_TIMEOUT_S:g} s",
                in_doubt=False,
            )
        time.sleep(AUTOSTART_POLL_S)


def last_line(said: BinaryIO | None) -> str:
    """The last line of a daemon's log; empty if it has logged nothing."""
    if said is None:
        return ""
    said.seek(0, os.SEEK_END)
    said.seek(max(0, said.tell() - LAST_BYTES))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
