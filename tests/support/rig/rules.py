"""The ground rules, each as a function of a rig. A test runs each function; a seeded defect makes it fail."""

from __future__ import annotations

import random
from collections.abc import Callable

from support.rig.acts import owned
from support.rig.commands import Key, KeyAct, Register
from support.rig.groups import answer, call, handler, silence, watch, work, worker
from support.rig.harness import BUDGET, MS, Client, Rig, S, begun, complete, done, fire, given_up, looked
from timerd_shm.declare.errors import ErrorCode
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import CallPhase, ClientFlag, Condition, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind, OutcomeFlag

ONE = (Key(b"k1"),)


def own_earlier_fire_does_not_complete_an_own_later_op(rig: Rig) -> None:
    """A client fires "s/7" and then registers "s/7", as heartbeats do."""
    a = rig.client()
    a.issue(fire(b"s/7"))
    number = a.issue(Register((Key(b"s/7"),), timeout_ns=30 * MS, mark=a.mark()))
    rig.turn()
    assert a.state(number) is Outcome.NONE, "an own earlier event completed a later registration"
    rig.do(a, fire(b"s/7"))
    assert a.state(number) is Outcome.COMPLETED, "an own later event was lost"


def an_event_that_overtook_a_registration_counts(rig: Rig) -> None:
    """Another client's event arrives between mark and registration."""
    a, b = rig.client(), rig.client()
    mark = a.mark()
    rig.do(b, fire(b"k1", value=b"v"))
    number = rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=mark))
    delivered = a.outcome(number)
    assert delivered is not None, "a wake-up was lost"
    assert (delivered.state, delivered.value) == (Outcome.COMPLETED, b"v")


def a_limited_event_is_taken_once(rig: Rig, between: Callable[[], None] = lambda: None) -> None:
    """One operation takes the only grant. Another registers later, with an older mark, after a call of `between`."""
    a, b, c = rig.client(), rig.client(), rig.client()
    mark = c.mark()
    first = rig.do(a, Register(ONE, timeout_ns=30 * MS, mark=a.mark()))
    rig.do(b, fire(b"k1", limit=1))
    between()
    late = rig.do(c, Register(ONE, timeout_ns=30 * MS, mark=mark))
    assert (a.state(first), c.state(late)) == (Outcome.COMPLETED, Outcome.NONE)


def with_id(number: int) -> Register:
    """An operation with an id of this number, which expires at once."""
    return Register(ONE, timeout_ns=0, id=number.to_bytes(16, "little"), wants_answer=True)


def a_client_makes_itself_forget_first(rig: Rig, between: Callable[[], None] = lambda: None) -> None:
    """One client fills the ids of the arena again and again. `between` is called halfway."""
    few, many = rig.client(), rig.client()
    rig.do(few, *(with_id(number) for number in range(3)))
    for number in range(100, 300):
        rig.do(many, with_id(number), now_ns=rig.now_ns + MS)
        rig.acknowledge()
        if number == 200:
            between()
    assert rig.arena.count("ids_forgotten") > 50
    for number in range(3):
        again = few.answer(rig.do(few, with_id(number)))
        assert again is not None and again.code == ErrorCode.OPERATION_EXISTS, f"id {number} is forgotten"


ON_K = Register((Key(b"k"),), timeout_ns=50 * MS)


def send(rig: Rig, client: Client, frame: bytes) -> int:
    """Apply a frame in a turn of its own. Returns the core's result."""
    rig.core.begin_turn(rig.now_ns)
    result = rig.apply(client, frame)
    rig.report()
    rig.core.end_turn(rig.now_ns)
    return result


