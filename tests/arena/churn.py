"""A rig whose records were reused again and again, and a check of the order of its lists."""

from __future__ import annotations

import random

from support.rig.commands import Key, Register
from support.rig.harness import MS, Client, Rig, cancel
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import OpState
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader


def churned(rng: random.Random) -> Rig:
    """A rig whose records were reused again and again, so that they are not in the order of registration."""
    rig = Rig(capacity=128)
    clients = [rig.client() for _ in range(2)]
    live: list[tuple[Client, int]] = []
    for _ in range(400):
        client = rng.choice(clients)
        if len(live) > 60 or (live and rng.random() < 0.3):
            owner, number = live.pop(rng.randrange(len(live)))
            owner.issue(cancel(number))
        else:
            names = rng.sample((b"a", b"b", b"c", b"lone%d" % rng.randrange(40)), rng.randrange(1, 4))
            keys = tuple(Key(name, rng.choice((None, None, rng.randrange(1, 5)))) for name in names)
            timeout_ns = rng.choice((5_000 * MS, rng.randrange(5_000 * MS, 400_000 * MS), NO_DEADLINE))
            live.append((client, client.issue(Register(keys, timeout_ns=timeout_ns))))
        rig.turn()
        rig.acknowledge()
    numbers = registrations(rig)
    assert numbers != sorted(numbers), "the order of records is that of registration"
    return rig


def registrations(rig: Rig) -> list[int]:
    """Registration numbers of the pending operations, by index."""
    return [op.registration for op in rig.arena.records(Region.OPS) if op.state == OpState.PENDING]


def all_is_in_order(rig: Rig) -> None:
    rig.check()  # watchers, and other lists that have only one right order
    with ArenaReader.from_bytes(rig.memory) as reader:
        for place in walk.occupied_buckets(reader):
            numbers = [reader.ops[index].registration for index in walk.bucket(reader, place.level, place.index)]
            assert numbers == sorted(numbers), f"bucket {place}"
