"""A silent client keeps what it holds of its group while its process runs, until its takeover is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.fakes.daemonrules import LEASE, keep_alive, state_of
from support.fakes.networks import PROCESSES, STOPPED, Peer, World, fire
from support.rig.arenas import violations
from support.rig.groups import HOUR, work
from support.rig.harness import MS, S
from timerd.clients.keepers import LOOKED_UP_MAX
from timerd.clients.sessions import BEAT_NS
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.limits import TAKEOVER_MS, TAKEOVER_MS_MAX, TAKEOVER_MS_MIN
from timerd_shm.declare.states import ClientFlag, ClientState
from timerd_shm.declare.wire import DownKind, UpKind

TAKEOVER = TAKEOVER_MS * MS
PID, TICKS = 100, 7


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """One process of the host, which runs."""
    PROCESSES[PID] = TICKS
    yield
    PROCESSES.clear()
    STOPPED.clear()


@pytest.fixture
def world() -> World:
    return World(lease_ns=LEASE).until_quiet()


def holder(world: World, **said: object) -> Peer:
    """A member that holds the only outcome of its group. It runs in the process PID, unless `said` names another."""
    said = {"pid": PID, "start_ticks": TICKS} | said
    alice = world.client("alice", group="workers", listens=True, **said)
    alice.send(work(b"k"), fire())
    world.settle()
    alice.acknowledge()
    world.settle()
    assert len(alice.delivered_for_group) == 1
    return alice


def heir(world: World) -> Peer:
    """Another member, which would get the outcome. The tests keep this member alive."""
    return world.client("bob", group="workers", listens=True)


def got(peer: Peer) -> list[int]:
    """The delivery counts of the group's outcomes that the peer got."""
    peer.take_published()
    return [delivered.deliveries for delivered in peer.delivered_for_group]


def flags_of(peer: Peer) -> ClientFlag:
    return ClientFlag(peer.world.client_record(peer.slot).flags)


def test_a_silent_client_whose_process_runs_keeps_what_it_holds_until_its_takeover(world: World) -> None:
    alice, bob = holder(world), heir(world)
    keep_alive(bob, LEASE + S)
    assert (state_of(alice), flags_of(alice)) == (ClientState.SILENT, ClientFlag.LISTENS | ClientFlag.KEEPS)
    keep_alive(bob, TAKEOVER - LEASE - 2 * S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [])
    keep_alive(bob, 3 * S)
    assert (flags_of(alice), got(bob)) == (ClientFlag.LISTENS, [2])
    assert (world.counter("clients_silenced"), world.counter("group_outcomes_requeued")) == (1, 1)
    assert violations(world.rig.memory) == []


def test_a_client_whose_frames_come_again_before_its_takeover_has_lost_nothing(world: World) -> None:
    alice, bob = holder(world), heir(world)
    operation = alice.delivered_for_group[0].operation
    keep_alive(bob, LEASE + 60 * S)
    _, answer = alice.ask({"id": 1, "query": "held", "operations": [operation]})
    assert answer["held"] == [operation]
    assert (state_of(alice), flags_of(alice), got(bob)) == (ClientState.LIVE, ClientFlag.LISTENS, [])
    keep_alive(bob, LEASE + S)
    assert flags_of(alice) == ClientFlag.LISTENS | ClientFlag.KEEPS, "a client that falls silent again keeps nothing"
    assert got(bob) == []


def test_nothing_new_is_delivered_to_a_client_that_keeps_what_it_holds(world: World) -> None:
    alice, bob = holder(world), heir(world)
    keep_alive(bob, LEASE + S)
    bob.send(*(work(b"l", timeout_ns=HOUR) for _ in range(4)), fire(b"l"))
    world.settle()
    assert (got(alice), got(bob)) == ([1], [1] * 4)


@pytest.mark.parametrize("said", [{"pid": 0}, {"pid_namespace": 99}, {"pid": 101}, {"start_ticks": TICKS + 1}], ids=str)
def test_a_silent_client_whose_process_is_not_seen_loses_after_its_lease_what_it_holds(
    world: World, said: dict[str, object]
) -> None:
    alice, bob = holder(world, **said), heir(world)
    keep_alive(bob, LEASE - S)
    assert got(bob) == []
    keep_alive(bob, 2 * S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [2])


def test_a_silent_client_whose_process_is_stopped_loses_after_its_lease_what_it_holds(world: World) -> None:
    alice, bob = holder(world), heir(world)
    STOPPED.add(PID)
    keep_alive(bob, LEASE - S)
    assert got(bob) == []
    keep_alive(bob, 2 * S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [2])


def test_a_client_whose_process_is_stopped_while_it_keeps_something_loses_that(
    world: World,
) -> None:
    alice, bob = holder(world), heir(world)
    keep_alive(bob, LEASE + 5 * S)
    assert got(bob) == []
    STOPPED.add(PID)
    keep_alive(bob, S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [2])


