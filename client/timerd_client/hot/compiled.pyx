"""What stands in the path of every request, compiled. python.py says what each of these is, and does the same.

Commands are written one behind the other into one piece of memory, from which frames are cut; who waits stands in an
open hash table, or in a list of spans if it waits for many; an operation keeps its outcome's record in itself. So a
request makes one object, and the garbage collector does not walk over it: it sees a Handle only if that has a callback,
and never what a Waiting holds. Both are let go of when they settle, and a link settles all when it is closed.

Under the GIL what is done here without calling anything happens at once. A caller therefore takes the link's lock only
if somebody holds it, who may be in the middle of something: see `enter`.
"""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy
from timerd_client.hot.places cimport *
from timerd_client.hot.spans cimport *
from timerd_client.hot.stretch cimport *
from timerd_client.hot.usual cimport *
from timerd_shm.generated.records cimport *

import threading
import time
from functools import update_wrapper

from timerd_shm.declare.fields import size_of
from timerd_shm.declare import wire

from timerd_client.conditions import ANY
from timerd_client.mark import Mark

from . import python

cdef extern from "Python.h":
    bint PyObject_GC_IsTracked(object one)
    void PyObject_GC_Track(void *one)
    void PyObject_GC_UnTrack(void *one)
    ctypedef struct PyTypeObject:
        object (*tp_new)(type made, tuple arguments, PyObject *named)

    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    PyObject *PyList_GET_ITEM(object column, Py_ssize_t row)  # without a reference

cdef extern from *:
    """
    /* An exported buffer would keep who closes an arena from letting go of it. */
    #define words_are_released(view) ((((PyMemoryViewObject *)(view))->flags & _Py_MEMORYVIEW_RELEASED) || \
        (((PyMemoryViewObject *)(view))->mbuf->flags & _Py_MANAGED_BUFFER_RELEASED))
    """
    bint words_are_released(object view)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *at)

cdef extern from *:
    """
    #define AHEAD 16u /* outcomes that are looked at together, before the turn of those before them */
    """
    const uint64_t AHEAD

cdef object _monotonic_ns = time.monotonic_ns
cdef int64_t ISSUED_MAX = python.ISSUED_MAX
cdef object _ANY = ANY
cdef object _ERROR = "error"
cdef object _EMPTY = b""
cdef tuple _NOTHING = ()

_sizes = (sizeof(CommandHeader), sizeof(RegisterCommand), sizeof(KeyCommand), sizeof(ReportHeader),
          sizeof(OutcomeRecord), sizeof(WireAnswer), PROTOCOL_VERSION)
if _sizes != (*map(size_of, (wire.CommandHeader, wire.RegisterCommand, wire.KeyCommand, wire.ReportHeader,
                             wire.OutcomeRecord, wire.WireAnswer)), wire.PROTOCOL_VERSION):
    raise ImportError("timerd_client.hot.compiled was compiled from other declarations than timerd_shm has: "
                      "run `make generate build`")


# who waits --------------------------------------------------------------------------------------------------------


cdef uint64_t number_of(object number):
    """A command number; 0, which none has, for what cannot be one."""
    try:
        return number if isinstance(number, int) else 0
    except OverflowError:
        return 0


