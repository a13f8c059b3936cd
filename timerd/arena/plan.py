"""Plans an arena: which regions it has, how large each is, and what its header says.

The numbers come from a configuration, by name: a region's number of records from the knob in SIZED_BY, a word of the
header from the knob of that name. For example, a knob `quota_ids` is stored in the header's word `quota_ids`. If the
word has another name, Knob.word names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from timerd.config.config import KNOBS, Config, sizes_of
from timerd_shm.declare import layout
from timerd_shm.declare.fields import size_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import GROUPS_MAX, PURGATORIES_MAX, USERS_MAX
from timerd_shm.declare.records import ArenaHeader, RegionRecord

ANSWERS_DEFAULT = 16_384
ERRORS_DEFAULT = 64
LABELS = layout.PURGATORY_COUNTERS_MAX + layout.DAEMON_COUNTERS_MAX
# The regions whose number of records is a knob, and that knob. The capacity is first: other knobs are computed from it.
SIZED_BY = {
    Region.OPS: "capacity",
    Region.NODES: "nodes",
    Region.WATERMARKS: "watermarks",
    Region.BLOCKS: "blocks",
    Region.IDS: "ids",
    Region.EVENTS: "ring_events",
    Region.CLIENTS: "clients",
}
# Words of the header that a configuration may change in an existing arena: the word, and the knob.
CONFIGURED = {
    knob.word or name: name
    for name, knob in KNOBS.items()
    if knob.word or (knob.unit in ("count", "bytes", "duration") and name in ArenaHeader._fields)
}


class ArenaPlan(NamedTuple):
    """The plan of an arena: its regions in order, its size in bytes, and the configured words of its header."""

    capacity: int
    regions: tuple[RegionRecord, ...]
    size: int
    tick_ns: int
    words: Mapping[str, int]  # those of CONFIGURED

    def in_words(self) -> str:
        """The memory that the arena takes, in a sentence."""
        size = self.size / (1 << 20)
        return f"an arena of {self.capacity:,} operations takes {size:,.0f} MiB of memory, all of it from the start"


def plan_of(
    config: Config,
    *,
    answers: int | None = None,
    groups: int = GROUPS_MAX,
    purgatories: int = PURGATORIES_MAX,
    errors: int = ERRORS_DEFAULT,
) -> ArenaPlan:
    """The plan that a configuration asks for. A test may choose the numbers of records that no knob sets.

    The default capacity stays under 62 MiB, so that it fits a container's 64 MiB of /dev/shm.
    """
    sizes = sizes_of(config)
    capacity, ids, ring_events = (sizes[name] for name in ("capacity", "ids", "ring_events"))
    assert ring_events & (ring_events - 1) == 0, f"ring_events={ring_events} is not a power of two"
    answers = min(ANSWERS_DEFAULT, 4 * capacity) if answers is None else answers
    counts: dict[Region, int] = {
        **{region: sizes[name] for region, name in SIZED_BY.items()},
        **layout.FIXED_COUNTS,
        Region.SLOTS: ring_events,
        Region.KEY_TABLE: power_of_two((capacity + sizes["nodes"]) // 2),  # a record holds two heads
        Region.WATERMARK_TABLE: power_of_two(max(sizes["watermarks"] // 2, 1)),
        Region.HANDLES: power_of_two(2 * max(capacity, 8)),  # at most half full; 16 make one probing group
        Region.ID_TABLE: power_of_two(max(ids // 2, 1)),
        Region.ANSWERS: answers + sizes["clients"],  # one is reserved for each client, so that no client can use up all
        Region.GROUPS: groups,
        Region.PURGATORIES: purgatories,
        Region.PURGATORY_COUNTERS: purgatories * layout.PURGATORY_COUNTERS_MAX,
        Region.DAEMON_COUNTERS: layout.DAEMON_COUNTERS_MAX,
        Region.HISTOGRAMS: purgatories * len(layout.Histogram) + len(layout.DaemonHistogram),
        Region.COUNTER_LABELS: LABELS,
        Region.ERRORS: errors,
        Region.USERS: USERS_MAX,
        Region.ACCOUNTS: sizes["clients"] + USERS_MAX * (groups + 1),
    }
    regions: list[RegionRecord] = []
    offset = layout.HEADER_SIZE
    for region, record in layout.REGION_RECORDS.items():
        link = layout.free_link(region)
        regions.append(RegionRecord(offset, size_of(record), counts[region], 0, 0, 0, link))
        offset += aligned(counts[region] * size_of(record))
    words = {word: sizes[name] for word, name in CONFIGURED.items()}
    words["quota_answers"] = min(words["quota_answers"], counts[Region.ANSWERS])  # no more than the region has
    return ArenaPlan(capacity, tuple(regions), offset, config.tick, words)


def plan_arena(
    capacity: int,
    *,
    answers: int | None = None,
    groups: int = GROUPS_MAX,
    purgatories: int = PURGATORIES_MAX,
    errors: int = ERRORS_DEFAULT,
    **knobs: Any,
) -> ArenaPlan:
    """The plan for `capacity` operations, with these knobs, and with the numbers of records that plan_of() takes."""
    config = Config(capacity=capacity, **knobs)
    return plan_of(config, answers=answers, groups=groups, purgatories=purgatories, errors=errors)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less than `least`, which is at least 1."""
    return 1 << (least - 1).bit_length()


def aligned(size: int) -> int:
    """`size` rounded up to where the next region may begin."""
    return -(-size // layout.REGION_ALIGN) * layout.REGION_ALIGN