def a_lost_frame_is_expected_again(rig: Rig) -> None:
    """Command 1 arrives, 2 is lost, and 3 must not be applied before 2."""
    client = rig.client()
    watcher = rig.client()
    rig.do(watcher, *(Register((Key(b"%d" % n),), timeout_ns=50 * MS) for n in (1, 2, 3)))
    frames = [client.frame([(client.issue(fire(b"%d" % n)), fire(b"%d" % n))]) for n in (1, 2, 3)]
    assert send(rig, client, frames[0]) == rig.module.APPLIED
    assert send(rig, client, frames[2]) == rig.module.EXPECTED, "a gap was not noticed"
    assert rig.core.last_command(client.slot) == 1
    assert send(rig, client, frames[1]) == rig.module.APPLIED
    assert send(rig, client, frames[2]) == rig.module.APPLIED
    assert send(rig, client, frames[1]) == rig.module.APPLIED
    assert [each.state for each in watcher.delivered] == [Outcome.COMPLETED] * 3


def a_frame_sent_again_is_skipped(rig: Rig) -> None:
    client = rig.client()
    number = rig.do(client, Register((Key(b"k"),), timeout_ns=50 * MS, condition=Condition.TOTAL, total=10))
    batch = [(client.issue(fire(b"k", 2)), fire(b"k", 2)) for _ in range(3)]
    assert send(rig, client, client.frame(batch[:2])) == rig.module.APPLIED
    assert send(rig, client, client.frame(batch)) == rig.module.APPLIED  # the first two commands had been applied
    assert send(rig, client, client.frame(batch)) == rig.module.APPLIED
    assert client.state(number) is Outcome.NONE, "amounts were counted twice"
    rig.do(client, fire(b"k", 4))
    assert client.state(number) is Outcome.COMPLETED
    assert rig.arena.count("commands_skipped") == 5


def outcomes_are_kept_until_acknowledged(rig: Rig) -> None:
    client = rig.client()
    rig.do(client, ON_K, fire(b"k"))
    rig.core.acknowledge(client.slot, 0, 0, BUDGET)
    number = rig.do(client, ON_K, fire(b"k", value=b"kept"))
    assert client.state(number) is Outcome.COMPLETED
    rig.core.acknowledge(client.slot, 1, 0, BUDGET)  # only the first outcome
    client.delivered.clear()
    assert rig.core.unacknowledged(client.slot), "its record was freed when it was delivered"
    client.receive(bytes(rig.core.report(client.slot, 0, 0, rig.now_ns)))
    assert [each.value for each in client.delivered] == [b"kept"]
    rig.restart()
    client.delivered.clear()
    rig.turn()
    assert [each.value for each in client.delivered] == [b"kept"], "a restart forgot an outcome"
    rig.acknowledge()
    assert not rig.core.unacknowledged(client.slot)
    assert rig.arena.in_use()["OPS"] == rig.arena.in_use()["BLOCKS"] - 1 == 0, "the ring alone holds the value"


REQUEUED = OutcomeFlag.GRANTED | OutcomeFlag.REDELIVERED


def grant_of_a_dead_owner_is_requeued(rig: Rig) -> None:
    a, b, c = rig.client(), rig.client(), rig.client()
    rig.do(a, watch(b"k"))
    first, second = rig.do(b, watch(b"k")), rig.do(c, watch(b"k"))
    rig.do(c, fire(b"k", limit=1, value=b"token"))
    assert a.state(1) is Outcome.COMPLETED
    rig.close(a)
    rig.turn()
    delivered = b.outcome(first)
    assert delivered is not None and (delivered.state, delivered.value) == (Outcome.COMPLETED, b"token"), (
        f"first watcher: {delivered}"
    )
    assert b.flags[delivered.number] & REQUEUED == REQUEUED
    assert c.state(second) is Outcome.NONE, "the only grant was taken twice"
    assert rig.arena.count("requeued") == 1
    rig.check()


def done_by_a_former_holder_is_refused(rig: Rig) -> None:
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    (first,) = a.delivered_for_group
    silence(rig, a)
    rig.core.revive(a.slot, rig.now_ns)
    assert answer(rig, a, first) == 0, "a member without the outcome was answered as its holder"
    assert rig.core.held(a.slot, [first.operation]) == []
    (again,) = b.delivered_for_group
    assert answer(rig, b, again) == 1
    rig.check()


