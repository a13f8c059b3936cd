"""Outcomes make room in a full arena, also those with values or ids. A walk over all records finds the same ones."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from support.rig.commands import Command, Key, Register
from support.rig.groups import call
from support.rig.harness import MS, Client, Rig, S, done, fire
from support.rig.makers import (
    OTHER,
    SMALL,
    USER,
    a_schedules_call_makes_no_room,
    account,
    left,
    make,
    make_together,
    outcome,
    outcomes_that_share_values_make_room,
    the_oldest_outcomes_make_room,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import MET_SHIFT
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import OpFlag, OpState
from timerd_shm.declare.wire import Met
from timerd_shm.read.reader import ArenaReader

OWN = Register((Key(b"own"),))


@pytest.mark.parametrize("each", [1, 2])
def test_outcomes_of_fired_values_make_room(each: int) -> None:
    """In an earlier version an outcome stayed while the ring or another outcome had its value: others were refused."""
    rig = Rig(capacity=128, quota_operations=64, clients=8, groups=8, blocks=64, quota_bytes=32 * BLOCK_DATA, ids=64)
    for name in (b"one", b"two", b"three", b"four"):
        rig.turn(rig.now_ns + MS)
        maker = rig.client(group=name, uid=USER, process=(100 + rig.opened, 1))
        for number in range(8):
            key = b"%d" % number
            rig.do(maker, *[Register((Key(key),), timeout_ns=S, for_group=True)] * each)
            rig.do(maker, fire(key, value=bytes([number + 1]) * 2 * BLOCK_DATA))
        rig.close(maker, goodbye=True)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[Register((Key(b"own"),), payload=bytes(BLOCK_DATA))] * 30)
    assert bystander.answers == []
    assert sum(left(rig).values()) == 32 // 2, "what the kept outcomes are charged with is within the share"
    rig.check()


def test_outcomes_that_share_values_make_room() -> None:
    outcomes_that_share_values_make_room(Rig())


def test_the_oldest_outcomes_make_room() -> None:
    the_oldest_outcomes_make_room(Rig())


def test_a_schedules_call_makes_no_room() -> None:
    a_schedules_call_makes_no_room(Rig())


def test_what_never_makes_room_takes_nothing_from_the_share_of_outcomes() -> None:
    """A user's ended clients have 24 pending operations, and 32 outcomes: their share. None of these goes."""
    rig = Rig(**SMALL)
    later = make(rig, b"one", 24, ends=False, what=Register((Key(b"later"),), timeout_ns=3_600 * S, for_group=True))
    make_together(rig, {b"two": 20, b"three": 12})
    rig.close(later)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[OWN] * 9)
    assert [each.code for each in bystander.answers] == [ErrorCode.ARENA_FULL]
    assert left(rig) == {b"two": 20, b"three": 12}
    rig.check()


def test_any_number_of_outcomes_that_stay_hides_none_that_may_go() -> None:
    """In an earlier version a search that was cut at the end of a list never came to the next list, in any turn."""
    rig = Rig(capacity=4096, clients=8, groups=4, quota_operations=1300)
    shields = [make(rig, b"one", 1024, ends=False), make(rig, b"two", 1, ends=False)]
    make(rig, b"one", 200)
    make(rig, b"two", 1299)
    rig.client(group=b"one", uid=OTHER)
    make(rig, b"three", 1300)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[OWN] * 280)
    assert bystander.answers == []
    assert [account(rig, each).outcomes for each in shields] == [1024, 1]
    assert sum(left(rig).values()) == 200 + 1299 + 1300 - 8
    assert rig.core.next_wake_ns() > rig.now_ns, "no search is left for the next turn"
    rig.check()


# a plain walk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """An operation that an ended client has made, and that may make room."""

    index: int
    generation: int
    age: tuple[int, int]
    user: int
    group: int
    rooms: tuple[int, int, int]  # how much it is charged with: operations, nodes, bytes


def may_go(rig: Rig) -> list[Left]:
    """The rule in plain words: all outcomes and due calls of ended clients that wait in their group's list."""
    with ArenaReader.from_bytes(bytes(rig.memory)) as reader:
        clients, groups = len(reader.clients), len(reader.groups)
        found = []
        for index, op in enumerate(reader.ops):
            account = reader.nodes[index].account - 1
            if op.state != OpState.SETTLED or not op.group or op.client_generation or op.flags & OpFlag.SCHEDULED:
                continue
            if account < clients or op.outcome_number:
                continue
            rooms = (1, op.keys - 1, len(reader.blob(op.payload)) + len(reader.blob(op.value)))
            user = (account - clients) // groups
            found.append(Left(index, op.generation, (op.settled_ns, op.registration), user, op.group, rooms))
    return found


def first_to_go(waiting: list[Left], room: int, share: int) -> Left | None:
    users, groups = Counter[int](), Counter[tuple[int, int]]()
    for each in waiting:
        users[each.user] += each.rooms[room]
        groups[each.user, each.group] += each.rooms[room]
    parts = Counter(user for (user, _), held in groups.items() if held)
    able = [
        each
        for each in waiting
        if each.rooms[room] and users[each.user] > share and groups[each.user, each.group] > share // parts[each.user]
    ]
    return min(able, key=lambda each: each.age, default=None)


