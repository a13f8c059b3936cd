"""Hellos in each state of a client, and proofs of identity: on a clock moved by hand, with a network in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.fakes.daemonrules import an_incarnation_is_not_enough, what_the_arena_shows_is_not_enough
from support.fakes.networks import HERE, NOTHING, PROCESSES, Peer, World, fire
from support.rig.arenas import violations
from support.rig.commands import Key, Register
from support.rig.harness import MS, S
from timerd.clients.session import session_hash
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.limits import HEARTBEAT_NS, HELD_QUERY_MAX, HELLO_FIRST_SIZE_MAX, TOMBSTONE_KEPT_NS
from timerd_shm.declare.states import ClientState, Orphans, Outcome
from timerd_shm.declare.wire import DownKind, FrameFlag, UpKind

KEY = (Key(b"k"),)


def state_of(world: World, peer: Peer) -> ClientState:
    return ClientState(world.client_record(peer.slot).state)


def die(peer: Peer) -> None:
    """Let the client end without a goodbye, and the daemon act on this end."""
    world = peer.world
    world.lifelines.cut(peer.hold())
    world.run(20 * MS)
    assert world.sessions.at(peer.slot) is None


# the life of a client ---------------------------------------------------------------------------------------------


def test_a_welcome_has_the_fields_that_a_client_needs(world: World) -> None:
    peer = world.client("web-1", purgatories=["fetch", "default"])
    welcome = peer.welcomes[0]
    assert len(welcome["session"]) == 16 and welcome["session"] != NOTHING
    assert welcome["topic"] == world.core.topic(welcome["slot"])
    assert (welcome["applied"], welcome["unknown"], welcome["shared_clock"]) == (0, [], True)
    assert welcome["purgatories"] == {"fetch": 1, "default": 0}
    assert (welcome["heartbeat_ns"], welcome["lease_ns"], welcome["daemon_pid"]) == (HEARTBEAT_NS, 15 * S, 4711)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    PROCESSES.clear()


@pytest.mark.parametrize("differs", [{"boot_id": b"x" * 16}, {"time_namespace": HERE.time_namespace + 1}])
def test_the_welcome_says_that_a_client_has_another_clock(world: World, differs: dict[str, Any]) -> None:
    assert world.client(**differs).welcomes[0]["shared_clock"] is False


def test_the_session_is_nowhere_in_the_arena(world: World) -> None:
    peer = world.client()
    assert peer.session not in bytes(world.rig.memory)
    assert session_hash(peer.session) in bytes(world.rig.memory)


def test_a_repeated_hello_with_its_session_changes_nothing(world: World) -> None:
    peer = world.client()
    peer.send(Register(KEY, timeout_ns=S))
    before = peer.session, peer.slot
    peer.connect()
    assert (peer.session, peer.slot) == before
    assert peer.welcomes[-1]["applied"] == 1


def test_a_hello_lists_its_pending_operations_and_the_welcome_lists_the_unknown_operations(world: World) -> None:
    peer = world.client()
    peer.send(Register(KEY, timeout_ns=S), Register(KEY, timeout_ns=S))
    world.settle()
    peer.connect(waits=[1, 2, 77])
    assert peer.welcomes[-1]["unknown"] == [77]


def test_a_large_hello_without_a_known_session_is_not_parsed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, mallory = world.client("alice"), Peer(world, "mallory")
    waits = list(range(1 << 20, (1 << 20) + HELLO_FIRST_SIZE_MAX // 5))
    monkeypatch.setattr("timerd.conductor.hello.read_hello", lambda frame: pytest.fail("the hello was parsed"))
    mallory.say(UpKind.HELLO, mallory.hello(waits=waits))
    mallory.session = b"of long ago".ljust(16, b".")
    mallory.say(UpKind.HELLO, mallory.hello(waits=waits))
    world.settle()
    (refused, error), (gone, _) = mallory.take_answers()
    assert (refused, error["code"], gone) == (DownKind.ERROR, ErrorCode.MALFORMED, DownKind.SESSION_GONE)
    assert str(HELLO_FIRST_SIZE_MAX) in error["message"]
    monkeypatch.undo()
    alice.connect(waits=waits)
    assert alice.welcomes[-1]["unknown"] == waits
    die(alice)
    alice.connect(waits=waits)  # the daemon knows the tombstone's session
    world.restart()
    alice.connect(waits=waits)
    assert len(world.sessions) == 1


def test_a_lost_welcome_is_sent_again_while_no_command_is_applied(world: World) -> None:
    peer = Peer(world, "x")
    peer.say(UpKind.HELLO, peer.hello())
    world.settle()
    peer.take_answers()  # the first welcome is lost
    peer.connect()
    assert len(world.sessions) == 1


def test_an_incarnation_read_in_the_arena_is_not_enough_to_become_its_client(world: World) -> None:
    an_incarnation_is_not_enough(world)


def test_nothing_that_the_arena_shows_acts_for_or_against_a_client(world: World) -> None:
    what_the_arena_shows_is_not_enough(world)


def test_a_hello_that_came_twice_gets_the_same_session(world: World) -> None:
    """The client may get the first WELCOME as well, and use its session. A second session would end the first one."""
    peer = world.client("x")
    session, peer.session = peer.session, NOTHING
    peer.connect()
    assert (peer.session, len(world.sessions)) == (session, 1)


def test_a_hello_that_came_twice_gets_a_new_session_from_another_daemon(world: World) -> None:
    """The next daemon knows only the hash of the first session, from the arena."""
    peer = world.client("x")
    session, peer.session = peer.session, NOTHING
    world.restart()
    peer.connect()
    assert peer.session != session and len(world.sessions) == 1
    assert violations(world.rig.memory) == []


def test_a_client_that_returns_with_an_unknown_session_gets_session_gone(world: World) -> None:
    peer = Peer(world, "late")
    peer.session = b"of long ago".ljust(16, b".")
    peer.say(UpKind.HELLO, peer.hello())
    world.settle()
    assert [kind for kind, _ in peer.take_answers()] == [DownKind.SESSION_GONE]


def test_a_goodbye_cancels_the_operations_of_the_client_and_frees_its_slot(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=S), Register(KEY, timeout_ns=S))
    world.settle()
    alice.say(UpKind.BYE)
    world.settle()
    assert world.counter("clients") == 1
    assert world.rig.arena.count("cancelled", 0) == 2
    assert world.rig.arena.in_use()["OPS"] == 0
    alice.send(fire())
    world.settle()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.HELLO_FIRST]
    assert bob.ask({"id": 1, "query": "ping"})[0] is DownKind.RESULT


def test_a_hello_beyond_the_number_of_clients_is_refused_by_name(world: World) -> None:
    for _ in range(4):
        world.client()
    peer = Peer(world, "fifth")
    peer.say(UpKind.HELLO, peer.hello())
    world.settle()
    kind, error = peer.take_answers()[0]
    assert (kind, error["code"]) == (DownKind.ERROR, ErrorCode.ARENA_FULL)
    assert "4 of 4" in error["message"]


def test_slots_are_charged_to_the_process_that_the_kernel_names(world: World) -> None:
    """Mallory's hellos name other processes. Still they use up her own share, and no share of others."""
    world = World(capacity=64, clients=8, quota_clients=2).until_quiet()
    PROCESSES.update({70: 1, 71: 1})
    for number in range(3):
        mallory = Peer(world, "mallory")
        world.network.pids[mallory.routing] = 70
        mallory.say(UpKind.HELLO, mallory.hello(pid=71 if number else 0, start_ticks=1))
        world.settle()
        [(kind, body)] = mallory.take_answers()
        assert kind is (DownKind.ERROR if number == 2 else DownKind.WELCOME)
    assert (body["code"], "process 70 may have 2 of 8" in body["message"]) == (ErrorCode.QUOTA_EXCEEDED, True)
    for _ in range(2):
        other = Peer(world, "other")
        world.network.pids[other.routing] = 71
        other.connect()
    gone = Peer(world, "its process has ended")
    world.network.pids[gone.routing] = 72
    gone.connect()
    record = world.client_record(gone.slot)
    assert (record.maker_pid, record.maker_start_ticks) == (0, 0)