@cython.final
cdef class Waiting:
    cdef Places places
    cdef Spans spans

    def __cinit__(self):
        places_begin(&self.places, PLACES_FIRST)

    def __dealloc__(self):
        cdef uint64_t at
        cdef int64_t one
        if self.places.row != NULL:
            for at in range(self.places.mask + 1):
                if self.places.row[at].number:
                    Py_DECREF(<object>self.places.row[at].waiter)
            free(self.places.row)
        for one in range(self.spans.used):
            if self.spans.row[one].left:
                Py_DECREF(<object>self.spans.row[one].waiter)
                free(self.spans.row[one].gone)
        free(self.spans.row)

    def __len__(self):
        return self.places.used + self.spans.left

    def __contains__(self, number):
        return self.find(number_of(number)) != NULL

    def __iter__(self):
        return iter(self.numbers())

    cdef list numbers(self):
        cdef uint64_t at
        cdef int64_t one
        cdef Span *span
        numbers = [self.places.row[at].number for at in range(self.places.mask + 1) if self.places.row[at].number]
        for one in range(self.spans.used):
            span = self.spans.row + one
            numbers += [span.first + at for at in range(span.rows) if span_has(&self.spans, one, span.first + at)]
        return sorted(numbers)

    cdef PyObject *find(self, uint64_t number) noexcept:
        """Who waits for it, without a reference; NULL = nobody."""
        cdef Place *place
        cdef int64_t at
        if number == 0:
            return NULL
        place = place_of(&self.places, number)
        if place.number:
            return place.waiter
        at = span_of(&self.spans, number)
        return self.spans.row[at].waiter if span_has(&self.spans, at, number) else NULL

    cdef inline PyObject *take(self, uint64_t number, int64_t span) noexcept:
        """Remove it; the reference is the caller's now. NULL = nobody waits. It is looked for in that span first."""
        cdef PyObject *waiter
        if span_has(&self.spans, span, number):
            return span_take(&self.spans, span, number)
        waiter = place_take(&self.places, number)
        if waiter != NULL:
            return waiter
        span = span_of(&self.spans, number)
        return span_take(&self.spans, span, number) if span_has(&self.spans, span, number) else NULL

    def items(self):
        return [(number, self[number]) for number in self.numbers()]

    def get(self, number, default=None):
        cdef PyObject *waiter = self.find(number_of(number))
        return default if waiter == NULL else <object>waiter

    def __getitem__(self, number):
        found = self.get(number)
        if found is None:
            raise KeyError(number)
        return found

    def __setitem__(self, number, waiter):
        cdef uint64_t one = number_of(number)
        if one == 0:
            raise KeyError(number)
        before = self.pop(one)  # it is let go of when the other one is there: what it then calls may come back here
        places_room(&self.places, 1)
        Py_INCREF(waiter)
        place_put(&self.places, one, <PyObject *>waiter)

    def pop(self, number, default=None):
        cdef PyObject *waiter = self.take(number_of(number), -1)
        if waiter == NULL:
            return default
        found = <object>waiter
        Py_DECREF(found)
        return found

    def add_all(self, uint64_t first, uint64_t rows, waiter):
        cdef uint64_t number
        if rows >= SPAN_ROWS_MIN and fits_behind(&self.spans, first):
            span_add(&self.spans, first, rows, waiter)
            return
        places_room(&self.places, rows)
        for number in range(first, first + rows):
            Py_INCREF(waiter)
            place_put(&self.places, number, <PyObject *>waiter)


# commands ---------------------------------------------------------------------------------------------------------


cdef class Line:
    cdef public bint closed
    cdef public bint sealed
    cdef public bint idle
    cdef public int64_t alarm
    cdef object guard
    cdef object is_locked  # its method: to look for it costs more than to call it
    cdef object clock

    def __init__(self, now_ns):
        self.alarm = ISSUED_MAX
        self.now_ns = now_ns
        self.lock = threading.Lock()

    @property
    def lock(self):
        return self.guard

    @lock.setter
    def lock(self, lock):
        self.guard, self.is_locked = lock, lock.locked

    @property
    def now_ns(self):
        return _monotonic_ns if self.clock is None else self.clock

    @now_ns.setter
    def now_ns(self, now_ns):
        self.clock = None if now_ns is _monotonic_ns else now_ns

    cdef inline uint64_t now(self) except? 0:
        cdef timespec at
        if self.clock is not None:
            return self.clock()
        clock_gettime(CLOCK_MONOTONIC, &at)
        return <uint64_t>at.tv_sec * 1_000_000_000 + <uint64_t>at.tv_nsec

    cdef inline bint enter(self) except -1:
        """Before the ledger is touched without calling anything: whether to `leave` after it.

        Whoever holds the lock may be in the middle of something and have lost the GIL.
        """
        if self.is_locked():
            self.guard.acquire()
            return True
        return False

    cdef inline int leave(self, bint entered) except -1:
        if entered:
            self.guard.release()
        return 0

    def wake(self):
        raise NotImplementedError

    def wake_if_due(self, int64_t issued):
        if self.idle or issued >= self.alarm:
            self.wake()

    cdef inline int ring(self, int64_t issued) except -1:
        """As wake_if_due(), without the lock held."""
        if self.idle or issued >= self.alarm:
            with self.guard:
                self.wake_if_due(issued)
        return 0


