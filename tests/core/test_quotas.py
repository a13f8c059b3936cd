"""Quotas of a client, group or process leave watch nodes, watermarks, ids, groups, slots and purgatories to others."""

from __future__ import annotations

import random

import pytest

from support.rig.commands import Answer, Command, Key, KeyAct, Mark, Register
from support.rig.harness import Client, Rig, S, advance, cancel, done, fire, forget
from timerd_shm.declare.errors import ArenaFullError, ErrorCode, QuotaExceededError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import GROUP_KEPT_NS, KEYS_MAX, MET_SHIFT, UID_UNKNOWN
from timerd_shm.declare.states import ClientState, Orphans
from timerd_shm.declare.wire import CommandKind, Met

WORKERS = b"workers"
HOUR_NS = 3_600 * S


def watch(*names: bytes, **more: object) -> Register:
    return Register(tuple(Key(name) for name in names), timeout_ns=HOUR_NS, **more)  # type: ignore[arg-type]


def names(first: int, count: int) -> tuple[bytes, ...]:
    return tuple(b"%d" % number for number in range(first, first + count))


def refusal(rig: Rig, client: Client, command: Command) -> Answer | None:
    return client.answer(rig.do(client, command))


def quota(number: int, met: Met, limit: int) -> Answer:
    return Answer(number, ErrorCode.QUOTA_EXCEEDED, met << MET_SHIFT | limit)


def test_a_client_with_64_keys_in_each_operation_leaves_half_of_the_watchers_to_others() -> None:
    rig = Rig(capacity=64, nodes=400)
    greedy, other = rig.client(), rig.client()
    rig.do(greedy, *(watch(*names(KEYS_MAX * n, KEYS_MAX)) for n in range(4)))
    assert greedy.answers == [quota(4, Met.NODES, 200)]
    assert rig.arena.record(Region.CLIENTS, greedy.slot).nodes == 3 * (KEYS_MAX - 1)
    for n in range(3):
        assert refusal(rig, other, watch(*names(KEYS_MAX * n, KEYS_MAX))) is None
    rig.do(greedy, cancel(1))
    assert refusal(rig, greedy, watch(*names(0, KEYS_MAX))) is None, "a settled operation is still charged"
    rig.check()
    rig.restart()
    assert rig.arena.record(Region.CLIENTS, greedy.slot).nodes == 3 * (KEYS_MAX - 1)
    rig.check()


def test_registrations_with_few_keys_meet_the_quota_of_watchers_as_well() -> None:
    rig = Rig(capacity=64, nodes=40, quota_operations=32, quota_nodes=20)
    client = rig.client()
    rig.do(client, *(watch(b"k", b"l") for _ in range(25)), *(watch(b"k") for _ in range(3)))
    assert client.answers == [quota(number, Met.NODES, 20) for number in range(21, 26)], (
        "a first key was charged a watch node"
    )
    rig.check()


def test_watermarks_of_one_client_leave_half_of_them_to_others() -> None:
    rig = Rig(capacity=64, watermarks=20)
    greedy, other = rig.client(), rig.client()
    rig.do(greedy, *(advance(name, 1) for name in names(0, 10)))
    assert refusal(rig, greedy, advance(b"new", 1)) == quota(11, Met.WATERMARKS, 10)
    assert refusal(rig, greedy, advance(b"0", 2)) is None, "a known watermark was charged again"
    rig.do(other, *(advance(name, 1) for name in names(100, 10)))
    assert not other.answers, "the other half is not left to another client"
    third = rig.client()
    assert refusal(rig, third, advance(b"new", 1)) == Answer(1, ErrorCode.ARENA_FULL, Met.WATERMARKS << MET_SHIFT | 20)
    assert refusal(rig, greedy, forget(b"0")) is None
    assert refusal(rig, third, advance(b"new", 1)) is None
    rig.check()
    rig.restart()
    assert rig.arena.record(Region.CLIENTS, greedy.slot).watermarks == 9
    rig.check()


