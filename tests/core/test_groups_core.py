"""Groups, in the core: one live member at a time holds an outcome. If it dies or is silent, another member gets it."""

from __future__ import annotations

import pytest

import timerd.core
from support.rig.commands import KeyAct, OperationAct
from support.rig.frames import DeliveredForGroup
from support.rig.groups import HOUR, LONG, WORKERS, answer, silence, waiting, watch, work, worker
from support.rig.harness import MS, START_NS, Rig, S, cancel, fire
from support.rig.rules import (
    a_silent_member_keeps_what_it_holds,
    delivered_to_one_at_a_time,
    done_by_a_former_holder_is_refused,
)
from timerd_shm.declare.errors import ArenaFullError, ErrorCode, InvalidNameError, NotAMemberError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import GROUP_HELD_MAX, GROUP_KEPT_NS, MET_SHIFT
from timerd_shm.declare.states import ClientFlag, ClientState, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, Met, OutcomeFlag

# one member ----------------------------------------------------------------------------------------------------------


def test_an_outcome_is_delivered_to_one_live_member_with_payload_and_names() -> None:
    rig = Rig()
    other = rig.core.purgatory(b"other")
    a, b, c = worker(rig), worker(rig), rig.client(group=WORKERS)
    rig.do(c, work(b"k", LONG, payload=b"p" * 300, needed=2, purgatory=other))
    rig.do(c, *(fire_in(other, key, value=b"v" * 200) for key in (LONG, b"k")))
    (delivered,) = a.delivered_for_group + b.delivered_for_group
    assert delivered == DeliveredForGroup(
        1, delivered.operation, Outcome.COMPLETED, 1, b"v" * 200, 1, delivered.flags, b"p" * 300, b"other", (b"k", LONG)
    )
    assert delivered.flags == OutcomeFlag.HAS_PAYLOAD | OutcomeFlag.HAS_VALUE
    assert not c.delivered_for_group, "a member that does not listen got an outcome"
    assert not a.delivered + b.delivered + c.delivered, "a group's outcome was delivered as a client's own"
    rig.check()


def fire_in(purgatory: int, key: bytes, *, value: bytes) -> KeyAct:
    return KeyAct(CommandKind.FIRE, key, value=value, purgatory=purgatory)


def test_outcomes_are_delivered_to_the_members_in_rotation() -> None:
    rig = Rig()
    members = [worker(rig) for _ in range(3)]
    rig.do(members[0], *(work(b"k", payload=b"%d" % n) for n in range(9)), fire(b"k"))
    assert [[delivered.payload for delivered in each.delivered_for_group] for each in members] == [
        [b"0", b"3", b"6"],
        [b"1", b"4", b"7"],
        [b"2", b"5", b"8"],
    ]
    rig.check()


def test_an_expiry_is_delivered_in_the_turn_of_its_deadline() -> None:
    rig = Rig()
    a = worker(rig)
    rig.do(a, work(b"k", timeout_ns=5 * MS), watch(b"k", timeout_ns=5 * MS))
    rig.turn(START_NS + 5 * MS)
    assert [each.state for each in a.delivered_for_group] == [Outcome.EXPIRED]
    assert a.state(2) is Outcome.EXPIRED


def test_a_done_outcome_is_freed_whether_acknowledged_or_not() -> None:
    rig = Rig()
    a = worker(rig)
    rig.do(a, work(b"k", payload=b"p"), work(b"k"), fire(b"k", value=b"v"))
    first, second = a.delivered_for_group
    assert answer(rig, a, first) == 1, "an outcome can be done before it is acknowledged"
    rig.acknowledge(a)
    assert rig.arena.in_use()["OPS"] == 1, "an outcome that is only received is not done"
    assert rig.core.held(a.slot, [first.operation, second.operation, 1 << 40]) == [second.operation]
    rig.check()
    assert answer(rig, a, second) == 1
    assert answer(rig, a, second) == 0, "an outcome was done twice"
    assert rig.arena.in_use()["OPS"] == 0
    assert rig.core.held(a.slot, [second.operation]) == []
    rig.check()


