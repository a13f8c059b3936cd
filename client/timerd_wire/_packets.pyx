"""Packets of packets.py: sendmsg(2) and recv(2)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, ENOBUFS, ENOMEM, errno
from libc.string cimport memset
from posix.unistd cimport close

from timerd_shm.declare.limits import PACKET_SIZE_MAX as _declared

cdef extern from *:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags) nogil
    ssize_t recv(int descriptor, void *buffer, size_t size, int flags) nogil
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
        MSG_TRUNC

cdef enum:
    SIZE_MAX = 1 + 131072

if SIZE_MAX != 1 + _declared:
    raise ImportError("packets were compiled with another PACKET_SIZE_MAX")

cdef unsigned char received[SIZE_MAX]  # one for all calls: a call keeps the GIL


cdef class Packets:
    cdef object __weakref__
    cdef int descriptor
    cdef readonly int kind

    def __init__(self, int descriptor):
        self.descriptor = descriptor

    def __dealloc__(self):
        self._close()

    cdef void _close(self) noexcept:
        if self.descriptor >= 0:
            close(self.descriptor)
            self.descriptor = -1

    def send(self, int kind, bytes body not None):
        cdef unsigned char first = <unsigned char>kind
        cdef iovec parts[2]
        cdef msghdr message
        parts[0].iov_base, parts[0].iov_len = &first, 1
        parts[1].iov_base, parts[1].iov_len = PyBytes_AS_STRING(body), <size_t>PyBytes_GET_SIZE(body)
        memset(&message, 0, sizeof(msghdr))
        message.msg_iov, message.msg_iovlen = parts, 2
        while sendmsg(self.descriptor, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0:
            if errno == EAGAIN or errno == ENOBUFS or errno == ENOMEM:
                return False
            if errno != EINTR:
                raise OSError(errno, "a packet was not sent")
        return True

    def receive(self):
        cdef ssize_t size
        cdef bint was_reset = False
        while True:
            size = recv(self.descriptor, received, SIZE_MAX, MSG_DONTWAIT | MSG_TRUNC)
            if size >= 0:
                break
            if errno == EAGAIN:
                return None
            if errno == ECONNRESET and not was_reset:
                was_reset = True  # the other side has left packets unread; its own last ones come after this error
            elif errno != EINTR:
                raise OSError(errno, "no packet was received")
        if size == 0:
            raise ConnectionResetError(ECONNRESET, "the other side has ended")
        if size > SIZE_MAX:
            raise ValueError(f"a packet has {size} bytes; at most {SIZE_MAX} are taken")
        self.kind = received[0]
        return PyBytes_FromStringAndSize(<char *>received + 1, size - 1)

    def close(self):
        self._close()