@pytest.mark.parametrize("takeover_ms", [20_000, TAKEOVER_MS_MIN])
def test_a_takeover_is_what_the_client_says_and_at_least_its_lease(world: World, takeover_ms: int) -> None:
    _, bob = holder(world, takeover_ms=takeover_ms), heir(world)
    least_ns = max(takeover_ms * MS, LEASE)
    keep_alive(bob, least_ns - S)
    assert got(bob) == []
    keep_alive(bob, 2 * S)
    assert got(bob) == [2]


def test_a_restart_keeps_the_takeover_of_a_client_and_counts_its_silence_anew(world: World) -> None:
    alice, bob = holder(world, takeover_ms=20_000), heir(world)
    keep_alive(bob, LEASE + 3 * S)
    assert ClientFlag.KEEPS in flags_of(alice)
    world.restart()
    bob.connect(waits=[])
    assert (state_of(alice), flags_of(alice)) == (ClientState.LIVE, ClientFlag.LISTENS)
    keep_alive(bob, 18 * S)
    assert (flags_of(alice), got(bob)) == (ClientFlag.LISTENS | ClientFlag.KEEPS, [])
    keep_alive(bob, 3 * S)
    assert got(bob) == [2]


def test_a_tombstone_that_is_resumed_has_the_takeover_of_its_newest_hello(world: World) -> None:
    alice = holder(world, takeover_ms=20_000)
    world.lifelines.cut(alice.hold())
    world.run(S)
    assert state_of(alice) is ClientState.TOMBSTONE
    alice.connect(group="workers", takeover_ms=30_000)
    assert world.client_record(alice.slot).takeover_ms == 30_000


def test_time_in_which_the_daemon_was_stopped_brings_no_takeover(world: World) -> None:
    alice, bob = holder(world), heir(world)
    keep_alive(bob, LEASE + S)
    world.turn(2 * TAKEOVER)
    keep_alive(bob, S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [])


def test_a_process_that_cannot_be_looked_up_for_a_while_keeps_what_its_client_holds(world: World) -> None:
    alice, bob = holder(world), heir(world)
    STOPPED.add(PID)
    world.lifelines.full = True
    keep_alive(bob, LEASE + 5 * S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [])
    world.lifelines.full = False
    keep_alive(bob, S)
    assert got(bob) == [2]


def test_the_end_of_a_process_whose_client_keeps_something_is_still_noticed(world: World) -> None:
    alice, bob = holder(world), heir(world)
    keep_alive(bob, LEASE + 5 * S)
    del PROCESSES[PID]
    keep_alive(bob, S)
    assert (state_of(alice), got(bob)) == (ClientState.TOMBSTONE, [2])


def test_a_client_of_an_earlier_daemon_whose_process_is_seen_to_run_is_not_dead_after_a_minute() -> None:
    world = World(lease_ns=LEASE, pidfds=False).until_quiet()
    alice, bob = holder(world), heir(world)
    world.restart()
    bob.connect(waits=[])
    keep_alive(bob, TAKEOVER - 5 * S)
    assert (state_of(alice), got(bob)) == (ClientState.SILENT, [])


def test_on_each_beat_a_bounded_number_of_processes_whose_clients_hold_something_is_looked_up() -> None:
    count = 2 * LOOKED_UP_MAX + 10
    world = World(lease_ns=LEASE, clients=count + 10, quota_clients=count + 10, capacity=4 * count).until_quiet()
    PROCESSES.update({PID + n: TICKS for n in range(count)})
    members = [world.client(group="workers", listens=True, pid=PID + n, start_ticks=TICKS) for n in range(count)]
    idle = world.client(group="workers", pid=PID, start_ticks=TICKS)
    for _ in range(count // 8 + 1):
        idle.send(*(work(b"k") for _ in range(8)), fire())
        world.settle()
    for member in members:
        member.acknowledge()
    world.settle()
    bob = heir(world)
    STOPPED.update(PID + n for n in range(count))
    looks: list[int] = []
    while len(looks) < 60:
        before = world.lifelines.looks
        bob.say(UpKind.ACK)
        world.run(BEAT_NS)
        looks.append(world.lifelines.looks - before)
    assert max(looks) <= LOOKED_UP_MAX, "more processes were looked up on one beat"
    assert sum(looks) == count, "a process is looked up once, and only if its client holds something"
    assert not any(world.core.holds(member.slot) for member in members)


@pytest.mark.parametrize(
    "wrong", [None, True, "300", 1.5, -1, 0, TAKEOVER_MS_MIN - 1, TAKEOVER_MS_MAX + 1, 1 << 64], ids=repr
)
def test_a_hello_with_a_wrong_takeover_is_refused(world: World, wrong: object) -> None:
    late = Peer(world, "late")
    late.say(UpKind.HELLO, late.hello(takeover_ms=wrong if wrong != 1 << 64 else (1 << 64) - 1))
    world.settle()
    [(kind, answer)] = late.take_answers()
    assert (kind, answer["code"]) == (DownKind.ERROR, ErrorCode.MALFORMED)
    assert "takeover_ms" in answer["message"]
    assert world.counter("clients") == 0
