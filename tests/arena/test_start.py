"""What a start makes anew is right whatever the order of the records, and also where it gets no thread to help it."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys

import pytest

from commands import Key, Register
from harness import MS, Client, Rig, cancel
from timerd_shm.declare.errors import ArenaDamagedError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.layout import ArenaHeader, OpState, Region
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader
from trees import python_path
from truth import truth

# A thread needs room for its stack, 8 MiB as a rule, and here there is less.
WITHOUT_A_THREAD = """
import random, resource, sys, threading
from test_start import all_is_in_order, churned
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), resource.RLIM_INFINITY))
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("no thread")
rig = churned(random.Random(sys.argv[1]))
rig.restart()
all_is_in_order(rig)
"""


def churned(rng: random.Random) -> Rig:
    """A bench whose records were used again and again, so that their order is not that of registration."""
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
    rig.check()  # watchers, and everything that has one order only
    with ArenaReader.from_bytes(rig.memory) as reader:
        for place in walk.occupied_buckets(reader):
            numbers = [reader.ops[index].registration for index in walk.bucket(reader, place.level, place.index)]
            assert numbers == sorted(numbers), f"bucket {place}"


@pytest.mark.parametrize("seed", range(3))
def test_lists_are_in_order_of_registration_whatever_the_order_of_the_records(seed: int) -> None:
    rig = churned(random.Random(seed))
    before = truth(rig.memory)
    rig.restart()
    assert truth(rig.memory) == before
    all_is_in_order(rig)


def test_a_start_that_gets_no_thread_does_everything_itself(seed: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_THREAD, str(seed)],
        env=os.environ | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "no thread\n"), ended.stderr


def test_an_arena_without_a_tick_is_refused_by_name() -> None:
    rig = Rig()
    memory = bytearray(rig.memory)
    struct.pack_into("<Q", memory, offset_of(ArenaHeader, "tick_ns"), 0)
    with pytest.raises(ArenaDamagedError, match="header"):
        rig.module.Core(memory, rig.now_ns)