def test_a_group_has_a_clients_quota_of_watchers_and_adoption_is_above_it() -> None:
    rig = Rig(capacity=64, nodes=64, quota_nodes=2, clients=4)
    leaving, staying = rig.client(Orphans.GROUP, group=WORKERS), rig.client(group=WORKERS)
    rig.do(leaving, watch(b"a", b"b", b"c"))
    rig.do(staying, watch(b"d", b"e", for_group=True))
    assert refusal(rig, staying, watch(b"1", b"2", b"3", for_group=True)) == quota(2, Met.NODES, 2)
    assert refusal(rig, staying, watch(b"1", b"2", b"3")) is None, "the client's own quota was charged"
    rig.close(leaving)
    group = rig.arena.record(Region.GROUPS, 0)
    assert (group.nodes, group.pending) == (3, 2)
    rig.do(staying, fire(b"a"), fire(b"d"))
    assert rig.arena.record(Region.GROUPS, 0).nodes == 3, "the keys were not kept for the next member"
    rig.restart()
    assert rig.arena.record(Region.GROUPS, 0).nodes == 3
    listener = rig.client(group=WORKERS, listens=True)
    rig.turn()
    rig.do(listener, *map(done, list(listener.delivered_for_group)))
    assert rig.arena.record(Region.GROUPS, 0).nodes == 0
    rig.check()


def test_charges_return_to_zero_however_operations_settle(seed: int) -> None:
    """The checker compares the charges with the records, also after a start. At the end all charges must be 0."""
    rng = random.Random(seed)
    rig = Rig(capacity=64, nodes=256, clients=6)
    clients = [rig.client(rng.choice(list(Orphans)), group=WORKERS, listens=bool(n % 2)) for n in range(4)]
    for _ in range(60):
        client = rng.choice(clients)
        chosen = rng.sample([b"%d" % n for n in range(12)], rng.randint(1, 5))
        match rng.randrange(5):
            case 0 | 1 | 2:
                more: dict[str, object] = {"for_group": rng.random() < 0.3, "needed": rng.randint(1, len(chosen))}
                if rng.random() < 0.5:
                    more |= {"id": b"%016d" % rng.randrange(20), "if_exists": "replace"}
                rig.do(client, watch(*chosen, **more))
            case 3:
                rig.do(client, fire(chosen[0], limit=rng.choice((None, 1))))
            case 4 if client.issued:
                rig.do(client, cancel(rng.randint(1, client.issued)))
        rig.check()
    rig.close(clients.pop(0))
    rig.check()
    rig.restart()
    rig.check()
    for client in clients:
        rig.close(client)
    rig.turn(rig.now_ns + 2 * HOUR_NS)
    rig.turn(rig.now_ns + 2 * GROUP_KEPT_NS)
    rig.turn(rig.now_ns + 2 * GROUP_KEPT_NS)
    rig.check()
    assert all(
        record.nodes == record.ids == 0
        for region in (Region.CLIENTS, Region.GROUPS)
        for record in rig.arena.records(region)
    )
    assert rig.arena.in_use()["NODES"] == 0


def test_refusals_of_one_turn_are_counted_for_each_client_and_beyond_32_together() -> None:
    rig = Rig(capacity=256, clients=64, quota_operations=1)
    clients = [rig.client(process=(500 + number, 7)) for number in range(40)]
    rig.core.begin_turn(rig.now_ns)
    for client in clients:
        for command in (watch(b"k"), watch(b"k"), watch(b"k")):
            client.issue(command)
        rig.apply(client, client.frame())
    found = rig.core.take_refusals()
    named = [(count, holder[0], holder[3]) for *_, count, holder in found if holder is not None]
    assert named == [(2, client.slot, 500 + number) for number, client in enumerate(clients[:32])]
    assert [(value, count) for _, value, count, holder in found if holder is None] == [
        (Met.OPERATIONS << MET_SHIFT | 1, 16)
    ]
    assert rig.core.take_refusals() == []


# ids ------------------------------------------------------------------------------------------------------------------


