"""A daemon that sends wrong frames: the client lives on, and later connects to a sound daemon."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fakes import fakedaemon
from support.fakes.fakedaemon import MS, FakeDaemon, state_of
from support.fakes.mutations import EXAMPLES, MUTATIONS, Mutation, down
from timerd_client.link.connection import Connection
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.session import Naming
from timerd_client.protocol.state import LinkState
from timerd_client.transport.sockets import FRAMES_MAX
from timerd_shm.declare.errors import ErrorCode, MalformedError, TimerdError
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.wire import CommandHeader, DownKind, UpKind
from timerd_shm.host.paths import InstancePaths


def read_all(operation: ThreadedOperation) -> None:
    """Read each field of an outcome: none raises. check() and unwrap() may raise a TimerdError, and nothing else."""
    outcome = operation.outcome() if operation.done() else None
    if outcome is None:
        return
    for name in dir(type(outcome)):
        if not name.startswith("_") and name not in ("check", "unwrap"):
            getattr(outcome, name)
    assert repr(outcome)
    for read in (outcome.check, outcome.unwrap):
        with suppress(TimerdError):
            read()


@pytest.mark.long
def test_a_client_survives_whatever_a_daemon_sends(seed: int) -> None:
    @hypothesis.seed(seed)
    @EXAMPLES
    @given(st.lists(st.tuples(st.integers(0, 10_000), MUTATIONS, st.booleans(), st.integers(0, 300)), max_size=8))
    def attack(frames: list[tuple[int, list[Mutation], bool, int]]) -> None:
        world = fakedaemon.World()
        world.exchange()
        protocol = world.protocol
        corpus = sorted(down(protocol.session.topic, protocol.session.arena).items())
        operations = [world.register(), world.register()]
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
            for operation in operations:
                read_all(operation)
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
        {"session": bytes(16)},
        {"newest": (1 << 64) - 1},
        {"newest": "x"},
        {"lease_ns": 0},
        {"slot": None},
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
        "slot": 0,
        "topic": 5,
        "applied": 0,
        "shared_clock": True,
        "newest": 0,
        "lease_ns": 1_000 * MS,
    }
    frame = world.daemon.message(DownKind.WELCOME, {**welcome, **wrong})
    world.protocol.receive(frame, world.now, published=False)
    assert world.protocol.frames_ignored == 1
    complaint = world.protocol.incoming.complaints[0]
    assert ("malformed" in complaint and f"{next(iter(wrong))} is " in complaint) or "default is " in complaint, (
        complaint
    )
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


def error(code: ErrorCode) -> Callable[[FakeDaemon], list[bytes]]:
    return lambda daemon: [daemon.message(DownKind.ERROR, {"code": int(code), "message": "no", "id": None})]


def welcomed(daemon: FakeDaemon, *after: bytes, **changed: Any) -> list[bytes]:
    daemon.known = None  # so that each hello counts as that of a new client
    hello = daemon.hellos[-1]
    daemon._hello(unpack(CommandHeader, bytes(64)), hello)
    welcome = daemon.routed.pop()
    if changed:
        named = {"default": 0} | dict.fromkeys(hello["purgatories"], 3)
        fields = {"session": b"s" * 16, "slot": 0, "topic": 5, "applied": 0, "shared_clock": True, "newest": 0}
        fields |= {"lease_ns": 15_000 * MS, "purgatories": named, **changed}
        welcome = daemon.message(DownKind.WELCOME, fields)
    return [welcome, *after]


LEADS_NOWHERE: dict[str, Callable[[FakeDaemon], list[bytes]]] = {
    "an error": error(ErrorCode.NOT_SUPPORTED),
    "an error that says SESSION_GONE": error(ErrorCode.SESSION_GONE),
    "a welcome, then SESSION_GONE": lambda daemon: welcomed(daemon, daemon.report(DownKind.SESSION_GONE)),
    "a welcome, then SESSION_GONE as an error": lambda daemon: welcomed(daemon, *error(ErrorCode.SESSION_GONE)(daemon)),
    "a welcome, then HELLO_FIRST": lambda daemon: welcomed(daemon, daemon.report(DownKind.HELLO_FIRST)),
    "a welcome of another command": lambda daemon: welcomed(daemon, applied=7),
    "a welcome without a purgatory": lambda daemon: welcomed(daemon, purgatories={}),
    "a welcome of no map": lambda daemon: [daemon.report(DownKind.WELCOME) + b"\x00"],
    "many welcomes": lambda daemon: welcomed(daemon) * 5,
}


@pytest.mark.parametrize("how", LEADS_NOWHERE)
def test_answers_that_lead_nowhere_are_not_asked_for_again_and_again(how: str) -> None:
    """An earlier version sent 100 to 500 hellos a second, as quickly as the daemon answered."""
    world = fakedaemon.World()
    world.protocol.session.name_later("fetch")
    hellos = subscriptions = 0
    for _ in range(10_000):
        for frame in world.up():
            header = unpack(CommandHeader, frame)
            if header.kind == UpKind.HELLO:
                hellos += 1
                world.daemon.receive(frame)
                world.daemon.routed.clear()
                for answer in LEADS_NOWHERE[how](world.daemon):
                    world.protocol.receive(answer, world.now, published=False)
        subscriptions += len(world.protocol.session.subscriptions)
        world.protocol.session.subscriptions.clear()
        world.now += MS
    assert 5 <= hellos <= 20 and subscriptions <= 60, f"{hellos} hellos, and {subscriptions} subscriptions in 10 s"
    world.daemon = FakeDaemon(arena=99)
    world.pass_time(3_000, step_ms=50)
    assert world.protocol.state is LinkState.LIVE, "a sound daemon is found at once"


@pytest.mark.parametrize("published", [True, False])
def test_one_pass_takes_a_bounded_number_of_frames(published: bool) -> None:
    """A link receives in passes. A pass leaves the rest to the next: a daemon may send faster than its client reads."""
    world = fakedaemon.World()
    world.exchange()
    frame: bytes | None = world.daemon.report(DownKind.REPORT)
    taken = 0

    def receive(*, published: bool) -> bytes | None:
        nonlocal taken
        if published is not wanted:
            return None
        taken += 1
        assert taken < 10_000, "this pass has no end"
        return frame

    wanted = published
    sockets: Any = SimpleNamespace(receive=receive, frame_size_max=1 << 20, lifeline=SimpleNamespace(is_held=bool))
    link: Any = world.link
    link.now_ns = lambda: world.now
    connection = Connection(link, InstancePaths(Path("/nowhere"), "none"), sockets)
    connection.passes = SimpleNamespace(received=lambda: None)
    connection.mapped = world.protocol.session.arena
    assert connection.receive_some() and connection.is_cut and taken == FRAMES_MAX
    frame = None
    assert not connection.receive_some() and not connection.is_cut
