"""The file to which a name leads. Another process may have removed the daemon's file, and put its own in the place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

File: TypeAlias = tuple[int, int]


def file_at(path: Path) -> File | None:
    """The file to which a name leads; None: to none."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def remove_own(path: Path, file: File | None) -> None:
    """Remove the name, if it leads to that file. Else it may be the next daemon's."""
    if file is not None and file_at(path) == file:
        path.unlink()
