"""Owners in the core: if one dies, its grants are requeued, and its numbering stays. A silent one loses nothing."""

from __future__ import annotations

import hashlib

import pytest

import timerd.core
from support.rig.commands import KeyAct
from support.rig.groups import watch
from support.rig.harness import BUDGET, MS, START_NS, Client, Rig, S, cancel, fire, requeue
from support.rig.rules import REQUEUED, grant_of_a_dead_owner_is_requeued
from timerd_shm.declare.errors import ArenaFullError, ErrorCode, NotAMemberError, SessionGoneError
from timerd_shm.declare.layout import BATCH_MAX, Region
from timerd_shm.declare.limits import TOMBSTONE_KEPT_NS
from timerd_shm.declare.states import ClientState, Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, OutcomeFlag

LONG = b"a key that is longer than what fits in the record of an event, so that it needs a block of its own"
MIDDLE = b"a key between sixteen and forty-eight bytes"


def state(rig: Rig, client: Client) -> ClientState:
    return ClientState(rig.arena.record(Region.CLIENTS, client.slot).state)


# limited events ------------------------------------------------------------------------------------------------------


def test_a_grant_of_a_dead_owner_is_requeued_to_the_next_watcher_in_order() -> None:
    grant_of_a_dead_owner_is_requeued(Rig())


@pytest.mark.parametrize("key", [b"k", MIDDLE, LONG, b"m" * 255])
def test_a_requeued_grant_keeps_its_value_and_key(key: bytes) -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"other", key))
    mark = b.mark()
    rig.do(b, fire(key, limit=1, value=b"v" * 500))
    rig.close(a)
    rig.restart()
    rig.check()
    number = rig.do(b, watch(key, mark=mark))
    delivered = b.outcome(number)
    assert delivered is not None and delivered.value == b"v" * 500
    rig.acknowledge()
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


def test_a_requeued_grant_completes_a_late_registration_with_an_older_mark() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k"))
    rig.do(b, fire(b"k", limit=1, value=b"v"))
    mark = b.mark()
    rig.close(a)
    late, later = rig.do(b, watch(b"k", mark=mark), watch(b"k", mark=mark)), b.issued
    assert (b.state(late), b.state(later)) == (Outcome.COMPLETED, Outcome.NONE)
    assert b.flags[1] & REQUEUED == REQUEUED
    rig.check()


def test_a_requeued_grant_counts_by_sequence_for_every_client() -> None:
    """The event of a requeued grant has no client. So its sequence alone, and no command number, tells when it came."""
    for who in range(2):
        rig = Rig()
        a, b = rig.client(), rig.client()
        rig.do(a, watch(b"k"))
        rig.do(b, fire(b"k", limit=1))
        late = (a, b)[who]
        mark = late.mark()
        rig.close(a)
        if late is a:
            come_back(rig, a)
        assert late.state(rig.do(late, watch(b"k", mark=mark))) is Outcome.COMPLETED


def test_an_acknowledged_outcome_that_is_not_freed_yet_is_not_requeued() -> None:
    rig = Rig()
    a, b = rig.client(group=b"g"), rig.client(group=b"g", listens=True)
    each = (BATCH_MAX // len(Orphans) + 1) * [*Orphans]  # more than one batch of an acknowledgement
    rig.do(a, *(watch(b"k", orphans=orphans) for orphans in each))
    rig.do(b, watch(b"k"), fire(b"k", limit=len(each)))
    rig.core.begin_turn(rig.now_ns)
    assert rig.core.acknowledge(a.slot, len(each), 0, 1), "a part of the acknowledgement must be left, for this test"
    rig.core.close_client(a.slot, rig.now_ns)
    rig.clients.remove(a)
    # The sweep of the dead client comes before the rest of the acknowledgement.
    rig.core.resume(rig.now_ns, 0)
    rig.resume()
    rig.report()
    rig.core.end_turn(rig.now_ns)
    assert not b.delivered and not b.delivered_for_group
    assert (rig.arena.count("requeued"), rig.arena.count("orphans_adopted")) == (0, 0)
    rig.check()


def test_outcomes_dropped_with_their_owner_do_not_count_as_acknowledged() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, watch(LONG), watch(LONG), fire(LONG))
    rig.close(client)
    assert rig.arena.record(Region.CLIENTS, client.slot).unacknowledged == 0
    assert rig.arena.count("outcomes_acknowledged") == 0


