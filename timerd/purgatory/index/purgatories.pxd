"""Purgatories by their names.

The record of a purgatory that holds nothing is used for another name (turn/reclaim.pxd). So a mark may be older than
the purgatory. An earlier purgatory of the same name may then have had events after the mark, which have left the ring.
Such a mark counts as too old (`is_before`).
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from timerd.purgatory.memory.arena cimport Arena, capacity
from timerd.purgatory.memory.commit cimport commit
from timerd.purgatory.memory.counters cimport counter, histogram
from timerd.purgatory.memory.transaction cimport td_put
from timerd_shm.generated.records cimport *

cdef extern from *:
    """
    _Static_assert(PURGATORIES_MAX <= 64, "in_mask(): a bit for each purgatory");
    """


cdef inline uint64_t in_mask(uint32_t purgatory) noexcept nogil:
    """A purgatory as a mask: one bit."""
    return <uint64_t>1 << (purgatory & 63)


cdef inline bint purgatory_is_open(Arena *a, uint32_t purgatory) noexcept nogil:
    return (
        purgatory < PURGATORIES_MAX and purgatory < capacity(a, REGION_PURGATORIES)
        and a.purgatories[purgatory].state != 0
    )


cdef inline bint is_before(Arena *a, uint64_t mark, uint32_t purgatory) noexcept nogil:
    """Whether events of an earlier purgatory of this name may have followed this mark, and have left the ring."""
    return mark < a.purgatories[purgatory].born and mark < a.header.purgatories_floor


cdef inline uint32_t share_of_purgatories(uint32_t count, uint32_t pid) noexcept nogil:
    """How many of `count` purgatories a process may make. All unknown processes (pid 0) share twice as many."""
    return max(count // 4, <uint32_t>4) if pid else max(count // 2, <uint32_t>8)


cdef inline void fill_purgatory(
    Arena *a, PurgatoryRecord *p, const char *name, uint32_t length, uint32_t pid, uint64_t start_ticks
) noexcept nogil:
    p.name_length = length
    memset(p.name, 0, NAME_SIZE_MAX)
    memcpy(p.name, name, length)
    p.maker_pid = pid
    p.maker_start_ticks = start_ticks
    p.born = a.header.newest


cdef inline void clear_statistics(Arena *a, uint32_t index) noexcept nogil:
    """Zero the counters of a new purgatory: another purgatory may have had the record before."""
    memset(counter(a, index, 0), 0, PURGATORY_COUNTERS_MAX * sizeof(uint64_t))
    memset(histogram(a, index, 0), 0, HISTOGRAM_COUNT * sizeof(HistogramRecord))


cdef inline int find_purgatory(Arena *a, const char *name, uint32_t length) noexcept nogil:
    """The index of the purgatory of that name; -1 if there is none."""
    cdef PurgatoryRecord *p
    cdef int index
    for index in range(capacity(a, REGION_PURGATORIES)):  # bound: purgatories
        p = a.purgatories + index
        if p.state and p.name_length == length and memcmp(p.name, name, length) == 0:
            return index
    return -1


cdef inline uint32_t made_by(Arena *a, uint32_t pid, uint64_t start_ticks) noexcept nogil:
    """How many purgatories a process has made. The first one, "default", was made with the arena and does not count."""
    cdef PurgatoryRecord *p
    cdef uint32_t index, made = 0
    for index in range(1, capacity(a, REGION_PURGATORIES)):  # bound: purgatories
        p = a.purgatories + index
        made += p.state != 0 and p.maker_pid == pid and p.maker_start_ticks == start_ticks
    return made


cdef inline uint32_t most_made(Arena *a, uint32_t *pid) noexcept nogil:
    """The largest number of purgatories that one process has made, and the pid of this process; 0 = not known."""
    cdef PurgatoryRecord *p
    cdef uint32_t index, made, most = 0
    pid[0] = 0
    for index in range(1, capacity(a, REGION_PURGATORIES)):  # bound: purgatories
        p = a.purgatories + index
        made = made_by(a, p.maker_pid, p.maker_start_ticks) if p.state else 0
        if made > most:
            most = made
            pid[0] = p.maker_pid
    return most


cdef inline int open_purgatory(
    Arena *a, const char *name, uint32_t length, uint32_t pid, uint64_t start_ticks
) noexcept nogil:
    """The index of a new purgatory, made for that process; -1 when all are in use."""
    cdef PurgatoryRecord *p
    cdef uint32_t index = 0, count = capacity(a, REGION_PURGATORIES)
    while index < count and a.purgatories[index].state:  # bound: purgatories
        index += 1
    if index == count:
        return -1
    p = a.purgatories + index
    fill_purgatory(a, p, name, length, pid, start_ticks)
    clear_statistics(a, index)
    td_put(&a.tx, PurgatoryRecord_word_state(p), PurgatoryRecord_with_state(PurgatoryRecord_word_state(p)[0], 1))
    commit(a)
    a.regions[REGION_PURGATORIES].in_use += 1
    return index


cdef inline void close_purgatory(Arena *a, uint32_t index) noexcept nogil:
    """Free the record of a purgatory that holds nothing. Its events have left the ring."""
    cdef PurgatoryRecord *p = a.purgatories + index
    td_put(&a.tx, PurgatoryRecord_word_state(p), PurgatoryRecord_with_state(PurgatoryRecord_word_state(p)[0], 0))
    td_put(&a.tx, &a.header.purgatories_floor, a.header.tail - 1)
    commit(a)
    a.journal.purgatories[index] = 0
    a.regions[REGION_PURGATORIES].in_use -= 1
