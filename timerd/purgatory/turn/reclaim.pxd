"""Purgatories that hold nothing are reclaimed: their records are used for new names.

A purgatory holds something while there is an operation, a watermark or a remembered id of it, or an event in the ring:
a late registration may want the event. It is also kept while a live client has named it, because that client knows its
index. No counts are kept for this. When purgatories become short, a walk over all records notes in a mask which
purgatories hold something, and each command that is applied meanwhile notes its purgatory there. At the end of the
walk, the purgatories that are not in the mask are closed.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd.purgatory.memory.arena cimport Arena, capacity, spent
from timerd.purgatory.index.purgatories cimport close_purgatory, in_mask
from timerd.purgatory.events.ring cimport event_at
from timerd.purgatory.members.clients cimport is_live
from timerd_shm.generated.records cimport *


cdef extern from *:
    """
    enum { RECLAIM_NOTHING = 0, RECLAIM_OPS = 1, RECLAIM_WATERMARKS = 2, RECLAIM_IDS = 3, RECLAIM_EVENTS = 4 };
    """
    enum:
        RECLAIM_NOTHING
        RECLAIM_OPS
        RECLAIM_WATERMARKS
        RECLAIM_IDS
        RECLAIM_EVENTS


cdef inline uint64_t held_by(Arena *a, uint32_t part, uint64_t index) noexcept nogil:
    """The purgatory of a record, as a mask; 0 if the record holds none."""
    if part == RECLAIM_OPS:
        return in_mask(a.ops[index].purgatory) if a.ops[index].state != OP_STATE_FREE else 0
    if part == RECLAIM_WATERMARKS:
        return in_mask(a.watermarks[index].purgatory) if a.watermarks[index].used else 0
    if part == RECLAIM_IDS:
        return in_mask(a.ids[index].purgatory) if a.ids[index].state != ID_STATE_FREE else 0
    return in_mask(event_at(a, index).purgatory)


cdef inline uint64_t end_of(Arena *a, uint32_t part) noexcept nogil:
    """The index after the last record of that kind."""
    if part == RECLAIM_OPS:
        return a.regions[REGION_OPS].high_water
    if part == RECLAIM_WATERMARKS:
        return a.regions[REGION_WATERMARKS].high_water
    return a.regions[REGION_IDS].high_water if part == RECLAIM_IDS else a.header.newest + 1


cdef inline uint64_t named(Arena *a) noexcept nogil:
    """The purgatories that live clients have named."""
    cdef uint64_t mask = 0
    cdef uint32_t slot
    for slot in range(capacity(a, REGION_CLIENTS)):  # bound: clients
        if is_live(a, slot):
            mask |= a.clients[slot].purgatories
    return mask


cdef inline void begin_reclaim(Arena *a) noexcept nogil:
    """Begin a walk, unless one is under way."""
    if a.turn.reclaiming == RECLAIM_NOTHING:
        a.turn.reclaiming = RECLAIM_OPS
        a.turn.reclaim_at = 0
        a.turn.kept = 0


cdef inline bint reclaim(Arena *a) noexcept nogil:
    """Go on with a walk, if one was begun. At its end, close purgatories that hold nothing. False if work is left."""
    cdef uint64_t kept
    cdef uint32_t index
    if a.turn.reclaiming == RECLAIM_NOTHING:
        return True
    while a.turn.reclaiming <= RECLAIM_EVENTS:
        if a.turn.reclaiming == RECLAIM_EVENTS and a.turn.reclaim_at < a.header.tail:
            a.turn.reclaim_at = a.header.tail
        while a.turn.reclaim_at < end_of(a, a.turn.reclaiming):
            if spent(a):
                return False
            a.turn.touched += 1
            a.turn.kept |= held_by(a, a.turn.reclaiming, a.turn.reclaim_at)
            a.turn.reclaim_at += 1
        a.turn.reclaiming += 1
        a.turn.reclaim_at = 0
    a.turn.reclaiming = RECLAIM_NOTHING
    kept = a.turn.kept | named(a) | in_mask(0)
    for index in range(capacity(a, REGION_PURGATORIES)):  # bound: purgatories
        if a.purgatories[index].state and not kept & in_mask(index):
            close_purgatory(a, index)
    return True
