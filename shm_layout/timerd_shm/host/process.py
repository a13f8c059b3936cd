"""A few facts of /proc that daemon and client both compare: a process's start, its state, the boot, the namespaces."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final, Literal

STOPPED: Final = (b"T", b"t")  # states of /proc/PID/stat: by a signal, by a debugger


def process_start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, which differs for a recycled pid; None when there is no such process.

    None also where /proc hides the process (hidepid): then nothing can be known of it. Raises OSError where no file can
    be opened (EMFILE, ENFILE): the process may run nevertheless.
    """
    fields = _stat_of(pid)
    return None if fields is None else int(fields[19])


def process_is_stopped(pid: int, start_ticks: int) -> bool:
    """Whether the process with this pid and start is known to be stopped, by a signal or a debugger."""
    fields = _stat_of(pid)
    return fields is not None and int(fields[19]) == start_ticks and fields[0] in STOPPED


def process_is_running(pid: int, start_ticks: int) -> bool:
    """Whether the process with this pid and start is seen here and has not ended, and nothing has stopped it.

    Raises OSError as process_start_ticks() does.
    """
    fields = _stat_of(pid)
    return fields is not None and int(fields[19]) == start_ticks and fields[0] not in STOPPED


def _stat_of(pid: int) -> list[bytes] | None:
    """/proc/PID/stat from its third field, the state, on; None and OSError as process_start_ticks()."""
    try:
        # Not by Path.read_bytes(), which takes 25 us instead of 15: the daemon does this for each hello.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            line = stat.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The second field, the name, may hold any character: so count from the last parenthesis. A zombie has ended.
    fields = line[line.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields


def boot_id() -> bytes:
    """16 bytes that name this boot of the machine, and so the zero of CLOCK_MONOTONIC (with the time namespace)."""
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


def namespace_inode(kind: Literal["pid", "time"]) -> int:
    """Inode of this process's namespace of that kind; equal means the same namespace. 0 where the kernel has none."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except FileNotFoundError:
        return 0
