"""Rules 6 and 7 of timerd/DESIGN.md.

A command is applied once, refusals and outcomes are kept, and a bad frame harms nobody. A code in the name of a test,
such as C7, is the number of a scenario: test_interleavings.py has others.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from support.rig.arenas import Memory
from support.rig.commands import Answer, Command, Key, Mark, OperationAct, Register
from support.rig.harness import BUDGET, MS, Rig, S, advance, cancel, fire, reschedule
from support.rig.rules import (
    ON_K,
    a_frame_sent_again_is_skipped,
    a_lost_frame_is_expected_again,
    outcomes_are_kept_until_acknowledged,
    send,
)
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import size_of, struct_of, unpack
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import KEYS_MAX, MET_SHIFT, PAYLOAD_SIZE_MAX, TIMEOUT_NS_MAX
from timerd_shm.declare.records import BLOCK_DATA
from timerd_shm.declare.states import Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandHeader, CommandKind, Met, OutcomeRecord, ReportHeader

# numbers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1, 2, 3, 16, 17, 32])
@pytest.mark.parametrize("newest_first", [False, True])
def test_operations_are_found_at_any_distance_of_their_command_numbers(apart: int, newest_first: bool) -> None:
    """Every `apart`-th command registers an operation. In a full arena, one is cancelled before the next one comes."""
    rig = Rig(quota_operations=64)
    client = rig.client()
    live: list[int] = []
    for _ in range(5 * 64):
        live.append(rig.do(client, *(fire(b"nobody's") for _ in range(apart - 1)), Register((Key(b"k"),))) + apart - 1)
        if len(live) == 64:
            settled = live.pop(-1 if newest_first else 0)
            rig.do(client, cancel(settled))
            assert client.state(settled) is Outcome.CANCELLED
            rig.acknowledge()
            assert rig.core.unknown_waits(client.slot, [settled, *live]) == [settled]
    rig.check()
    assert rig.core.unknown_waits(client.slot, live) == []


def test_C2_the_core_expects_the_commands_of_a_lost_frame() -> None:
    a_lost_frame_is_expected_again(Rig())


def test_a_resent_frame_is_skipped_and_a_half_applied_frame_continues_in_its_middle() -> None:
    a_frame_sent_again_is_skipped(Rig())


def test_command_numbers_continue_after_a_restart() -> None:
    rig = Rig()
    client = rig.client()
    rig.do(client, ON_K, fire(b"other"))
    rig.restart()
    assert rig.core.last_command(client.slot) == 2
    slot = rig.core.open_client(client.incarnation, b"n" * 16, now_ns=rig.now_ns)
    assert slot == client.slot, "the same incarnation did not get its old slot"
    assert rig.core.find_session(b"n" * 16) == slot
    assert rig.core.find_session(client.session) == -1, "the old session is still known"
    rig.do(client, fire(b"k"))
    assert client.state(1) is Outcome.COMPLETED


def test_each_client_has_its_own_numbers() -> None:
    rig = Rig()
    a, b = rig.client(), rig.client()
    rig.do(a, ON_K)
    assert rig.do(b, ON_K) == 1
    rig.do(b, cancel(1))
    assert (a.state(1), b.state(1)) == (Outcome.NONE, Outcome.CANCELLED)


# answers and outcomes are kept ----------------------------------------------------------------------------------------


def test_outcomes_are_kept_until_acknowledged() -> None:
    outcomes_are_kept_until_acknowledged(Rig())


def test_C7_refusals_and_answers_are_kept_until_acknowledged() -> None:
    rig = Rig()
    client = rig.client()
    kept = [
        (rig.do(client, Register((Key(b"k"), Key(b"k")), timeout_ns=MS)), ErrorCode.INVALID_KEY, 0),
        (rig.do(client, Register((Key(b"k"),), timeout_ns=S, wants_answer=True)), ErrorCode.NONE, 0),
        (rig.do(client, fire(b"k", wait=True)), ErrorCode.NONE, 1),
    ]
    client.answers.clear()
    rig.restart()
    rig.turn()
    assert [(answer.command, answer.code, answer.value) for answer in client.answers] == kept
    rig.acknowledge()
    header = unpack(ReportHeader, memoryview(bytes(rig.core.report(client.slot, 0, 0, rig.now_ns))))
    assert header.answers == 0


def test_with_too_many_unacknowledged_answers_the_next_command_is_not_applied() -> None:
    rig = Rig(quota_answers=4)
    client = rig.client()
    rig.do(client, *(fire(b"k", wait=True) for _ in range(4)))
    client.issue(fire(b"k", wait=True))
    frame = client.frame()
    assert send(rig, client, frame) == rig.module.EXPECTED
    assert rig.core.last_command(client.slot) == 4
    rig.acknowledge(client)
    assert send(rig, client, frame) == rig.module.APPLIED
    assert [answer.command for answer in client.answers] == [1, 2, 3, 4, 5]


def test_clients_that_never_acknowledge_leave_the_others_room_for_answers() -> None:
    rig = Rig(quota_answers=64, answers=8, clients=4)
    rude, other = [rig.client(), rig.client()], rig.client()
    for client in rude:
        client.issue(fire(b"k", wait=True))
        while send(rig, client, client.frame()) == rig.module.APPLIED:
            client.issue(fire(b"k", wait=True))
    assert rig.arena.region(Region.ANSWERS).in_use == 9, (
        "the first client took all shared answers, the second only its reserved one"
    )
    for _ in range(3):
        rig.do(other, fire(b"k", wait=True))
        rig.acknowledge(other)
    assert [answer.command for answer in other.answers] == [1, 2, 3]


def test_H8_every_frame_carries_an_acknowledgement_that_frees_a_full_client() -> None:
    rig = Rig(quota_answers=4)
    client = rig.client()
    rig.do(client, *(fire(b"k", wait=True) for _ in range(4)))
    client.issue(fire(b"k", wait=True))
    assert send(rig, client, client.frame()) == rig.module.EXPECTED, "a client with too many answers was served"
    client.acknowledge()
    assert send(rig, client, client.frame()) == rig.module.APPLIED


def test_C7_at_hello_a_client_learns_which_of_its_pending_operations_are_unknown() -> None:
    rig = Rig()
    client = rig.client()
    pending = rig.do(client, ON_K)
    settled = rig.do(client, Register((Key(b"j"),), timeout_ns=MS))
    refused = rig.do(client, Register((), timeout_ns=MS))
    rig.turn(rig.now_ns + 2 * MS)
    waits = [pending, settled, refused, 99]
    assert rig.core.unknown_waits(client.slot, waits) == [99], "the answer with the refusal is not kept"
    rig.acknowledge()
    assert rig.core.unknown_waits(client.slot, waits) == [settled, refused, 99]


# bad commands ---------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Command, ErrorCode]] = {
    "no keys": (Register((), timeout_ns=MS), ErrorCode.INVALID_KEY),
    "an empty key": (Register((Key(b""),), timeout_ns=MS), ErrorCode.INVALID_KEY),
    "the same key twice": (Register((Key(b"k"), Key(b"j"), Key(b"k", 5)), timeout_ns=MS), ErrorCode.INVALID_KEY),
    "too many keys": (
        Register(tuple(Key(b"%d" % n) for n in range(KEYS_MAX + 1)), timeout_ns=MS),
        ErrorCode.TOO_MANY_KEYS,
    ),
    "at least none": (Register((Key(b"k"),), timeout_ns=MS, needed=0), ErrorCode.INVALID_CONDITION),
    "at least two of one": (Register((Key(b"k"),), timeout_ns=MS, needed=2), ErrorCode.INVALID_CONDITION),
    "a total of nothing": (
        Register((Key(b"k"),), timeout_ns=MS, condition=Condition.TOTAL, total=0),
        ErrorCode.INVALID_CONDITION,
    ),
    "a watermark under total": (
        Register((Key(b"k", 3),), timeout_ns=MS, condition=Condition.TOTAL, total=4),
        ErrorCode.INVALID_CONDITION,
    ),
    "eleven years": (Register((Key(b"k"),), timeout_ns=TIMEOUT_NS_MAX + 1), ErrorCode.TIMEOUT_OUT_OF_RANGE),
    "a payload too large": (
        Register((Key(b"k"),), timeout_ns=MS, payload=bytes(PAYLOAD_SIZE_MAX + 1)),
        ErrorCode.PAYLOAD_TOO_LARGE,
    ),
    "a value too large": (fire(b"k", value=bytes(PAYLOAD_SIZE_MAX + 1)), ErrorCode.PAYLOAD_TOO_LARGE),
    "an empty key fired": (fire(b""), ErrorCode.INVALID_KEY),
    "a limit of nothing": (fire(b"k", limit=0), ErrorCode.INVALID_VALUE),
    "eleven years later": (reschedule(1, TIMEOUT_NS_MAX + 1), ErrorCode.TIMEOUT_OUT_OF_RANGE),
    "an unknown id": (OperationAct(CommandKind.CANCEL_ID, id=b"?" * 16), ErrorCode.UNKNOWN_OPERATION),
    "for no group": (Register((Key(b"k"),), timeout_ns=MS, for_group=True), ErrorCode.NOT_A_MEMBER),
    "an orphan of no group": (Register((Key(b"k"),), timeout_ns=MS, orphans=Orphans.GROUP), ErrorCode.NOT_A_MEMBER),
    "left to no group": (OperationAct(CommandKind.SET_ORPHANS, 1, orphans=Orphans.GROUP), ErrorCode.NOT_A_MEMBER),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_command_is_refused_and_changes_only_the_command_number(name: str) -> None:
    command, code = REFUSED[name]
    rig = Rig(blocks=2048, quota_bytes=1 << 20)
    client = rig.client()
    rig.do(client, ON_K)
    in_use = rig.arena.in_use() | {"ANSWERS": 1}
    newest = rig.core.newest
    number = rig.do(client, command)
    assert [(answer.command, answer.code) for answer in client.answers] == [(number, code)]
    assert rig.core.last_command(client.slot) == number
    assert (rig.arena.in_use(), rig.core.newest) == (in_use, newest), "something was half done"
    assert rig.arena.count("refused_by_id" if code is ErrorCode.UNKNOWN_OPERATION else "rejected", 0) == 1
    rig.do(client, fire(b"k"))
    assert client.state(1) is Outcome.COMPLETED
    rig.check()


@pytest.mark.parametrize("kind", ["register", "cancel", "fire"])
def test_a_missing_purgatory_is_malformed_also_behind_good_commands(kind: str) -> None:
    commands: dict[str, tuple[Command, Command]] = {
        "register": (ON_K, replace(ON_K, purgatory=200)),
        "cancel": (cancel(1), replace(cancel(2), purgatory=200)),
        "fire": (fire(b"a"), replace(fire(b"b"), purgatory=200)),
    }
    rig = Rig()
    client = rig.client()
    rig.do(client, ON_K, ON_K)
    numbered = [(client.issue(command), command) for command in commands[kind]]
    assert send(rig, client, client.frame(numbered)) == rig.module.MALFORMED
    assert rig.core.last_command(client.slot) == 3
    rig.check()


def test_a_command_at_its_limits_is_accepted() -> None:
    rig = Rig(nodes=256, blocks=4096, quota_bytes=1 << 20)
    client = rig.client()
    keys = tuple(Key(bytes([n]) * 255) for n in range(KEYS_MAX))
    most = rig.do(client, Register(keys, timeout_ns=TIMEOUT_NS_MAX, needed=KEYS_MAX, payload=bytes(PAYLOAD_SIZE_MAX)))
    rig.do(
        client, *(fire(key.name, value=bytes(PAYLOAD_SIZE_MAX)) for key in keys[:2]), *(fire(k.name) for k in keys[2:])
    )
    delivered = client.outcome(most)
    assert delivered is not None
    assert (delivered.state, delivered.satisfied, delivered.settled_key) == (
        Outcome.COMPLETED,
        (1 << KEYS_MAX) - 1,
        KEYS_MAX,
    )
    rig.check()


@pytest.mark.parametrize(
    "knobs",
    ({"capacity": 16, "quota_operations": 16}, {"nodes": 8}, {"blocks": 6}),
    ids=("operations", "watchers", "blocks"),
)
def test_a_full_arena_refuses_a_command_as_a_whole(knobs: dict[str, Any]) -> None:
    """A full arena is the reason even if the quota is met as well, because a higher quota would not help."""
    rig = Rig(**{"capacity": 32, "quota_operations": 32, **knobs})
    client = rig.client()
    wanted = [Register((Key(b"%d" % n), Key(b"%d" % -n)), timeout_ns=50 * MS, payload=bytes(200)) for n in range(1, 18)]
    rig.do(client, *wanted)
    codes = {answer.code for answer in client.answers}
    assert codes == {ErrorCode.ARENA_FULL}, f"codes={codes}"
    met = {"capacity": Met.OPERATIONS, "nodes": Met.NODES, "blocks": Met.BLOCKS}
    name, count = next(iter(knobs.items()))
    assert {answer.value for answer in client.answers} == {met[name] << MET_SHIFT | count}
    assert rig.arena.count("pending", 0) == len(wanted) - len(client.answers) > 0
    rig.check()
    rig.turn(rig.now_ns + 50 * MS)
    rig.acknowledge()
    assert not any(rig.arena.in_use().values()), rig.arena.in_use()
    again = rig.do(client, wanted[0])
    assert client.answer(again) is None, "the records were not freed"


def test_a_full_pool_frees_the_oldest_events_of_the_ring_before_it_refuses() -> None:
    """H5: events in the ring are worth less than a new event."""
    rig = Rig(blocks=16)
    client = rig.client()
    rig.do(client, *(fire(b"k", value=bytes(400)) for _ in range(12)))
    assert not client.answers
    assert rig.arena.header.tail > 1
    number = rig.do(client, Register((Key(b"k"),), timeout_ns=50 * MS, payload=bytes(1200)))
    assert client.answer(number) is None
    rig.check()


def test_a_full_pool_accepts_an_event_without_a_value() -> None:
    """An event allocates blocks for its value alone, or for a key that is too long for the ring's record."""
    rig = Rig(blocks=16)
    client, other = rig.client(), rig.client()
    key = b"more than sixteen bytes, below 48"
    watching = rig.do(other, Register((Key(key),), payload=bytes(10 * BLOCK_DATA)))
    rig.do(other, Register((Key(b"k"),), payload=bytes((16 - rig.arena.in_use()["BLOCKS"]) * BLOCK_DATA)))
    assert rig.arena.in_use()["BLOCKS"] == 16
    rig.do(client, fire(b"k"), fire(key))
    assert not client.answers, f"refused: {client.answers}"
    assert other.state(watching) is Outcome.COMPLETED
    rig.check()


