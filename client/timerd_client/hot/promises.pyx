"""Promises: one operation (`Handle`), or the rows of a batch (`Rows`).

A request makes one object, and its outcome makes a block of bytes (`kept`). The garbage collector does not track a
Handle. A callback may be part of a cycle, but only until the operation settles: then the callbacks are called and
dropped.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.ref cimport Py_XDECREF
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy
from timerd_client.hot.pending_table cimport prefetch, prefetch_handle

from timerd_client.waiter import value_and_codes

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        Py_ssize_t tp_basicsize
        unsigned long tp_flags
        void *tp_traverse
        void *tp_clear
        void *tp_free
    const unsigned long Py_TPFLAGS_HAVE_GC
    void PyObject_Free(void *memory)
    void PyType_Modified(PyTypeObject *changed)
    PyObject *PyList_GET_ITEM(object column, Py_ssize_t row)  # a borrowed reference

cdef object _EMPTY = b""


cdef class Promised:
    def done(self):
        return self._settlement is not None

    @property
    def _unseen(self):
        return False

    def _has_settled(self):
        return self._settlement is not None

    def settle(self, command, settlement):
        if self._settlement is not None:
            return False
        self._settlement = settlement
        return self._callbacks is not None


@cython.no_gc
cdef class Handle(Promised):
    def __init__(self, link, command, names, payload, deadline_ns):
        self._link = link
        self.command = command
        self._names = names
        self.payload = payload
        self.deadline_ns = deadline_ns

    def __dealloc__(self):
        if self.kept != NULL:
            kept_free(self.kept)

    @property
    def _callbacks(self):
        return self.callbacks

    @_callbacks.setter
    def _callbacks(self, callbacks):
        self.callbacks = callbacks

    @property
    def _settlement(self):
        return None if self.kept == NULL else kept_settlement(self.kept, self.command)

    @_settlement.setter
    def _settlement(self, settlement):
        cdef Kept *before = self.kept
        self.kept = keep_whole(settlement)
        if before != NULL:
            kept_free(before)

    @property
    def _taken(self):
        if self.kept == NULL:
            return None
        self.kept.flags &= ~KEPT_UNSEEN
        return kept_settlement(self.kept, self.command)

    @property
    def _unseen(self):
        return self.kept != NULL and self.kept.flags & KEPT_UNSEEN != 0

    def done(self):
        if self.kept == NULL:
            return False
        self.kept.flags &= ~KEPT_UNSEEN
        return True

    def _has_settled(self):
        return self.kept != NULL

    def settle(self, command, settlement):
        if self.kept != NULL:
            return False
        self.kept = keep_whole(settlement)
        return self.callbacks is not None

    def revoke(self, command, settlement):
        self._settlement = settlement


def without_collector(type made not None):
    """Objects of Python classes have a header for the garbage collector. Without the header they are 16 bytes smaller.

    CPython supports such types ("a non GC dynamic type" in subtype_dealloc). `made` may add no fields to Handle's.
    """
    cdef PyTypeObject *changed = <PyTypeObject *>made
    # From CPython 3.12 on, __dict__ and __weakref__ stand before the object, where its size does not count them.
    before = made.__dictoffset__ or made.__weakrefoffset__
    if not issubclass(made, Handle) or changed.tp_basicsize != sizeof(Handle) or before:
        raise TypeError(f"{made} is no Handle without fields of its own")
    changed.tp_flags &= ~Py_TPFLAGS_HAVE_GC
    changed.tp_traverse = changed.tp_clear = NULL
    changed.tp_free = <void *>PyObject_Free
    PyType_Modified(changed)
    return made


cdef class Rows(Promised):
    def __init__(self, link, int64_t rows):
        self._link = link
        self.left = self.rows = rows
        self.others = {}
        self._unseen = set()
        if rows:
            self.cells = <OutcomeRecord *>calloc(rows, sizeof(OutcomeRecord))
            self.column = <PyObject **>calloc(rows, sizeof(PyObject *))
            if self.cells == NULL or self.column == NULL:
                raise MemoryError(f"the outcomes of {rows} operations")
        else:
            self._settlement = ()

    def __dealloc__(self):
        cdef int64_t row
        if self.column != NULL:
            for row in range(self.rows):
                Py_XDECREF(self.column[row])
        free(self.column)
        free(self.cells)
        free(self.parts)

    def done(self):
        if self._settlement is None:
            return False
        self._unseen.clear()
        return True

    def add_part(self, uint64_t first, int64_t row, int64_t rows):
        cdef Part *last
        cdef Part *made
        if self.part_count:
            last = self.parts + self.part_count - 1
            if last.first + <uint64_t>last.rows == first:
                last.rows += rows
                return
        made = <Part *>realloc(self.parts, (self.part_count + 1) * sizeof(Part))
        if made == NULL:
            raise MemoryError(f"{self.part_count + 1} parts of a batch")
        self.parts = made
        made[self.part_count] = Part(first, row, rows)
        self.part_count += 1

    def row_of(self, uint64_t command):
        return self.find(command)

    def commands(self):
        cdef int64_t at
        numbers = []
        for at in range(self.part_count):
            numbers += range(self.parts[at].first, self.parts[at].first + self.parts[at].rows)
        return iter(numbers)

    def settle(self, command, settlement):
        cdef int64_t row = self.find(command)
        if self.left == 0:
            return False
        if row >= 0:
            if row in self.others or self.cells[row].number:  # it has settled: an interrupted call is repeated
                return False
            self.others[row] = settlement
        return self.settle_one()

    def revoke(self, command, settlement):
        cdef int64_t row = self.find(command)
        self._unseen.discard(row)
        self.others[row] = settlement

    def settle_rest(self, settlement):
        cdef int64_t row
        for row in range(self.rows):
            if self.cells[row].number == 0:
                self.others.setdefault(row, settlement)
        self.left = 0
        self._settlement = ()

    def settlement(self, int64_t row):
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        other = self.others.get(row)
        if other is not None or self.cells[row].number == 0:
            return other
        return settlement_of(self.cells + row, value_of(self, row), self.arena)

    def copy_records(self, bytearray into not None, Py_ssize_t at):
        cdef int64_t row
        cdef char *to = room_in(into, at, self.rows)
        if self.others:
            return join_records([self.settlement(row) for row in range(self.rows)], into, at)
        for row in range(self.rows):
            if self.cells[row].number == 0:
                return False
        if self.rows:  # otherwise there are no cells
            memcpy(to, self.cells, self.rows * sizeof(OutcomeRecord))
        return True

    def states_in_records(self):
        cdef int64_t row
        states = PyBytes_FromStringAndSize(NULL, self.rows)
        cdef char *to = PyBytes_AS_STRING(states)
        for row in range(self.rows):
            to[row] = <char>self.cells[row].state
        for row, settlement in self.others.items():
            to[row] = 0 if settlement[0] is None else <char>(<OutcomeRecord *>PyBytes_AS_STRING(settlement[0])).state
        return states

    def values_in_records(self):
        cdef int64_t row
        values = [own_value_of(self, row) for row in range(self.rows)]
        for row, settlement in self.others.items():
            values[row] = value_and_codes(settlement)[0]
        return values


cdef inline object value_of(Rows rows, int64_t row):
    """The value of a row, followed by the codes of failed keys."""
    return _EMPTY if rows.column[row] == NULL else <object>rows.column[row]


cdef inline object own_value_of(Rows rows, int64_t row):
    """The value of a row, without the codes of failed keys."""
    value = value_of(rows, row)
    return value[:rows.cells[row].value_length] if rows.cells[row].flags & OUTCOME_FLAG_HAS_FAILURES else value


cdef char *room_in(bytearray into, Py_ssize_t at, Py_ssize_t records) except NULL:
    """A pointer to byte `at` of `into`. Raises IndexError unless `records` records fit there."""
    if not 0 <= at <= <Py_ssize_t>(len(into) - records * sizeof(OutcomeRecord)):
        raise IndexError(f"{records * sizeof(OutcomeRecord)} bytes from {at} on, in {len(into)}")
    return PyByteArray_AS_STRING(into) + at


cdef bint join_records(list settlements, bytearray into, Py_ssize_t at) except -1:
    """Like copy_records, for settlements of any form, into a buffer that has room for their records."""
    records = [one[0] for one in settlements if one is not None and one[0] is not None]
    if len(records) < len(settlements):
        return False
    into[at:at + len(records) * sizeof(OutcomeRecord)] = b"".join(records)
    return True


def copy_records(handles, bytearray into not None, Py_ssize_t at):
    cdef list those = list(handles)
    cdef Py_ssize_t rows = len(those), row
    cdef Handle one
    cdef PyObject *ahead
    cdef char *to = room_in(into, at, rows)
    for row in range(rows):
        if row + 8 < rows:
            prefetch_handle(PyList_GET_ITEM(those, row + 8))
        if row + 4 < rows:
            ahead = PyList_GET_ITEM(those, row + 4)
            if isinstance(<object>ahead, Handle):
                prefetch((<Handle>ahead).kept)
        one = those[row]
        if one.kept == NULL or one.kept.form == FORM_WHOLE:
            return join_records([each._settlement for each in those], into, at)
        write_record(one.kept, one.command, to + row * sizeof(OutcomeRecord))
    return True
