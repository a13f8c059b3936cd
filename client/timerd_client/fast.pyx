"""What stands in the path of every request, compiled. slow.py says what each of these is, and does the same.

Commands are written one behind the other into one piece of memory, from which frames are cut; who waits stands in an
open hash table; an operation keeps its outcome's record in itself. So a request makes one object, and the garbage
collector does not walk over it: it sees a Handle only if that has a callback, and never what a Waiting holds. Both are
let go of when they settle, and a link settles all when it is closed.

Under the GIL what is done here without calling anything happens at once. A caller therefore takes the link's lock only
if somebody holds it, who may be in the middle of something: see `enter`.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.math cimport rint
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset
from timerd_shm.records cimport *

import threading
import time
from functools import update_wrapper

from timerd_shm.fields import size_of
from timerd_shm.limits import TIMEOUT_NS_MAX as _TIMEOUT_NS_MAX
from timerd_shm import wire

from . import slow
from .conditions import ANY

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
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
    #define look_ahead(at) __builtin_prefetch((const void *)(at), 1)
    """
    void look_ahead(const void *at) noexcept nogil

cdef extern from *:
    """
    #define WAITING_FIRST 64u              /* slots of an empty table */
    #define BYTES_FIRST (1u << 16)         /* of the memory for commands */
    #define BYTES_KEPT (4u << 20)          /* more than this is let go of when nothing is left in it */
    #define AHEAD 8u                       /* outcomes after which one is asked for, and as many after its slot was */
    #define GOLDEN 0x9E3779B97F4A7C15ull   /* 2^64 / golden ratio: spreads numbers that follow each other */
    """
    const uint64_t WAITING_FIRST, BYTES_FIRST, BYTES_KEPT, AHEAD, GOLDEN

cdef object _monotonic_ns = time.monotonic_ns
cdef int64_t ISSUED_MAX = slow.ISSUED_MAX
cdef object _ANY = ANY
cdef object _ERROR = "error"
cdef object _EMPTY = b""
cdef tuple _NOTHING = ()
cdef double _TIMEOUT_S_MAX = _TIMEOUT_NS_MAX // 1_000_000_000
cdef int64_t _TIMEOUT_WHOLE_S_MAX = _TIMEOUT_NS_MAX // 1_000_000_000

_sizes = (sizeof(CommandHeader), sizeof(RegisterCommand), sizeof(KeyCommand), sizeof(ReportHeader),
          sizeof(OutcomeRecord), sizeof(WireAnswer), PROTOCOL_VERSION)
if _sizes != (*map(size_of, (wire.CommandHeader, wire.RegisterCommand, wire.KeyCommand, wire.ReportHeader,
                             wire.OutcomeRecord, wire.WireAnswer)), wire.PROTOCOL_VERSION):
    raise ImportError("timerd_client.fast was compiled from other declarations than timerd_shm has: "
                      "run `make generate build`")


cdef inline void ask_for(PyObject *handle) noexcept:
    """The lines of a Handle."""
    look_ahead(handle)
    look_ahead(<char *>handle + 64)
    look_ahead(<char *>handle + 128)
    look_ahead(<char *>handle + 192)


# who waits --------------------------------------------------------------------------------------------------------


cdef struct Slot:
    uint64_t number  # 0 = free
    PyObject *waiter


cdef uint64_t number_of(object number):
    """A command number; 0, which none has, for what cannot be one."""
    try:
        return number if isinstance(number, int) else 0
    except OverflowError:
        return 0