cdef class Ledger:
    """Command `issued - commands.count + 1 + i` is entry i of `commands`."""

    cdef public int64_t window
    cdef public int64_t issued
    cdef public int64_t applied
    cdef public Waiting waiting
    cdef public object incarnation
    cdef public object arena
    cdef Stretch commands
    cdef object words
    cdef int64_t newest_at
    cdef bint mapped  # `words` is a memoryview that is long enough

    def __cinit__(self):
        self.waiting = Waiting()
        self.words, self.newest_at = [0], 0

    def __init__(self, window):
        self.window = window

    def __dealloc__(self):
        stretch_free(&self.commands)

    cdef inline char *add(self, uint64_t size) noexcept:
        """Issue a command of that size, which the caller writes; there is room."""
        self.issued += 1
        return stretch_add(&self.commands, size)

    cdef Entry *entry(self, int64_t number) except NULL:
        cdef int64_t at = number - (self.issued - self.commands.count + 1)
        if not 0 <= at < self.commands.count:
            raise IndexError(f"command {number} is not kept; the {self.commands.count} up to {self.issued} are")
        return self.commands.entries + (self.commands.head + at)

    # commands

    @property
    def kept(self):
        return self.commands.count

    def issue(self, bytes command not None):
        stretch_room(&self.commands, PyBytes_GET_SIZE(command), 1)
        memcpy(self.add(PyBytes_GET_SIZE(command)), PyBytes_AS_STRING(command), PyBytes_GET_SIZE(command))
        return self.issued

    def issue_all(self, commands):
        cdef int64_t first = self.issued + 1
        for command in commands:
            self.issue(command)
        return first

    def command(self, number):
        cdef Entry *entry = self.entry(number)
        return PyBytes_FromStringAndSize(bytes_at(&self.commands, entry), entry.size)

    def replace(self, number, bytes command not None):
        stretch_replace(&self.commands, self.entry(number), PyBytes_AS_STRING(command), PyBytes_GET_SIZE(command))

    def fit(self, int64_t first, int64_t count, uint64_t size):
        return stretch_fit(self.entry(first), min(count, self.issued + 1 - first), size)

    def join(self, bytes header not None, int64_t first, int64_t count):
        cdef Py_ssize_t total = PyBytes_GET_SIZE(header)
        cdef int64_t at
        cdef Entry *entry
        cdef char *to
        if count == 0:
            return header
        entry = self.entry(first)
        self.entry(first + count - 1)
        for at in range(count):
            total += entry[at].size
        frame = PyBytes_FromStringAndSize(NULL, total)
        to = PyBytes_AS_STRING(frame)
        memcpy(to, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))
        stretch_copy(&self.commands, entry, count, to + PyBytes_GET_SIZE(header))
        return frame

    def drop(self, int64_t applied):
        cdef int64_t dropped = applied - (self.issued - self.commands.count)
        self.applied = applied
        if dropped > 0:
            stretch_drop(&self.commands, dropped)

    def begin_after(self, int64_t number):
        stretch_clear(&self.commands)
        self.issued = self.applied = number

    def move_purgatories(self, dict moved):
        cdef int64_t at
        cdef KeyCommand *command
        for at in range(self.commands.head, self.commands.head + self.commands.count):
            command = <KeyCommand *>bytes_at(&self.commands, self.commands.entries + at)  # bytes: never unaligned
            command.purgatory = moved.get(command.purgatory, command.purgatory)

    # the newest event

    def newest(self):
        return self.newest_sequence()

    cdef inline uint64_t newest_sequence(self) except? 0:
        if self.mapped and not words_are_released(self.words):
            return (<const volatile uint64_t *>PyMemoryView_GET_BUFFER(self.words).buf)[self.newest_at]
        return self.words[self.newest_at]

    def use_arena(self, words, int64_t index):
        self.mapped = type(words) is memoryview and words.format == "Q" and words.c_contiguous and 0 <= index < len(words)
        self.words, self.newest_at = words, index


