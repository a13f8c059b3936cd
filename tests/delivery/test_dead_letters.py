"""Calls in the core that end processes, that are given up, and that are kept as dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.rig.commands import Key, OperationAct, PhaseAct, Register
from support.rig.frames import DeliveredForGroup
from support.rig.groups import HOUR, ID, NEW, answered, ask, call, cancel_id, due, handler
from support.rig.harness import MS, Client, Rig, S, begun, done, fire, given_up
from support.rig.rules import (
    a_call_that_another_member_runs_is_not_given_up,
    held,
    the_end_of_a_process_is_counted,
)
from timerd_shm.declare.errors import ArenaFullError, ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import CALL_REASON_SIZE_MAX, GROUP_KEPT_NS, SCHEDULE_KEPT_NS
from timerd_shm.declare.records import BLOCK_DATA, OpRecord
from timerd_shm.declare.states import CallPhase, Condition
from timerd_shm.declare.wire import CommandKind
from timerd_shm.read import walk
from timerd_shm.read.reader import ArenaReader


def fails(rig: Rig, client: Client, delivery: DeliveredForGroup, reason: bytes = b"why") -> None:
    """The member begins the call, gives it up and acknowledges it: then it is a dead letter."""
    assert ask(rig, client, begun(delivery)) == CallPhase.HANDLER
    assert ask(rig, client, given_up(delivery, reason)) == CallPhase.FAILED
    assert ask(rig, client, done(delivery)) == 1


def letter(rig: Rig, client: Client, reason: bytes = b"why", **more: Any) -> int:
    """The op id of a new dead letter, which the member makes."""
    delivery = due(rig, client, **more)
    fails(rig, client, delivery, reason)
    return delivery.operation


def letters(rig: Rig, group: int = 0) -> list[tuple[int, bytes, bytes]]:
    """The dead letters of a group, in their order: number, reason and payload."""
    with ArenaReader.from_bytes(bytes(rig.memory)) as reader:
        records: list[OpRecord] = [reader.ops[index] for index in walk.dead_letters(reader, group)]
        return [(op.outcome_number, reader.blob(op.value), reader.blob(op.payload)) for op in records]


def drop(operation: int) -> OperationAct:
    return OperationAct(CommandKind.GROUP_ACK, operation, of_letter=True, wants_answer=True)


def ops(rig: Rig) -> int:
    return rig.arena.in_use()["OPS"]


# what is counted ------------------------------------------------------------------------------------------------------


def test_the_end_of_a_process_in_which_a_call_ran_is_counted_up_to_255() -> None:
    the_end_of_a_process_is_counted(Rig(), 260)


@pytest.mark.parametrize("end", ["close", "silence", "takes none"])
def test_an_end_that_is_not_the_end_of_the_process_is_not_counted(end: str) -> None:
    rig = Rig()
    first, second = handler(rig, b"job"), handler(rig, b"job")
    rig.do(first, call())
    holder, other = held(first, second)
    assert ask(rig, holder, begun(holder.delivered_for_group[0])) == 1
    if end == "close":
        rig.close(holder, goodbye=True)
    elif end == "silence":
        rig.core.silence(holder.slot, rig.now_ns)
    else:
        rig.core.set_calls(holder.slot, 0, 0, [], rig.now_ns)
    rig.turn()
    delivery = other.delivered_for_group[-1]
    assert (delivery.deliveries, delivery.phase, delivery.ended) == (2, CallPhase.HANDLER, 0)
    assert rig.arena.count("calls_ended_process") == 0
    rig.check()


def test_a_silent_process_that_ends_later_is_not_counted_for_a_call_that_was_requeued() -> None:
    rig = Rig()
    first, second = handler(rig, b"job"), handler(rig, b"job")
    rig.do(first, call())
    holder, other = held(first, second)
    rig.do(holder, begun(holder.delivered_for_group[0]))
    rig.core.silence(holder.slot, rig.now_ns)
    rig.turn()
    rig.do(other, begun(other.delivered_for_group[-1]))
    rig.close(holder)
    rig.turn()
    assert rig.arena.count("calls_ended_process") == 0
    rig.check()


def test_at_the_end_of_a_process_only_calls_that_ran_in_it_are_counted() -> None:
    """Three calls in one process: one runs, one has not begun, and one is over."""
    rig = Rig()
    victim = handler(rig, b"job", most=3)
    rig.do(victim, *(call(payload=b"%d" % number) for number in range(3)))
    ran, waited, over = victim.delivered_for_group
    rig.do(victim, begun(ran), begun(over), done(over))
    rig.close(victim)
    heir = handler(rig, b"job", most=3)
    rig.turn()
    counted = {delivery.payload: (delivery.phase, delivery.ended) for delivery in heir.delivered_for_group}
    assert counted == {ran.payload: (CallPhase.HANDLER, 1), waited.payload: (CallPhase.DUE, 0)}
    assert rig.arena.count("calls_ended_process") == 1
    rig.check()


def test_a_phase_has_a_count_of_its_own() -> None:
    rig = Rig()
    delivery = None
    for phase in (CallPhase.HANDLER, CallPhase.HANDLER, CallPhase.ON_FAILURE):
        member = handler(rig, b"job")
        rig.turn() if delivery else rig.do(member, call())
        (delivery,) = member.delivered_for_group
        assert ask(rig, member, begun(delivery, phase)) == phase
        rig.close(member)
    heir = handler(rig, b"job")
    rig.turn()
    (delivery,) = heir.delivered_for_group
    assert (delivery.phase, delivery.ended, delivery.deliveries) == (CallPhase.ON_FAILURE, 1, 4)
    rig.check()


def test_the_count_outlives_the_daemon() -> None:
    rig = Rig()
    victim = handler(rig, b"job")
    rig.do(victim, call(id=ID))
    rig.do(victim, begun(victim.delivered_for_group[0], limit_ns=5 * S))
    rig.acknowledge()
    rig.restart()
    rig.check()
    rig.close(victim)
    heir = handler(rig, b"job")
    rig.turn()
    assert [(delivery.phase, delivery.ended) for delivery in heir.delivered_for_group] == [(CallPhase.HANDLER, 1)]
    rig.check()


def test_the_arena_shows_since_when_a_call_runs_and_how_long_it_may_run() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member)
    began_ns = rig.now_ns + 7 * MS
    rig.do(member, begun(delivery, limit_ns=5 * S), now_ns=began_ns)
    (op,) = rig.arena.records(Region.OPS)
    assert (op.progress, op.failed) == (began_ns, 5 * S)
    rig.core.set_calls(member.slot, 0, 0, [], rig.now_ns)
    rig.turn()
    (op,) = rig.arena.records(Region.OPS)
    assert (op.progress, op.failed) == (0, 0)
    rig.check()


# rights of holders ----------------------------------------------------------------------------------------------------


def test_only_the_holder_begins_and_a_former_holder_gets_0() -> None:
    rig = Rig()
    first, second = handler(rig, b"job"), handler(rig, b"job")
    rig.do(first, call())
    holder, other = held(first, second)
    (delivery,) = holder.delivered_for_group
    assert ask(rig, other, begun(delivery)) == 0
    rig.core.silence(holder.slot, rig.now_ns)
    rig.turn()
    rig.core.revive(holder.slot, rig.now_ns)
    assert ask(rig, holder, begun(delivery)) == 0
    assert ask(rig, other, begun(delivery)) == 1
    assert ask(rig, other, done(delivery)) == 1
    assert ask(rig, other, begun(delivery)) == 0
    rig.check()


def test_a_lower_phase_changes_nothing_and_the_answer_is_the_phase() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member)
    assert ask(rig, member, begun(delivery, CallPhase.ON_FAILURE)) == CallPhase.ON_FAILURE
    assert ask(rig, member, begun(delivery)) == CallPhase.ON_FAILURE
    rig.close(member)
    heir = handler(rig, b"job")
    rig.turn()
    assert [(delivery.phase, delivery.ended) for delivery in heir.delivered_for_group] == [(CallPhase.ON_FAILURE, 1)]


def test_a_holder_learns_that_a_member_before_it_has_given_the_call_up() -> None:
    """Otherwise it would neither run the call nor acknowledge it, and would hold it for ever."""
    rig = Rig()
    first, second = handler(rig, b"job"), handler(rig, b"job")
    rig.do(first, call())
    holder, other = held(first, second)
    (delivery,) = holder.delivered_for_group
    rig.do(holder, begun(delivery))
    rig.core.silence(holder.slot, rig.now_ns)
    rig.turn()
    rig.core.revive(holder.slot, rig.now_ns)
    assert ask(rig, holder, given_up(delivery, b"why")) == CallPhase.FAILED
    assert ask(rig, other, begun(delivery)) == CallPhase.FAILED
    assert ask(rig, other, done(delivery)) == 1
    assert letters(rig) == [(1, b"why", b"")]
    rig.check()


def test_a_call_that_another_member_runs_is_not_given_up() -> None:
    a_call_that_another_member_runs_is_not_given_up(Rig())


@pytest.mark.parametrize("phase", [0, 4, 255])
def test_a_phase_out_of_range_is_refused(phase: int) -> None:
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member)
    refused = answered(rig, member, PhaseAct(delivery.operation, phase))  # type: ignore[arg-type]
    assert (refused.code, refused.value) == (ErrorCode.INVALID_VALUE, CallPhase.FAILED), (
        "the refusal names the highest phase"
    )
    assert ask(rig, member, begun(delivery)) == 1
    rig.check()


@pytest.mark.parametrize(
    ("phase", "size"), [(CallPhase.FAILED, CALL_REASON_SIZE_MAX + 1), (CallPhase.HANDLER, 1), (CallPhase.ON_FAILURE, 9)]
)
def test_a_reason_is_refused_if_it_is_too_long_or_its_phase_has_none(phase: CallPhase, size: int) -> None:
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member)
    refused = answered(rig, member, PhaseAct(delivery.operation, phase, reason=bytes(size)))
    most = CALL_REASON_SIZE_MAX if phase == CallPhase.FAILED else 0
    assert (refused.code, refused.value) == (ErrorCode.INVALID_VALUE, most)
    fails(rig, member, delivery, bytes(CALL_REASON_SIZE_MAX))
    assert letters(rig) == [(1, bytes(CALL_REASON_SIZE_MAX), b"")]
    rig.check()


@pytest.mark.parametrize("phase", [CallPhase.HANDLER, CallPhase.ON_FAILURE, CallPhase.FAILED])
def test_only_a_due_call_of_the_own_group_has_a_phase(phase: CallPhase) -> None:
    rig = Rig()
    member, other = handler(rig, b"job", most=2), rig.client(group=b"others", listens=True)
    delivery = due(rig, member)
    pending = rig.arena.in_use()["OPS"]
    rig.do(member, call(timeout_ns=HOUR), Register(keys_of_call(b"own"), timeout_ns=HOUR))
    rig.do(other, Register(keys_of_call(b"k"), timeout_ns=0, for_group=True))
    (outcome,) = other.delivered_for_group
    gone = letter(rig, member)
    foreign = (delivery.operation, gone, pending, pending + 1, outcome.operation, 1 << 31, (1 << 64) - 1)
    for operation in foreign:
        assert ask(rig, other, PhaseAct(operation, phase)) == 0
    for operation in (*foreign[1:], delivery.operation + (1 << 32)):
        assert ask(rig, member, PhaseAct(operation, phase)) == 0
    assert ask(rig, member, begun(delivery)) == 1
    rig.check()


def keys_of_call(name: bytes) -> Any:
    return call(name).keys


def test_a_call_has_one_name_and_no_other_condition() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    single = call(wants_answer=True)
    for wrong in (
        replace(single, keys=(Key(b"job"), Key(b"more"))),
        replace(single, keys=(Key(b"job", target=3),)),
        replace(single, condition=Condition.TOTAL, total=3),
    ):
        assert answered(rig, member, wrong).code == ErrorCode.INVALID_CONDITION, wrong
    assert ops(rig) == 0
    rig.check()


# dead letters ---------------------------------------------------------------------------------------------------------


def test_a_call_that_was_given_up_is_a_dead_letter_when_it_is_done() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    for number in (1, 2):
        delivery = due(rig, member, payload=b"%d" % number, id=ID, if_exists=NEW)
        rig.do(member, begun(delivery), given_up(delivery, b"reason %d" % number))
        assert len(letters(rig)) == number - 1, "the call is not done"
        finished = OperationAct(
            CommandKind.GROUP_ACK, delivery.operation, id=ID, frees_id=True, registered_ns=rig.now_ns, wants_answer=True
        )
        assert ask(rig, member, finished) == 1
    assert letters(rig) == [(1, b"reason 1", b"1"), (2, b"reason 2", b"2")]
    assert (rig.arena.count("dead_letters"), rig.arena.count("group_outcomes_dropped")) == (2, 0)
    rig.check()
    rig.acknowledge()
    rig.restart()
    assert [number for number, _, _ in letters(rig)] == [1, 2], "a restart changes the order"
    letter(rig, member)
    assert [number for number, _, _ in letters(rig)] == [1, 2, 3]
    rig.check()


def test_a_dead_letter_holds_no_id_however_it_became_one() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    letter(rig, member, id=ID)  # acknowledged without its id
    assert not rig.arena.records(Region.OPS)[0].id_record
    again = call(id=ID, wants_answer=True, if_exists=NEW)
    assert answered(rig, member, again).code == ErrorCode.NONE
    delivery = member.delivered_for_group[-1]
    rig.do(member, begun(delivery), given_up(delivery))
    follower = call(id=ID, timeout_ns=HOUR, if_exists="replace", follows=delivery.operation, wants_answer=True)
    assert answered(rig, member, follower).code == ErrorCode.NONE
    assert answered(rig, member, again).code == ErrorCode.OPERATION_EXISTS, "the following call has the id"
    assert ask(rig, member, cancel_id()) == 1
    assert len(letters(rig)) == 2
    rig.check()


def test_a_call_that_nobody_served_becomes_a_dead_letter_and_frees_its_id() -> None:
    rig = Rig()
    member = rig.client(group=b"workers")
    rig.do(member, call(id=ID, payload=b"p"))
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert letters(rig) == [(1, b"", b"p")]
    assert answered(rig, member, call(id=ID, wants_answer=True, if_exists=NEW)).code == ErrorCode.NONE
    rig.check()


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_group_keeps_its_newest_dead_letters_up_to_a_number(kept: int) -> None:
    rig = Rig(dead_letters=kept)
    member = handler(rig, b"job")
    for number in range(5):
        letter(rig, member, payload=b"%d" % number)
    assert [payload for _, _, payload in letters(rig)] == [b"%d" % number for number in range(5 - kept, 5)]
    assert (rig.arena.count("dead_letters"), rig.arena.count("dead_letters_dropped")) == (5, 5 - kept)
    assert ops(rig) == kept
    rig.check()


def test_a_dead_letter_is_retried_once_by_a_registration_that_follows_it() -> None:
    rig = Rig()
    member, other = handler(rig, b"job"), rig.client(group=b"others")
    first, second = (letter(rig, member, payload=b"%d" % number) for number in range(2))
    retried = call(follows=first, of_letter=True, wants_answer=True, payload=b"again")
    assert answered(rig, other, retried).code == ErrorCode.UNKNOWN_OPERATION, "the dead letter is another group's"
    assert answered(rig, member, call(follows=first, wants_answer=True)).code == ErrorCode.UNKNOWN_OPERATION
    assert answered(rig, member, retried).code == ErrorCode.NONE
    assert member.delivered_for_group[-1].payload == b"again"
    assert answered(rig, member, retried).code == ErrorCode.UNKNOWN_OPERATION
    assert [payload for _, _, payload in letters(rig)] == [b"1"]
    delivery = member.delivered_for_group[-1]
    assert answered(rig, member, call(follows=delivery.operation, of_letter=True)).code == ErrorCode.UNKNOWN_OPERATION
    assert ask(rig, member, drop(delivery.operation)) == 0, "an operation that is no dead letter was dropped"
    assert second
    rig.check()


def test_a_dead_letter_is_dropped_once_and_only_as_a_dead_letter() -> None:
    rig = Rig()
    member, other = handler(rig, b"job"), rig.client(group=b"others")
    before = rig.arena.in_use()
    dead = letter(rig, member, payload=bytes(300))
    assert ask(rig, other, drop(dead)) == 0
    assert ask(rig, member, OperationAct(CommandKind.GROUP_ACK, dead, wants_answer=True)) == 0
    freed = OperationAct(CommandKind.GROUP_ACK, dead, id=ID, frees_id=True, wants_answer=True)
    assert ask(rig, member, freed) == 0
    assert len(letters(rig)) == 1
    assert ask(rig, member, drop(dead)) == 1
    assert ask(rig, member, drop(dead)) == 0
    after = rig.arena.in_use()
    assert [after[region] - before[region] for region in ("OPS", "NODES", "BLOCKS")] == [0, 0, 0]
    rig.check()


@pytest.mark.parametrize("knobs", [{"quota_outcomes": 3}, {"blocks": 16}])
def test_dead_letters_give_way_to_a_registration_that_would_be_refused(knobs: dict[str, Any]) -> None:
    rig = Rig(**knobs)
    member = handler(rig, b"job")
    payload = bytes(200)
    for _ in range(12):
        letter(rig, member, payload=payload)
    assert rig.arena.count("dead_letters_dropped"), "no dead letter had to give way"
    assert 0 < len(letters(rig)) < 12
    rig.check()


def test_no_more_dead_letters_give_way_than_a_registration_needs() -> None:
    rig = Rig(quota_bytes=2_000)
    member = handler(rig, b"job")
    for number in range(6):
        letter(rig, member, payload=bytes([number]) * 297)  # and its reason: 300 bytes each
    assert answered(rig, member, call(timeout_ns=HOUR, payload=bytes(700), wants_answer=True)).code == ErrorCode.NONE
    assert [payload[0] for _, _, payload in letters(rig)] == [2, 3, 4, 5], "2,000 - 1,800 + 2 * 300 is enough"
    rig.check()


@pytest.mark.parametrize(
    ("knobs", "size"),
    [
        ({"quota_bytes": 2_000}, 2_001),
        ({"quota_bytes": 2_000}, 1_900),
        ({"blocks": 16}, 60_000),
        ({"blocks": 16}, 14 * BLOCK_DATA),
    ],
    ids=str,
)
def test_dead_letters_stay_if_a_registration_would_be_refused_even_without_them(
    knobs: dict[str, Any], size: int
) -> None:
    """Pending calls hold the rest of the quota, or of the arena."""
    rig = Rig(**knobs)
    member = handler(rig, b"job")
    for number in range(3):
        letter(rig, member, payload=b"%d" % number)
    for _ in range(3):
        rig.do(member, call(timeout_ns=HOUR, payload=bytes(100)))
    kept = letters(rig)
    refused = answered(rig, member, call(timeout_ns=HOUR, payload=bytes(size), wants_answer=True))
    assert refused.code in (ErrorCode.QUOTA_EXCEEDED, ErrorCode.ARENA_FULL, ErrorCode.PAYLOAD_TOO_LARGE)
    assert letters(rig) == kept
    rig.check()


def test_dead_letters_stay_where_the_id_of_a_registration_is_taken() -> None:
    rig = Rig(quota_operations=4)
    member = handler(rig, b"job")
    for number in range(2):
        letter(rig, member, payload=b"%d" % number)
    rig.do(member, call(id=ID, timeout_ns=HOUR), call(timeout_ns=HOUR))
    kept = letters(rig)
    refused = answered(rig, member, call(id=ID, timeout_ns=HOUR, wants_answer=True))
    assert refused.code == ErrorCode.QUOTA_EXCEEDED
    assert letters(rig) == kept and len(kept) == 2
    rig.check()


@pytest.mark.parametrize("follows", [False, True])
def test_dead_letters_give_way_where_the_arena_has_no_record_left(follows: bool) -> None:
    """Otherwise, in an arena full of dead letters, workers would for ever hold calls that have to be retried."""
    rig = Rig(capacity=32, quota_operations=32)
    member = handler(rig, b"job", most=2)
    delivery = due(rig, member, payload=b"held")
    for number in range(31):
        letter(rig, member, payload=b"%d" % number)
    assert ops(rig) == 32
    another = call(timeout_ns=HOUR, wants_answer=True, follows=delivery.operation if follows else 0)
    assert answered(rig, member, another).code == ErrorCode.NONE
    assert [payload for _, _, payload in letters(rig)] == [b"%d" % number for number in range(1, 31)]
    rig.check()


def test_a_dead_letter_does_not_give_way_to_its_own_retry() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    dead = letter(rig, member, payload=b"p")
    retried = call(timeout_ns=HOUR, follows=dead, of_letter=True, wants_answer=True, payload=bytes(60_000))
    assert answered(rig, member, retried).code in (ErrorCode.ARENA_FULL, ErrorCode.QUOTA_EXCEEDED)
    assert letters(rig) == [(1, b"why", b"p")]
    rig.check()


def test_a_reason_for_which_there_is_no_room_is_left_out() -> None:
    rig = Rig(capacity=16, blocks=16, quota_bytes=1 << 20)
    member = handler(rig, b"job")
    rig.do(member, fire(b"k"))
    delivery = due(rig, member)
    for number in range(16):
        rig.do(member, Register(keys_of_call(b"k"), timeout_ns=HOUR, payload=bytes(48 + number)))
    fails(rig, member, delivery, bytes(CALL_REASON_SIZE_MAX))
    assert len(letters(rig)) == 1
    rig.check()


def test_the_next_call_is_not_refused_for_bytes_that_the_call_before_frees() -> None:
    """Otherwise every worker of a full group would for ever hold a call that has to be retried."""
    rig = Rig(quota_bytes=1_000)
    member = handler(rig, b"job")
    delivery = due(rig, member, payload=bytes(300))
    rig.do(member, call(payload=bytes(700), timeout_ns=HOUR))
    larger = call(payload=bytes(301), timeout_ns=HOUR, follows=delivery.operation, wants_answer=True)
    assert answered(rig, member, larger).code == ErrorCode.QUOTA_EXCEEDED
    assert answered(rig, member, replace(larger, payload=bytes(300))).code == ErrorCode.NONE
    assert ops(rig) == 2
    rig.check()


def test_a_group_of_dead_letters_alone_gives_way_to_another_group_after_a_week() -> None:
    """Otherwise a hundred groups that came and went would leave no room for any other group, for ever."""
    rig = Rig(groups=2)
    for name in (b"first", b"second"):
        member = handler(rig, b"job", group=name)
        letter(rig, member)
        rig.close(member, goodbye=True)
        rig.turn(rig.now_ns + S)
    rig.turn(rig.now_ns + SCHEDULE_KEPT_NS - 3 * S)
    with pytest.raises(ArenaFullError):
        rig.client(group=b"third")
    rig.turn(rig.now_ns + 3 * S)
    handler(rig, b"job", group=b"third")
    rig.check()
    assert rig.arena.count("dead_letters_dropped") == 1
    assert [len(letters(rig, group)) for group in range(2)] == [0, 1], "the first group was deserted for longer"


def test_a_group_with_dead_letters_alone_keeps_its_record_and_wakes_nobody() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    letter(rig, member)
    rig.close(member, goodbye=True)
    rig.turn(rig.now_ns + 3 * GROUP_KEPT_NS)
    assert rig.core.next_wake_ns() == rig.module.NEVER
    assert len(letters(rig)) == 1
    handler(rig, b"job")
    rig.check()
