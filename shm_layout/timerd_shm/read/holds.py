"""Holds: small files with which a consumer of a journal keeps the segments that it still needs.

hold("/var/lib/timerd/journal", "spark", 17)      # "spark" needs segment 17 and those behind it
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from .segment import JournalError

HOLDS = "holds"


def hold(directory: str | os.PathLike[str], name: str, segment: int | None) -> None:
    """Hold the segments from this number on for the consumer `name`; with None, hold none. Raises JournalError.

    The daemon keeps held segments, up to its --journal-hold-limit.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise JournalError(f"the consumer {name!r} is not of the form [A-Za-z0-9_-]{{1,64}}")
    path = Path(directory) / HOLDS / name
    try:
        if segment is None:
            path.unlink(missing_ok=True)
            return
        fresh = path.with_name(f".{name}.{os.getpid()}")
        fresh.write_text(f"{segment}\n")
        os.rename(fresh, path)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from None


def holds_of(directory: Path) -> dict[str, int]:
    """The first segment that each consumer needs, by the consumer's name; files without a number are left out."""
    found: dict[str, int] = {}
    try:
        for path in (directory / HOLDS).iterdir():
            if not path.name.startswith(".") and (text := path.read_text().strip()).isdecimal():
                found[path.name] = int(text)
    except (OSError, UnicodeDecodeError):
        pass
    return found