def named(number: int, **more: object) -> Register:
    return watch(b"k", id=b"%016d" % number, **more)


@pytest.mark.parametrize("how", ["fire", "cancel", "expire", "die", "adopt", "keep", "group", "restart"])
def test_long_names_of_keys_count_as_bytes_until_their_operation_needs_them_no_more(how: str) -> None:
    """In an earlier version one client could take all blocks of the arena by long names, and was charged 0 bytes."""
    rig = Rig(blocks=64, quota_bytes=2_200, nodes=64, quota_nodes=64)
    orphans = {"adopt": Orphans.GROUP, "keep": Orphans.KEEP}.get(how)
    client = rig.client(group=b"service")
    keys = tuple(Key(b"%03d" % number + b"n" * 197) for number in range(3))
    made = Register(keys, timeout_ns=S, orphans=orphans, for_group=how == "group", payload=b"p" * 100)
    first = rig.do(client, made)
    for _ in range(2):
        rig.do(client, made)
    assert [answer.code for answer in client.answers] == []
    refused = rig.do(client, made)
    answer = client.answer(refused)
    assert answer is not None and (answer.code, answer.value >> MET_SHIFT) == (ErrorCode.QUOTA_EXCEEDED, Met.BYTES)
    short = rig.do(client, Register((Key(b"short"),), timeout_ns=S, payload=b"p" * 0))
    assert client.answer(short) is None
    rig.check()
    match how:
        case "fire":
            rig.do(client, *(fire(key.name) for key in keys))
        case "cancel":
            rig.do(client, *(cancel(first + number) for number in range(3)))
        case "expire":
            rig.turn(rig.now_ns + 2 * S)
        case "die" | "adopt" | "keep":
            rig.close(client)
        case "group" | "restart":
            rig.restart()
    rig.check()
    rig.turn(rig.now_ns + 2 * S)
    rig.check()
    rig.acknowledge()
    rig.check()
    if how in ("fire", "cancel", "expire"):
        assert client.answer(rig.do(client, made)) is None, "there is room again"


def test_a_client_with_ids_leaves_half_of_them_to_others() -> None:
    rig = Rig(capacity=64, ids=8)
    greedy, other = rig.client(), rig.client()
    rig.do(greedy, *(named(n) for n in range(6)))
    assert greedy.answers == [quota(number, Met.IDS, 4) for number in (5, 6)]
    rig.do(greedy, named(0, if_exists="replace"), watch(b"k"))
    assert len(greedy.answers) == 2, "an id that the client already has, or an operation without an id, was charged"
    assert refusal(rig, greedy, named(9)) == quota(9, Met.IDS, 4)
    rig.do(other, *(named(n) for n in range(10, 14)))
    assert other.answers == [], "the other half is not left to another client"
    assert refusal(rig, other, named(0, if_exists="replace")) == quota(5, Met.IDS, 4), (
        "the replaced id would be one more for this client"
    )
    rig.check()
    rig.restart()
    assert [rig.arena.record(Region.CLIENTS, one.slot).ids for one in (greedy, other)] == [4, 4]
    rig.check()
    rig.do(greedy, cancel(2))
    assert refusal(rig, greedy, named(20)) is None, "the id of a settled operation did not give way"
    assert rig.arena.record(Region.CLIENTS, greedy.slot).ids == 4
    rig.do(greedy, cancel(3))
    rig.do(other, cancel(1), named(3, if_exists="replace"))
    assert [rig.arena.record(Region.CLIENTS, one.slot).ids for one in (greedy, other)] == [2, 4], (
        "the replaced id is not charged to its new owner"
    )
    rig.check()


