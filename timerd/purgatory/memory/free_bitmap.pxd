"""Free watch nodes and keys: a bit for each record, in the daemon's memory, instead of a chain through the records.

So any record can be allocated. An operation gets the node and the key of its own index if they are free. Then all three
are co-located, and one prefetch of the operation brings its node and its key too. A start sets the bits anew.
"""

from libc.stdint cimport uint32_t, uint64_t
from timerd_shm.generated.records cimport *

from .state cimport SPARE_BITS, Spares
from .arena cimport Arena
from .builtins cimport __builtin_ctzll
from .transaction cimport TD_ORDERED_STORE


cdef extern from *:
    """
    #define GROUP_BITS (SPARE_BITS * SPARE_BITS) /* a word of `occupied` stands for so many records */
    #define NOBODY 0xFFFFFFFFu /* an index that no record has: the new record is co-located with nothing */
    """
    enum:
        GROUP_BITS
    const uint32_t NOBODY


cdef inline void set_spare(Spares *s, uint32_t index) noexcept nogil:
    s.bits[index // SPARE_BITS] |= <uint64_t>1 << (index & (SPARE_BITS - 1))
    s.occupied[index // GROUP_BITS] |= <uint64_t>1 << ((index // SPARE_BITS) & (SPARE_BITS - 1))


cdef inline void free_spares(Arena *a, uint32_t index) noexcept nogil:
    """Free the node and the key of an index. The caller counts them."""
    cdef uint32_t word = index // SPARE_BITS, group = index // GROUP_BITS
    cdef uint64_t bit = <uint64_t>1 << (index & (SPARE_BITS - 1)), occupied = <uint64_t>1 << (word & (SPARE_BITS - 1))
    a.slab.nodes.bits[word] |= bit
    a.slab.keys.bits[word] |= bit
    a.slab.nodes.occupied[group] |= occupied
    a.slab.keys.occupied[group] |= occupied


cdef inline bint allocate_spares(Arena *a, uint32_t index) noexcept nogil:
    """Allocate the node and the key of an index below both high waters; False if one of them is in use."""
    cdef uint32_t word = index // SPARE_BITS
    cdef uint64_t bit = <uint64_t>1 << (index & (SPARE_BITS - 1))
    if not a.slab.nodes.bits[word] & a.slab.keys.bits[word] & bit:
        return False
    clear_spare(&a.slab.nodes, index)
    clear_spare(&a.slab.keys, index)
    a.regions[REGION_NODES].in_use += 1
    a.regions[REGION_KEYS].in_use += 1
    return True


cdef inline void clear_spare(Spares *s, uint32_t index) noexcept nogil:
    s.bits[index // SPARE_BITS] &= ~(<uint64_t>1 << (index & (SPARE_BITS - 1)))
    if s.bits[index // SPARE_BITS] == 0:
        s.occupied[index // GROUP_BITS] &= ~(<uint64_t>1 << ((index // SPARE_BITS) & (SPARE_BITS - 1)))


cdef inline uint32_t find_spare(Spares *s) noexcept nogil:
    """A free record (index + 1) below the high water, or 0. It looks at one word for each 4,096 records at most."""
    cdef uint32_t word, group
    for group in range((s.words + SPARE_BITS - 1) // SPARE_BITS):
        if s.occupied[group]:
            word = group * SPARE_BITS + __builtin_ctzll(s.occupied[group])
            return word * SPARE_BITS + __builtin_ctzll(s.bits[word]) + 1
    return 0


cdef inline void raise_high_water(Arena *a, int region, Spares *s, uint32_t index) noexcept nogil:
    """Raise a region's high water to this record. The records between are free. The word is stored before any is reached."""
    cdef RegionRecord *r = a.regions + region
    cdef uint32_t i = r.high_water
    # A word at a time: with one key watched by a million operations, the next key may stand a million records on.
    while i < index:
        if i & (SPARE_BITS - 1) == 0 and index - i >= SPARE_BITS:
            s.bits[i // SPARE_BITS] = ~<uint64_t>0
            s.occupied[i // GROUP_BITS] |= <uint64_t>1 << ((i // SPARE_BITS) & (SPARE_BITS - 1))
            i += SPARE_BITS
        else:
            set_spare(s, i)
            i += 1
    TD_ORDERED_STORE(
        a.base, RegionRecord_word_high_water(r),
        RegionRecord_with_high_water(RegionRecord_word_high_water(r)[0], index + 1),
    )


cdef inline uint32_t allocate_spare(Arena *a, int region, Spares *s, uint32_t colocated) noexcept nogil:
    """Allocate a record (index + 1): that of index `colocated` if it is free, else any; 0 when all are in use."""
    cdef RegionRecord *r = a.regions + region
    cdef uint32_t got
    if colocated < r.high_water and s.bits[colocated // SPARE_BITS] >> (colocated & (SPARE_BITS - 1)) & 1:
        clear_spare(s, colocated)
        r.in_use += 1
        return colocated + 1
    if r.high_water <= colocated < r.count:
        raise_high_water(a, region, s, colocated)
        r.in_use += 1
        return colocated + 1
    got = find_spare(s)
    if got:
        clear_spare(s, got - 1)
    elif r.high_water < r.count:
        got = r.high_water + 1
        raise_high_water(a, region, s, got - 1)
    else:
        return 0
    r.in_use += 1
    return got


cdef inline void free_spare(Arena *a, int region, Spares *s, uint32_t index) noexcept nogil:
    """Free a record."""
    set_spare(s, index)
    a.regions[region].in_use -= 1
