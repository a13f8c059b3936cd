"""What a daemon that has ended leaves: its arena."""

from __future__ import annotations

from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import InstancePaths, read_location


def remove_arena(paths: InstancePaths) -> None:
    """Remove the arena with every operation in it, if there is one."""
    try:
        files = read_location(paths).files
    except (TimerdError, OSError):
        return
    for file in (*files, paths.arena):
        file.unlink(missing_ok=True)
