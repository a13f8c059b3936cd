"""Attaching: pointers to the regions of a checked arena, and memory for what the core remembers beside them.

Not here: a transaction that a crash has cut off. redo.pxd finishes it before the regions are looked at.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.journal.state cimport drop_journal
from timerd.purgatory.index.state cimport drop_remembered, make_remembered
from timerd.purgatory.wheel.state cimport drop_wheel, make_wheel
from timerd.purgatory.events.state cimport drop_delivery, make_delivery
from timerd.purgatory.members.evictable cimport hoards_of
from timerd.purgatory.members.state cimport drop_members, make_members
from timerd.purgatory.turn.duty_cycle cimport last_turn_ns
from timerd_shm.generated.records cimport *

from .rebuild cimport rebuild
from .validate cimport Damage


cdef inline void *region_at(Arena *a, int region) noexcept nogil:
    return a.base + a.regions[region].offset


cdef inline void find_regions(Arena *a) noexcept nogil:
    """Take the positions of the regions from the table. start/header.py has checked it."""
    a.regions = <RegionRecord *>(a.base + REGIONS_OFFSET)
    a.ops = <OpRecord *>region_at(a, REGION_OPS)
    a.more_nodes = <WatchNode *>region_at(a, REGION_NODES)
    a.watermarks = <WatermarkRecord *>region_at(a, REGION_WATERMARKS)
    a.blocks = <Block *>region_at(a, REGION_BLOCKS)
    a.clients = <ClientRecord *>region_at(a, REGION_CLIENTS)
    a.levels = <LevelRecord *>region_at(a, REGION_LEVELS)
    a.buckets = <BucketRecord *>region_at(a, REGION_BUCKETS)
    a.events = <EventRecord *>region_at(a, REGION_EVENTS)
    a.slots = <SlotRecord *>region_at(a, REGION_SLOTS)
    a.first_nodes = capacity(a, REGION_OPS)
    a.key_heads = <uint32_t *>region_at(a, REGION_KEY_TABLE)
    a.watermark_heads = <uint32_t *>region_at(a, REGION_WATERMARK_TABLE)
    a.handles = <HandleRecord *>region_at(a, REGION_HANDLES)
    a.ids = <IdRecord *>region_at(a, REGION_IDS)
    a.id_heads = <uint32_t *>region_at(a, REGION_ID_TABLE)
    a.answers = <AnswerRecord *>region_at(a, REGION_ANSWERS)
    a.groups = <GroupRecord *>region_at(a, REGION_GROUPS)
    a.users = <UserRecord *>region_at(a, REGION_USERS)
    a.accounts = <AccountRecord *>region_at(a, REGION_ACCOUNTS)
    a.purgatories = <PurgatoryRecord *>region_at(a, REGION_PURGATORIES)
    a.counters = <uint64_t *>region_at(a, REGION_PURGATORY_COUNTERS)
    a.daemon = <uint64_t *>region_at(a, REGION_DAEMON_COUNTERS)
    a.histograms = <HistogramRecord *>region_at(a, REGION_HISTOGRAMS)
    a.daemon_histograms = a.histograms + capacity(a, REGION_HISTOGRAMS) - DAEMON_HISTOGRAM_COUNT
    a.key_mask = 2 * <uint64_t>capacity(a, REGION_KEY_TABLE) - 1
    a.watermark_mask = 2 * <uint64_t>capacity(a, REGION_WATERMARK_TABLE) - 1
    a.id_mask = 2 * <uint64_t>capacity(a, REGION_ID_TABLE) - 1
    a.slot_mask = capacity(a, REGION_SLOTS) - 1
    a.event_mask = capacity(a, REGION_EVENTS) - 1
    a.handle_mask = capacity(a, REGION_HANDLES) - 1


cdef inline bint make_rooms(Arena *a) noexcept nogil:
    """Allocate the memory of each room; False if there is none. drop_rooms() frees it."""
    return (
        make_remembered(&a.remembered, capacity(a, REGION_CLIENTS))
        and make_wheel(&a.wheel, a.header.tick_ns, capacity(a, REGION_BUCKETS))
        and make_delivery(&a.delivery)
        and make_members(
            &a.members, capacity(a, REGION_CLIENTS), capacity(a, REGION_GROUPS), capacity(a, REGION_OPS),
            hoards_of(a), capacity(a, REGION_IDS)
        )
    )


cdef inline void drop_rooms(Arena *a) noexcept nogil:
    drop_wheel(&a.wheel)
    drop_delivery(&a.delivery)
    drop_members(&a.members)
    drop_remembered(&a.remembered)
    drop_journal(&a.journal)


cdef inline bint attach_arena(Arena *a, uint64_t now_ns, Damage *damage) noexcept nogil:
    """Make the arena usable; False if a record is damaged, or there is no memory for the rooms."""
    a.tx.base = a.base
    a.turn.now_ns = now_ns
    a.turn.limit = NO_DEADLINE
    find_regions(a)
    # A start is a gap: the frames that it reads were sent after the last turn of the previous daemon.
    a.turn.before_gap_ns = last_turn_ns(a)
    if a.turn.before_gap_ns == 0:
        a.turn.before_gap_ns = NO_DEADLINE
    return make_rooms(a) and rebuild(a, damage)
