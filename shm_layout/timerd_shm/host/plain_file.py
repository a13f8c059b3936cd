"""Opens a plain file where others may have laid something else.

descriptor = open_plain("/var/lib/timerd/journal/000000000017.segment")

Opening a FIFO waits for its writer; opening a file under a lease waits for 45 s. /dev/zero has no end, and a link leads
anywhere. open_plain() gives no descriptor of such a file, and never waits.
"""

from __future__ import annotations

import errno
import os
import stat

NO_PLAIN_FILE = "it is no plain file"
_SAID = {
    errno.ELOOP: "it is a link",
    errno.ENXIO: NO_PLAIN_FILE,  # a socket
    errno.EWOULDBLOCK: "another process has a lease on it",
}


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file. Waits for nothing, follows no link in the last component.

    Raises OSError, whose `strerror` says in words what stands in place of a plain file.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _SAID:
            raise OSError(error.errno, _SAID[error.errno], os.fspath(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, NO_PLAIN_FILE, os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
