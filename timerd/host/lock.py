"""One daemon for an instance, and one for an arena: locks on NAME.lock and ARENA.lock.

Only the daemon's user may open the two files (0600). Whoever can open a file can hold its lock, also with a descriptor
that only reads, and so prevent the next start. So nothing that members of the group may open is locked: not the arena,
and not what shows them whether a daemon runs (`daemon_running` in paths.py).
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from timerd_shm.declare.errors import InstanceRunningError, ResourceLimitError
from timerd_shm.host.paths import InstancePaths, daemon_running

# A killed daemon's lock and socket end one after the other, and `timerctl destroy` holds the lock while it removes.
ATTEMPTS = 100
PAUSE_S = 0.01


class InstanceLock:
    """flock on NAME.lock. The kernel releases it with the process, however that ends.

    The file is never unlinked. Otherwise a daemon that had opened it before would get the lock of a file without a name
    while the next daemon locks a new one, and both would serve the instance. systemd-tmpfiles may not unlink it either.
    It leaves alone the files in a directory with a lock (systemd.io/TEMPORARY_DIRECTORIES), so the directory has a
    shared lock. If somebody unlinks it all the same, a daemon that listens holds off the next one.

    Raises InstanceRunningError with the pid of the daemon that holds it, ResourceLimitError when it cannot be made.
    """

    def __init__(self, paths: InstancePaths) -> None:
        self._descriptor = _open(paths.lock)
        try:
            if not _locked(self._descriptor, paths):
                holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "not known"
                raise InstanceRunningError(
                    f"a daemon of instance {paths.instance!r} is running in {paths.directory} (pid {holder}): "
                    "stop it first, or give this one another --instance"
                )
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


class ArenaLock:
    """flock on ARENA.lock, beside the arena: against daemons of other directories, and of other containers.

    Example: two daemons in two directories have the same --arena-file. The file is removed with the arena, by the
    daemon that holds it.

    Raises InstanceRunningError when another daemon has the arena, ResourceLimitError when it cannot be made.
    """

    def __init__(self, path: Path, arena: Path) -> None:
        self._path = path
        while True:
            self._descriptor = _open(path)
            owner = os.fstat(self._descriptor).st_uid
            if owner != os.geteuid():  # root could open it; but in /dev/shm anybody can make it
                os.close(self._descriptor)
                raise ResourceLimitError(
                    f"the lock {path} belongs to uid {owner}, and this is {os.geteuid()}: "
                    "remove it, or give this daemon another --instance"
                )
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _names(path, self._descriptor):
                    return
            except BlockingIOError:
                os.close(self._descriptor)
                raise InstanceRunningError(
                    f"another daemon uses the arena {arena}: stop it first, or give this one another --instance"
                ) from None
            os.close(self._descriptor)  # the last daemon removed it between open and lock: again

    def remove(self) -> None:
        """Remove the file, after the arena itself."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let another daemon have the arena."""
        os.close(self._descriptor)


def _open(path: Path) -> int:
    """A lock file that only its user may open. One of an earlier version may have been open to the group."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except OSError as error:
        raise ResourceLimitError(f"the lock {path} cannot be opened: {error.strerror}") from None
    return descriptor


def _kept(directory: Path) -> int:
    """A locked descriptor of the directory: with it, systemd-tmpfiles removes no old file there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without locks; systemd-tmpfiles cleans up right now; a member holds it
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _locked(descriptor: int, paths: InstancePaths) -> bool:
    held = False
    for attempt in range(ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        if held and not _listens(paths):
            return True
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE_S)
    return False


def _listens(paths: InstancePaths) -> bool:
    try:
        return daemon_running(paths)
    except PermissionError:  # a socket that another user has left: nobody of ours listens there
        return False


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
