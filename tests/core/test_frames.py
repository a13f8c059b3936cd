"""A frame of commands is applied as a whole, even if that takes many turns and its client ends meanwhile.

The Spark sink depends on this: it sends an event, and a second event which completes the claim of the first event, in
one frame.
"""

from __future__ import annotations

import pytest

from support.fakes.networks import Peer, World, fire
from support.rig.commands import Key, Register
from support.rig.harness import MS, S
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import OpState, Orphans, Outcome

PAIRS = 32  # a pair is an event, and a second event that completes the claim of the first
WATCHERS = 64  # of each event; one step of a turn completes fewer operations


def world_with_claims() -> tuple[World, Peer, Peer]:
    """Alice waits for events. Bob claims each event, by an operation that is cancelled when he dies."""
    world = World(48, capacity=4_096, quota_operations=4_096)
    world.until_quiet()
    alice, bob = world.client("alice"), world.client("bob")
    for pair in range(PAIRS):
        alice.send(*(Register((Key(b"event %d" % pair),), timeout_ns=3600 * S) for _ in range(WATCHERS)))
    bob.send(
        *(Register((Key(b"claim %d" % pair),), timeout_ns=3600 * S, orphans=Orphans.CANCEL) for pair in range(PAIRS))
    )
    world.settle()
    return world, alice, bob


def send_pairs(bob: Peer) -> None:
    bob.send(*(fire(b"%s %d" % (name, pair)) for pair in range(PAIRS) for name in (b"event", b"claim")))


def settled(world: World, owner: Peer, outcome: Outcome) -> int:
    """The number of the owner's operations with this outcome. Nobody acknowledges them."""
    return sum(
        (op.state, op.client, op.outcome) == (OpState.SETTLED, owner.slot, outcome)
        for op in world.rig.arena.records(Region.OPS)
    )


def test_a_frame_of_several_turns_is_applied_to_its_end_when_its_client_dies() -> None:
    world, alice, bob = world_with_claims()
    lifeline = bob.hold()
    send_pairs(bob)
    for _ in range(5):
        world.turn()
    assert 0 < settled(world, bob, Outcome.COMPLETED) < PAIRS, "the frame must take more turns, for this test"
    world.lifelines.cut(lifeline)
    for _ in range(20):
        world.turn(MS)  # the daemon acts on the client's end after ten of these turns
    world.run(S)
    assert world.counter("clients") == 1
    assert settled(world, alice, Outcome.COMPLETED) == PAIRS * WATCHERS
    assert (world.rig.arena.count("completed", 0), world.rig.arena.count("cancelled", 0)) == (
        PAIRS * (WATCHERS + 1),
        0,
    ), "a claim was cancelled though its event was fired"


@pytest.mark.parametrize("turns", range(1, 8))
def test_at_most_one_pair_of_a_frame_is_torn_when_daemon_and_client_die(turns: int) -> None:
    world, alice, bob = world_with_claims()
    send_pairs(bob)
    for _ in range(turns):
        world.turn()
    world.restart()
    world.run(S)
    fired, rest = divmod(settled(world, alice, Outcome.COMPLETED), WATCHERS)
    claimed = settled(world, bob, Outcome.COMPLETED)
    assert rest == 0, "an event was delivered to some of its watchers only"
    assert 0 < fired < PAIRS and claimed <= fired <= claimed + 1
