"""Who waits for many: spans of command numbers that follow each other, in order, with one reference each.

A batch of a thousand would have a thousand places in the table of places.pxd; here it has a span and a bit for each.
What is found here is near: the spans of all batches that wait lie side by side, and so do their bits.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

cdef extern from *:
    """
    #define SPAN_ROWS_MIN 16u  /* fewer numbers have places of their own */
    #define SPANS_FIRST 16     /* that a list has room for */
    """
    const uint64_t SPAN_ROWS_MIN
    const int64_t SPANS_FIRST


cdef struct Span:
    uint64_t first
    uint64_t rows
    uint64_t left  # of them are waited for
    uint64_t *gone  # a bit for each of the others; NULL when none is left
    PyObject *waiter  # the same


cdef struct Spans:
    Span *row
    int64_t used
    int64_t room
    int64_t over  # spans of which nothing is left
    uint64_t left  # numbers that are waited for


cdef inline int64_t span_of(Spans *spans, uint64_t number) noexcept nogil:
    """The span in which this number lies, whether it is waited for or not; -1 = none."""
    cdef int64_t low = 0, high = spans.used, middle
    while low < high:
        middle = (low + high) // 2
        if spans.row[middle].first <= number:
            low = middle + 1
        else:
            high = middle
    low -= 1
    return low if low >= 0 and number - spans.row[low].first < spans.row[low].rows else -1


cdef inline bint span_has(Spans *spans, int64_t at, uint64_t number) noexcept nogil:
    """Whether the number is waited for in this span, which may be another one by now, or none (-1)."""
    cdef Span *one
    cdef uint64_t row
    if not 0 <= at < spans.used:
        return False
    one = spans.row + at
    if number < one.first or number - one.first >= one.rows or one.left == 0:
        return False
    row = number - one.first
    return one.gone[row >> 6] >> (row & 63) & 1 == 0


cdef inline PyObject *span_take(Spans *spans, int64_t at, uint64_t number) noexcept:
    """Remove a number that is waited for in this span; the reference is the caller's."""
    cdef Span *one = spans.row + at
    cdef PyObject *waiter = one.waiter
    cdef uint64_t row = number - one.first
    one.gone[row >> 6] |= <uint64_t>1 << (row & 63)
    one.left -= 1
    spans.left -= 1
    if one.left:
        Py_INCREF(<object>waiter)
    else:
        free(one.gone)
        one.gone, one.waiter = NULL, NULL
        spans.over += 1
    return waiter


cdef inline bint fits_behind(Spans *spans, uint64_t first) noexcept nogil:
    """Whether a span that begins with this number would be the last one."""
    cdef Span *last
    if spans.used == 0:
        return True
    last = spans.row + (spans.used - 1)
    return first > last.first and first - last.first >= last.rows  # their sum may be 2^64


cdef inline int span_add(Spans *spans, uint64_t first, uint64_t rows, object waiter) except -1:
    """Add a span behind the last one."""
    cdef int64_t at, kept = 0
    cdef Span *grown
    cdef uint64_t *gone
    if 2 * spans.over > spans.used:
        for at in range(spans.used):
            if spans.row[at].left:
                spans.row[kept] = spans.row[at]
                kept += 1
        spans.used, spans.over = kept, 0
    if spans.used == spans.room:
        grown = <Span *>realloc(spans.row, max(2 * spans.room, SPANS_FIRST) * sizeof(Span))
        if grown == NULL:
            raise MemoryError(f"a list of {2 * spans.room} spans")
        spans.row, spans.room = grown, max(2 * spans.room, SPANS_FIRST)
    gone = <uint64_t *>calloc((rows + 63) // 64, sizeof(uint64_t))
    if gone == NULL:
        raise MemoryError(f"a span of {rows} commands")
    Py_INCREF(waiter)
    spans.row[spans.used] = Span(first, rows, rows, gone, <PyObject *>waiter)
    spans.used += 1
    spans.left += rows
    return 0
