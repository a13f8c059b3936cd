"""Ends of clients are certain, silence is counted: on a clock moved by hand, with a network in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.fakes.daemonrules import (
    KEY,
    LEASE,
    a_daemon_that_was_stopped_suspects_nobody,
    a_restart_makes_leases_whole,
    keep_alive,
    state_of,
    waits,
)
from support.fakes.networks import PROCESSES, Lifelines, Peer, World, fire
from support.rig.arenas import violations
from support.rig.commands import Key, Register
from support.rig.harness import MS, S
from timerd.clients.ends import LAST_WORDS_NS
from timerd.clients.liveness import Kind
from timerd.clients.sessions import BEAT_NS
from timerd.clients.silence import BACK_WITHIN_NS, DEAD_AFTER_NS
from timerd.conductor.gap import DRY_NS
from timerd.conductor.inbox import RECORDS_PER_FRAME
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import GAP_NS, HEARTBEAT_NS
from timerd_shm.declare.states import ClientState, Orphans, Outcome
from timerd_shm.declare.wire import DownKind, FrameFlag, UpKind


@pytest.fixture
def world() -> World:
    return World(lease_ns=LEASE).until_quiet()


@pytest.fixture
def processes() -> Iterator[dict[int, int]]:
    """The processes of the host: pid and start ticks."""
    PROCESSES.update({100: 7, 200: 8, 300: 9})
    yield PROCESSES
    PROCESSES.clear()


# the end of a client ----------------------------------------------------------------------------------------------


def test_the_end_of_a_connection_takes_effect_a_moment_later(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    connection = alice.hold()
    bob.hold()
    waits(alice)
    waits(bob)
    world.lifelines.cut(connection)
    world.settle()
    assert state_of(alice) is ClientState.LIVE
    world.run(LAST_WORDS_NS)
    assert state_of(alice) is ClientState.TOMBSTONE
    assert (world.counter("orphans_cancelled"), world.counter("clients_died")) == (1, 1)
    assert state_of(bob) is ClientState.LIVE
    assert violations(world.rig.memory) == []


def test_frames_that_a_client_sent_before_its_end_are_applied(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    command = waits(bob)
    world.lifelines.cut(alice.hold())
    world.settle()
    world.run(LAST_WORDS_NS - MS)
    alice.send(fire(value=b"last words"))  # libzmq's thread was slower than the kernel
    world.settle()
    bob.take_published()
    assert bob.state(command) is Outcome.COMPLETED


def test_a_goodbye_together_with_the_end_of_file_is_a_goodbye(world: World) -> None:
    alice = world.client("alice")
    world.lifelines.cut(alice.hold())
    world.settle()
    alice.say(UpKind.BYE)
    world.run(S)
    assert state_of(alice) is ClientState.FREE
    assert world.counter("clients_died") == 0


def test_the_end_of_a_client_that_has_announced_it_is_a_goodbye(world: World) -> None:
    alice, bob, carol = (world.client(name) for name in ("alice", "bob", "carol"))
    ends = [client.hold() for client in (alice, bob, carol)]
    waits(alice)
    alice.send(fire(b"last"), flags=FrameFlag.LEAVING)
    bob.say(UpKind.ACK, flags=FrameFlag.LEAVING)
    world.settle()
    assert state_of(alice) is ClientState.LIVE, "a client that announces its end may still go on"
    bob.say(UpKind.ACK)  # bob goes on after all
    for end in ends:
        world.lifelines.cut(end)
    world.run(S)
    assert state_of(alice) is ClientState.FREE
    assert {state_of(bob), state_of(carol)} == {ClientState.TOMBSTONE}
    assert (world.counter("orphans_cancelled"), world.counter("clients_died")) == (1, 2)


@pytest.mark.long
def test_the_end_of_a_client_waits_for_its_commands_behind_a_long_event() -> None:
    world = World(1_024, capacity=20_000, quota_operations=20_000)
    world.until_quiet()
    alice, bob, carol = world.client("alice"), world.client("bob"), world.client("carol")
    alice.send(*(Register(KEY, timeout_ns=3600 * S) for _ in range(16_000)))
    world.settle()
    connection = bob.hold()
    carol.send(fire())
    bob.send(Register((Key(b"other"),), timeout_ns=3600 * S), fire(b"bob's last"))
    world.lifelines.cut(connection)
    world.turn()
    world.turn(LAST_WORDS_NS)
    assert world.rig.arena.header.unfinished == 1, "the event must take more than two turns, for this test"
    assert state_of(bob) is ClientState.LIVE
    world.run(S)
    assert world.rig.arena.count("events", 0) == 2
    assert state_of(bob) is ClientState.TOMBSTONE


def test_an_end_noticed_after_a_gap_waits_until_the_sockets_are_dry(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    connection, command = alice.hold(), waits(bob)
    world.lifelines.cut(connection)
    world.turn(60 * S)  # the daemon was stopped; meanwhile the connection ended
    assert world.conductor.in_gap
    for _ in range(5):
        world.turn(DRY_NS - MS)
        bob.say(UpKind.ACK)  # so the sockets are not dry
    alice.send(fire())
    world.run(S)
    bob.take_published()
    assert bob.state(command) is Outcome.COMPLETED
    assert state_of(alice) is ClientState.TOMBSTONE


def test_a_connection_that_shows_no_known_session_is_closed_and_counted(world: World) -> None:
    alice = world.client("alice")
    unknown = world.lifelines.connect(b"of nobody here..")
    world.settle()
    assert unknown not in world.lifelines.connections
    world.lifelines.refused = 3
    world.run(S)
    assert world.counter("liveness_refused") == 4
    assert state_of(alice) is ClientState.LIVE


def test_the_newest_connection_counts_and_the_earlier_connection_is_closed(world: World) -> None:
    alice = world.client("alice")
    first = alice.hold()
    second = alice.hold()
    assert world.lifelines.connections == {second}
    world.lifelines.cut(first)
    world.run(S)
    assert state_of(alice) is ClientState.LIVE
    world.lifelines.cut(second)
    third = alice.hold()  # the daemon sees both in one turn: alice has changed her connection
    world.run(S)
    assert state_of(alice) is ClientState.LIVE
    world.lifelines.cut(third)
    world.run(S)
    assert state_of(alice) is ClientState.TOMBSTONE


def test_a_goodbye_closes_the_connection_of_its_client(world: World) -> None:
    alice = world.client("alice")
    alice.hold()
    alice.say(UpKind.BYE)
    world.settle()
    assert world.lifelines.connections == set()


# processes --------------------------------------------------------------------------------------------------------


def test_without_a_connection_the_process_is_watched_and_not_polled(world: World, processes: dict[int, int]) -> None:
    peers = [world.client(pid=pid, start_ticks=start) for pid, start in processes.items()]
    waits(peers[0])
    assert world.lifelines.watched == [100, 200, 300]
    looks = world.lifelines.looks
    world.run(30 * S)
    assert world.lifelines.looks == looks, "/proc was read although there are pidfds"
    del processes[100]  # ended
    processes[200] = 99  # ended, and another process has its pid
    world.run(LAST_WORDS_NS)
    assert [state_of(peer) for peer in peers[:2]] == [ClientState.TOMBSTONE] * 2
    assert world.counter("orphans_cancelled") == 1
    assert world.sessions.at(peers[2].slot) is not None


def test_a_connection_replaces_a_pidfd_until_it_breaks(world: World, processes: dict[int, int]) -> None:
    alice = world.client(pid=100, start_ticks=7)
    connection = alice.hold()
    assert world.lifelines.watched == []
    world.lifelines.cut(connection, Kind.BROKEN)
    world.run(S)
    assert world.lifelines.watched == [100]
    assert state_of(alice) is ClientState.LIVE
    second = alice.hold()
    del processes[100]
    world.lifelines.cut(second, Kind.BROKEN)
    world.run(S)
    assert state_of(alice) is ClientState.TOMBSTONE


def test_without_pidfds_proc_is_read_each_beat(processes: dict[int, int]) -> None:
    world = World(pidfds=False)
    world.until_quiet()
    alice = world.client(pid=100, start_ticks=7)
    world.client("bob").hold()
    looks = world.lifelines.looks
    world.run(10 * S)
    assert world.lifelines.looks - looks == 10 * S // BEAT_NS
    del processes[100]
    world.run(BEAT_NS + LAST_WORDS_NS)
    assert state_of(alice) is ClientState.TOMBSTONE


@pytest.mark.parametrize("said", [{"pid_namespace": 1}, {"start_ticks": 1}, {"pid": 0}])
@pytest.mark.parametrize("pidfds", [True, False])
def test_a_pid_without_meaning_to_the_daemon_never_ends_a_client(
    processes: dict[int, int], said: dict[str, Any], pidfds: bool
) -> None:
    world = World(pidfds=pidfds)
    world.until_quiet()
    known: dict[str, Any] = {"pid": 100, "start_ticks": processes[100]}
    world.client(**(known | said))
    processes.clear()
    world.run(10 * S)
    assert world.counter("clients") == 1


def test_a_client_that_never_shows_its_session_does_not_keep_its_slot(world: World) -> None:
    """The client's process cannot be seen, and may have ended between the hello and the daemon's answer."""
    ghost, quiet = Peer(world, "ghost"), world.client("quiet")
    for _ in range(2):
        ghost.say(UpKind.HELLO, ghost.hello())
        world.settle()
    waits(quiet)
    assert world.counter("clients") == 2
    world.run(BACK_WITHIN_NS + LEASE)
    assert world.counter("clients") == 1 and state_of(quiet) is ClientState.SILENT


def test_a_client_that_ended_before_its_hello_was_read_does_not_keep_its_slot(
    world: World, processes: dict[int, int]
) -> None:
    """The daemon was stopped when the client ended. A client whose process is only hidden goes on sending frames."""
    gone, hidden = Peer(world, "gone"), Peer(world, "hidden")
    gone.say(UpKind.HELLO, gone.hello(pid=400, start_ticks=1))
    hidden.connect(pid=500, start_ticks=2)
    keep_alive(hidden, BACK_WITHIN_NS + LEASE)
    assert world.counter("clients") == 1
    assert state_of(hidden) is ClientState.LIVE


@pytest.mark.parametrize("became", [None, 99])
def test_a_client_that_died_while_the_daemon_was_down_is_noticed_after_the_restart(
    world: World, processes: dict[int, int], became: int | None
) -> None:
    """The client's pid is free, or another process has it by now."""
    alice, bob = world.client(pid=100, start_ticks=7), world.client(pid=200, start_ticks=8)
    waits(alice)
    del processes[100]
    if became is not None:
        processes[100] = became
    world.restart()
    world.run(DRY_NS + 2 * LAST_WORDS_NS)
    assert state_of(alice) is ClientState.TOMBSTONE
    assert world.counter("orphans_cancelled") == 1
    assert state_of(bob) is ClientState.LIVE
    assert world.lifelines.watched[-1] == 200


