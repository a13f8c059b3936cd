"""Situations of groups: their outcomes, their members, and named calls."""

from __future__ import annotations

from support.rig.acts import GROUP, HOUR, ID, LONG, Act, Situation, applied, die, finish, watch, wheel_moves
from support.rig.commands import Key, OperationAct, Register
from support.rig.harness import BUDGET, MS, Client, Rig, begun, done, fire, given_up
from timerd_shm.declare.limits import GROUP_KEPT_NS
from timerd_shm.declare.states import CallPhase, Orphans
from timerd_shm.declare.wire import CommandKind


def work(*keys: bytes) -> Register:
    return watch(*keys, payload=b"p" * 200, for_group=True)


def owner_of_a_group_dies(rig: Rig) -> Act:
    """A member dies, and the group adopts its operations, pending or settled. Another member listens."""
    a, _ = rig.client(Orphans.GROUP, group=GROUP), rig.client(group=GROUP, listens=True)
    rig.do(a, watch(b"k", LONG, payload=b"p" * 200), watch(b"k"), watch(b"l", id=ID), fire(b"k", value=b"v" * 200))
    return die(rig, a)


def last_of_a_group_dies(rig: Rig) -> Act:
    a = rig.client(Orphans.GROUP, group=GROUP, listens=True)
    rig.do(a, watch(b"k"), work(b"k", LONG), watch(b"l"), fire(b"k", value=b"v" * 200))
    return die(rig, a)


def holder_dies(rig: Rig) -> Act:
    """The outcomes that the dead member held, received or not, are delivered to the next member."""
    a, b = rig.client(group=GROUP, listens=True), rig.client(group=GROUP, listens=True)
    rig.do(b, work(b"k"), work(b"k"), work(b"l"), fire(b"k", value=b"v"))
    rig.acknowledge(a)
    rig.do(b, work(b"m"), fire(b"l"), fire(b"m"))
    return die(rig, a)


def member_begins_to_listen(rig: Rig) -> Act:
    """A member begins to listen, and gets the outcomes that waited."""
    a, b = rig.client(group=GROUP), rig.client(group=GROUP)
    rig.do(b, work(b"k"), work(b"k", LONG), work(b"l"), fire(b"k", value=b"v" * 200))

    def act(rig: Rig) -> None:
        rig.core.set_listening(a.slot, True, rig.now_ns)
        finish(rig)

    return act


def stops_listening(rig: Rig) -> Act:
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
        return applied(rig, a, done(a.delivered_for_group[0]))

    return prepare


