"""Memory for a measurement: all its pages are there before it begins, small pages or pages of 2 MiB."""

from __future__ import annotations

import mmap
from pathlib import Path

from common import Suite
from timerd.arena.pages import huge_bytes, map_huge

SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")  # of shared memory that is no file's
ANONYMOUS = Path("/dev/zero (deleted)")  # how shared memory that is no file's stands among a process's mappings


def make_memory(size: int, huge: bool) -> mmap.mmap:
    """So many bytes of shared memory, all 0; on huge pages where it is asked for them and the machine gives them."""
    if not huge:
        return mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    memory = mmap.mmap(-1, size, mmap.MAP_SHARED)
    map_huge(memory)
    return memory


def measures_huge(suite: Suite) -> bool:
    """Whether --huge-pages was given, and the machine gives any; says it where it does not."""
    if not suite.args.huge_pages:
        return False
    says = SHMEM_ENABLED.read_text() if SHMEM_ENABLED.exists() else "[never]"
    if "[never]" in says or "[deny]" in says:
        suite.say(f"no huge pages here, so small ones alone: `echo advise > {SHMEM_ENABLED}` as root gives them")
        return False
    return True


def huge_share(size: int) -> float:
    """How much of memory of that size, the only one that this process made, huge pages map."""
    return min(1.0, huge_bytes(ANONYMOUS) / size)