# promises ---------------------------------------------------------------------------------------------------------


cdef tuple settlement_of(const OutcomeRecord *record, object value, uint64_t arena):
    """A record as a settlement, in which the garbage collector finds nothing."""
    cdef tuple settlement = (PyBytes_FromStringAndSize(<const char *>record, sizeof(OutcomeRecord)), value, arena, None)
    PyObject_GC_UnTrack(<void *>settlement)
    return settlement


cdef class Promised:
    cdef object __weakref__
    cdef public object _link
    cdef object callbacks
    cdef object settled_by

    def __init__(self, link):
        self._link = link

    @property
    def _callbacks(self):
        return self.callbacks

    @_callbacks.setter
    def _callbacks(self, callbacks):
        self.callbacks = callbacks
        if callbacks is not None and not PyObject_GC_IsTracked(self):  # a Handle, which may be part of a cycle now
            PyObject_GC_Track(<void *>self)

    @property
    def _settlement(self):
        return self.settled_by

    @_settlement.setter
    def _settlement(self, settlement):
        self.settled_by = settlement

    def done(self):
        return self.settled_by is not None

    def settle(self, command, settlement):
        if self.settled_by is not None:
            return False
        self.settled_by = settlement
        return self.callbacks is not None


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

    def __cinit__(self):
        PyObject_GC_UnTrack(<void *>self)  # until somebody gives it a callback

    def __init__(self, link, command, names, payload, deadline_ns):
        self._link = link
        self.command = command
        self._names = names
        self.payload = payload
        self.deadline_ns = deadline_ns

    @property
    def _settlement(self):
        if self.settled_by is None and self.recorded:
            self.settled_by = settlement_of(&self.record, self.value, self.arena)
        return self.settled_by

    @_settlement.setter
    def _settlement(self, settlement):
        self.settled_by = settlement
        self.recorded = False

    def done(self):
        return self.recorded or self.settled_by is not None

    def settle(self, command, settlement):
        if self.recorded or self.settled_by is not None:
            return False
        self.settled_by = settlement
        return self.callbacks is not None

    cdef inline bint take(self, const OutcomeRecord *record, object value, uint64_t arena) noexcept:
        """As settle(), for a record of a report."""
        if self.recorded or self.settled_by is not None:
            return False
        self.record = record[0]
        self.value = value
        self.arena = arena
        self.recorded = True
        return self.callbacks is not None


cdef struct Part:
    uint64_t first  # command
    int64_t row
    int64_t rows