def group_outcome_is_received(rig: Rig) -> Act:
    a = rig.client(group=GROUP, listens=True)
    rig.do(a, work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.acknowledge(a.slot, 1, 0, BUDGET)

    return act


def group_outcome_is_delivered(rig: Rig) -> Act:
    a = rig.client(group=GROUP, listens=True)
    rig.do(a, work(b"k", LONG), work(b"k"))
    return applied(rig, a, fire(b"k", value=b"v" * 200))


def group_outcome_is_dropped(rig: Rig) -> Act:
    a = rig.client(group=GROUP)
    rig.do(a, work(b"k", LONG), fire(b"k", value=b"v" * 200))
    rig.close(a)
    rig.now_ns += GROUP_KEPT_NS

    return finish


def maker_ends(rig: Rig) -> Act:
    """A client ends that has made outcomes and a pending operation for its group. Then its user pays for them."""
    a = rig.client(group=GROUP, uid=1000)
    rig.do(a, work(b"k", LONG), work(b"k"), work(b"l"), fire(b"k", value=b"v" * 200))
    return die(rig, a)


def two_groups(rig: Rig) -> tuple[bytes, bytes]:
    """Two groups, which exist before a user has left something in one of them."""
    rig.core.group(GROUP)
    rig.core.group(b"other")
    return GROUP, b"other"


def outcomes_make_room(rig: Rig) -> Act:
    """The arena is full with the outcomes of one user's ended clients, and another client registers an operation."""
    for group in two_groups(rig):
        a = rig.client(group=group, uid=1000)
        rig.do(a, *[Register((Key(b"k"),), timeout_ns=0, for_group=True)] * 32)
        rig.close(a, goodbye=True)
    return applied(rig, rig.client(), watch(b"k", LONG))


def due_calls_make_room(rig: Rig) -> Act:
    for group in two_groups(rig):
        a = rig.client(group=group, uid=1000)
        rig.do(a, *(call(id=b"%015d%d" % (number, group == GROUP)) for number in range(32)))
        rig.close(a, goodbye=True)
    return applied(rig, rig.client(), watch(b"k", LONG))


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


# named calls: a call is delivered only to a member that handles its name


def call(name: bytes = b"job", timeout_ns: int = 0, **more: object) -> Register:
    """A call with a name, due at once unless `timeout_ns` is given."""
    return Register((Key(name),), timeout_ns, payload=b"p" * 200, for_group=True, call=True, **more)  # type: ignore[arg-type]


def handler(rig: Rig, *names: bytes, most: int = 4) -> Client:
    """A member that takes calls of these names."""
    client = rig.client(group=GROUP)
    assert rig.core.set_calls(client.slot, most, 0, list(names), rig.now_ns) == most
    return client


def call_is_due(rig: Rig) -> Act:
    """A call falls due, and is delivered to the member that handles its name."""
    a = handler(rig, b"job")
    rig.do(a, call(timeout_ns=5 * MS, id=ID))
    return wheel_moves(rig.now_ns + 6 * MS)


def call_is_followed(timeout_ns: int = HOUR, *, over: bool = False) -> Situation:
    """The member that ran a call registers the next one, with the same id. With `over`, the call was done before."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        (delivered,) = a.delivered_for_group
        if over:
            rig.do(a, done(delivered))
        follower = call(
            timeout_ns=timeout_ns, id=ID, if_exists="replace", follows=delivered.operation, wants_answer=True
        )
        return applied(rig, a, follower)

    return prepare


def call_is_done(*, known: bool, received: bool = True) -> Situation:
    """A call is done, and its id is free. With `known` False, the member sends a wrong time: the id is not freed."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        if received:
            rig.acknowledge(a)
        settled_ns = rig.now_ns if known else rig.now_ns - 1
        over = OperationAct(
            CommandKind.GROUP_ACK,
            a.delivered_for_group[0].operation,
            id=ID,
            frees_id=True,
            registered_ns=settled_ns,
            wants_answer=True,
        )
        rig.now_ns += MS
        return applied(rig, a, over)

    return prepare


def call_is_planned_anew(*, rescheduled: bool = False) -> Situation:
    """Somebody has set the wall clock forward by an hour. With `rescheduled`, a caller has given a delay instead."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        wall_ns = rig.now_ns + 9 * HOUR
        rig.core.set_wall_clock(HOUR)
        finish(rig)
        rig.do(a, call(timeout_ns=8 * HOUR, id=ID, wall_ns=wall_ns), call(timeout_ns=9 * HOUR))
        if rescheduled:
            return applied(rig, a, OperationAct(CommandKind.RESCHEDULE_ID, id=ID, timeout_ns=MS, wants_answer=True))

        def act(rig: Rig) -> None:
            rig.core.set_wall_clock(2 * HOUR)
            finish(rig)

        return act

    return prepare


def call_begins(phase: CallPhase = CallPhase.HANDLER, *, held: bool = True) -> Situation:
    """A member is about to run a call, which it holds, or held before it fell silent."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        (delivered,) = a.delivered_for_group
        if not held:
            handler(rig, b"job")
            rig.core.silence(a.slot, rig.now_ns)
            rig.turn()
            rig.core.revive(a.slot, rig.now_ns)
        rig.now_ns += MS
        return applied(rig, a, begun(delivered, phase, limit_ns=MS))

    return prepare


def call_is_given_up(rig: Rig) -> Act:
    """A member gives a call up, and says why."""
    a = handler(rig, b"job")
    rig.do(a, call(id=ID))
    rig.do(a, begun(a.delivered_for_group[0]))
    return applied(rig, a, given_up(a.delivered_for_group[0], b"e" * 200))


def running_call_ends_its_process(rig: Rig) -> Act:
    """The process of a member ends while a call runs there. A newer call of its id is pending."""
    a = handler(rig, b"job")
    rig.do(a, call(id=ID))
    rig.do(a, begun(a.delivered_for_group[0]))
    b = handler(rig, b"job")
    rig.do(b, call(timeout_ns=HOUR, id=ID, if_exists="replace"))
    return die(rig, a)


def given_up_call_is_done(*, followed: bool) -> Situation:
    """A call that was given up is done: it becomes a dead letter, and an older dead letter gives way."""

    def prepare(rig: Rig) -> Act:
        a, _ = dead_letter(rig)
        rig.do(a, call(id=ID, if_exists="replace"))
        delivered = a.delivered_for_group[-1]
        rig.do(a, begun(delivered), given_up(delivered, b"why"))
        if followed:
            follower = call(timeout_ns=HOUR, id=ID, if_exists="replace", follows=delivered.operation, wants_answer=True)
            return applied(rig, a, follower)
        return applied(rig, a, done(delivered))

    return prepare


def call_is_served_by_nobody(rig: Rig) -> Act:
    a = rig.client(group=GROUP)
    rig.do(a, call(id=ID))
    rig.now_ns += GROUP_KEPT_NS
    return finish


def dead_letter(rig: Rig) -> tuple[Client, int]:
    """A member, and the op id of a dead letter of its group."""
    a = handler(rig, b"job")
    rig.do(a, call(id=ID))
    (delivered,) = a.delivered_for_group
    rig.do(a, begun(delivered), given_up(delivered, b"why"), done(delivered))
    return a, delivered.operation


def letter_is_retried(rig: Rig) -> Act:
    a, letter = dead_letter(rig)
    return applied(rig, a, call(timeout_ns=HOUR, follows=letter, of_letter=True, wants_answer=True))


def letter_is_dropped(rig: Rig) -> Act:
    a, letter = dead_letter(rig)
    return applied(rig, a, OperationAct(CommandKind.GROUP_ACK, letter, of_letter=True, wants_answer=True))


def due_call_is_cancelled(*, delivered: bool) -> Situation:
    """A call that is due, and that no member runs, is cancelled by its id."""

    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job") if delivered else rig.client(group=GROUP)
        rig.do(a, call(id=ID))
        return applied(rig, a, OperationAct(CommandKind.CANCEL_ID, id=ID, wants_answer=True))

    return prepare


def due_call_is_replaced(*, timeout_ns: int) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        return applied(rig, a, call(timeout_ns=timeout_ns, id=ID, if_exists="replace", wants_answer=True))

    return prepare


def call_that_runs_is_made_again(*, timeout_ns: int) -> Situation:
    def prepare(rig: Rig) -> Act:
        a = handler(rig, b"job")
        rig.do(a, call(id=ID))
        rig.do(a, begun(a.delivered_for_group[0]))
        return applied(rig, a, call(timeout_ns=timeout_ns, id=ID, if_exists="again", wants_answer=True))

    return prepare


def handles(*names: bytes, most: int = 4) -> Situation:
    """A member changes the names that it handles, while it holds a call and others wait."""

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


def gives_back(rig: Rig) -> Act:
    """A member takes no more calls. It gives back a call that has not begun, which another member gets."""
    a = handler(rig, b"job", most=2)
    rig.do(a, call(), call(id=ID))
    rig.do(a, begun(a.delivered_for_group[0]))
    handler(rig, b"job", most=1)

    def act(rig: Rig) -> None:
        rig.core.set_calls(a.slot, 2, 0, [], rig.now_ns)
        rig.core.give_back(a.slot, [each.operation for each in a.delivered_for_group], rig.now_ns)
        finish(rig)

    return act


def falls_silent(rig: Rig) -> Act:
    """A member falls silent. It holds nothing, because an act may run twice: an outcome would be requeued twice."""
    a = rig.client(group=GROUP, listens=True)

    def act(rig: Rig) -> None:
        rig.core.silence(a.slot, rig.now_ns)
        finish(rig)

    return act


def falls_silent_and_keeps(rig: Rig) -> Act:
    """A member whose process runs falls silent: its outcomes are not delivered to the other member."""
    a = rig.client(group=GROUP, listens=True)
    rig.do(a, work(b"k"), fire(b"k"))
    rig.acknowledge(a)
    rig.client(group=GROUP, listens=True)

    def act(rig: Rig) -> None:
        rig.core.silence(a.slot, rig.now_ns, keeps=True)
        finish(rig)

    return act


def sends_frames_again(rig: Rig) -> Act:
    a, b = rig.client(group=GROUP, listens=True), rig.client(group=GROUP)
    rig.core.silence(a.slot, rig.now_ns)
    rig.do(b, work(b"k"), fire(b"k"))

    def act(rig: Rig) -> None:
        rig.core.revive(a.slot, rig.now_ns)
        finish(rig)

    return act
