"""Against the files that a member may open or write."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from timerd_shm.host.paths import read_location

from .attacker import Attacker

HOLDS = 20_000
DIGITS = 5_000


def lock_everything(attacker: Attacker) -> None:
    """Hold the lock of each file that can be opened, also for reading only."""
    held: list[int] = []
    paths = [path for path in attacker.paths.directory.rglob("*") if path.is_file()]
    for path in [*paths, read_location(attacker.paths).path]:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attacker.did()
    while attacker.is_on():
        attacker.rest(0.1)
    for descriptor in held:
        os.close(descriptor)


def fill_holds(attacker: Attacker) -> None:
    """Fill the journal's holds with what is no number, and with what blocks a reader."""
    holds = Path(os.path.realpath(attacker.paths.journal)) / "holds"
    number = 0
    while attacker.is_on():
        number += 1
        with contextlib.suppress(OSError):
            if number == 1:
                os.mkfifo(holds / "fifo")
                (holds / "zero").symlink_to("/dev/zero")
            if number < HOLDS:
                (holds / f"h{number}").write_text("9" * DIGITS)
                attacker.did()
                continue
        attacker.rest(0.01)
