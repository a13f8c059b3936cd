"""A start checks an arena's header and region table, before the core follows any of their offsets."""

from __future__ import annotations

from timerd_shm.declare import layout
from timerd_shm.declare.errors import ArenaDamagedError, ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError
from timerd_shm.declare.fields import size_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import ArenaHeader, RegionRecord

POWERS_OF_TWO = (
    Region.EVENTS,
    Region.SLOTS,
    Region.KEY_TABLE,
    Region.WATERMARK_TABLE,
    Region.HANDLES,
    Region.ID_TABLE,
)


def damaged(what: str) -> ArenaDamagedError:
    """The refusal of a damaged arena. `what`: the part of it that names something that is not there."""
    return ArenaDamagedError(
        f"the arena is damaged: {what} names what is not there; `timerctl check` says more, `timerctl destroy` removes "
        "the arena with the operations in it"
    )


def damaged_record(region: int, index: int) -> ArenaDamagedError:
    """The refusal of an arena with that damaged record. A region beyond the last one stands for the header."""
    return damaged(f"record {index} of region {Region(region).name}" if region < len(Region) else "its header")


def check_header(memory: memoryview, fingerprint: int) -> None:
    """Refuse memory that is no arena of this layout. `fingerprint`: of the layout that the core was compiled from."""
    if memory.nbytes < layout.HEADER_SIZE:
        raise ArenaTruncatedError(f"the arena has {memory.nbytes} bytes; its header alone needs {layout.HEADER_SIZE}")
    header = unpack(ArenaHeader, memory)
    if header.layout_version == 0:
        raise ArenaNotReadyError("the arena was never finished (layout version 0): make it anew")
    if header.magic != layout.MAGIC:
        raise LayoutMismatchError(f"magic is {header.magic!r}, not {layout.MAGIC!r}")
    if header.layout_version != layout.LAYOUT_VERSION or header.fingerprint != fingerprint:
        raise LayoutMismatchError(
            f"the arena has layout {header.layout_version} (fingerprint 0x{header.fingerprint:08x}), this timerd "
            f"{layout.LAYOUT_VERSION} (0x{fingerprint:08x}): `timerctl destroy` it, or run the version that made it"
        )
    if header.size > memory.nbytes:
        raise ArenaTruncatedError(f"the arena's header says {header.size} bytes, but there are {memory.nbytes}")


def check_regions(memory: memoryview) -> None:
    """Refuse regions that overlap, that end beyond the arena, or that have other records than the core knows.

    The last transaction is finished by now. It may have changed the size in the header.
    """
    size, end = unpack(ArenaHeader, memory).size, layout.HEADER_SIZE
    if size > memory.nbytes:
        raise damaged(f"its redo slot (it makes the arena's size {size} bytes)")
    rows = {
        region: unpack(RegionRecord, memory, layout.REGIONS_OFFSET + region * size_of(RegionRecord))
        for region in Region
    }
    for region, row in rows.items():
        known = size_of(layout.REGION_RECORDS[region])
        length = row.count * row.record_size
        if row.free_link != layout.free_link(region) or row.count < _least(region, rows[Region.PURGATORIES].count):
            raise damaged(f"row {region} of its region table")
        if row.record_size != known or row.count == 0 or row.high_water > row.count:
            raise LayoutMismatchError(
                f"region {region}: {row.count} records of {row.record_size} bytes ({row.high_water} used), "
                f"expected size {known}"
            )
        if row.offset % 8 or row.offset < layout.HEADER_SIZE or row.offset + length > size:
            raise ArenaTruncatedError(f"region {region} at {row.offset} does not lie within {size} bytes")
        if row.offset < end:
            raise damaged(f"row {region} of its region table (it lies at {row.offset}, where another does)")
        if region in POWERS_OF_TWO and row.count & (row.count - 1):
            raise LayoutMismatchError(f"region {region} has {row.count} records, not a power of two")
        end = row.offset + length


def _least(region: Region, purgatories: int) -> int:
    """How many records of a region the core relies on."""
    return {
        Region.LEVELS: layout.LEVELS,
        Region.BUCKETS: layout.LEVELS * layout.BUCKETS,
        Region.DAEMON_COUNTERS: layout.DAEMON_COUNTERS_MAX,
        Region.PURGATORY_COUNTERS: purgatories * layout.PURGATORY_COUNTERS_MAX,
        Region.HISTOGRAMS: purgatories * len(layout.Histogram) + len(layout.DaemonHistogram),
    }.get(region, 1)
