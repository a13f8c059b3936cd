"""The log of errors in the arena: each error once, with its count and its times."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from timerd_shm.generated.records cimport *

from .arena cimport Arena


cdef inline void log_error(
    Arena *a, uint32_t code, const char *message, uint64_t length, uint64_t wall_ns, uint64_t count
) noexcept nogil:
    """Count an error. When the log is full of others, it replaces the error that was seen longest ago."""
    cdef ErrorRecord *errors = <ErrorRecord *>(a.base + a.regions[REGION_ERRORS].offset)
    cdef ErrorRecord *error = NULL
    cdef ErrorRecord *oldest = errors
    cdef uint32_t index
    length = min(length, sizeof(errors.message) - 1)
    for index in range(a.regions[REGION_ERRORS].count):  # bound: errors of the log
        error = errors + index
        if error.count == 0 or (
            error.code == code and memcmp(error.message, message, length) == 0 and error.message[length] == 0
        ):
            break
        if error.last_wall_ns < oldest.last_wall_ns:
            oldest = error
    else:
        error = oldest
        error.count = 0
    if error.count == 0:
        memset(error, 0, sizeof(ErrorRecord))
        error.code = code
        error.first_wall_ns = wall_ns
        memcpy(error.message, message, length)
        a.regions[REGION_ERRORS].in_use = max(a.regions[REGION_ERRORS].in_use, <uint32_t>(error - errors) + 1)
    error.count += count
    error.last_wall_ns = wall_ns