def test_a_member_gets_no_more_outcomes_than_it_may_hold() -> None:
    rig = Rig(capacity=1024, quota_operations=1024)
    a = worker(rig)
    rig.do(a, *(work(b"k") for _ in range(GROUP_HELD_MAX + 10)), fire(b"k"))
    assert len(a.delivered_for_group) == GROUP_HELD_MAX
    rig.acknowledge(a)
    rig.turn()
    assert len(a.delivered_for_group) == GROUP_HELD_MAX, "an outcome that is only received is not done"
    assert answer(rig, a, a.delivered_for_group[7]) == 1
    assert len(a.delivered_for_group) == GROUP_HELD_MAX + 1
    b = worker(rig)
    rig.turn()
    assert len(b.delivered_for_group) == 9
    rig.check()


# the next member -----------------------------------------------------------------------------------------------------


def test_an_outcome_is_redelivered_when_its_member_dies_before_it_is_done() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k", LONG, payload=b"p" * 200), work(b"k"), fire(b"k", value=b"v" * 200))
    first, kept = a.delivered_for_group[0], b.delivered_for_group[0]
    rig.acknowledge(a)
    rig.close(a)
    rig.turn()
    again = b.delivered_for_group[1]
    assert again.operation == first.operation
    assert (again.deliveries, first.deliveries, kept.deliveries) == (2, 1, 1)
    assert OutcomeFlag.REDELIVERED in again.flags and OutcomeFlag.REDELIVERED not in first.flags
    assert again[4:5] + again[7:] == first[4:5] + first[7:], "value, payload and names are delivered again"
    rig.check()


def test_an_outcome_is_redelivered_when_its_member_falls_silent_before_it_is_done() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    mine = rig.do(a, watch(b"own"), work(b"k"), fire(b"k"))
    (first,) = a.delivered_for_group
    silence(rig, a)
    (again,) = b.delivered_for_group
    assert (again.operation, again.deliveries) == (first.operation, 2)
    rig.do(b, fire(b"own"))
    assert a.state(mine) is Outcome.COMPLETED, "silence changed something for the member's own operations"
    rig.check()


def test_a_late_acknowledgement_of_a_member_that_was_silent_is_refused() -> None:
    done_by_a_former_holder_is_refused(Rig())


def test_a_silent_member_that_comes_back_in_time_keeps_what_it_holds() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    rig.core.silence(a.slot, rig.now_ns)
    rig.core.revive(a.slot, rig.now_ns)
    rig.turn()
    assert not b.delivered_for_group
    assert answer(rig, a, a.delivered_for_group[0]) == 1
    rig.do(b, work(b"k"), fire(b"k"))
    assert len(a.delivered_for_group) == 1 and len(b.delivered_for_group) == 1, (
        "the member does not get the next outcome in its turn"
    )
    rig.do(b, work(b"k"), fire(b"k"))
    assert len(a.delivered_for_group) == 2
    rig.check()


def test_a_silent_member_whose_process_runs_keeps_what_it_holds_and_gets_nothing_more() -> None:
    a_silent_member_keeps_what_it_holds(Rig())


def test_outcomes_that_a_silent_member_kept_are_redelivered_when_it_loses_them() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    (first,) = a.delivered_for_group
    rig.core.silence(a.slot, rig.now_ns, keeps=True)
    rig.turn()
    assert not b.delivered_for_group
    silence(rig, a)
    (again,) = b.delivered_for_group
    assert (again.operation, again.deliveries) == (first.operation, 2)
    assert (rig.core.holds(a.slot), rig.core.holds(b.slot)) == (False, True)
    rig.check()


def test_a_start_makes_a_silent_member_live_and_it_has_what_it_kept() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    rig.core.silence(a.slot, rig.now_ns, keeps=True)
    rig.turn()
    rig.restart()
    rig.turn()
    record = rig.arena.record(Region.CLIENTS, a.slot)
    assert (record.state, record.flags) == (ClientState.LIVE, ClientFlag.LISTENS)
    assert not b.delivered_for_group
    assert answer(rig, a, a.delivered_for_group[0]) == 1
    rig.check()


def test_outcomes_that_a_silent_member_kept_are_redelivered_when_it_dies() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    rig.core.silence(a.slot, rig.now_ns, keeps=True)
    rig.close(a)
    rig.turn()
    assert [each.deliveries for each in b.delivered_for_group] == [2]
    rig.check()


