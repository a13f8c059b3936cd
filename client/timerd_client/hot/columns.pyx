"""The columns of `register_many` and `fire_many`: they are checked, then written as commands row by row."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy
from timerd_client.hot.command_buffer cimport buffer_reserve
from timerd_client.hot.fast_arguments cimport *
from timerd_client.hot.ledger cimport Ledger
from timerd_client.hot.watch cimport *
from timerd_shm.generated.records cimport *

from functools import partial

from timerd_client.arguments import each, key_bytes, timeout_ns, unsigned
from timerd_client.arguments import watch as read_watch
from timerd_client.conditions import ANY, When
from timerd_shm.declare.errors import TimerdError
from timerd_shm.declare.states import Condition

cdef object _ANY = ANY
cdef object _When = When
cdef object _Condition = Condition
cdef object _amount = partial(unsigned, "amount", largest=UINT64_MAX, smallest=1)


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
            return each("timeout", timeouts, timeout_ns)
        durations.append(duration_ns)
    return durations


def amounts_of(list amounts not None):
    cdef int overflow = 0
    for amount in amounts:
        if type(amount) is not int or PyLong_AsLongLongAndOverflow(amount, &overflow) <= 0:
            return each("amounts", amounts, _amount)
    return amounts


def plain_keys(list keys not None):
    cdef Py_ssize_t size
    for key in keys:
        if key_of(key, &size) == NULL:
            return each("keys", keys, key_bytes)
    return keys


cdef struct EncodedRow:
    uint64_t end  # where the row's keys end, in `encoded`
    uint64_t total
    uint8_t condition
    uint8_t needed
    uint8_t keys


cdef class Watches:
    cdef public list names
    cdef char *encoded
    cdef EncodedRow *rows
    cdef Py_ssize_t count
    cdef uint64_t size

    def __init__(self, list keys not None, when):
        cdef Watch watch
        cdef Py_ssize_t row
        cdef bint usual = read_condition(when, _ANY, _When, _Condition, &watch)
        if self.names is not None:
            raise TypeError("a column of keys is read once")
        self.names = keys
        self.rows = <EncodedRow *>malloc(max(len(keys), 1) * sizeof(EncodedRow))
        self.grow(16 * len(keys))
        if self.rows == NULL:
            raise MemoryError(f"the keys of {len(keys)} operations")
        for row in range(len(keys)):
            names = read_keys(keys[row], &watch) if usual else None
            if names is None:
                names = self.add_encoded(row, keys[row], when)
            else:
                self.add(&watch)
            keys[row] = names

    def __dealloc__(self):
        free(self.encoded)
        free(self.rows)

    cdef int grow(self, uint64_t size) except -1:
        cdef char *made
        if size <= self.size:
            return 0
        made = <char *>realloc(self.encoded, 2 * size)
        if made == NULL:
            raise MemoryError(f"{2 * size} bytes of keys")
        self.encoded, self.size = made, 2 * size
        return 0

    cdef inline uint64_t end(self) noexcept:
        return self.rows[self.count - 1].end if self.count else 0

    cdef int add(self, const Watch *watch) except -1:
        cdef uint64_t start = self.end()
        cdef EncodedRow *row = self.rows + self.count
        self.grow(start + watch.size)
        write_watch(self.encoded + start, watch)
        row.end, row.total = start + watch.size, watch.total
        row.condition, row.needed, row.keys = watch.condition, <uint8_t>watch.needed, <uint8_t>watch.count
        self.count += 1
        return 0

    cdef object add_encoded(self, Py_ssize_t number, keys, when):
        """Add a row that the general path reads. Returns its names."""
        cdef uint64_t start = self.end()
        cdef EncodedRow *row = self.rows + self.count
        try:
            names, encoded, row.condition, row.needed, row.total = read_watch(keys, when)
        except TimerdError as error:
            raise type(error)(f"keys[{number}]: {error}") from None
        row.keys, row.end = len(names), start + PyBytes_GET_SIZE(encoded)
        self.grow(row.end)
        memcpy(self.encoded + start, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
        self.count += 1
        return keys if type(keys) is str or type(keys) is bytes else names


def issue_registrations(
    Ledger ledger not None, head, Watches watches not None, payloads, durations_ns, int64_t start, int64_t rows
):
    cdef RegisterCommand fixed
    cdef EncodedRow *watch
    cdef int64_t first = ledger.issued + 1, row
    cdef uint64_t size, at, keys_size
    cdef object payload = payloads
    cdef char *to
    cdef bint same_payload = type(payloads) is bytes, same_duration = type(durations_ns) is int
    if not 0 <= start <= start + rows <= watches.count:
        raise IndexError(f"rows {start} to {start + rows} of {watches.count}")
    fixed.kind = COMMAND_KIND_REGISTER
    fixed.purgatory, fixed.flags, fixed.registered_ns, fixed.mark_sequence, fixed.mark_command = head
    fixed.orphans = 0
    if same_duration:
        fixed.timeout_ns = durations_ns
    at = watches.rows[start - 1].end if start else 0
    for row in range(start, start + rows):
        watch = watches.rows + row
        keys_size = watch.end - at
        if not same_payload:
            payload = payloads[row]
        if not same_duration:
            fixed.timeout_ns = durations_ns[row]
        if not is_body(payload):
            raise AssertionError(f"row {row} was not checked")
        fixed.condition, fixed.needed, fixed.keys, fixed.total = watch.condition, watch.needed, watch.keys, watch.total
        size = sizeof(RegisterCommand) + keys_size + PyBytes_GET_SIZE(payload)
        fixed.length, fixed.payload_length = <uint32_t>size, <uint32_t>PyBytes_GET_SIZE(payload)
        buffer_reserve(&ledger.commands, size, 1)
        to = ledger.add(size)
        memcpy(to, &fixed, sizeof(RegisterCommand))
        memcpy(to + sizeof(RegisterCommand), watches.encoded + at, keys_size)
        memcpy(to + sizeof(RegisterCommand) + keys_size, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        at = watch.end
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
        buffer_reserve(&ledger.commands, size, 1)
        write_event(ledger.add(size), &fixed, name, key_size, value)
