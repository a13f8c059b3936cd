"""What is settled later, as the fast path sees it: the fields, and how an outcome's record settles them."""

from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t
from timerd_shm.generated.records cimport *

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *one)


cdef inline tuple settlement_of(const OutcomeRecord *record, object value, uint64_t arena):
    """The settlement that a record makes. The garbage collector does not track it: nothing in it can be in a cycle."""
    cdef tuple settlement = (PyBytes_FromStringAndSize(<const char *>record, sizeof(OutcomeRecord)), value, arena, None)
    PyObject_GC_UnTrack(<void *>settlement)
    return settlement


cdef class Promised:
    cdef object __weakref__
    cdef public object _link
    cdef object callbacks
    cdef object settled_by


cdef class Handle(Promised):
    cdef public object _names
    cdef public object payload
    cdef public object _reply
    cdef public object _id
    cdef public uint64_t command
    cdef public uint64_t deadline_ns
    cdef object value
    cdef uint64_t arena
    cdef bint recorded  # `record` says how it has settled
    cdef OutcomeRecord record

    cdef inline bint settle_record(self, const OutcomeRecord *record, object value, uint64_t arena) noexcept:
        """Do what settle() does, with a record of a report."""
        if self.recorded or self.settled_by is not None:
            return False
        self.record = record[0]
        self.value = value
        self.arena = arena
        self.recorded = True
        return self.callbacks is not None


cdef struct Part:
    uint64_t first  # command number
    int64_t row
    int64_t rows


cdef class Rows(Promised):
    """The outcomes by row: a column of records, a column of values, and a dict of all that is not a plain record."""

    cdef public int64_t left
    cdef int64_t rows
    cdef Part *parts
    cdef int64_t part_count
    cdef OutcomeRecord *cells  # a row without a record has the number 0
    cdef PyObject **column
    cdef uint64_t arena  # of the records
    cdef dict others  # {row: settlement}: local errors, and records of another arena

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
        self.settled_by = ()
        return self.callbacks is not None

    cdef inline bint settle_record(self, const OutcomeRecord *record, object value, uint64_t arena) except -1:
        """Do what settle() does, with a record of a report."""
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
