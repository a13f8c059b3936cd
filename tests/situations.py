"""Everything that changes the truth of an arena, one situation each: prepared, and ready to happen.

`SITUATIONS[name](rig)` prepares it on a bench and returns the act, which may be done again: what is sent twice is
applied once. test_redo cuts each off at every ordering point, test_journal reads what it has written.
"""

from __future__ import annotations

from collections.abc import Callable

from commands import Command, Key, Mark, OperationAct, Register
from harness import (
    BUDGET,
    MS,
    Client,
    Rig,
    advance,
    cancel,
    cancel_for_key,
    done,
    fail,
    fire,
    forget,
    give_back,
    reschedule,
)
from timerd_shm.layout import Condition, Orphans
from timerd_shm.limits import GROUP_KEPT_NS, TOMBSTONE_KEPT_NS
from timerd_shm.wire import CommandKind

LONG = b"a key that is longer than what fits in any record, so that it needs a block of its own"
ID = bytes(range(16))
RUN_MAX = 16  # commands of one transaction (arena.pxd)
SLOTS_APART = (b"k0", b"k2", b"k3", b"k5")  # in hash slots of their own, so that one transaction takes their events
HOUR = 3_600_000 * MS

Act = Callable[[Rig], None]
Situation = Callable[[Rig], Act]


def situation(*commands: Command, before: tuple[Command, ...] = (), others: tuple[Command, ...] = ()) -> Situation:
    """A client issues `commands`, each in a frame of its own, after `before`, and after `others` of another."""

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


def run(*commands: Command, before: tuple[Command, ...] = ()) -> Situation:
    """A client issues `commands` in one frame, after `before`: as many as one transaction may hold."""

    def prepare(rig: Rig) -> Act:
        a = rig.client()
        if before:
            rig.do(a, *before)
        frame = a.frame([(a.issue(command), command) for command in commands])
        return lambda rig: turn(rig, a, frame)

    return prepare


def turn(rig: Rig, client: Client, *frames: bytes) -> None:
    """A turn on any core, with frames and without the wheel."""
    rig.core.begin_turn(rig.now_ns)
    while rig.core.resume(rig.now_ns, BUDGET):
        pass
    for frame in frames:
        assert rig.apply(client, frame) == rig.module.APPLIED
    rig.core.end_turn(rig.now_ns)


def watch(*keys: bytes, needed: int = 1, target: int | None = None, timeout_ns: int = HOUR, **more: object) -> Register:
    return Register(tuple(Key(key, target) for key in keys), timeout_ns=timeout_ns, needed=needed, **more)  # type: ignore[arg-type]


def wheel(*registrations: Register, after_ns: int) -> Situation:
    """The wheel moves and expires them."""

    def prepare(rig: Rig) -> Act:
        rig.do(rig.client(), *registrations)
        now_ns = rig.now_ns + after_ns

        def act(rig: Rig) -> None:
            rig.core.begin_turn(now_ns)
            while rig.core.resume(now_ns, BUDGET) or rig.core.advance(now_ns, BUDGET):
                pass
            rig.core.end_turn(now_ns)

        return act

    return prepare


def acknowledge(count: int) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client()
        rig.do(a, *(watch(b"k", wants_answer=True) for _ in range(count)), fire(b"k", value=b"v" * 300))
        outcome, answer = a.told[-1].number, a.answers[-1].command

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


GROUP = b"workers"


def finish(rig: Rig) -> None:
    """A turn that ends what is left to do."""
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
    """The client's command, and what follows from it."""
    frame = client.frame([(client.issue(command), command)])

    def act(rig: Rig) -> None:
        turn(rig, client, frame)
        finish(rig)

    return act


def work(*keys: bytes) -> Register:
    return watch(*keys, payload=b"p" * 200, for_group=True)


