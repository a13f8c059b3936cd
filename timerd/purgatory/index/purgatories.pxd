"""Purgatories by their names. A purgatory keeps its record for ever."""

from libc.stdint cimport uint32_t
from libc.string cimport memcmp, memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *


cdef inline bint purgatory_is_open(Arena *a, uint32_t purgatory) noexcept nogil:
    return (
        purgatory < PURGATORIES_MAX and purgatory < capacity(a, REGION_PURGATORIES)
        and a.purgatories[purgatory].state != 0
    )


cdef inline void fill_purgatory(PurgatoryRecord *p, const char *name, uint32_t length) noexcept nogil:
    p.name_length = length
    memset(p.name, 0, NAME_SIZE_MAX)
    memcpy(p.name, name, length)


cdef inline int open_purgatory(Arena *a, const char *name, uint32_t length) noexcept nogil:
    """The index of the purgatory of that name, which is made if there is none; -1 when all are in use."""
    cdef PurgatoryRecord *p
    cdef int index, unused = -1
    for index in range(capacity(a, REGION_PURGATORIES)):
        p = a.purgatories + index
        if p.state == 0:
            unused = index if unused < 0 else unused
        elif p.name_length == length and memcmp(p.name, name, length) == 0:
            return index
    if unused < 0:
        return -1
    p = a.purgatories + unused
    fill_purgatory(p, name, length)
    td_put(&a.tx, PurgatoryRecord_word_state(p), PurgatoryRecord_with_state(PurgatoryRecord_word_state(p)[0], 1))
    commit(a)
    a.regions[REGION_PURGATORIES].in_use += 1
    return unused