def test_what_a_client_makes_for_a_group_is_charged_to_the_user_that_the_kernel_names() -> None:
    world = World(capacity=64, clients=8).until_quiet()
    for uid in (1_000, 1_001):
        peer = Peer(world, "maker")
        world.network.uids[peer.routing] = uid
        peer.connect()
        user = world.rig.arena.record(Region.ACCOUNTS, peer.slot).user
        assert world.rig.arena.record(Region.USERS, user)[0::3] == (1, uid)


def test_a_hello_that_is_refused_makes_no_purgatory(world: World) -> None:
    world = World(capacity=64, clients=2, purgatories=32).until_quiet()
    world.client(purgatories=["first"])
    world.client()
    late = Peer(world, "late")
    late.say(UpKind.HELLO, late.hello(purgatories=["never"]))
    world.settle()
    assert late.take_answers()[0][1]["code"] == ErrorCode.ARENA_FULL
    names = [record.name[: record.name_length] for record in world.rig.arena.all_records(Region.PURGATORIES)]
    assert b"first" in names and b"never" not in names


def test_a_hello_with_more_new_purgatories_than_its_share_opens_no_client(world: World) -> None:
    world = World(capacity=64, clients=4, purgatories=32).until_quiet()
    greedy = Peer(world, "greedy")
    greedy.say(UpKind.HELLO, greedy.hello(purgatories=[f"p-{number}" for number in range(20)]))
    world.settle()
    kind, error = greedy.take_answers()[0]
    assert (kind, error["code"], len(world.sessions)) == (DownKind.ERROR, ErrorCode.QUOTA_EXCEEDED, 0)
    assert "16 of 32 purgatories" in error["message"]


