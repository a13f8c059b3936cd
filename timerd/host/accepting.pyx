"""The compiled functions (see accepting.pyi)."""

from libc.errno cimport errno
from posix.unistd cimport close

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #ifndef SO_PEERPIDFD
    #define SO_PEERPIDFD 77
    #endif

    typedef struct { int pid; unsigned uid; unsigned gid; } td_credentials;  /* struct ucred */

    static int td_accept(int listening)
    {
        return accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    }

    static int td_has_left(int descriptor)
    {
        char first;
        return recv(descriptor, &first, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
    }

    static int td_option(int descriptor, int option, void *value, unsigned size)
    {
        socklen_t length = size;
        return getsockopt(descriptor, SOL_SOCKET, option, value, &length);
    }

    static int td_enlarge(int descriptor, int size)
    {
        return setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    """
    ctypedef struct td_credentials:
        int pid
        unsigned uid
    int SO_PEERCRED
    int SO_PEERPIDFD
    int td_accept(int listening)
    bint td_has_left(int descriptor)
    int td_option(int descriptor, int option, void *value, unsigned size)
    int td_enlarge(int descriptor, int size)

LEFT = -1


def accept(int listening):
    cdef int descriptor = td_accept(listening)
    if descriptor < 0:
        raise OSError(errno, "no connection was accepted")
    if td_has_left(descriptor):
        close(descriptor)
        return LEFT
    return descriptor


def credentials_of(int descriptor):
    cdef td_credentials found
    if td_option(descriptor, SO_PEERCRED, &found, sizeof(found)):
        raise OSError(errno, "the process of a peer is not known")
    return found.pid, found.uid


def pidfd_of(int descriptor):
    cdef int pidfd = -1
    if td_option(descriptor, SO_PEERPIDFD, &pidfd, sizeof(pidfd)):
        raise OSError(errno, "the process of a peer has no pidfd")
    return pidfd


def enlarge_send_buffer(int descriptor, int size):
    # The kernel doubles the size. If it allows less, then this is what it allows.
    td_enlarge(descriptor, size // 2)