def test_a_client_has_a_quota_of_operations_and_an_acknowledgement_frees_it() -> None:
    rig = Rig(quota_operations=3)
    a, b = rig.client(), rig.client()
    rig.do(a, *(ON_K for _ in range(4)))
    assert a.answers == [Answer(4, ErrorCode.QUOTA_EXCEEDED, Met.OPERATIONS << MET_SHIFT | 3)]
    assert b.answer(rig.do(b, ON_K)) is None, "another client's quota was used up"
    rig.turn(rig.now_ns + 50 * MS)
    number = rig.do(a, ON_K)
    assert a.answer(number) is not None, "operations that are settled but not acknowledged do not count"
    rig.acknowledge()
    assert a.answer(rig.do(a, ON_K)) is None


def test_a_client_has_a_quota_of_watermarks_for_new_keys_alone() -> None:
    rig = Rig(quota_watermarks=2)
    client = rig.client()
    rig.do(client, advance(b"p0", 1), advance(b"p1", 1), advance(b"p2", 1), advance(b"p0", 2))
    assert client.answers == [Answer(3, ErrorCode.QUOTA_EXCEEDED, Met.WATERMARKS << MET_SHIFT | 2)]
    rig.check()


@pytest.mark.parametrize(
    ("knobs", "met", "limit"),
    [({"quota_bytes": 100}, Met.BYTES, 100), ({"quota_outcomes": 1}, Met.OUTCOMES, 1)],
)
def test_a_refusal_names_the_quota_that_was_met(knobs: dict[str, Any], met: Met, limit: int) -> None:
    rig = Rig(**knobs)
    client = rig.client()
    rig.do(client, Register((Key(b"k"),), timeout_ns=0, payload=bytes(90)))
    number = rig.do(client, Register((Key(b"k"),), timeout_ns=50 * MS, payload=bytes(90)))
    assert client.answer(number) == Answer(number, ErrorCode.QUOTA_EXCEEDED, met << MET_SHIFT | limit)


