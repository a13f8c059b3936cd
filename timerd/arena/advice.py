"""Advice for a start that is refused: flags that fit the existing arena, or that make a new one small enough."""

from __future__ import annotations

import mmap
from typing import Any

from timerd.config.config import KNOBS, Config, dashed
from timerd_shm.declare import layout
from timerd_shm.declare.fields import struct_of, unpack
from timerd_shm.declare.limits import CAPACITY_MIN, REPLAY_WALK_MAX, RING_EVENTS_MIN
from timerd_shm.declare.records import ArenaHeader, RegionRecord

from .plan import SIZED_BY, plan_of


def flags_as_made(descriptor: int, config: Config) -> str:
    """The flags that make the configuration fit the arena; empty if no flags do: the arena may have another layout."""
    flags = []
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        if len(view) < layout.HEADER_SIZE or unpack(ArenaHeader, view).fingerprint != layout.fingerprint():
            return ""
        row = struct_of(RegionRecord).size
        counts = {region: unpack(RegionRecord, view, layout.REGIONS_OFFSET + region * row).count for region in SIZED_BY}
        tick_ns = unpack(ArenaHeader, view).tick_ns
    for region, name in SIZED_BY.items():  # the capacity first: the knobs that are computed from it fit then
        if plan_of(config).regions[region].count != counts[region]:
            change: dict[str, Any] = {name: counts[region]}
            config = config._replace(**change)
            flags.append(f"--{dashed(name)} {counts[region]}")
    if config.tick != tick_ns:
        flags.append(f"--tick {KNOBS['tick'].show(tick_ns)}")
    return " ".join(flags)


def flags_that_fit(config: Config, free: int) -> str:
    """A piece of the error: flags with which the arena fits into `free` bytes, as few and as mild as possible.

    Empty if no flags are enough.
    """

    def size(capacity: int, ring_events: int) -> int:
        return plan_of(config._replace(capacity=capacity, ring_events=ring_events)).size

    if size(config.capacity, config.ring_events) <= free:
        return "lower --capacity, "  # the failure had another cause than a lack of room
    ring = config.ring_events
    while ring > RING_EVENTS_MIN and size(config.capacity, ring) > free:
        ring //= 2
    # The ring is made smaller first, as long as it holds as many events as one registration may walk.
    if size(config.capacity, ring) <= free and ring >= REPLAY_WALK_MAX:
        return f"--ring-events {ring} would fit; else "
    # The largest capacity, rounded down to two digits and zeros. The ring stays, or is cut down to half of the room.
    ring = config.ring_events
    while ring > RING_EVENTS_MIN and size(CAPACITY_MIN, ring) > free // 2:
        ring //= 2
    low, high = CAPACITY_MIN, config.capacity
    if size(low, ring) > free:
        return ""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle, ring) <= free else (low, middle - 1)
    capacity = max(low // 10 ** (len(str(low)) - 2) * 10 ** (len(str(low)) - 2), CAPACITY_MIN)
    events = f" --ring-events {ring}" if ring != config.ring_events else ""
    return f"--capacity {capacity}{events} would fit; else "
