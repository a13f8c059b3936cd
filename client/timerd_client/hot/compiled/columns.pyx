"""The columns of `register_many` and `fire_many`: they are checked, then written as commands row by row."""

from cpython.bytes cimport PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from timerd_client.hot.compiled.command_buffer cimport buffer_reserve
from timerd_client.hot.compiled.fast_arguments cimport *
from timerd_client.hot.compiled.ledger cimport Ledger
from timerd_shm.generated.records cimport *

from timerd_client.hot import python


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
        buffer_reserve(&ledger.commands, size, 1)
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
        buffer_reserve(&ledger.commands, size, 1)
        write_event(ledger.add(size), &fixed, name, key_size, value)