def test_a_grant_is_requeued_again_when_the_next_owner_dies() -> None:
    rig = Rig()
    clients = [rig.client() for _ in range(4)]
    for client in clients:
        rig.do(client, watch(b"k"))
    rig.do(clients[-1], fire(b"k", limit=1, value=b"v"))
    for client in clients[:-1]:
        assert client.state(1) is Outcome.COMPLETED
        rig.close(client)
    rig.turn()
    assert clients[-1].state(1) is Outcome.COMPLETED
    rig.acknowledge()
    rig.close(clients[-1])
    assert rig.arena.count("requeued") == 3, "an acknowledged grant was requeued"
    rig.check()


def test_several_grants_of_several_dead_owners_are_requeued() -> None:
    rig = Rig()
    a, b, c = rig.client(), rig.client(), rig.client()
    rig.do(a, watch(b"k"), watch(b"l"), watch(b"plain"))
    rig.do(b, watch(b"k"), watch(b"k"))
    rig.do(c, *(watch(b"k") for _ in range(4)), watch(b"l"), fire(b"k", limit=3), fire(b"l", limit=1), fire(b"plain"))
    for client in (a, b):
        rig.clients.remove(client)
        rig.core.close_client(client.slot, rig.now_ns)
    rig.turn()
    assert sorted(each.command for each in c.delivered) == [1, 2, 3, 5], (
        "not the first three operations on k, and the one on l"
    )
    assert rig.arena.count("requeued") == 4
    rig.check()


def test_a_requeue_waits_while_a_long_event_is_being_applied() -> None:
    rig = Rig(capacity=4096, quota_operations=4096, nodes=8192)
    a, b, c = rig.client(), rig.client(), rig.client()
    rig.do(a, watch(b"k"))
    rig.do(b, watch(b"k"), *(watch(b"long") for _ in range(1000)))
    rig.do(c, fire(b"k", limit=1))
    c.issue(KeyAct(CommandKind.FIRE, b"long"))
    rig.core.begin_turn(rig.now_ns)
    assert rig.core.apply(c.slot, c.frame(), rig.now_ns, 100) == timerd.core.UNFINISHED
    rig.clients.remove(a)
    rig.core.close_client(a.slot, rig.now_ns)
    long_event = rig.arena.header.unfinished
    while rig.arena.header.unfinished == long_event:
        assert rig.core.newest == long_event, "another event entered the ring"
        assert rig.core.resume(rig.now_ns, 100)
    rig.resume()
    rig.report()
    rig.core.end_turn(rig.now_ns)
    assert [each.command for each in b.delivered] == [*range(2, 1002), 1]
    assert rig.core.newest == long_event + 1
    rig.check()


def test_a_long_search_for_the_next_watcher_is_cut_into_turns() -> None:
    """The requeued grant is an event, applied in turns like any other. It completes only the last of 1,001 watchers."""
    rig = Rig(capacity=4096, quota_operations=4096, nodes=8192)
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k"))
    rig.do(b, *(watch(b"k", b"never", needed=2) for _ in range(1000)), watch(b"k"), fire(b"k", limit=1))
    rig.core.close_client(a.slot, rig.now_ns)
    rig.clients.remove(a)
    touched = rig.resume_in_turns(100)
    assert max(touched) <= 110 and len(touched) >= 10, touched
    rig.turn()
    assert [each.command for each in b.delivered] == [1001]
    rig.check()


def test_a_value_for_which_its_first_receiver_had_no_room_is_flagged_as_dropped() -> None:
    rig = Rig(quota_bytes=600)
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k", payload=b"p" * 500))
    rig.do(b, watch(b"k"), fire(b"k", limit=1, value=b"v" * 200))
    rig.close(a)
    rig.turn()
    (delivered,) = b.delivered
    assert delivered.value == b"" and OutcomeFlag.VALUE_DROPPED in b.flags[delivered.number]
    rig.check()


def test_grants_of_total_and_quorum_operations_are_requeued_with_an_amount_of_one() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k", condition=Condition.TOTAL, total=5))
    rig.do(b, watch(b"k", condition=Condition.TOTAL, total=5), watch(b"k"), fire(b"k", 5, limit=1))
    rig.close(a)
    rig.turn()
    assert [each.command for each in b.delivered] == [2]
    rig.check()


# requeues by the owner -----------------------------------------------------------------------------------------------


def test_a_grant_that_its_owner_requeues_completes_the_next_watcher() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(LONG))
    rig.do(b, watch(LONG), fire(LONG, limit=1, value=b"v" * 300))
    assert a.state(1) is Outcome.COMPLETED
    number = rig.do(a, requeue(1, wait=True))
    assert (found := a.answer(number)) and (found.code, found.value) == (ErrorCode.NONE, 1)
    (delivered,) = b.delivered
    assert delivered.value == b"v" * 300 and b.flags[delivered.number] & REQUEUED == REQUEUED
    assert rig.core.unknown_waits(a.slot, [1]) == [1]
    rig.acknowledge()
    rig.check()
    assert rig.arena.record(Region.CLIENTS, a.slot).bytes_held == 0