def test_a_group_has_a_clients_quota_of_ids_and_adoption_is_above_it() -> None:
    rig = Rig(capacity=64, ids=8, quota_ids=2, clients=4)
    leaving, staying = rig.client(Orphans.GROUP, group=WORKERS), rig.client(group=WORKERS)
    rig.do(staying, *(named(n, for_group=True) for n in range(3)), named(3))
    assert staying.answers == [quota(3, Met.IDS, 2)]
    rig.do(leaving, named(4), named(5))
    rig.close(leaving)
    group = rig.arena.record(Region.GROUPS, 0)
    assert (group.ids, group.pending) == (4, 4)
    rig.check()
    rig.restart()
    assert rig.arena.record(Region.GROUPS, 0).ids == 4
    rig.do(staying, fire(b"k"))
    assert rig.arena.record(Region.GROUPS, 0).ids == 0
    rig.check()


def test_the_id_of_an_operation_that_runs_on_without_an_owner_is_charged_to_nobody() -> None:
    rig = Rig(capacity=64, ids=8, clients=4)
    leaving = rig.client(Orphans.KEEP)
    rig.do(leaving, named(1), named(2))
    rig.close(leaving)
    assert all(record.ids == 0 for record in rig.arena.all_records(Region.CLIENTS))
    rig.check()


# groups ---------------------------------------------------------------------------------------------------------------


def leave_behind(rig: Rig, group: bytes, process: tuple[int, int], uid: int = UID_UNKNOWN) -> None:
    """A client of this process joins a group, registers an operation for the group, and leaves."""
    client = rig.client(group=group, process=process, uid=uid)
    rig.do(client, watch(b"never", for_group=True))
    rig.close(client)


def test_a_process_that_joins_ever_new_groups_leaves_half_of_the_groups_to_others() -> None:
    rig = Rig(capacity=64, groups=8, clients=4)
    for number in range(4):
        leave_behind(rig, b"mine-%d" % number, (500, 7))
    with pytest.raises(QuotaExceededError, match="process 500 has made 4 of 8 groups"):
        rig.client(group=b"mine-4", process=(500, 7))
    rig.restart()
    with pytest.raises(QuotaExceededError):
        rig.client(group=b"mine-4", process=(500, 7))
    leave_behind(rig, b"mine-0", (500, 7))
    for number in range(4):
        leave_behind(rig, b"another-%d" % number, (500, 8), uid=1000)
    with pytest.raises(ArenaFullError):
        rig.client(group=b"mine-4", process=(500, 7))
    rig.turn(rig.now_ns + 2 * HOUR_NS)
    rig.turn(rig.now_ns + 2 * GROUP_KEPT_NS)
    leave_behind(rig, b"mine-4", (500, 7))
    rig.check()


def test_a_process_that_has_made_a_group_joins_a_group_of_another_process() -> None:
    rig = Rig(capacity=64, groups=4, clients=4)
    leave_behind(rig, b"mine", (500, 7))
    leave_behind(rig, b"another's", (500, 8))
    rig.client(group=b"another's", process=(500, 7))


def test_empty_groups_do_not_count() -> None:
    rig = Rig(capacity=64, groups=4, clients=2)
    for number in range(20):
        rig.close(rig.client(group=b"%d" % number, process=(500, 7)))
    rig.check()


# client slots -----------------------------------------------------------------------------------------------------


MINE, OTHERS, NOT_KNOWN = (500, 7), (500, 8), (0, 0)


def test_a_process_leaves_the_slots_beyond_its_share_to_others() -> None:
    rig = Rig(capacity=64, clients=8, quota_clients=2)
    for _ in range(2):
        rig.client(process=MINE)
    with pytest.raises(QuotaExceededError, match=r"process 500 may have 2 of 8 client slots.*--quota-clients"):
        rig.client(process=MINE)
    rig.restart()
    with pytest.raises(QuotaExceededError):
        rig.client(process=MINE)
    rig.client(process=OTHERS)
    for _ in range(4):
        rig.client(process=NOT_KNOWN)
    with pytest.raises(QuotaExceededError, match=r"cannot see .* may have 4 of 8 client slots.*--quota-clients"):
        rig.client(process=NOT_KNOWN)
    rig.check()


