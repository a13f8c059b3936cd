"""The pages of an arena: all are reserved before they are used, and they have 2 MiB where the machine allows it.

Among a million operations, two that are due one after the other lie on different pages, so each costs a miss of the
TLB. With huge pages an expiry takes three fifths of the time (bench/NUMBERS.md). A tmpfs that is mounted with `huge=`
and any value but `never` gives huge pages to a process that asks for them by madvise(2), when a page is first touched.
posix_fallocate(3) alone makes small pages.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

# linux/mman.h, since Linux 5.14; Python 3.11 has no names for them. Without room they fail, and there is no SIGBUS.
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
MOUNTS = Path("/proc/self/mountinfo")
MAPPINGS = Path("/proc/self/smaps")


def has_huge_pages(descriptor: int) -> bool:
    """Whether the file system of this file gives huge pages to a process that asks for them."""
    device = os.fstat(descriptor).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return any(_gives_huge_pages(row) for row in _text(MOUNTS).splitlines() if row.split()[2] == number)


def reserve(descriptor: int, size: int) -> None:
    """Give a file its size and its pages. ftruncate(2) alone would succeed without room, and a SIGBUS would come later.

    Raises OSError when there is no room.
    """
    if has_huge_pages(descriptor):
        os.ftruncate(descriptor, size)
        with mmap.mmap(descriptor, size) as memory:
            map_huge(memory)
    os.posix_fallocate(descriptor, 0, size)


def map_huge(memory: mmap.mmap) -> None:
    """Map all pages for writing, huge ones where possible; a lack of room is not reported here."""
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(MADV_POPULATE_WRITE)


def map_small(memory: mmap.mmap, spans: Iterable[tuple[int, int]]) -> None:
    """Map the pages of these spans (offset and bytes) at once: page faults one by one are a fifth of a start's time."""
    with contextlib.suppress(OSError):
        for offset, size in spans:
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            memory.madvise(MADV_POPULATE_READ, start, offset - start + size)


def huge_bytes(path: Path) -> int:
    """How many bytes of this file the process has mapped by huge pages."""
    # One entry for each mapping: a line that ends with the file's name, then its figures.
    entries = _text(MAPPINGS).split(f" {path}\n")[1:]
    figures = (entry.partition("ShmemPmdMapped:")[2].split(None, 1) for entry in entries)
    return sum(int(figure[0]) << 10 for figure in figures if figure)  # a kernel may report none


def _gives_huge_pages(mount: str) -> bool:
    kind, *_, options = mount.split(" - ", 1)[1].split(" ")  # the source between them may be empty
    return kind == "tmpfs" and any(
        option.startswith("huge=") and option != "huge=never" for option in options.split(",")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")  # names may be any bytes
    except OSError:  # no /proc
        return ""
