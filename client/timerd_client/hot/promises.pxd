"""Promises on the fast path: their fields, and how an outcome's record settles them."""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t
from timerd_client.hot.kept cimport *
from timerd_shm.generated.records cimport *


cdef class Promised:
    pass


cdef class Handle(Promised):
    """A handle has 80 bytes: four handles take five lines of the cache.

    C methods would add a pointer, so there are none.
    """

    cdef object callbacks
    cdef Kept *kept  # the settlement; NULL = the operation is pending
    cdef public uint64_t command
    cdef public uint64_t deadline_ns
    cdef public object _link
    cdef public object _names
    cdef public object payload
    cdef public object _id  # None, or (id, purgatory, if_exists): few operations have an id


cdef inline bint settle_record(
    Handle handle, const OutcomeRecord *record, const char *value, uint64_t size, object shared, uint64_t arena
) except -1:
    """Like settle(), with a record of a report. A value of more than INLINE_MAX bytes is given as `shared`, too."""
    if handle.kept != NULL:
        return False
    if not is_usual(record, handle.command, size):
        handle.kept = keep_whole(settlement_of(record, PyBytes_FromStringAndSize(value, size), arena))
    elif size > INLINE_MAX:
        handle.kept = keep_record(record, FORM_SHARED, NULL, shared, arena)
    else:
        handle.kept = keep_record(record, <uint8_t>size, value, None, arena)
    if record.flags & OUTCOME_FLAG_GRANTED:
        handle.kept.flags |= KEPT_UNSEEN
    return handle.callbacks is not None


cdef struct Part:
    uint64_t first  # command number
    int64_t row
    int64_t rows


cdef class Rows(Promised):
    """The outcomes by row: a column of records, a column of values, and a dict of the other settlements."""

    cdef public object _link
    cdef public object _callbacks
    cdef public object _settlement
    cdef public int64_t left
    cdef int64_t rows
    cdef Part *parts
    cdef int64_t part_count
    cdef OutcomeRecord *cells  # a row without a record has the number 0
    cdef PyObject **column
    cdef uint64_t arena  # the arena of all records in `cells`
    cdef dict others  # {row: settlement}: errors, and records of another arena
    cdef readonly set _unseen  # rows that a grant has completed, and at which no caller has looked
    cdef public int64_t listed  # how many rows of this batch are in `grants` of settle_all

    cdef inline int64_t find(self, uint64_t command) noexcept:
        cdef int64_t at = self.part_count, row
        cdef Part *part
        while at:
            at -= 1
            part = self.parts + at
            if part.first <= command < part.first + <uint64_t>part.rows:
                row = part.row + <int64_t>(command - part.first)
                if row < self.rows:
                    return row
        return -1

    cdef inline bint settle_one(self) noexcept:
        self.left -= 1
        if self.left:
            return False
        self._settlement = ()
        return self._callbacks is not None

    cdef inline bint settle_record(self, const OutcomeRecord *record, object value, uint64_t arena) except -1:
        """Like settle(), with a record of a report."""
        cdef int64_t row = self.find(record.command)
        if self.left == 0:
            return False
        if row >= 0:
            if self.arena == 0:
                self.arena = arena
            if self.arena != arena or record.number == 0:
                self.others[row] = settlement_of(record, value, arena)
            else:
                self.cells[row] = record[0]
                if PyBytes_GET_SIZE(value):
                    Py_INCREF(value)
                    Py_XDECREF(self.column[row])
                    self.column[row] = <PyObject *>value
        return self.settle_one()
