"""Calls, in the core: a member gets calls whose names it handles, as many at a time as it takes.

The other parts are about what is kept, and for how long.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import timerd.core
from support.rig.commands import Key, OperationAct, Register
from support.rig.groups import WORKERS, answer, call, handler
from support.rig.harness import MS, START_NS, Client, Rig, S, begun, cancel, done, fire
from timerd_shm.declare.errors import ArenaFullError, ErrorCode, InvalidKeyError, InvalidValueError, NotAMemberError
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import (
    CALLS_HELD_MAX,
    GROUP_HELD_MAX,
    GROUP_KEPT_NS,
    HANDLED_NAMES_MAX,
    NO_DEADLINE,
    SCHEDULE_KEPT_NS,
)
from timerd_shm.declare.states import OpState, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

HOUR = 3_600 * S


def delivered(*clients: Client) -> list[list[bytes]]:
    """For each client: the names of the calls, and the first keys of the outcomes, that it got."""
    return [[each.keys[0] for each in client.delivered_for_group] for client in clients]


def waiting(rig: Rig) -> int:
    """The number of groups' outcomes and calls that wait for a member."""
    return sum(
        op.state == OpState.SETTLED and op.group != 0 and op.client_generation == 0 and op.outcome_number == 0
        for op in rig.arena.records(Region.OPS)
    )


def finish(rig: Rig, client: Client, which: int = -1) -> None:
    number = rig.do(client, done(client.delivered_for_group[which]))
    found = client.answer(number)
    assert found is not None and found.value == 1
    rig.turn()


# the recipient --------------------------------------------------------------------------------------------------------


def test_outcomes_are_delivered_to_listening_members_and_calls_to_their_handlers() -> None:
    rig = Rig()
    listener = rig.client(group=WORKERS, listens=True)
    worker = handler(rig, b"job", most=8)
    rig.do(worker, *(call(b"job") for _ in range(3)))
    rig.do(worker, *(Register((Key(b"k"),), for_group=True) for _ in range(3)), fire(b"k"))
    assert delivered(listener, worker) == [[b"k"] * 3, [b"job"] * 3]
    rig.check()


def test_a_call_is_delivered_to_the_handler_of_its_name_that_holds_the_fewest() -> None:
    rig = Rig()
    old, new, both = handler(rig, b"a", most=9), handler(rig, b"b", most=9), handler(rig, b"a", b"b", most=9)
    rig.do(old, *(call(name) for name in (b"b", b"a", b"b", b"a", b"b", b"a", b"b", b"a")))
    names = delivered(old, new, both)
    assert set(names[0]) == {b"a"} and set(names[1]) == {b"b"} and set(names[2]) == {b"a", b"b"}
    assert sum(map(len, names)) == 8
    rig.check()


def test_a_call_without_a_handler_does_not_delay_other_calls() -> None:
    rig = Rig()
    worker = handler(rig, b"job", most=9)
    rig.do(worker, call(b"unknown"), call(b"job"), call(b"unknown too"), call(b"job"))
    assert delivered(worker) == [[b"job", b"job"]]
    late = handler(rig, b"unknown too", b"unknown", most=9)
    rig.turn()
    assert sorted(delivered(late)[0]) == [b"unknown", b"unknown too"]
    rig.check()


def test_a_member_gets_no_more_calls_at_a_time_than_it_accepts() -> None:
    rig = Rig()
    busy, idle = handler(rig, b"job"), handler(rig, b"job")
    rig.do(busy, *(call(b"job", payload=b"%d" % number) for number in range(4)))
    assert delivered(busy, idle) == [[b"job"], [b"job"]]
    rig.acknowledge()
    rig.turn()
    assert delivered(busy, idle) == [[b"job"], [b"job"]], "a call that was only received is not done yet"
    finish(rig, idle)
    finish(rig, idle)
    assert [each.payload for each in idle.delivered_for_group] == [b"1", b"2", b"3"]
    assert delivered(busy) == [[b"job"]]
    rig.check()


