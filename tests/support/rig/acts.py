"""The parts of situations.py: functions that prepare a rig, and return the act that the test then runs on the rig."""

from __future__ import annotations

from collections.abc import Callable

from support.rig.arenas import SEED
from support.rig.commands import Command, Key, Register
from support.rig.harness import BUDGET, MS, Client, Rig, fire, requeue
from timerd_shm.declare.limits import TOMBSTONE_KEPT_NS
from timerd_shm.declare.states import Condition, Orphans
from timerd_shm.read.hashing import key_hash

LONG = b"a key that is longer than what fits in any record, so that it needs a block of its own"
ID = bytes(range(16))
GROUP = b"workers"
SLOTS_APART = (b"k0", b"k2", b"k3", b"k4")  # each in another hash slot, so that their events fit into one transaction
assert len({key_hash(SEED, 0, key) % 16 for key in SLOTS_APART}) == len(SLOTS_APART), "choose other keys"
HOUR = 3_600_000 * MS

Act = Callable[[Rig], None]
Situation = Callable[[Rig], Act]


def situation(*commands: Command, before: tuple[Command, ...] = (), others: tuple[Command, ...] = ()) -> Situation:
    """A client issues `commands`, each in its own frame, after its `before` and after another client's `others`."""

    def prepare(rig: Rig) -> Act:
        a, b = rig.client(), rig.client()
        if before:
            rig.do(a, *before)
        if others:
            rig.do(b, *others)
        frames = [a.frame([(a.issue(command), command)]) for command in commands]

        def act(rig: Rig) -> None:
            turn(rig, a, *frames)

        return act

    return prepare


def late(*commands: Command, before: tuple[Command, ...]) -> Situation:
    """A client issues `commands` after `before`. The core reads them 10 ms later, before the wheel moves."""

    def prepare(rig: Rig) -> Act:
        act = situation(*commands, before=before)(rig)
        rig.now_ns += 10 * MS
        return act

    return prepare


def batch(*commands: Command, before: tuple[Command, ...] = ()) -> Situation:
    """A client issues `commands` in one frame, after `before`. They fit into one transaction."""

    def prepare(rig: Rig) -> Act:
        a = rig.client()
        if before:
            rig.do(a, *before)
        frame = a.frame([(a.issue(command), command) for command in commands])
        return lambda rig: turn(rig, a, frame)

    return prepare


def turn(rig: Rig, client: Client, *frames: bytes) -> None:
    """A turn that applies frames and does not move the wheel."""
    rig.core.begin_turn(rig.now_ns)
    while rig.core.resume(rig.now_ns, BUDGET):
        pass
    for frame in frames:
        assert rig.apply(client, frame) == rig.module.APPLIED
    rig.core.end_turn(rig.now_ns)


def watch(*keys: bytes, needed: int = 1, target: int | None = None, timeout_ns: int = HOUR, **more: object) -> Register:
    return Register(tuple(Key(key, target) for key in keys), timeout_ns=timeout_ns, needed=needed, **more)  # type: ignore[arg-type]


def observe(*keys: bytes, **more: object) -> Register:
    return Register(tuple(Key(key, observed=True) for key in keys), condition=Condition.OBSERVE, **more)  # type: ignore[arg-type]


def owned(*keys: bytes, **more: object) -> Register:
    """An operation whose owner evaluates its condition."""
    return Register(tuple(Key(key, observed=True) for key in keys), condition=Condition.OWNER, **more)  # type: ignore[arg-type]


def wheel(*registrations: Register, after_ns: int) -> Situation:
    """The wheel moves and expires these registrations."""

    def prepare(rig: Rig) -> Act:
        rig.do(rig.client(), *registrations)
        return wheel_moves(rig.now_ns + after_ns)

    return prepare


def wheel_moves(now_ns: int) -> Act:
    """A turn at `now_ns`, which goes on until no work is left."""

    def act(rig: Rig) -> None:
        rig.core.begin_turn(now_ns)
        while rig.core.resume(now_ns, BUDGET) or rig.core.advance(now_ns, BUDGET):
            pass
        rig.core.end_turn(now_ns)

    return act


def acknowledge(count: int) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client()
        rig.do(a, *(watch(b"k", wants_answer=True) for _ in range(count)), fire(b"k", value=b"v" * 300))
        outcome, answer = a.delivered[-1].number, a.answers[-1].command

        def act(rig: Rig) -> None:
            rig.core.begin_turn(rig.now_ns)
            left = rig.core.acknowledge(a.slot, outcome, answer, BUDGET)
            while left:
                left = rig.core.resume(rig.now_ns, BUDGET)
            rig.core.end_turn(rig.now_ns)

        return act

    return prepare


