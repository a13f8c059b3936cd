"""Pending operations by command number: an open hash table. It holds one reference to each waiter.

An entry has three numbers that follow each other, because operations are usually registered one after another. If all
numbers are pending, each takes 14 to 28 bytes of the table; if only every third is pending, 43 to 85. Probing is
linear.
"""

from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    #define TABLE_FIRST 32u                /* entries of an empty table */
    #define ENTRY_ROWS 3u                  /* numbers in an entry; a line of the cache has two entries */
    #define GOLDEN 0x9E3779B97F4A7C15ull   /* 2^64 / golden ratio: spreads numbers that follow each other */
    #define prefetch(at) __builtin_prefetch((const void *)(at), 1)
    """
    const uint64_t TABLE_FIRST, ENTRY_ROWS, GOLDEN
    void prefetch(const void *at) noexcept nogil


cdef struct PendingEntry:
    uint64_t group  # number / 3 + 1; 0 = free
    PyObject *waiter[3]  # NULL = nobody waits for this number


cdef struct PendingTable:
    PendingEntry *row
    uint64_t mask
    uint64_t entries  # how many entries are not free
    uint64_t used  # how many numbers the entries have
    int shift


cdef inline int table_begin(PendingTable *table, uint64_t size) except -1:
    """Make an empty table of this size, a power of two. The caller frees the earlier entries."""
    cdef PendingEntry *made = <PendingEntry *>PyMem_RawCalloc(size, sizeof(PendingEntry))
    if made == NULL:
        raise MemoryError(f"a table of {size} entries")
    table.row, table.mask, table.shift = made, size - 1, 64
    while size > 1:
        size >>= 1
        table.shift -= 1
    return 0


cdef inline void table_free(PendingTable *table) noexcept nogil:
    PyMem_RawFree(table.row)


cdef inline uint64_t group_of(uint64_t number) noexcept nogil:
    return number // ENTRY_ROWS + 1


cdef inline uint64_t table_home(PendingTable *table, uint64_t group) noexcept nogil:
    """The entry at which probing for this group begins."""
    return (group * GOLDEN) >> table.shift


cdef inline PendingEntry *table_find(PendingTable *table, uint64_t group) noexcept nogil:
    """The entry of this group, or the free entry where it would go."""
    cdef uint64_t at = table_home(table, group)
    while table.row[at].group != group and table.row[at].group:
        at = (at + 1) & table.mask
    return table.row + at


cdef inline PyObject *table_get(PendingTable *table, uint64_t number) noexcept nogil:
    """The waiter of this number, as a borrowed reference; NULL if there is none."""
    return table_find(table, group_of(number)).waiter[number % ENTRY_ROWS]


cdef inline int table_reserve(PendingTable *table, uint64_t rows) except -1:
    """Make room for `rows` more consecutive numbers: adding them then cannot fail."""
    cdef PendingEntry *old = table.row
    cdef uint64_t size = table.mask + 1, at, needed = TABLE_FIRST, entries = table.entries + (rows + 4) // ENTRY_ROWS
    if entries * 4 <= size * 3 and (entries * 16 >= size or size == TABLE_FIRST):
        return 0
    while entries * 2 > needed:
        needed *= 2
    table_begin(table, needed)
    for at in range(size):
        if old[at].group:
            table_find(table, old[at].group)[0] = old[at]
    PyMem_RawFree(old)
    return 0


cdef inline void table_put(PendingTable *table, uint64_t number, PyObject *waiter) noexcept nogil:
    """Add a number that is not in the table. The table takes over the caller's reference. There must be room."""
    cdef PendingEntry *entry = table_find(table, group_of(number))
    if entry.group == 0:
        entry.group = group_of(number)
        table.entries += 1
    entry.waiter[number % ENTRY_ROWS] = waiter
    table.used += 1


cdef inline PyObject *table_remove(PendingTable *table, uint64_t number) noexcept nogil:
    """Remove a number. The caller takes over the reference to the waiter. NULL = there is no waiter."""
    cdef PendingEntry *entry
    cdef PyObject *waiter
    if number == 0:
        return NULL
    entry = table_find(table, group_of(number))
    waiter = entry.waiter[number % ENTRY_ROWS]
    if waiter == NULL:
        return NULL
    entry.waiter[number % ENTRY_ROWS] = NULL
    table.used -= 1
    if entry.waiter[0] == NULL and entry.waiter[1] == NULL and entry.waiter[2] == NULL:
        table_close(table, <uint64_t>(entry - table.row))
    return waiter


cdef inline void table_close(PendingTable *table, uint64_t hole) noexcept nogil:
    """Free an entry without numbers. Probing may have put other entries after it: these move into the hole."""
    cdef uint64_t at = hole, home
    table.entries -= 1
    while True:
        at = (at + 1) & table.mask
        if table.row[at].group == 0:
            break
        home = table_home(table, table.row[at].group)
        if ((at - home) & table.mask) >= ((at - hole) & table.mask):
            table.row[hole] = table.row[at]
            hole = at
    table.row[hole] = PendingEntry(0, [NULL, NULL, NULL])


# A pending operation was written long ago and is in no cache, so it is prefetched before its outcome is handled.


cdef inline void prefetch_entry(PendingTable *table, uint64_t number) noexcept nogil:
    prefetch(table.row + table_home(table, group_of(number)))


cdef inline void prefetch_waiter(PendingTable *table, uint64_t number) noexcept nogil:
    """Prefetch the waiter of a number. Call this when the entry itself is in the cache."""
    cdef PendingEntry *entry = table.row + table_home(table, group_of(number))
    if entry.group == group_of(number):  # otherwise the entry lies further on, and its waiter is not prefetched
        prefetch_handle(entry.waiter[number % ENTRY_ROWS])


cdef inline void prefetch_handle(PyObject *handle) noexcept nogil:
    """Prefetch the cache lines of a Handle, which has 80 bytes."""
    prefetch(handle)
    prefetch(<char *>handle + 64)
