"""A group's outcomes are charged to their maker, and after the maker's end to its user: so no user fills the arena."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.rig.commands import Answer, Key, Register
from support.rig.groups import call, handler
from support.rig.harness import MS, Client, Rig, S, done, fire
from support.rig.journals import JournaledRig
from support.rig.makers import (
    OTHER,
    SMALL,
    USER,
    a_call_that_makes_room_is_replaced_by_none,
    account,
    kept,
    left,
    make,
    make_together,
    outcome,
    outcomes_within_the_share_stay,
    the_next_client_of_a_slot_pays_for_nothing,
)
from timerd.conductor.error_log import group_name
from timerd_shm.declare.errors import ErrorCode, QuotaExceededError
from timerd_shm.declare.journal import GroupStep, RowKind
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import GROUP_KEPT_NS, MET_SHIFT, NAME_SIZE_MAX, UID_UNKNOWN, USERS_MAX
from timerd_shm.declare.states import OpFlag, OpState, Orphans
from timerd_shm.declare.wire import Met
from timerd_wire.refusals import Subject, refusal

FULL = Met.OPERATIONS << MET_SHIFT


def register(rig: Rig, client: Client, count: int = 1) -> list[Answer]:
    """Register pending operations of a client's own. Returns the refusals."""
    before = len(client.answers)
    rig.do(client, *([Register((Key(b"own"),), timeout_ns=3_600 * S)] * count))
    return client.answers[before:]


# the charge -----------------------------------------------------------------------------------------------------------


def test_a_live_maker_pays_and_after_its_end_its_user_pays() -> None:
    rig = Rig(**SMALL)
    maker = make(rig, b"web", 3, ends=False, what=outcome(b"four", (b"a", b"b")))
    rig.do(maker, Register((Key(b"later"),), timeout_ns=S, for_group=True))
    paid = account(rig, maker)
    assert (paid.pending, paid.outcomes, paid.nodes, paid.bytes_held) == (1, 3, 3, 12)
    rig.check()
    rig.restart()
    assert account(rig, maker) == paid
    rig.close(maker)
    assert left(rig) == {b"web": 3}
    assert account(rig, maker)[1:] == (0,) * 6
    rig.check()
    rig.restart()
    rig.turn(rig.now_ns + S)
    assert left(rig) == {b"web": 4}, "an operation that settles after its maker's end is the user's"
    rig.check()


def test_the_next_client_of_a_slot_pays_for_nothing_that_an_ended_client_made() -> None:
    the_next_client_of_a_slot_pays_for_nothing(Rig(**SMALL))


def test_an_adopted_operation_is_charged_to_the_user_of_its_dead_owner() -> None:
    rig = Rig(**SMALL)
    owner = rig.client(Orphans.GROUP, group=b"web", uid=USER)
    rig.do(owner, Register((Key(b"k"),), timeout_ns=S), Register((Key(b"k"),), timeout_ns=0))
    assert account(rig, owner)[1:] == (0,) * 6, "an operation of the client's own is charged to the client alone"
    rig.close(owner)
    assert left(rig) == {b"web": 1}
    rig.turn(rig.now_ns + S)
    assert left(rig) == {b"web": 2}
    rig.check()


def test_the_charge_ends_with_the_outcome() -> None:
    rig = Rig(**SMALL)
    make(rig, b"web", 2)
    make(rig, b"web", 2, uid=OTHER)
    member = rig.client(group=b"web", uid=OTHER, listens=True)
    rig.turn()
    assert (left(rig), left(rig, OTHER)) == ({b"web": 2}, {b"web": 2}), "a member that holds an outcome does not pay"
    rig.do(member, *map(done, member.delivered_for_group[:2]))
    assert (left(rig), left(rig, OTHER)) == ({}, {b"web": 2})
    rig.close(member)
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert left(rig, OTHER) == {}
    rig.check()


def test_a_client_that_comes_back_pays_for_what_it_makes_from_then_on() -> None:
    rig = Rig(**SMALL)
    maker = make(rig, b"web", 2, ends=False)
    rig.close(maker)
    rig.core.resume_client(maker.slot, now_ns=rig.now_ns, group=rig.core.group(b"web", 0, 0), uid=OTHER)
    rig.clients.append(maker)
    rig.do(maker, outcome())
    assert (left(rig), account(rig, maker).outcomes) == ({b"web": 2}, 1)
    rig.close(maker)
    assert (left(rig), left(rig, OTHER)) == ({b"web": 2}, {b"web": 1})
    rig.check()


