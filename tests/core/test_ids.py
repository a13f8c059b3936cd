"""Ids make registrations idempotent within their purgatory, also for a time after the operation has settled."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random

import pytest

from support.rig.commands import Key, OperationAct, Register
from support.rig.groups import call, handler
from support.rig.harness import MS, Client, Rig, S, begun, done, fire
from support.rig.rules import a_client_makes_itself_forget_first, the_id_of_a_call_that_runs_is_known
from support.suite.tiers import in_tiers
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import SETTLED_IDS_KEPT_NS
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader

ID, OTHER_ID = bytes(range(16)), bytes(range(1, 17))
KEYS = (Key(b"session/9"),)


def arm(id: bytes = ID, if_exists: str = "error", *, timeout_ns: int = 900 * S, purgatory: int = 0) -> Register:
    return Register(KEYS, timeout_ns=timeout_ns, id=id, if_exists=if_exists, purgatory=purgatory)


def by_id(kind: CommandKind, id: bytes = ID, *, timeout_ns: int = 900 * S, purgatory: int = 0) -> OperationAct:
    return OperationAct(kind, id=id, timeout_ns=timeout_ns, purgatory=purgatory, wants_answer=True)


def code(client: Client, command: int) -> int | None:
    answer = client.answer(command)
    return answer.code if answer else None


def settle(rig: Rig, client: Client, count: int) -> None:
    """Settle `count` operations with new ids, and acknowledge their outcomes."""
    for _ in range(count):
        rig.do(client, arm(rig.now_ns.to_bytes(16, "little"), timeout_ns=0), now_ns=rig.now_ns + MS)
        rig.acknowledge()


def after(settled_by: str) -> tuple[Rig, Client]:
    """A rig after a restart. The operation with ID was settled and acknowledged. After "nothing" it is pending."""
    rig = Rig()
    client = rig.client()
    rig.do(client, arm(timeout_ns=10 * MS))
    match settled_by:
        case "fire":
            rig.do(client, fire(b"session/9"))
        case "cancel":
            rig.do(client, by_id(CommandKind.CANCEL_ID))
        case "deadline":
            rig.turn(rig.now_ns + 10 * MS)
    rig.acknowledge()
    rig.restart()
    return rig, client


@pytest.mark.parametrize(
    ("old", "new", "gives_way"),
    [
        (b"\0old", b"\0new", True),
        (b"\0old and more", b"\0new", True),
        (b"\0old", b"\0old, with other bytes behind the four", False),
        (b"\1old", b"\0new", False),
        (b"\0o", b"\0new", False),
        (b"", b"\0new", False),
    ],
)
@pytest.mark.parametrize("is_due", [False, True])
def test_a_changed_registration_takes_over_the_id_of_a_pending_operation_of_its_sort(
    old: bytes, new: bytes, gives_way: bool, is_due: bool
) -> None:
    """For example, a schedule whose plan has changed. A call that is due stays, because no member has done it yet."""
    rig = Rig()
    client = handler(rig, b"nobody's")
    first = call(id=ID, payload=old, timeout_ns=10 * MS)
    rig.do(client, first)
    if is_due:
        rig.turn(rig.now_ns + 20 * MS)
    changed = replace(first, payload=new, if_exists="replace changed", total=4, timeout_ns=900 * S)
    assert code(client, rig.do(client, changed)) == (None if gives_way and not is_due else ErrorCode.OPERATION_EXISTS)
    rig.check()


@pytest.mark.parametrize("if_exists", ("error", "keep"))
def test_an_existing_id_is_refused_and_its_operation_and_deadline_stay(if_exists: str) -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    first = rig.do(a, arm(timeout_ns=10 * MS))
    assert code(b, rig.do(b, arm(if_exists=if_exists))) == ErrorCode.OPERATION_EXISTS
    assert code(a, rig.do(a, arm(if_exists=if_exists))) == ErrorCode.OPERATION_EXISTS
    assert rig.arena.count("pending", 0) == 1
    rig.turn(rig.now_ns + 10 * MS)
    assert a.state(first) is Outcome.EXPIRED
    rig.check()


def test_a_replacement_cancels_the_old_operation_and_its_owner_gets_the_outcome() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    old = rig.do(a, arm(timeout_ns=10 * MS))
    new = rig.do(b, arm(if_exists="replace"))
    assert (a.state(old), b.state(new)) == (Outcome.CANCELLED, Outcome.NONE)
    newer = rig.do(b, arm(if_exists="replace", timeout_ns=20 * MS))
    assert (b.state(new), b.state(newer)) == (Outcome.CANCELLED, Outcome.NONE)
    rig.turn(rig.now_ns + 20 * MS)
    assert b.state(newer) is Outcome.EXPIRED
    rig.check()


@pytest.mark.parametrize("settled_by", ("fire", "deadline", "cancel"))
def test_a_settled_id_is_remembered_and_may_be_replaced(settled_by: str) -> None:
    rig, client = after(settled_by)
    assert len(client.delivered) == 1
    assert code(client, rig.do(client, arm())) == ErrorCode.OPERATION_EXISTS
    assert code(client, rig.do(client, arm(OTHER_ID))) is None
    again = rig.do(client, arm(if_exists="replace"))
    assert (code(client, again), client.state(again)) == (None, Outcome.NONE)
    rig.check()


@pytest.mark.parametrize("settled_by", ("nothing", "fire", "deadline", "cancel"))
def test_replace_cancelled_replaces_only_a_cancelled_operation(settled_by: str) -> None:
    rig, client = after(settled_by)
    taken = rig.do(client, arm(if_exists="replace cancelled"))
    if settled_by == "cancel":
        assert (code(client, taken), client.state(taken)) == (None, Outcome.NONE)
    else:
        assert code(client, taken) == ErrorCode.OPERATION_EXISTS
    assert code(client, rig.do(client, arm(if_exists="replace cancelled"))) == ErrorCode.OPERATION_EXISTS
    rig.check()


def test_an_id_is_forgotten_after_its_time_and_the_window_shows_it() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, arm(timeout_ns=10 * MS))
    rig.turn(rig.now_ns + 10 * MS)
    settled_ns = rig.now_ns
    for _ in range(3):
        rig.turn(rig.now_ns + SETTLED_IDS_KEPT_NS // 2)
    assert rig.arena.header.ids_floor_ns >= settled_ns
    assert rig.arena.count("ids_forgotten") == 1
    late = Register(KEYS, timeout_ns=900 * S, id=OTHER_ID, registered_ns=settled_ns - MS)
    assert code(client, rig.do(client, late)) == ErrorCode.TOO_OLD_TO_TELL, (
        "an operation of this id may have settled and been forgotten"
    )
    assert code(client, rig.do(client, arm())) is None
    rig.check()


def test_the_id_of_a_call_that_runs_is_known() -> None:
    the_id_of_a_call_that_runs_is_known(Rig())


@pytest.mark.parametrize("restarted", [False, True])
def test_the_id_of_a_call_is_known_while_it_is_due_and_for_its_time_after_the_call_is_over(restarted: bool) -> None:
    rig = Rig(settled_ids_kept=10 * S)
    waits = rig.client(group=b"workers")
    rig.do(waits, call(id=ID))
    for _ in range(5):
        rig.turn(rig.now_ns + 10 * S)
        assert code(waits, rig.do(waits, call(id=ID, wants_answer=True))) == ErrorCode.OPERATION_EXISTS
    if restarted:
        rig.restart()
    member = handler(rig, b"job")
    rig.turn()
    (told,) = member.delivered_for_group
    rig.do(member, begun(told))
    rig.turn(rig.now_ns + 10 * S)
    rig.do(member, done(told))
    rig.turn(rig.now_ns + 9 * S)
    assert code(waits, rig.do(waits, call(id=ID, wants_answer=True))) == ErrorCode.OPERATION_EXISTS
    rig.turn(rig.now_ns + 10 * S)
    assert rig.arena.count("ids_forgotten") == 1
    assert code(waits, rig.do(waits, call(id=ID))) is None
    rig.check()


def test_if_ids_run_short_the_ids_of_calls_that_are_not_over_are_forgotten_last() -> None:
    rig = Rig(ids=8)
    client = rig.client(group=b"workers")
    for number in range(4):
        rig.do(client, call(id=bytes([number]) * 16))
    settle(rig, client, 20)
    for number in range(4):
        known = rig.do(client, call(id=bytes([number]) * 16, wants_answer=True))
        assert code(client, known) == ErrorCode.OPERATION_EXISTS
    for number in range(4, 20):
        rig.do(client, call(id=bytes([number]) * 16))
    again = rig.do(client, call(id=bytes(16), wants_answer=True))
    assert code(client, again) == ErrorCode.NONE, "if no call is over, the oldest id must be forgotten"
    rig.check()


def test_remembered_ids_are_bounded_and_the_oldest_is_forgotten_first() -> None:
    rig = Rig(capacity=32, ids=8, quota_operations=32)
    client = rig.client()
    for number in range(20):
        rig.do(client, arm(bytes([number]) * 16, timeout_ns=0), now_ns=rig.now_ns + MS)
        rig.acknowledge()
    assert not client.answers, "a settled id takes no record from a new one"
    assert rig.arena.in_use()["IDS"] <= 8
    assert code(client, rig.do(client, arm(bytes([19]) * 16))) == ErrorCode.OPERATION_EXISTS
    assert code(client, rig.do(client, arm(bytes([0]) * 16))) is None
    rig.check()


def test_a_client_that_fills_all_ids_makes_itself_forget_the_oldest_and_no_other_client() -> None:
    rig = Rig(capacity=32, ids=16, quota_operations=32)
    a_client_makes_itself_forget_first(rig, between=rig.restart)
    rig.check()


def forgets_by_rule(rig: Rig, client: Client, news: int) -> None:
    """Settle `news` ids while all are in use. The slot that forgets one has at least 7/8 as many ids as any other."""
    for _ in range(news):
        before = remembered(rig)
        settle(rig, client, 1)
        left = {id for ids in remembered(rig) for id in ids}
        (payer,) = (ids for ids in before if not left.issuperset(ids))
        most = max(map(len, before))
        assert 8 * len(payer) >= 7 * most, f"one of {len(payer)} ids was forgotten, and another slot has {most}"


def test_if_all_clients_have_few_ids_a_client_with_the_most_forgets() -> None:
    rig = Rig(capacity=32, ids=14, quota_operations=32)
    holders, newcomer = [rig.client(), rig.client()], rig.client()
    settle(rig, holders[0], 7)
    settle(rig, holders[1], 7)
    forgets_by_rule(rig, newcomer, 6)
    rig.check()


def test_a_client_with_more_ids_than_the_one_that_was_the_fullest_is_not_yet_the_fullest() -> None:
    rig = Rig(capacity=128, ids=113, quota_operations=128)
    first, resting, rising, newcomer = (rig.client() for _ in range(4))
    settle(rig, first, 40)
    settle(rig, resting, 40)
    settle(rig, rising, 33)
    forgets_by_rule(rig, rising, 4)  # for each of these the first client forgets an id
    forgets_by_rule(rig, newcomer, 8)
    rig.check()


def remembered(rig: Rig) -> list[list[bytes]]:
    """The remembered ids of each client slot, oldest first."""
    with ArenaReader.from_bytes(rig.memory) as reader:
        ids = reader.ids
        return [
            [
                struct.pack("<QQ", ids[index].hash_low, ids[index].hash_high)
                for index in walk.remembered_ids(reader, slot)
            ]
            for slot in range(len(reader.clients))
        ]


@pytest.mark.parametrize("seed", in_tiers((1, 2, 3, 4, 5), 1))
def test_remembered_ids_are_the_ids_of_a_simple_model(seed: int) -> None:
    """Clients register, replace and leave at random. A list with at least 7/8 of the most ids forgets its oldest id."""
    print(f"seed {seed}")
    random = Random(seed)
    rig = Rig(capacity=64, ids=48, clients=6, quota_clients=6)
    clients = [rig.client() for _ in range(5)]
    model: list[list[bytes]] = [[] for _ in range(len(remembered(rig)))]
    evicted = 0
    for step in range(1_500):
        client = random.choices(clients, weights=[(1 + step // 300 * at) for at in range(len(clients))])[0]
        id = random.randrange(400).to_bytes(16, "little")
        before, longest = [list(ids) for ids in model], max(map(len, model))
        answer = client.answer(rig.do(client, arm(id, "replace", timeout_ns=0), now_ns=rig.now_ns + MS))
        rig.acknowledge()
        assert answer is None or answer.code == ErrorCode.NONE, f"seed {seed}, step {step}"
        for ids in model:
            if id in ids:
                ids.remove(id)
        model[client.slot].append(id)
        found = remembered(rig)
        if found != model:
            (slot,) = (slot for slot, ids in enumerate(model) if found[slot] != ids)
            assert sum(map(len, before)) == 48, f"seed {seed}, step {step}: forgotten without need"
            assert 8 * len(before[slot]) >= 7 * longest, f"seed {seed}, step {step}: {before[slot]} is not the longest"
            model[slot].pop(0)
            evicted += 1
        assert found == model, f"seed {seed}, step {step}"
        if random.random() < 0.02:
            rig.restart()
        elif random.random() < 0.02:
            at = random.randrange(len(clients))
            rig.close(clients[at], goodbye=True)
            clients[at] = rig.client()
    assert evicted > 100, f"seed {seed}: only {evicted} ids were forgotten"
    rig.check()


def test_ids_of_many_clients_are_forgotten_after_their_time_and_the_floor_does_not_fall() -> None:
    rig = Rig(capacity=256, ids=256, clients=200, quota_clients=200, settled_ids_kept=S)
    clients = [rig.client() for _ in range(150)]
    for number, client in enumerate(reversed(clients)):
        rig.do(client, arm(number.to_bytes(16, "little"), timeout_ns=0), now_ns=rig.now_ns + MS)
    rig.acknowledge()
    last_ns, floor_ns = rig.now_ns, 0
    rig.turn(rig.now_ns + S)
    for _ in range(30):
        rig.turn(rig.now_ns + MS)
        assert rig.arena.header.ids_floor_ns >= floor_ns
        floor_ns = rig.arena.header.ids_floor_ns
    assert (rig.arena.in_use()["IDS"], floor_ns) == (0, last_ns)
    rig.check()


def test_any_client_reschedules_and_cancels_by_id() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    number = rig.do(a, arm(timeout_ns=10 * MS))
    assert code(b, rig.do(b, by_id(CommandKind.RESCHEDULE_ID, timeout_ns=50 * MS))) == ErrorCode.NONE
    rig.turn(rig.now_ns + 20 * MS)
    assert a.state(number) is Outcome.NONE
    done = rig.do(b, by_id(CommandKind.CANCEL_ID))
    answer = b.answer(done)
    assert answer is not None and (answer.code, answer.value) == (ErrorCode.NONE, 1)
    assert a.state(number) is Outcome.CANCELLED


@pytest.mark.parametrize("kind", (CommandKind.CANCEL_ID, CommandKind.RESCHEDULE_ID))
def test_an_id_that_is_unknown_or_has_settled_is_an_unknown_operation(kind: CommandKind) -> None:
    rig = Rig()
    client = rig.client()
    assert code(client, rig.do(client, by_id(kind))) == ErrorCode.UNKNOWN_OPERATION
    rig.do(client, arm(timeout_ns=0))
    assert code(client, rig.do(client, by_id(kind))) == ErrorCode.UNKNOWN_OPERATION


def test_ids_of_two_purgatories_are_independent() -> None:
    rig = Rig()
    other = rig.core.purgatory(b"other")
    client = rig.client()
    rig.do(client, arm())
    assert code(client, rig.do(client, arm(purgatory=other))) is None
    assert code(client, rig.do(client, by_id(CommandKind.CANCEL_ID, purgatory=other))) == ErrorCode.NONE
    assert rig.arena.count("pending", 0) == 1


def test_a_refused_replacement_leaves_the_old_operation_as_it_was() -> None:
    rig = Rig(quota_operations=1)
    client = rig.client()
    old = rig.do(client, arm())
    refused = rig.do(client, arm(if_exists="replace"))
    assert code(client, refused) == ErrorCode.QUOTA_EXCEEDED
    too_old = rig.do(rig.client(), Register(KEYS, id=ID, if_exists="replace", mark_of_other_arena=True, timeout_ns=S))
    assert too_old == 1
    assert client.state(old) is Outcome.NONE
    rig.check()
