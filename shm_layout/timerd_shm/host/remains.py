"""What a daemon that has ended leaves: its arena."""

from __future__ import annotations

from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import ArenaLocation, InstancePaths, read_location


def remove_arena(paths: InstancePaths) -> None:
    """Remove the arena with every operation in it, if there is one. Its daemon must have ended."""
    try:
        location = read_location(paths)
    except (TimerdError, OSError):
        location = ArenaLocation("shm", paths.shm_name, 0)  # a daemon that was killed at its start has said nothing
    for file in (*location.files, paths.arena):
        file.unlink(missing_ok=True)