def test_users_beyond_the_table_share_one_account_and_a_record_is_used_again() -> None:
    rig = Rig(**SMALL)
    for number in range(USERS_MAX + 4):
        make(rig, b"web", 1, uid=2_000 + number)
    assert left(rig, 2_000) == {b"web": 1}
    assert left(rig, UID_UNKNOWN) == {b"web": 5}
    rig.check()
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    make(rig, b"web", 1, uid=9_000)
    assert left(rig, 9_000) == {b"web": 1}, "the record of a user that holds nothing is used again"
    rig.check()
    rig.restart()
    rig.check()


# who gives way --------------------------------------------------------------------------------------------------------


def test_dead_groups_of_one_user_leave_half_of_the_arena_to_others() -> None:
    """The attack: processes make nearly as many outcomes as a group may have, each for a group of its own, and end."""
    rig = Rig(**SMALL)
    make_together(rig, {b"one": 30, b"two": 30, b"three": 4})
    bystander = rig.client(uid=OTHER)
    assert register(rig, bystander, 32) == []
    assert sum(left(rig).values()) == 32
    assert rig.arena.count("group_outcomes_evicted") == 32
    another = rig.client(uid=OTHER)
    assert [(each.code, each.value) for each in register(rig, another)] == [(ErrorCode.ARENA_FULL, FULL | 64)], (
        "what is within the share of the user's ended clients gave way"
    )
    rig.check()


def test_the_oldest_outcomes_go_first_and_only_as_many_as_are_needed() -> None:
    rig = Rig(**SMALL)
    make_together(rig, {b"one": 32, b"two": 32})
    bystander = rig.client(uid=OTHER)
    before = kept(rig)
    assert register(rig, bystander, 5) == []
    assert kept(rig) == before[5:]
    rig.check()


def test_while_there_is_room_nothing_goes() -> None:
    rig = Rig(**SMALL)
    make_together(rig, {b"one": 32, b"two": 31})
    assert register(rig, rig.client(uid=OTHER)) == []
    assert (sum(left(rig).values()), rig.arena.count("group_outcomes_evicted")) == (63, 0)


def test_outcomes_within_the_share_stay() -> None:
    outcomes_within_the_share_stay(Rig(**SMALL))


def test_a_deployment_loses_nothing_while_another_group_of_its_user_is_beyond_its_part() -> None:
    """All workers of "web" have ended, and no new worker is there yet. The outcomes of "web" are the oldest.

    The ended clients of a user have one share. Each group for which they hold outcomes has an equal *part* of it.
    """
    rig = Rig(**SMALL)
    make_together(rig, {b"web": 8, b"one": 28, b"two": 28})
    assert register(rig, rig.client(uid=OTHER), 32) == []
    assert left(rig)[b"web"] == 8
    worker = rig.client(group=b"web", uid=USER, listens=True)
    rig.turn()
    assert len(worker.delivered_for_group) == 8
    rig.check()


def test_other_users_lose_nothing() -> None:
    rig = Rig(**SMALL)
    make(rig, b"theirs", 20, uid=OTHER)
    make_together(rig, {b"one": 22, b"two": 22})
    assert register(rig, rig.client(uid=OTHER), 12) == []
    assert left(rig, OTHER) == {b"theirs": 20}
    rig.check()


def test_a_live_maker_loses_nothing() -> None:
    rig = Rig(**SMALL)
    alive = make(rig, b"one", 20, ends=False)
    make_together(rig, {b"one": 12, b"two": 32})
    assert register(rig, rig.client(uid=OTHER), 12) == []
    assert account(rig, alive).outcomes == 20
    rig.check()


def test_pending_operations_schedules_letters_and_what_a_member_holds_never_go() -> None:
    rig = Rig(**SMALL, dead_letters=4)
    maker = rig.client(group=b"one", uid=USER)
    rig.do(
        maker,
        *[Register((Key(b"k"),), timeout_ns=GROUP_KEPT_NS, for_group=True)] * 6,
        *[call(b"each", scheduled=True)] * 6,
    )
    busy = rig.client(group=b"two", uid=OTHER, listens=True)
    make(rig, b"two", 6)
    assert len(busy.delivered_for_group) == 6
    plain = make(rig, b"one", 20, ends=False, what=call(b"plain"))
    others = make(rig, b"three", 20, ends=False)
    for each in (maker, plain, others):
        rig.close(each)
    assert [each.code for each in register(rig, rig.client(uid=OTHER), 15)] == [ErrorCode.ARENA_FULL]
    assert left(rig) == {b"one": 6 + 16, b"two": 6, b"three": 16}, "only plain calls and outcomes beyond a part went"
    assert rig.arena.record(Region.GROUPS, 0).pending == 6
    assert sum(op.state and op.flags & OpFlag.SCHEDULED != 0 for op in rig.arena.records(Region.OPS)) == 6
    letter = rig.client(group=b"three", uid=OTHER)
    assert rig.core.set_calls(letter.slot, 4, 0, [b"job"], rig.now_ns) == 4
    rig.check()


