"""Opens a plain file where others may have laid something else.

descriptor = open_plain("/var/lib/timerd/journal/000000000017.segment")

Opening a FIFO waits for its writer; opening a file under a lease waits for 45 s. /dev/zero has no end, and a link leads
anywhere. open_plain() gives no descriptor of such a file, and never waits.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection

from .access import owner_named

NO_PLAIN_FILE = "it is no plain file"
_SAID = {
    errno.ELOOP: "it is a link",
    errno.ENXIO: NO_PLAIN_FILE,  # a socket
    errno.EWOULDBLOCK: "another process has a lease on it",
}


class NotPlainError(OSError):
    """Something else stands in place of a plain file, or the file is another user's. `strerror` has the words."""


def open_plain(
    path: str | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    owners: Collection[int] | None = None,
    follows: bool = False,
) -> int:
    """A descriptor of a plain file, which belongs to one of `owners` if they are given. Never waits.

    A link in the last component is followed only with `follows`, which is for a file that a person has named. O_CREAT
    makes the file with the mode 0600. Raises NotPlainError.
    """
    flags |= os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if follows else flags | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno in _SAID:
            raise NotPlainError(error.errno, _SAID[error.errno], os.fspath(path)) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError(errno.EINVAL, NO_PLAIN_FILE, os.fspath(path))
        if owners is not None and status.st_uid not in owners:
            raise NotPlainError(errno.EINVAL, f"it belongs to {owner_named(status.st_uid)}", os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
