"""Checks whether a daemon may attach to an existing arena: of this layout, this boot and this configuration."""

from __future__ import annotations

from timerd.config.config import dashed
from timerd_shm.declare import layout
from timerd_shm.declare.errors import ArenaNotReadyError, ArenaTruncatedError, LayoutMismatchError
from timerd_shm.declare.fields import struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.records import ArenaHeader, RegionRecord

from .plan import SIZED_BY, ArenaPlan


def check_arena(view: memoryview, plan: ArenaPlan, boot: bytes) -> None:
    """Check that this daemon may attach to the arena in `view`.

    Raises ArenaNotReadyError (the arena is unfinished, or it is of another boot, so that its times mean nothing),
    ArenaTruncatedError, and LayoutMismatchError (a version, a size or the tick differs: the error names both values).
    """
    if not any(view[: layout.HEADER_SIZE]):
        raise ArenaNotReadyError("nothing was written into it yet")
    if len(view) < layout.HEADER_SIZE:
        raise LayoutMismatchError(f"the {len(view)} bytes are no arena: the header alone has {layout.HEADER_SIZE}")
    header = unpack(ArenaHeader, view)
    if header.layout_version == 0 and header.magic == layout.MAGIC:
        raise ArenaNotReadyError("it was not finished")
    for what, found, wanted in (
        ("magic", header.magic, layout.MAGIC),
        ("layout version", header.layout_version, layout.LAYOUT_VERSION),
        ("fingerprint", f"0x{header.fingerprint:08x}", f"0x{layout.fingerprint():08x}"),
    ):
        if found != wanted:
            raise LayoutMismatchError(f"the arena's {what} is {found!r}, and this daemon's {wanted!r}")
    if len(view) < header.size:
        raise ArenaTruncatedError(f"the arena has {len(view)} bytes, and its header says {header.size}")
    if header.boot_id != boot:
        raise ArenaNotReadyError("the arena is of another boot of this machine, so its times mean nothing any more")
    row = struct_of(RegionRecord).size
    for region in Region:
        record = unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * row)
        if record.count != plan.regions[region].count:
            what = dashed(SIZED_BY[region]) if region in SIZED_BY else f"number of records in {region.name}"
            raise LayoutMismatchError(
                f"the arena's {what} is {record.count}, and the configuration asks for {plan.regions[region].count}"
            )
        if record.offset != plan.regions[region].offset:
            raise LayoutMismatchError(
                f"the arena has {region.name} at {record.offset}, and the configuration asks for it at "
                f"{plan.regions[region].offset}"
            )
    for what, found, wanted in (("size", header.size, plan.size), ("tick_ns", header.tick_ns, plan.tick_ns)):
        if found != wanted:
            raise LayoutMismatchError(f"the arena's {what} is {found}, and the configuration asks for {wanted}")