class Full:
    """A small arena that is nearly always full, and a check of each command: what has gone, and why it was refused."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        scarce = rng.choice(("operations", "nodes", "blocks"))
        self.rig = Rig(
            capacity=32 if scarce == "operations" else 128,
            quota_operations=12 if scarce == "operations" else 64,
            nodes=24 if scarce == "nodes" else 128,
            quota_nodes=10 if scarce == "nodes" else 64,
            blocks=16 if scarce == "blocks" else 128,
            quota_bytes=(4 if scarce == "blocks" else 64) * BLOCK_DATA,
            ids=64,
            clients=12,
            groups=8,
            ring_events=16,
        )
        header: Any = self.rig.arena.header
        self.shares = header.quota_operations, header.quota_nodes, header.quota_bytes
        self.busy = self.rig.client(group=b"busy", listens=True, uid=OTHER)
        self.clients: list[tuple[Client, bytes]] = []

    def apply(self, client: Client, command: Command, freed: int = 0) -> None:
        """Apply one command. `freed`: how many outcomes it may free by itself."""
        rig = self.rig
        rig.turn(rig.now_ns + MS, only=[])
        rig.acknowledge()
        before, evicted = may_go(rig), rig.arena.count("group_outcomes_evicted")
        is_at_quota = isinstance(command, Register) and command.for_group and self.is_at_quota(client, command)
        number = rig.do(client, command)
        evicted = rig.arena.count("group_outcomes_evicted") - evicted
        after = may_go(rig)
        kept = {(each.index, each.generation) for each in after}
        gone = {(each.index, each.generation) for each in before} - kept
        assert evicted <= len(gone) <= evicted + freed, (command, gone)
        for _ in range(evicted):
            able = [first_to_go(before, room, share) for room, share in enumerate(self.shares)]
            next_one = next(each for each in able if each and (each.index, each.generation) in gone)
            before.remove(next_one)
            gone.remove((next_one.index, next_one.generation))
        assert len(gone) <= freed, (command, gone)
        answer = client.answer(number)
        if answer and answer.code == ErrorCode.ARENA_FULL and not is_at_quota:
            met = answer.value >> MET_SHIFT
            if met in (Met.OPERATIONS, Met.NODES, Met.BLOCKS):
                room = (Met.OPERATIONS, Met.NODES, Met.BLOCKS).index(met)
                assert first_to_go(after, room, self.shares[room]) is None, f"{command}: refused, and this may go"

    def is_at_quota(self, client: Client, command: Register) -> bool:
        """Whether the quota of the client's group refuses the registration: in a full arena with ARENA_FULL, too."""
        group = self.rig.arena.record(Region.GROUPS, self.rig.arena.record(Region.CLIENTS, client.slot).group - 1)
        too_many = group.pending + group.unacknowledged >= self.shares[0]
        return bool(too_many or group.nodes + len(command.keys) - 1 > self.shares[1])

    def some_bytes(self, most: int) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, BLOCK_DATA, self.rng.randint(1, most * BLOCK_DATA))))

    def id(self) -> bytes:
        return b"%016d" % self.rng.randrange(12)

    def step(self) -> None:
        rng, rig = self.rng, self.rig
        what = rng.choice("nnnoooooowwwwwwiirryysseeed")
        if what == "n" and len(self.clients) < 8:
            group, uid = rng.choice((b"one", b"two", b"three", b"busy")), rng.choice((USER, USER, USER, OTHER))
            self.clients.append((rig.client(group=group, uid=uid), group))
        if what == "d":
            for delivered in self.busy.delivered_for_group:
                rig.do(self.busy, done(delivered))
            self.busy.delivered_for_group.clear()
        if rng.random() < 0.03:
            rig.restart()
        if not self.clients or what in "nd":
            return
        client, _ = rng.choice(self.clients)
        key = b"k%d" % rng.randrange(2)
        if what == "e":
            self.clients = [each for each in self.clients if each[0] is not client]
            rig.close(client, goodbye=True)
        elif what == "o":
            keys = tuple(b"%d" % number for number in range(rng.choice((1, 1, 2, 5))))
            for _ in range(rng.randint(1, 5)):
                self.apply(client, outcome(self.some_bytes(2), keys))
        elif what == "w":
            for waiter in rng.sample(self.clients, rng.randint(1, len(self.clients))):
                self.apply(waiter[0], Register((Key(key),), timeout_ns=S, for_group=True))
            self.apply(client, fire(key, value=self.some_bytes(2)))
        elif what == "y":
            self.apply(client, Register((Key(b"own"),), timeout_ns=30 * MS, payload=self.some_bytes(4)))
        elif what == "s":
            self.apply(client, call(scheduled=rng.random() < 0.3, payload=self.some_bytes(2)))
        elif what in "ir":
            ways = ("replace", "replace", "replace cancelled", "again", "keep")
            self.apply(client, call(id=self.id(), if_exists=rng.choice(ways), payload=self.some_bytes(8)), freed=1)
            due = [each for each in may_go(rig) if rig.arena.record(Region.OPS, each.index).flags & OpFlag.CALL]
            if what == "r" and due:
                followed = rng.choice(due)
                operation = followed.generation << 32 | followed.index
                self.apply(client, call(follows=operation, id=self.id(), payload=self.some_bytes(8)), freed=1)


def test_what_makes_room_is_what_a_walk_over_all_records_finds(seed: int) -> None:
    full = Full(random.Random(seed))
    for _ in range(120):
        full.step()
    full.rig.check()
    full.rig.restart()
    full.rig.check()