def test_a_process_that_is_hidden_from_the_next_daemon_is_not_taken_for_dead(
    world: World, processes: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = world.client(pid=100, start_ticks=7)
    monkeypatch.setattr("support.fakes.networks.Lifelines.start_ticks_of", lambda lifelines, pid: None)
    world.restart()
    world.run(S)
    assert state_of(alice) is ClientState.LIVE
    del processes[100]
    world.run(S)
    assert state_of(alice) is ClientState.TOMBSTONE


# no file can be opened --------------------------------------------------------------------------------------------


def test_a_hello_whose_sender_cannot_be_looked_up_is_refused_and_a_later_hello_is_not(
    world: World, processes: dict[int, int]
) -> None:
    """If such a client were charged to nobody, it would evade the share of its process."""
    late = Peer(world, "late")
    world.network.pids[late.routing] = 100
    world.lifelines.full = True
    late.say(UpKind.HELLO, late.hello(pid=100, start_ticks=7))
    world.settle()
    [(kind, answer)] = late.take_answers()
    assert (kind, answer["code"]) == (DownKind.ERROR, ErrorCode.RESOURCE_LIMIT)
    assert "process 100 cannot be looked up (Too many open files)" in answer["message"]
    assert world.counter("clients") == 0
    world.lifelines.full = False
    late.connect(pid=100, start_ticks=7)
    assert world.client_record(late.slot).maker_pid == 100
    assert world.lifelines.watched == [100]


@pytest.mark.parametrize("pidfds", [True, False])
def test_a_process_that_cannot_be_looked_up_for_a_while_has_not_ended(processes: dict[int, int], pidfds: bool) -> None:
    world = World(pidfds=pidfds).until_quiet()
    alice = world.client("alice", pid=100, start_ticks=7)
    connection = alice.hold()
    world.lifelines.full = True
    world.lifelines.cut(connection, Kind.BROKEN)  # now the daemon must watch the process again
    world.run(10 * BEAT_NS)
    assert state_of(alice) is ClientState.LIVE
    world.lifelines.full = False
    world.run(2 * BEAT_NS)
    assert state_of(alice) is ClientState.LIVE
    del processes[100]
    world.run(2 * BEAT_NS)
    assert state_of(alice) is ClientState.TOMBSTONE


def test_a_start_that_cannot_look_a_process_up_notices_its_end_later(
    world: World, processes: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pidfd took the last free descriptor. So the daemon cannot check whether another process has the pid now."""
    alice = world.client("alice", pid=100, start_ticks=7)
    watch = Lifelines.watch

    def last_one(lifelines: Lifelines, pid: int) -> int:
        number = watch(lifelines, pid)
        lifelines.full = True
        return number

    monkeypatch.setattr(Lifelines, "watch", last_one)
    world.restart()
    processes[100] = 99
    world.run(BEAT_NS)
    assert state_of(alice) is ClientState.LIVE and world.lifelines.watched == []
    world.lifelines.full = False
    world.run(2 * BEAT_NS)
    assert state_of(alice) is ClientState.TOMBSTONE


# silence ----------------------------------------------------------------------------------------------------------


def test_a_client_is_silent_after_its_lease_and_live_again_at_its_next_frame(world: World) -> None:
    alice = world.client("alice")
    command = waits(alice)
    world.run(LEASE - MS)
    assert state_of(alice) is ClientState.LIVE
    world.run(BEAT_NS + MS)
    assert state_of(alice) is ClientState.SILENT
    assert world.client_record(alice.slot).silent_ns >= LEASE
    world.run(60 * S)
    assert (world.counter("clients_silenced"), world.counter("orphans_cancelled")) == (1, 0)
    world.client("bob").send(fire())
    world.settle()
    alice.take_published()
    assert alice.state(command) is Outcome.COMPLETED, "a silent client gets outcomes like any other"
    assert alice.send(fire(b"other")) == 2
    world.settle()
    assert state_of(alice) is ClientState.LIVE
    world.run(S)
    assert world.client_record(alice.slot).silent_ns <= S
    assert violations(world.rig.memory) == []


def test_silence_is_never_counted_longer_than_it_lasted(rng: random.Random) -> None:
    for _ in range(20):
        world = World(lease_ns=3 * S)
        world.until_quiet()
        alice = world.client()
        keep_alive(alice, 2 * S)
        world.run(rng.randrange(S))
        alice.say(UpKind.ACK)
        world.settle()
        said_ns = world.clock.now_ns()
        while state_of(alice) is ClientState.LIVE:
            world.run(10 * MS)
        assert 3 * S <= world.clock.now_ns() - said_ns <= 3 * S + BEAT_NS + 10 * MS


def test_a_client_that_sends_a_frame_each_second_is_never_silent(world: World) -> None:
    alice = world.client("alice")
    keep_alive(alice, 300 * S)
    assert world.counter("clients_silenced") == 0


def test_any_frame_ends_silence(world: World) -> None:
    for kind in (UpKind.ACK, UpKind.ASK, UpKind.COMMANDS, UpKind.QUERY):
        alice = world.client("alice")
        world.run(LEASE + S)
        assert state_of(alice) is ClientState.SILENT
        alice.say(kind, {"id": 1, "query": "ping"} if kind is UpKind.QUERY else None)
        world.settle()
        assert state_of(alice) is ClientState.LIVE, kind.name


def test_a_daemon_that_was_stopped_suspects_no_client(world: World) -> None:
    a_daemon_that_was_stopped_suspects_nobody(world)


def test_a_late_turn_that_is_no_gap_adds_a_heartbeat_of_silence_at_most(world: World) -> None:
    alice = world.client("alice")
    late_ns = BEAT_NS + GAP_NS - 2 * MS
    turns = LEASE // HEARTBEAT_NS - 1
    for _ in range(turns):
        world.turn(late_ns)
    assert world.counter("gaps") == 0
    assert turns * late_ns > LEASE + 3 * S
    assert state_of(alice) is ClientState.LIVE
    assert world.client_record(alice.slot).silent_ns <= turns * HEARTBEAT_NS


def test_a_gap_does_not_end_silence(world: World) -> None:
    alice = world.client("alice")
    world.run(LEASE + S)
    before_ns = world.client_record(alice.slot).silent_ns
    world.turn(60 * S)
    world.run(S)
    assert state_of(alice) is ClientState.SILENT
    assert before_ns <= world.client_record(alice.slot).silent_ns <= before_ns + 2 * HEARTBEAT_NS


def test_no_client_is_silenced_before_the_sockets_are_read_dry() -> None:
    world = World(RECORDS_PER_FRAME, lease_ns=LEASE)  # one frame in each turn
    world.until_quiet()
    alice, bob = world.client("alice"), world.client("bob")
    for _ in range(10):
        bob.say(UpKind.ACK)
    for _ in range(2 * LEASE // (100 * MS)):
        bob.say(UpKind.ACK)
        world.turn(100 * MS)
    assert len(world.network.up) == 10
    assert state_of(alice) is ClientState.LIVE, "a frame of alice may be among the frames that wait"
    alice.say(UpKind.ACK)
    world.settle()
    world.run(S)
    assert world.counter("clients_silenced") == 0


def test_an_hour_of_silence_is_death_and_not_the_end_of_the_numbering(world: World) -> None:
    alice = world.client("alice")
    waits(alice)
    alice.hold()  # her connection stays, like that of a stopped process
    world.run(DEAD_AFTER_NS - S)
    assert state_of(alice) is ClientState.SILENT
    assert world.counter("orphans_cancelled") == 0
    world.run(2 * S)
    assert state_of(alice) is ClientState.TOMBSTONE
    assert (world.counter("orphans_cancelled"), world.counter("clients_died")) == (1, 1)
    assert world.lifelines.connections == set()
    alice.connect(waits=[1])
    assert (alice.welcomes[-1]["applied"], alice.welcomes[-1]["unknown"]) == (1, [1])


@pytest.mark.long
def test_a_lease_longer_than_an_hour_is_kept() -> None:
    world = World(lease_ns=2 * DEAD_AFTER_NS)
    world.until_quiet()
    alice = world.client()
    world.run(2 * DEAD_AFTER_NS - S)
    assert state_of(alice) is ClientState.LIVE
    world.run(2 * S)
    assert state_of(alice) is ClientState.TOMBSTONE


def test_outcomes_held_by_a_silent_member_are_requeued(world: World) -> None:
    owner = world.client("owner", group="workers", orphans=int(Orphans.GROUP))
    alice = world.client("alice", group="workers", listens=True)
    waits(owner)
    world.lifelines.cut(owner.hold())
    world.run(S)
    world.client("carol").send(fire())
    world.settle()
    assert sum(report.outcomes for report in alice.take_published()) == 1
    bob = world.client("bob", group="workers", listens=True)
    keep_alive(bob, LEASE + S)
    assert state_of(alice) is ClientState.SILENT
    assert sum(report.outcomes for report in bob.take_published()) == 1
    assert world.counter("group_outcomes_requeued") == 1


# after a restart --------------------------------------------------------------------------------------------------


def test_a_restart_renews_all_leases_however_long_no_daemon_ran(world: World) -> None:
    a_restart_makes_leases_whole(world)


def test_a_client_without_any_sign_of_life_is_dead_a_minute_after_a_restart(
    world: World, processes: dict[int, int]
) -> None:
    gone, process, holder, back = (
        world.client("gone"),
        world.client("process", pid=100, start_ticks=7),
        world.client("holder"),
        world.client("back"),
    )
    for peer in (gone, process, holder, back):
        waits(peer)
    world.restart()
    holder.hold()
    back.say(UpKind.ACK)
    world.run(BACK_WITHIN_NS - S)
    assert state_of(gone) is ClientState.SILENT
    world.run(2 * S)
    assert state_of(gone) is ClientState.TOMBSTONE
    assert [state_of(peer) for peer in (process, holder, back)] == [ClientState.SILENT] * 3
    world.run(DEAD_AFTER_NS - BACK_WITHIN_NS - 3 * S)
    assert world.counter("clients_died") == 1
    world.run(3 * S)
    assert world.counter("clients_died") == 4


def test_a_client_keeps_the_lease_of_its_welcome(world: World) -> None:
    alice = world.client("alice")
    world.lease_ns = 2 * S
    world.restart()
    world.until_quiet()
    bob = world.client("bob")
    alice.connect()
    assert (alice.welcomes[-1]["lease_ns"], bob.welcomes[-1]["lease_ns"]) == (LEASE, 2 * S)
    world.run(4 * S)
    assert (state_of(alice), state_of(bob)) == (ClientState.LIVE, ClientState.SILENT)


# many -------------------------------------------------------------------------------------------------------------


def test_many_ends_at_once_take_effect_in_bounded_turns() -> None:
    world = World(clients=600, quota_clients=600, capacity=2_048)
    world.until_quiet()
    peers = [world.client() for _ in range(500)]
    for peer in peers:
        peer.send(Register(KEY, timeout_ns=3600 * S))
    world.settle()
    for connection in [peer.hold() for peer in peers[:-1]]:
        world.lifelines.cut(connection)
    before = world.counter("turns")
    world.run(S)
    assert world.counter("clients") == 1
    assert world.counter("orphans_cancelled") == 499
    assert world.counter("turns") - before >= 4
    assert violations(world.rig.memory) == []