def owner_of_a_group_dies(rig: Rig) -> Act:
    """Its group adopts what is pending, and what it may have acted on; another member listens."""
    a, _ = rig.client(Orphans.GROUP, group=GROUP), rig.client(group=GROUP, listens=True)
    rig.do(a, watch(b"k", LONG, payload=b"p" * 200), watch(b"k"), watch(b"l", id=ID), fire(b"k", value=b"v" * 200))
    return die(rig, a)


def last_of_a_group_dies(rig: Rig) -> Act:
    a = rig.client(Orphans.GROUP, group=GROUP, listens=True)
    rig.do(a, watch(b"k"), work(b"k", LONG), watch(b"l"), fire(b"k", value=b"v" * 200))
    return die(rig, a)


def holder_dies(rig: Rig) -> Act:
    """What it has received, and what not, is told to the next member."""
    a, b = rig.client(group=GROUP, listens=True), rig.client(group=GROUP, listens=True)
    rig.do(b, work(b"k"), work(b"k"), work(b"l"), fire(b"k", value=b"v"))
    rig.acknowledge(a)
    rig.do(b, work(b"m"), fire(b"l"), fire(b"m"))
    return die(rig, a)


def hand_out(rig: Rig) -> Act:
    """Somebody comes who listens."""
    a, b = rig.client(group=GROUP), rig.client(group=GROUP)
    rig.do(b, work(b"k"), work(b"k", LONG), work(b"l"), fire(b"k", value=b"v" * 200))

    def act(rig: Rig) -> None:
        rig.core.set_listening(a.slot, True, rig.now_ns)
        finish(rig)

    return act


