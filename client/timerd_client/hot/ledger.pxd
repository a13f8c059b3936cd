"""The ledger of a client: its pending operations, and its unacknowledged commands."""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from timerd_client.hot.command_buffer cimport *
from timerd_client.hot.pending_batches cimport *
from timerd_client.hot.pending_table cimport *

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

cdef extern from *:
    """
    /* The buffer is not exported: an arena whose buffer is exported cannot be closed. */
    #define words_are_released(view) ((((PyMemoryViewObject *)(view))->flags & _Py_MEMORYVIEW_RELEASED) || \
        (((PyMemoryViewObject *)(view))->mbuf->flags & _Py_MANAGED_BUFFER_RELEASED))
    """
    bint words_are_released(object view)


@cython.final
cdef class Pending:
    cdef PendingTable table
    cdef PendingBatches batches

    cdef list numbers(self)
    cdef PyObject *find(self, uint64_t number) noexcept

    cdef inline PyObject *remove(self, uint64_t number, int64_t batch) noexcept:
        """Remove a number; look in this batch first. Returns the waiter, with its reference; NULL = there is none."""
        cdef PyObject *waiter
        if batch_has(&self.batches, batch, number):
            return batch_remove(&self.batches, batch, number)
        waiter = table_remove(&self.table, number)
        if waiter != NULL:
            return waiter
        batch = batch_of(&self.batches, number)
        return batch_remove(&self.batches, batch, number) if batch_has(&self.batches, batch, number) else NULL


cdef class Ledger:
    """Entry i of `commands` is the command with the number `issued - commands.count + 1 + i`."""

    cdef public int64_t window
    cdef public int64_t issued
    cdef public int64_t applied
    cdef public Pending pending
    cdef readonly object ids  # Ids
    cdef public object incarnation
    cdef public object arena
    cdef CommandBuffer commands
    cdef object words
    cdef int64_t newest_at
    cdef bint mapped  # `words` is a memoryview with an element at `newest_at`

    cdef inline char *add(self, uint64_t size) noexcept:
        """Issue a command of this size. The caller writes the command's bytes. There must be room."""
        self.issued += 1
        return buffer_add(&self.commands, size)

    cdef Entry *entry(self, int64_t number) except NULL

    cdef inline uint64_t newest_sequence(self) except? 0:
        if self.mapped and not words_are_released(self.words):
            return (<const volatile uint64_t *>PyMemoryView_GET_BUFFER(self.words).buf)[self.newest_at]
        return self.words[self.newest_at]
