"""Keys, ids and handles that an attacker would choose because they share a chain of a table, and lengths of chains.

The attacker may read the arena. If the hash has no seed, or the attacker knows the seed, all of these names fall into
one chain. If the attacker does not know the seed, the chains are as long as those of random names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count, islice

from support.rig.commands import Key, Register
from support.rig.harness import MS, Rig, cancel
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.layout import HANDLE_LANES, Region
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.read import hashing
from timerd_shm.read.hashing import SEED_SIZE

MASK = 0xFFFF_FFFF_FFFF_FFFF
GOLDEN = 0x9E37_79B9_7F4A_7C15
MULTIPLIERS = (0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53)
LONG = 3_600_000 * MS
# Tables have twice as many heads as records. So one in 10 ** 12 tables has a chain of more than 12 random names.
CHAIN_MOST = 12


def mix(h: int) -> int:
    """The finalizer of MurmurHash3, which the tables once used: everybody can compute it."""
    for multiplier in MULTIPLIERS:
        h = (h ^ h >> 33) * multiplier & MASK
    return h ^ h >> 33


def unmix(h: int) -> int:
    """The inverse of `mix`: everybody can compute it."""
    h ^= h >> 33
    for multiplier in reversed(MULTIPLIERS):
        h = h * pow(multiplier, -1, 1 << 64) & MASK
        h ^= h >> 33
    return h


def heads(rig: Rig, region: Region) -> int:
    """The number of heads of a table: two for each record of the region."""
    return 2 * rig.arena.region(region).count


def keys_by_inversion(rig: Rig, number: int) -> list[bytes]:
    """Keys that fall into one chain under `mix`, if the seed stands in the arena's header, as it once did."""
    at = offset_of(ArenaHeader, "size") + 8  # the former place of the seed
    (seed,) = struct.unpack_from("<Q", rig.memory, at)
    many = heads(rig, Region.KEY_TABLE)
    return [struct.pack("<Q", unmix(i * many) ^ seed ^ 8) for i in range(1, number + 1)]


def keys_of_hash(rig: Rig, hash_of: Callable[[bytes], int], number: int) -> list[bytes]:
    """Keys that fall into one chain under a hash that the attacker can compute, found by trial."""
    many = heads(rig, Region.KEY_TABLE)
    return list(islice((b"%d" % i for i in count() if hash_of(b"%d" % i) % many == 0), number))


def ids_of_one_chain(number: int) -> list[bytes]:
    """Ids whose 16 bytes, which a client chooses, differ in their upper half alone."""
    return [struct.pack("<QQ", 0, i) for i in range(number)]


def numbers_of_one_run(rig: Rig, slot: int, number: int) -> list[int]:
    """Command numbers whose handles all fell into the first eighth of the table under the former hash."""
    many = rig.arena.region(Region.HANDLES).count

    def tag(command: int) -> int:
        h = mix((command // HANDLE_LANES) * GOLDEN & MASK ^ slot)
        return (h << 4 | (command ^ h >> 32) & (HANDLE_LANES - 1)) & 0xFFFF_FFFF

    return list(islice((command for command in count(1) if tag(command) % many < many // 8), number))


def keys_of_a_known_seed_share_no_chain(rig: Rig) -> None:
    """Rule 8: keys that share a chain under a seed that everybody knows do not share one under the arena's own seed."""
    rig.restart()  # the core gets its seed when a daemon starts
    known = bytes(SEED_SIZE)
    keys = keys_of_hash(rig, lambda key: hashing.key_hash(known, 0, key), rig.arena.region(Region.OPS).count // 2)
    register_keys(rig, keys)
    assert longest_chain(rig, Region.KEY_TABLE, Region.NODES) <= CHAIN_MOST, "a client can choose a chain"


def register_keys(rig: Rig, keys: list[bytes]) -> None:
    client = rig.client()
    for key in keys:
        client.issue(Register((Key(key),), timeout_ns=LONG))
    rig.turn()


def register_ids(rig: Rig, ids: list[bytes]) -> None:
    client = rig.client()
    for number, one in enumerate(ids):
        client.issue(Register((Key(b"k%d" % number),), timeout_ns=LONG, id=one))
    rig.turn()


def register_numbers(rig: Rig, numbers: list[int], slot: int) -> None:
    """Register with these command numbers. All other commands cancel operations that do not exist."""
    client, wanted = rig.client(), set(numbers)
    assert client.slot == slot
    for number in range(1, numbers[-1] + 1):
        client.issue(Register((Key(b"k%d" % number),), timeout_ns=LONG) if number in wanted else cancel(MASK))
    rig.turn()


def longest_chain(rig: Rig, table: Region, records: Region) -> int:
    chains = {index: record.chain for index, record in rig.arena.table(records).numbered()}
    longest = 0
    for pair in rig.arena.all_records(table):
        for at in (pair.even, pair.odd):
            length = 0
            while at:
                at, length = chains[at - 1], length + 1
            longest = max(longest, length)
    return longest


def longest_probing(rig: Rig) -> int:
    """The largest number of entries that a lookup in the handle table probes before it finds an operation."""
    entries = rig.arena.all_records(Region.HANDLES)
    rows = len(entries) // HANDLE_LANES

    def order(at: int) -> int:
        return at % HANDLE_LANES * rows + at // HANDLE_LANES

    return max(
        (order(at) - order(entry.tag % len(entries))) % len(entries) + 1 for at, entry in enumerate(entries) if entry.op
    )
