"""Writing at an offset of a file, without the GIL."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, int64_t offset)


cdef inline int write_all(int fd, const uint8_t *data, uint64_t size, uint64_t offset) noexcept nogil:
    """Write all bytes. Returns 0, or -1 with errno."""
    cdef ssize_t written
    while size:
        written = pwrite(fd, data, size, offset)
        if written < 0 and errno == EINTR:
            continue
        if written < 0:
            return -1
        data += written
        size -= written
        offset += written
    return 0
