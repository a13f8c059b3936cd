"""Reads the arena of a test as records of their declared types, and lists its violations."""

from __future__ import annotations

from typing import Any

from timerd_shm.check.check import check
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, index_of
from timerd_shm.declare.fields import size_of, unpack
from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX, REGION_RECORDS, REGIONS_OFFSET, Region
from timerd_shm.declare.records import ArenaHeader, RegionRecord
from timerd_shm.declare.states import KeyKind, Place
from timerd_shm.read.reader import ArenaReader, Table

SEED = b"of a rig's hash."  # the seed of an arena's hashes, 16 bytes


def violations(memory: bytes | bytearray) -> list[str]:
    """The findings of `timerctl check`."""
    return check(memoryview(memory), seed=SEED)


def first_watcher(reader: ArenaReader, name: bytes, kind: KeyKind = KeyKind.EVENT) -> int:
    """The watch node that is first in a key's list of watchers, or at the top of the key's heap of watermarks."""
    return next(
        index
        for index, node in reader.nodes.numbered()
        if node.place == Place.FIRST and node.kind == kind and reader.key_name(node) == name
    )


def watched_keys(reader: ArenaReader) -> set[bytes]:
    """The names of keys that are watched."""
    return {reader.key_name(node) for node in reader.nodes.used() if node.place != Place.NOWHERE}


class Memory:
    """The records of an arena, as objects of their declared types."""

    def __init__(self, memory: bytes | bytearray) -> None:
        self.memory = memory

    @property
    def header(self) -> ArenaHeader:
        return unpack(ArenaHeader, memoryview(self.memory))

    def region(self, region: Region) -> RegionRecord:
        return unpack(RegionRecord, memoryview(self.memory), REGIONS_OFFSET + region * size_of(RegionRecord))

    def record(self, region: Region, index: int) -> Any:
        return self.table(region)[index]

    def table(self, region: Region) -> Table[Any]:
        return Table(memoryview(self.memory), region, REGION_RECORDS[region])

    def records(self, region: Region) -> list[Any]:
        """Every record that was ever used."""
        return list(self.table(region).used())

    def all_records(self, region: Region) -> list[Any]:
        """Every record, also of regions that do not count their used records."""
        return list(self.table(region))

    def in_use(self) -> dict[str, int]:
        """The number of records in use, for each region whose records are allocated one by one."""
        regions = (Region.OPS, Region.NODES, Region.WATERMARKS, Region.BLOCKS, Region.IDS, Region.ANSWERS)
        return {region.name: self.region(region).in_use for region in regions}

    def keys_in_use(self) -> int:
        """The number of watched keys and watermarks. A key counts once for each kind of its watchers."""
        firsts = [node for node in self.records(Region.NODES) if node.place == Place.FIRST]
        return len(firsts) + sum(1 for watermark in self.records(Region.WATERMARKS) if watermark.used)

    def count(self, name: str, purgatory: int | None = None) -> int:
        """A counter of the daemon, or of a purgatory."""
        if purgatory is None:
            counter: int = self.record(Region.DAEMON_COUNTERS, index_of(DAEMON_COUNTERS, name)).value
        else:
            index = purgatory * PURGATORY_COUNTERS_MAX + index_of(PURGATORY_COUNTERS, name)
            counter = self.record(Region.PURGATORY_COUNTERS, index).value
        return counter
