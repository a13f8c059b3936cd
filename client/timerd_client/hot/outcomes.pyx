"""The outcomes of a report settle the operations that are pending.

A record is copied into its operation or batch, so no object is made for a record. A pending operation was written long
ago and is in no cache. So outcomes are handled in groups of 16, and during a group the next one is prefetched.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd_client.hot.kept cimport INLINE_MAX, settlement_of
from timerd_client.hot.ledger cimport Pending
from timerd_client.hot.pending_batches cimport PendingBatches, batch_before, batch_has, batch_of
from timerd_client.hot.pending_table cimport prefetch, prefetch_entry, prefetch_waiter
from timerd_client.hot.promises cimport Handle, Rows, settle_record
from timerd_shm.generated.records cimport *

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *one) noexcept
    PyObject *PyTuple_GET_ITEM(object pair, Py_ssize_t at) noexcept  # a borrowed reference

cdef extern from *:
    """
    #define popcount(mask) __builtin_popcountll(mask)
    #define PREFETCHED 16u /* outcomes that are prefetched together */
    """
    const uint64_t PREFETCHED
    int popcount(uint64_t mask)

cdef object _EMPTY = b""


cdef inline uint64_t command_in(const char *report, uint64_t row) noexcept:
    """The command number in an outcome's record, which is its first field."""
    cdef uint64_t command
    memcpy(&command, report + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(command))
    return command


cdef inline void prefetch_cell(PendingBatches *batches, int64_t at, uint64_t command) noexcept:
    """Prefetch where the record of this command goes, if it belongs to this batch."""
    cdef object waiter
    cdef Rows rows
    cdef int64_t row
    if not batch_has(batches, at, command):
        return
    waiter = <object>batches.row[at].waiter
    if isinstance(waiter, Rows):
        rows = <Rows>waiter
        row = rows.find(command)
        if row >= 0:
            prefetch(rows.cells + row)
            prefetch(<char *>(rows.cells + row) + 64)
            prefetch(rows.column + row)


def settle_all(
    Pending pending not None, list ready not None, bytes frame not None, uint64_t outcomes, uint64_t behind,
    uint64_t arena, unclaimed, dict grants not None,
):
    cdef const char *start = PyBytes_AS_STRING(frame)
    cdef uint64_t size = PyBytes_GET_SIZE(frame), heap, row, at, end, prefetched = 0, command
    cdef uint64_t shared_at = 0, shared_end = 0
    cdef int64_t batches[2 * PREFETCHED]  # the batches of the next outcomes, by row
    cdef OutcomeRecord record
    cdef PyObject *waiter
    cdef object value, shared = _EMPTY, one
    cdef bint notify
    heap = sizeof(ReportHeader) + outcomes * sizeof(OutcomeRecord) + behind
    if heap > size:
        raise ValueError(f"{outcomes} outcomes and {behind} bytes of answers and looks do not fit")
    for row in range(outcomes):
        if row % PREFETCHED == 0:
            while prefetched < min(row + 2 * PREFETCHED, outcomes):
                command = command_in(start, prefetched)
                batches[prefetched % (2 * PREFETCHED)] = batch_of(&pending.batches, command)
                if batches[prefetched % (2 * PREFETCHED)] >= 0:
                    prefetch_cell(&pending.batches, batches[prefetched % (2 * PREFETCHED)], command)
                else:
                    prefetch_entry(&pending.table, command)
                prefetched += 1
        if row + PREFETCHED // 2 < outcomes and batches[(row + PREFETCHED // 2) % (2 * PREFETCHED)] < 0:
            prefetch_waiter(&pending.table, command_in(start, row + PREFETCHED // 2))
        memcpy(&record, start + sizeof(ReportHeader) + row * sizeof(OutcomeRecord), sizeof(OutcomeRecord))
        waiter = pending.remove(record.command, batches[row % (2 * PREFETCHED)])
        if waiter == NULL:
            unclaimed(
                record.command, PyBytes_FromStringAndSize(<char *>&record, sizeof(OutcomeRecord)), frame, heap
            )
            continue
        one = <object>waiter
        Py_DECREF(one)
        at = min(heap + record.heap_offset, size)
        end = min(at + record.value_length, size)
        if record.flags & OUTCOME_FLAG_HAS_FAILURES:  # the codes of failed keys follow the value
            end = min(end + sizeof(uint32_t) * <uint64_t>popcount(record.failed), size)
        if at == end or (isinstance(one, Handle) and end - at <= INLINE_MAX):  # a Handle copies the bytes
            value = _EMPTY
        elif at == shared_at and end == shared_end:  # one event has settled several operations
            value = shared
        else:
            value = shared = PyBytes_FromStringAndSize(start + at, end - at)
            shared_at, shared_end = at, end
        if record.flags & OUTCOME_FLAG_GRANTED:
            list_grant(grants, &record, one)
        if isinstance(one, Handle):
            notify = settle_record(<Handle>one, &record, start + at, end - at, value, arena)
        elif isinstance(one, Rows):
            notify = (<Rows>one).settle_record(&record, value, arena)
        else:
            notify = one.settle(record.command, settlement_of(&record, value, arena))
        if notify:
            ready.append(one)


cdef int list_grant(dict grants, const OutcomeRecord *record, object one) except -1:
    """Note that a limited event completes this operation, at which no caller has looked yet. Runs no Python code."""
    cdef Rows rows
    cdef int64_t row
    if isinstance(one, Rows):
        rows = <Rows>one
        row = rows.find(record.command)
        if rows.left and row >= 0 and rows.cells[row].number == 0 and row not in rows.others:
            rows._unseen.add(row)  # otherwise the row has settled before, and a caller may have looked at it
        rows.listed += 1
    elif not isinstance(one, Handle):
        return 0
    grants[record.number] = (record.command, one)
    return 0


cdef int64_t references_of(Pending pending, Rows rows) noexcept:
    """How many references to this batch `pending` has: one for each range, and one for each number in the table."""
    cdef PendingBatches *batches = &pending.batches
    cdef int64_t part, at, references = 0, left = rows.left - rows.rows
    cdef uint64_t first, end
    for part in range(rows.part_count):
        first = rows.parts[part].first
        end = first + <uint64_t>rows.parts[part].rows
        left += rows.parts[part].rows
        at = max(batch_before(batches, first), 0)
        while at < batches.used and batches.row[at].first < end:
            if batches.row[at].pending and batches.row[at].waiter == <PyObject *>rows:
                references += 1
                left -= batches.row[at].pending
            at += 1
    return references + left


def is_held(Pending pending not None, tuple grant not None):
    cdef PyObject *waiter = PyTuple_GET_ITEM(grant, 1)
    cdef int64_t others = Py_REFCNT(waiter) - 1
    one = <object>waiter
    if isinstance(one, Rows):
        others -= references_of(pending, <Rows>one) + (<Rows>one).listed - 1
    return others > 0
