"""The state of the wheel beside the arena's records. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define JOINED 7 /* how far hints reach: a line comes from memory in the time of 7 steps of a sweep */
    """
    enum:
        JOINED


ctypedef struct Joined:
    # Operations of a bucket (index + 1). `op`: a ring of the last JOINED that joined it, from which the `prefetch_hint`
    # of each is made. `first`: the first JOINED that joined it, to which no hint leads.
    uint32_t at
    uint32_t op[JOINED]
    uint32_t first[JOINED]
    uint32_t reserved  # so that the struct has a cache line


ctypedef struct Wheel:
    uint64_t tick_ns
    uint64_t ticks_per_2_64  # 2**64 // tick_ns
    uint64_t owed[LEVELS]  # records that the sweep of each level has still to move in the present tick
    uint64_t visited_tick  # the last tick that was swept
    Joined *joined  # for each bucket


cdef inline bint make_wheel(Wheel *w, uint64_t tick_ns, uint32_t buckets) noexcept nogil:
    """False if there is no memory. (A tick of 0 is refused later, as damage.)"""
    w.tick_ns = tick_ns
    w.ticks_per_2_64 = <uint64_t>0xFFFFFFFFFFFFFFFF // tick_ns if tick_ns else 0
    w.joined = <Joined *>calloc(buckets, sizeof(Joined))
    return w.joined != NULL


cdef inline void drop_wheel(Wheel *w) noexcept nogil:
    free(w.joined)
