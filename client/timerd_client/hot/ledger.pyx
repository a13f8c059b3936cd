"""The ledger of a client: `Pending`, its pending operations, and `Ledger`, its unacknowledged commands.

A `Pending` holds a reference to each waiter, and the garbage collector does not see these references. Each of them is
released when the operation settles, and a link settles all operations when it is closed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport free
from libc.string cimport memcpy
from timerd_shm.generated.records cimport *

from timerd_client.hot.ids import Ids
from timerd_shm.declare import wire
from timerd_shm.declare.fields import size_of

_sizes = (sizeof(CommandHeader), sizeof(RegisterCommand), sizeof(KeyCommand), sizeof(ReportHeader),
          sizeof(OutcomeRecord), sizeof(WireAnswer), PROTOCOL_VERSION)
if _sizes != (*map(size_of, (wire.CommandHeader, wire.RegisterCommand, wire.KeyCommand, wire.ReportHeader,
                             wire.OutcomeRecord, wire.WireAnswer)), wire.PROTOCOL_VERSION):
    raise ImportError("timerd_client.hot was compiled from other declarations than timerd_shm has: "
                      "run `make generate build`")


cdef uint64_t number_of(object number):
    """A command number as a C integer. For any other object 0, which is no command's number."""
    try:
        return number if isinstance(number, int) else 0
    except OverflowError:
        return 0


cdef class Pending:
    def __cinit__(self):
        table_begin(&self.table, TABLE_FIRST)

    def __dealloc__(self):
        cdef uint64_t at, row
        cdef int64_t one
        if self.table.row != NULL:
            for at in range(self.table.mask + 1):
                for row in range(ENTRY_ROWS):
                    if self.table.row[at].waiter[row] != NULL:
                        Py_DECREF(<object>self.table.row[at].waiter[row])
            table_free(&self.table)
        for one in range(self.batches.used):
            if self.batches.row[one].pending:
                Py_DECREF(<object>self.batches.row[one].waiter)
                free(self.batches.row[one].removed)
        free(self.batches.row)

    def __len__(self):
        return self.table.used + self.batches.pending

    def __contains__(self, number):
        return self.find(number_of(number)) != NULL

    def __iter__(self):
        return iter(self.numbers())

    cdef list numbers(self):
        cdef uint64_t at, row
        cdef int64_t one
        cdef PendingBatch *batch
        numbers = [
            (self.table.row[at].group - 1) * ENTRY_ROWS + row
            for at in range(self.table.mask + 1)
            for row in range(ENTRY_ROWS)
            if self.table.row[at].waiter[row] != NULL
        ]
        for one in range(self.batches.used):
            batch = self.batches.row + one
            numbers += [batch.first + at for at in range(batch.rows) if batch_has(&self.batches, one, batch.first + at)]
        return sorted(numbers)

    cdef PyObject *find(self, uint64_t number) noexcept:
        """The waiter of this number, as a borrowed reference; NULL if there is none."""
        cdef PyObject *waiter
        cdef int64_t at
        if number == 0:
            return NULL
        waiter = table_get(&self.table, number)
        if waiter != NULL:
            return waiter
        at = batch_of(&self.batches, number)
        return self.batches.row[at].waiter if batch_has(&self.batches, at, number) else NULL

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
        before = self.pop(one)  # freed when the new waiter is in the table: a destructor may call this class
        table_reserve(&self.table, 1)
        Py_INCREF(waiter)
        table_put(&self.table, one, <PyObject *>waiter)

    def pop(self, number, default=None):
        cdef PyObject *waiter = self.remove(number_of(number), -1)
        if waiter == NULL:
            return default
        found = <object>waiter
        Py_DECREF(found)
        return found

    def add_all(self, uint64_t first, uint64_t rows, waiter):
        cdef uint64_t number
        if rows >= BATCH_ROWS_MIN and follows_last(&self.batches, first):
            batch_add(&self.batches, first, rows, waiter)
            return
        table_reserve(&self.table, rows)
        for number in range(first, first + rows):
            Py_INCREF(waiter)
            table_put(&self.table, number, <PyObject *>waiter)


cdef class Ledger:
    def __cinit__(self):
        self.pending = Pending()
        self.ids = Ids()
        self.words, self.newest_at = [0], 0

    def __init__(self, window):
        self.window = window

    def __dealloc__(self):
        buffer_free(&self.commands)

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
        buffer_reserve(&self.commands, PyBytes_GET_SIZE(command), 1)
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
        buffer_replace(&self.commands, self.entry(number), PyBytes_AS_STRING(command), PyBytes_GET_SIZE(command))

    def fit(self, int64_t first, int64_t count, uint64_t size):
        return buffer_fit(self.entry(first), min(count, self.issued + 1 - first), size)

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
        buffer_copy(&self.commands, entry, count, to + PyBytes_GET_SIZE(header))
        return frame

    def drop(self, int64_t applied):
        cdef int64_t dropped = applied - (self.issued - self.commands.count)
        self.applied = applied
        if dropped > 0:
            buffer_drop(&self.commands, dropped)

    def begin_after(self, int64_t number):
        buffer_clear(&self.commands)
        self.ids.clear()
        self.issued = self.applied = number

    def move_purgatories(self, dict moved):
        cdef int64_t at
        cdef KeyCommand *command
        for at in range(self.commands.head, self.commands.head + self.commands.count):
            # A KeyCommand is packed (wire.py), so it may begin at any address.
            command = <KeyCommand *>bytes_at(&self.commands, self.commands.entries + at)
            command.purgatory = moved.get(command.purgatory, command.purgatory)

    def count_from_first(self):
        cdef int64_t at
        cdef RegisterCommand *command
        for at in range(self.commands.head, self.commands.head + self.commands.count):
            command = <RegisterCommand *>bytes_at(&self.commands, self.commands.entries + at)
            if command.kind != COMMAND_KIND_REGISTER or command.flags & REGISTER_FLAG_NO_MARK:
                continue
            if command.flags & REGISTER_FLAG_MARK_BY_SEQUENCE:
                command.flags |= REGISTER_FLAG_MARK_OF_OTHER_ARENA
            else:
                command.mark_sequence = 0

    # the newest event

    def newest(self):
        return self.newest_sequence()

    def use_arena(self, words, int64_t index):
        self.mapped = type(words) is memoryview and words.format == "Q" and words.c_contiguous and 0 <= index < len(words)
        self.words, self.newest_at = words, index
