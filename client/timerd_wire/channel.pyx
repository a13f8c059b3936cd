"""Channel (see channel.pyi).

It uses the libzmq that pyzmq has loaded. Its functions are found through pyzmq's extension module, so nothing is
linked, and Channel and pyzmq use one library. A message of libzmq is 64 bytes, which only libzmq reads.
"""

import ctypes
import sys

import zmq

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EHOSTUNREACH, EINTR

cdef extern from *:
    """
    typedef struct { _Alignas(void *) unsigned char opaque[64]; } td_message;
    """
    ctypedef struct td_message:
        pass

cdef enum:
    EVENTS = 15
    DONTWAIT = 1
    SNDMORE = 2

ctypedef int (*message_function)(td_message *) noexcept nogil
ctypedef int (*receive_function)(td_message *, void *, int) noexcept nogil
ctypedef void *(*data_function)(td_message *) noexcept nogil
ctypedef size_t (*size_function)(td_message *) noexcept nogil
ctypedef int (*send_function)(void *, const void *, size_t, int) noexcept nogil
ctypedef int (*option_function)(void *, int, void *, size_t *) noexcept nogil
ctypedef int (*errno_function)() noexcept nogil


def _functions():
    """The addresses of the functions of pyzmq's libzmq. Raises ImportError if they cannot be found."""
    try:
        library = ctypes.CDLL(sys.modules[zmq.backend.Socket.__module__].__file__)
        return {
            name: ctypes.cast(getattr(library, "zmq_" + name), ctypes.c_void_p).value
            for name in ("msg_init", "msg_recv", "msg_data", "msg_size", "msg_more", "msg_close", "send",
                         "getsockopt", "errno")
        }
    except (AttributeError, KeyError, OSError) as error:
        raise ImportError(f"libzmq's functions were not found in pyzmq's extension: {error}") from None


cdef dict found = _functions()
cdef message_function msg_init = <message_function><size_t>found["msg_init"]
cdef message_function msg_close = <message_function><size_t>found["msg_close"]
cdef message_function msg_more = <message_function><size_t>found["msg_more"]
cdef receive_function msg_recv = <receive_function><size_t>found["msg_recv"]
cdef data_function msg_data = <data_function><size_t>found["msg_data"]
cdef size_function msg_size = <size_function><size_t>found["msg_size"]
cdef send_function zmq_send = <send_function><size_t>found["send"]
cdef option_function getsockopt = <option_function><size_t>found["getsockopt"]
cdef errno_function zmq_errno = <errno_function><size_t>found["errno"]


cdef class Channel:
    cdef void *handle
    cdef object socket
    cdef td_message newest  # the part that was received last
    cdef bint has_newest

    def __init__(self, socket):
        self.socket = socket
        self.handle = <void *><size_t>socket.underlying

    def __dealloc__(self):
        self._forget()

    cdef void _forget(self) noexcept:
        if self.has_newest:
            self.has_newest = False
            msg_close(&self.newest)

    cdef int _open(self) except -1:
        if self.handle == NULL:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        return 0

    cdef bint _next(self, bint *more) except? 2:
        """Receive the next part of a message as `newest`. Returns whether there was one."""
        cdef td_message *message = &self.newest
        cdef int error
        self._forget()
        msg_init(message)
        self.has_newest = True
        while msg_recv(message, self.handle, DONTWAIT) < 0:
            error = zmq_errno()
            if error == EINTR:
                continue
            self._forget()
            if error == EAGAIN:
                return False
            raise zmq.ZMQError(error)
        more[0] = msg_more(message) != 0
        return True

    cdef bytes _part(self, bint *more):
        """The next part of a message; None if there is none."""
        if not self._next(more):
            return None
        return PyBytes_FromStringAndSize(<const char *>msg_data(&self.newest), <Py_ssize_t>msg_size(&self.newest))

    def receive(self):
        cdef bint more = False
        self._open()
        part = self._part(&more)
        if not more:
            return part
        while more and self._next(&more):
            pass
        return b""

    cdef bint _send(self, part, int flags) except? 2:
        cdef Py_buffer view
        cdef int rc, error = 0
        PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
        try:
            while True:
                rc = zmq_send(self.handle, view.buf, view.len, flags | DONTWAIT)
                if rc >= 0:
                    return True
                error = zmq_errno()
                if error == EAGAIN or error == EHOSTUNREACH:
                    return False
                if error != EINTR:
                    raise zmq.ZMQError(error)
        finally:
            PyBuffer_Release(&view)

    def send(self, frame):
        self._open()
        return self._send(frame, 0)

    def events(self):
        cdef int events = 0
        cdef size_t size = sizeof(events)
        self._open()
        while getsockopt(self.handle, EVENTS, &events, &size) < 0:
            if zmq_errno() != EINTR:
                raise zmq.ZMQError(zmq_errno())
        return events

    def close(self, linger):
        self._forget()
        self.handle = NULL
        self.socket.close(linger)
