"""A daemon that sends wrong frames: the client lives on, and finds its way to a sound daemon."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes import fakedaemon
from support.fakes.fakedaemon import MS, FakeDaemon, state_of
from support.fakes.mutations import EXAMPLES, MUTATIONS, Mutation, down
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.session import Naming
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import MalformedError
from timerd_shm.declare.wire import DownKind


def test_a_client_survives_whatever_a_daemon_sends(seed: int) -> None:
    @hypothesis.seed(seed)
    @EXAMPLES
    @given(st.lists(st.tuples(st.integers(0, 10_000), MUTATIONS, st.booleans(), st.integers(0, 300)), max_size=8))
    def attack(frames: list[tuple[int, list[Mutation], bool, int]]) -> None:
        world = fakedaemon.World()
        world.exchange()
        protocol = world.protocol
        corpus = sorted(down(protocol.session.topic, protocol.session.arena).items())
        world.register()
        for which, mutations, published, wait_ms in frames:
            frame = corpus[which % len(corpus)][1]
            for mutation in mutations:
                frame = mutation(frame)
            protocol.receive(frame, world.now, published=published)
            for waiter in protocol.incoming.take_ready():
                waiter.notify()
            world.now += wait_ms * MS
            world.up()
            protocol.incoming.complaints.clear()
        assert protocol.ledger.kept <= 2 and len(protocol.ledger.pending) <= 2
        # Then a sound daemon comes. The client connects to it, perhaps as a new client.
        world.daemon = FakeDaemon()
        world.pass_time(6_000, step_ms=50)
        assert protocol.state is LinkState.LIVE
        operation = world.register(b"after")
        world.fire(b"after")
        world.pass_time(3_000, step_ms=50)
        assert state_of(operation) is State.COMPLETED

    attack()


@pytest.mark.parametrize(
    "wrong",
    [
        {"applied": float("inf")},
        {"topic": float("inf")},
        {"session": 1 << 62},
        {"session": b"short"},
        {"purgatories": ["default"]},
        {"purgatories": {"default": 300}},
        {"purgatories": {"default": "0"}},
        {"purgatories": {"default": 3.0}},
        {"unknown": 5},
    ],
    ids=repr,
)
def test_a_welcome_with_any_other_content_is_ignored_and_the_client_lives_on(wrong: dict[str, Any]) -> None:
    world = fakedaemon.World()
    world.up()
    world.register()
    welcome = {
        "incarnation": world.protocol.session.incarnation,
        "session": world.daemon.session,
        "topic": 5,
        "applied": 0,
        "shared_clock": True,
        "newest": 0,
        "lease_ns": 1_000 * MS,
    }
    frame = world.daemon.message(DownKind.WELCOME, {**welcome, **wrong})
    world.protocol.receive(frame, world.now, published=False)
    assert world.protocol.frames_ignored == 1
    assert "malformed" in world.protocol.incoming.complaints[0]
    assert world.protocol.session.purgatories == {"default": 0}
    world.daemon = FakeDaemon(arena=99)
    world.pass_time(3_000, step_ms=50)
    assert world.protocol.state is LinkState.LIVE


@pytest.mark.parametrize("wrong", [300, 255, -1, "3", 3.0, None, float("inf")], ids=repr)
def test_an_impossible_index_of_a_purgatory_is_refused_with_an_error(wrong: object) -> None:
    world = fakedaemon.World()
    world.exchange()
    protocol = world.protocol
    reply = Reply(world.link)
    protocol.query({"query": "purgatory", "name": "fetch"}, Naming(protocol.session, "fetch", reply), world.now)
    world.up()
    world.daemon.routed.clear()
    answer = world.daemon.message(DownKind.RESULT, {"id": 1, "index": wrong})
    protocol.receive(answer, world.now, published=False)
    with pytest.raises(MalformedError, match="'fetch'"):
        reply.get()
    assert protocol.session.purgatories == {"default": 0}

    reply = Reply(world.link)
    protocol.query({"query": "purgatory", "name": "fetch"}, Naming(protocol.session, "fetch", reply), world.now)
    world.exchange()
    assert reply.get()["index"] == protocol.session.purgatories["fetch"] == 3
