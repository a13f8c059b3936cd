"""Hostile input: whatever comes from a socket, nobody falls, nobody else is touched, and the sender is told."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

import timerd as td
from arenas import violations
from commands import Key, Register
from corpus import UP, small_world
from daemons import Daemon
from frames import encode
from harness import MS, S, cancel
from mutations import EXAMPLES, MUTATIONS, Mutation, down
from networks import NOTHING, Peer, World
from patience import PATIENCE_S, eventually
from timerd.conductor.transport import ZmqTransport
from timerd_shm.declare.errors import ErrorCode, ResourceLimitError
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.states import Outcome
from timerd_shm.declare.wire import CommandHeader, CommandKind, DownKind, UpKind
from timerd_shm.host.paths import InstancePaths

SECRET = b"nobody else knows this key"
SECRET_ID = b"nor knows it id!"
SENDERS = ("itself", "nobody", "someone")  # whose session a hostile frame shows

# Codes that never come from a daemon as the answer to a frame: the caller's own, a file's, a start's.
ELSEWHERE = {
    ErrorCode.NONE,
    ErrorCode.KEY_TOO_LONG,  # a key's length on the wire is a byte
    ErrorCode.TOO_OLD_TO_TELL,  # needs a window of ids that has moved on: test_ids
    ErrorCode.UNAVAILABLE,
    ErrorCode.BACKPRESSURE,
    ErrorCode.CLOSED,
    ErrorCode.LAYOUT_MISMATCH,
    ErrorCode.ARENA_NOT_READY,
    ErrorCode.ARENA_TRUNCATED,
    ErrorCode.ARENA_DAMAGED,
    ErrorCode.SESSION_GONE,  # a frame of its own kind
    ErrorCode.INSTANCE_RUNNING,
    ErrorCode.INVALID_CONFIG,
    ErrorCode.RESOURCE_LIMIT,
    ErrorCode.KEY_FAILED,  # an outcome's
}


def codes_of(peer: Peer) -> list[ErrorCode]:
    """What the daemon has refused, by answers and by frames."""
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


def test_hostile_subscriptions_get_no_outcomes_of_other_clients(seed: int) -> None:
    @hypothesis.seed(seed)
    @settings(EXAMPLES, max_examples=100)
    @given(
        st.lists(st.tuples(st.integers(-1, 3), st.binary(max_size=40)), max_size=8),
        st.lists(st.one_of(st.binary(max_size=40), st.builds(lambda b: b"\1" + b, st.binary(max_size=17))), max_size=8),
    )
    def attack(shown: list[tuple[int, bytes]], messages: list[bytes]) -> None:
        world = small_world()
        victim, mallory = world.client("victim"), world.client("mallory")
        mallory.take_published()
        for slot, secret in shown:
            world.network.asking.append((b"a third one", slot, secret))
            world.network.asking.append((b"a third one", victim.slot, mallory.session))
        for message in messages:
            if mallory.slot in world.network.outlets:
                world.network.up_subscriptions.append((mallory.slot, message))
            world.settle()
        victim.send(Register((Key(SECRET),), timeout_ns=MS))
        world.run(5 * MS)
        assert victim.take_published() and victim.delivered
        assert b"a third one" not in world.network.published
        mallory.take_published()
        assert mallory.delivered == []

    attack()


# routing ids ------------------------------------------------------------------------------------------------------


ZMTP = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def property_of(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def named_peer(path: Path, routing: bytes) -> socket.socket:
    """A connection to a ROUTER that asks for this routing id. libzmq's own API allows the same."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(PATIENCE_S)
    peer.connect(str(path))
    peer.sendall(ZMTP)
    received = b""
    while len(received) < len(ZMTP):
        received += peer.recv(len(ZMTP) - len(received))
    ready = b"\x05READY" + property_of(b"Socket-Type", b"DEALER") + property_of(b"Identity", routing)
    peer.sendall(bytes([4, len(ready)]) + ready)
    assert peer.recv(1), "the handshake was not answered"
    return peer


@pytest.fixture
def transport(runtime_dir: Path) -> Iterator[ZmqTransport]:
    made = ZmqTransport(InstancePaths(runtime_dir, "t"))
    yield made
    made.close()


def received(transport: ZmqTransport) -> tuple[bytes, bytes]:
    """The next frame, and the routing id of its sender."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for routing, frame in transport.receive(1):
            return routing, frame
        time.sleep(0.001)
    raise AssertionError("no frame came")


def test_nobody_takes_over_the_routing_id_of_a_client(runtime_dir: Path, transport: ZmqTransport) -> None:
    """Its answers would go to the thief: a WELCOME has the session."""
    paths = InstancePaths(runtime_dir, "t")
    with zmq.Context() as context, context.socket(zmq.DEALER) as alice:
        alice.setsockopt(zmq.LINGER, 0)
        alice.connect(paths.commands_endpoint)
        alice.send(b"hello")
        routing, _ = received(transport)
        with named_peer(paths.commands, routing) as mallory:
            mallory.sendall(b"\x00\x01x")
            alice.send(b"again")
            assert received(transport) == (routing, b"again")
            transport.send(routing, b"welcome")
            assert alice.poll(int(PATIENCE_S * 1_000))
            assert alice.recv() == b"welcome"


SEEDED = """
import ctypes
from timerd.conductor import transport
made = transport.ZmqTransport.__init__
def seeded(*arguments):
    ctypes.CDLL(None).srand(1)
    made(*arguments)
transport.ZmqTransport.__init__ = seeded
"""
FIRST = 0x6B8B4567  # what libzmq's first number is after srand(1), as in a process that nobody has seeded


def test_nobody_can_tell_the_routing_id_that_the_next_client_gets(runtime_dir: Path) -> None:
    """libzmq numbers its peers, and ends the process if the next number is another peer's routing id by then."""
    with Daemon(runtime_dir, patch=SEEDED) as daemon:
        taken = (b"\0" + (FIRST + n).to_bytes(4, "big") for n in range(30))
        peers = [named_peer(daemon.paths.commands, routing) for routing in taken]
        with td.connect(timeout=PATIENCE_S) as client:
            client.fire_wait("k")
        assert daemon.process is not None and daemon.process.poll() is None, daemon.log
        for peer in peers:
            peer.close()


def test_a_long_routing_id_takes_its_share_of_the_turn(world: World) -> None:
    """A peer may have named itself with megabytes, which are copied with each of its frames."""
    bob = world.client("bob")
    taken = world.network.up
    for _ in range(64):
        taken.append((os.urandom(16) * (1 << 16), bob.header(UpKind.ACK)))
    world.turn()
    assert len(taken) > 32, "a turn read them all"
    world.settle()


def test_an_outlet_that_cannot_be_made_for_want_of_files_is_an_error_and_leaves_nothing_open(
    transport: ZmqTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The conductor tries again a second later; any other error would end the daemon.
    def refuse(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        with pytest.raises(ResourceLimitError, match="Too many open files"):
            transport.open_outlet(7)
    with monkeypatch.context() as patched:
        patched.setattr(InstancePaths, "outlet", lambda self, slot: Path("/nowhere/7"))
        with pytest.raises(ResourceLimitError, match="No such file"):
            transport.open_outlet(7)
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before)
    transport.open_outlet(7)
