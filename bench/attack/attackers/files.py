"""Attacks on the files that a neighbour may open or write."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from timerd_shm.host.paths import read_location

from .attacker import Attacker

HOLDS = 20_000
DIGITS = 5_000


def lock_everything(attacker: Attacker) -> None:
    """Hold the lock of each file that a neighbour may open, even if only to read; try again while the daemon restarts.

    This process runs as the daemon's user. It skips files that only this user may open, because a neighbour could not.
    """
    held: dict[int, int] = {}  # inode -> descriptor
    while attacker.is_on():
        with contextlib.suppress(OSError):
            directory = attacker.paths.directory
            for path in [directory, *directory.rglob("*"), read_location(attacker.paths).path]:
                with contextlib.suppress(OSError):
                    status = path.stat()
                    if status.st_ino in held or not status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
                        continue
                    held[status.st_ino] = descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    attacker.did()
        attacker.rest(0.01)
    for descriptor in held.values():
        os.close(descriptor)


def fill_holds(attacker: Attacker) -> None:
    """Fill holds/, where each consumer of the journal has a file with the number of the first segment that it needs.

    Most files have 5,000 digits: no segment's number. A FIFO blocks its reader. A link to /dev/zero has no end.
    """
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
