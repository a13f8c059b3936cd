"""The identity of this process in HELLO."""

from __future__ import annotations

import os

from timerd_client.protocol.session import Identity
from timerd_shm.declare.limits import TAKEOVER_MS
from timerd_shm.declare.states import Orphans
from timerd_shm.host.process import boot_id, namespace_inode, process_start_ticks


def identity(name: str, orphans: Orphans, group: str | None, takeover_ms: int = TAKEOVER_MS) -> Identity:
    """The identity of this process in HELLO."""
    pid = os.getpid()
    return Identity(
        name,
        pid,
        process_start_ticks(pid) or 0,
        namespace_inode("pid"),
        namespace_inode("time"),
        boot_id(),
        orphans,
        group,
        takeover_ms,
    )
