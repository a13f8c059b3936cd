"""The compiled Timer (see timer.pyi)."""

from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, itimerspec
from posix.unistd cimport close, read
from timerd_shm.generated.records cimport NO_DEADLINE

from timerd_shm.declare.errors import ClosedError

cdef extern from "<sys/timerfd.h>" nogil:
    int TFD_NONBLOCK
    int TFD_CLOEXEC
    int TFD_TIMER_ABSTIME
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *new, itimerspec *old)


cdef class Timer:
    cdef int fd

    def __cinit__(self):
        self.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "timerfd_create failed")

    def __dealloc__(self):
        self.close()

    def fileno(self):
        if self.fd < 0:
            raise ClosedError("the timer was closed")
        return self.fd

    def arm(self, uint64_t at_ns):
        cdef itimerspec spec
        memset(&spec, 0, sizeof(spec))
        if at_ns != NO_DEADLINE:
            # 0 would disarm: a time that has passed fires at once.
            at_ns = at_ns if at_ns else 1
            spec.it_value.tv_sec = at_ns // 1000000000
            spec.it_value.tv_nsec = at_ns % 1000000000
        if timerfd_settime(self.fileno(), TFD_TIMER_ABSTIME, &spec, NULL) != 0:
            raise OSError(errno, "timerfd_settime failed")

    def read(self):
        cdef uint64_t count = 0
        if read(self.fileno(), &count, sizeof(count)) != sizeof(count):
            return 0
        return count

    def close(self):
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1