def a_silent_member_keeps_what_it_holds(rig: Rig) -> None:
    """The member's process runs, so it may still be at work. It gets no new outcomes."""
    a, b = worker(rig), worker(rig)
    rig.do(b, work(b"k"), fire(b"k"))
    (first,) = a.delivered_for_group
    rig.core.silence(a.slot, rig.now_ns, keeps=True)
    rig.turn()
    rig.do(b, *(work(b"l") for _ in range(4)), fire(b"l"))
    assert (len(a.delivered_for_group), len(b.delivered_for_group)) == (1, 4)
    assert rig.core.held(a.slot, [first.operation]) == [first.operation]
    assert rig.arena.record(Region.CLIENTS, a.slot).flags == ClientFlag.LISTENS | ClientFlag.KEEPS
    rig.check()
    rig.core.revive(a.slot, rig.now_ns)
    assert rig.arena.record(Region.CLIENTS, a.slot).flags == ClientFlag.LISTENS
    assert answer(rig, a, first) == 1, "the silent member has lost its outcome"
    rig.check()


def delivered_to_one_at_a_time(rig: Rig) -> None:
    """The death of another client does not change what a live member holds."""
    a, b, c = worker(rig), worker(rig), worker(rig)
    rig.do(c, *(work(b"k") for _ in range(3)), fire(b"k"))
    rig.close(c)
    held = [delivered.operation for each in (a, b) for delivered in each.delivered_for_group]
    assert len(held) == 3 and len(set(held)) == 3, f"delivered to two: {held}"
    assert all(rig.core.held(each.slot, [t.operation for t in each.delivered_for_group]) for each in (a, b))
    rig.check()


def wakeups(rig: Rig, until_ns: int) -> int:
    """The number of turns that the timer starts until `until_ns`."""
    count = 0
    while (wake := rig.core.next_wake_ns()) <= until_ns:
        assert wake > rig.now_ns, f"woken for {wake} at {rig.now_ns}: the timer would spin"
        rig.turn(wake)
        count += 1
    return count


def idle_costs_nothing(rig: Rig, span_s: int = 600) -> None:
    """Operations due in two to three hours: at most one wake-up in ten seconds (rule 11)."""
    choose = random.Random(11)
    client = rig.client()
    for _ in range(300):
        client.issue(Register((Key(b"never fired"),), timeout_ns=choose.randrange(7200 * S, 10_800 * S)))
    rig.turn()
    count = wakeups(rig, rig.now_ns + span_s * S)
    assert count <= span_s // 10, f"{count} wake-ups in {span_s} s"


MANY = 6_000
TURN_BUDGET = 300
SLACK = 64  # further records that a turn touches: the event, the client, a bucket
CAPACITY = 14_336
EVERY = Key(b"everybody's")


def crowd(
    rig: Rig, count: int = MANY, *, timeout_ns: int = 3_600_000 * MS, orphans: Orphans = Orphans.CANCEL
) -> Client:
    """A client with `count` operations on one key."""
    client = rig.client(orphans)
    for _ in range(count):
        client.issue(Register((EVERY,), timeout_ns=timeout_ns))
    rig.turn()
    assert not client.delivered
    return client


def small_turn(rig: Rig, work: str, now_ns: int | None = None) -> tuple[bool, int]:
    """One turn of `work` ("resume" or "advance") within the budget. Returns (whether work is left, records touched)."""
    rig.now_ns = now_ns or rig.now_ns
    rig.core.begin_turn(rig.now_ns)
    more = getattr(rig.core, work)(rig.now_ns, TURN_BUDGET)
    return more, rig.core.end_turn(rig.now_ns)


