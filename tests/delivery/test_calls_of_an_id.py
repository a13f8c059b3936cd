"""Due calls in the core, by their id: cancelled, replaced, one after the other, and made again."""

from __future__ import annotations

import pytest

from support.rig.commands import OperationAct, Register
from support.rig.groups import HOUR, ID, NEW, answered, ask, call, cancel_id, due, handler
from support.rig.harness import Rig, begun, done, given_up
from support.rig.rules import (
    all_names,
    calls_of_an_id_run_one_after_the_other,
    held,
    names,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import CallPhase, OpState
from timerd_shm.declare.wire import CommandKind


def ops(rig: Rig) -> int:
    return rig.arena.in_use()["OPS"]


# due calls by their id ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivered", [False, True])
def test_a_due_call_that_does_not_run_is_cancelled(delivered: bool) -> None:
    rig = Rig()
    member = handler(rig, b"job") if delivered else rig.client(group=b"workers")
    rig.do(member, call(id=ID))
    assert ask(rig, member, cancel_id()) == 1
    assert ops(rig) == 0
    assert answered(rig, member, cancel_id()).code == ErrorCode.UNKNOWN_OPERATION
    for delivery in member.delivered_for_group:
        assert ask(rig, member, begun(delivery)) == 0, "the cancelled call runs"
        assert ask(rig, member, done(delivery)) == 0
    assert answered(rig, member, call(id=ID, wants_answer=True, if_exists=NEW)).code == ErrorCode.NONE
    rig.check()


def test_a_call_that_runs_or_was_given_up_is_not_cancelled() -> None:
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member, id=ID)
    for act in (begun(delivery), begun(delivery, CallPhase.ON_FAILURE), given_up(delivery)):
        assert ask(rig, member, act) == act.phase
        assert answered(rig, member, cancel_id()).code == ErrorCode.UNKNOWN_OPERATION
    rig.do(member, done(delivery))
    assert rig.arena.count("dead_letters") == 1
    assert answered(rig, member, cancel_id()).code == ErrorCode.UNKNOWN_OPERATION, "a dead letter is not cancelled"
    rig.check()


def test_a_call_that_ran_in_a_process_that_ended_is_cancelled() -> None:
    rig = Rig()
    victim, other = handler(rig, b"job"), rig.client(group=b"workers")
    rig.do(victim, begun(due(rig, victim, id=ID)))
    rig.close(victim)
    assert ask(rig, other, cancel_id()) == 1
    assert ops(rig) == 0
    rig.check()


@pytest.mark.parametrize("timeout_ns", [0, HOUR])
@pytest.mark.parametrize("delivered", [False, True])
def test_a_due_call_that_does_not_run_is_replaced(delivered: bool, timeout_ns: int) -> None:
    rig = Rig()
    member = handler(rig, b"job") if delivered else rig.client(group=b"workers")
    rig.do(member, call(id=ID, payload=b"old"))
    new = call(id=ID, payload=b"new", timeout_ns=timeout_ns, if_exists="replace", wants_answer=True)
    assert answered(rig, member, new).code == ErrorCode.NONE
    assert ops(rig) == 1
    rig.turn(rig.now_ns + timeout_ns)
    rig.turn()
    assert names(member) == [[b"old", b"new"] if delivered else []]
    for delivery in member.delivered_for_group:
        assert ask(rig, member, begun(delivery)) == (delivery.payload == b"new")
    rig.check()


def test_calls_of_an_id_run_one_after_the_other() -> None:
    calls_of_an_id_run_one_after_the_other(Rig())


def test_a_call_of_an_id_waits_while_another_one_is_held_though_both_were_requeued() -> None:
    """One call ran in a process that ended, and the other one waited for it. Two members must not hold both at once."""
    rig = Rig()
    victim = handler(rig, b"job")
    old = due(rig, victim, id=ID, payload=b"old")
    rig.do(victim, begun(old))
    rig.do(victim, call(id=ID, payload=b"new", if_exists="replace"))
    rig.close(victim)
    heirs = [handler(rig, b"job") for _ in range(2)]
    rig.turn()
    assert len(all_names(*heirs)) == 1
    holder, other = held(*heirs)
    rig.do(holder, begun(holder.delivered_for_group[0]))
    rig.turn()
    assert names(other) == [[]]
    rig.do(holder, done(holder.delivered_for_group[0]))
    rig.turn()
    assert sorted(all_names(*heirs)) == [b"new", b"old"]
    rig.check()


