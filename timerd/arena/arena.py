"""An arena that is mapped for writing. This module stores the daemon's process and settings, and the core the rest.

An arena that is made anew is always a new object under the old name. A worker that still maps the old object keeps it,
and notices by the incarnation that there is a newer one. (If the arena shrank, its readers would get a SIGBUS.)
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from timerd.host.own_file import file_at
from timerd_shm.declare import layout
from timerd_shm.declare.fields import fields, size_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import ArenaHeader, ClientRecord, RegionRecord
from timerd_shm.host.lock import ArenaLock
from timerd_shm.host.paths import ArenaLocation
from timerd_shm.host.process import process_start_ticks

from . import pages
from .format import write_labels
from .plan import ArenaPlan

ATTACHED = "attached"


class Arena:
    """An arena that is mapped for writing, and the lock that keeps out all other daemons, of any directory."""

    def __init__(
        self,
        descriptor: int,
        location: ArenaLocation,
        plan: ArenaPlan,
        origin: str,
        lock: ArenaLock,
        seed: bytes,
        seed_lost: str = "",
    ) -> None:
        self.location = location
        self.plan = plan
        self.origin = origin  # a phrase for the log: made, made anew and why, or ATTACHED
        self.seed = seed  # of the arena's hashes: a secret
        self.seed_lost = seed_lost  # why an existing arena got a new seed; "" if it did not
        self.memory = mmap.mmap(descriptor, plan.size)
        self._descriptor = descriptor
        self._lock = lock

    def header(self) -> ArenaHeader:
        """The header as it is now."""
        with memoryview(self.memory) as view:
            return unpack(ArenaHeader, view)

    def client(self, slot: int) -> ClientRecord:
        """A client's record as it is now."""
        region = self.plan.regions[Region.CLIENTS]
        assert 0 <= slot < region.count, f"slot={slot}; clients={region.count}"
        with memoryview(self.memory) as view:
            return unpack(ClientRecord, view, region.offset + slot * region.record_size)

    def map_pages(self) -> int:
        """Map the pages that a start will read, or all pages where they are huge. Returns the bytes in huge pages."""
        if pages.has_huge_pages(self._descriptor):
            pages.map_huge(self.memory)
            return pages.huge_bytes(self.location.path)
        if self.origin == ATTACHED:
            pages.map_small(self.memory, self._used())
        return 0

    def _used(self) -> Iterator[tuple[int, int]]:
        for region in Region:
            row = self.plan.regions[region]
            with memoryview(self.memory) as view:
                now = unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * size_of(RegionRecord))
            used = min(now.high_water, row.count) if region in layout.FREE_LINKS else row.count
            yield row.offset, used * row.record_size

    def sign(self, pid: int, now_ns: int) -> None:
        """Enter the daemon that serves this arena; pid 0 at a clean end."""
        self._store("start_ticks", (process_start_ticks(pid) or 0) if pid else 0)
        if pid:
            self._store("attached_ns", now_ns)
        self._store("pid", pid)

    def close(self) -> None:
        """Unmap and unlock. The core must have released the memory before."""
        self.memory.close()
        os.close(self._descriptor)
        self._lock.release()

    def is_named(self) -> bool:
        """Whether the arena's name leads to it. Another process may have removed the name."""
        status = os.fstat(self._descriptor)
        return file_at(self.location.path) == (status.st_dev, status.st_ino)

    def remove(self) -> None:
        """Remove the names of the arena, its seed and the journal's buffer; a process that maps them keeps them.

        If the name leads to another arena, these files belong to the next daemon: this daemon's were removed before.
        """
        if self.location.path.exists() and not self.is_named():
            return
        for path in (self.location.path, self.location.journal_buffer, self.location.seed):
            with suppress(PermissionError):  # it is another user's file: the error of the start names that user
                path.unlink(missing_ok=True)
        self._lock.remove()

    def refresh(self) -> None:
        """Enter the values that may differ from those in an existing arena: the configuration, the counters' labels."""
        for word, value in self.plan.words.items():
            self._store(word, value)
        with memoryview(self.memory) as view:
            write_labels(view, self.plan.regions[Region.COUNTER_LABELS])

    def _store(self, name: str, value: int) -> None:
        """Store one number of the header, in one store, because others may read it. Format "<" stores byte by byte."""
        field = next(field for field in fields(ArenaHeader) if field.name == name)
        struct.pack_into("@" + field.storage.code, self.memory, field.offset, value)