def test_a_requeue_cancels_a_pending_operation_and_keeps_ungranted_and_acknowledged_operations() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"pending"), watch(b"plain"), watch(b"taken"), fire(b"plain"), fire(b"taken", limit=1))
    rig.do(b, watch(b"taken"), watch(b"plain"))
    a.acknowledge()
    for operation, value in ((1, 1), (2, 0), (3, 0), (99, 0)):
        number = rig.do(a, requeue(operation, wait=True))
        assert (found := a.answer(number)) and found.value == value, f"operation {operation}"
    assert a.state(1) is Outcome.CANCELLED
    assert not b.delivered and rig.arena.count("requeued") == 0
    rig.check()


def test_a_plain_cancel_requeues_no_grant() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k"))
    rig.do(b, watch(b"k"), fire(b"k", limit=1))
    assert (found := a.answer(rig.do(a, cancel(1, wait=True)))) and found.value == 0
    assert not b.delivered
    rig.check()


# silence -------------------------------------------------------------------------------------------------------------


def test_silence_changes_nothing_for_a_clients_own_operations() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, watch(b"k"), watch(b"once"), watch(b"due", timeout_ns=5 * MS))
    rig.core.silence(a.slot, rig.now_ns)
    assert state(rig, a) is ClientState.SILENT
    assert rig.core.live_slots() == [a.slot, b.slot]
    assert rig.core.find_session(a.session) == rig.core.find_incarnation(a.incarnation) == a.slot
    rig.do(b, fire(b"k"), fire(b"once", limit=1))
    rig.turn(START_NS + 5 * MS)
    assert [each.state for each in a.delivered] == [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.EXPIRED]
    rig.core.revive(a.slot, rig.now_ns)
    rig.core.revive(a.slot, rig.now_ns)
    assert state(rig, a) is ClientState.LIVE
    assert rig.arena.count("requeued") == 0
    rig.core.set_silent_ns(a.slot, 7)
    assert rig.arena.record(Region.CLIENTS, a.slot).silent_ns == 7
    rig.check()


def test_a_start_renews_every_lease() -> None:
    rig = Rig()
    a = rig.client()
    rig.core.silence(a.slot, rig.now_ns)
    rig.restart()
    assert state(rig, a) is ClientState.LIVE


# tombstones ----------------------------------------------------------------------------------------------------------


def come_back(rig: Rig, client: Client, **more: object) -> None:
    """The dead client comes back with its session."""
    slot = rig.core.find_tombstone(client.session)
    assert slot == client.slot
    rig.core.resume_client(slot, now_ns=rig.now_ns, **more)
    rig.clients.append(client)


def test_a_session_that_returns_keeps_its_numbering_and_none_of_its_operations() -> None:
    rig = Rig()
    a = rig.client()
    rig.do(a, watch(b"k"), watch(b"pending"), fire(b"k"), fire(b"k", wait=True))
    topic = rig.core.topic(a.slot)
    missed = rig.do(a, watch(b"l"), fire(b"l"))
    a.delivered.pop()
    a.received = 1
    rig.close(a)
    assert rig.core.find_session(a.session) == rig.core.find_incarnation(a.incarnation) == -1
    assert state(rig, a) is ClientState.TOMBSTONE
    assert (rig.arena.count("clients"), rig.arena.region(Region.CLIENTS).in_use) == (0, 1)
    rig.restart()
    rig.check()
    come_back(rig, a, name=b"again", pid=7)
    assert (rig.core.topic(a.slot), rig.core.last_command(a.slot)) == (topic, missed + 1)
    assert rig.core.unknown_waits(a.slot, [1, 2, missed]) == [1, 2, missed]
    assert a.issued == missed + 1
    number = rig.do(a, watch(b"m"), fire(b"m"))
    assert a.state(number) is Outcome.COMPLETED, "the client's next command did not continue its numbering"
    delivered = a.outcome(number)
    assert delivered is not None and delivered.number == 3, (
        "outcome numbers must go on; the numbers of lost outcomes are void"
    )
    assert a.received == 3, "the first report must cover the void numbers"
    rig.acknowledge()
    rig.check()


