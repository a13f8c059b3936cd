"""Binds a Unix socket so that only this user, or the group, may connect to it, from its first moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import zmq

from timerd_shm.declare.errors import ResourceLimitError

BACKLOG = 1_024  # connections that wait to be accepted: all workers of a host start at once


def make_directory(path: Path, group_id: int | None) -> None:
    """Make a directory for this user alone, or for the group to look into."""
    path.mkdir(mode=0o700)
    if group_id is not None:
        os.chown(path, -1, group_id)
        path.chmod(0o750)


def bind_guarded(bind: Callable[[], object], path: Path, group_id: int | None) -> None:
    """Bind a socket to `path`, from then on for this user alone, or for the group too; raises ResourceLimitError."""
    # bind(2) is called in this thread, by libzmq as well, and only the umask sets the file's mode then.
    before = os.umask(0o177)
    try:
        bind()
    except (zmq.ZMQError, OSError) as error:
        raise ResourceLimitError(f"the socket {path} cannot be bound: {error.strerror}") from None
    finally:
        os.umask(before)
    if group_id is not None:
        os.chown(path, -1, group_id)
        os.chmod(path, 0o660)
