"""Makers: clients that make outcomes for a group and end, and what an arena does when these outcomes fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from support.rig.commands import Answer, Key, Register
from support.rig.groups import call
from support.rig.harness import MS, Client, Rig, S, fire
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import MET_SHIFT
from timerd_shm.declare.records import BLOCK_DATA, AccountRecord
from timerd_shm.declare.states import OpState, Orphans
from timerd_shm.declare.wire import Met

USER, OTHER = 1000, 1001
SMALL: dict[str, Any] = {"capacity": 64, "quota_operations": 32, "clients": 8, "groups": 8}


def outcome(payload: bytes = b"", keys: tuple[bytes, ...] = (b"k",)) -> Register:
    """A registration for the group that settles at once."""
    return Register(tuple(map(Key, keys)), timeout_ns=0, for_group=True, payload=payload)


def make(
    rig: Rig, group: bytes, count: int, uid: int = USER, *, ends: bool = True, what: Register | None = None
) -> Client:
    """A client makes `count` outcomes for a group, a millisecond after earlier ones. Then it ends, if `ends` is set."""
    rig.turn(rig.now_ns + MS)
    client = rig.client(group=group, uid=uid, process=(100 + rig.opened, 1))
    rig.do(client, *([what or outcome()] * count))
    if ends:
        rig.close(client, goodbye=True)
    return client


def make_together(rig: Rig, counts: dict[bytes, int], what: Register | None = None) -> None:
    """Clients make outcomes, each for a group, as make() does. They end together: if one ended earlier, the arena would
    refuse outcomes of the next.
    """
    for client in [make(rig, group, count, ends=False, what=what) for group, count in counts.items()]:
        rig.close(client, goodbye=True)


def left(rig: Rig, uid: int = USER) -> dict[bytes, int]:
    """The outcomes that are charged to a user's ended clients, for each group that has some."""
    users, groups = rig.arena.all_records(Region.USERS), rig.arena.all_records(Region.GROUPS)
    user = next(index for index, each in enumerate(users) if each.state and each.uid == uid)
    first = len(rig.arena.all_records(Region.CLIENTS)) + user * len(groups)
    accounts = rig.arena.all_records(Region.ACCOUNTS)[first : first + len(groups)]
    return {
        group.name[: group.name_length]: account.outcomes
        for group, account in zip(groups, accounts, strict=True)
        if account.outcomes
    }


def account(rig: Rig, client: Client) -> AccountRecord:
    """The account of a client's slot."""
    found: AccountRecord = rig.arena.record(Region.ACCOUNTS, client.slot)
    return found


def kept(rig: Rig) -> list[int]:
    """The registration numbers of all outcomes of groups that are there, the oldest first."""
    return sorted(op.registration for op in rig.arena.records(Region.OPS) if op.state == OpState.SETTLED and op.group)


def outcomes_within_the_share_stay(rig: Rig) -> None:
    """The ended clients of one user hold their whole share. Even if the arena is full, none of it is evicted."""
    make(rig, b"dead", 32)
    other = rig.client(uid=OTHER)
    rig.do(other, *(Register((Key(b"k"),)) for _ in range(32)))
    assert other.answers == []
    third = rig.client(uid=OTHER)
    number = rig.do(third, Register((Key(b"k"),)))
    assert third.answer(number) == Answer(number, ErrorCode.ARENA_FULL, Met.OPERATIONS << MET_SHIFT | 64)
    assert (left(rig), rig.arena.count("group_outcomes_evicted")) == ({b"dead": 32}, 0), "within the share"
    rig.check()


def a_call_that_makes_room_is_replaced_by_none(rig: Rig) -> None:
    """A registration is to replace a call that is due, and the arena is full. The oldest outcome is that very call."""
    name = b"x" * 16
    rig.turn(rig.now_ns + MS)
    maker = rig.client(group=b"one", uid=USER)
    rig.do(maker, call(b"job", id=name))
    rig.close(maker, goodbye=True)
    make(rig, b"one", 20)
    worker = rig.client(group=b"one", uid=OTHER)
    make(rig, b"two", 31)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[Register((Key(b"own"),))] * 12)
    again = rig.do(worker, call(b"job", id=name, if_exists="replace"))
    assert worker.answer(again) is None
    assert (left(rig), rig.arena.count("group_outcomes_evicted")) == ({b"one": 20, b"two": 31}, 1)
    rig.check()
    rig.restart()
    rig.check()