def finish(rig: Rig, work: str) -> list[int]:
    """Make turns until no work is left. Returns the number of records touched in each."""
    touched, more = [], True
    while more:
        more, records = small_turn(rig, work)
        touched.append(records)
        assert len(touched) <= 2 * MANY // TURN_BUDGET + 2, f"{len(touched)} turns and no end: {touched[-5:]}"
    return touched


def begin_event(rig: Rig, client: Client, command: KeyAct) -> int:
    """Apply an event within the budget, in a turn of its own. Returns the number of records touched."""
    number = client.issue(command)
    rig.core.begin_turn(rig.now_ns)
    result = rig.core.apply(client.slot, client.frame(), rig.now_ns, TURN_BUDGET)
    touched: int = rig.core.end_turn(rig.now_ns)
    assert touched <= TURN_BUDGET + SLACK, f"the first part touched {touched} records"
    assert result == rig.module.UNFINISHED, f"result={result}"
    assert rig.core.last_command(client.slot) == number, "the event entered the ring without its command number"
    return touched


def mass_fire_is_cut_into_turns(rig: Rig) -> None:
    watchers, firer = crowd(rig), rig.client()
    first = begin_event(rig, firer, KeyAct(CommandKind.FIRE, EVERY.name, value=b"v", wants_answer=True))
    touched = finish(rig, "resume")
    assert max(touched) <= TURN_BUDGET + SLACK, f"a turn touched {max(touched)} records"
    assert first + sum(touched) >= MANY, "fewer records were touched than settled"
    assert rig.core.apply(firer.slot, firer.frame(), rig.now_ns, TURN_BUDGET) == rig.module.APPLIED
    rig.turn()
    assert [each.command for each in watchers.delivered] == list(range(1, MANY + 1)), "not in order of registration"
    assert {each.state for each in watchers.delivered} == {Outcome.COMPLETED}
    assert [answer.value for answer in firer.answers] == [MANY]


def looks_are_due_until_the_owner_has_looked(rig: Rig) -> None:
    owner, other = rig.client(), rig.client()
    first = rig.do(owner, owned(b"k"))
    rig.do(other, fire(b"k"), fire(b"k"), fire(b"k"))
    assert owner.looks == [(first, 3)]
    rig.do(owner, looked(first, 2))
    assert owner.looks == [(first, 3)] * 2, "the look at the newest event is no longer due"
    rig.do(owner, looked(first, 3))
    rig.core.send_looks_again(owner.slot)
    rig.turn()
    assert len(owner.looks) == 2 and not rig.core.unacknowledged(owner.slot)


def looks_outlive_the_daemon(rig: Rig) -> None:
    owner, other = rig.client(), rig.client()
    first = rig.do(owner, owned(b"k"))
    rig.do(other, fire(b"k"))
    rig.restart()
    rig.turn()
    assert owner.looks == [(first, 1)] * 2


def complete_counts_by_its_effective_time(rig: Rig) -> None:
    """One COMPLETE is read in a gap that began before the deadline. The other is late, but the wheel has not moved."""
    owner = rig.client()
    first = rig.do(owner, owned(b"k", timeout_ns=10 * MS), owned(b"k", timeout_ns=10 * MS))
    owner.issue(complete(first, wait=True))
    rig.core.begin_turn(rig.now_ns + 20 * MS, rig.now_ns + 9 * MS)
    rig.now_ns += 20 * MS
    rig.apply(owner, owner.frame())
    rig.report()
    assert owner.state(first) is Outcome.COMPLETED
    asked = owner.issue(complete(first + 1, wait=True))
    rig.core.begin_turn(rig.now_ns)
    rig.apply(owner, owner.frame())
    rig.report()
    answer = owner.answer(asked)
    assert owner.state(first + 1) is Outcome.EXPIRED and answer is not None and answer.value == 0


def names(*clients: Client) -> list[list[bytes]]:
    """The payloads of the calls that each member was given."""
    return [[delivery.payload for delivery in client.delivered_for_group] for client in clients]


def all_names(*clients: Client) -> list[bytes]:
    """The payloads of the calls that all these members were given."""
    return [name for of_one in names(*clients) for name in of_one]


