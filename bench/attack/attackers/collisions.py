"""Attacks on the tables of keys and of ids: names that shared one chain while the hashes had no secret.

The attacker is a neighbour, so it can read the arena. But the seed of the hashes is no longer in the arena: it is in a
file that only the daemon's user may read. So the attacker guesses, with two kinds of names. Names of the first kind
would share a chain under the old hash (the finalizer of MurmurHash3) if its seed were the number that now stands at the
seed's old offset. Names of the second kind have the same low bits.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from unittest.mock import patch

import timerd as td
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.paths import open_arena_file

from .attacker import Attacker

NAMES = 30_000  # names in a round; a client may have more than twice as many keys
HEADS_MOST = 1 << 20  # chains of the largest table. Keys that share a chain there share one in every smaller table
SEED_AT = offset_of(ArenaHeader, "size") + 8  # where the seed stood
MASK = 0xFFFF_FFFF_FFFF_FFFF
MULTIPLIERS = (0xC4CE_B9FE_1A85_EC53, 0xFF51_AFD7_ED55_8CCD)


def unmix(h: int) -> int:
    """The number whose old hash is `h`."""
    h ^= h >> 33
    for multiplier in MULTIPLIERS:
        h = h * pow(multiplier, -1, 1 << 64) & MASK
        h ^= h >> 33
    return h


def keys_of_one_chain(seed: int) -> Iterator[list[bytes]]:
    """Endless rounds, two kinds in turn: keys of one chain under the old hash with `seed`; keys with equal low bits."""
    first = 1
    while True:
        numbers = range(first, first + NAMES)
        yield [struct.pack("<Q", unmix(number * HEADS_MOST & MASK) ^ seed ^ 8) for number in numbers]
        yield [struct.pack("<Q", number * HEADS_MOST) for number in numbers]
        first += NAMES


def collide_keys(attacker: Attacker) -> None:
    """Register keys of one chain, and fire them: each event walks along the whole chain."""
    descriptor = open_arena_file(attacker.paths)
    (seed,) = struct.unpack("<Q", os.pread(descriptor, 8, SEED_AT))
    os.close(descriptor)
    with attacker.client(name="attacker") as client:
        for keys in keys_of_one_chain(seed):
            with contextlib.suppress(td.TimerdError):
                client.register_many(keys, timeout=60)
                client.fire_many(keys)
                attacker.did(len(keys))
                client.flush(timeout=10)
            if not attacker.is_on():
                return


def collide_ids(attacker: Attacker) -> None:
    """Send ids of 16 bytes that differ in their upper half alone. An honest client would send a hash of each id."""
    number = 0
    with patch("timerd_client.link.surface.id_hash", bytes), attacker.client(name="attacker") as client:
        while attacker.is_on():
            number += 1
            with contextlib.suppress(td.TimerdError):
                client.register("ids", timeout=60, id=struct.pack("<QQ", 0, number))
                attacker.did()
                if number % NAMES == 0:
                    client.fire("ids")