def test_held_calls_do_not_delay_outcomes_and_held_outcomes_do_not_delay_calls() -> None:
    rig = Rig(capacity=1024, quota_operations=1024)
    worker = handler(rig, b"job", listens=True)
    rig.do(worker, *(Register((Key(b"k"),), for_group=True) for _ in range(GROUP_HELD_MAX + 1)), fire(b"k"))
    rig.do(worker, call(b"job"), call(b"job"))
    assert len(worker.delivered_for_group) == GROUP_HELD_MAX + 1
    assert delivered(worker)[0][-1] == b"job"
    finish(rig, worker, 0)
    assert delivered(worker)[0][-1] == b"k"
    rig.check()


def test_a_change_of_the_handled_names_takes_effect_at_once() -> None:
    rig = Rig()
    worker = handler(rig, b"a", most=9)
    rig.do(worker, call(b"b"), call(b"c"))
    assert delivered(worker) == [[]]
    assert rig.core.set_calls(worker.slot, 9, 0, [b"a", b"b"], rig.now_ns) == 9
    rig.turn()
    assert delivered(worker) == [[b"b"]]
    assert rig.core.set_calls(worker.slot, 9, 0, [b"%d" % n for n in range(HANDLED_NAMES_MAX - 1)] + [b"c"], 0) == 9
    rig.turn()
    rig.do(worker, call(b"a"), call(b"254"))
    assert delivered(worker) == [[b"b", b"c", b"254"]]
    rig.check()


def test_a_handled_name_counts_in_its_purgatory_alone() -> None:
    rig = Rig()
    other = rig.core.purgatory(b"other")
    worker = handler(rig, b"job", most=9)
    rig.do(worker, call(b"job", purgatory=other))
    assert delivered(worker) == [[]]
    rig.core.set_calls(worker.slot, 9, other, [b"job"], rig.now_ns)
    rig.turn()
    assert delivered(worker) == [[b"job"]]


@pytest.mark.parametrize("end", ["dead", "silent", "takes none"])
def test_a_call_is_redelivered_to_the_next_member_that_handles_it(end: str) -> None:
    rig = Rig()
    first, other, next_one = handler(rig, b"job"), handler(rig, b"else"), handler(rig, b"job")
    rig.do(other, call(b"job"))
    if end == "dead":
        rig.close(first)
    elif end == "silent":
        rig.core.silence(first.slot, rig.now_ns)
    else:
        assert rig.core.set_calls(first.slot, 0, 0, [], rig.now_ns) == 0
        assert rig.core.set_calls(first.slot, 1, 0, [b"job"], rig.now_ns) == 0, (
            "the member takes calls again only after its calls were requeued"
        )
    rig.turn()
    assert delivered(other, next_one) == [[], [b"job"]]
    assert next_one.delivered_for_group[0].deliveries == 2
    if end == "takes none":
        assert rig.core.set_calls(first.slot, 1, 0, [b"job"], rig.now_ns) == 1
        rig.do(other, call(b"job"))
        assert delivered(first) == [[b"job", b"job"]]
    rig.check()


def test_a_member_gives_back_the_calls_that_have_not_begun_and_no_others() -> None:
    rig = Rig()
    first, next_one = handler(rig, b"job", most=3), handler(rig, b"else")
    rig.do(first, *(call(b"job") for _ in range(3)))
    runs, waits, received = first.delivered_for_group
    rig.do(first, begun(runs))
    assert rig.core.set_calls(first.slot, 3, 0, [], rig.now_ns) == 3
    listener = rig.client(group=WORKERS, listens=True)
    rig.do(listener, Register((Key(b"k"),), for_group=True), fire(b"k"))
    outcome = listener.delivered_for_group[0]
    given = [runs.operation, waits.operation, received.operation, outcome.operation, 0, 1 << 63]
    assert rig.core.give_back(next_one.slot, given, rig.now_ns) == []
    assert rig.core.give_back(listener.slot, given, rig.now_ns) == [], "an outcome is no call"
    assert rig.core.give_back(first.slot, given, rig.now_ns) == [waits.operation, received.operation]
    assert rig.core.give_back(first.slot, given, rig.now_ns) == []
    rig.check()
    assert rig.core.set_calls(next_one.slot, 4, 0, [b"job"], rig.now_ns) == 4
    rig.turn()
    assert [each.deliveries for each in next_one.delivered_for_group] == [2, 2]
    assert answer(rig, first, runs) == 1, "the call that runs stays"
    rig.check()


