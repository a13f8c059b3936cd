"""The file to which a name leads. Another process may have removed the daemon's file, and put its own in its place.

In /dev/shm, and in a directory that others may write, another user may have laid a file there before the daemon.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.access import other_owner

File: TypeAlias = tuple[int, int]


def file_at(path: Path) -> File | None:
    """The file to which a name leads; None if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def in_the_way(what: str, path: Path, error: OSError) -> ResourceLimitError:
    """The error of a file that cannot be made or replaced: its owner, if another user laid it, and the remedy."""
    return ResourceLimitError(f"{what} {path} cannot be made: {other_owner(path) or error.strerror or error}")


def remove_stale(what: str, path: Path) -> None:
    """Remove a file that an earlier daemon has left. Raises ResourceLimitError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise in_the_way(what, path, error) from None


def remove_own(path: Path, file: File | None) -> None:
    """Remove the name, if it leads to that file. Else it may be the next daemon's."""
    if file is not None and file_at(path) == file:
        path.unlink()