def close(orphans: Orphans) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client(orphans)
        rig.do(a, watch(b"done"), *(watch(b"k", LONG, needed=2, id=bytes([n]) * 16) for n in range(3)), fire(b"done"))

        def act(rig: Rig) -> None:
            rig.core.begin_turn(rig.now_ns)
            if a.slot in rig.core.live_slots():
                rig.core.close_client(a.slot, rig.now_ns)
            while rig.core.resume(rig.now_ns, BUDGET):
                pass
            rig.core.end_turn(rig.now_ns)

        return act

    return prepare


def finish(rig: Rig) -> None:
    """A turn that finishes the work that earlier turns have left."""
    rig.core.begin_turn(rig.now_ns)
    while rig.core.resume(rig.now_ns, BUDGET):
        pass
    rig.core.end_turn(rig.now_ns)


def die(rig: Rig, client: Client, *, goodbye: bool = False) -> Act:
    def act(rig: Rig) -> None:
        if client.slot in rig.core.live_slots():
            rig.core.close_client(client.slot, rig.now_ns, goodbye=goodbye)
        finish(rig)

    return act


def applied(rig: Rig, client: Client, command: Command) -> Act:
    """The act of a client's command, and of the work that follows from it."""
    frame = client.frame([(client.issue(command), command)])

    def act(rig: Rig) -> None:
        turn(rig, client, frame)
        finish(rig)

    return act


def owner_of_grant_dies(key: bytes, *, watchers: int) -> Situation:
    """The owner of a limited event's grant dies: the grant is requeued."""

    def prepare(rig: Rig) -> Act:
        a, b = rig.client(), rig.client()
        rig.do(a, watch(b"other", key), watch(key))
        rig.do(b, *(watch(key) for _ in range(watchers)), fire(key, limit=2, value=b"v" * 200))
        return die(rig, a)

    return prepare


def grant_is_requeued(*, watchers: int) -> Situation:
    """The owner of a limited event's grant requeues it."""

    def prepare(rig: Rig) -> Act:
        a, b = rig.client(), rig.client()
        rig.do(a, watch(LONG))
        rig.do(b, *(watch(LONG) for _ in range(watchers)), fire(LONG, limit=1, value=b"v" * 200))
        return applied(rig, a, requeue(1, wait=True))

    return prepare


def come_back(rig: Rig) -> Act:
    """A client comes back with its session: its tombstone becomes a client again."""
    a = rig.client()
    rig.do(a, watch(b"k"), fire(b"k"))
    rig.close(a)
    group = rig.core.group(GROUP)

    def act(rig: Rig) -> None:
        if rig.core.find_tombstone(a.session) == a.slot:
            rig.core.resume_client(
                a.slot, pid=7, start_ticks=8, pid_namespace=9, wall_ns=10, now_ns=rig.now_ns, group=group, listens=True
            )

    return act


def tombstone_ends(rig: Rig) -> Act:
    rig.close(rig.client())
    rig.now_ns += TOMBSTONE_KEPT_NS
    return finish


def tombstone_gives_way(rig: Rig) -> Act:
    for client in [rig.client() for _ in range(4)]:
        rig.close(client)
    return open_client(rig)


def leave(*, goodbye: bool) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client()
        rig.do(a, fire(b"k", wait=True))
        return die(rig, a, goodbye=goodbye)

    return prepare


def replace_a_settled_id_at_once(rig: Rig) -> Act:
    """The id's operation settled a while ago. Another operation takes the id over, and settles at its registration."""
    a = rig.client()
    rig.do(a, watch(b"k", id=ID), fire(b"k"))
    rig.now_ns += MS
    command = watch(b"l", id=ID, if_exists="replace", timeout_ns=0)
    frame = a.frame([(a.issue(command), command)])

    def act(rig: Rig) -> None:
        turn(rig, a, frame)

    return act


def open_client(rig: Rig) -> Act:
    def act(rig: Rig) -> None:
        rig.core.open_client(b"i" * 16, b"s" * 16, name=b"newcomer", pid=7, now_ns=rig.now_ns)

    return act


def open_again(rig: Rig) -> Act:
    """The same client says hello again: its session is replaced."""
    rig.core.open_client(b"i" * 16, b"s" * 16, now_ns=rig.now_ns)

    def act(rig: Rig) -> None:
        rig.core.open_client(b"i" * 16, b"t" * 16, now_ns=rig.now_ns)

    return act


def new_purgatory(rig: Rig) -> Act:
    def act(rig: Rig) -> None:
        rig.core.purgatory(b"fetch")

    return act


def full_ring(value: bytes) -> tuple[Command, ...]:
    return tuple(fire(LONG if n % 3 else b"e", value=value) for n in range(20))