def test_a_value_beyond_its_receivers_quota_is_dropped_and_flagged() -> None:
    rig = Rig(blocks=256, quota_bytes=1000)
    a, b = rig.client(), rig.client()
    first, second = rig.do(a, ON_K), rig.do(a, ON_K) + 0
    rig.do(b, fire(b"k", value=bytes(800)))
    assert [a.state(first), a.state(second)] == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert sorted(len(each.value) for each in a.delivered) == [0, 800]
    assert rig.arena.count("values_dropped", 0) == 1
    code, value, count, holder = rig.core.take_refusals()[0]
    assert (code, value, count) == (ErrorCode.QUOTA_EXCEEDED, Met.VALUES << MET_SHIFT | 1000, 1)
    assert holder is not None and (holder[0], holder[4]) == (a.slot, 800), (
        "not the receiver, or not the bytes that it held"
    )
    rig.check()


def test_a_value_that_can_never_fit_into_the_arena_is_too_large_and_no_reason_to_retry() -> None:
    rig = Rig(blocks=16)
    client = rig.client()
    rig.do(client, fire(b"k", value=bytes(17 * BLOCK_DATA)))
    rig.do(client, Register((Key(b"k"),), S, payload=bytes(17 * BLOCK_DATA)))
    assert {(answer.code, answer.value) for answer in client.answers} == {
        (ErrorCode.PAYLOAD_TOO_LARGE, Met.BLOCKS << MET_SHIFT | 16),
    }
    rig.do(client, fire(b"k", value=bytes(16 * BLOCK_DATA)))
    assert len(client.answers) == 2
    rig.check()