def test_a_frame_that_a_dead_client_sent_twice_is_applied_once_when_it_returns() -> None:
    rig = Rig()
    a = rig.client()
    a.issue(fire(b"k", 5))
    frame = a.frame()
    rig.turn()
    newest = rig.core.newest
    rig.close(a)
    come_back(rig, a)
    assert rig.core.apply(a.slot, frame, rig.now_ns) == timerd.core.APPLIED
    assert rig.core.newest == newest


def test_a_client_is_shown_as_dying_until_the_sweep_is_complete() -> None:
    rig = Rig(capacity=4096, quota_operations=4096)
    a = rig.client()
    rig.do(a, *(watch(b"k") for _ in range(2000)))
    rig.clients.remove(a)
    rig.core.close_client(a.slot, rig.now_ns)
    assert rig.core.next_wake_ns() <= rig.now_ns
    asked = 0
    while rig.core.resume(rig.now_ns, 100):
        assert rig.core.is_dying(a.session) and rig.core.find_tombstone(a.session) == -1
        asked += 1
    assert asked >= 20
    assert not rig.core.is_dying(a.session)
    assert rig.core.find_tombstone(a.session) == a.slot
    assert rig.core.find_tombstone(bytes(16)) == -1
    with pytest.raises(SessionGoneError):
        rig.core.topic(a.slot)


def test_a_goodbye_leaves_no_tombstone() -> None:
    rig = Rig()
    a = rig.client()
    rig.do(a, watch(b"k"))
    rig.close(a, goodbye=True)
    assert state(rig, a) is ClientState.FREE
    assert rig.core.find_tombstone(a.session) == -1
    assert rig.core.next_wake_ns() == timerd.core.NEVER
    rig.check()


def test_a_goodbye_cut_by_a_restart_leaves_no_tombstone() -> None:
    rig = Rig()
    a = rig.client()
    rig.do(a, watch(b"k"))
    rig.core.close_client(a.slot, rig.now_ns, goodbye=True)
    rig.restart()
    rig.resume()
    assert state(rig, a) is ClientState.FREE


def test_a_tombstone_ends_after_an_hour() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.close(a)
    rig.turn(START_NS + 10 * S)
    rig.close(b)
    rig.restart()
    assert rig.core.next_wake_ns() == START_NS + TOMBSTONE_KEPT_NS
    rig.turn(START_NS + TOMBSTONE_KEPT_NS - 1)
    assert state(rig, a) is ClientState.TOMBSTONE
    rig.turn(START_NS + TOMBSTONE_KEPT_NS)
    assert (state(rig, a), state(rig, b)) == (ClientState.FREE, ClientState.TOMBSTONE)
    assert rig.core.next_wake_ns() == START_NS + 10 * S + TOMBSTONE_KEPT_NS
    rig.turn(START_NS + 10 * S + TOMBSTONE_KEPT_NS)
    assert rig.core.next_wake_ns() == timerd.core.NEVER
    rig.check()


def test_a_new_client_replaces_the_oldest_tombstone() -> None:
    rig = Rig(clients=3)
    old = [rig.client() for _ in range(3)]
    for each in (old[1], old[0]):
        rig.now_ns += S
        rig.close(each)
    new = rig.client()
    assert new.slot == old[1].slot
    assert rig.core.find_tombstone(old[1].session) == -1
    assert rig.core.find_tombstone(old[0].session) == old[0].slot
    assert rig.core.topic(new.slot) != old[1].slot | 1 << 16, "the slot has the same generation"
    rig.client()
    with pytest.raises(ArenaFullError, match="3 of 3"):
        rig.client()
    rig.check()


def test_a_watermark_stays_charged_to_its_client() -> None:
    rig = Rig(quota_watermarks=1)
    a = rig.client()
    rig.do(a, KeyAct(CommandKind.ADVANCE, b"p", 5))
    rig.close(a)
    come_back(rig, a)
    refused = rig.do(a, KeyAct(CommandKind.ADVANCE, b"q", 5))
    assert (found := a.answer(refused)) and found.code == ErrorCode.QUOTA_EXCEEDED
    rig.check()


def test_a_returning_client_rejoins_a_group() -> None:
    rig = Rig()
    a, b = rig.client(Orphans.GROUP, group=b"g", listens=True), rig.client()
    rig.do(a, watch(b"k", payload=b"p"))
    rig.close(a)
    rig.do(b, fire(b"k"))
    with pytest.raises(NotAMemberError):
        rig.core.resume_client(a.slot, now_ns=rig.now_ns, listens=True)
    come_back(rig, a, orphans=Orphans.GROUP, group=rig.core.group(b"g"), listens=True)
    rig.turn()
    assert [each.payload for each in a.delivered_for_group] == [b"p"]
    rig.check()
    with pytest.raises(SessionGoneError):
        rig.core.resume_client(a.slot, now_ns=rig.now_ns)