def test_a_connected_client_stays_if_its_hello_names_too_many_purgatories(world: World) -> None:
    world = World(capacity=64, clients=4, purgatories=32).until_quiet()
    alice, bob = world.client("alice"), world.client("bob")
    bob.send(fire())
    die(bob)
    world.restart()
    many = [f"p-{number}" for number in range(20)]
    for peer in (alice, bob):
        peer.say(UpKind.HELLO, peer.hello(purgatories=many))
        world.settle()
        assert peer.take_answers()[-1][1]["code"] == ErrorCode.QUOTA_EXCEEDED
    assert state_of(world, alice) is ClientState.LIVE
    world.until_quiet()
    assert state_of(world, bob) is ClientState.TOMBSTONE
    bob.connect()
    assert bob.welcomes[-1]["applied"] == 1


# a restart of the daemon ------------------------------------------------------------------------------------------


def test_after_a_restart_the_session_is_valid_and_the_command_numbers_continue(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    alice.send(Register(KEY, timeout_ns=S), Register(KEY, timeout_ns=S))
    world.settle()
    world.restart()
    assert len(world.sessions) == 2
    alice.subscribe()
    bob.send(fire())  # without a hello: the arena has the hash of bob's session
    world.until_quiet()
    assert alice.take_published()[0].outcome_newest in (0, 2)
    alice.say(UpKind.ASK)
    world.settle()
    alice.take_answers()
    assert [told.state for told in alice.delivered] == [Outcome.COMPLETED, Outcome.COMPLETED]
    assert alice.send(fire(b"other"), flags=FrameFlag.CONFIRM) == 3
    world.settle()
    assert alice.take_published()[-1].applied == 3


def test_outcomes_from_before_a_restart_are_delivered_after_it(world: World) -> None:
    alice = world.client("alice")
    world.network.drops = True
    alice.send(Register(KEY, timeout_ns=5 * MS))
    world.run(10 * MS)
    world.restart()
    world.network.drops = False
    alice.connect()
    alice.say(UpKind.ASK)
    world.settle()
    alice.take_answers()
    assert alice.state(1) is Outcome.EXPIRED


def test_a_frame_for_another_arena_gets_hello_first(world: World) -> None:
    alice = world.client("alice")
    alice.say(UpKind.ACK, incarnation=alice.arena_incarnation + 1)
    world.settle()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.HELLO_FIRST]


# the dead, and those who come back --------------------------------------------------------------------------------


def test_a_dead_client_that_returns_keeps_its_numbering_and_learns_its_lost_operations(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=60 * S), fire(b"other"), Register(KEY, timeout_ns=60 * S))
    world.settle()
    before = alice.slot, alice.session
    die(alice)
    assert state_of(world, alice) is ClientState.TOMBSTONE
    assert world.counter("orphans_cancelled") == 2
    alice.connect(waits=[1, 3])
    assert (alice.slot, alice.session) == before
    assert (alice.welcomes[-1]["applied"], alice.welcomes[-1]["unknown"]) == (3, [1, 3])
    assert state_of(world, alice) is ClientState.LIVE
    assert world.counter("tombstones_resumed") == 1
    assert alice.send(Register(KEY, timeout_ns=60 * S)) == 4
    fired = world.client("bob")
    fired.send(fire())
    world.settle()
    alice.take_published()
    assert alice.state(4) is Outcome.COMPLETED
    assert violations(world.rig.memory) == []


