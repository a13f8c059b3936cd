"""One daemon for an instance: the lock on NAME.lock. The lock for an arena, ARENA.lock: timerd_shm/host/lock.py.

Only the daemon's user may open the two files. Users of the group may open the arena, and the sign of a running daemon
(`daemon_running` in paths.py), so the daemon locks neither. They may open its directory as well, which it does lock.
But this lock only keeps systemd-tmpfiles away, and a daemon starts without it, too.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from timerd_shm.declare.errors import InstanceRunningError
from timerd_shm.host.lock import holder_of, open_lock
from timerd_shm.host.paths import InstancePaths, listens

# A start tries for a second: a killed daemon's lock and socket end one after the other, and `timerctl destroy` holds
# the lock while it removes the arena.
ATTEMPTS = 100
PAUSE_S = 0.01


class InstanceLock:
    """flock on NAME.lock. The kernel releases the lock at any end of the process.

    The file is never unlinked. Otherwise a daemon that had opened it before would get the lock of a file without a name
    while the next daemon locks a new one, and both would serve the instance. systemd-tmpfiles must not unlink it
    either. It leaves alone the files in a locked directory (systemd.io/TEMPORARY_DIRECTORIES), so the directory gets a
    shared lock. If the file is unlinked nevertheless, a daemon that listens prevents a second start.

    Raises InstanceRunningError, which names the holder, and ResourceLimitError when the file cannot be made.
    """

    def __init__(self, paths: InstancePaths) -> None:
        self._descriptor = open_lock(paths.lock)
        try:
            if not _locked(self._descriptor, paths):
                holder = holder_of(self._descriptor, paths)
                raise InstanceRunningError(f"{holder}, or give this daemon another --instance")
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
            self._directory = _kept(paths.directory)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Let the next daemon in. Close the sockets before: afterwards their files could be the next daemon's."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        os.close(self._directory)


def _kept(directory: Path) -> int:
    """A locked descriptor of the directory: with it, systemd-tmpfiles removes no old file there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks; systemd-tmpfiles cleans up right now; a neighbour holds it
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _locked(descriptor: int, paths: InstancePaths) -> bool:
    held = False
    for attempt in range(ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        if held and not listens(paths):
            return True
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE_S)
    return False