@cython.final
cdef class Waiting:
    """Linear probing; four numbers that follow each other have their places side by side, in one line of the cache."""

    cdef Slot *slots
    cdef uint64_t mask
    cdef uint64_t used
    cdef int shift

    def __cinit__(self):
        self.set_up(WAITING_FIRST)

    def __dealloc__(self):
        cdef uint64_t at
        if self.slots != NULL:
            for at in range(self.mask + 1):
                if self.slots[at].number:
                    Py_DECREF(<object>self.slots[at].waiter)
            free(self.slots)

    cdef int set_up(self, uint64_t slots) except -1:
        cdef Slot *made = <Slot *>calloc(slots, sizeof(Slot))
        if made == NULL:
            raise MemoryError(f"a table of {slots} slots")
        self.slots, self.mask, self.shift = made, slots - 1, 66
        while slots > 1:
            slots >>= 1
            self.shift -= 1
        return 0

    cdef inline uint64_t place(self, uint64_t number) noexcept:
        return (((number >> 2) * GOLDEN) >> self.shift) << 2 | (number & 3)

    cdef int make_room(self, uint64_t rows) except -1:
        """After this so many can be added, which cannot fail."""
        cdef Slot *old = self.slots
        cdef uint64_t size = self.mask + 1, at
        if (self.used + rows) * 2 <= size and ((self.used + rows) * 16 >= size or size == WAITING_FIRST):
            return 0
        cdef uint64_t needed = WAITING_FIRST
        while (self.used + rows) * 4 > needed:
            needed *= 2
        self.set_up(needed)
        for at in range(size):
            if old[at].number:
                self.slots[self.find(old[at].number)] = old[at]
        free(old)
        return 0

    cdef inline uint64_t find(self, uint64_t number) noexcept:
        """The slot of that number, or the free one where it would be."""
        cdef uint64_t at = self.place(number) & self.mask
        while self.slots[at].number != number and self.slots[at].number:
            at = (at + 1) & self.mask
        return at

    cdef inline void ask_for_slot(self, uint64_t number) noexcept:
        """What waits was written long ago, and is in no cache: memory is asked for it before its turn comes."""
        look_ahead(self.slots + (self.place(number) & self.mask))

    cdef inline void ask_for_waiter(self, uint64_t number) noexcept:
        cdef Slot *slot = self.slots + (self.place(number) & self.mask)
        if slot.number == number:  # else it is found behind it, without help
            ask_for(slot.waiter)

    cdef inline void put(self, uint64_t number, PyObject *waiter) noexcept:
        """Add one that is not there, with a reference that the caller has; there is room."""
        cdef Slot *slot = self.slots + self.find(number)
        slot.number, slot.waiter = number, waiter
        self.used += 1

    cdef inline PyObject *take(self, uint64_t number) noexcept:
        """Remove it; the reference is the caller's now. NULL = nobody waits."""
        cdef uint64_t hole, at, home
        cdef PyObject *waiter
        if number == 0:
            return NULL
        hole = self.find(number)
        if self.slots[hole].number == 0:
            return NULL
        waiter = self.slots[hole].waiter
        self.used -= 1
        at = hole
        while True:  # what probing has led past the hole moves into it
            at = (at + 1) & self.mask
            if self.slots[at].number == 0:
                break
            home = self.place(self.slots[at].number) & self.mask
            if ((at - home) & self.mask) >= ((at - hole) & self.mask):
                self.slots[hole] = self.slots[at]
                hole = at
        self.slots[hole].number = 0
        return waiter

    def __len__(self):
        return self.used

    def __contains__(self, number):
        cdef uint64_t one = number_of(number)
        return one != 0 and self.slots[self.find(one)].number != 0

    def __iter__(self):
        return iter(self.numbers())

    cdef list numbers(self):
        cdef uint64_t at
        return sorted([self.slots[at].number for at in range(self.mask + 1) if self.slots[at].number])

    def items(self):
        return [(number, self[number]) for number in self.numbers()]

    def get(self, number, default=None):
        cdef uint64_t one = number_of(number), at
        if one:
            at = self.find(one)
            if self.slots[at].number:
                return <object>self.slots[at].waiter
        return default

    def __getitem__(self, number):
        found = self.get(number)
        if found is None:
            raise KeyError(number)
        return found

    def __setitem__(self, number, waiter):
        cdef uint64_t one = number_of(number)
        if one == 0:
            raise KeyError(number)
        self.pop(one)
        self.make_room(1)
        Py_INCREF(waiter)
        self.put(one, <PyObject *>waiter)

    def pop(self, number, default=None):
        cdef PyObject *waiter = self.take(number_of(number))
        if waiter == NULL:
            return default
        found = <object>waiter
        Py_DECREF(found)
        return found

    def add_all(self, uint64_t first, uint64_t rows, waiter):
        cdef uint64_t number
        self.make_room(rows)
        for number in range(first, first + rows):
            Py_INCREF(waiter)
            self.put(number, <PyObject *>waiter)


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

    cdef inline int ring(self, int64_t issued) except -1:
        """A command was issued, with this number: call wake(), if nobody else sees to it that it is sent."""
        if self.idle or issued >= self.alarm:
            with self.guard:
                if self.idle or issued >= self.alarm:
                    self.wake()
        return 0