def test_a_client_that_dies_again_and_again_leaves_no_operation_behind(world: World) -> None:
    """The client's counts are the same at each death: one pending operation, and no outcome."""
    alice = world.client("alice")
    for death in range(1, 4):
        alice.send(Register(KEY, timeout_ns=3600 * S))
        world.settle()
        die(alice)
        assert world.counter("orphans_cancelled") == death
        assert violations(world.rig.memory) == []
        alice.connect()
    assert world.counter("sweeps_recounted") == 0


def test_a_frame_that_a_dead_client_sent_twice_is_applied_once(world: World) -> None:
    alice = world.client("alice")
    alice.send(fire(), fire())
    again = world.network.up[-1]
    world.settle()
    die(alice)
    alice.connect()
    world.network.up.append(again)
    world.settle()
    assert world.rig.arena.count("events", 0) == 2
    assert world.counter("commands_skipped") == 2


def test_a_tombstone_outlives_the_daemon(world: World) -> None:
    alice = world.client("alice")
    alice.send(fire())
    world.settle()
    die(alice)
    world.restart()
    world.until_quiet()
    alice.connect()
    assert alice.welcomes[-1]["applied"] == 1


def test_a_tombstone_that_is_too_old_is_freed(world: World) -> None:
    alice = world.client("alice")
    die(alice)
    world.run(TOMBSTONE_KEPT_NS + S)
    assert state_of(world, alice) is ClientState.FREE
    alice.say(UpKind.HELLO, alice.hello())
    world.settle()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.SESSION_GONE]


def test_the_oldest_tombstone_is_replaced_when_all_slots_are_used(world: World) -> None:
    dead = [world.client() for _ in range(4)]
    for peer in dead:
        die(peer)
        world.run(MS)
    newcomer = world.client()
    assert newcomer.slot == dead[0].slot
    dead[0].say(UpKind.HELLO, dead[0].hello())
    world.settle()
    assert [kind for kind, _ in dead[0].take_answers()] == [DownKind.SESSION_GONE]
    dead[1].connect()


def test_a_goodbye_leaves_no_tombstone(world: World) -> None:
    alice = world.client("alice")
    alice.say(UpKind.BYE)
    world.settle()
    assert state_of(world, alice) is ClientState.FREE
    assert world.counter("clients_died") == 0
    alice.say(UpKind.HELLO, alice.hello())
    world.settle()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.SESSION_GONE]


def test_a_hello_is_not_answered_before_the_sweep_of_its_client_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(64, capacity=4_096, quota_operations=4_096)
    world.until_quiet()
    alice = world.client("alice")
    alice.send(*(Register((Key(b"k%d" % n),), timeout_ns=3600 * S) for n in range(2_000)))
    world.settle()
    world.lifelines.cut(alice.hold())
    world.turn()
    world.turn(20 * MS)
    assert state_of(world, alice) is ClientState.DEAD
    alice.say(UpKind.HELLO, alice.hello(waits=[1]))
    world.turn()
    assert state_of(world, alice) is ClientState.DEAD, "the sweep must take many turns, for this test"
    alice.send(fire())
    world.turn()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.HELLO_FIRST], "the client is not asked for a hello"
    world.settle()
    alice.issued -= 1
    alice.connect(waits=[1])
    assert alice.welcomes[-1]["unknown"] == [1]
    assert violations(world.rig.memory) == []


def test_a_silent_client_says_hello_and_is_live_with_all_its_operations(world: World) -> None:
    alice = world.client("alice")
    alice.send(Register(KEY, timeout_ns=3600 * S))
    world.settle()
    world.run(20 * S)
    assert state_of(world, alice) is ClientState.SILENT
    alice.connect(waits=[1])
    assert alice.welcomes[-1]["unknown"] == []
    assert state_of(world, alice) is ClientState.LIVE


def test_the_session_of_a_tombstone_with_another_incarnation_is_refused(world: World) -> None:
    alice = world.client("alice")
    die(alice)
    alice.say(UpKind.HELLO, alice.hello(proof=b"somebody else's."))
    world.settle()
    assert [kind for kind, _ in alice.take_answers()] == [DownKind.SESSION_GONE]
    assert state_of(world, alice) is ClientState.TOMBSTONE


def test_the_proof_of_a_tombstone_without_its_session_opens_a_new_client(world: World) -> None:
    """A client that has lost its session begins anew: it gets neither the slot nor the numbering."""
    alice, again = world.client("alice"), Peer(world, "again")
    alice.send(fire())
    die(alice)
    again.proof = alice.proof
    again.connect()
    assert again.slot != alice.slot and again.welcomes[-1]["applied"] == 0


# groups -----------------------------------------------------------------------------------------------------------


