"""Pending batches: for each batch the range of its command numbers, in order, and one reference to its waiter.

A batch of a thousand rows would need a thousand numbers in pending_table.pxd. Here it needs one range, and a bit for
each number. The ranges of all pending batches lie side by side, and so do the bits of a batch. So a search touches few
lines of the cache.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef extern from *:
    """
    #define BATCH_ROWS_MIN 16u  /* the numbers of smaller batches are in the table of pending_table.pxd */
    #define BATCHES_FIRST 16    /* the room of the first list */
    """
    const uint64_t BATCH_ROWS_MIN
    const int64_t BATCHES_FIRST


cdef struct PendingBatch:
    uint64_t first
    uint64_t rows
    uint64_t pending  # how many of its numbers are pending
    uint64_t *removed  # a bit for each number; 1 = no longer pending; NULL when no number is pending
    PyObject *waiter  # the waiter of all its numbers


cdef struct PendingBatches:
    PendingBatch *row
    int64_t used
    int64_t room
    int64_t empty  # batches in which no number is pending
    uint64_t pending  # numbers in all batches


cdef inline int64_t batch_before(PendingBatches *batches, uint64_t number) noexcept nogil:
    """The last batch whose range begins at this number or before it; -1 = none."""
    cdef int64_t low = 0, high = batches.used, middle
    while low < high:
        middle = (low + high) // 2
        if batches.row[middle].first <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef inline int64_t batch_of(PendingBatches *batches, uint64_t number) noexcept nogil:
    """The batch whose range has this number, pending or not; -1 = none."""
    cdef int64_t at = batch_before(batches, number)
    return at if at >= 0 and number - batches.row[at].first < batches.row[at].rows else -1


cdef inline bint batch_has(PendingBatches *batches, int64_t at, uint64_t number) noexcept nogil:
    """Whether the number is pending in the batch at this index. The index may be out of date, or -1 for none."""
    cdef PendingBatch *one
    cdef uint64_t row
    if not 0 <= at < batches.used:
        return False
    one = batches.row + at
    if number < one.first or number - one.first >= one.rows or one.pending == 0:
        return False
    row = number - one.first
    return one.removed[row >> 6] >> (row & 63) & 1 == 0


cdef inline PyObject *batch_remove(PendingBatches *batches, int64_t at, uint64_t number) noexcept:
    """Remove a number that is pending in this batch. The caller gets a reference to the waiter."""
    cdef PendingBatch *one = batches.row + at
    cdef PyObject *waiter = one.waiter
    cdef uint64_t row = number - one.first
    one.removed[row >> 6] |= <uint64_t>1 << (row & 63)
    one.pending -= 1
    batches.pending -= 1
    if one.pending:
        Py_INCREF(<object>waiter)
    else:
        free(one.removed)
        one.removed, one.waiter = NULL, NULL
        batches.empty += 1
    return waiter


cdef inline bint follows_last(PendingBatches *batches, uint64_t first) noexcept nogil:
    """Whether this number follows the numbers of all batches, so that a batch can begin with it."""
    cdef PendingBatch *last
    if batches.used == 0:
        return True
    last = batches.row + (batches.used - 1)
    return first > last.first and first - last.first >= last.rows  # their sum could overflow


cdef inline int batch_add(PendingBatches *batches, uint64_t first, uint64_t rows, object waiter) except -1:
    """Add a batch after all others."""
    cdef int64_t at, kept = 0
    cdef PendingBatch *grown
    cdef uint64_t *removed
    if 2 * batches.empty > batches.used:
        for at in range(batches.used):
            if batches.row[at].pending:
                batches.row[kept] = batches.row[at]
                kept += 1
        batches.used, batches.empty = kept, 0
    if batches.used == batches.room:
        grown = <PendingBatch *>realloc(batches.row, max(2 * batches.room, BATCHES_FIRST) * sizeof(PendingBatch))
        if grown == NULL:
            raise MemoryError(f"a list of {2 * batches.room} batches")
        batches.row, batches.room = grown, max(2 * batches.room, BATCHES_FIRST)
    removed = <uint64_t *>calloc((rows + 63) // 64, sizeof(uint64_t))
    if removed == NULL:
        raise MemoryError(f"a batch of {rows} commands")
    Py_INCREF(waiter)
    batches.row[batches.used] = PendingBatch(first, rows, rows, removed, <PyObject *>waiter)
    batches.used += 1
    batches.pending += rows
    return 0