def test_a_silent_member_whose_process_runs_keeps_its_calls_and_gets_no_new_calls() -> None:
    rig = Rig()
    first, next_one = handler(rig, b"job", most=2), handler(rig, b"job", most=2)
    rig.do(next_one, call(b"job"))
    rig.core.silence(first.slot, rig.now_ns, keeps=True)
    rig.turn()
    rig.do(next_one, call(b"job"), call(b"job"))
    assert delivered(first, next_one) == [[b"job"], [b"job", b"job"]]
    rig.core.silence(first.slot, rig.now_ns)
    rig.turn()
    assert len(next_one.delivered_for_group) == 2, "a member that runs two calls gets no third"
    assert answer(rig, next_one, next_one.delivered_for_group[0]) == 1
    assert [each.deliveries for each in next_one.delivered_for_group] == [1, 1, 2]
    rig.check()


def test_a_restart_keeps_the_handled_names_of_each_member() -> None:
    rig = Rig()
    a, b = handler(rig, b"a", most=2), handler(rig, b"b", most=2)
    rig.do(a, call(b"a"), call(b"b"), call(b"c"))
    rig.acknowledge()
    rig.restart()
    rig.check()
    rig.turn()
    assert delivered(a, b) == [[b"a"], [b"b"]]
    rig.do(a, call(b"a"), call(b"a"), call(b"b"))
    assert delivered(a, b) == [[b"a"] * 2, [b"b"] * 2]
    finish(rig, a)
    assert delivered(a) == [[b"a"] * 3]
    assert delivered(c := handler(rig, b"c")) == [[]]
    rig.turn()
    assert delivered(c) == [[b"c"]]
    rig.check()


def test_matching_calls_to_members_is_bounded_in_a_turn_and_misses_no_call() -> None:
    rig = Rig(capacity=256, quota_operations=256, clients=8)
    names = [b"name %d" % number for number in range(100)]
    workers = [handler(rig, *names[number::4], most=GROUP_HELD_MAX) for number in range(4)]
    nobody = [b"nobody's %d" % number for number in range(50)]
    rig.budget = 3
    rig.do(workers[0], *(call(name) for pair in zip(nobody, names[::2], strict=True) for name in pair))
    rig.do(workers[0], *(call(name) for name in names[1::2]))
    assert sorted(name for each in delivered(*workers) for name in each) == sorted(names)
    assert waiting(rig) == len(nobody)
    rig.check()


def test_impossible_handled_names_are_refused_by_name() -> None:
    rig = Rig(capacity=16, blocks=16)
    member, single = rig.client(group=WORKERS), rig.client()
    core, now_ns = rig.core, rig.now_ns
    with pytest.raises(NotAMemberError, match="group=NAME"):
        core.set_calls(single.slot, 1, 0, [b"job"], now_ns)
    with pytest.raises(InvalidValueError, match=rf"257 names \({HANDLED_NAMES_MAX} at most\)"):
        core.set_calls(member.slot, 1, 0, [b"%d" % n for n in range(257)], now_ns)
    with pytest.raises(InvalidValueError, match="1001 calls at a time"):
        core.set_calls(member.slot, CALLS_HELD_MAX + 1, 0, [], now_ns)
    with pytest.raises(InvalidValueError, match="purgatory 9"):
        core.set_calls(member.slot, 1, 9, [], now_ns)
    for name in (b"", bytes(256)):
        with pytest.raises(InvalidKeyError, match="255"):
            core.set_calls(member.slot, 1, 0, [name], now_ns)
    with pytest.raises(ArenaFullError, match="16 blocks"):
        core.set_calls(member.slot, 1, 0, [b"%d" % n for n in range(256)], now_ns)
    assert rig.arena.in_use()["BLOCKS"] == 0
    assert core.set_calls(member.slot, 1, 0, [b"%d" % n for n in range(100)], now_ns) == 1
    rig.check()
    rig.close(member)
    rig.turn()
    assert rig.arena.in_use()["BLOCKS"] == 0
    rig.check()


