"""Batches (command_batch.pxd, settle_batch.pxd): commands in a batch do the same as one by one, at every limit."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from support.rig.commands import Command, Key, Mark, Register
from support.rig.harness import MS, Client, Rig, cancel, fire
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import TIMEOUT_NS_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import Orphans, Outcome

LIMITS: dict[str, dict[str, Any]] = {
    "no limit is met": {},
    "few blocks": {"blocks": 24},
    "few operations": {"quota_operations": 40},
    "few bytes for each client": {"quota_bytes": 1_500},
    "few bytes in the ring": {"ring_bytes": 300},
    "few events in the ring": {"ring_events": 16},
    "few key slots": {"ring_events": 64},
}


def commands_of(choose: random.Random, first: int, count: int, newest: int) -> list[Command]:
    """Commands of the kinds that batches take, in usual and unusual sizes. Their client's next number is `first`.

    `newest` is the newest event: each mark is taken at this event, or at an older one.
    """
    found: list[Command] = []
    sizes = (0, 0, 8, 100, BLOCK_DATA, BLOCK_DATA + 1, 300)
    kind = 0
    for number in range(first, first + count):
        kind = choose.randrange(3) if choose.random() < 0.2 else kind
        key = b"k%d" % choose.randrange(60)
        if kind == 0:
            timeout_ns = choose.randrange(5, 200) * MS
            mark = choose.choice((None, Mark(newest, first - 1), Mark(max(0, newest - choose.randrange(60)), 0)))
            payload = choose.randbytes(choose.choice(sizes))
            found.append(Register((Key(key),), timeout_ns, mark=mark, payload=payload))
        elif kind == 1:
            found.append(fire(key, value=choose.choice((b"again", choose.randbytes(choose.choice(sizes))))))
        else:
            found.append(cancel(choose.randrange(max(1, number - 40), number + 1)))
    return found


def one_by_one(command: Command) -> Command:
    """The command; a registration in a form that no batch takes: it states the orphans policy that its client has."""
    return replace(command, orphans=Orphans.CANCEL) if isinstance(command, Register) else command


def state_of(rig: Rig, clients: list[Client]) -> object:
    """The state that must be the same with and without batches."""
    header = rig.arena.header
    held = [rig.arena.record(Region.CLIENTS, client.slot) for client in clients]
    names = ("registered", "completed", "cancelled", "expired", "rejected", "values_dropped", "pending", "watched")
    return (
        [[(each.command, each.number, each.state, each.value) for each in client.delivered] for client in clients],
        [client.answers for client in clients],
        [(c.last_command, c.next_outcome, c.bytes_held, c.pending, c.unacknowledged, c.nodes) for c in held],
        [rig.arena.count(name, 0) for name in names],
        (header.newest, header.tail, header.ring_bytes),
        rig.arena.in_use(),
    )


@pytest.mark.parametrize("together", (True, False))
def test_events_with_one_value_on_many_keys_share_one_blob(together: bool) -> None:
    rig = Rig(ring_events=16)
    owner, firer = rig.client(), rig.client()
    values = (b"one", b"one", b"one", b"two", b"one", b"")
    waits = [Register((Key(b"k%d" % at),)) for at in range(len(values))]
    rig.do(owner, *waits)
    fires = [fire(b"k%d" % at, value=value) for at, value in enumerate(values)]
    for some in [fires] if together else [[one] for one in fires]:
        rig.do(firer, *some)
    assert [each.value for each in owner.delivered] == list(values)
    assert rig.arena.in_use()["BLOCKS"] == 3, (
        "one block for the first three events, one for each value that differs from the value before"
    )
    rig.acknowledge()
    rig.do(firer, *(fire(b"nobody%d" % at) for at in range(16 - len(values) + 2)))
    assert rig.arena.in_use()["BLOCKS"] == 3, "the first block was freed, though the third event has it"
    rig.restart()
    rig.do(firer, fire(b"nobody"))
    assert rig.arena.in_use()["BLOCKS"] == 2
    rig.do(firer, *(fire(b"nobody%d" % at) for at in range(16)))
    assert rig.arena.in_use()["BLOCKS"] == rig.arena.header.ring_bytes == 0
    rig.check()


def test_an_event_with_the_value_of_the_event_before_allocates_no_block() -> None:
    rig = Rig(blocks=16)
    client = rig.client()
    rig.do(client, fire(b"k", value=b"v"), *(Register((Key(b"p"),), payload=b"p") for _ in range(15)))
    rig.do(client, fire(b"k", value=b"v"), fire(b"k", value=b"v", wait=True), fire(b"k", value=b"w", wait=True))
    assert [answer.code for answer in client.answers] == [ErrorCode.NONE, ErrorCode.ARENA_FULL]
    assert rig.arena.in_use()["BLOCKS"] == 16
    rig.check()


@pytest.mark.parametrize("name", LIMITS)
def test_a_batch_of_commands_does_what_its_commands_do_one_by_one(name: str) -> None:
    for seed in range(4):
        choose = random.Random(seed)
        together, apart = Rig(capacity=128, **LIMITS[name]), Rig(capacity=128, **LIMITS[name])
        pairs = [(together.client(), apart.client()) for _ in range(2)]
        first = [1, 1]
        for step in range(25):
            who = choose.randrange(2)
            commands = commands_of(choose, first[who], choose.randrange(1, 40), together.arena.header.newest)
            first[who] += len(commands)
            many, one = pairs[who]
            assert together.apply(many, many.frame([(many.issue(c), c) for c in commands])) == together.module.APPLIED
            for command in map(one_by_one, commands):
                assert apart.apply(one, one.frame([(one.issue(command), command)])) == apart.module.APPLIED
            now_ns = together.now_ns + choose.randrange(20) * MS
            together.turn(now_ns)
            apart.turn(now_ns)
            found, wanted = state_of(together, [m for m, _ in pairs]), state_of(apart, [o for _, o in pairs])
            assert found == wanted, (name, seed, step)
            if choose.random() < 0.3:
                together.acknowledge(*(m for m, _ in pairs))
                apart.acknowledge(*(o for _, o in pairs))
        together.check()
        together.restart()
        together.check()


def test_a_registration_refused_for_its_timeout_frees_no_event_of_the_ring() -> None:
    rig = Rig(blocks=16)
    client = rig.client()
    rig.do(client, *(fire(b"k%d" % n, value=b"%d" % n) for n in range(16)))
    before = rig.arena.header.tail
    rig.do(client, *(Register((Key(b"k"),), TIMEOUT_NS_MAX + 1, payload=b"p") for _ in range(2)))
    assert [answer.code for answer in client.answers] == [ErrorCode.TIMEOUT_OUT_OF_RANGE] * 2
    assert rig.arena.header.tail == before
    rig.check()


def test_a_batch_drops_the_values_beyond_the_quota_of_the_receiver() -> None:
    rig = Rig(blocks=256, quota_bytes=250)
    client, other = rig.client(), rig.client()
    keys = [b"k%d" % n for n in range(5)]
    rig.do(client, *(Register((Key(key),), 50 * MS) for key in keys))
    rig.do(other, *(fire(key, value=bytes(100)) for key in keys))
    assert [each.state for each in client.delivered] == [Outcome.COMPLETED] * 5
    assert [len(each.value) for each in client.delivered] == [100, 100, 0, 0, 0]
    assert rig.arena.count("values_dropped", 0) == 3
    rig.check()