def test_no_new_outcome_is_delivered_to_a_silent_member() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    silence(rig, a)
    rig.do(b, *(work(b"k") for _ in range(4)), fire(b"k"))
    assert (len(a.delivered_for_group), len(b.delivered_for_group)) == (0, 4)
    rig.check()


def test_outcomes_held_by_a_member_that_stops_listening_are_requeued() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    rig.core.set_listening(a.slot, False, rig.now_ns)
    assert rig.core.next_wake_ns() <= rig.now_ns, "no turn is due to requeue the outcome"
    rig.turn()
    assert len(b.delivered_for_group) == 1
    assert rig.core.set_listening(a.slot, True, rig.now_ns)
    rig.do(b, work(b"k"), work(b"k"), fire(b"k"))
    assert (len(a.delivered_for_group), len(b.delivered_for_group)) == (2, 2)
    rig.check()


def test_a_member_listens_again_only_after_all_that_it_held_is_requeued() -> None:
    rig = Rig()
    a = worker(rig)
    rig.do(a, work(b"k"), fire(b"k"))
    rig.acknowledge()
    assert not rig.core.set_listening(a.slot, False, rig.now_ns)
    assert not rig.core.set_listening(a.slot, True, rig.now_ns), "the member would hold outcomes that it has lost"
    rig.turn()
    assert rig.core.set_listening(a.slot, True, rig.now_ns)
    rig.turn()
    assert [each.deliveries for each in a.delivered_for_group] == [1, 2]
    rig.check()


def test_an_outcome_held_by_a_live_member_is_delivered_to_no_other_member() -> None:
    delivered_to_one_at_a_time(Rig())


def test_the_delivery_count_stays_at_its_maximum() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    for _ in range(300):
        a, b = b, a
        silence(rig, b)
        rig.core.revive(b.slot, rig.now_ns)
    assert a.delivered_for_group[-1].deliveries == 255
    assert answer(rig, a, a.delivered_for_group[-1]) == 1
    rig.check()


def test_withdrawn_outcome_numbers_are_void_and_acknowledged_with_later_numbers() -> None:
    rig = Rig()
    a, b = worker(rig), worker(rig)
    own = rig.do(b, *(work(b"k") for _ in range(4)), fire(b"k"))
    rig.acknowledge(b)
    rig.core.begin_turn(rig.now_ns)
    rig.core.silence(a.slot, rig.now_ns)
    rig.resume()
    rig.core.end_turn(rig.now_ns)
    rig.report()
    assert len(b.delivered_for_group) == 4
    own = rig.do(a, watch(b"own"), fire(b"own"))
    assert a.state(own) is Outcome.COMPLETED
    rig.acknowledge()
    assert rig.arena.record(Region.CLIENTS, a.slot).acknowledged == 3
    assert not rig.core.unacknowledged(a.slot)
    rig.check()


# without a listener --------------------------------------------------------------------------------------------------


def test_a_late_listener_gets_the_undelivered_outcomes() -> None:
    rig = Rig()
    a = rig.client(group=WORKERS)
    rig.do(a, work(b"k", payload=b"1"), work(b"k", payload=b"2"), fire(b"k"))
    assert waiting(rig) == 2
    b = worker(rig)
    rig.turn()
    assert [each.payload for each in b.delivered_for_group] == [b"1", b"2"]
    assert {each.deliveries for each in b.delivered_for_group} == {1}
    rig.check()


def test_without_members_an_outcome_is_kept_and_then_dropped_and_counted() -> None:
    rig = Rig()
    a = worker(rig)
    rig.do(a, work(b"k"), work(b"later", timeout_ns=2 * HOUR), fire(b"k"))
    rig.turn(START_NS + 30 * 60 * S)
    rig.close(a)
    gone = START_NS + 30 * 60 * S
    assert waiting(rig) == 1
    assert rig.core.next_wake_ns() <= gone + GROUP_KEPT_NS
    rig.turn(gone + GROUP_KEPT_NS - 1)
    assert waiting(rig) == 1, "dropped early"
    rig.turn(gone + GROUP_KEPT_NS)
    assert (waiting(rig), rig.arena.count("group_outcomes_dropped")) == (0, 1)
    rig.turn(START_NS + 2 * HOUR)
    assert waiting(rig) == 1, "the retention of an outcome does not begin when it settles"
    assert rig.core.next_wake_ns() == START_NS + 2 * HOUR + GROUP_KEPT_NS
    rig.turn(START_NS + 2 * HOUR + GROUP_KEPT_NS)
    assert (waiting(rig), rig.arena.count("group_outcomes_dropped")) == (0, 2)
    assert rig.core.next_wake_ns() == timerd.core.NEVER
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


