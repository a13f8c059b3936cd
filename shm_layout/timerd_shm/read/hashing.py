"""The hashes of the arena, as the core computes them (purgatory/memory/hash.h): SipHash-1-3, modulo 2 ** 64.

The tables are keyed with a seed of 16 bytes, so that no client can aim its keys at one chain. The seed is in
ARENA.seed, which only the daemon's user may read. Everybody else reads the hashes that are stored in the records. A
user's id is hashed twice: the client hashes it to the 16 bytes that stand for it on the wire and in the arena, and the
core makes a keyed hash of these 16 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from functools import lru_cache

from timerd_shm.declare.layout import HANDLE_LANE_BITS, HANDLE_LANES
from timerd_shm.declare.limits import ID_SIZE_MAX

MASK = 0xFFFF_FFFF_FFFF_FFFF
ID_HASH_SIZE = 16
SEED_SIZE = 16
State = tuple[int, int, int, int]


def _round(v0: int, v1: int, v2: int, v3: int) -> State:
    v0, v2 = v0 + v1 & MASK, v2 + v3 & MASK
    v1, v3 = (v1 << 13 & MASK | v1 >> 51) ^ v0, (v3 << 16 & MASK | v3 >> 48) ^ v2
    v0 = v0 << 32 & MASK | v0 >> 32
    v2, v0 = v2 + v1 & MASK, v0 + v3 & MASK
    v1, v3 = (v1 << 17 & MASK | v1 >> 47) ^ v2, (v3 << 21 & MASK | v3 >> 43) ^ v0
    return v0, v1, v2 << 32 & MASK | v2 >> 32, v3


@lru_cache(maxsize=1 << 14)  # a check hashes all keys of an arena, and a test checks one arena many times
def siphash(seed: bytes, message: bytes) -> int:
    """SipHash-1-3 of a message: 64 bits. `seed` has SEED_SIZE bytes. Source: Aumasson and Bernstein, 2012."""
    k0, k1 = int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")
    v0, v1 = k0 ^ 0x736F_6D65_7073_6575, k1 ^ 0x646F_7261_6E64_6F6D
    v2, v3 = k0 ^ 0x6C79_6765_6E65_7261, k1 ^ 0x7465_6462_7974_6573
    padded = message + bytes(7 - len(message) % 8) + bytes((len(message) & 0xFF,))
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
        v0 ^= word
    v2 ^= 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def seed_check(seed: bytes) -> int:
    """The check value of the seed in the header: the hash of an empty message. Never 0."""
    return siphash(seed, b"") | 1


def key_hash(seed: bytes, purgatory: int, name: bytes) -> int:
    """Keyed 64-bit hash of a watch key (1..255 bytes) within the purgatory of that index."""
    return siphash(seed, name + bytes((purgatory,)))


def key_head(key_hash: int, pairs: int) -> int:
    """The chain of the key table that a key is in; `pairs` is the number of its records, each with two heads."""
    return key_hash & (2 * pairs - 1)


def ring_slot(key_hash: int, slots: int) -> int:
    """The hash slot of the event ring that a key is in."""
    return key_hash & (slots - 1)


def handle_tag(seed: bytes, client_slot: int, command: int) -> int:
    """An operation's 32-bit tag in the handle table. Sixteen neighbouring commands have tags in lanes of their own."""
    line = command >> HANDLE_LANE_BITS & (1 << 40) - 1
    h = siphash(seed, struct.pack("<HQ", client_slot, line)[:7])
    return (h << HANDLE_LANE_BITS | (command ^ h >> 32) & (HANDLE_LANES - 1)) & 0xFFFF_FFFF


def handle_probes(tag: int, entries: int) -> Iterator[int]:
    """The positions in a handle table that are probed for a tag: along its lane, then the next lanes."""
    home, rows = tag & (entries - 1), entries // HANDLE_LANES
    first = home % HANDLE_LANES * rows + home // HANDLE_LANES
    for step in range(first, first + entries):
        lane, row = divmod(step & (entries - 1), rows)
        yield row * HANDLE_LANES + lane


def id_hash(identifier: bytes) -> bytes:
    """The 16 bytes that stand for a user's id (1..255 bytes), on the wire and in the arena."""
    assert 1 <= len(identifier) <= ID_SIZE_MAX, f"len(identifier)={len(identifier)}"
    return hashlib.blake2b(identifier, digest_size=ID_HASH_SIZE).digest()


def id_chain_hash(seed: bytes, purgatory: int, low: int, high: int) -> int:
    """Keyed 32-bit hash of the 16 bytes that stand for an id, in two halves, within the purgatory of that index."""
    return siphash(seed, struct.pack("<QQB", low, high, purgatory)) & 0xFFFF_FFFF


def id_head(chain_hash: int, pairs: int) -> int:
    """The chain of the id table that an id is in; `pairs` is the number of its records, each with two heads."""
    return chain_hash & (2 * pairs - 1)