# what is kept, and for how long ---------------------------------------------------------------------------------------


def test_a_call_without_a_handler_is_kept_for_the_retention_and_a_call_with_a_busy_handler_longer() -> None:
    rig = Rig()
    worker = handler(rig, b"slow")
    rig.do(worker, call(b"slow"), call(b"nobody's"), call(b"slow"))
    assert waiting(rig) == 2
    assert rig.core.next_wake_ns() == START_NS + GROUP_KEPT_NS
    rig.turn(START_NS + GROUP_KEPT_NS - 1)
    assert waiting(rig) == 2
    rig.turn(START_NS + GROUP_KEPT_NS)
    assert (waiting(rig), rig.arena.count("dead_letters")) == (1, 1)
    rig.core.silence(worker.slot, rig.now_ns)
    rig.turn(START_NS + 3 * GROUP_KEPT_NS)
    assert waiting(rig) == 2, "the silent member may come back: its calls are kept, though it no longer holds one"
    rig.core.revive(worker.slot, rig.now_ns)
    rig.turn()
    assert delivered(worker)[0] == [b"slow"] * 2
    rig.close(worker)
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert (waiting(rig), rig.arena.count("dead_letters")) == (0, 3)
    assert (rig.arena.count("group_outcomes_dropped"), rig.core.next_wake_ns()) == (0, timerd.core.NEVER)
    rig.check()


def test_an_operation_without_a_deadline_is_cancelled_when_its_group_was_empty_for_the_retention() -> None:
    rig = Rig(groups=1)
    owner = rig.client(Orphans.GROUP, group=WORKERS)
    endless = Register((Key(b"adopted"),)), Register((Key(b"group's"),), for_group=True)
    rig.do(owner, *endless, call(b"later", timeout_ns=9 * HOUR))
    with pytest.raises(ArenaFullError):
        rig.core.group(b"others")
    rig.close(owner)
    gone = rig.now_ns
    rig.turn(gone + GROUP_KEPT_NS - 1)
    assert rig.arena.count("pending", 0) == 3
    rig.restart()
    assert rig.core.next_wake_ns() == gone + GROUP_KEPT_NS
    rig.turn(gone + GROUP_KEPT_NS)
    assert (rig.arena.count("pending", 0), rig.arena.count("cancelled", 0)) == (1, 2)
    assert rig.arena.count("orphans_cancelled") == 2
    assert waiting(rig) == 2, "the cancelled operations do not wait for the next member"
    rig.check()
    rig.turn(gone + 2 * GROUP_KEPT_NS)
    assert waiting(rig) == 0
    for hours in (9, 10):
        rig.turn(gone + hours * HOUR)
    assert rig.arena.in_use()["OPS"] == 1, "only the call is left, as a dead letter"
    with pytest.raises(ArenaFullError):
        rig.core.group(b"others")
    rig.check()


def test_a_member_that_joins_within_the_retention_finds_operations_without_a_deadline() -> None:
    rig = Rig()
    owner = rig.client(Orphans.GROUP, group=WORKERS)
    rig.do(owner, Register((Key(b"k"),)))
    rig.close(owner)
    rig.turn(rig.now_ns + GROUP_KEPT_NS - 1)
    heir = rig.client(group=WORKERS, listens=True)
    rig.turn(rig.now_ns + 3 * GROUP_KEPT_NS)
    rig.do(heir, fire(b"k"))
    assert [each.state for each in heir.delivered_for_group] == [Outcome.COMPLETED]
    rig.check()