cdef struct Entry:
    uint64_t at  # counted from the first byte that was ever written
    uint64_t size


cdef class Ledger:
    """Command `issued - count + 1 + i` is the bytes of `entries[head + i]`."""

    cdef public int64_t window
    cdef public int64_t issued
    cdef public int64_t applied
    cdef public Waiting waiting
    cdef char *data
    cdef uint64_t size
    cdef uint64_t origin  # what `at` is of the first byte of `data`
    cdef uint64_t used  # bytes, up to the end of the last
    cdef uint64_t live  # bytes of what is kept
    cdef bint scattered  # the bytes do not stand in the order of the numbers
    cdef Entry *entries
    cdef int64_t head
    cdef int64_t count
    cdef int64_t places
    cdef object words
    cdef int64_t newest_at
    cdef bint mapped  # `words` is a memoryview that is long enough

    def __cinit__(self):
        self.waiting = Waiting()
        self.words, self.newest_at = [0], 0

    def __init__(self, window):
        self.window = window

    def __dealloc__(self):
        free(self.data)
        free(self.entries)

    # memory

    cdef int make_room(self, uint64_t size, int64_t rows) except -1:
        """After this so many bytes of so many commands can be added, which cannot fail."""
        if self.used + size > self.size:
            self.move_bytes(size)
        if self.head + self.count + rows > self.places:
            self.move_entries(rows)
        return 0

    cdef int move_bytes(self, uint64_t size) except -1:
        """To the start of the memory if that makes enough room, else into a larger one."""
        cdef uint64_t first = 0, larger = self.size if self.size else BYTES_FIRST, to = 0
        cdef int64_t at
        cdef Entry *entry
        cdef char *made
        if self.count and not self.scattered:
            first = self.entries[self.head].at - self.origin
            if (self.used - first + size) * 2 <= self.size:
                memmove(self.data, self.data + first, self.used - first)
                self.origin += first
                self.used -= first
                return 0
        while (self.live + size) * 2 > larger:
            larger *= 2
        made = <char *>malloc(larger)
        if made == NULL:
            raise MemoryError(f"{larger} bytes for commands that are not acknowledged")
        for at in range(self.head, self.head + self.count):
            entry = self.entries + at
            memcpy(made + to, self.data + (entry.at - self.origin), entry.size)
            entry.at = to
            to += entry.size
        free(self.data)
        self.data, self.size, self.origin, self.used, self.scattered = made, larger, 0, to, False
        return 0

    cdef int move_entries(self, int64_t rows) except -1:
        cdef int64_t places = self.places if self.places else 1_024
        cdef Entry *made
        if self.head and (self.count + rows) * 2 <= places:
            memmove(self.entries, self.entries + self.head, self.count * sizeof(Entry))
            self.head = 0
            return 0
        while (self.count + rows) * 2 > places:
            places *= 2
        made = <Entry *>malloc(places * sizeof(Entry))
        if made == NULL:
            raise MemoryError(f"a list of {places} commands that are not acknowledged")
        if self.count:
            memcpy(made, self.entries + self.head, self.count * sizeof(Entry))
        free(self.entries)
        self.entries, self.places, self.head = made, places, 0
        return 0

    cdef inline char *add(self, uint64_t size) noexcept:
        """Issue a command of that size, which the caller writes; there is room."""
        cdef Entry *entry = self.entries + (self.head + self.count)
        cdef char *written = self.data + self.used
        entry.at, entry.size = self.origin + self.used, size
        self.used += size
        self.live += size
        self.count += 1
        self.issued += 1
        return written

    cdef Entry *entry(self, int64_t number) except NULL:
        cdef int64_t at = number - (self.issued - self.count + 1)
        if not 0 <= at < self.count:
            raise IndexError(f"command {number} is not kept; the {self.count} up to {self.issued} are")
        return self.entries + (self.head + at)

    # commands

    @property
    def kept(self):
        return self.count

    def issue(self, bytes command not None):
        self.make_room(PyBytes_GET_SIZE(command), 1)
        memcpy(self.add(PyBytes_GET_SIZE(command)), PyBytes_AS_STRING(command), PyBytes_GET_SIZE(command))
        return self.issued

    def issue_all(self, commands):
        cdef int64_t first = self.issued + 1
        for command in commands:
            self.issue(command)
        return first

    def command(self, number):
        cdef Entry *entry = self.entry(number)
        return PyBytes_FromStringAndSize(self.data + (entry.at - self.origin), entry.size)

    def replace(self, number, bytes command not None):
        cdef uint64_t size = PyBytes_GET_SIZE(command)
        cdef Entry *entry = self.entry(number)
        if size > entry.size:
            if self.used + size > self.size:
                self.move_bytes(size)
            entry.at = self.origin + self.used
            self.used += size
            self.scattered = True
        self.live = self.live - entry.size + size
        entry.size = size
        memcpy(self.data + (entry.at - self.origin), PyBytes_AS_STRING(command), size)

    def fit(self, int64_t first, int64_t count, uint64_t size):
        cdef Entry *start = self.entry(first)
        cdef uint64_t total
        cdef int64_t at
        count = min(count, self.issued + 1 - first)
        while True:
            total = 0
            for at in range(count):
                total += start[at].size
            if total <= size:
                return count
            count = (count + 1) // 2

    def join(self, bytes header not None, int64_t first, int64_t count):
        cdef uint64_t start, end, total = PyBytes_GET_SIZE(header)
        cdef int64_t at = 0
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
        to += PyBytes_GET_SIZE(header)
        at = 0
        while at < count:
            start, end = entry[at].at, entry[at].at + entry[at].size
            at += 1
            while at < count and entry[at].at == end:
                end += entry[at].size
                at += 1
            memcpy(to, self.data + (start - self.origin), end - start)
            to += end - start
        return frame

    def drop(self, int64_t applied):
        cdef int64_t first = self.issued - self.count + 1, at, dropped = applied + 1 - first
        self.applied = applied
        if dropped <= 0:
            return
        for at in range(self.head, self.head + min(dropped, self.count)):
            self.live -= self.entries[at].size
        self.head += dropped
        self.count -= dropped
        if self.count <= 0:
            self.empty()

    cdef void empty(self) noexcept:
        self.head = self.count = 0
        self.used = self.live = self.origin = 0
        self.scattered = False
        if self.size > BYTES_KEPT:
            free(self.data)
            self.data, self.size = NULL, 0

    def begin_after(self, int64_t number):
        self.empty()
        self.issued = self.applied = number

    def move_purgatories(self, dict moved):
        cdef int64_t at
        cdef KeyCommand *command
        for at in range(self.head, self.head + self.count):
            command = <KeyCommand *>(self.data + (self.entries[at].at - self.origin))  # bytes: never unaligned
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

    def records(self):
        cdef int64_t row
        if self.others:
            return slow.records_in([self.settlement(row) for row in range(self.rows)])
        for row in range(self.rows):
            if self.cells[row].number == 0:
                return None
        return PyBytes_FromStringAndSize(<char *>self.cells, self.rows * sizeof(OutcomeRecord))

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