def outcomes_that_share_values_make_room(rig: Rig) -> None:
    """Each value is shared by two outcomes, one of each of two groups, and by the ring. Both outcomes pay for it."""
    maker, other = rig.client(group=b"one", uid=USER), rig.client(group=b"two", uid=USER)
    for number in range(12):
        rig.turn(rig.now_ns + MS)
        for each in (maker, other):
            rig.do(each, Register((Key(b"k"),), timeout_ns=S, for_group=True))
        rig.do(maker, fire(b"k", value=bytes([number + 1]) * 20 * BLOCK_DATA))
    rig.close(maker, goodbye=True)
    rig.close(other, goodbye=True)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, Register((Key(b"own"),), payload=bytes(16 * BLOCK_DATA)))
    rig.do(bystander, Register((Key(b"own"),), payload=b"one more"))
    assert bystander.answers == []
    assert (left(rig), rig.arena.header.tail) == ({b"one": 6, b"two": 6}, 2), "12 outcomes and one event make room"
    rig.check()


def the_oldest_outcomes_make_room(rig: Rig) -> None:
    """The arena is full, and four further registrations need room."""
    make(rig, b"one", 20)
    rig.client(group=b"one", uid=OTHER)
    make(rig, b"two", 31)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[Register((Key(b"own"),))] * 13)
    before = kept(rig)
    rig.do(bystander, *[Register((Key(b"own"),))] * 4)
    assert (bystander.answers, kept(rig)) == ([], before[4:])
    rig.check()


def a_schedules_call_makes_no_room(rig: Rig) -> None:
    """The arena is full with calls of schedules, and with outcomes within the share."""
    make(rig, b"one", 30, what=call(scheduled=True))
    rig.client(group=b"one", uid=OTHER)
    make(rig, b"two", 20)
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[Register((Key(b"own"),))] * 15)
    assert [each.code for each in bystander.answers] == [ErrorCode.ARENA_FULL]
    assert left(rig) == {b"one": 30, b"two": 20}
    rig.check()


def clients_end_one_after_the_other(rig: Rig, what: Callable[[int], Register], groups: int) -> None:
    """Clients of a user, three for each group, register as much as is accepted, and end: one after the other."""
    number = 0
    for maker in range(3 * groups):
        rig.turn(rig.now_ns + MS)
        client = rig.client(group=b"group-%d" % (maker % groups), uid=USER)
        for _ in range(40):
            number += 1
            rig.do(client, what(number))
        rig.close(client, goodbye=True)


def kept_operations_leave_the_last_quarter(rig: Rig) -> None:
    """Ended clients of a user have left as many operations without an owner as was accepted."""
    clients_end_one_after_the_other(rig, lambda _: Register((Key(b"k"),), timeout_ns=S, orphans=Orphans.KEEP), 1)
    assert rig.arena.region(Region.OPS).in_use == 48 + 1, "three quarters, and one more while a quarter was still free"
    other = rig.client(uid=OTHER)
    rig.do(other, *[Register((Key(b"own"),))] * 15)
    assert other.answers == []
    rig.check()
    rig.restart()
    rig.check()
    rig.turn(rig.now_ns + 2 * S)
    assert rig.arena.region(Region.OPS).in_use == 15
    rig.check()


def outcomes_make_room_for_the_next_client_of_their_user(rig: Rig) -> None:
    """Ended clients of a user have filled the arena with outcomes. They make room for what another client leaves."""
    make_together(rig, {b"one": 32, b"two": 32})
    before = kept(rig)
    worker = rig.client(uid=USER)
    rig.do(worker, *[Register((Key(b"k"),), timeout_ns=S, orphans=Orphans.KEEP)] * 16)
    assert worker.answers == [], "refused because of outcomes that make room"
    assert kept(rig) == before[16:]
    rig.do(worker, Register((Key(b"k"),), timeout_ns=S, orphans=Orphans.KEEP))
    assert [each.code for each in worker.answers] == [ErrorCode.QUOTA_EXCEEDED], (
        "32 outcomes and 16 operations are three quarters"
    )
    rig.check()


def the_next_client_of_a_slot_pays_for_nothing(rig: Rig) -> None:
    """A client has ended, and its user pays for its outcomes. So the next client in its slot begins with nothing."""
    ended = make(rig, b"dead", 8)
    following = rig.client(group=b"next", uid=OTHER)
    assert following.slot == ended.slot
    assert account(rig, following).outcomes == 0, "the next client of the slot pays"
    assert left(rig) == {b"dead": 8}
    rig.check()
