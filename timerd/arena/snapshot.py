"""A copy of the arena in a file, made between two turns (timerd/snapshots.py says for whom, and when it goes)."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from timerd.host.group import give_to_group


def write_snapshot(memory: mmap.mmap, path: Path, group_id: int | None = None) -> None:
    """Copy the arena to the new file `path`, for all who may read the arena. Raises OSError, and leaves nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb", buffering=0) as file, memoryview(memory) as view:
            give_to_group(descriptor, group_id)
            written = 0
            while written < len(view):
                written += file.write(view[written:])
    except BaseException:
        path.unlink(missing_ok=True)
        raise
