"""The memory of a process; and memory for a measurement, on small pages or pages of 2 MiB, allocated beforehand.

The small pages are shared, as the arena's are. If the machine gives huge pages to private memory only, the huge pages
are private. Using a private page costs the same.
"""

from __future__ import annotations

import gc
import mmap
import re
from pathlib import Path

import psutil

from bench.lib.common import Suite
from timerd.arena.pages import huge_bytes, map_huge

# Whether a process that asks for huge pages gets them: for shared memory without a file, and for private memory.
SHARED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
PRIVATE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# The name of shared memory without a file, in the list of a process's mappings.
ANONYMOUS = Path("/dev/zero (deleted)")
ROLLUP = Path("/proc/self/smaps_rollup")


def gives_huge_pages(setting: Path) -> bool:
    says = setting.read_text() if setting.exists() else "[never]"
    return "[never]" not in says and "[deny]" not in says


def make_memory(size: int, huge: bool) -> mmap.mmap:
    """`size` bytes of memory, all 0. `huge`: on huge pages, if the machine gives them."""
    if not huge:
        return mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    memory = mmap.mmap(-1, size, mmap.MAP_SHARED if gives_huge_pages(SHARED) else mmap.MAP_PRIVATE)
    map_huge(memory)
    return memory


def measures_huge(suite: Suite) -> bool:
    """Whether --huge-pages was given, and the machine has huge pages. Prints a remedy when it has none."""
    if not suite.args.huge_pages:
        return False
    if not gives_huge_pages(SHARED) and not gives_huge_pages(PRIVATE):
        suite.say(f"no huge pages here, so only small ones are measured: as root, echo madvise > {PRIVATE}")
        return False
    return True


def resident() -> int:
    """The resident memory of this process in bytes, after a garbage collection."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def huge_share(size: int) -> float:
    """The share of `size` bytes of memory that is on huge pages. The process must have no other huge pages."""
    private = re.search(r"AnonHugePages:\s+(\d+) kB", ROLLUP.read_text()) if ROLLUP.exists() else None
    return min(1.0, (huge_bytes(ANONYMOUS) + (int(private[1]) << 10 if private else 0)) / size)
