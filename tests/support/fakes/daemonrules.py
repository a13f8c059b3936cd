"""The daemon's promises, each as a function of a world. A test runs each function; a seeded defect makes it fail."""

from __future__ import annotations

from support.fakes.networks import NOTHING, Peer, World, fire
from support.rig.commands import Key, Register
from support.rig.harness import S, cancel
from timerd.clients.session import session_hash
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.records import ClientRecord
from timerd_shm.declare.states import ClientState, Outcome
from timerd_shm.declare.wire import DownKind, UpKind

KEY = (Key(b"k"),)
LEASE = 15 * S


def state_of(peer: Peer) -> ClientState:
    return ClientState(peer.world.client_record(peer.slot).state)


def waits(peer: Peer) -> int:
    """Register an operation that nothing settles, and have the daemon apply it. Returns its command number."""
    command = peer.send(Register(KEY, timeout_ns=7200 * S))
    peer.world.settle()
    return command


def keep_alive(peer: Peer, for_ns: int) -> None:
    """Let `for_ns` pass. The client sends a frame each second."""
    for _ in range(for_ns // S):
        peer.say(UpKind.ACK)
        peer.world.run(S)


def a_daemon_that_was_stopped_suspects_nobody(world: World) -> None:
    alice = world.client("alice")
    waits(alice)
    world.run(LEASE - S)
    world.turn(3 * LEASE)
    assert world.counter("gaps") == 1
    world.run(LEASE - S)
    assert state_of(alice) is ClientState.LIVE, "alice's lease did not begin anew after the gap"
    world.run(2 * S)
    assert state_of(alice) is ClientState.SILENT
    assert world.counter("orphans_cancelled") == 0


def a_restart_makes_leases_whole(world: World) -> None:
    alice, bob = world.client("alice"), world.client("bob")
    waits(alice)
    keep_alive(bob, LEASE + S)
    assert (state_of(alice), state_of(bob)) == (ClientState.SILENT, ClientState.LIVE)
    world.clock.move(600 * S)
    world.restart()
    world.run(LEASE - S)
    assert (state_of(alice), state_of(bob)) == (ClientState.LIVE, ClientState.LIVE)
    world.run(2 * S)
    assert (state_of(alice), state_of(bob)) == (ClientState.SILENT, ClientState.SILENT)
    assert world.counter("orphans_cancelled") == 0


def what_the_arena_shows_is_not_enough(world: World) -> None:
    """Mallory tries each stretch of 16 bytes of alice's record in the arena as a proof and as a session."""
    alice, mallory = world.client("alice", group="crew", listens=True), Peer(world, "mallory")
    slot, session = alice.slot, alice.session
    record = struct_of(ClientRecord).pack(*world.client_record(slot))
    for at in range(0, len(record) - 15, 8):
        shown = record[at : at + 16]
        for claimed in (NOTHING, shown):
            mallory.session = claimed
            mallory.say(UpKind.HELLO, mallory.hello(proof=shown, incarnation=shown, group="crew"))
            world.settle()
            for kind, welcome in mallory.take_answers():
                if kind is DownKind.WELCOME:
                    mallory.welcomed(welcome)
                    assert mallory.slot != slot, f"bytes {at}..{at + 16} of alice's record are enough"
                    mallory.say(UpKind.BYE)
                    world.settle()
    assert state_of(alice) is ClientState.LIVE
    alice.send(Register(KEY, timeout_ns=S), fire())
    world.settle()
    alice.take_published()
    assert (alice.session, alice.state(1)) == (session, Outcome.COMPLETED)


def an_incarnation_is_not_enough(world: World) -> None:
    alice, mallory = world.client("alice"), Peer(world, "mallory")
    alice.send(Register(KEY, timeout_ns=S))
    world.settle()
    mallory.session = b"guess".ljust(16, b".")
    mallory.say(UpKind.HELLO, mallory.hello(proof=alice.incarnation))
    world.settle()
    assert [kind for kind, _ in mallory.take_answers()] == [DownKind.SESSION_GONE]
    # The arena shows the hash of alice's session, and her incarnation. Neither is accepted as a session.
    mallory.arena_incarnation = alice.arena_incarnation
    for shown in (session_hash(alice.session), alice.incarnation):
        mallory.session = shown
        mallory.issued = 1
        mallory.send(cancel(1))
        world.settle()
        assert [kind for kind, _ in mallory.take_answers()] == [DownKind.HELLO_FIRST]
    alice.send(fire())
    world.settle()
    alice.take_published()
    assert alice.state(1) is Outcome.COMPLETED
