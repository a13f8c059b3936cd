"""Pending operations by command number: an open hash table. It holds one reference to each waiter.

Probing is linear. The entries of four numbers in a row lie side by side, in one line of the cache.
"""

from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free

cdef extern from *:
    """
    #define TABLE_FIRST 64u                /* entries of an empty table */
    #define GOLDEN 0x9E3779B97F4A7C15ull   /* 2^64 / golden ratio: spreads numbers that follow each other */
    #define prefetch(at) __builtin_prefetch((const void *)(at), 1)
    """
    const uint64_t TABLE_FIRST, GOLDEN
    void prefetch(const void *at) noexcept nogil


cdef struct PendingEntry:
    uint64_t number  # 0 = free
    PyObject *waiter


cdef struct PendingTable:
    PendingEntry *row
    uint64_t mask
    uint64_t used
    int shift


cdef inline int table_begin(PendingTable *table, uint64_t size) except -1:
    """Make an empty table of that size, a power of two. The caller frees the entries that there were before."""
    cdef PendingEntry *made = <PendingEntry *>calloc(size, sizeof(PendingEntry))
    if made == NULL:
        raise MemoryError(f"a table of {size} entries")
    table.row, table.mask, table.shift = made, size - 1, 66
    while size > 1:
        size >>= 1
        table.shift -= 1
    return 0


cdef inline uint64_t table_home(PendingTable *table, uint64_t number) noexcept nogil:
    """The entry at which probing for this number begins."""
    return ((((number >> 2) * GOLDEN) >> table.shift) << 2 | (number & 3)) & table.mask


cdef inline PendingEntry *table_find(PendingTable *table, uint64_t number) noexcept nogil:
    """The entry of that number, or else the free entry for it."""
    cdef uint64_t at = table_home(table, number)
    while table.row[at].number != number and table.row[at].number:
        at = (at + 1) & table.mask
    return table.row + at


cdef inline int table_reserve(PendingTable *table, uint64_t rows) except -1:
    """Make room for so many more numbers: adding them then cannot fail."""
    cdef PendingEntry *old = table.row
    cdef uint64_t size = table.mask + 1, at, needed = TABLE_FIRST
    if (table.used + rows) * 2 <= size and ((table.used + rows) * 16 >= size or size == TABLE_FIRST):
        return 0
    while (table.used + rows) * 4 > needed:
        needed *= 2
    table_begin(table, needed)
    for at in range(size):
        if old[at].number:
            table_find(table, old[at].number)[0] = old[at]
    free(old)
    return 0


cdef inline void table_put(PendingTable *table, uint64_t number, PyObject *waiter) noexcept nogil:
    """Add a number that is not in the table. The table takes over the caller's reference. There must be room."""
    cdef PendingEntry *entry = table_find(table, number)
    entry.number, entry.waiter = number, waiter
    table.used += 1


cdef inline PyObject *table_remove(PendingTable *table, uint64_t number) noexcept nogil:
    """Remove a number. The caller takes over the reference. NULL = nobody waits for it."""
    cdef uint64_t hole, at, home
    cdef PendingEntry *entry
    cdef PyObject *waiter
    if number == 0:
        return NULL
    entry = table_find(table, number)
    if entry.number == 0:
        return NULL
    waiter = entry.waiter
    table.used -= 1
    at = hole = <uint64_t>(entry - table.row)
    while True:  # an entry that was probed past the hole moves into the hole
        at = (at + 1) & table.mask
        if table.row[at].number == 0:
            break
        home = table_home(table, table.row[at].number)
        if ((at - home) & table.mask) >= ((at - hole) & table.mask):
            table.row[hole] = table.row[at]
            hole = at
    table.row[hole].number = 0
    return waiter


# A pending operation was written long ago and is in no cache, so it is prefetched before its outcome's turn.


cdef inline void prefetch_entry(PendingTable *table, uint64_t number) noexcept nogil:
    prefetch(table.row + table_home(table, number))


cdef inline void prefetch_waiter(PendingTable *table, uint64_t number) noexcept nogil:
    """To be called when the entry itself is in the cache."""
    cdef PendingEntry *entry = table.row + table_home(table, number)
    if entry.number == number:  # else the entry lies further on, and is not prefetched
        prefetch_handle(entry.waiter)


cdef inline void prefetch_handle(PyObject *handle) noexcept nogil:
    """Prefetch the cache lines of a Handle."""
    prefetch(handle)
    prefetch(<char *>handle + 64)
    prefetch(<char *>handle + 128)
    prefetch(<char *>handle + 192)