def test_due_calls_go_as_outcomes_do_and_their_ids_are_free() -> None:
    rig = Rig(**SMALL, ids=64)
    maker = rig.client(group=b"one", uid=USER)
    ids = [b"%016d" % number for number in range(30)]
    rig.do(maker, *(call(b"job", id=each) for each in ids))
    make_together(rig, {b"two": 32})
    rig.close(maker)
    bystander = rig.client(group=b"one", uid=OTHER)
    assert register(rig, bystander, 7) == []
    assert left(rig) == {b"one": 25, b"two": 32}
    again = rig.do(bystander, call(b"job", id=ids[0], if_exists="replace cancelled"))
    assert bystander.answer(again) is None, "the id of a call that was dropped is free"
    worker = handler(rig, b"job", most=256, group=b"one")
    rig.turn()
    assert len(worker.delivered_for_group) == left(rig)[b"one"] + 1
    rig.check()


# other kinds of room --------------------------------------------------------------------------------------------------


def test_outcomes_with_large_payloads_make_room_for_payloads() -> None:
    rig = Rig(**SMALL, blocks=64, quota_bytes=32 * 112)
    make_together(rig, {b"one": 10, b"two": 10, b"three": 10}, outcome(bytes(224)))
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *[Register((Key(b"k"),), payload=bytes(112))] * 30)
    assert bystander.answers == []
    assert sum(left(rig).values()) == 17, (
        "13 of 30 outcomes have made room: 26 blocks were missing, and each outcome has two"
    )
    rig.check()


def test_outcomes_make_room_for_the_values_of_events_before_the_ring_loses_events() -> None:
    rig = Rig(**SMALL, blocks=64, quota_bytes=32 * 112)
    make_together(rig, {b"one": 10, b"two": 10, b"three": 10}, outcome(bytes(224)))
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *(fire(b"key %d" % number, value=b"%d" % number * 56) for number in range(10)))
    assert bystander.answers == []
    assert rig.arena.count("group_outcomes_evicted") >= 3
    assert rig.arena.header.tail == 1
    rig.check()


def test_outcomes_with_many_keys_make_room_for_keys() -> None:
    rig = Rig(**SMALL, nodes=64, quota_nodes=32)
    keys = tuple(b"%d" % number for number in range(11))
    make_together(rig, {b"one": 3, b"two": 3}, outcome(keys=keys))
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, Register(tuple(Key(b"own %d" % number) for number in range(21))))
    assert bystander.answers == []
    assert sum(left(rig).values()) == 4
    rig.check()


# what a command has found may make room -------------------------------------------------------------------------------


def test_a_call_that_makes_room_for_a_registration_is_not_replaced_by_it() -> None:
    a_call_that_makes_room_is_replaced_by_none(Rig(**SMALL))


@pytest.mark.parametrize("how", ["replace", "follows"])
def test_a_call_that_has_made_some_of_the_room_is_freed_once(how: str) -> None:
    """In an earlier version its record was freed twice. That overwrote the arena's head: readers refused the arena."""
    block, name = 112, b"x" * 16
    rig = Rig(**SMALL, blocks=64, quota_bytes=20 * block, ids=64, ring_events=16)
    rig.turn(rig.now_ns + MS)
    maker = rig.client(group=b"one", uid=USER)
    rig.do(maker, call(b"job", id=name, payload=bytes(block)))
    rig.close(maker, goodbye=True)
    due = rig.arena.record(Region.OPS, 0).generation << 32
    make(rig, b"one", 10, what=outcome(bytes(block)))
    make(rig, b"two", 11, what=outcome(bytes(block)))
    bystander = rig.client(uid=OTHER)
    rig.do(bystander, *(fire(b"e%d" % number, value=bytes([number]) * 5 * block) for number in range(8)))
    rig.do(bystander, fire(b"last", value=bytes([9]) * 2 * block))
    worker = rig.client(group=b"one", uid=OTHER)
    wanted = bytes(5 * block)
    if how == "replace":
        again = call(b"job", id=name, payload=wanted, if_exists="replace")
    else:
        again = call(b"job", payload=wanted, follows=due)
    number = rig.do(worker, again)
    assert rig.arena.count("group_outcomes_evicted") == 2, "what is beyond the share: the call, and one more"
    answer = worker.answer(number)
    assert (answer and answer.code) == (None if how == "replace" else ErrorCode.UNKNOWN_OPERATION)
    rig.check()
    rig.restart()
    rig.check()