def test_a_group_with_any_member_keeps_undelivered_outcomes_past_the_retention() -> None:
    rig = Rig()
    a = rig.client(group=WORKERS)
    rig.do(a, work(b"k"), fire(b"k"))
    rig.turn(START_NS + 3 * GROUP_KEPT_NS)
    assert waiting(rig) == 1
    rig.restart()
    rig.turn()
    assert waiting(rig) == 1


def test_a_restart_changes_nothing_for_a_group() -> None:
    rig = Rig(clients=6)
    a, b = worker(rig), worker(rig)
    rig.do(b, *(work(b"k", payload=b"%d" % n) for n in range(6)), work(b"l"), fire(b"k"))
    rig.acknowledge(a)
    assert answer(rig, a, a.delivered_for_group[0]) == 1
    silence(rig, b)
    assert len(a.delivered_for_group) == 6
    delivered = [each.operation for each in a.delivered_for_group]
    rig.restart()
    rig.check()
    assert rig.arena.record(Region.CLIENTS, b.slot).state == ClientState.LIVE, "a start must begin the lease anew"
    rig.turn()
    assert [each.operation for each in a.delivered_for_group] == delivered, (
        "delivered outcomes are not delivered again under a new number"
    )
    assert rig.core.held(a.slot, delivered) == delivered[1:]
    rig.do(b, fire(b"l"))
    assert len(a.delivered_for_group) + len(b.delivered_for_group) == 3 + 3 + 3 + 1
    for each in a.delivered_for_group[1:]:
        answer(rig, a, each)
    for each in b.delivered_for_group:
        answer(rig, b, each)
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


# charges, names, rights ----------------------------------------------------------------------------------------------


def test_a_group_has_the_quota_of_a_client_and_adoption_is_above_it() -> None:
    rig = Rig(quota_operations=3, clients=6)
    a, b = rig.client(Orphans.GROUP, group=WORKERS), rig.client(group=WORKERS)
    rig.do(a, *(watch(b"own") for _ in range(3)))
    rig.do(b, *(work(b"k") for _ in range(3)))
    refused = rig.do(b, work(b"k"))
    found = b.answer(refused)
    assert found is not None and found.code == ErrorCode.QUOTA_EXCEEDED
    assert found.value == Met.OPERATIONS << MET_SHIFT | 3
    assert rig.do(b, watch(b"k")) and b.answer(b.issued) is None, "the client's own quota was charged"
    rig.close(a)
    group = rig.arena.record(Region.GROUPS, 0)
    assert (group.pending, group.members) == (6, 1)
    c = worker(rig)
    rig.do(c, fire(b"k"), fire(b"own"))
    assert len(c.delivered_for_group) == 6
    refused = rig.do(b, work(b"k"))
    assert (found := b.answer(refused)) and found.code == ErrorCode.QUOTA_EXCEEDED, (
        "an outcome that is not done does not count"
    )
    for delivered in c.delivered_for_group[:4]:
        answer(rig, c, delivered)
    assert rig.do(b, work(b"k")) and b.answer(b.issued) is None
    rig.check()


def test_a_value_beyond_the_groups_byte_quota_is_dropped_and_flagged() -> None:
    rig = Rig(quota_bytes=1000)
    a = worker(rig)
    rig.do(a, work(b"k", payload=b"p" * 600), work(b"k"), fire(b"k", value=b"v" * 300))
    values = [(each.value, OutcomeFlag.VALUE_DROPPED in each.flags) for each in a.delivered_for_group]
    assert values == [(b"v" * 300, False), (b"", True)]
    refused = rig.do(a, work(b"k", payload=b"p" * 200))
    assert (found := a.answer(refused)) and found.code == ErrorCode.QUOTA_EXCEEDED
    assert rig.arena.record(Region.GROUPS, 0).bytes_held == 900
    assert rig.arena.record(Region.CLIENTS, a.slot).bytes_held == 0
    rig.check()


