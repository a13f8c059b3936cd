"""What is remembered of free records, beside the arena. arena.pxd composes it into the Arena."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    #define SPARE_BITS 64 /* of a word of a bitmap */
    #define FREED 8 /* a free record is prefetched so many allocations early */
    """
    enum:
        SPARE_BITS
        FREED


ctypedef struct Spares:
    # The free records of a region below its high water (see memory/free_bitmap.pxd).
    uint64_t *bits
    uint64_t *occupied  # a bit for each word of `bits` that is not 0
    uint32_t words


ctypedef struct Slab:
    Spares nodes
    Spares keys
    # Of each other region, its newest free records (index + 1), by their position in the chain modulo FREED.
    uint32_t newest[REGION_COUNT][FREED]


cdef inline bint make_spares(Spares *s, uint32_t count) noexcept nogil:
    """Room for so many bits, all 0; False if there is no memory."""
    s.words = (count + SPARE_BITS - 1) // SPARE_BITS
    s.bits = <uint64_t *>calloc(s.words, 8)
    s.occupied = <uint64_t *>calloc((s.words + SPARE_BITS - 1) // SPARE_BITS, 8)
    return s.bits != NULL and s.occupied != NULL


cdef inline void drop_spares(Spares *s) noexcept nogil:
    free(s.bits)
    free(s.occupied)


cdef inline bint make_slab(Slab *s, uint32_t nodes, uint32_t keys) noexcept nogil:
    """False if there is no memory; drop_slab() frees what was made."""
    cdef bint made = make_spares(&s.nodes, nodes)
    return make_spares(&s.keys, keys) and made


cdef inline void drop_slab(Slab *s) noexcept nogil:
    drop_spares(&s.nodes)
    drop_spares(&s.keys)