# bounds ---------------------------------------------------------------------------------------------------------------


def test_a_hundred_short_lived_processes_within_their_shares_leave_room_to_others() -> None:
    rig = Rig(capacity=256, clients=8, groups=8, quota_operations=128)
    for number in range(100):
        make(rig, b"group-%d" % (number % 4), 20)
    assert sum(left(rig).values()) <= 256
    assert register(rig, rig.client(uid=OTHER), 128) == []
    assert sum(left(rig).values()) == 128
    assert {count for count in left(rig).values() if count < 128 // 4} == set(), "a group lost more than its part"
    rig.check()


@pytest.mark.long
def test_older_outcomes_of_a_live_maker_do_not_shield_those_that_may_go() -> None:
    """The search for an outcome that may go is cut, and later turns go on with it."""
    rig = Rig(capacity=8192, clients=8, groups=4, quota_operations=4096)
    shield = make(rig, b"one", 2000, ends=False)
    make_together(rig, {b"one": 2096, b"two": 4096})
    bystander = rig.client(uid=OTHER)
    refused = 0
    while register(rig, bystander) != []:
        refused += 1
        assert refused < 4
    assert account(rig, shield).outcomes == 2000
    rig.check()


def test_processes_that_come_and_go_leave_half_of_the_groups_to_others() -> None:
    """Without this rule 64 processes, each with one outcome for a group of its own, kept new groups out for an hour."""
    rig = Rig(**SMALL)
    for number in range(4):
        make(rig, b"mine-%d" % number, 1)
    with pytest.raises(QuotaExceededError, match="user 1000 have left operations in 4 groups without a member, of 8"):
        make(rig, b"mine-4", 1)
    make(rig, b"mine-0", 1)
    make(rig, b"theirs", 1, uid=OTHER)
    rig.client(group=b"mine-1", uid=USER)
    make(rig, b"mine-4", 1, ends=False)
    rig.check()


# signs ----------------------------------------------------------------------------------------------------------------


def test_the_refusals_name_the_group_the_share_and_the_number() -> None:
    rig = Rig(**SMALL)
    make_together(rig, {b"one": 32, b"two": 32})
    register(rig, rig.client(uid=OTHER), 5)
    (code, value, count, holder), *others = rig.core.take_refusals()
    assert (code, value, count) == (ErrorCode.QUOTA_EXCEEDED, Met.EVICTED_OPERATIONS << MET_SHIFT | 32, 5)
    assert holder is not None and holder[1:3] == (b"one", True)
    assert others == []
    assert rig.arena.count("group_outcomes_evicted") == 5


@pytest.mark.parametrize("met", [Met.EVICTED_OPERATIONS, Met.EVICTED_NODES, Met.EVICTED_BYTES])
def test_the_message_says_the_group_the_limit_and_the_knob_and_fits_the_log(met: Met) -> None:
    holder = group_name(b"g" * NAME_SIZE_MAX, 4_194_304)
    message = str(refusal(ErrorCode.QUOTA_EXCEEDED, met << MET_SHIFT | 65_536, Subject(holder=holder, kind="group")))
    assert holder in message and "65536" in message and "--quota-" in message
    assert len(message) < 224, "the arena's log of errors would cut it"


def test_the_journal_has_a_row_for_each_evicted_outcome_and_the_audit_computes_the_rest(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, **SMALL)
    make_together(rig, {b"one": 30, b"two": 4, b"three": 30})
    register(rig, rig.client(uid=OTHER), 32)
    member = rig.client(group=b"three", uid=OTHER, listens=True)
    rig.turn()
    rig.do(member, *map(done, member.delivered_for_group))
    rig.end()
    steps = [row.record.step for row in rig.rows() if row.record.kind == RowKind.GROUP]
    assert steps.count(GroupStep.EVICTED) == rig.arena.count("group_outcomes_evicted") == 32
    assert not rig.audit().wrong


# a plain model --------------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """An operation of the model. `client` None: its maker has ended."""

    at_ns: int  # when it was registered; no two at the same time
    uid: int
    group: bytes  # b"": the client's own
    client: Client | None
    is_settled: bool
    is_held: bool = False

    @property
    def may_go(self) -> bool:
        return self.client is None and bool(self.group) and self.is_settled and not self.is_held


class Makers:
    """The rule, plainly: lists of operations, and a walk over all of them if a registration finds no room."""

    def __init__(self, capacity: int, share: int) -> None:
        self.capacity, self.share = capacity, share
        self.made: list[Made] = []
        self.evicted = 0

    def takes_last_quarter(self, one: Made, groups: set[bytes]) -> bool:
        """Whether it is refused, because the last quarter is for others. `groups`: those with another member."""
        left = [each for each in self.made if each.client is None and each.uid == one.uid and each.group not in groups]
        own = [each for each in self.made if each.client is one.client]
        goes = sum(each.may_go for each in left)
        kept = len(left) + len(own) - goes + min(goes, self.share)
        return (
            bool(one.group) and 4 * (self.capacity - len(self.made)) < self.capacity and 4 * kept >= 3 * self.capacity
        )

    def register(self, one: Made) -> None:
        if len(self.made) == self.capacity:
            gone = next((each for each in self.made if self.may_go(each)), None)
            if gone is None:
                return
            self.made.remove(gone)
            self.evicted += 1
        self.made.append(one)

    def may_go(self, one: Made) -> bool:
        left = [each for each in self.made if each.may_go and each.uid == one.uid]
        if not one.may_go or len(left) <= self.share:
            return False
        groups = {each.group for each in left}
        return sum(each.group == one.group for each in left) > self.share // len(groups)

    def end(self, client: Client) -> None:
        self.made = [each for each in self.made if each.client is not client or each.group]
        for each in self.made:
            each.client = None if each.client is client else each.client


def test_the_outcomes_that_go_are_those_of_a_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(capacity=48, quota_operations=rng.choice((8, 16, 24)), clients=12, groups=8)
    model = Makers(48, rig.arena.header.quota_operations)
    busy = rig.client(group=b"busy", listens=True, uid=OTHER)
    clients: list[tuple[Client, int, bytes]] = []
    for _ in range(250):
        rig.turn(rig.now_ns + MS)
        match rng.choice("ooorrrrnneeed"):
            case "n" if len(clients) < 8:
                group, uid = (
                    rng.choice((b"one", b"two", b"three", b"busy")),
                    rng.choice((USER, USER, OTHER, UID_UNKNOWN)),
                )
                clients.append((rig.client(group=group, uid=uid), uid, group))
            case "o" | "r" as what if clients:
                client, uid, group = rng.choice(clients)
                is_settled, own = rng.random() < 0.85, what == "o" and rng.random() < 0.3
                command = Register((Key(b"k"),), timeout_ns=0 if is_settled else 3_600 * S, for_group=not own)
                for _ in range(rng.randint(1, 6)):
                    paid = sum(
                        each.client is client and not each.group if own else each.group == group for each in model.made
                    )
                    rig.do(client, command, now_ns=rig.now_ns + 1)
                    is_held = is_settled and group == b"busy" and not own
                    made = Made(rig.now_ns, uid, b"" if own else group, client, is_settled, is_held)
                    if model.takes_last_quarter(
                        made, {b"busy", *(each[2] for each in clients if each[0] is not client)}
                    ):
                        assert client.answers, "the last quarter is for others"
                    elif paid < model.share:
                        model.register(made)
                    else:
                        assert client.answers, "beyond the quota of the client, or the group"
            case "e" if clients:
                gone = clients.pop(rng.randrange(len(clients)))[0]
                rig.close(gone, goodbye=True)
                model.end(gone)
            case "d":
                held = [each for each in model.made if each.is_held]
                for delivered, each in zip(busy.delivered_for_group, held, strict=True):
                    rig.do(busy, done(delivered))
                    model.made.remove(each)
                busy.delivered_for_group.clear()
        if rng.random() < 0.05:
            rig.restart()
        found = [op.registered_ns for op in rig.arena.records(Region.OPS) if op.state == OpState.SETTLED and op.group]
        assert sorted(found) == [each.at_ns for each in model.made if each.is_settled and each.group]
        assert rig.arena.count("group_outcomes_evicted") == model.evicted
    rig.check()
