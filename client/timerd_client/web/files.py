"""Open files of a process with requests: each request has a socket, and 1,024 files are the usual limit.

    WARNING 793 requests are open, and 819 of 1,024 files (RLIMIT_NOFILE): without a free file this process accepts ...

A process without a free file accepts no connection, and its client cannot connect to a daemon that was started again.
So there is one warning, when MARK of the files are open. With gunicorn the number of connections that a worker accepts
is known, so its workers warn at their start.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from typing import Final

MARK: Final = 0.8
FILES_PER_REQUEST: Final = 4  # at most: the request's socket, and the files that its view opens
BESIDE: Final = 64  # files of the process itself: a client, an event loop, the listening socket, logs
NEVER: Final = sys.maxsize
REMEDY: Final = "raise the limit (LimitNOFILE= of a unit, ulimit -n), or start more workers with fewer {what} each"
logger = logging.getLogger("timerd_client.web")


def limit() -> int:
    """How many files this process may have open: the soft limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return NEVER if soft == resource.RLIM_INFINITY else soft


def look(requests: int) -> int:
    """Warn if MARK of the files are open. Returns the number of open requests at which to look again."""
    most = limit()
    used = _open_files(most)
    room = int(MARK * most) - used
    if room > 0:
        return requests + max(1, room // FILES_PER_REQUEST)
    logger.warning(
        "%s requests are open, and %s of %s files (RLIMIT_NOFILE): without a free file this process accepts no "
        "connection, and cannot connect to a daemon that was started again; %s",
        *(f"{number:,}" for number in (requests, used, most)),
        REMEDY.format(what="requests"),
    )
    return NEVER


def shortage(connections: int) -> str:
    """A warning if this process cannot have that number of connections. Otherwise empty."""
    most = limit()
    if connections + BESIDE <= most:
        return ""
    return (
        f"this worker accepts up to {connections:,} connections, a file each, and needs {BESIDE} files beside them; "
        f"it may have {most:,} open (RLIMIT_NOFILE): {REMEDY.format(what='connections')} (--worker-connections)"
    )


def _open_files(most: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # one descriptor is for this directory itself
    except OSError:  # no file is left for the directory
        return most
