"""The arguments that the fast path takes, as C values, and the commands that it writes. Nothing here keeps a reference.

For example, duration_of() takes 30, 2.5 and None. It returns False for a timedelta, which the general path takes then.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport rint
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd_shm.generated.records cimport *

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef extern from *:
    """
    #define TIMEOUT_S_MAX ((int64_t)(TIMEOUT_NS_MAX / 1000000000))
    """
    const int64_t TIMEOUT_S_MAX


cdef inline const char *key_of(object key, Py_ssize_t *size) except? NULL:
    """A pointer to the bytes of a key; the key object owns them. NULL = only the general path takes this key."""
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
    """Whether the fast path takes this timeout (seconds, or None)."""
    cdef double seconds
    cdef int64_t whole
    cdef int overflow = 0
    if type(timeout) is float:
        seconds = timeout
        if not 0 <= seconds <= TIMEOUT_S_MAX:
            return False
        duration_ns[0] = <uint64_t>rint(seconds * 1e9)
        return True
    if timeout is None:
        duration_ns[0] = NO_DEADLINE
        return True
    if type(timeout) is int:
        whole = PyLong_AsLongLongAndOverflow(timeout, &overflow)
        if overflow or not 0 <= whole <= TIMEOUT_S_MAX:
            return False
        duration_ns[0] = <uint64_t>whole * 1_000_000_000
        return True
    return False


cdef inline bint is_body(object body) noexcept:
    """Whether the fast path takes this payload or value."""
    return type(body) is bytes and PyBytes_GET_SIZE(body) <= PAYLOAD_SIZE_MAX


cdef inline void write_event(
    char *to, KeyCommand *head, const char *key, Py_ssize_t key_size, object value
) noexcept:
    head.key_length = <uint8_t>key_size
    head.value_length = <uint32_t>PyBytes_GET_SIZE(value)
    head.length = <uint32_t>(sizeof(KeyCommand) + key_size + head.value_length)
    memcpy(to, head, sizeof(KeyCommand))
    memcpy(to + sizeof(KeyCommand), key, key_size)
    memcpy(to + sizeof(KeyCommand) + key_size, PyBytes_AS_STRING(value), head.value_length)
