"""The calls of a purgatory: `register` and `fire` with the arguments that the fast path takes.

Under the GIL, code that calls no Python is not interrupted. So a call takes the link's lock only if another thread
holds the lock: that thread may have lost the GIL in the middle of a change. See `Line.enter`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from timerd_client.hot.command_buffer cimport buffer_reserve
from timerd_client.hot.fast_arguments cimport *
from timerd_client.hot.ledger cimport Ledger
from timerd_client.hot.pending_table cimport table_put, table_reserve
from timerd_client.hot.promises cimport Handle
from timerd_client.hot.watch cimport *
from timerd_shm.generated.records cimport *

import time
from functools import update_wrapper
from types import MethodType

from timerd_client.arguments import id_hash
from timerd_client.conditions import ANY, When
from timerd_client.declared import REGISTRATION
from timerd_client.hot import commands
from timerd_client.mark import Mark
from timerd_shm.declare.states import Condition
from timerd_wire import native

ctypedef object (*Vectorcall)(object called, PyObject **given, size_t count, PyObject *names)

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        object (*tp_new)(type made, tuple arguments, PyObject *named)
        Py_ssize_t tp_vectorcall_offset
        unsigned long tp_flags
    const unsigned long Py_TPFLAGS_HAVE_VECTORCALL
    const unsigned long Py_TPFLAGS_METHOD_DESCRIPTOR
    object PyObject_Vectorcall(object called, PyObject **given, size_t count, PyObject *names)
    Py_ssize_t PyVectorcall_NARGS(size_t count)
    PyObject *PyTuple_GET_ITEM(object names, Py_ssize_t at)
    Py_ssize_t PyTuple_GET_SIZE(object names)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *at)

cdef object _monotonic_ns = time.monotonic_ns
cdef object _ANY = ANY
cdef object _When = When
cdef object _id_hash = id_hash
cdef dict _IF_EXISTS = commands.IF_EXISTS
cdef object _Condition = Condition
cdef dict _DEFAULTS = {**REGISTRATION.defaults, "group": False}
cdef tuple _FAST = ("timeout", "when", "payload", "id", "if_exists", "since")  # arguments of register_fast, in order
cdef tuple _NAMES = _FAST + tuple([name for name in _DEFAULTS if name not in _FAST])
cdef tuple _NAMED_DEFAULTS = tuple([_DEFAULTS[name] for name in _NAMES])
cdef object _ERROR = _DEFAULTS["if_exists"]
cdef object _EMPTY = b""
cdef tuple _NOTHING = ()


cdef class Line:
    cdef public bint closed
    cdef public bint sealed
    cdef public bint idle
    cdef public int64_t alarm
    cdef object guard
    cdef object is_locked  # the lock's method: the look-up would cost more than the call
    cdef object clock

    def __init__(self, now_ns):
        self.alarm = INT64_MAX
        self.now_ns = now_ns
        self.lock = native.lock()

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
        """Wait for the lock and take it, if another thread holds it. Returns whether the lock was taken, for `leave`.

        Call this before a change of the ledger. If no thread holds the lock, it is not needed: the code up to `leave`
        calls no Python, so it keeps the GIL. A holder of the lock may have lost the GIL in the middle of a change.
        """
        if self.is_locked():
            self.guard.acquire()
            return True
        return False

    cdef inline int leave(self, bint entered) except -1:
        if entered:
            self.guard.release()
        return 0

    def wake(self):
        raise NotImplementedError

    def wake_if_due(self, int64_t issued):
        if self.idle or issued >= self.alarm:
            self.wake()

    cdef inline int ring(self, int64_t issued) except -1:
        """Call wake_if_due() if needed. The caller does not hold the lock."""
        if self.idle or issued >= self.alarm:
            with self.guard:
                self.wake_if_due(issued)
        return 0


cdef class Caller:
    cdef readonly object _name
    cdef readonly Line _link
    cdef readonly Ledger _ledger
    cdef readonly dict _indices
    cdef type operation

    def __init__(self, Line line not None, Ledger ledger not None, dict indices not None, name, operation):
        self._name = name
        self._link = line
        self._ledger = ledger
        self._indices = indices
        if not issubclass(operation, Handle):
            raise TypeError(f"{operation!r} is no Handle")
        self.operation = operation

    @property
    def _operation(self):
        return self.operation


cdef inline bint is_own_mark(Ledger ledger, object since, RegisterCommand *head) except -1:
    """Whether this client made the mark in the present arena. If so, the mark is written into the head.

    The types are compared exactly, so that no method of a caller's class runs in the middle of a change of the ledger.
    """
    if type(since) is not Mark:
        return False
    incarnation, sequence, command, maker = <tuple>since
    if type(incarnation) is not int or type(sequence) is not int or type(command) is not int:
        return False
    if maker is not ledger.incarnation or incarnation != ledger.arena:
        return False
    try:
        head.mark_sequence = sequence
        head.mark_command = command
    except OverflowError:
        return False
    return True


cdef Handle register_fast(
    Caller caller, object keys, object timeout, object when, object payload, object id, object if_exists, object since
):
    """Register, if the fast path takes these arguments and the window has room. None = nothing was done."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._ledger
    cdef RegisterCommand head
    cdef Watch watch
    cdef Py_ssize_t id_size
    cdef uint64_t size, duration_ns
    cdef object names, holder = None
    cdef bytes hashed = b""
    cdef bint entered
    cdef char *to
    cdef Handle made
    if not is_body(payload) or not duration_of(timeout, &duration_ns) or not read_condition(when, _ANY, _When, _Condition, &watch):
        return None
    names = read_keys(keys, &watch)
    if names is None:
        return None
    head.kind = COMMAND_KIND_REGISTER
    head.flags = 0
    if id is not None:
        if key_of(id, &id_size) == NULL or type(if_exists) is not str or if_exists not in _IF_EXISTS:
            return None
        hashed = _id_hash(id)
        head.flags = REGISTER_FLAG_HAS_ID | <int>_IF_EXISTS[if_exists]
    elif if_exists is not _ERROR:
        return None
    head.condition, head.needed, head.keys, head.total = watch.condition, watch.needed, watch.count, watch.total
    head.orphans = 0
    head.timeout_ns = duration_ns
    head.registered_ns = line.now()
    size = sizeof(RegisterCommand) + PyBytes_GET_SIZE(hashed) + watch.size + PyBytes_GET_SIZE(payload)
    head.length, head.payload_length = <uint32_t>size, <uint32_t>PyBytes_GET_SIZE(payload)
    made = (<PyTypeObject *>caller.operation).tp_new(caller.operation, _NOTHING, NULL)
    made._link = line
    made._names = names
    made.payload = payload
    made.deadline_ns = NO_DEADLINE if duration_ns == NO_DEADLINE else head.registered_ns + duration_ns
    if id is None:
        entered = line.enter()
    else:
        line.guard.acquire()  # the ids are a dict in Python
        entered = True
    try:
        if line.sealed or ledger.issued - ledger.applied >= ledger.window:
            return None
        if since is None:
            head.mark_sequence = ledger.newest_sequence()
            head.mark_command = ledger.issued
        elif not is_own_mark(ledger, since, &head):
            return None
        if id is not None:
            holder = ledger.ids.find(ledger.pending, caller._name, hashed)
            if holder is not None and if_exists == "keep" and isinstance(holder, Handle):
                return holder
        head.purgatory = caller._indices[caller._name]  # under the lock: another arena has another index
        buffer_reserve(&ledger.commands, size, 1)
        table_reserve(&ledger.pending.table, 1)
        to = ledger.add(size)
        memcpy(to, &head, sizeof(RegisterCommand))
        to += sizeof(RegisterCommand)
        memcpy(to, PyBytes_AS_STRING(hashed), PyBytes_GET_SIZE(hashed))
        to += PyBytes_GET_SIZE(hashed)
        write_watch(to, &watch)
        memcpy(to + watch.size, PyBytes_AS_STRING(payload), head.payload_length)
        made.command = ledger.issued
        Py_INCREF(made)
        table_put(&ledger.pending.table, made.command, <PyObject *>made)
        if id is not None:
            made._id = id, caller._name, if_exists
            if holder is None or if_exists == "replace":  # otherwise the daemon will refuse the registration
                ledger.ids.add(ledger.pending, caller._name, hashed, made.command)
    finally:
        line.leave(entered)
    line.ring(ledger.issued)
    return made


