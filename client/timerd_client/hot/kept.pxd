"""A settled operation in few bytes: its outcome's record, without the fields of the handle, and then its value.

A block of 80 bytes has room for a value of up to 8 bytes; an object for the value alone would take 48 bytes. Unusual
outcomes are kept as a RawSettlement (waiter.py), for example a refusal, more than 16 keys, codes of failed keys.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from timerd_shm.generated.records cimport *

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *one)

cdef extern from *:
    """
    #define INLINE_MAX 40u      /* longest value that is in the block itself; an object needs 33 bytes more */
    #define FORM_SHARED 0xFEu   /* `object` is the value: bytes, shared by all operations that one event has settled */
    #define FORM_WHOLE 0xFFu    /* `object` is the settlement; of the other fields only `flags` is set */
    #define KEPT_UNSEEN 0x80u   /* in `flags`: a grant completed the operation, and no caller has looked at it */
    _Static_assert(KEPT_UNSEEN > OUTCOME_FLAG_HAS_FAILURES, "an OutcomeFlag of its own");
    """
    const uint8_t INLINE_MAX, FORM_SHARED, FORM_WHOLE, KEPT_UNSEEN


cdef struct Kept:
    uint64_t number
    uint64_t operation
    uint64_t settled_ns
    uint64_t deadline_ns
    uint64_t registered_ns
    uint64_t sequence
    uint64_t arena
    uint32_t heap_offset
    uint32_t error
    uint8_t state
    uint8_t settled_key
    uint8_t flags
    uint8_t form  # the length of the value that begins at `object`, or FORM_SHARED, FORM_WHOLE
    uint16_t satisfied
    uint16_t failed
    PyObject *object


cdef inline tuple settlement_of(const OutcomeRecord *record, object value, uint64_t arena):
    """The settlement with this record. The garbage collector does not track the tuple: it cannot be in a cycle."""
    cdef tuple settlement = (PyBytes_FromStringAndSize(<const char *>record, sizeof(OutcomeRecord)), value, arena, None)
    PyObject_GC_UnTrack(<void *>settlement)
    return settlement


cdef inline bint is_usual(const OutcomeRecord *record, uint64_t command, uint64_t size) noexcept nogil:
    """Whether a block can hold this record of this command completely, with a value of this size."""
    return (
        record.command == command
        and record.value_length == size
        and record.satisfied < 1 << 16
        and record.failed < 1 << 16
        and record.payload_length == 0
        and record.keys_length == 0
        and record.deliveries == 0
        and not record.flags & (OUTCOME_FLAG_HAS_FAILURES | KEPT_UNSEEN)
    )


cdef inline Kept *kept_block(uint64_t size) except NULL:
    """A block for an object, or for a value of this size."""
    cdef Kept *made = <Kept *>PyMem_Malloc(sizeof(Kept) + max(size, sizeof(PyObject *)) - sizeof(PyObject *))
    if made == NULL:
        raise MemoryError("how an operation has settled")
    return made


cdef inline Kept *keep_record(
    const OutcomeRecord *record, uint8_t form, const char *value, object shared, uint64_t arena
) except NULL:
    """Keep a usual record. `value` has `form` bytes; with FORM_SHARED the value is `shared`."""
    cdef Kept *made = kept_block(0 if form == FORM_SHARED else form)
    made.number, made.operation = record.number, record.operation
    made.settled_ns, made.deadline_ns, made.registered_ns = record.settled_ns, record.deadline_ns, record.registered_ns
    made.sequence, made.arena = record.sequence, arena
    made.heap_offset, made.error = record.heap_offset, record.error
    made.state, made.settled_key, made.flags, made.form = record.state, record.settled_key, record.flags, form
    made.satisfied, made.failed = <uint16_t>record.satisfied, <uint16_t>record.failed
    if form == FORM_SHARED:
        Py_INCREF(shared)
        made.object = <PyObject *>shared
    else:
        memcpy(&made.object, value, form)
    return made


cdef inline Kept *keep_whole(object settlement) except NULL:
    """Keep a settlement as it is."""
    cdef Kept *made = kept_block(0)
    made.form, made.flags = FORM_WHOLE, 0
    Py_INCREF(settlement)
    made.object = <PyObject *>settlement
    return made


cdef inline void kept_free(Kept *kept) noexcept:
    if kept.form >= FORM_SHARED:
        Py_DECREF(<object>kept.object)
    PyMem_Free(kept)


cdef inline object kept_value(const Kept *kept):
    if kept.form == FORM_SHARED:
        return <object>kept.object
    return PyBytes_FromStringAndSize(<const char *>&kept.object, kept.form) if kept.form else b""


cdef inline void write_record(const Kept *kept, uint64_t command, char *to) noexcept:
    """Write the kept record of this command. Not for FORM_WHOLE."""
    cdef OutcomeRecord record
    memset(&record, 0, sizeof(record))
    record.command, record.number, record.operation = command, kept.number, kept.operation
    record.settled_ns, record.deadline_ns, record.registered_ns = kept.settled_ns, kept.deadline_ns, kept.registered_ns
    record.sequence, record.satisfied, record.failed = kept.sequence, kept.satisfied, kept.failed
    record.heap_offset, record.error = kept.heap_offset, kept.error
    record.value_length = <uint32_t>len(<bytes>kept.object) if kept.form == FORM_SHARED else kept.form
    record.state, record.settled_key, record.flags = kept.state, kept.settled_key, kept.flags & ~KEPT_UNSEEN
    memcpy(to, &record, sizeof(record))


cdef inline object kept_settlement(const Kept *kept, uint64_t command):
    """The settlement, as a RawSettlement."""
    cdef OutcomeRecord record
    if kept.form == FORM_WHOLE:
        return <object>kept.object
    write_record(kept, command, <char *>&record)
    return settlement_of(&record, kept_value(kept), kept.arena)
