"""A copy of the arena in a file: as it was between two turns, and made while turns go on.

    copy = ArenaCopy(core, memory, path)    between two turns; some 100 us, whatever the arena's size
    copy.start()                            a thread copies, without the GIL
    copy.is_over, copy.failure              whether it has ended, and how
    copy.end()                              the core stops logging; the file stays
    copy.remove()                           the file is removed

Before the core changes a line of the arena, it logs the line's bytes (purgatory/memory/before_images.h). The thread
writes these bytes over its copy of the line. Freeing the file's memory takes long: 0.1 s for a gigabyte in /dev/shm. So
the thread keeps the file open, and closes it when it was removed: this frees the memory. Callers: timerd/snapshots.py.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from _thread import start_new_thread  # Thread.start() would wait until the new thread runs
from contextlib import suppress
from pathlib import Path
from threading import Event

from timerd.core import Core
from timerd.host.group import give_to_group

from .copier import Copier

IMAGES_MAX = 400_000  # lines that a copy's log has room for, 27 MiB; a smaller arena has fewer lines


class ArenaCopy:
    """One copy of the arena. It begins with this object, at the end of a turn, and shows the arena of that moment."""

    def __init__(self, core: Core, memory: mmap.mmap, path: Path, group_id: int | None = None) -> None:
        """Begin to log, and make the file, with the arena's read permissions. After an OSError nothing is left."""
        self.path = path
        self.failure: Exception | None = None
        self.cpu_ns = 0  # CPU time of the copy, by the thread
        self._core = core
        self._over, self._ended, self._removed, self._gone = Event(), Event(), Event(), Event()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            give_to_group(self._descriptor, group_id)
            os.ftruncate(self._descriptor, len(memory))
            self._copier = Copier(memory, self._descriptor, IMAGES_MAX)
            core.begin_copy(self._copier)
        except BaseException:
            os.close(self._descriptor)
            path.unlink(missing_ok=True)
            raise

    def start(self) -> None:
        """Let a thread copy. If no more threads are allowed, the copy is over at once, and has failed."""
        try:
            start_new_thread(self._run, ())
        except RuntimeError as error:
            self.failure = OSError(errno.EAGAIN, str(error))
            self._over.set()
            self.remove()
            self._free()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended: the file is whole, or `failure` has the error."""
        return self._over.is_set()

    @property
    def is_gone(self) -> bool:
        """Whether all memory is free: false for a while after remove(), and for ever where the file's disk hangs."""
        return self._gone.is_set()

    def end(self) -> None:
        """Stop the core's logging. If the thread still copies, it ends within a step. The file stays."""
        if not self.is_over:
            self._copier.stop()
        self._core.end_copy()
        self._ended.set()

    def remove(self) -> None:
        """Remove the file, whole or not. The thread frees its memory."""
        self.end()
        with suppress(OSError):  # the directory has become read-only; the next copy has another name
            self.path.unlink()
        self._removed.set()

    def wait(self) -> None:
        """After remove(), wait until all memory is free."""
        self._gone.wait()

    def _run(self) -> None:
        try:
            copy(self._copier)
        except Exception as failure:  # of any kind: the conductor reads it
            self.failure = failure
        self.cpu_ns = time.thread_time_ns()
        self._over.set()
        self._ended.wait()
        self._free()

    def _free(self) -> None:
        self._copier.release()
        self._removed.wait()
        os.close(self._descriptor)
        self._gone.set()


def copy(copier: Copier) -> None:
    """The thread's work: a function with a name, so that a test can delay it."""
    copier.run()