def held(first: Client, second: Client) -> tuple[Client, Client]:
    """The member that was given a call, and the other one."""
    return (first, second) if first.delivered_for_group else (second, first)


def the_end_of_a_process_is_counted(rig: Rig, ends: int = 2) -> None:
    """Each end is counted, up to 255, and the next member learns the count."""
    for number in range(ends + 1):
        member = handler(rig, b"job")
        if number == 0:
            rig.do(member, call(b"job"))
        rig.turn()
        (delivery,) = member.delivered_for_group
        assert delivery.ended == min(number, 255), f"{delivery.ended} of {number} ends were counted"
        assert delivery.phase == (CallPhase.HANDLER if number else CallPhase.DUE)
        rig.do(member, begun(delivery))
        rig.close(member)
        rig.turn()
    assert rig.arena.count("calls_ended_process") == ends + 1
    rig.check()


def a_call_that_runs_alone_gets_no_company(rig: Rig) -> None:
    member = handler(rig, b"job", most=4)
    rig.do(member, call(b"job", payload=b"alone", alone=True))
    rig.do(member, call(b"job", payload=b"1"), call(b"job", payload=b"2"))
    assert names(member) == [[b"alone"]], "the call that runs alone has company"
    rig.do(member, begun(member.delivered_for_group[0]))
    rig.do(member, done(member.delivered_for_group[0]))
    rig.turn()
    assert names(member) == [[b"alone", b"1", b"2"]]
    rig.check()


def calls_of_an_id_run_one_after_the_other(rig: Rig) -> None:
    """A second call of an id is made while the first runs. It waits, though a member is free."""
    first, second = handler(rig, b"job", most=3), handler(rig, b"job", most=3)
    id = b"id".ljust(16, b".")
    rig.do(first, call(b"job", id=id, payload=b"1"))
    holder, other = held(first, second)
    rig.do(holder, begun(holder.delivered_for_group[0]))
    rig.do(other, call(b"job", id=id, payload=b"2", if_exists="replace"))
    rig.do(other, call(b"job", payload=b"another"))
    assert sorted(all_names(holder, other)) == [b"1", b"another"], "two calls of one id run at once"
    rig.do(holder, done(holder.delivered_for_group[0]))
    rig.turn()
    assert sorted(all_names(holder, other)) == [b"1", b"2", b"another"]
    rig.check()


def the_id_of_a_call_that_runs_is_known(rig: Rig) -> None:
    """The call runs for three times as long as ids are remembered."""
    member = handler(rig, b"job")
    id = b"id".ljust(16, b".")
    rig.do(member, call(b"job", id=id))
    rig.do(member, begun(member.delivered_for_group[0]))
    for _ in range(3):
        rig.turn(rig.now_ns + rig.arena.header.ids_kept_ns)
        number = rig.do(member, call(b"job", id=id, wants_answer=True))
        answer = member.answer(number)
        assert answer is not None and answer.code == ErrorCode.OPERATION_EXISTS, (
            "the id is forgotten while its call runs"
        )
    assert rig.arena.count("ids_forgotten") == 0
    rig.check()


def a_call_that_another_member_runs_is_not_given_up(rig: Rig) -> None:
    """The first member fell silent in its last attempt, and the attempt failed."""
    first, second = handler(rig, b"job"), handler(rig, b"job")
    rig.do(first, call(b"job"))
    holder, other = held(first, second)
    (delivery,) = holder.delivered_for_group
    rig.do(holder, begun(delivery))
    silence(rig, holder)
    rig.core.revive(holder.slot, rig.now_ns)
    rig.do(other, begun(delivery))
    given = holder.answer(rig.do(holder, given_up(delivery, b"why")))
    assert given is not None and given.value == 0, "a call that may succeed elsewhere was given up"
    assert answer(rig, other, delivery) == 1
    assert rig.arena.count("dead_letters") == 0
    rig.check()