def records_of(handles):
    cdef list those = list(handles)
    cdef Py_ssize_t rows = len(those), row
    cdef Handle one
    cdef char *to
    values = []
    records = PyBytes_FromStringAndSize(NULL, rows * sizeof(OutcomeRecord))
    to = PyBytes_AS_STRING(records)
    for row in range(rows):
        if row + 4 < rows:
            ask_for(PyList_GET_ITEM(those, row + 4))
        one = those[row]
        if not one.recorded:
            return slow.records_of(those)
        memcpy(to + row * sizeof(OutcomeRecord), &one.record, sizeof(OutcomeRecord))
        values.append(one.value)
    return records, values


# calls ------------------------------------------------------------------------------------------------------------


cdef class Caller:
    cdef readonly object name
    cdef readonly Line _link
    cdef readonly Ledger _protocol
    cdef readonly dict _indices
    cdef type operation

    def __init__(self, Line link not None, name, operation):
        self.name = name
        self._link = link
        self._protocol = link.protocol
        self._indices = self._protocol.purgatories
        if not issubclass(operation, Handle):
            raise TypeError(f"{operation!r} is no Handle")
        self.operation = operation

    @property
    def _operation(self):
        return self.operation


cdef inline const char *key_of(object key, Py_ssize_t *size) except? NULL:
    """The bytes of a usual key; NULL for any other. They are the key's own: nothing is to be let go of."""
    cdef const char *found
    if type(key) is str:
        try:
            found = PyUnicode_AsUTF8AndSize(key, size)
        except UnicodeEncodeError:
            return NULL
    elif type(key) is bytes:
        found = PyBytes_AS_STRING(key)
        size[0] = PyBytes_GET_SIZE(key)
    else:
        return NULL
    return found if 0 < size[0] <= KEY_SIZE_MAX else NULL