def test_tombstones_of_a_process_are_in_its_share_and_give_way_to_its_new_clients() -> None:
    rig = Rig(capacity=64, clients=8, quota_clients=2)
    others = rig.client(process=OTHERS)
    rig.close(others, goodbye=False)
    for _ in range(5):
        rig.close(rig.client(process=MINE), goodbye=False)
    states = [ClientState(record.state) for record in rig.arena.all_records(Region.CLIENTS)]
    assert states.count(ClientState.TOMBSTONE) == 3, "two are of this process, and one is of the other"
    assert rig.core.find_tombstone(others.session) == others.slot
    rig.check()


def test_a_client_that_is_being_swept_is_in_the_share_of_its_process() -> None:
    rig = Rig(capacity=64, clients=8, quota_clients=2)
    client = rig.client(process=MINE)
    rig.do(client, watch(b"k"))
    rig.client(process=MINE)
    rig.core.close_client(client.slot, rig.now_ns)
    with pytest.raises(QuotaExceededError):
        rig.client(process=MINE)


def test_a_tombstone_comes_back_in_the_share_of_the_process_that_resumes_it() -> None:
    rig = Rig(capacity=64, clients=8, quota_clients=2)
    client = rig.client(process=OTHERS)
    rig.close(client, goodbye=False)
    for _ in range(2):
        rig.client(process=MINE)
    facts = {"name": b"x", "now_ns": rig.now_ns, "maker_pid": MINE[0], "maker_start_ticks": MINE[1]}
    with pytest.raises(QuotaExceededError):
        rig.core.resume_client(client.slot, **facts)
    rig.core.resume_client(client.slot, **{**facts, "maker_start_ticks": OTHERS[1]})
    rig.check()


# purgatories ------------------------------------------------------------------------------------------------------


def names_of(rig: Rig) -> set[bytes]:
    """The names of all purgatories, without those that scout() has made."""
    records = [record for record in rig.arena.all_records(Region.PURGATORIES) if record.state]
    names = {record.name[: record.name_length] for record in records}
    return {name for name in names if not name.startswith(b"scout")}


def scout(rig: Rig) -> Client:
    """A client of another process. It makes purgatories until the core begins a walk that frees empty purgatories."""
    client = rig.client(process=(900, rig.opened))
    for number in range(6):
        rig.core.purgatory(b"scout-%d-%d" % (rig.opened, number), client.slot)
    return client


def look_for_room(rig: Rig) -> None:
    """Let the walk that frees empty purgatories begin and end."""
    client = scout(rig)
    rig.turn()
    rig.close(client, goodbye=True)


def test_a_process_leaves_the_purgatories_beyond_its_share_to_others() -> None:
    rig = Rig(capacity=64, purgatories=32)
    greedy = rig.client(process=MINE)
    for number in range(8):
        rig.core.purgatory(b"mine-%d" % number, greedy.slot)
    with pytest.raises(QuotaExceededError, match="process 500 has made 8 of 32 purgatories"):
        rig.core.purgatory(b"more", greedy.slot)
    assert rig.core.purgatory(b"mine-3", greedy.slot) == 4, "a purgatory that exists was counted as new"
    rig.restart()
    with pytest.raises(QuotaExceededError):
        rig.core.purgatory(b"more", greedy.slot)
    rig.core.purgatory(b"theirs", rig.client(process=OTHERS).slot)
    unseen = rig.client(process=NOT_KNOWN)
    for number in range(16):
        rig.core.purgatory(b"unseen-%d" % number, unseen.slot)
    with pytest.raises(QuotaExceededError, match=r"cannot see .* made 16 of 32 purgatories"):
        rig.core.purgatory(b"more", unseen.slot)
    rig.check()


def test_a_refusal_of_a_purgatory_says_who_has_made_most_and_what_frees_one() -> None:
    rig = Rig(capacity=64, purgatories=16, clients=8)
    makers = [rig.client(process=(500 + number, 7)) for number in range(5)]
    for number, most in enumerate((3, 4, 4, 4)):
        for count in range(most):
            name = b"p-%d-%d" % (number, count)
            index = rig.core.purgatory(name, makers[number].slot)
            rig.do(makers[number], KeyAct(CommandKind.ADVANCE, b"w", 7, purgatory=index))
    says = r"16 of 16 purgatories are in use, 4 of them made by process 501: .*timerctl forget KEY --purgatory NAME"
    with pytest.raises(ArenaFullError, match=says):
        rig.core.purgatory(b"more", makers[4].slot)
    rig.check()


