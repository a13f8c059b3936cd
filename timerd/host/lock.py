"""One daemon for an instance: the lock on NAME.lock, held from before the first file is made until after the last."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from timerd_shm.declare.errors import InstanceRunningError, ResourceLimitError
from timerd_shm.host.paths import InstancePaths

# A process that looks whether a daemon runs (paths.daemon_running) holds the lock for a moment; many may look at once.
ATTEMPTS = 100
PAUSE_S = 0.01


class InstanceLock:
    """flock on NAME.lock. The kernel releases it with the process, however that ends.

    The file is never unlinked. Otherwise a daemon that had opened it before would get the lock of a file without a name
    while the next daemon locks a new one, and both would serve the instance. systemd-tmpfiles may not unlink it either.
    It leaves alone the files in a directory with a lock (systemd.io/TEMPORARY_DIRECTORIES), so the directory has a
    shared lock.

    Raises InstanceRunningError with the pid of the daemon that holds it, ResourceLimitError when it cannot be made.
    """

    def __init__(self, paths: InstancePaths, group_id: int | None = None) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(paths.lock, flags, 0o600)
        except OSError as error:
            raise ResourceLimitError(f"the lock {paths.lock} cannot be opened: {error.strerror}") from None
        try:
            if not _locked(self._descriptor):
                holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "not known"
                raise InstanceRunningError(
                    f"a daemon of instance {paths.instance!r} is running in {paths.directory} (pid {holder}): "
                    "stop it first, or give this one another --instance"
                )
            if group_id is not None:
                os.fchown(self._descriptor, -1, group_id)
                os.fchmod(self._descriptor, 0o640)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
            self._directory = _kept(paths.directory)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let the next daemon in. Only after the sockets are closed: libzmq would unlink the successor's."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        os.close(self._directory)


def _kept(directory: Path) -> int:
    """A locked descriptor of the directory: with it, systemd-tmpfiles removes no old file there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks; or systemd-tmpfiles cleans up right now
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _locked(descriptor: int) -> bool:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE_S)
    return False
