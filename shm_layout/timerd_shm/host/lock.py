"""Locks that a daemon holds for all its life: the file, its holder, and ARENA.lock.

Only the daemon's user may open a lock file (0600). A process that can open a file, even if only to read, can hold its
lock and so prevent the next start. NAME.lock is for one instance (timerd/host/lock.py), ARENA.lock for one arena.
`timerctl destroy` takes both as a daemon does.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from timerd_shm.declare.errors import InstanceRunningError, ResourceLimitError

from .access import as_word, other_owner
from .paths import InstancePaths, listens
from .plain_file import NotPlainError, open_plain
from .process import process_start_ticks

CHOOSE = "choose a directory that this user may write (--runtime-dir, --arena-file)"


class ArenaLock:
    """flock on ARENA.lock, beside the arena: against daemons of other directories, and of other containers.

    Example: two daemons in two directories have the same --arena-file. The holder of the lock removes the lock file
    together with the arena.

    Raises InstanceRunningError when another daemon has the arena, and ResourceLimitError when the file cannot be made,
    or belongs to neither this user nor `owner`. Root, who removes a user's arena, names that user as `owner`.
    """

    def __init__(self, path: Path, arena: Path, *, owner: int | None = None) -> None:
        self._path = path
        while True:
            self._descriptor = open_lock(path, owner)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _names(path, self._descriptor):
                    return
            except BlockingIOError:
                os.close(self._descriptor)
                raise InstanceRunningError(
                    f"another daemon uses the arena {arena}: stop it first (`fuser {as_word(path)}` shows its pid)"
                ) from None
            os.close(self._descriptor)  # the last daemon removed it between open and lock: try again

    def remove(self) -> None:
        """Remove the file, after the arena itself."""
        self._path.unlink(missing_ok=True)

    def release(self) -> None:
        """Let another daemon have the arena."""
        os.close(self._descriptor)


def open_lock(path: Path, owner: int | None = None) -> int:
    """A lock file that only its user may open; the caller closes it.

    If an earlier version has left it with a wider mode, the mode is changed. The file belongs to this user, or to
    `owner`: in /dev/shm anybody could make such a file. Raises ResourceLimitError.
    """
    owners = {os.geteuid() if owner is None else owner, os.geteuid()}
    try:
        try:
            descriptor = open_plain(path, os.O_RDWR, owners=owners)  # O_CREAT fails for another's file in /dev/shm
        except FileNotFoundError:
            descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, owners=owners)
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
    except OSError as error:
        why = other_owner(path)
        if not why and isinstance(error, NotPlainError):
            why = f"{error.strerror}: remove it"
        raise ResourceLimitError(f"the lock {path} cannot be opened: {why or f'{error.strerror}: {CHOOSE}'}") from None
    return descriptor


def holder_of(descriptor: int, paths: InstancePaths) -> str:
    """The holder of NAME.lock, as a sentence: "a daemon of instance 'x' is running in ... (pid 7): stop it first".

    `descriptor` is of NAME.lock. The file's content is the pid of the daemon that has locked it. If another process has
    locked it, the content is empty, or the pid of an ended process. If the file was removed by hand, its successor is
    empty.
    """
    pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    if not listens(paths) and not (pid.isdecimal() and process_start_ticks(int(pid))):
        return (
            f"some process holds {paths.lock}, and no daemon of instance {paths.instance!r} answers: "
            f"end that process (`fuser {as_word(paths.lock)}` shows its pid)"
        )
    return (
        f"a daemon of instance {paths.instance!r} is running in {paths.directory} (pid {pid or 'not known'}): "
        "stop it first (SIGTERM)"
    )


def _names(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False
