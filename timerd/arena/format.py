"""Formats an arena: header, region table, labels. The layout version is written last, as the sign of a whole arena."""

from __future__ import annotations

import secrets

from timerd_shm.declare import layout
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS
from timerd_shm.declare.fields import offset_of, size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import UID_UNKNOWN
from timerd_shm.declare.records import ArenaHeader, CounterLabel, PurgatoryRecord, RegionRecord, UserRecord

from .plan import ArenaPlan

PURGATORY_DEFAULT = b"default"
VERSION_WORD = offset_of(ArenaHeader, "layout_version") // 8


def format_arena(
    view: memoryview,
    plan: ArenaPlan,
    *,
    instance: str = "default",
    boot: bytes = bytes(16),
    incarnation: int | None = None,
    wall_ns: int = 0,
) -> None:
    """Write an empty arena into `view`, which is all zero and has `plan.size` bytes. The core makes the derived fields.

    `incarnation` is random unless a test gives it. The core enters the seed of its hashes.
    """
    assert len(view) == plan.size, f"len(view)={len(view)}; plan.size={plan.size}"
    nothing = unpack(ArenaHeader, bytes(size_of(ArenaHeader)))
    header = nothing._replace(
        magic=layout.MAGIC,
        fingerprint=layout.fingerprint(),
        header_size=layout.HEADER_SIZE,
        incarnation=secrets.randbits(64) or 1 if incarnation is None else incarnation,
        size=plan.size,
        boot_id=boot,
        tick_ns=plan.tick_ns,
        instance=instance.encode(),
        created_wall_ns=wall_ns,
        region_count=len(plan.regions),
        tail=1,  # the ring is empty: its tail is after its newest event
        **plan.words,
    )
    struct_of(ArenaHeader).pack_into(view, 0, *header)
    row = struct_of(RegionRecord)
    for region in Region:
        record = plan.regions[region]
        if region in (Region.PURGATORIES, Region.USERS):
            record = record._replace(high_water=1, in_use=1)
        row.pack_into(view, layout.REGIONS_OFFSET + region * row.size, *record)
    first = PurgatoryRecord(1, len(PURGATORY_DEFAULT), 0, 0, PURGATORY_DEFAULT, 0, 0)
    struct_of(PurgatoryRecord).pack_into(view, plan.regions[Region.PURGATORIES].offset, *first)
    others = UserRecord(1, 0, 0, UID_UNKNOWN)
    struct_of(UserRecord).pack_into(view, plan.regions[Region.USERS].offset, *others)
    write_labels(view, plan.regions[Region.COUNTER_LABELS])
    with view.cast("Q") as words:
        words[VERSION_WORD] = layout.LAYOUT_VERSION


def write_labels(view: memoryview, region: RegionRecord) -> None:
    """Write names and units of this daemon's counters: an arena may be older than the daemon that attaches to it."""
    label = struct_of(CounterLabel)
    row = 0
    for scope, table in ((1, PURGATORY_COUNTERS), (2, DAEMON_COUNTERS)):
        for index, counter in enumerate(table):
            offset = region.offset + row * label.size
            label.pack_into(view, offset, scope, index, counter.name.encode(), counter.unit.encode())
            row += 1