cdef class Rows(Promised):
    """Columns: records, values, and what is neither, by row."""

    cdef public int64_t left
    cdef int64_t rows
    cdef Part *parts
    cdef int64_t part_count
    cdef OutcomeRecord *cells  # where number is 0, there is none
    cdef PyObject **column
    cdef uint64_t arena  # of the records
    cdef dict others  # {row: settlement} that is no record of that arena

    def __init__(self, link, int64_t rows):
        self._link = link
        self.left = self.rows = rows
        self.others = {}
        if rows:
            self.cells = <OutcomeRecord *>calloc(rows, sizeof(OutcomeRecord))
            self.column = <PyObject **>calloc(rows, sizeof(PyObject *))
            if self.cells == NULL or self.column == NULL:
                raise MemoryError(f"the outcomes of {rows} operations")
        else:
            self.settled_by = ()

    def __dealloc__(self):
        cdef int64_t row
        if self.column != NULL:
            for row in range(self.rows):
                Py_XDECREF(self.column[row])
        free(self.column)
        free(self.cells)
        free(self.parts)

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

    cdef inline int64_t find(self, uint64_t command) noexcept:
        cdef int64_t at = self.part_count
        cdef Part *part
        while at:
            at -= 1
            part = self.parts + at
            if part.first <= command < part.first + <uint64_t>part.rows and part.row + <int64_t>(command - part.first) < self.rows:
                return part.row + <int64_t>(command - part.first)
        return -1

    def row_of(self, uint64_t command):
        return self.find(command)

    def commands(self):
        cdef int64_t at
        numbers = []
        for at in range(self.part_count):
            numbers += range(self.parts[at].first, self.parts[at].first + self.parts[at].rows)
        return iter(numbers)

    cdef inline bint one_less(self) noexcept:
        self.left -= 1
        if self.left:
            return False
        self.settled_by = ()
        return self.callbacks is not None

    cdef inline bint take(self, const OutcomeRecord *record, object value, uint64_t arena) except -1:
        """As settle(), for a record of a report."""
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
                if value is not _EMPTY:
                    Py_INCREF(value)
                    Py_XDECREF(self.column[row])
                    self.column[row] = <PyObject *>value
        return self.one_less()

    def settle(self, command, settlement):
        cdef int64_t row = self.find(command)
        if self.left == 0:
            return False
        if row >= 0:
            self.others[row] = settlement
        return self.one_less()

    def settle_rest(self, settlement):
        cdef int64_t row
        for row in range(self.rows):
            if self.cells[row].number == 0:
                self.others.setdefault(row, settlement)
        self.left = 0
        self.settled_by = ()

    def settlement(self, int64_t row):
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        other = self.others.get(row)
        if other is not None or self.cells[row].number == 0:
            return other
        return settlement_of(self.cells + row, self.value(row), self.arena)

    def copy_records(self, bytearray into not None, Py_ssize_t at):
        cdef int64_t row
        cdef char *to = room_in(into, at, self.rows)
        if self.others:
            return python.copy_records_in([self.settlement(row) for row in range(self.rows)], into, at)
        for row in range(self.rows):
            if self.cells[row].number == 0:
                return False
        if self.rows:  # else there are no cells
            memcpy(to, self.cells, self.rows * sizeof(OutcomeRecord))
        return True

    cdef inline object value(self, int64_t row):
        return _EMPTY if self.column[row] == NULL else <object>self.column[row]

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
        values = [self.value(row) for row in range(self.rows)]
        for row, settlement in self.others.items():
            values[row] = settlement[1]
        return values


cdef char *room_in(bytearray into, Py_ssize_t at, Py_ssize_t records) except NULL:
    """Where to copy so many records."""
    if not 0 <= at <= <Py_ssize_t>(len(into) - records * sizeof(OutcomeRecord)):
        raise IndexError(f"{records * sizeof(OutcomeRecord)} bytes from {at} on, in {len(into)}")
    return PyByteArray_AS_STRING(into) + at


def copy_records(handles, bytearray into not None, Py_ssize_t at):
    cdef list those = list(handles)
    cdef Py_ssize_t rows = len(those), row
    cdef Handle one
    cdef char *to = room_in(into, at, rows)
    for row in range(rows):
        if row + 4 < rows:
            ask_for(PyList_GET_ITEM(those, row + 4))
        one = those[row]
        if not one.recorded:
            return python.copy_records(those, into, at)
        memcpy(to + row * sizeof(OutcomeRecord), &one.record, sizeof(OutcomeRecord))
    return True


# calls ------------------------------------------------------------------------------------------------------------


