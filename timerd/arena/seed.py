"""The seed of an arena's hashes: 16 random bytes in ARENA.seed beside the arena, which only the daemon's user may open.

A client that knew the seed could choose keys of one chain, and each command on them would walk the whole chain. So the
seed is in no place that clients may read: not in the arena, and in no message.

A new arena gets a new seed. Where the file is missing, or was open to others, a start makes a new seed as well, and the
core makes all hashes anew (purgatory/start/rehash.pxd).
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from timerd_shm.declare.errors import ResourceLimitError
from timerd_shm.host.access import other_owner
from timerd_shm.read.hashing import SEED_SIZE


class NoSeedError(Exception):
    """There is no secret seed. The text has the reason, as a predicate of the path: "was missing"."""


def read_seed(path: Path) -> bytes:
    """The seed of an arena, SEED_SIZE bytes. Raises NoSeedError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NoSeedError("was missing") from None
    except OSError as error:
        raise NoSeedError(f"could not be opened ({error.strerror})") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoSeedError("was no plain file")
        if status.st_uid != os.geteuid():
            raise NoSeedError(f"belonged to uid {status.st_uid}, who may know it")
        if status.st_mode & 0o077:
            raise NoSeedError(f"was open to others, who may know it (mode {stat.S_IMODE(status.st_mode):04o})")
        seed = os.read(descriptor, SEED_SIZE + 1)
    finally:
        os.close(descriptor)
    if len(seed) != SEED_SIZE:
        raise NoSeedError(f"had {status.st_size} bytes, and a seed has {SEED_SIZE}")
    return seed


def make_seed(path: Path) -> bytes:
    """A new seed, in a new file (0600) that replaces an old one. Raises ResourceLimitError."""
    seed = secrets.token_bytes(SEED_SIZE)
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(seed)
    except OSError as error:
        raise ResourceLimitError(
            f"the seed of the arena's hashes cannot be made: {path}: "
            + (other_owner(path) or f"{error.strerror}: remove what is there, or give this daemon another --instance")
        ) from None
    return seed
