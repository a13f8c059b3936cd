"""Memory for a measurement, with small pages or pages of 2 MiB. All pages are there before it begins."""

from __future__ import annotations

import mmap
from pathlib import Path

from common import Suite
from timerd.arena.pages import huge_bytes, map_huge

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")  # for shared memory without a file
ANONYMOUS = Path("/dev/zero (deleted)")  # the name of such memory among a process's mappings


def make_memory(size: int, huge: bool) -> mmap.mmap:
    """`size` bytes of shared memory, all 0. `huge`: on huge pages, if the machine gives them."""
    if not huge:
        return mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    memory = mmap.mmap(-1, size, mmap.MAP_SHARED)
    map_huge(memory)
    return memory


def measures_huge(suite: Suite) -> bool:
    """Whether --huge-pages was given, and the machine has huge pages. Prints a remedy when it has none."""
    if not suite.args.huge_pages:
        return False
    says = SHMEM_ENABLED.read_text() if SHMEM_ENABLED.exists() else "[never]"
    if "[never]" in says or "[deny]" in says:
        suite.say(f"no huge pages here, so only small ones are measured: as root, echo advise > {SHMEM_ENABLED}")
        return False
    return True


def huge_share(size: int) -> float:
    """The share of the memory of this size that is on huge pages. It must be all such memory of this process."""
    return min(1.0, huge_bytes(ANONYMOUS) / size)