cdef class Caller:
    cdef readonly object name
    cdef readonly Line _link
    cdef readonly Ledger _ledger
    cdef readonly dict _indices
    cdef type operation

    def __init__(self, Line line not None, Ledger ledger not None, dict indices not None, name, operation):
        self.name = name
        self._link = line
        self._ledger = ledger
        self._indices = indices
        if not issubclass(operation, Handle):
            raise TypeError(f"{operation!r} is no Handle")
        self.operation = operation

    @property
    def _operation(self):
        return self.operation


cdef inline bint is_own_mark(Ledger ledger, object since, RegisterCommand *head) except -1:
    """Whether this client made it in the present arena: then it stands in the head.

    Nothing of the caller's is called: the ledger may be in use.
    """
    if type(since) is not Mark:
        return False
    incarnation, sequence, command, maker = <tuple>since
    if type(incarnation) is not int or type(sequence) is not int or type(command) is not int:
        return False
    if maker is not ledger.incarnation or incarnation != ledger.arena:
        return False
    try:
        head.mark_sequence = sequence
        head.mark_command = command
    except OverflowError:
        return False
    return True


cdef Handle register_usual(Caller caller, object key, object timeout, object payload, object since):
    """An operation for the usual arguments; None, and nothing done, for others, or if the caller has to wait."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._ledger
    cdef RegisterCommand head
    cdef Py_ssize_t key_size
    cdef uint64_t size, duration_ns
    cdef const char *name = key_of(key, &key_size)
    cdef bint entered
    cdef Handle made
    if name == NULL or not is_body(payload) or not duration_of(timeout, &duration_ns):
        return None
    head.kind = COMMAND_KIND_REGISTER
    head.purgatory = caller._indices[caller.name]
    head.flags = 0
    head.condition = CONDITION_AT_LEAST
    head.needed = head.keys = 1
    head.orphans = 0
    head.total = 0
    head.timeout_ns = duration_ns
    head.registered_ns = line.now()
    size = sizeof(RegisterCommand) + 2 + key_size + PyBytes_GET_SIZE(payload)
    made = (<PyTypeObject *>caller.operation).tp_new(caller.operation, _NOTHING, NULL)
    made._link = line
    made._names = key
    made.payload = payload
    made.deadline_ns = NO_DEADLINE if duration_ns == NO_DEADLINE else head.registered_ns + duration_ns
    entered = line.enter()
    try:
        if line.sealed or ledger.issued - ledger.applied >= ledger.window:
            return None
        if since is None:
            head.mark_sequence = ledger.newest_sequence()
            head.mark_command = ledger.issued
        elif not is_own_mark(ledger, since, &head):
            return None
        stretch_room(&ledger.commands, size, 1)
        places_room(&ledger.waiting.places, 1)
        write_registration(ledger.add(size), &head, name, key_size, payload)
        made.command = ledger.issued
        Py_INCREF(made)
        place_put(&ledger.waiting.places, made.command, <PyObject *>made)
    finally:
        line.leave(entered)
    line.ring(ledger.issued)
    return made


cdef bint fire_usual(Caller caller, object key, object value, object amount) except -1:
    """Whether it could be done at once, and was."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._ledger
    cdef KeyCommand head
    cdef Py_ssize_t key_size
    cdef uint64_t size
    cdef int64_t units
    cdef int overflow = 0
    cdef const char *name = key_of(key, &key_size)
    cdef bint entered
    if name == NULL or not is_body(value) or type(amount) is not int:
        return False
    units = PyLong_AsLongLongAndOverflow(amount, &overflow)
    if overflow or units <= 0:
        return False
    head.kind = COMMAND_KIND_FIRE
    head.purgatory = caller._indices[caller.name]
    head.flags = 0
    head.amount = units
    head.limit = 0
    size = sizeof(KeyCommand) + key_size + PyBytes_GET_SIZE(value)
    entered = line.enter()
    try:
        if line.sealed or ledger.issued - ledger.applied >= ledger.window:
            return False
        stretch_room(&ledger.commands, size, 1)
        write_event(ledger.add(size), &head, name, key_size, value)
    finally:
        line.leave(entered)
    line.ring(ledger.issued)
    return True