def listens_no_more(rig: Rig) -> Act:
    a, b = rig.client(group=GROUP, listens=True), rig.client(group=GROUP)
    rig.do(b, work(b"k"), work(b"k"), fire(b"k"))
    rig.acknowledge(a)
    rig.do(b, work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.set_listening(a.slot, False, rig.now_ns)
        finish(rig)

    return act


def group_outcome_is_done(received: bool) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client(group=GROUP, listens=True)
        rig.do(a, work(b"k", LONG), fire(b"k", value=b"v" * 200))
        if received:
            rig.acknowledge(a)
        return applied(rig, a, done(a.told_for_group[0]))

    return prepare


def group_outcome_is_received(rig: Rig) -> Act:
    a = rig.client(group=GROUP, listens=True)
    rig.do(a, work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.acknowledge(a.slot, 1, 0, BUDGET)

    return act


def group_outcome_is_told(rig: Rig) -> Act:
    a = rig.client(group=GROUP, listens=True)
    rig.do(a, work(b"k", LONG), work(b"k"))
    return applied(rig, a, fire(b"k", value=b"v" * 200))


def group_outcome_is_dropped(rig: Rig) -> Act:
    a = rig.client(group=GROUP)
    rig.do(a, work(b"k", LONG), fire(b"k", value=b"v" * 200))
    rig.close(a)
    rig.now_ns += GROUP_KEPT_NS

    return finish


def hand_on(key: bytes, *, watchers: int) -> Situation:
    """A limited event goes on from an owner that died."""

    def prepare(rig: Rig) -> Act:
        a, b = rig.client(), rig.client()
        rig.do(a, watch(b"other", key), watch(key))
        rig.do(b, *(watch(key) for _ in range(watchers)), fire(key, limit=2, value=b"v" * 200))
        return die(rig, a)

    return prepare


def handed_back(*, watchers: int) -> Situation:
    """Its owner gives it back."""

    def prepare(rig: Rig) -> Act:
        a, b = rig.client(), rig.client()
        rig.do(a, watch(LONG))
        rig.do(b, *(watch(LONG) for _ in range(watchers)), fire(LONG, limit=1, value=b"v" * 200))
        return applied(rig, a, give_back(1, wait=True))

    return prepare


def come_back(rig: Rig) -> Act:
    """A session shows itself again, and a tombstone becomes its client."""
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


def open_member(rig: Rig) -> Act:
    rig.do(rig.client(group=GROUP), work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.open_client(
            b"i" * 16, b"s" * 16, orphans=Orphans.GROUP, group=rig.core.group(GROUP), listens=True, now_ns=rig.now_ns
        )
        finish(rig)

    return act


def new_group(rig: Rig) -> Act:
    def act(rig: Rig) -> None:
        rig.core.group(b"newcomers")

    return act


def group_record_is_used_again(rig: Rig) -> Act:
    rig.core.group(b"one")
    rig.core.group(b"two")
    return new_group(rig)


def replace_a_settled_id_at_once(rig: Rig) -> Act:
    """The id has settled a while ago; who replaces it settles while it registers, and the id settles again."""
    a = rig.client()
    rig.do(a, watch(b"k", id=ID), fire(b"k"))
    rig.now_ns += MS
    command = watch(b"l", id=ID, if_exists="replace", timeout_ns=0)
    frame = a.frame([(a.issue(command), command)])

    def act(rig: Rig) -> None:
        turn(rig, a, frame)

    return act


# named calls: told only to members that handle their name


def call(name: bytes = b"job", timeout_ns: int = 0, **more: object) -> Register:
    """A call with a name; due at once, unless it says otherwise."""
    return Register((Key(name),), timeout_ns, payload=b"p" * 200, for_group=True, call=True, **more)  # type: ignore[arg-type]


def handler(rig: Rig, *names: bytes, most: int = 4) -> Client:
    """A member that takes calls of these names."""
    client = rig.client(group=GROUP)
    assert rig.core.set_calls(client.slot, most, 0, list(names), rig.now_ns) == most
    return client


def call_is_due(rig: Rig) -> Act:
    """It is told to who handles its name."""
    a = handler(rig, b"job")
    rig.do(a, call(timeout_ns=5 * MS, id=ID))
    now_ns = rig.now_ns + 6 * MS

    def act(rig: Rig) -> None:
        rig.core.begin_turn(now_ns)
        while rig.core.resume(now_ns, BUDGET) or rig.core.advance(now_ns, BUDGET):
            pass
        rig.core.end_turn(now_ns)

    return act


def call_is_followed(timeout_ns: int = HOUR, *, over: bool = False) -> Situation:
    """Who has run it registers the next, under the same id; or what it follows is over already."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        (told,) = a.told_for_group
        if over:
            rig.do(a, done(told))
        follower = call(timeout_ns=timeout_ns, id=ID, if_exists="replace", follows=told.operation, wants_answer=True)
        return applied(rig, a, follower)

    return prepare


def call_is_done(*, known: bool, received: bool = True) -> Situation:
    """Its id is free with it, if it is known still."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        if received:
            rig.acknowledge(a)
        settled_ns = rig.now_ns if known else rig.now_ns - 1
        over = OperationAct(
            CommandKind.GROUP_ACK,
            a.told_for_group[0].operation,
            id=ID,
            frees_id=True,
            registered_ns=settled_ns,
            wants_answer=True,
        )
        rig.now_ns += MS
        return applied(rig, a, over)

    return prepare


def done_if_something_follows(*, pending: bool) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = rig.client(group=GROUP, listens=True)
        rig.do(a, work(b"k"), fire(b"k"))
        if pending:
            rig.do(a, watch(b"k", id=ID, for_group=True))
        return applied(
            rig, a, OperationAct(CommandKind.GROUP_ACK, a.told_for_group[0].operation, id=ID, wants_answer=True)
        )

    return prepare


def handles(*names: bytes, most: int = 4) -> Situation:
    """A member says that it handles these names now; it holds a call, and others wait."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job", most=1)
        handler(rig, b"job", b"third", most=1)
        rig.do(a, call(), call(), call(b"other"))
        rig.acknowledge(a)

        def act(rig: Rig) -> None:
            rig.core.set_calls(a.slot, most, 0, list(names), rig.now_ns)
            finish(rig)

        return act

    return prepare


def falls_silent(rig: Rig) -> Act:
    """It holds nothing: a start takes it for live again, and would count another delivery."""
    a = rig.client(group=GROUP, listens=True)

    def act(rig: Rig) -> None:
        rig.core.silence(a.slot, rig.now_ns)
        finish(rig)

    return act


def is_heard_again(rig: Rig) -> Act:
    a, b = rig.client(group=GROUP, listens=True), rig.client(group=GROUP)
    rig.core.silence(a.slot, rig.now_ns)
    rig.do(b, work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.revive(a.slot, rig.now_ns)
        finish(rig)

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


WATCHERS = (
    watch(b"k"),
    watch(b"k", b"l", needed=2),
    watch(b"l", b"k"),
    watch(b"k", condition=Condition.TOTAL, total=5),
    watch(b"k", condition=Condition.TOTAL, total=500),
    watch(b"k", b"w", condition=Condition.ALL_SETTLED),
    watch(b"k", payload=b"p" * 500, id=ID),
    watch(b"other"),
)
OFFSETS = tuple(watch(b"p", target=target) for target in (5, 3, 9, 4, 20, 5))
TOTALS = tuple(watch(b"k", condition=Condition.TOTAL, total=total) for total in (10, 20, 30))
WITH_PAYLOADS = tuple(watch(key, payload=b"p" * 100) for key in (*SLOTS_APART[::2], b"other"))
START = Mark(0, 0)

SITUATIONS: dict[str, Situation] = {
    "register": situation(watch(b"k")),
    "register: keys, payload, id": situation(watch(b"k", b"l", LONG, payload=b"p" * 400, id=ID, wants_answer=True)),
    "register: known keys": situation(watch(b"k", b"l"), before=WATCHERS),
    "register: no deadline": situation(Register((Key(b"k"),))),
    "register: timeout 0": situation(watch(b"k", timeout_ns=0)),
    "register: watermark reached": situation(watch(b"p", target=7, payload=b"p" * 200), before=(advance(b"p", 9),)),
    "register: watermark of one key": situation(
        Register((Key(b"p", 7), Key(b"k")), timeout_ns=HOUR, needed=2), before=(advance(b"p", 9),)
    ),
    "register: overtaken": situation(watch(b"k", mark=START), others=(fire(b"k", value=b"v" * 300),)),
    "register: overtaken twice, total": situation(
        watch(b"k", condition=Condition.TOTAL, total=8, mark=START), others=(fire(b"k", 3), fire(b"k", 4))
    ),
    "register: overtaken by a limited event": situation(
        *(watch(b"k", mark=START) for _ in range(3)), others=(fire(b"k", limit=2),)
    ),
    "register: overtaken by fail": situation(watch(b"k", mark=START), others=(fail(b"k", 6, value=b"gone"),)),
    "register: too old": situation(watch(b"e", mark=START), others=full_ring(b"")),
    "register: refused": situation(watch(b"k", b"k")),
    "register: id exists": situation(watch(b"l", id=ID), before=WATCHERS),
    "register: id kept": situation(watch(b"l", id=ID, if_exists="keep"), before=WATCHERS),
    "register: id replaced": situation(watch(b"l", id=ID, if_exists="replace"), before=WATCHERS),
    "register: settled id replaced": situation(
        watch(b"l", id=ID, if_exists="replace"), before=(watch(b"k", id=ID), fire(b"k"))
    ),
    "register: settled id replaced at once": replace_a_settled_id_at_once,
    "register: cancelled id replaced": situation(
        watch(b"l", id=ID, if_exists="replace cancelled"), before=(watch(b"k", id=ID), cancel(1))
    ),
    "register: changed id replaced": situation(
        watch(b"l", id=ID, payload=b"new", if_exists="replace changed", total=3), before=WATCHERS
    ),
    "register: unchanged id exists": situation(
        watch(b"l", id=ID, payload=b"pp", if_exists="replace changed", total=2), before=WATCHERS
    ),
    "register: overtaken, by a mark that is another's": situation(
        watch(b"k", mark=START, mark_by_sequence=True, orphans=Orphans.KEEP), before=(fire(b"k"),)
    ),
    "register: a mark of another arena": situation(watch(b"k", mark_of_other_arena=True)),
    "a run of registrations": run(*(watch(b"k%d" % (n % 11)) for n in range(RUN_MAX))),
    "a run of registrations with payloads": run(
        *(watch(b"k%d" % (n % 11), payload=b"p" * (n * 7)) for n in range(RUN_MAX)), before=full_ring(b"old" * 30)
    ),
    "a run of cancels": run(*(cancel(n) for n in (2, 8, 1, 7, 3)), before=tuple(watch(b"k%d" % n) for n in range(9))),
    "a run of fires": run(
        *(fire(key) for key in SLOTS_APART), before=tuple(watch(key) for key in (*SLOTS_APART[::2], b"other"))
    ),
    "a run of fires with values": run(*(fire(key, value=b"v" * 8) for key in SLOTS_APART), before=WITH_PAYLOADS),
    "a run of fires with values, the ring evicts": run(
        *(fire(key, value=b"v" * 8) for key in SLOTS_APART), before=(*full_ring(b"old" * 30), *WITH_PAYLOADS)
    ),
    "fire: nobody": situation(fire(b"nobody", wait=True)),
    "fire: one": situation(fire(b"k", value=b"v" * 300), before=(watch(b"k", payload=b"p" * 300),)),
    "fire: every condition": situation(fire(b"k", 5, value=b"v", wait=True), before=WATCHERS),
    "fire: long key": situation(fire(LONG, value=b"v"), before=(watch(LONG), watch(LONG, b"k", needed=2))),
    "fire: totals": situation(fire(b"k", 10), fire(b"k", 10), fire(b"k", 10), before=TOTALS),
    "fire: limited": situation(fire(b"k", 5, limit=2, wait=True), before=WATCHERS),
    "fire: limited, some left": situation(fire(b"k", 5, limit=9), before=WATCHERS),
    "fire: the ring evicts": situation(fire(b"k", value=b"new" * 99), before=(*full_ring(b"old" * 99), *WATCHERS)),
    "fire: twelve watchers": situation(fire(b"k", value=b"v"), before=tuple(watch(b"k", b"l") for _ in range(12))),
    "advance: new": situation(advance(b"p", 7)),
    "advance: some": situation(advance(b"p", 5, value=b"v" * 200, wait=True), before=OFFSETS),
    "advance: higher and lower": situation(advance(b"p", 4), advance(b"p", 2), advance(b"p", 9), before=OFFSETS),
    "fail: events": situation(fail(b"k", 6, value=b"not leader", wait=True), before=WATCHERS),
    "fail: watermarks": situation(fail(b"p", 6), before=OFFSETS),
    "fail: totals": situation(fail(b"k", 6), before=TOTALS),
    "cancel_for_key": situation(cancel_for_key(b"k", wait=True), before=WATCHERS),
    "cancel_for_key: watermarks": situation(cancel_for_key(b"p"), before=OFFSETS),
    "forget": situation(forget(b"p"), before=(advance(b"p", 2), *OFFSETS)),
    "forget: the last of its key": situation(forget(LONG, wait=True), before=(advance(LONG, 2),)),
    "cancel": situation(cancel(2), before=WATCHERS),
    "cancel: id and payload": situation(cancel(7, wait=True), before=WATCHERS),
    "cancel: settled": situation(cancel(1, wait=True), before=(watch(b"k"), fire(b"k"))),
    "cancel by id": situation(OperationAct(CommandKind.CANCEL_ID, id=ID, wants_answer=True), before=WATCHERS),
    "cancel by id: unknown": situation(OperationAct(CommandKind.CANCEL_ID, id=ID)),
    "reschedule": situation(reschedule(1, 5 * MS, wait=True), before=WATCHERS),
    "reschedule by id": situation(OperationAct(CommandKind.RESCHEDULE_ID, id=ID, timeout_ns=9 * MS), before=WATCHERS),
    "set orphans": situation(
        OperationAct(CommandKind.SET_ORPHANS, 1, orphans=Orphans.KEEP, wants_answer=True), before=WATCHERS
    ),
    "expire: one": wheel(watch(b"k", LONG, needed=2, timeout_ns=5 * MS, id=ID), after_ns=6 * MS),
    "expire: many in one tick": wheel(*(watch(b"k", timeout_ns=70 * MS) for _ in range(6)), after_ns=70 * MS),
    "expire: several ticks": wheel(*(watch(b"k", timeout_ns=n * 40 * MS) for n in range(5)), after_ns=500 * MS),
    "acknowledge: one": acknowledge(1),
    "acknowledge: many": acknowledge(6),
    "open a client": open_client,
    "open a client again": open_again,
    "close a client: cancel": close(Orphans.CANCEL),
    "close a client: keep": close(Orphans.KEEP),
    "a new purgatory": new_purgatory,
    "an owner of a group dies": owner_of_a_group_dies,
    "the last of a group dies": last_of_a_group_dies,
    "a holder dies": holder_dies,
    "hand out": hand_out,
    "listens no more": listens_no_more,
    "register for the group": lambda rig: applied(rig, rig.client(group=GROUP), work(b"k", LONG)),
    "a group's outcome: told": group_outcome_is_told,
    "a group's outcome: received": group_outcome_is_received,
    "a group's outcome: done": group_outcome_is_done(True),
    "a group's outcome: done, not received": group_outcome_is_done(False),
    "a group's outcome: dropped": group_outcome_is_dropped,
    "a group's outcome: done, if something follows": done_if_something_follows(pending=True),
    "a group's outcome: not done, as nothing follows": done_if_something_follows(pending=False),
    "a call: registered": lambda rig: applied(rig, handler(rig, b"job"), call(timeout_ns=HOUR, id=ID)),
    "a call: due": call_is_due,
    "a call: followed": call_is_followed(),
    "a call: followed by one that is due": call_is_followed(timeout_ns=0),
    "a call: followed when it is over": call_is_followed(over=True),
    "a call: done, and its id is free": call_is_done(known=True),
    "a call: done, its id is another's": call_is_done(known=False, received=False),
    "handles other names": handles(b"other", b"more"),
    "handles nothing more": handles(most=0),
    "falls silent": falls_silent,
    "is heard again": is_heard_again,
    "hand on: two watchers": hand_on(LONG, watchers=3),
    "hand on: nobody": hand_on(b"k", watchers=0),
    "give back: a watcher": handed_back(watchers=2),
    "give back: nobody": handed_back(watchers=0),
    "leave a tombstone": leave(goodbye=False),
    "say goodbye": leave(goodbye=True),
    "come back from a tombstone": come_back,
    "a tombstone ends": tombstone_ends,
    "a tombstone gives way": tombstone_gives_way,
    "open a member": open_member,
    "a new group": new_group,
    "a group's record is used again": group_record_is_used_again,
}
# These are series of transactions: what lies between them is neither before nor after, and finished by what comes next.
SERIES = {
    "register: overtaken by a limited event",
    "fire: totals",
    "fire: the ring evicts",
    "a run of fires with values, the ring evicts",
    "advance: higher and lower",
    "expire: many in one tick",
    "expire: several ticks",
    "acknowledge: one",
    "acknowledge: many",
    "close a client: cancel",
    "close a client: keep",
    "an owner of a group dies",
    "the last of a group dies",
    "a holder dies",
    "hand out",
    "listens no more",
    "a group's outcome: told",
    "a call: due",
    "hand on: two watchers",
    "hand on: nobody",
    "give back: a watcher",
    "leave a tombstone",
    "say goodbye",
    "a tombstone gives way",
    "open a member",
    "a group's record is used again",
}