def test_a_call_of_an_empty_group_is_cancelled_although_its_deadline_was_removed() -> None:
    rig = Rig()
    owner, other = rig.client(group=WORKERS), rig.client()
    name = b"id".ljust(16, b".")
    rig.do(owner, call(b"job", timeout_ns=HOUR, id=name))
    rig.close(owner)
    rig.turn(rig.now_ns + HOUR // 2)
    rig.do(other, OperationAct(CommandKind.RESCHEDULE_ID, id=name, timeout_ns=NO_DEADLINE))
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert rig.arena.count("cancelled", 0) == 1
    rig.check()


def test_a_kept_operation_of_a_dead_owner_expires_after_the_retention() -> None:
    rig = Rig()
    owner, other = rig.client(Orphans.KEEP), rig.client()
    name = b"id".ljust(16, b".")
    rig.do(owner, Register((Key(b"k"),), id=name), Register((Key(b"k"),), timeout_ns=3 * HOUR))
    rig.close(owner)
    gone = rig.now_ns
    assert rig.core.next_wake_ns() <= gone + GROUP_KEPT_NS
    rig.check()
    rig.turn(gone + MS)
    rig.do(other, OperationAct(CommandKind.RESCHEDULE_ID, id=name, timeout_ns=NO_DEADLINE))
    rig.turn(gone + GROUP_KEPT_NS)
    assert rig.arena.count("expired", 0) == 0
    rig.turn(gone + MS + GROUP_KEPT_NS)
    assert rig.arena.count("expired", 0) == 1
    rig.turn(gone + 4 * HOUR)
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


def test_cancelling_operations_without_a_deadline_is_bounded_in_a_turn() -> None:
    rig = Rig(capacity=256, quota_operations=256)
    owner = rig.client(group=WORKERS)
    rig.do(owner, *(Register((Key(b"k"),), for_group=True) for _ in range(200)))
    rig.do(owner, *(cancel(number) for number in range(1, 3)))
    rig.close(owner)
    rig.budget = 10
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    rig.turn(rig.now_ns + GROUP_KEPT_NS)
    assert rig.arena.in_use()["OPS"] == 0
    rig.check()


@pytest.mark.parametrize("knobs", [{"quota_operations": 4}, {"quota_outcomes": 4}])
def test_a_following_call_is_registered_even_at_the_quota_of_its_group(knobs: dict[str, Any]) -> None:
    rig = Rig(**knobs)
    worker = handler(rig, b"job", most=4)
    rig.do(worker, *(call(b"job") for _ in range(4)))
    assert len(worker.delivered_for_group) == 4
    refused = rig.do(worker, call(b"job"))
    followed = [
        rig.do(worker, call(b"job", timeout_ns=S, follows=each.operation)) for each in worker.delivered_for_group
    ]
    assert [answer.command for answer in worker.answers] == [refused]
    assert rig.arena.count("pending", 0) == len(followed) == 4
    rig.check()
    rig.turn(rig.now_ns + 2 * S)
    assert len(worker.delivered_for_group) == 8


def test_a_following_call_with_more_keys_than_the_call_before_is_refused() -> None:
    rig = Rig()
    worker = handler(rig, b"job", most=4)
    rig.do(worker, call(b"job"))
    (told_of,) = worker.delivered_for_group
    keys = (Key(b"job"), Key(b"more"))
    rig.do(worker, replace(call(b"job", timeout_ns=S, follows=told_of.operation), keys=keys))
    assert (worker.answers[-1].code, worker.answers[-1].value) == (ErrorCode.TOO_MANY_KEYS, 1)
    assert rig.arena.count("pending", 0) == 0
    rig.check()


def test_a_call_is_followed_once_and_only_within_its_group() -> None:
    rig = Rig()
    worker, other = handler(rig, b"job", most=4), handler(rig, b"job", most=4, group=b"others")
    rig.do(worker, call(b"job"), Register((Key(b"k"),), timeout_ns=0, for_group=True))
    (told_of,) = worker.delivered_for_group
    wrong = (told_of.operation + (1 << 32), told_of.operation + 1, 1 << 31, told_of.operation)
    for sender, operation in zip((worker, worker, worker, other), wrong, strict=True):
        number = rig.do(sender, call(b"job", follows=operation))
        assert sender.answers[-1].command == number and sender.answers[-1].code == ErrorCode.UNKNOWN_OPERATION
    first = rig.do(
        worker, call(b"job", timeout_ns=S, follows=told_of.operation), call(b"job", follows=told_of.operation)
    )
    assert worker.answer(first) is None
    assert worker.answers[-1].command == first + 1 and worker.answers[-1].code == ErrorCode.UNKNOWN_OPERATION
    rig.check()


# what is kept for schedules -------------------------------------------------------------------------------------------


def test_a_schedules_call_outlives_its_workers_for_a_week_and_other_calls_for_an_hour() -> None:
    rig = Rig(groups=1)
    worker = rig.client(group=b"workers")
    rig.do(
        worker,
        call(b"a"),
        call(b"a", scheduled=True),
        call(b"a"),
        call(b"a", timeout_ns=2 * HOUR, scheduled=True),
        call(b"b"),
    )
    rig.close(worker)
    gone = rig.now_ns
    rig.turn(gone + GROUP_KEPT_NS)
    assert waiting(rig) == 1
    rig.turn(gone + 2 * HOUR)
    rig.restart()
    rig.turn(gone + SCHEDULE_KEPT_NS - 1)
    assert (waiting(rig), rig.arena.count("dead_letters")) == (2, 3)
    with pytest.raises(ArenaFullError):
        rig.core.group(b"others")
    assert rig.core.next_wake_ns() == gone + SCHEDULE_KEPT_NS
    rig.turn(gone + SCHEDULE_KEPT_NS)
    assert waiting(rig) == 1
    rig.turn(gone + SCHEDULE_KEPT_NS + 2 * HOUR)
    assert waiting(rig) == 0
    assert rig.core.next_wake_ns() == timerd.core.NEVER
    assert rig.arena.count("dead_letters") == 5
    rig.check()


def test_calls_behind_calls_of_schedules_are_given_up_in_their_time(rng: random.Random) -> None:
    for _ in range(20):
        rig = Rig(capacity=128, quota_operations=128, schedule_retention=rng.choice((HOUR // 2, 3 * HOUR)))
        worker = rig.client(group=b"workers")
        ends, kept_ns = list[int](), max(GROUP_KEPT_NS, rig.arena.header.schedule_kept_ns)
        for _ in range(60):
            scheduled = rng.random() < 0.4
            ends.append(rig.now_ns + (kept_ns if scheduled else GROUP_KEPT_NS))
            rig.do(worker, call(b"nobody's", scheduled=scheduled))
            rig.turn(rig.now_ns + rng.randrange(HOUR // 10))
        rig.budget = rng.choice((2, 1 << 30))
        while waiting(rig):
            rig.turn(max(rig.core.next_wake_ns(), rig.now_ns))
            left = sum(end > rig.now_ns for end in ends)
            assert waiting(rig) == left, "a schedule's call is not kept, or delays the end of another call"
        rig.check()


def test_a_schedules_call_that_a_busy_worker_handles_is_kept() -> None:
    rig = Rig()
    worker = handler(rig, b"job", most=1)
    rig.do(worker, call(b"job", scheduled=True), call(b"job", scheduled=True))
    rig.turn(START_NS + 2 * SCHEDULE_KEPT_NS)
    assert waiting(rig) == 1
    rig.check()