def test_the_hello_of_a_member_has_its_group_and_whether_it_listens(world: World) -> None:
    alice = world.client("alice", group="workers", orphans=int(Orphans.GROUP), listens=True)
    bob = world.client("bob", group="workers")
    records = [world.client_record(peer.slot) for peer in (alice, bob)]
    assert records[0].group == records[1].group != 0
    group = world.rig.arena.record(Region.GROUPS, records[0].group - 1)
    assert (group.name[: group.name_length], group.members) == (b"workers", 2)
    assert records[0].orphans == Orphans.GROUP


def test_the_outcome_of_an_adopted_operation_is_delivered_to_a_listening_member(world: World) -> None:
    alice = world.client("alice", group="workers", orphans=int(Orphans.GROUP))
    bob, carol = world.client("bob", group="workers"), world.client("carol")
    alice.send(Register(KEY, timeout_ns=3600 * S, payload=b"job"))
    world.settle()
    die(alice)
    carol.send(fire())
    world.settle()
    assert [header.outcomes for header in bob.take_published() if header.outcomes] == []
    assert bob.ask({"id": 1, "query": "listen", "on": True})[1] == {"id": 1, "on": True}
    assert sum(header.outcomes for header in bob.take_published()) == 1
    [operation] = [record for record in world.rig.arena.records(Region.OPS) if record.group]
    handle = operation.generation << 32 | 0
    assert bob.ask({"id": 2, "query": "held", "operations": [handle, handle + 1]})[1]["held"] == [handle]
    assert bob.ask({"id": 3, "query": "listen", "on": False})[1] == {"id": 3, "on": False}
    assert bob.ask({"id": 4, "query": "held", "operations": [handle]})[1]["held"] == []


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ({"query": "listen", "on": True}, ErrorCode.NOT_A_MEMBER),
        ({"query": "listen"}, ErrorCode.MALFORMED),
        ({"query": "listen", "on": 1}, ErrorCode.MALFORMED),
        ({"query": "held", "operations": 5}, ErrorCode.MALFORMED),
        ({"query": "held", "operations": [-1]}, ErrorCode.MALFORMED),
        ({"query": "held", "operations": [0] * (HELD_QUERY_MAX + 1)}, ErrorCode.MALFORMED),
    ],
)
def test_a_wrong_question_about_a_group_is_answered_with_its_code(
    world: World, question: dict[str, Any], code: ErrorCode
) -> None:
    kind, error = world.client().ask({"id": 1, **question})
    assert (kind, error["code"]) == (DownKind.ERROR, code)


# refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"protocol": 99}, ErrorCode.UNSUPPORTED_VERSION),
        ({"proof": b"short"}, ErrorCode.MALFORMED),
        ({"proof": "sixteen bytes ok"}, ErrorCode.MALFORMED),
        ({"name": "x" * 33}, ErrorCode.INVALID_NAME),
        ({"name": "a\x1b[31m"}, ErrorCode.INVALID_NAME),
        ({"name": 5}, ErrorCode.MALFORMED),
        ({"pid": -1}, ErrorCode.MALFORMED),
        ({"pid": 1 << 40}, ErrorCode.MALFORMED),
        ({"pid": True}, ErrorCode.MALFORMED),
        ({"group": "No!"}, ErrorCode.INVALID_NAME),
        ({"group": 5}, ErrorCode.INVALID_NAME),
        ({"listens": 1}, ErrorCode.MALFORMED),
        ({"listens": True}, ErrorCode.NOT_A_MEMBER),
        ({"orphans": 2}, ErrorCode.NOT_A_MEMBER),
        ({"orphans": 3}, ErrorCode.NOT_SUPPORTED),
        ({"waits": [-1]}, ErrorCode.MALFORMED),
        ({"waits": "123"}, ErrorCode.MALFORMED),
        ({"waits": [[]]}, ErrorCode.MALFORMED),
        ({"purgatories": ["fine", "Not fine"]}, ErrorCode.INVALID_NAME),
        ({"purgatories": ["p"] * 65}, ErrorCode.MALFORMED),
        ({"purgatories": ["a", "b", "c"]}, ErrorCode.ARENA_FULL),
    ],
)
def test_a_wrong_hello_is_refused_with_its_code_and_opens_no_client(
    world: World, said: dict[str, object], code: ErrorCode
) -> None:
    peer = Peer(world, "x")
    peer.say(UpKind.HELLO, peer.hello(**said))
    world.settle()
    kind, error = peer.take_answers()[0]
    assert (kind, error["code"]) == (DownKind.ERROR, code)
    assert len(world.sessions) == 0
