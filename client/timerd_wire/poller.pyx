"""Poller (see poller.pyi): ppoll(2), and the slack of its timeouts."""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from posix.time cimport timespec

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <sys/prctl.h>
    """
    struct pollfd:
        int fd
        short events
        short revents
    int ppoll(pollfd *fds, unsigned long count, const timespec *timeout, const void *signals) nogil
    int prctl(int operation, ...) nogil
    enum:
        POLLIN
        PR_SET_TIMERSLACK

cdef enum:
    DESCRIPTORS_MAX = 8
    SLACK_NS = 1000


def sharpen():
    prctl(PR_SET_TIMERSLACK, <unsigned long>SLACK_NS)


cdef class Poller:
    cdef pollfd watched[DESCRIPTORS_MAX]
    cdef unsigned long count

    def register(self, int descriptor):
        if self.count == DESCRIPTORS_MAX:
            raise ValueError(f"{DESCRIPTORS_MAX} of {DESCRIPTORS_MAX} descriptors are watched")
        self.watched[self.count].fd = descriptor
        self.watched[self.count].events = POLLIN
        self.count += 1

    def unregister(self, int descriptor):
        cdef unsigned long at
        for at in range(self.count):
            if self.watched[at].fd == descriptor:
                self.count -= 1
                self.watched[at] = self.watched[self.count]
                return
        raise KeyError(descriptor)

    def poll(self, long long timeout_ns):
        cdef timespec timeout
        cdef int ready
        cdef unsigned long at, count = self.count
        timeout.tv_sec = timeout_ns // 1000000000
        timeout.tv_nsec = timeout_ns % 1000000000
        with nogil:
            ready = ppoll(self.watched, count, &timeout, NULL)
        if ready < 0:
            if errno != EINTR:
                raise OSError(errno, "ppoll failed")
            PyErr_CheckSignals()
            return []
        return [self.watched[at].fd for at in range(count) if self.watched[at].revents] if ready else []
