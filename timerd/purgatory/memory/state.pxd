"""The state of the free records beside the arena. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint32_t
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define FREED 8 /* how many allocations early a free record is prefetched */
    """
    enum:
        FREED


ctypedef struct Slab:
    # Of each region, its newest free records (index + 1), by their position in the chain modulo FREED.
    uint32_t newest[REGION_COUNT][FREED]
