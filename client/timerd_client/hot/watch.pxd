"""The keys and the condition of a registration: read into C values, and written into a command.

read_keys() takes one key, or a tuple, list or dict of keys. It returns None for anything else (an iterator, 17 keys, a
key twice): the general path takes such keys, or raises the error.
"""

from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_AsTuple
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from timerd_client.hot.fast_arguments cimport key_of
from timerd_shm.generated.records cimport *

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLong(object number) except? <unsigned long long>-1

cdef extern from *:
    """
    #define FAST_KEYS_MAX 16 /* each key is compared with all earlier keys; with more keys, a set is quicker */
    """
    const int FAST_KEYS_MAX


cdef struct WatchKey:
    const char *name  # points into the caller's key
    Py_ssize_t size
    uint64_t target
    uint8_t kind


cdef struct Watch:
    WatchKey keys[FAST_KEYS_MAX]
    uint32_t count
    uint32_t needed
    uint32_t at_least  # the caller's number; 0 = all keys
    uint64_t total
    uint64_t size  # bytes of the keys in a command
    uint8_t condition
    bint has_targets


cdef inline bint read_condition(object when, object any_key, object condition, object kind, Watch *watch) except -1:
    """Read the condition `when`. Returns whether the fast path takes it.

    `any_key` is ANY; `condition` and `kind` are the classes When and Condition.
    """
    cdef tuple parts
    if when is any_key:
        watch.condition, watch.at_least, watch.total = CONDITION_AT_LEAST, 1, 0
        return True
    if type(when) is not condition:
        return False
    parts = <tuple>when
    if len(parts) != 3 or type(parts[0]) is not kind:  # Cython does not check the bounds of `parts` here
        return False
    if type(parts[1]) is not int or type(parts[2]) is not int:
        return False
    try:
        watch.condition, watch.at_least, watch.total = parts
    except OverflowError:
        return False
    return watch.condition < CONDITION_COUNT


cdef inline bint add_key(Watch *watch, object name) except -1:
    cdef WatchKey *key = watch.keys + watch.count
    cdef WatchKey *other
    cdef uint32_t at
    if watch.count == <uint32_t>FAST_KEYS_MAX:
        return False
    key.name = key_of(name, &key.size)
    if key.name == NULL:
        return False
    for at in range(watch.count):
        other = watch.keys + at
        if other.size == key.size and memcmp(other.name, key.name, key.size) == 0:
            return False
    key.kind = KEY_KIND_EVENT
    watch.count += 1
    watch.size += 2 + key.size
    return True


cdef inline bint add_target(Watch *watch, object target) except -1:
    """Make the last key a watermark key, if there is a target. Returns whether the fast path takes the target."""
    cdef WatchKey *key = watch.keys + (watch.count - 1)
    if target is None:
        return True
    if type(target) is not int:
        return False
    try:
        key.target = PyLong_AsUnsignedLongLong(target)
    except OverflowError:
        return False
    key.kind = KEY_KIND_WATERMARK
    watch.has_targets = True
    watch.size += sizeof(uint64_t)
    return True


cdef inline object read_keys(object keys, Watch *watch):
    """The keys as an operation has them: one key, or a tuple. None = only the general path takes these keys.

    Call read_condition() first. `watch` points into the keys, so it is valid as long as the result lives.
    """
    cdef PyObject *name
    cdef PyObject *target
    cdef Py_ssize_t at = 0
    cdef object names
    watch.count, watch.size, watch.has_targets = 0, 0, False
    if type(keys) is dict:
        names = tuple(keys)
        while PyDict_Next(keys, &at, &name, &target):
            if not add_key(watch, <object>name) or not add_target(watch, <object>target):
                return None
    elif type(keys) is tuple or type(keys) is list:
        names = keys if type(keys) is tuple else PyList_AsTuple(keys)
        for one in <tuple>names:
            if not add_key(watch, one):
                return None
    elif add_key(watch, keys):
        names = keys
    else:
        return None
    if watch.count == 0 or watch.at_least > watch.count:
        return None
    if watch.has_targets and not CONDITIONS_TAKE_WATERMARKS >> watch.condition & 1:
        return None
    watch.needed = watch.at_least
    if watch.needed == 0 and CONDITIONS_TAKE_NEEDED >> watch.condition & 1:
        watch.needed = watch.count
    return names


cdef inline void write_watch(char *to, const Watch *watch) noexcept nogil:
    """Write the keys as a command has them: for each key its size, its kind, the target if there is one, its name."""
    cdef const WatchKey *key
    cdef uint32_t at
    for at in range(watch.count):
        key = watch.keys + at
        to[0] = <char>key.size
        to[1] = <char>key.kind
        to += 2
        if key.kind == KEY_KIND_WATERMARK:
            memcpy(to, &key.target, sizeof(uint64_t))
            to += sizeof(uint64_t)
        memcpy(to, key.name, key.size)
        to += key.size
