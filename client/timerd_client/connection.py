"""Finding a daemon, and starting one where none runs."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time

from timerd_shm.errors import TimerdUnavailableError
from timerd_shm.limits import CONNECT_TIMEOUT_S
from timerd_shm.rundir import InstancePaths, daemon_running, find_instance, make_instance

from .arguments import name_of, no_group, orphans_of
from .threaded import Client

AUTOSTART_TIMEOUT_S = 15.0  # until a daemon that was started here serves; on top of connect's own timeout
AUTOSTART_POLL_S = 0.01


def connect(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float = CONNECT_TIMEOUT_S,
    group: str | None = None,
    orphans: str = "cancel",
    name: str = "",
) -> Client:
    """A client of the instance (default: $TIMERD_INSTANCE, else "default"), ready for use.

    `orphans` says what becomes of its operations when this process dies: "cancel" or "keep". `autostart` starts the
    instance's daemon if none runs; it ends 10 s after its last client. `name` is a label for `timerctl clients`.
    Raises TimerdUnavailableError within `timeout` seconds, InvalidNameError, NotSupportedError (`group`).
    """
    no_group(group)
    policy = orphans_of(orphans)
    if name:
        name_of("client", name)
    client = Client(locate(instance, autostart), name=name, orphans=policy)
    try:
        client.wait_ready(timeout)
    except BaseException:
        client._threaded.stop()
        raise
    return client


def locate(instance: str | None, autostart: bool) -> InstancePaths:
    """Where the instance is, after starting it if that is wanted and needed."""
    return start_daemon(instance) if autostart else find_instance(instance)


def start_daemon(instance: str | None = None) -> InstancePaths:
    """Start the instance's daemon unless one runs; returns when it serves. Raises TimerdUnavailableError.

    Processes that do this at the same time agree by a lock file.
    """
    try:
        found = find_instance(instance)
        if daemon_running(found):
            return found
    except TimerdUnavailableError:
        pass
    paths = make_instance(instance)
    descriptor = os.open(paths.directory / f"{paths.instance}.autostart", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if daemon_running(paths) and paths.arena.exists():
            return paths
        daemon = subprocess.Popen(
            [sys.executable, "-m", "timerd", "--instance", paths.instance, "--ephemeral"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            start_new_session=True,
        )
        end = time.monotonic() + AUTOSTART_TIMEOUT_S
        while not (
            daemon_running(paths) and paths.arena.exists() and paths.commands.exists() and paths.outcomes.exists()
        ):
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
        _children.append(daemon)
        return paths
    finally:
        os.close(descriptor)


_children: list[subprocess.Popen[bytes]] = []  # kept, because subprocess warns about those that are forgotten alive
