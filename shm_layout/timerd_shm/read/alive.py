"""Whether an arena's daemon runs, and what time it is on the clock of the arena's times."""

from __future__ import annotations

import time
from collections.abc import Callable

from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import InstancePaths, daemon_running
from timerd_shm.host.process import boot_id, process_start_ticks


def is_alive(paths: InstancePaths, header: ArenaHeader) -> bool:
    """Whether the instance's daemon runs: by its socket, or by its pid where this user cannot look at the socket."""
    try:
        return daemon_running(paths)
    except (PermissionError, ResourceLimitError):
        return header.pid != 0 and process_start_ticks(header.pid) == header.start_ticks


def now_ns(header: ArenaHeader, clock: Callable[[], int] | None = None) -> int:
    """Now, on the clock of the arena's times. For an arena of an earlier boot: the time of its newest turn."""
    return (clock or time.monotonic_ns)() if header.boot_id == boot_id() else header.turn_at_ns