def test_empty_purgatories_are_free_for_other_names_when_their_clients_have_ended() -> None:
    rig = Rig(capacity=64, purgatories=32, clients=4)
    for life in range(20):
        client = rig.client(process=MINE)
        for number in range(4):
            rig.core.purgatory(b"%d-%d" % (life, number), client.slot)
            rig.turn()
        rig.close(client, goodbye=True)
    assert len(names_of(rig)) <= 1 + 8
    rig.check()


def test_a_purgatory_is_kept_while_it_holds_something() -> None:
    rig = Rig(capacity=64, purgatories=32, ring_events=16)
    owner, live = rig.client(Orphans.KEEP, process=MINE), rig.client(process=MINE)
    at = {
        name: rig.core.purgatory(name, owner.slot)
        for name in (b"operation", b"outcome", b"watermark", b"id", b"event", b"nothing")
    }
    rig.core.purgatory(b"named", live.slot)
    rig.do(owner, watch(b"k", purgatory=at[b"operation"]))
    rig.do(owner, KeyAct(CommandKind.ADVANCE, b"k", 7, purgatory=at[b"watermark"]))
    rig.do(owner, KeyAct(CommandKind.FIRE, b"k", purgatory=at[b"event"]))
    rig.do(live, watch(b"k", purgatory=at[b"outcome"]), cancel(1))
    rig.do(live, watch(b"k", purgatory=at[b"id"], id=b"i" * 16), cancel(3))
    mark = Mark(rig.core.newest - 2, 0)
    rig.close(owner, goodbye=True)
    look_for_room(rig)
    rig.restart()
    kept = {b"default", b"operation", b"outcome", b"watermark", b"id", b"event", b"named"}
    assert names_of(rig) == kept
    rig.check()
    rig.do(live, *(fire(b"other") for _ in range(20)))
    rig.acknowledge(live)
    look_for_room(rig)
    # The events of the fire and of the advance have left the ring. The watermark itself still exists.
    assert names_of(rig) == kept - {b"event", b"outcome"}
    again = rig.core.purgatory(b"event", live.slot)
    refused = live.answer(rig.do(live, watch(b"k", purgatory=again, mark=mark, mark_by_sequence=True)))
    assert refused is not None and refused.code == ErrorCode.MARK_TOO_OLD, (
        "a mark before a forgotten event of this name was accepted"
    )
    rig.do(live, watch(b"k", purgatory=again, mark=live.mark()))
    rig.check()


def test_a_command_that_is_applied_during_a_walk_keeps_its_purgatory() -> None:
    """The command comes after the walk has passed the purgatory's record. When the walk ends, the client has left."""
    rig = Rig(capacity=64, purgatories=32)
    client, other = rig.client(Orphans.KEEP, process=MINE), rig.client()
    purgatory = rig.core.purgatory(b"late", client.slot)
    rig.do(other, *(watch(b"k") for _ in range(40)))
    scout(rig)
    rig.core.resume(rig.now_ns, 45)
    rig.do(client, watch(b"k", purgatory=purgatory))
    rig.close(client, goodbye=True)
    rig.turn()
    assert names_of(rig) == {b"default", b"late"}
    rig.check()


# what a turn counts -----------------------------------------------------------------------------------------------


def test_a_registration_counts_its_keys_for_the_bound_of_the_turn_even_if_it_is_refused() -> None:
    rig = Rig(capacity=64, nodes=256)
    client = rig.client()
    for command in (watch(*names(0, 64)), cancel(1), watch(*names(0, 63), b"0")):
        before = rig.core.touched
        rig.do(client, command)
        assert rig.core.touched - before >= 64
    assert refusal(rig, client, watch()) is not None
