"""The conductor with the real core, on a clock moved by hand and a network in memory."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.fakes.networks import Peer, World, fire, patched
from support.rig.arenas import violations
from support.rig.commands import Key, Mark, Register
from support.rig.harness import MS, S
from timerd.clients.liveness import Kind
from timerd.clients.sessions import BEAT_NS
from timerd.conductor.bounds import RECORDS_PER_STEP
from timerd.conductor.gap import DRY_NS, GAP_READ_NS
from timerd.conductor.inbox import RECORDS_PER_FRAME
from timerd.conductor.outbox import CONFIRM_NS
from timerd.conductor.subscriptions import MESSAGES_PER_TURN
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import COMMANDS_PER_FRAME_MAX, FRAME_SIZE_MAX, HEARTBEAT_NS, HELD_QUERY_MAX
from timerd_shm.declare.states import Orphans, Outcome
from timerd_shm.declare.wire import PROTOCOL_VERSION, CommandHeader, DownKind, FrameFlag, UpKind
from timerd_wire.outlet import SUBSCRIBE

KEY = (Key(b"k"),)


# one operation, from hello to outcome
# -----------------------------------------------------------------------------------------------


def test_a_client_says_hello_subscribes_registers_and_gets_its_outcome(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    command = alice.send(Register(KEY, timeout_ns=5 * S))
    world.run(CONFIRM_NS)
    assert alice.take_published()[-1].applied == command
    bob.send(fire(value=b"hello"))
    world.settle()
    alice.take_published()
    assert [(told.command, told.state, told.value) for told in alice.delivered] == [(1, Outcome.COMPLETED, b"hello")]
    assert violations(world.rig.memory) == []


# acknowledgements, heartbeats -------------------------------------------------------------------------------------


def test_unacknowledged_outcomes_are_announced_at_50_ms_doubling_to_a_second(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    alice.take_published()
    start = world.clock.now_ns()
    times_ms = []
    for _ in range(400):
        world.run(10 * MS)
        times_ms += [(world.clock.now_ns() - start) // MS for report in alice.take_published() if not report.outcomes]
    reminders = [at for at, before in zip(times_ms[1:], times_ms, strict=False) if at - before >= 0]
    assert times_ms[0] <= 60
    assert world.counter("announcements") in range(6, 9)  # at 50, 150, 350, 750, 1550, 2550, 3550 ms
    assert reminders


def test_an_acknowledgement_ends_the_reminders_and_frees_the_records(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    alice.acknowledge()
    world.settle()
    assert world.rig.arena.in_use()["OPS"] == 0
    world.run(S)
    assert world.counter("announcements") == 0


def test_a_quiet_client_gets_a_heartbeat_every_second(world: World) -> None:
    alice = world.client("alice")
    gaps = []
    at = world.clock.now_ns()
    for _ in range(500):
        world.run(10 * MS)
        if alice.take_published():
            gaps.append(world.clock.now_ns() - at)
            at = world.clock.now_ns()
    assert gaps and max(gaps) <= HEARTBEAT_NS + 20 * MS


def test_a_client_asks_for_dropped_outcomes_and_the_router_socket_answers(world: World) -> None:
    alice = world.client("alice")
    world.network.drops = True
    alice.send(Register(KEY, timeout_ns=S), fire(value=b"v"))
    world.settle()
    world.network.drops = False
    world.run(60 * MS)
    assert alice.take_published()[0].outcome_newest == 1
    alice.say(UpKind.ASK)
    world.settle()
    alice.take_answers()
    assert (alice.delivered[0].state, alice.delivered[0].value) == (Outcome.COMPLETED, b"v")
    assert world.counter("asked_again") == 1


# numbering --------------------------------------------------------------------------------------------------------


def confirmed(world: World, peer: Peer, for_ns: int = 0) -> list[int]:
    """The commands that reports confirm during `for_ns`: the newest applied command of each report."""
    world.run(for_ns)
    world.settle()
    return [header.applied for header in peer.take_published()]


def test_a_confirmation_waits_until_many_commands_share_it(world: World) -> None:
    """A frame for each command would wake two processes, although nobody waits for the confirmation."""
    alice = world.client("alice")
    world.run(CONFIRM_NS)
    alice.take_published()
    told = []
    for _ in range(50):
        last = alice.send(fire(b"nobody's"))
        told += confirmed(world, alice, CONFIRM_NS // 10)
    told += confirmed(world, alice, CONFIRM_NS)
    assert told[-1] == last
    assert 4 <= len(told) <= 6, told


def test_a_confirmation_comes_once_and_no_later_than_its_time(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    world.run(2 * CONFIRM_NS)
    for peer in (alice, bob):
        peer.take_published()
        peer.send(fire(b"nobody's"))
    assert confirmed(world, alice, CONFIRM_NS - MS) == confirmed(world, bob) == []
    assert confirmed(world, alice, MS) == confirmed(world, bob) == [1]
    assert confirmed(world, alice, 5 * CONFIRM_NS) == confirmed(world, bob) == [], (
        "no further confirmation comes before a heartbeat"
    )


def test_a_confirmation_rides_with_an_outcome(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=S))
    world.run(2 * CONFIRM_NS)
    alice.take_published()
    alice.send(fire(b"nobody's"))
    bob.send(fire())
    world.settle()
    assert [(header.outcomes, header.applied) for header in alice.take_published()] == [(1, 2)]
    alice.acknowledge()  # else the daemon reminds alice
    assert confirmed(world, alice, CONFIRM_NS) == [], "the confirmation came with the outcome"


@pytest.mark.parametrize("within", [True, False])
def test_a_client_that_waits_is_confirmed_at_once(world: World, within: bool) -> None:
    """The client asks for a report in the frame of its commands, or later in a separate frame."""
    alice = world.client("alice")
    world.run(2 * CONFIRM_NS)
    alice.take_published()
    alice.send(fire(b"nobody's"), flags=FrameFlag.CONFIRM if within else 0)
    if not within:
        assert confirmed(world, alice) == []
        alice.say(UpKind.ACK, flags=FrameFlag.CONFIRM)
    assert confirmed(world, alice) == [1]
    assert confirmed(world, alice, 2 * CONFIRM_NS) == []


def test_many_commands_are_confirmed_at_once(world: World) -> None:
    """Else a client with many commands would wait for room in its window."""
    alice = world.client("alice")
    world.run(2 * CONFIRM_NS)
    alice.take_published()
    last = alice.send(*[fire(b"nobody's")] * 1_024)
    alice.send(fire(b"nobody's"))
    assert confirmed(world, alice) == [last + 1_024]


def test_a_client_that_has_ended_gets_no_confirmation(world: World) -> None:
    """One of three clients that wait for confirmations ends. A new client may get its slot before they are sent."""
    peers = [world.client(name) for name in ("alice", "bob", "carol")]
    world.run(2 * CONFIRM_NS)
    for peer in peers:
        peer.take_published()
        peer.send(fire(b"nobody's"))
    peers[1].say(UpKind.BYE)
    world.settle()
    dave = world.client("dave")
    world.run(2 * CONFIRM_NS)
    assert [[header.applied for header in peer.take_published()] for peer in peers] == [[1], [], [1]]
    dave.send(fire(b"nobody's"))
    assert confirmed(world, dave, CONFIRM_NS)[-1] == 1


def test_the_daemon_asks_once_for_a_lost_frame_and_applies_no_later_command(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=S))
    lost = world.network.up.pop()
    for _ in range(50):
        alice.send(fire())
    world.settle()
    expected = [header for kind, header in alice.take_answers() if kind is DownKind.EXPECTED]
    assert [header.applied for header in expected] == [0]
    assert world.rig.arena.count("events", 0) == 0
    world.network.up.append(lost)
    world.run(CONFIRM_NS)
    assert alice.take_published()[-1].applied == 1


def test_a_frame_that_comes_twice_is_applied_once(world: World) -> None:
    alice = world.client("alice")
    alice.send(fire())
    world.network.up.append(world.network.up[-1])
    world.settle()
    assert world.rig.arena.count("events", 0) == 1
    assert world.counter("commands_skipped") == 1


# bounded turns ----------------------------------------------------------------------------------------------------


STEP = 1_024  # records that a step of a turn may touch in these tests


def crowded_world(watchers: int) -> tuple[World, Peer, Peer]:
    """Alice has so many operations on one key that a fire on it takes several turns."""
    world = World(STEP, capacity=watchers + 16, quota_operations=watchers + 16)
    world.until_quiet()
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(*(Register(KEY, timeout_ns=3600 * S) for _ in range(watchers)))
    world.settle()
    return world, alice, bob


def test_during_a_long_event_commands_wait_and_questions_are_answered() -> None:
    world, alice, bob = crowded_world(8 * STEP)
    bob.send(fire())
    late = alice.send(Register((Key(b"late"),), timeout_ns=S))
    alice.say(UpKind.QUERY, {"id": 5, "query": "ping"})
    bob.say(UpKind.BYE)
    world.turn()
    world.turn()
    assert world.rig.arena.header.unfinished == 1, "the event must take more than two turns, for this test"
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.RESULT]
    assert alice.take_published()[-1].applied < late, "the command waits behind the event"
    assert world.conductor.due_ns == world.clock.now_ns()
    world.run(CONFIRM_NS)
    assert world.rig.arena.header.unfinished == 0
    assert alice.take_published()[-1].applied == late
    assert world.rig.arena.count("completed", 0) == 8 * STEP
    assert world.counter("clients") == 1, "bob's goodbye is applied after his event"


def test_expiries_and_acknowledgements_continue_during_a_long_event() -> None:
    world, alice, bob = crowded_world(16 * STEP)
    carol = world.client("carol")
    carol.send(Register((Key(b"other"),), timeout_ns=2 * MS))
    world.settle()
    bob.send(fire())
    world.turn()
    world.turn(3 * MS)
    carol.take_published()
    assert carol.state(1) is Outcome.EXPIRED
    before = world.rig.arena.in_use()["OPS"]
    carol.acknowledge()
    world.turn()
    assert world.rig.arena.header.unfinished == 1
    assert world.rig.arena.in_use()["OPS"] == before - 1
    world.settle()
    assert alice.take_published()


@pytest.mark.long
def test_frames_wait_up_to_a_bound_and_then_stay_in_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerd.conductor.deferred.FRAMES_MAX", 4)
    world, alice, bob = crowded_world(16 * STEP)
    bob.send(fire())
    for _ in range(20):
        alice.send(fire(b"other"))
    for _ in range(8):
        world.turn()
    assert world.rig.arena.header.unfinished == 1
    assert len(world.network.up) == 20 - 3, "the event's own frame waits as well"
    world.settle()
    assert not world.network.up
    assert world.rig.arena.count("events", 0) == 21


@pytest.mark.long
def test_no_turn_exceeds_the_bound_of_its_steps(rng: random.Random) -> None:
    world = World(STEP, capacity=40_960, quota_operations=40_960, clients=8, ring_events=1024)
    world.until_quiet()
    peers = [world.client() for _ in range(4)]
    for peer in peers:
        for _ in range(4):
            keys = [(Key(b"hot" if rng.random() < 0.8 else b"k%d" % rng.randrange(9)),) for _ in range(2_000)]
            peer.send(*(Register(key, timeout_ns=rng.randrange(1, 30) * MS) for key in keys))
    for peer in peers:
        peer.send(*(fire(rng.choice([b"hot", b"k1"])) for _ in range(500)))
    peers[0].say(UpKind.BYE)
    world.run(40 * MS)
    for peer in peers[1:]:
        peer.acknowledge()
    world.settle()
    slack = 2 * 64 + 4_096  # one command of any size may exceed each bound
    assert world.counter("records_touched_max") <= 3 * STEP + slack
    assert world.counter("turns_cut") > 10
    assert violations(world.rig.memory) == []


def test_a_turn_reads_a_bounded_number_of_frames_and_of_subscriptions(world: World) -> None:
    alice = world.client("alice")
    frames = RECORDS_PER_STEP // RECORDS_PER_FRAME
    for _ in range(frames + 10):
        alice.say(UpKind.ACK)
    for _ in range(MESSAGES_PER_TURN // 2 + 10):
        alice.subscribe(b"nonsense")
    for _ in range(MESSAGES_PER_TURN // 2):
        world.network.up_subscriptions.append((alice.slot, SUBSCRIBE))
    world.turn()
    network = world.network
    assert (len(network.up), len(network.up_subscriptions) + len(network.asking)) == (10, 10)
    assert world.conductor.due_ns == world.clock.now_ns()


def test_a_turn_reads_a_bounded_number_of_commands(world: World) -> None:
    alice = world.client("alice")
    for _ in range(4):
        alice.send(*(fire() for _ in range(COMMANDS_PER_FRAME_MAX // 8)))
    world.turn()
    assert len(world.network.up) == 2


def test_a_turn_reads_a_bounded_number_of_long_lists(world: World) -> None:
    mallory = Peer(world, "mallory")
    hello = mallory.hello(waits=list(range(50_000)))
    for _ in range(10):
        mallory.say(UpKind.HELLO, hello)
    world.turn()
    assert len(world.network.up) == 9
    world.settle()
    peer = world.client()
    question = {"id": 1, "query": "held", "operations": [1 << 63] * HELD_QUERY_MAX}
    for _ in range(20):
        peer.say(UpKind.QUERY, question)
    world.turn()
    assert len(world.network.up) == 18


@pytest.mark.parametrize(("after_ms", "state"), [(4, Outcome.COMPLETED), (5, Outcome.EXPIRED), (20, Outcome.EXPIRED)])
def test_an_event_counts_if_the_turn_that_reads_it_is_before_the_deadline(
    world: World, after_ms: int, state: Outcome
) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=5 * MS))
    world.settle()
    bob.send(fire())
    world.turn(after_ms * MS)
    world.settle()
    alice.take_published()
    assert alice.state(1) is state


def test_without_an_event_the_deadline_is_kept_to_the_tick(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=5 * MS))
    world.run(10 * MS)
    alice.take_published()
    told = alice.delivered[0]
    assert told.state is Outcome.EXPIRED
    assert 0 <= told.settled_ns - told.deadline_ns <= MS


# gaps -------------------------------------------------------------------------------------------------------------


def test_after_a_gap_the_sockets_are_read_until_dry_before_the_wheel_moves(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=100 * MS))
    world.settle()
    world.turn(5 * S)  # the process was stopped
    assert world.counter("gaps") == 1
    world.clock.move(DRY_NS - MS)
    bob.send(fire())  # the event stood in the kernel's buffers, and arrives only now
    world.settle()
    world.run(50 * MS)
    alice.take_published()
    assert alice.state(1) is Outcome.COMPLETED
    assert not world.conductor.in_gap


def test_a_gap_ends_after_100_ms_however_many_frames_arrive(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=100 * MS))
    world.settle()
    world.turn(5 * S)
    for _ in range(GAP_READ_NS // (2 * MS)):
        bob.send(fire(b"other"))
        world.turn(2 * MS)
    assert not world.conductor.in_gap
    world.settle()
    alice.take_published()
    assert alice.state(1) is Outcome.EXPIRED


def test_a_start_reads_the_sockets_first_as_after_a_gap(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=100 * MS))
    world.settle()
    world.clock.move(S)
    world.restart()
    assert world.conductor.in_gap
    world.turn()
    bob.send(fire())
    world.until_quiet()
    assert world.rig.arena.count("completed", 0) == 1
    assert world.counter("gaps") == 0, "a start is no gap, it is only treated like one"


def test_an_idle_hour_is_no_gap(world: World) -> None:
    world.turn(3600 * S)
    assert world.counter("gaps") == 0


# idleness ---------------------------------------------------------------------------------------------------------


def test_without_clients_the_conductor_sleeps_until_the_wheel_is_due(world: World) -> None:
    assert world.conductor.due_ns == 0xFFFF_FFFF_FFFF_FFFF
    keeper = world.client(orphans=int(Orphans.KEEP))
    keeper.send(Register(KEY, timeout_ns=7200 * S))
    world.settle()
    keeper.say(UpKind.BYE)
    world.settle()
    assert len(world.sessions) == 0
    turns = world.run(600 * S)
    assert turns <= 600 / 10, f"{turns} turns in ten minutes with one far operation"
    world.run(7200 * S)
    assert world.rig.arena.count("expired", 0) == 1


def test_a_quiet_client_costs_about_two_turns_a_second(world: World) -> None:
    world.client()
    before = world.counter("turns")
    world.run(10 * S)
    assert world.counter("turns") - before <= 10 * S // BEAT_NS + 2


# questions --------------------------------------------------------------------------------------------------------


def test_questions_are_answered(world: World) -> None:
    alice = world.client("alice")
    alice.send(fire())
    assert alice.ask({"id": 1, "query": "mark"})[1] == {"id": 1, "newest": 1}
    assert alice.ask({"id": 2, "query": "purgatory", "name": "fetch"})[1] == {"id": 2, "index": 1}
    assert alice.ask({"id": 3, "query": "ping"})[1] == {"id": 3, "now_ns": world.clock.now_ns()}
    assert alice.ask({"id": 4, "query": "snapshot"})[1] == {"id": 4, "path": world.copies.path}


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({"id": 1, "query": "secrets"}, ErrorCode.NOT_SUPPORTED),
        ({"id": 1, "query": "purgatory", "name": "No!"}, ErrorCode.INVALID_NAME),
        ({"id": 1, "query": "purgatory", "name": 5}, ErrorCode.MALFORMED),
        ({"id": 1, "query": 5}, ErrorCode.MALFORMED),
        ({"id": -1, "query": "ping"}, ErrorCode.MALFORMED),
        ({"query": "ping"}, ErrorCode.MALFORMED),
        ([1, 2], ErrorCode.MALFORMED),
        ({5: 6}, ErrorCode.MALFORMED),
    ],
)
def test_a_wrong_question_is_answered_with_its_code(world: World, question: Any, code: ErrorCode) -> None:
    kind, error = world.client().ask(question)
    assert (kind, error["code"]) == (DownKind.ERROR, code)
    if isinstance(question, dict) and question.get("id") == 1:
        assert error["id"] == 1, "the error answers the question"


# damaged frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"", ErrorCode.MALFORMED),
        (b"\x01" * 55, ErrorCode.MALFORMED),
        (bytes([PROTOCOL_VERSION + 1]) + bytes(55), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_message_that_is_no_frame_is_refused_with_its_code(world: World, frame: bytes, code: ErrorCode) -> None:
    peer = world.client()
    peer.put(frame)
    world.settle()
    kind, error = peer.take_answers()[0]
    assert (kind, error["code"]) == (DownKind.ERROR, code)
    assert world.counter("frames_malformed") == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x80 and more",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 10_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x81\xa2\xff\xfe\x01",
        b"\xc7\x0c\xff" + bytes(12),
        b"\xd6\xff\x00\x00\x00\x00",
        b"\xc1",
    ],
)
@pytest.mark.parametrize("kind", [UpKind.HELLO, UpKind.QUERY])
def test_a_body_that_is_no_known_map_is_malformed(world: World, kind: UpKind, body: bytes) -> None:
    peer = world.client()
    peer.put(peer.header(kind) + body)
    world.settle()
    answer, error = peer.take_answers()[0]
    assert (answer, error["code"]) == (DownKind.ERROR, ErrorCode.MALFORMED)


def test_a_list_deeper_than_python_can_show_is_refused(world: World) -> None:
    """msgpack reads 1,024 nested lists, but repr() shows only about 1,000. So not even the error may show them."""
    peer = Peer(world, "x")
    peer.say(UpKind.HELLO, peer.hello(purgatories=["deep"]))
    routing, frame = world.network.up.pop()
    for depth in (500, 900, 1_000, 1_015):
        world.network.up.append((routing, frame.replace(b"\x91\xa4deep", b"\x91" * depth + b"\x90")))
        world.settle()
        assert [(kind, error["code"]) for kind, error in peer.take_answers()] == [
            (DownKind.ERROR, ErrorCode.INVALID_NAME)
        ]


def test_a_malformed_frame_harms_no_other_client_and_is_logged_without_its_content(world: World) -> None:
    alice, mallory = world.client("alice"), world.client("mallory")
    mallory.put(mallory.header(UpKind.COMMANDS, count=3, first=1) + b"\xffsecret-payload" * 10)
    mallory.put(mallory.header(99))
    mallory.put(mallory.header(UpKind.COMMANDS, count=COMMANDS_PER_FRAME_MAX + 1, first=1))
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    errors = [error["code"] for kind, error in mallory.take_answers() if kind is DownKind.ERROR]
    assert errors == [ErrorCode.MALFORMED] * 3
    alice.take_published()
    assert alice.state(1) is Outcome.COMPLETED
    logged = [record for record in world.rig.arena.all_records(Region.ERRORS) if record.count]
    assert logged and all(b"secret-payload" not in record.message for record in logged)
    assert all(mallory.session not in record.message for record in logged)


def test_no_message_from_a_socket_makes_a_turn_raise(world: World, rng: random.Random) -> None:
    alice, mallory = world.client("alice"), world.client("mallory")
    good = [
        mallory.header(UpKind.COMMANDS, 1, 1) + mallory.frame([(1, Register(KEY, timeout_ns=S))])[56:],
        mallory.header(UpKind.COMMANDS, 1, 1) + mallory.frame([(1, fire(value=b"v" * 50))])[56:],
        mallory.header(UpKind.ASK),
        mallory.header(UpKind.ACK),
    ]
    for kind, message in ((UpKind.HELLO, mallory.hello()), (UpKind.QUERY, {"id": 1, "query": "mark"})):
        mallory.say(kind, message)
        good.append(world.network.up.pop()[1])
    header_size = struct_of(CommandHeader).size
    for step in range(10_000):
        frame = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 6)):
            start = 0 if rng.random() < 0.3 else header_size
            if start < len(frame):
                frame[rng.randrange(start, len(frame))] = rng.randrange(256)
        cut = rng.randrange(len(frame) + 1) if rng.random() < 0.2 else len(frame)
        known = rng.random() < 0.7
        mallory.put((patched(bytes(frame), "session", mallory.session) if known else bytes(frame))[:cut])
        if rng.random() < 0.1:
            mallory.subscribe(rng.randbytes(rng.randrange(40)))
        if rng.random() < 0.02:
            shown = rng.choice([mallory.session, rng.randbytes(16)])
            world.lifelines.cut(world.lifelines.connect(shown), rng.choice([Kind.ENDED, Kind.BROKEN]))
        world.turn(rng.randrange(3) * MS)
        if step % 100 == 0:
            world.settle()
            assert violations(world.rig.memory) == []
    world.settle()
    assert violations(world.rig.memory) == []
    command = alice.send(Register((Key(b"alice"),), timeout_ns=S, mark=Mark(0, 0)), fire(b"alice"))
    world.settle()
    alice.take_published()
    alice.say(UpKind.ASK)
    world.settle()
    alice.take_answers()
    assert alice.outcome(command) is not None


def test_the_largest_frame_is_accepted(world: World) -> None:
    alice = world.client("alice")
    alice.put(alice.header(UpKind.ACK).ljust(FRAME_SIZE_MAX, b"\0"))
    world.settle()
    assert alice.take_answers() == []