def test_waiting_calls_of_an_id_are_delivered_when_the_held_call_is_withdrawn() -> None:
    rig = Rig()
    victim = handler(rig, b"job")
    old = due(rig, victim, id=ID, payload=b"old")
    rig.do(victim, begun(old))
    rig.do(victim, call(id=ID, payload=b"new", if_exists="replace"))
    rig.core.silence(victim.slot, rig.now_ns)
    rig.turn()
    heir = handler(rig, b"job")
    rig.turn()
    assert names(heir) == [[b"new"]]
    assert ask(rig, heir, cancel_id()) == 1, "the newer call is not cancelled"
    rig.turn()
    assert names(heir) == [[b"new", b"old"]]
    assert ask(rig, heir, begun(heir.delivered_for_group[1])) == 1
    rig.check()


def test_a_restart_keeps_the_running_call_of_an_id() -> None:
    rig = Rig()
    member, other = handler(rig, b"job"), handler(rig, b"job")
    rig.do(member, call(id=ID, payload=b"old"))
    holder, idle = held(member, other)
    rig.do(holder, begun(holder.delivered_for_group[0]))
    rig.acknowledge()
    rig.restart()
    rig.check()
    rig.do(idle, call(id=ID, payload=b"new", if_exists="replace"))
    assert names(idle) == [[]]
    rig.do(holder, done(holder.delivered_for_group[0]))
    rig.turn()
    assert [b"new"] in (names(idle)[0], names(holder)[0][1:])
    rig.check()


# again ----------------------------------------------------------------------------------------------------------------


def again(payload: bytes = b"again", timeout_ns: int = 0) -> Register:
    return call(id=ID, payload=payload, timeout_ns=timeout_ns, if_exists="again", wants_answer=True)


@pytest.mark.parametrize("timeout_ns", [0, HOUR])
def test_a_call_that_is_made_again_follows_the_running_one_and_a_second_one_is_dropped(timeout_ns: int) -> None:
    rig = Rig()
    member = handler(rig, b"job", most=3)
    delivery = due(rig, member, id=ID, payload=b"first")
    rig.do(member, begun(delivery))
    assert answered(rig, member, again(timeout_ns=timeout_ns)).code == ErrorCode.NONE
    assert answered(rig, member, again(b"dropped")).code == ErrorCode.OPERATION_EXISTS
    rig.turn(rig.now_ns + timeout_ns)
    assert names(member) == [[b"first"]]
    rig.do(member, done(delivery))
    rig.turn()
    assert names(member) == [[b"first", b"again"]]
    rig.check()


@pytest.mark.parametrize("state", ["pending", "due", "delivered", "none", "done"])
def test_a_call_is_made_again_only_beside_a_running_call(state: str) -> None:
    rig = Rig()
    member = handler(rig, b"other" if state == "due" else b"job")
    if state in ("pending", "due", "delivered"):
        rig.do(member, call(id=ID, timeout_ns=HOUR if state == "pending" else 0))
    if state == "done":
        delivery = due(rig, member, id=ID)
        settled_ns = rig.now_ns
        rig.do(
            member,
            begun(delivery),
            OperationAct(CommandKind.GROUP_ACK, delivery.operation, id=ID, frees_id=True, registered_ns=settled_ns),
        )
    expected = ErrorCode.NONE if state in ("none", "done") else ErrorCode.OPERATION_EXISTS
    assert answered(rig, member, again()).code == expected
    rig.check()


@pytest.mark.parametrize("how", ["given up", "silent"])
def test_a_call_that_is_made_again_is_kept_beside_a_call_that_has_begun_and_may_be_over_soon(how: str) -> None:
    """The request for one more call must not be lost: the call that has begun may not have seen the reason for it."""
    rig = Rig()
    member = handler(rig, b"job")
    delivery = due(rig, member, id=ID, payload=b"first")
    rig.do(member, begun(delivery))
    if how == "given up":
        rig.do(member, given_up(delivery))
    else:
        rig.core.silence(member.slot, rig.now_ns)
        rig.turn()
        rig.core.revive(member.slot, rig.now_ns)
    assert answered(rig, member, again()).code == ErrorCode.NONE
    assert answered(rig, member, again(b"dropped")).code == ErrorCode.OPERATION_EXISTS
    rig.do(member, done(delivery) if how == "given up" else call(follows=delivery.operation, timeout_ns=HOUR))
    rig.turn()
    assert names(member)[0][-1] == b"again"
    rig.check()


def test_a_cancelled_pending_call_is_freed_and_delivered_to_nobody() -> None:
    rig = Rig()
    member = handler(rig, b"job", listens=True)
    rig.do(member, call(id=ID, timeout_ns=HOUR, payload=b"p"))
    assert ask(rig, member, cancel_id()) == 1
    rig.turn()
    assert not member.delivered_for_group
    assert ops(rig) == 0 and not [op for op in rig.arena.records(Region.OPS) if op.state != OpState.FREE]
    assert rig.arena.count("cancelled", 0) == 1
    rig.check()