def takes_register(method):
    def register(
        Caller self, keys, *, timeout, when=_ANY, payload=_EMPTY, id=None, if_exists=_ERROR, since=None, orphans=None,
        wait=False,
    ):
        cdef Handle made
        if when is _ANY and id is None and orphans is None and wait is False and if_exists is _ERROR:
            made = register_usual(self, keys, timeout, payload, since)
            if made is not None:
                return made
        return method(self, keys, timeout=timeout, when=when, payload=payload, id=id, if_exists=if_exists, since=since,
                      orphans=orphans, wait=wait)
    return update_wrapper(register, method)


def takes_fire(method):
    def fire(Caller self, key, *, value=_EMPTY, amount=1, limit=None):
        if limit is not None or not fire_usual(self, key, value, amount):
            method(self, key, value=value, amount=amount, limit=limit)
    return update_wrapper(fire, method)


# columns ----------------------------------------------------------------------------------------------------------


def are_keys(list column not None):
    for key in column:
        if type(key) is not str and type(key) is not bytes:
            return False
    return True


def are_bodies(list column not None):
    for body in column:
        if not is_body(body):
            return False
    return True


def durations_of(list timeouts not None):
    cdef uint64_t duration_ns
    durations = []
    for timeout in timeouts:
        if not duration_of(timeout, &duration_ns):
            return python.durations_of(timeouts)
        durations.append(duration_ns)
    return durations


def amounts_of(list amounts not None):
    cdef int overflow = 0
    for amount in amounts:
        if type(amount) is not int or PyLong_AsLongLongAndOverflow(amount, &overflow) <= 0:
            return python.amounts_of(amounts)
    return amounts


def plain_keys(list keys not None):
    cdef Py_ssize_t size
    for key in keys:
        if key_of(key, &size) == NULL:
            return python.plain_keys(keys)
    return keys


def issue_registrations(
    Ledger ledger not None, head, keys, watches, payloads, durations_ns, int64_t start, int64_t rows
):
    cdef RegisterCommand fixed
    cdef Py_ssize_t key_size
    cdef const char *name
    cdef int64_t first = ledger.issued + 1, row
    cdef uint64_t size
    cdef object payload = payloads
    cdef bint same_payload = type(payloads) is bytes, same_duration = type(durations_ns) is int
    if watches is not None:
        return python.issue_registrations(ledger, head, keys, watches, payloads, durations_ns, start, rows)
    fixed.kind = COMMAND_KIND_REGISTER
    fixed.purgatory, fixed.flags, fixed.condition, fixed.total, fixed.registered_ns = head[:5]
    fixed.mark_sequence, fixed.mark_command = head[5:]
    fixed.needed = fixed.keys = 1
    fixed.orphans = 0
    if same_duration:
        fixed.timeout_ns = durations_ns
    for row in range(start, start + rows):
        name = key_of(keys[row], &key_size)
        if not same_payload:
            payload = payloads[row]
        if not same_duration:
            fixed.timeout_ns = durations_ns[row]
        if name == NULL or not is_body(payload):
            raise AssertionError(f"row {row} was not checked")
        size = sizeof(RegisterCommand) + 2 + key_size + PyBytes_GET_SIZE(payload)
        stretch_room(&ledger.commands, size, 1)
        write_registration(ledger.add(size), &fixed, name, key_size, payload)
    return first


def issue_events(Ledger ledger not None, int purgatory, keys, values, amounts, int64_t start, int64_t rows):
    cdef KeyCommand fixed
    cdef Py_ssize_t key_size
    cdef const char *name
    cdef int64_t row
    cdef uint64_t size
    cdef object value = values
    cdef bint same_value = type(values) is bytes, same_amount = type(amounts) is int
    fixed.kind = COMMAND_KIND_FIRE
    fixed.purgatory = purgatory
    fixed.flags = 0
    fixed.limit = 0
    if same_amount:
        fixed.amount = amounts
    for row in range(start, start + rows):
        name = key_of(keys[row], &key_size)
        if not same_value:
            value = values[row]
        if not same_amount:
            fixed.amount = amounts[row]
        if name == NULL or not is_body(value):
            raise AssertionError(f"row {row} was not checked")
        size = sizeof(KeyCommand) + key_size + PyBytes_GET_SIZE(value)
        stretch_room(&ledger.commands, size, 1)
        write_event(ledger.add(size), &fixed, name, key_size, value)