cdef inline bint duration_of(object timeout, uint64_t *duration_ns) except -1:
    """Whether it is a usual timeout."""
    cdef double seconds
    cdef int64_t whole
    cdef int overflow = 0
    if type(timeout) is float:
        seconds = timeout
        if not 0 <= seconds <= _TIMEOUT_S_MAX:
            return False
        duration_ns[0] = <uint64_t>rint(seconds * 1e9)
        return True
    if timeout is None:
        duration_ns[0] = NO_DEADLINE
        return True
    if type(timeout) is int:
        whole = PyLong_AsLongLongAndOverflow(timeout, &overflow)
        if overflow or not 0 <= whole <= _TIMEOUT_WHOLE_S_MAX:
            return False
        duration_ns[0] = <uint64_t>whole * 1_000_000_000
        return True
    return False


cdef inline bint is_body(object body) noexcept:
    """Whether it is a usual payload or value."""
    return type(body) is bytes and PyBytes_GET_SIZE(body) <= PAYLOAD_SIZE_MAX


cdef inline void write_registration(
    char *to, RegisterCommand *head, const char *key, Py_ssize_t key_size, object payload
) noexcept:
    """A registration that one event key completes: what is not in its head already."""
    head.payload_length = <uint32_t>PyBytes_GET_SIZE(payload)
    head.length = <uint32_t>(sizeof(RegisterCommand) + 2 + key_size + head.payload_length)
    memcpy(to, head, sizeof(RegisterCommand))
    to += sizeof(RegisterCommand)
    to[0] = <char>key_size
    to[1] = KEY_KIND_EVENT
    memcpy(to + 2, key, key_size)
    memcpy(to + 2 + key_size, PyBytes_AS_STRING(payload), head.payload_length)


