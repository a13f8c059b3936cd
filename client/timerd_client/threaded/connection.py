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

from timerd_client.arguments import group_of, label_of, orphans_of, patience_of
from timerd_shm.declare.errors import TimerdError, TimerdUnavailableError
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S
from timerd_shm.host.paths import InstancePaths, daemon_running, find_instance, make_instance, open_arena_file
from timerd_shm.read.reader import ArenaReader

from .client import Client, ThreadedLink

AUTOSTART_TIMEOUT_S = 15.0  # until a daemon that was started here serves; on top of connect's own timeout
AUTOSTART_POLL_S = 0.01
RESTART_S = 10.0  # who has run so lately may be starting again
LOOK_AGAIN_S = 0.05  # a look holds the daemon's lock for a moment, and it tries for a second
# Of the environment these are its parent's alone: whom to tell of readiness, and what Spark gives its workers.
NOT_HANDED_ON = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_", "SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_UNIX_DOMAIN_")


settings: dict[str, Any] = {}  # what `client()` of both faces gives to connect(); see process.configure


def connect(
    instance: str | None = None,
    *,
    autostart: bool = False,
    timeout: float | None = None,
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

    `timeout`, in seconds, waits so long for a daemon to be there and to answer, also for one that nobody has started
    yet. Without it a daemon that runs has 2 s to answer, and where none runs TimerdUnavailableError is raised at once;
    unless one has run within the last 10 s: it may be restarting, so it is waited for 2 s. (Workers that boot beside a
    restart live through it; those that boot before the first start need a `timeout`.) It is about this call alone:
    a client that has connected waits for a daemon that restarts, however long that takes.

    Raises TimerdUnavailableError, PermissionError (this user may not look into the runtime directory),
    InvalidNameError, TimeoutOutOfRangeError, NotAMemberError (orphans="group" without a group).
    """
    member_of = group_of(group)
    policy, label, patience = orphans_of(orphans, member_of), label_of(name), patience_of(timeout)
    paths = start_daemon(instance, runtime_dir) if autostart else None
    search = Search(instance, runtime_dir, patience)
    while paths is None and (paths := search.look()) is None:
        time.sleep(LOOK_AGAIN_S)
    client = Client(ThreadedLink(paths, label, policy, member_of))
    try:
        client.wait_ready(search.patience())
    except BaseException:
        client._threaded.stop()
        raise
    return client


class Search:
    """A daemon that is looked for, with a patience that is stated, or usual."""

    def __init__(self, instance: str | None, runtime_dir: str | None, timeout: float | None) -> None:
        self._instance = instance
        self._runtime_dir = runtime_dir
        self._stated = timeout is not None
        self._seconds = CONNECT_TIMEOUT_S if timeout is None else timeout
        self._end = time.monotonic() + self._seconds

    def look(self) -> InstancePaths | None:
        """The instance, if its daemon runs; None = look again soon.

        Raises TimerdUnavailableError when it is over, or PermissionError where this user may not look.
        """
        try:
            paths = find_instance(self._instance, self._runtime_dir)
        except TimerdUnavailableError as error:
            self._go_on(self._stated, f"{error}, or connect(autostart=True)")
            return None
        except PermissionError:
            if self._stated and time.monotonic() < self._end:
                return None
            raise
        if runs(paths):
            return paths
        missing = f"the daemon of instance {paths.instance!r} is not running: start it ({paths.command})"
        self._go_on(self._stated or has_run_lately(paths), missing)
        return None

    def patience(self) -> float:
        """The seconds that a daemon which was found has to answer."""
        return max(0.0, self._end - time.monotonic()) if self._stated else CONNECT_TIMEOUT_S

    def _go_on(self, waits: bool, missing: str) -> None:
        if waits and time.monotonic() < self._end:
            return
        waited = f"waited {self._seconds:g} s for it" if waits else "connect(timeout=SECONDS) waits for one"
        raise TimerdUnavailableError(f"{missing}; {waited}")


def runs(paths: InstancePaths) -> bool:
    """Whether a daemon holds the instance's lock; True where this user may not look."""
    try:
        return daemon_running(paths)
    except PermissionError:
        return True


def has_run_lately(paths: InstancePaths) -> bool:
    """Whether a daemon, which does not run now, did RESTART_S ago: by the lock, written as one starts and as it ends.

    One that was killed has not written it then; its arena says when its last turn was.
    """
    try:
        # No age is below 0, but where the clock was set back, or the arena is of an earlier boot.
        if 0 <= time.time() - paths.lock.stat().st_mtime < RESTART_S:
            return True
        with ArenaReader.from_descriptor(open_arena_file(paths)) as reader:
            return 0 <= time.monotonic_ns() - reader.header().turn_at_ns < RESTART_S * 1e9
    except (TimerdError, OSError):
        return False


def start_daemon(instance: str | None = None, runtime_dir: str | None = None) -> InstancePaths:
    """Start the instance's daemon unless one runs; returns when it serves. Raises TimerdUnavailableError.

    Processes that do this at the same time agree by a lock file.
    """
    try:
        found = find_instance(instance, runtime_dir)
    except (TimerdUnavailableError, PermissionError):
        pass  # it is made where this user may
    else:
        if daemon_running(found):
            return found
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
