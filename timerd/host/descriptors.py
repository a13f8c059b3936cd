"""The division of the open files that the daemon may have (RLIMIT_NOFILE).

clients     for each client a connection for commands, one for outcomes, and, if the files suffice, one to NAME.live
the rest    connections that belong to no client yet; further connections are closed as soon as they are accepted
"""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple

from timerd_shm.declare.errors import ResourceLimitError

CONNECTIONS_PER_CLIENT = 2  # one for commands, one for outcomes
NEWCOMERS_MAX = 128  # connections to NAME.live that have shown nothing yet
DESCRIPTORS_BESIDE = 64  # for the daemon itself: arena, journal, lock, timer, standard streams
UNLIMITED = 1 << 20


class Descriptors(NamedTuple):
    """The number of descriptors of each kind."""

    watches: int  # for the ends of clients
    connections: int  # for commands and outcomes


def divide(clients: int) -> Descriptors:
    """Divide the files for `clients` clients; raises the soft limit of open files to the hard one.

    Raises ResourceLimitError if there is no room for the clients themselves.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = UNLIMITED
    beside = CONNECTIONS_PER_CLIENT * clients + DESCRIPTORS_BESIDE
    if soft < beside:
        raise ResourceLimitError(
            f"{soft} files may be open, and {clients} clients need {beside}: "
            "raise the limit (LimitNOFILE=, ulimit -n), or lower --clients"
        )
    watches = min(clients + NEWCOMERS_MAX, soft - beside)
    return Descriptors(watches, soft - watches - DESCRIPTORS_BESIDE)