def test_a_value_found_at_registration_counts_against_the_quota_with_the_payload() -> None:
    rig = Rig(blocks=256, quota_bytes=100)
    client, other = rig.client(), rig.client()
    rig.do(other, fire(b"k", value=bytes(60)))
    payload = bytes(60)
    rig.do(client, Register((Key(b"k"),), S, mark=Mark(0, 0), payload=payload))
    assert [(each.state, each.value) for each in client.delivered] == [(Outcome.COMPLETED, b"")]
    assert rig.arena.count("values_dropped", 0) == 1
    assert rig.arena.record(Region.CLIENTS, client.slot).bytes_held == len(payload)
    rig.check()


# bad frames -----------------------------------------------------------------------------------------------------------


def test_a_report_holds_a_value_once_and_nothing_else() -> None:
    """An operation expires between two parts of a long event. Its outcome stands between two that share a value."""
    rig = Rig()
    client, other = rig.client(), rig.client()
    rig.do(client, ON_K, Register((Key(b"quiet"),), timeout_ns=5 * MS), ON_K)
    other.issue(fire(b"k", value=b"v" * 300))
    rig.core.begin_turn(rig.now_ns)
    assert rig.core.apply(other.slot, other.frame(), rig.now_ns, 3) == rig.module.UNFINISHED
    rig.now_ns += 6 * MS
    while rig.core.advance(rig.now_ns, BUDGET):
        pass
    rig.resume()
    frame = dict(rig.core.reports(rig.now_ns))[client.slot]
    rig.core.end_turn(rig.now_ns)
    client.receive(frame)
    assert [(each.command, each.value) for each in client.delivered] == [
        (1, b"v" * 300),
        (2, b""),
        (3, b"v" * 300),
    ]
    spare = len(frame) - size_of(ReportHeader) - 3 * size_of(OutcomeRecord) - 300
    assert spare == 0, f"{spare} bytes of the daemon's memory went out after the value"