def test_a_registration_for_the_group_is_answered_and_cancelled_by_id_alone() -> None:
    rig = Rig()
    a, b = rig.client(group=WORKERS), worker(rig)
    number = rig.do(a, work(b"k", id=b"i" * 16, wants_answer=True))
    assert (found := a.answer(number)) and found.code == ErrorCode.NONE
    again = rig.do(b, work(b"k", id=b"i" * 16))
    assert (found := b.answer(again)) and found.code == ErrorCode.OPERATION_EXISTS
    assert (found := a.answer(rig.do(a, cancel(number, wait=True)))) and found.value == 0, (
        "a client cancelled the group's operation by number"
    )
    rig.do(a, OperationAct(CommandKind.CANCEL_ID, id=b"i" * 16))
    assert [each.state for each in b.delivered_for_group] == [Outcome.CANCELLED]
    rig.check()


def test_an_own_earlier_fire_does_not_complete_a_later_operation_for_the_group() -> None:
    rig = Rig()
    a = worker(rig)
    a.issue(fire(b"k"))
    a.issue(work(b"k", mark=a.mark()))
    rig.turn()
    assert rig.arena.count("pending", 0) == 1
    b = rig.client()
    mark = a.mark()
    rig.do(b, fire(b"k", value=b"v"))
    assert len(a.delivered_for_group) == 1
    rig.do(a, work(b"k", mark=mark))
    assert [each.value for each in a.delivered_for_group] == [b"v", b"v"], (
        "another client's fire that overtook the registration is lost"
    )
    rig.check()


def test_a_group_is_found_by_its_name_and_the_record_of_an_empty_group_is_reused() -> None:
    rig = Rig(groups=2)
    a = worker(rig)
    first = rig.core.group(WORKERS)
    assert rig.core.group(WORKERS) == first
    second = rig.core.group(b"second")
    assert second != first
    assert rig.core.group(b"third") == second, "nobody joined the group `second`"
    b = rig.client(Orphans.GROUP, group=b"third")
    with pytest.raises(ArenaFullError, match="2 of 2"):
        rig.core.group(b"fourth")
    rig.do(b, watch(b"k"))
    rig.close(b)
    with pytest.raises(ArenaFullError, match="2 of 2"):
        rig.core.group(b"fourth")
    rig.do(a, fire(b"k"))
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert rig.core.group(b"fourth") == second
    rig.check()
    for name in (b"", b"n" * 33):
        with pytest.raises(InvalidNameError):
            rig.core.group(name)


def test_a_client_without_a_group_cannot_listen_or_leave_operations_to_a_group() -> None:
    rig = Rig()
    a = rig.client()
    with pytest.raises(NotAMemberError):
        rig.core.set_listening(a.slot, True, rig.now_ns)
    with pytest.raises(NotAMemberError):
        rig.client(Orphans.GROUP)
    with pytest.raises(NotAMemberError):
        rig.client(listens=True)
    assert rig.core.held(a.slot, [1, 2]) == []


# bounds --------------------------------------------------------------------------------------------------------------


def test_delivery_to_members_is_cut_into_turns() -> None:
    rig = Rig(capacity=4096, quota_operations=4096, nodes=8192, clients=24)
    a = rig.client(group=WORKERS)
    rig.do(a, *(work(b"k") for _ in range(2000)), fire(b"k"))
    assert waiting(rig) == 2000
    members = [worker(rig) for _ in range(20)]
    touched = rig.resume_in_turns(100)
    assert max(touched) <= 110 and len(touched) >= 20, touched
    rig.turn()
    assert {len(each.delivered_for_group) for each in members} == {100}
    rig.check()


def test_dropping_old_outcomes_is_cut_into_turns() -> None:
    rig = Rig(capacity=4096, quota_operations=4096, nodes=8192)
    a = rig.client(group=WORKERS)
    rig.do(a, *(work(b"k") for _ in range(2000)), fire(b"k"))
    rig.close(a)
    rig.now_ns += GROUP_KEPT_NS
    touched = rig.resume_in_turns(100)
    assert max(touched) <= 140 and len(touched) >= 20, (
        "a step may exceed its bound by a way through a tree of 2,000 outcomes"
    )
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()
