"""The files of an instance whose daemon is dead; in its arena every kind of record is in use."""

from __future__ import annotations

from pathlib import Path

from support.rig.damage import Pen, busy_rig
from support.rig.harness import Rig, S
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.host.paths import ArenaLocation, InstancePaths, write_location
from timerd_shm.host.process import boot_id


def rig_of_this_boot() -> Rig:
    """An arena of this boot in which every kind of record is in use, with an error that was logged twice."""
    rig = busy_rig()
    rig.core.log_error(ErrorCode.MALFORMED, b"a frame of 3 bytes from \x1b[31m nobody", 1_700_000_000 * S)
    rig.core.log_error(ErrorCode.MALFORMED, b"a frame of 3 bytes from \x1b[31m nobody", 1_700_000_060 * S)
    Pen(rig.memory).header("boot_id", boot_id())
    return rig


def bury(rig: Rig, directory: Path) -> None:
    """Write the rig's arena where timerctl finds it: the default instance, whose daemon is dead."""
    (directory / "arena").write_bytes(rig.memory)
    write_location(InstancePaths(directory, "default"), ArenaLocation("file", str(directory / "arena"), 1))
