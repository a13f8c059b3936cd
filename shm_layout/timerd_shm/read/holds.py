"""Holds: small files with which a consumer of a journal keeps the segments that it still needs.

hold("/var/lib/timerd/journal", "spark", 17)      # "spark" needs segment 17 and all later ones

Every neighbour may write into holds/, so its content is not trusted. A file counts only if it is a regular file that
holds a short number. Nothing there makes the daemon wait: neither a FIFO nor a lease does (O_NONBLOCK), and links are
not followed. The daemon looks at a limited number of files. If there are more, all segments count as held, because one
of the other files may hold any segment. In any case, --journal-hold-limit bounds the segments that are kept for holds.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from pathlib import Path

from timerd_shm.host.plain_file import open_plain

from .segment import JournalError

HOLDS = "holds"
HOLDS_MAX = 256  # holds that count
ENTRIES_MAX = 4_096  # files that are looked at, whether they are holds or not
DIGITS_MAX = 20  # of a segment's number, which has 64 bits
TOO_MANY = f"one of more than {HOLDS_MAX} holds"  # stands for all that were not looked at
UNREAD = "a hold that cannot be read now"  # stands for those that could not be opened
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # this process, or this machine, can open no file now
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def hold(directory: str | os.PathLike[str], name: str, segment: int | None) -> None:
    """Hold the segments from this number on for the consumer `name`; with None, hold none. Raises JournalError.

    The daemon keeps held segments, up to its --journal-hold-limit.
    """
    if not NAME.fullmatch(name):
        raise JournalError(f"the consumer {name!r} is not of the form {NAME.pattern}")
    path = Path(directory) / HOLDS / name
    try:
        if segment is None:
            path.unlink(missing_ok=True)
            return
        # A new file under a name that nobody can guess: a neighbour could have laid a link there.
        fresh = path.with_name(f".{name}.{secrets.token_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(descriptor, "w") as file:
            file.write(f"{segment}\n")
        os.rename(fresh, path)
    except OSError as error:
        raise JournalError(f"{path} cannot be written: {error.strerror}") from None


def holds_of(directory: Path) -> dict[str, int]:
    """The first segment that each consumer needs, by the consumer's name. The work is bounded, and nothing blocks.

    If no file can be opened because descriptors or memory are short, all segments count as held.
    """
    found: dict[str, int] = {}
    try:
        with os.scandir(directory / HOLDS) as entries:
            for number, entry in enumerate(entries):
                if number >= ENTRIES_MAX or len(found) >= HOLDS_MAX:
                    found[TOO_MANY] = 0
                    break
                if NAME.fullmatch(entry.name) and (segment := _held(entry.path)) is not None:
                    found[entry.name] = segment
    except OSError as error:
        if error.errno in FULL:
            found[UNREAD] = 0
    return found


def _held(path: str) -> int | None:
    try:
        descriptor = open_plain(path)
    except OSError as error:
        if error.errno in FULL:
            raise
        return None  # it has vanished, is no plain file, or may not be read
    try:
        text = os.read(descriptor, DIGITS_MAX + 2).strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and len(text) <= DIGITS_MAX else None