# outcomes ---------------------------------------------------------------------------------------------------------


cdef inline uint64_t command_in(const char *report, uint64_t row) noexcept:
    """The command number in an outcome's record, which is its first field."""
    cdef uint64_t command
    memcpy(&command, report + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(command))
    return command


cdef inline void ask_for_cell(Spans *spans, int64_t at, uint64_t command) noexcept:
    """Of a batch: where the record of a command goes that is waited for in this span."""
    cdef object waiter
    cdef Rows rows
    cdef int64_t row
    if not span_has(spans, at, command):
        return
    waiter = <object>spans.row[at].waiter
    if isinstance(waiter, Rows):
        rows = <Rows>waiter
        row = rows.find(command)
        if row >= 0:
            look_ahead(rows.cells + row)
            look_ahead(<char *>(rows.cells + row) + 64)
            look_ahead(rows.column + row)


def settle_all(
    Waiting waiting not None, list ready not None, bytes frame not None, uint64_t outcomes, uint64_t answers,
    uint64_t arena, unclaimed,
):
    cdef const char *start = PyBytes_AS_STRING(frame)
    cdef uint64_t size = PyBytes_GET_SIZE(frame), heap, row, at, end, looked = 0, command
    cdef uint64_t shared_at = 0, shared_end = 0
    cdef int64_t spans[2 * AHEAD]  # of the outcomes that come next, found before their turn
    cdef OutcomeRecord record
    cdef PyObject *waiter
    cdef object value, shared = _EMPTY, one
    cdef bint tell
    heap = sizeof(ReportHeader) + outcomes * sizeof(OutcomeRecord) + answers * sizeof(WireAnswer)
    if heap > size:
        raise ValueError(f"{outcomes} outcomes and {answers} answers do not fit")
    for row in range(outcomes):
        if row % AHEAD == 0:
            while looked < min(row + 2 * AHEAD, outcomes):
                command = command_in(start, looked)
                spans[looked % (2 * AHEAD)] = span_of(&waiting.spans, command)
                if spans[looked % (2 * AHEAD)] >= 0:
                    ask_for_cell(&waiting.spans, spans[looked % (2 * AHEAD)], command)
                else:
                    ask_for_place(&waiting.places, command)
                looked += 1
        if row + AHEAD // 2 < outcomes and spans[(row + AHEAD // 2) % (2 * AHEAD)] < 0:
            ask_for_waiter(&waiting.places, command_in(start, row + AHEAD // 2))
        memcpy(&record, start + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(OutcomeRecord))
        waiter = waiting.take(record.command, spans[row % (2 * AHEAD)])
        if waiter == NULL:
            unclaimed(
                record.command, PyBytes_FromStringAndSize(<char *>&record, sizeof(OutcomeRecord)), frame, heap
            )
            continue
        one = <object>waiter
        Py_DECREF(one)
        at = min(heap + record.heap_offset, size)
        end = min(at + record.value_length, size)
        if at == end:
            value = _EMPTY
        elif at == shared_at and end == shared_end:  # one event has settled many
            value = shared
        else:
            value = shared = PyBytes_FromStringAndSize(start + at, end - at)
            shared_at, shared_end = at, end
        if isinstance(one, Handle):
            tell = (<Handle>one).take(&record, value, arena)
        elif isinstance(one, Rows):
            tell = (<Rows>one).take(&record, value, arena)
        else:
            tell = one.settle(record.command, settlement_of(&record, value, arena))
        if tell:
            ready.append(one)
