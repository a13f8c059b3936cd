"""Binds a Unix socket so that only this user, or the group, may connect to it, from its first moment."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from timerd_shm.declare.errors import ResourceLimitError

from .group import change_group
from .own_file import File, file_at, in_the_way

BACKLOG = 1_024  # connections that wait to be accepted: all workers of a host start at once
SO_PASSRIGHTS = 83  # of Linux 6.16; Python's socket module does not name it yet


def listen_guarded(listener: socket.socket, path: Path, group_id: int | None) -> File | None:
    """Bind a socket to `path` for this user alone, or for the group too, and listen; raises ResourceLimitError.

    Returns the file, for its removal at the end. A stale file of a killed daemon is replaced; so the
    caller holds the instance's lock.
    """
    before = os.umask(0o177)  # only the umask sets the file's mode in bind(2)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
    except OSError as error:
        raise in_the_way("the socket", path, error) from None
    finally:
        os.umask(before)
    if group_id is not None:
        try:
            change_group(path, group_id)
        except ResourceLimitError:
            path.unlink()
            raise
        os.chmod(path, 0o660)
    with suppress(OSError):  # an older kernel
        # The kernel refuses packets with descriptors. If the daemon received one, it might close the last copy, and
        # that may block: a TCP socket with SO_LINGER is closed when its data is sent, or after the time of SO_LINGER.
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    listener.listen(BACKLOG)
    return file_at(path)
