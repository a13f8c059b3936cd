"""The hashes of the arena, as the core computes them (purgatory/memory/hash.pxd): the same arithmetic, modulo 2 ** 64.

None of them is secret or cryptographic. The key hash is keyed with a random seed of the arena, so that a client cannot
aim its keys at one chain. Only the hash of a user's id is wide enough (128 bits) to stand for the id itself.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from timerd_shm.declare.layout import HANDLE_LANE_BITS, HANDLE_LANES
from timerd_shm.declare.limits import ID_SIZE_MAX

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
ID_HASH_SIZE = 16


def mix(h: int) -> int:
    """Spread every bit of a 64-bit number over all 64 (the finalizer of MurmurHash3)."""
    h ^= h >> 33
    h = h * 0xFF51_AFD7_ED55_8CCD & MASK
    h ^= h >> 33
    h = h * 0xC4CE_B9FE_1A85_EC53 & MASK
    return h ^ h >> 33


def key_hash(seed: int, purgatory: int, name: bytes) -> int:
    """Keyed 64-bit hash of a watch key (1..255 bytes) within the purgatory of that index."""
    h = (seed ^ purgatory * GOLDEN ^ len(name)) & MASK
    padded = name + bytes(-len(name) % 8)
    for chunk in struct.unpack(f"<{len(padded) // 8}Q", padded):
        h = mix(h ^ chunk)
    return h


def key_head(key_hash: int, pairs: int) -> int:
    """The chain of the key table that a key is in; `pairs` is the number of its records, each with two heads."""
    return key_hash & (2 * pairs - 1)


def ring_slot(key_hash: int, slots: int) -> int:
    """The hash slot of the event ring that a key is in."""
    return key_hash & (slots - 1)


def handle_tag(client_slot: int, command: int) -> int:
    """The 32-bit tag of an operation in the handle table: sixteen neighbouring commands differ in their lane alone."""
    h = mix((command >> HANDLE_LANE_BITS) * GOLDEN & MASK ^ client_slot)
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


def id_head(hash_low: int, pairs: int) -> int:
    """The chain of the id table that an id is in; `pairs` is the number of its records, each with two heads."""
    return hash_low & (2 * pairs - 1)
