"""Clients that ask for too much: turns stay short, others are served within a few turns, and all can continue."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

import pytest

from support.fakes.networks import Peer, World
from support.rig.arenas import violations
from support.rig.commands import Key, Register
from support.rig.harness import MS, Rig, S, fire
from timerd.conductor.bounds import RECORDS_PER_STEP
from timerd.conductor.hello import HELLO_REST_NS
from timerd.conductor.inbox import BYTES_PER_RECORD, RECORDS_PER_HELLO
from timerd.conductor.outbox import CONFIRM_NS, OUTCOMES_PER_REPORT
from timerd.snapshots import KEEP_NS
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import ANSWERS_PER_CLIENT_MAX, FRAME_SIZE_MAX
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import DownKind, UpKind
from timerd_shm.host.process import process_start_ticks

STEP = 1_024
ON_K = Register((Key(b"k"),), timeout_ns=3_600 * S)


@pytest.fixture
def world() -> World:
    return World(capacity=16_384, quota_operations=16_384, ring_events=1_024, clients=16).until_quiet()


@pytest.mark.long
def test_a_client_is_served_although_others_have_many_frames_queued() -> None:
    crowd = 20 * STEP
    world = World(STEP, capacity=crowd + 4_096, quota_operations=crowd + 4_096, clients=8)
    world.until_quiet()
    alice, mallory, eve = (world.client(name) for name in ("alice", "mallory", "eve"))
    for _ in range(4):
        eve.send(*(ON_K for _ in range(crowd // 4)))
    world.settle()
    eve.send(fire(b"k"))
    for _ in range(20):
        for flooder in (mallory, eve):
            flooder.send(*(fire(b"other") for _ in range(60)))
    for _ in range(18):
        world.turn()
    assert world.rig.arena.header.unfinished == 1, "the event must take more turns, for this test"
    number = alice.send(fire(b"nobody's"))
    turns = 0
    while not (reports := alice.take_published()) or reports[-1].applied < number:
        world.turn(CONFIRM_NS)
        turns += not world.rig.arena.header.unfinished
        assert turns <= 4, "a frame of one command waits behind all that others have sent"
    assert world.rig.arena.count("events", 0) < 1_000, "frames of others must still wait, for this test"
    world.settle()
    assert world.rig.arena.count("events", 0) == 2 + 2 * 20 * 60
    assert violations(world.rig.memory) == []


def test_questions_for_many_outcomes_count_by_the_bytes_that_they_copy(world: World) -> None:
    mallory, alice = world.client("mallory"), world.client("alice")
    mallory.send(*(Register((Key(b"k"),), timeout_ns=0) for _ in range(4_096)))
    world.settle()
    for _ in range(200):
        mallory.say(UpKind.ASK)
    alice.say(UpKind.QUERY, {"id": 1, "query": "ping"})
    world.network.up.rotate(1)
    world.turn()
    copied = sum(len(frame) for frame in world.network.answers[mallory.routing])
    assert 0 < copied <= 2 * RECORDS_PER_STEP * BYTES_PER_RECORD
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.RESULT]
    assert world.network.up, "all questions were answered in one turn"


def test_a_frame_is_counted_by_its_bytes(world: World) -> None:
    mallory = world.client("mallory")
    for _ in range(8):
        mallory.put(mallory.header(UpKind.ACK) + bytes(FRAME_SIZE_MAX - 64))
    world.turn()
    assert len(world.network.up) >= 6


def test_hellos_with_many_pending_operations_are_read_one_by_one_with_pauses(world: World) -> None:
    mallory = world.client("mallory")
    waits = list(range(1 << 20, (1 << 20) + 100_000))
    for _ in range(3):
        mallory.say(UpKind.HELLO, mallory.hello(waits=waits))
    world.turn(HELLO_REST_NS)
    assert len(world.network.up) == 2, "several hellos were read in a turn"
    world.settle()
    assert [kind for kind, _ in mallory.take_answers()] == [DownKind.WELCOME]
    world.turn(HELLO_REST_NS)
    mallory.say(UpKind.HELLO, mallory.hello(waits=waits))
    world.settle()
    assert [kind for kind, _ in mallory.take_answers()] == [DownKind.WELCOME], "after the pause, no hello is welcomed"


@pytest.mark.parametrize("quota", [16, 500], ids=["refused", "accepted"])
def test_a_turn_takes_a_bounded_number_of_hellos_accepted_or_refused(quota: int) -> None:
    """The hellos come from one process, which the kernel names and /proc knows, as on a real machine."""
    world, pid = World(clients=512, quota_clients=quota).until_quiet(), os.getpid()
    world.sessions._host = world.sessions._host._replace(start_ticks_of=process_start_ticks)
    alice, crowd = world.client("alice"), [Peer(world, "mallory") for _ in range(450)]
    for mallory in crowd:
        world.network.pids[mallory.routing] = pid
        mallory.say(UpKind.HELLO, mallory.hello())
    alice.say(UpKind.QUERY, {"id": 1, "query": "ping"})
    world.network.up.rotate(1)
    cpu_ns = []
    while left := len(world.network.up):
        began_ns = time.thread_time_ns()
        world.turn()
        cpu_ns.append(time.thread_time_ns() - began_ns)
        assert 0 < left - len(world.network.up) <= RECORDS_PER_STEP // RECORDS_PER_HELLO + 1
    kinds = [mallory.take_answers()[0][0] for mallory in crowd]
    assert kinds.count(DownKind.WELCOME) == min(quota, len(crowd)), "the wrong number of hellos was accepted"
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.RESULT]
    assert statistics.median(cpu_ns) < 4 * MS, f"turns took {[taken // 1_000 for taken in cpu_ns]} us of the processor"


@pytest.mark.long
def test_a_turn_delivers_a_bounded_number_of_outcomes_to_a_client_and_serves_another_client_too(
    world: World,
) -> None:
    many = 5 * OUTCOMES_PER_REPORT
    mallory, alice = world.client("mallory"), world.client("alice")
    mallory.send(*(ON_K for _ in range(many)))
    world.settle()
    mallory.take_published()
    mallory.send(fire(b"k"))
    own = alice.send(Register((Key(b"own"),), timeout_ns=S), fire(b"own"))
    counts: list[int] = []
    while sum(counts) < many:
        world.turn(MS)
        counts.append(sum(report.outcomes for report in mallory.take_published()))
        assert counts[-1] <= OUTCOMES_PER_REPORT
        alice.take_published()
        assert len(counts) < 3 or alice.state(own) is Outcome.COMPLETED, "alice waits for all outcomes of mallory"
    assert len(counts) < 3 * many // OUTCOMES_PER_REPORT, "turns deliver nothing"
    assert violations(world.rig.memory) == []


def test_many_questions_for_a_copy_do_not_keep_another_client_waiting_for_ever(world: World) -> None:
    mallory, alice = world.client("mallory"), world.client("alice")
    for number in range(500):
        mallory.say(UpKind.QUERY, {"id": number, "query": "snapshot"})
    world.settle()
    assert world.copies.whole == 1
    alice.say(UpKind.QUERY, {"id": 7, "query": "snapshot"})
    for number in range(500, 1_000):
        mallory.say(UpKind.QUERY, {"id": number, "query": "snapshot"})
    world.run(KEEP_NS + MS)
    answers = [body["id"] for kind, body in alice.take_answers() if kind is DownKind.RESULT]
    assert answers == [7] and world.copies.whole == 2


def test_a_client_with_too_many_answers_continues_once_it_has_acknowledged_them(world: World) -> None:
    mallory = world.client("mallory")
    refused = replace(ON_K, id=b"0123456789abcdef")
    mallory.send(refused)
    for _ in range(3):
        mallory.send(*(refused for _ in range(ANSWERS_PER_CLIENT_MAX // 2)))
    mallory.send(ON_K)
    world.settle()
    applied = [body.applied for kind, body in mallory.take_answers() if kind is DownKind.EXPECTED]
    assert applied == [ANSWERS_PER_CLIENT_MAX + 1], "more than one answer says how far the daemon is"
    mallory.acknowledge()
    world.turn()
    again = [body.applied for kind, body in mallory.take_answers() if kind is DownKind.EXPECTED]
    assert again == applied, "without an answer, the client continues only after a while"
    assert {answer.code for answer in mallory.answers} == {ErrorCode.OPERATION_EXISTS}


def test_reports_of_a_turn_are_bounded_in_bytes_and_no_client_gets_a_second_before_all_have_one() -> None:
    rig = Rig(capacity=4_096, quota_operations=4_096, clients=16, blocks=16_384, quota_bytes=1 << 24)
    clients = [rig.client() for _ in range(8)]
    for client in clients:
        for n in range(64):
            client.issue(Register((Key(b"k%d" % n),), timeout_ns=S))
    rig.turn()
    for n in range(64):
        clients[0].issue(fire(b"k%d" % n, value=bytes(20_000)))
    rig.core.begin_turn(rig.now_ns)
    assert rig.apply(clients[0], clients[0].frame(clients[0].in_flight)) == rig.module.APPLIED
    most, receivers = 1 << 20, []
    while reports := rig.core.reports(rig.now_ns, bytes_max=most):
        assert sum(len(frame) for _, frame in reports[:-1]) < most
        receivers += [slot for slot, _ in reports]
        for slot, frame in reports:
            clients[[client.slot for client in clients].index(slot)].receive(bytes(frame))
    rig.core.end_turn(rig.now_ns)
    firsts = set(receivers[: len(clients)])
    assert firsts == {client.slot for client in clients}, "some got a second report before others got one"
    assert [len(client.delivered) for client in clients] == [64] * len(clients)
    rig.check()


def test_a_full_arena_refuses_by_name_and_settles_pending_operations_on_time() -> None:
    world = World(capacity=64, quota_operations=64)
    world.until_quiet()
    alice, bob = world.client("alice"), world.client("bob")
    began_ns = world.clock.now_ns()
    alice.send(*(Register((Key(b"%d" % n),), timeout_ns=(10 + n) * MS, registered_ns=began_ns) for n in range(64)))
    world.settle()
    refused = bob.send(Register((Key(b"one more"),), timeout_ns=MS))
    world.settle()
    bob.take_published()
    answer = bob.answer(refused)
    assert answer is not None and ErrorCode(answer.code) is ErrorCode.ARENA_FULL
    world.run(100 * MS)
    alice.take_published()
    assert [told.state for told in alice.delivered] == [Outcome.EXPIRED] * 64
    assert all(0 <= told.settled_ns - told.deadline_ns <= MS for told in alice.delivered)
    alice.acknowledge()
    world.settle()
    again = bob.send(Register((Key(b"one more"),), timeout_ns=MS))
    world.run(10 * MS)
    bob.take_published()
    assert bob.state(again) is Outcome.EXPIRED, "the freed room is not usable"


def test_a_client_that_asks_again_and_again_is_answered_once_a_turn(world: World) -> None:
    """Each answer walks over all outcomes that the client has not acknowledged."""
    alice = world.client("alice")
    alice.send(*(ON_K for _ in range(20)), fire(b"k"))
    world.settle()
    asked = world.counter("asked_again")
    for _ in range(50):
        alice.say(UpKind.ASK)
    world.turn()
    assert world.counter("asked_again") == asked + 50
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.REPORT]
    alice.say(UpKind.ASK)
    world.turn()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.REPORT], "a later turn answers again"