cdef bint fire_fast(Caller caller, object key, object value, object amount) except -1:
    """Fire, if the fast path takes these arguments and the window has room. False = nothing was done."""
    cdef Line line = caller._link
    cdef Ledger ledger = caller._ledger
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
    head.flags = 0
    head.amount = units
    head.limit = 0
    size = sizeof(KeyCommand) + key_size + PyBytes_GET_SIZE(value)
    entered = line.enter()
    try:
        if line.sealed or ledger.issued - ledger.applied >= ledger.window:
            return False
        head.purgatory = caller._indices[caller._name]
        buffer_reserve(&ledger.commands, size, 1)
        write_event(ledger.add(size), &head, name, key_size, value)
    finally:
        line.leave(entered)
    line.ring(ledger.issued)
    return True


cdef object register_or_general(object called, PyObject **given, size_t count, PyObject *names):
    """`register`. CPython passes the arguments in an array, and the names of the named arguments in a tuple.

    The fast path reads its arguments there. Every other call goes to the general method unchanged. So a new argument
    needs no line here, unless the fast path takes it. A Cython method with `**named` would make a dictionary in each
    call. A Cython method that lists the arguments could not suggest the nearest name for a wrong one.
    """
    cdef PyObject *taken[6]
    cdef PyObject *name
    cdef Py_ssize_t at, slot
    cdef Handle made
    if PyVectorcall_NARGS(count) == 2 and names != NULL and isinstance(<object>given[0], Caller):
        for slot in range(6):
            taken[slot] = PyTuple_GET_ITEM(_NAMED_DEFAULTS, slot)
        for at in range(PyTuple_GET_SIZE(<object>names)):
            name = PyTuple_GET_ITEM(<object>names, at)
            for slot in range(PyTuple_GET_SIZE(_NAMES)):
                if name == PyTuple_GET_ITEM(_NAMES, slot):  # both are interned
                    break
            else:
                break
            if slot < 6:
                taken[slot] = given[2 + at]
            elif given[2 + at] != PyTuple_GET_ITEM(_NAMED_DEFAULTS, slot):
                break
        else:
            made = register_fast(
                <Caller>given[0], <object>given[1], <object>taken[0], <object>taken[1], <object>taken[2],
                <object>taken[3], <object>taken[4], <object>taken[5],
            )
            if made is not None:
                return made
    return PyObject_Vectorcall((<_Register>called).general, given, count, names)


cdef class _Register:
    """The method `register`: CPython's vectorcall runs register_or_general, and help() shows the general method."""

    cdef Vectorcall call
    cdef object general
    cdef dict __dict__

    def __init__(self, general):
        self.call = register_or_general
        self.general = general
        update_wrapper(self, general)

    def __get__(self, instance, owner):
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *given, **named):
        return self.general(*given, **named)


def takes_register(method):
    cdef _Register made = _Register(method)
    cdef PyTypeObject *kind = <PyTypeObject *>_Register
    kind.tp_vectorcall_offset = <char *>&made.call - <char *><PyObject *>made
    kind.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR
    return made


def takes_fire(method):
    def fire(Caller self, key, *, value=_EMPTY, amount=1, limit=None):
        if limit is not None or not fire_fast(self, key, value, amount):
            method(self, key, value=value, amount=amount, limit=limit)
    return update_wrapper(fire, method)
