"""Finding a daemon, and starting one where none runs."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from timerd_shm.errors import TimerdUnavailableError
from timerd_shm.limits import CONNECT_TIMEOUT_S
from timerd_shm.rundir import InstancePaths, daemon_running, find_instance, make_instance

from .arguments import group_of, label_of, orphans_of, patience_s
from .threaded import Client, ThreadedLink

AUTOSTART_TIMEOUT_S = 15.0  # until a daemon that was started here serves; on top of connect's own timeout
AUTOSTART_POLL_S = 0.01
# Of the environment these are its parent's alone: whom to tell of readiness, and what Spark gives its workers.
NOT_HANDED_ON = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_UNIX_DOMAIN_")


settings: dict[str, Any] = {}  # what `client()` of both faces gives to connect(); see process.configure


def connect(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float = CONNECT_TIMEOUT_S,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
    runtime_dir: str | None = None,
) -> Client:
    """A client of the instance (default: $TIMERD_INSTANCE, else "default"), ready for use.

    `group` is a named set of clients of which one live member is told what is the group's: named calls, and what it has
    adopted. `orphans` says what becomes of this client's operations when its process dies: "cancel", "keep" (they run
    on, and nobody is told) or "group" (its group adopts them). `autostart` starts the instance's daemon if none runs;
    it ends 10 s after its last client. `name` is a label for `timerctl clients`: printable text of at most 32 bytes.
    `runtime_dir` is where the instance is, if not where $TIMERD_RUNTIME_DIR or the usual places say.
    Raises TimerdUnavailableError within `timeout` seconds, InvalidNameError, TimeoutOutOfRangeError, NotAMemberError
    (orphans="group" without a group).
    """
    member_of = group_of(group)
    policy, label, patience = orphans_of(orphans, member_of), label_of(name), patience_s(timeout)
    client = Client(ThreadedLink(locate(instance, autostart, runtime_dir), label, policy, member_of))
    try:
        client.wait_ready(patience)
    except BaseException:
        client._threaded.stop()
        raise
    return client


def locate(instance: str | None, autostart: bool, runtime_dir: str | None) -> InstancePaths:
    """Where the instance is, after starting it if that is wanted and needed."""
    if autostart:
        return start_daemon(instance, runtime_dir)
    try:
        return find_instance(instance, runtime_dir)
    except TimerdUnavailableError as error:
        raise TimerdUnavailableError(f"{error}, or connect(autostart=True)") from None


def start_daemon(instance: str | None = None, runtime_dir: str | None = None) -> InstancePaths:
    """Start the instance's daemon unless one runs; returns when it serves. Raises TimerdUnavailableError.

    Processes that do this at the same time agree by a lock file.
    """
    try:
        found = find_instance(instance, runtime_dir)
        if daemon_running(found):
            return found
    except TimerdUnavailableError:
        pass
    paths = make_instance(instance, runtime_dir)
    with _alone(paths.directory / f"{paths.instance}.autostart"):
        if daemon_running(paths) and paths.arena.exists():
            return paths
        daemon = subprocess.Popen(
            [sys.executable, "-m", "timerd", "--instance", paths.instance, "--ephemeral"]
            + (["--runtime-dir", str(paths.directory)] if runtime_dir else []),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(NOT_HANDED_ON)},
        )
        free_memory_of(daemon.pid)
        await_daemon(daemon, paths)
        _children.append(daemon)
        return paths


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`, which is there only meanwhile.

    Who has waited may have got the lock of a file that its last holder removed, and then tries again: so two never hold
    it. (The daemon's own NAME.lock stays for ever, because others look at it without such care.)
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
    """Lift what its parent may have set: Spark's spark.executor.pyspark.memory bounds a worker's address space."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    for wanted in (resource.RLIM_INFINITY, most):  # more than its hard limit needs a capability
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_AS, (wanted, wanted))
            return


def await_daemon(daemon: subprocess.Popen[bytes], paths: InstancePaths) -> None:
    """Wait until a daemon that was just started serves. Raises TimerdUnavailableError when it ends or is too slow."""
    end = time.monotonic() + AUTOSTART_TIMEOUT_S
    while not (daemon_running(paths) and paths.arena.exists() and paths.commands.exists() and paths.outcomes.exists()):
        if daemon.poll() is not None:
            raise TimerdUnavailableError(
                f"the daemon that was started for instance {paths.instance!r} ended with status "
                f"{daemon.returncode}; run `timerd --instance {paths.instance}` to see why"
            )
        if time.monotonic() >= end:
            raise TimerdUnavailableError(
                f"the daemon that was started for instance {paths.instance!r} (pid {daemon.pid}) does not serve "
                f"after {AUTOSTART_TIMEOUT_S:g} s"
            )
        time.sleep(AUTOSTART_POLL_S)


_children: list[subprocess.Popen[bytes]] = []  # kept, because subprocess warns about those that are forgotten alive