def test_a_frame_cut_anywhere_is_malformed_and_the_core_continues() -> None:
    rig = Rig()
    client, other = rig.client(), rig.client()
    rig.do(other, ON_K)
    commands: list[tuple[int, Command]] = [
        (1, Register((Key(b"k"), Key(b"j", 5)), timeout_ns=MS, payload=b"p" * 9, id=b"i" * 16)),
        (2, fire(b"k", value=b"v")),
    ]
    whole = client.frame(commands)
    client.issued = 2
    for size in range(size_of(CommandHeader), len(whole)):
        assert send(rig, client, whole[:size]) == rig.module.MALFORMED, f"cut at {size} of {len(whole)}"
        assert rig.core.last_command(client.slot) <= 1
        rig.check()
    assert send(rig, client, whole) == rig.module.APPLIED
    assert other.state(1) is Outcome.COMPLETED


def test_random_bytes_harm_no_other_client() -> None:
    choose = random.Random(4)
    rig = Rig()
    client, other = rig.client(), rig.client()
    rig.do(other, ON_K)
    head = client.frame([])
    for _ in range(3000):
        count = struct_of(CommandHeader).pack(*unpack(CommandHeader, head)._replace(count=choose.randrange(1, 4)))
        size = choose.randrange(120)
        body = bytearray(choose.randbytes(size))
        if body and choose.random() < 0.8:
            body[0] = choose.randrange(15)  # a kind of command
        if len(body) > 8 and choose.random() < 0.8:
            body[4:8] = len(body).to_bytes(4, "little")
            body[1] = 0
        first = (rig.core.last_command(client.slot) + 1).to_bytes(8, "little")
        frame = count[:32] + first + count[40:] + bytes(body)
        rig.core.begin_turn(rig.now_ns)
        assert rig.apply(client, frame) in (rig.module.APPLIED, rig.module.MALFORMED, rig.module.EXPECTED)
        answers = rig.core.last_command(client.slot)
        rig.core.acknowledge(client.slot, 1 << 40, answers, BUDGET)
        rig.core.end_turn(rig.now_ns)
    rig.check()
    assert rig.arena.record(Region.CLIENTS, other.slot).last_command == 1


