"""The last quarter of an arena: what ended clients of one user keep may not take it from others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from support.rig.commands import Key, OperationAct, Register
from support.rig.groups import call
from support.rig.harness import Rig, S, fire
from support.rig.makers import (
    OTHER,
    SMALL,
    USER,
    clients_end_one_after_the_other,
    kept,
    kept_operations_leave_the_last_quarter,
    make,
    make_together,
    outcome,
    outcomes_make_room_for_the_next_client_of_their_user,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import LEFT_SHIFT, MET_SHIFT
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import OpState, Orphans
from timerd_shm.declare.wire import CommandKind, Met
from timerd_wire.refusals import Subject, refusal

LONG = 3_600 * S
KEY = (Key(b"k"),)
PENDING = Register(KEY, timeout_ns=LONG, for_group=True)
MANY: dict[str, Any] = SMALL | {"capacity": 256, "quota_operations": 128}
BYTES = MANY | {"blocks": 64, "quota_bytes": 32 * BLOCK_DATA}
NODES = MANY | {"nodes": 64, "quota_nodes": 32}
IDS = MANY | {"ids": 64, "quota_ids": 32}


def with_id(number: int) -> Register:
    return Register(KEY, timeout_ns=LONG, for_group=True, id=b"%016d" % number)


CASES: dict[str, tuple[dict[str, Any], Region, Callable[[int], Register]]] = {
    "pending": (SMALL, Region.OPS, lambda _: PENDING),
    "schedules": (SMALL, Region.OPS, lambda _: call(scheduled=True)),
    "outcomes and pending": (SMALL, Region.OPS, lambda n: outcome() if n <= 32 else PENDING),
    "kept": (SMALL, Region.OPS, lambda _: Register(KEY, timeout_ns=LONG, orphans=Orphans.KEEP)),
    "adopted": (SMALL, Region.OPS, lambda _: Register(KEY, timeout_ns=LONG, orphans=Orphans.GROUP)),
    "kept and pending": (
        SMALL,
        Region.OPS,
        lambda n: Register(KEY, timeout_ns=LONG, orphans=Orphans.KEEP) if n % 2 else PENDING,
    ),
    "bytes": (
        BYTES,
        Region.BLOCKS,
        lambda _: Register(KEY, timeout_ns=LONG, for_group=True, payload=bytes(BLOCK_DATA)),
    ),
    "kept bytes": (
        BYTES,
        Region.BLOCKS,
        lambda _: Register(KEY, timeout_ns=LONG, orphans=Orphans.KEEP, payload=bytes(BLOCK_DATA)),
    ),
    "nodes": (NODES, Region.NODES, lambda _: Register((*KEY, Key(b"l")), timeout_ns=LONG, for_group=True)),
    "ids": (IDS, Region.IDS, with_id),
}


@pytest.mark.parametrize("case", CASES)
def test_ended_clients_leave_the_last_quarter_to_others(case: str) -> None:
    """Without this rule, three such clients in a row filled the arena until the deadlines, or for a week."""
    sizes, region, what = CASES[case]
    rig = Rig(**sizes)
    clients_end_one_after_the_other(rig, what, 3)
    used = rig.arena.region(region)
    assert used.count // 2 < used.in_use <= used.count - used.count // 4 + 1
    assert rig.arena.count("group_outcomes_evicted") == 0
    rig.check()
    rig.restart()
    rig.check()
    refused = rig.client(group=b"group-7", uid=USER)
    number = rig.do(refused, what(1_000))
    answer = refused.answer(number)
    assert answer is not None and answer.code == ErrorCode.QUOTA_EXCEEDED
    assert answer.value >> MET_SHIFT >= Met.LEFT_OPERATIONS
    other = rig.client(group=b"theirs", uid=OTHER)
    rig.do(other, what(1_001))
    assert other.answers == []


def test_outcomes_that_make_room_do_not_keep_their_user_from_registering_more() -> None:
    """In an earlier version a user whose outcomes filled the arena was refused: they counted as if they would stay."""
    outcomes_make_room_for_the_next_client_of_their_user(Rig(**SMALL))


def test_clients_that_make_outcomes_and_end_one_after_the_other_are_served() -> None:
    rig = Rig(**SMALL)
    clients_end_one_after_the_other(rig, lambda _: outcome(), 3)
    assert rig.arena.region(Region.OPS).in_use == 64
    before, evicted = kept(rig), rig.arena.count("group_outcomes_evicted")
    worker = rig.client(group=b"group-7", uid=USER)
    rig.do(worker, *[outcome()] * 16)
    assert worker.answers == []
    assert kept(rig)[:-16] == before[16:]
    assert rig.arena.count("group_outcomes_evicted") == evicted + 16
    rig.check()


def test_outcomes_within_the_share_and_pending_operations_leave_a_quarter_together() -> None:
    rig = Rig(**SMALL)
    make_together(rig, {b"one": 24, b"two": 24})
    clients_end_one_after_the_other(rig, lambda _: PENDING, 3)
    operations = [op for op in rig.arena.records(Region.OPS) if op.group]
    assert len(operations) == 64, "as long as there is room"
    other = rig.client(uid=OTHER)
    rig.do(other, *[Register(KEY, timeout_ns=LONG)] * 17)
    assert [each.code for each in other.answers] == [ErrorCode.ARENA_FULL]
    assert sum(op.state == OpState.PENDING and op.group != 0 for op in rig.arena.records(Region.OPS)) == 16
    rig.check()


def test_what_ends_with_its_client_or_follows_a_call_is_accepted() -> None:
    rig = Rig(**SMALL)
    worker = rig.client(group=b"service", uid=USER)
    assert rig.core.set_calls(worker.slot, 4, 0, [b"job"], rig.now_ns) == 4
    rig.do(worker, call(scheduled=True))
    due = worker.delivered_for_group[-1]
    clients_end_one_after_the_other(rig, lambda _: PENDING, 3)
    refused = rig.do(worker, call())
    answer = worker.answer(refused)
    assert answer is not None and answer.value >> MET_SHIFT == Met.LEFT_OPERATIONS
    worker.answers.clear()
    rig.do(worker, Register(KEY), call(follows=due.operation, scheduled=True, timeout_ns=LONG))
    assert worker.answers == []
    rig.check()


def test_following_calls_is_no_way_round() -> None:
    """In an earlier version such calls could take all ids of the arena: no quota counted them."""
    rig = Rig(capacity=256, quota_operations=200, ids=64, quota_ids=32, clients=8, groups=8)
    worker = rig.client(group=b"service", uid=USER)
    assert rig.core.set_calls(worker.slot, 200, 0, [b"job"], rig.now_ns) == 200
    refused = 0
    for number in range(60):
        rig.do(worker, call(b"job"))
        due = worker.delivered_for_group[-1]
        follows = call(b"job", id=b"%016d" % number, follows=due.operation, timeout_ns=LONG)
        answer = worker.answer(rig.do(worker, follows))
        refused += answer is not None and answer.code == ErrorCode.QUOTA_EXCEEDED
    assert (refused, rig.arena.region(Region.IDS).in_use) == (60 - 32, 32)
    rig.check()


def test_the_values_of_the_ring_do_not_count_as_room() -> None:
    """In an earlier version they counted, a shared value once for each of its events. So blocks never seemed scarce."""
    rig = Rig(**BYTES)
    firer = rig.client(uid=USER)
    for _ in range(60):
        rig.do(firer, fire(b"x", value=bytes(BLOCK_DATA)))
    clients_end_one_after_the_other(rig, CASES["bytes"][2], 3)
    used = rig.arena.region(Region.BLOCKS)
    assert used.in_use <= used.count - used.count // 4 + 2
    rig.check()


def test_a_worker_for_the_groups_ends_the_refusals() -> None:
    rig = Rig(**SMALL)
    clients_end_one_after_the_other(rig, lambda _: PENDING, 3)
    worker = rig.client(group=b"group-1", uid=USER)
    assert worker.answer(rig.do(worker, PENDING)) is not None, "the member that registers counts as no worker"
    for group in (b"group-0", b"group-1", b"group-2"):
        rig.client(group=group, uid=OTHER)
    assert worker.answer(rig.do(worker, PENDING)) is None


def test_the_orphans_policy_is_no_way_round() -> None:
    rig = Rig(**SMALL)
    clients_end_one_after_the_other(rig, lambda _: PENDING, 3)
    client = rig.client(group=b"group-7", uid=USER)
    own = rig.do(client, Register(KEY, timeout_ns=LONG))
    for orphans in (Orphans.KEEP, Orphans.GROUP):
        answer = client.answer(rig.do(client, OperationAct(CommandKind.SET_ORPHANS, own, orphans=orphans)))
        assert answer is not None and answer.code == ErrorCode.QUOTA_EXCEEDED
    by_default = rig.client(Orphans.KEEP, uid=USER)
    assert by_default.answer(rig.do(by_default, Register(KEY, timeout_ns=LONG))) is not None
    rig.check()


def test_operations_without_an_owner_are_charged_to_the_user_of_their_owner_until_they_settle() -> None:
    kept_operations_leave_the_last_quarter(Rig())


def test_while_there_is_room_ended_clients_may_leave_more_than_one_client_may_hold() -> None:
    rig = Rig(**MANY)
    for group in (b"one", b"two"):
        make(rig, group, 90, what=PENDING)
    assert rig.arena.region(Region.OPS).in_use == 180


def test_the_refusal_names_the_user_what_is_kept_the_limit_and_the_remedy() -> None:
    rig = Rig(**SMALL)
    clients_end_one_after_the_other(rig, lambda _: PENDING, 3)
    client = rig.client(group=b"group-7", uid=USER)
    answer = client.answer(rig.do(client, PENDING))
    assert answer is not None
    assert answer.value == Met.LEFT_OPERATIONS << MET_SHIFT | 49 << LEFT_SHIFT | 48
    message = str(refusal(answer.code, answer.value))
    for part in (
        f"user {os.geteuid()}",
        "keep 49 operations",
        "may keep 48",
        "timerctl cancel",
        "a worker",
        "--capacity",
    ):
        assert part in message
    reasons = rig.core.take_refusals()
    values = [
        value
        for code, value, *_ in reasons
        if code == ErrorCode.QUOTA_EXCEEDED and value >> MET_SHIFT >= Met.LEFT_OPERATIONS
    ]
    assert set(values) == {Met.LEFT_OPERATIONS << MET_SHIFT | 48}, (
        "one reason in the log, whatever they hold at the time"
    )
    logged = str(
        refusal(ErrorCode.QUOTA_EXCEEDED, values[0], Subject(holder="group 'one' (pid 4194304)", kind="group"))
    )
    assert "keep 48 operations" in logged and len(logged) < 224
