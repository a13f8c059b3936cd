"""Damaged frames and any other bytes: the daemon runs on, no other client is touched, and the sender gets an error."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fakes.mutations import EXAMPLES, MUTATIONS, Mutation, down
from support.fakes.networks import NOTHING, Peer
from support.rig.arenas import violations
from support.rig.commands import Key, Register
from support.rig.corpus import UP, small_world
from support.rig.frames import encode
from support.rig.harness import MS, S, cancel
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandHeader, CommandKind, DownKind, UpKind

SECRET = b"nobody else knows this key"
THIRD = 1_000_000  # a connection for outcomes that belongs to no client
SECRET_ID = b"nor knows it id!"
SENDERS = ("itself", "nobody", "someone")  # whose session a damaged frame shows

# Codes that no frame of the corpus gets. Most of them are errors of the caller, of a file, or of a start.
ELSEWHERE = {
    ErrorCode.NONE,
    ErrorCode.KEY_TOO_LONG,  # on the wire, a key's length is a byte: 255 at most
    ErrorCode.TOO_OLD_TO_TELL,  # needs a window of ids that has moved on, as in test_ids
    ErrorCode.UNAVAILABLE,
    ErrorCode.BACKPRESSURE,
    ErrorCode.CLOSED,
    ErrorCode.LAYOUT_MISMATCH,
    ErrorCode.ARENA_NOT_READY,
    ErrorCode.ARENA_TRUNCATED,
    ErrorCode.ARENA_DAMAGED,
    ErrorCode.SESSION_GONE,  # reported by a frame of the kind SESSION_GONE
    ErrorCode.INSTANCE_RUNNING,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.RESOURCE_LIMIT,
    ErrorCode.KEY_FAILED,  # only an outcome has it
    ErrorCode.CHECK_INCOMPLETE,
}


def codes_of(peer: Peer) -> list[ErrorCode]:
    """The codes of the daemon's refusals, by answers and by frames."""
    refused = [ErrorCode(body["code"]) for kind, body in peer.take_answers() if kind is DownKind.ERROR]
    peer.take_published()
    return refused + [ErrorCode(answer.code) for answer in peer.answers if answer.code]


def test_the_corpus_has_a_frame_of_each_kind_command_and_code() -> None:
    assert {case.kind for case in UP.values()} >= set(UpKind)
    assert {encode(command)[0] for case in UP.values() for command in case.commands} >= set(CommandKind)
    assert {case.code for case in UP.values()} >= set(ErrorCode) - ELSEWHERE
    assert len(down(1, 1)) >= len(DownKind) + 2 * len(ErrorCode)


@pytest.mark.parametrize("name", UP)
def test_each_frame_of_the_corpus_gets_its_declared_code(name: str) -> None:
    world, case = small_world(), UP[name]
    peer = world.client()
    if case.before:
        peer.send(*case.before)
        world.settle()
    peer.put(case.frame(peer))
    world.settle()
    found = codes_of(peer)
    assert set(found) == ({case.code} if case.code else set()), f"{name}: {found}"
    assert violations(world.rig.memory) == []


@pytest.mark.long
def test_mutated_frames_harm_no_other_client(seed: int) -> None:
    @hypothesis.seed(seed)
    @EXAMPLES
    @given(
        st.lists(
            st.tuples(st.sampled_from(sorted(UP)), MUTATIONS, st.sampled_from(SENDERS), st.integers(0, 3)),
            min_size=1,
            max_size=6,
        )
    )
    def attack(frames: list[tuple[str, list[Mutation], str, int]]) -> None:
        world = small_world()
        victim, mallory = world.client("victim"), world.client("mallory")
        victim.send(Register((Key(SECRET),), timeout_ns=3600 * S, payload=b"mine", id=SECRET_ID))
        world.settle()
        for name, mutations, sender, wait_ms in frames:
            case = UP[name]
            frame = case.frame(mallory)
            for mutation in mutations:
                frame = mutation(frame)
            session = {"itself": mallory.session, "nobody": NOTHING, "someone": b"someone else's.."}[sender]
            at = offset_of(CommandHeader, "session")
            assert len(session) == len(NOTHING)
            if len(frame) >= at + len(session):
                frame = frame[:at] + session + frame[at + len(session) :]
            mallory.put(frame)
            world.turn(wait_ms * MS)
        world.settle()
        assert violations(world.rig.memory) == []
        victim.take_published()
        assert victim.delivered == [], "another client's operation was settled"
        command = victim.send(cancel(1))
        world.settle()
        victim.take_published()
        victim.say(UpKind.ASK)
        world.settle()
        victim.take_answers()
        assert [told.state for told in victim.delivered] == [Outcome.CANCELLED], f"after command {command}"
        assert violations(world.rig.memory) == []

    attack()


def test_damaged_subscriptions_get_no_outcomes_of_other_clients(seed: int) -> None:
    @hypothesis.seed(seed)
    @settings(EXAMPLES, max_examples=100)
    @given(
        st.lists(st.binary(max_size=40), max_size=8),
        st.lists(st.one_of(st.binary(max_size=40), st.builds(lambda b: b"\1" + b, st.binary(max_size=17))), max_size=8),
    )
    def attack(shown: list[bytes], messages: list[bytes]) -> None:
        world = small_world()
        victim, mallory = world.client("victim"), world.client("mallory")
        mallory.take_published()
        for secret in shown:
            world.network.asking.append((THIRD, secret))
        for message in messages:
            if mallory.slot in world.network.outlets:
                world.network.up_subscriptions.append((mallory.slot, message))
            world.settle()
        victim.send(Register((Key(SECRET),), timeout_ns=MS))
        world.run(5 * MS)
        assert victim.take_published() and victim.delivered
        assert THIRD not in world.network.published
        mallory.take_published()
        assert mallory.delivered == []

    attack()