def test_a_command_that_names_a_missing_record_is_refused() -> None:
    rig = Rig()
    client = rig.client()
    client.issue(Register((Key(b"k"),), timeout_ns=MS, purgatory=9))
    assert send(rig, client, client.frame()) == rig.module.MALFORMED
    assert Memory(rig.memory).in_use()["OPS"] == 0


def test_blocks_of_long_keys_of_the_ring_are_freed_too() -> None:
    rig = Rig(blocks=16)
    client = rig.client()
    rig.do(
        client,
        *(fire(b"a key of more than 48 bytes, so that the ring has a block of its own for %d" % n) for n in range(40)),
    )
    assert not client.answers, "the keys of old events filled the pool, and no client could fire"
    assert client.answer(rig.do(client, Register((Key(b"k"),), timeout_ns=50 * MS, payload=bytes(1200)))) is None
    rig.check()


def test_all_nodes_of_further_keys_can_be_allocated_again() -> None:
    rig = Rig(capacity=512, nodes=512, quota_nodes=512, quota_operations=512, blocks=64)
    client = rig.client()
    rig.do(client, *(Register((Key(b"k"), Key(b"%d" % number))) for number in range(300)))
    assert rig.arena.region(Region.NODES).high_water == rig.arena.in_use()["NODES"] == 300
    rig.do(client, *(cancel(number) for number in range(1, 301, 2)), *(cancel(number) for number in range(2, 301, 2)))
    rig.acknowledge()
    first = rig.do(client, *(Register((Key(b"k"), Key(b"%d" % number), Key(b"-%d" % number))) for number in range(256)))
    assert not client.answers and rig.arena.in_use()["NODES"] == 512
    assert client.answer(rig.do(client, Register((Key(b"a"), Key(b"b"))))) is not None, (
        "more nodes were allocated than there are"
    )
    rig.check()
    rig.restart()
    rig.check()
    rig.do(client, *(fire(b"-%d" % number) for number in range(256)))
    assert all(client.state(first + number) is Outcome.COMPLETED for number in range(256))
    rig.check()