# the sweep -----------------------------------------------------------------------------------------------------------


def test_a_mass_death_is_cut_into_turns_and_misses_no_operation() -> None:
    """100,000 operations of owners with every policy. During the sweep an owner dies, and a member falls silent."""
    many, budget = 100_000, 8_192
    rig = Rig(
        capacity=131_072, nodes=262_144, quota_operations=131_072, quota_outcomes=131_072, clients=8, ring_events=1024
    )
    owners = [
        rig.client(Orphans.CANCEL),
        rig.client(Orphans.KEEP),
        rig.client(Orphans.GROUP, group=b"g"),
        rig.client(Orphans.GROUP, group=b"g"),
    ]
    for number in range(8):
        owners[number % 4].mass(watch(b"k%d" % number), many // 8)
    credited = rig.do(owners[0], *(watch(b"once") for _ in range(100)), fire(b"once", limit=100))
    member, silent = rig.client(group=b"g", listens=True), rig.client(group=b"g", listens=True)
    heir = rig.client()
    rig.do(heir, *(watch(b"once") for _ in range(100)))
    rig.do(member, *(watch(b"w", for_group=True) for _ in range(100)), fire(b"w"))
    assert len(silent.delivered_for_group) == 50 and credited
    rig.clients = [member, silent, heir]
    for owner in owners[:3]:
        rig.core.close_client(owner.slot, rig.now_ns)
    touched, more, turns = [], True, 0
    while more:
        rig.core.begin_turn(rig.now_ns)
        more = rig.core.resume(rig.now_ns, budget)
        touched.append(rig.core.end_turn(rig.now_ns))
        turns += 1
        if turns == 7:
            rig.core.close_client(owners[3].slot, rig.now_ns)
            rig.core.silence(silent.slot, rig.now_ns)
            more = True
    assert max(touched) <= budget + 64, max(touched)
    # The sweep looks at each operation twice at most, and settles or adopts it together with its nodes.
    assert sum(touched) <= 5 * many, sum(touched)
    rig.turn()
    assert rig.arena.count("orphans_cancelled") == many // 4
    assert rig.arena.count("orphans_adopted") == many // 2
    assert rig.arena.count("requeued") == 100
    assert len(heir.delivered) == 100 and len(member.delivered_for_group) == 100
    assert rig.arena.count("pending", 0) == many // 4 * 3
    assert rig.arena.record(Region.GROUPS, 0).pending == many // 2
    assert [state(rig, owner) for owner in owners] == [ClientState.TOMBSTONE] * 4


def test_the_newest_death_is_swept_for_a_whole_round() -> None:
    """A client dies during a sweep. The sweep also finds operations of this client that it had already passed."""
    for cut in range(0, 60, 7):
        rig = Rig(capacity=64, quota_operations=64, clients=6)
        a, b, c = rig.client(), rig.client(Orphans.GROUP, group=b"g"), rig.client(group=b"g", listens=True)
        for number in range(20):
            rig.do(a if number % 2 else b, watch(b"k", payload=b"%d" % number))
        rig.do(c, *(watch(b"w", for_group=True) for _ in range(10)), fire(b"w"))
        rig.clients = [c]
        rig.core.close_client(a.slot, rig.now_ns)
        rig.core.resume(rig.now_ns, cut + 1)
        rig.core.close_client(b.slot, rig.now_ns)
        rig.core.resume(rig.now_ns, 1)
        rig.core.set_listening(c.slot, False, rig.now_ns)
        rig.resume()
        assert rig.arena.count("orphans_cancelled") == 10
        assert rig.arena.count("orphans_adopted") == 10
        assert rig.arena.count("group_outcomes_requeued") == 10
        rig.check()


def test_answers_of_dead_clients_are_freed() -> None:
    rig = Rig()
    a = rig.client()
    rig.do(a, *(fire(b"k", wait=True) for _ in range(9)))
    rig.close(a)
    assert rig.arena.in_use()["ANSWERS"] == 0
    rig.check()


def test_a_tombstone_is_found_by_its_session_and_not_by_its_slot(seed: int) -> None:
    """A tombstone is found by its session alone. The next client in its slot has another session."""
    rig = Rig(clients=1)
    a = rig.client()
    rig.close(a)
    b = rig.client()
    assert (b.slot, rig.core.find_tombstone(a.session)) == (a.slot, -1)
    rig.close(b)
    assert rig.core.find_tombstone(hashlib.blake2b(b"session 2", digest_size=16).digest()) == b.slot
    assert rig.core.resume(rig.now_ns, BUDGET) is False