cdef inline void write_event(
    char *to, KeyCommand *head, const char *key, Py_ssize_t key_size, object value
) noexcept:
    head.key_length = <uint8_t>key_size
    head.value_length = <uint32_t>PyBytes_GET_SIZE(value)
    head.length = <uint32_t>(sizeof(KeyCommand) + key_size + head.value_length)
    memcpy(to, head, sizeof(KeyCommand))
    memcpy(to + sizeof(KeyCommand), key, key_size)
    memcpy(to + sizeof(KeyCommand) + key_size, PyBytes_AS_STRING(value), head.value_length)


cdef Handle register_usual(Caller caller, object key, object timeout, object payload):
    """An operation for the usual arguments; None, and nothing done, for others, or if the caller has to wait."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._protocol
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
        ledger.make_room(size, 1)
        ledger.waiting.make_room(1)
        head.mark_sequence = ledger.newest_sequence()
        head.mark_command = ledger.issued
        write_registration(ledger.add(size), &head, name, key_size, payload)
        made.command = ledger.issued
        Py_INCREF(made)
        ledger.waiting.put(made.command, <PyObject *>made)
    finally:
        line.leave(entered)
    line.ring(ledger.issued)
    return made


cdef bint fire_usual(Caller caller, object key, object value, object amount) except -1:
    """Whether it could be done at once, and was."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._protocol
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
        ledger.make_room(size, 1)
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
        if when is _ANY and id is None and since is None and orphans is None and wait is False and if_exists is _ERROR:
            made = register_usual(self, keys, timeout, payload)
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
            return slow.durations_of(timeouts)
        durations.append(duration_ns)
    return durations


def amounts_of(list amounts not None):
    cdef int overflow = 0
    for amount in amounts:
        if type(amount) is not int or PyLong_AsLongLongAndOverflow(amount, &overflow) <= 0:
            return slow.amounts_of(amounts)
    return amounts


def plain_keys(list keys not None):
    cdef Py_ssize_t size
    for key in keys:
        if key_of(key, &size) == NULL:
            return slow.plain_keys(keys)
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
        return slow.issue_registrations(ledger, head, keys, watches, payloads, durations_ns, start, rows)
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
        ledger.make_room(size, 1)
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
        ledger.make_room(size, 1)
        write_event(ledger.add(size), &fixed, name, key_size, value)


# outcomes ---------------------------------------------------------------------------------------------------------


cdef inline uint64_t command_in(const char *report, uint64_t row) noexcept:
    """The command number in an outcome's record, which is its first field."""
    cdef uint64_t command
    memcpy(&command, report + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(command))
    return command


def settle_all(Ledger protocol not None, bytes frame not None, uint64_t outcomes, uint64_t answers, uint64_t arena):
    cdef const char *start = PyBytes_AS_STRING(frame)
    cdef uint64_t size = PyBytes_GET_SIZE(frame), heap, row, at, end
    cdef uint64_t shared_at = 0, shared_end = 0
    cdef OutcomeRecord record
    cdef PyObject *waiter
    cdef object value, shared = _EMPTY, one
    cdef list ready = protocol.ready
    cdef bint tell
    heap = sizeof(ReportHeader) + outcomes * sizeof(OutcomeRecord) + answers * sizeof(WireAnswer)
    if heap > size:
        raise ValueError(f"{outcomes} outcomes and {answers} answers do not fit")
    for row in range(outcomes):
        if row + 2 * AHEAD < outcomes:
            protocol.waiting.ask_for_slot(command_in(start, row + 2 * AHEAD))
        if row + AHEAD < outcomes:
            protocol.waiting.ask_for_waiter(command_in(start, row + AHEAD))
        memcpy(&record, start + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(OutcomeRecord))
        waiter = protocol.waiting.take(record.command)
        if waiter == NULL:
            protocol._settled_for_none(
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
