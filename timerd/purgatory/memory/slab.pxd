"""Slabs: the free records of a region, chained through the records. The record freed last is allocated first.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .state cimport FREED
from .arena cimport Arena
from .builtins cimport __builtin_prefetch
from .transaction cimport TD_ORDERED_STORE


cdef inline uint32_t *free_link(Arena *a, int region, uint32_t index) noexcept nogil:
    cdef RegionRecord *r = a.regions + region
    return <uint32_t *>(a.base + r.offset + <uint64_t>index * r.record_size + r.free_link)


cdef inline uint32_t allocate(Arena *a, int region) noexcept nogil:
    """Allocate a record (index + 1); 0 when all are in use."""
    cdef RegionRecord *r = a.regions + region
    cdef uint32_t got = r.free_head
    cdef uint32_t *link
    cdef uint32_t *newest = a.slab.newest[region] + (r.high_water - r.in_use - 1) % FREED
    if got:
        link = free_link(a, region, got - 1)
        r.free_head = link[0]
        # Each step of the chain is a cache miss: prefetch the record that is allocated a few commands later.
        newest[0] = link[1]
        if link[1]:
            __builtin_prefetch(free_link(a, region, link[1] - 1))
            __builtin_prefetch(<char *>free_link(a, region, link[1] - 1) - r.free_link)
            if region == REGION_OPS:
                __builtin_prefetch(a.ops[link[1] - 1].first_node)
    elif r.high_water < r.count:
        # Stored before anything leads to the record: a start looks no further than the high water.
        got = r.high_water + 1
        TD_ORDERED_STORE(
            a.base, RegionRecord_word_high_water(r), RegionRecord_with_high_water(RegionRecord_word_high_water(r)[0], got)
        )
    else:
        return 0
    r.in_use += 1
    return got


cdef inline void free_record(Arena *a, int region, uint32_t index) noexcept nogil:
    """Free a record. Its state word is FREE already."""
    cdef RegionRecord *r = a.regions + region
    cdef uint32_t *link = free_link(a, region, index)
    cdef uint32_t *newest = a.slab.newest[region] + (r.high_water - r.in_use) % FREED
    link[0] = r.free_head
    link[1] = newest[0]
    newest[0] = index + 1
    r.free_head = index + 1
    r.in_use -= 1
