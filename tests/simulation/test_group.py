"""A member and the outcomes of its group: the real protocol against the real conductor, on a manual clock."""

from __future__ import annotations

from typing import cast

import pytest

from simulation.jobs import Job, later, run, session_gone, worker_of
from simulation.workers import Answer, Worker
from support.fakes.networks import World
from support.rig.commands import Key, Register
from support.rig.frames import encode
from support.rig.harness import S
from timerd_client.groups.outcome import GroupOutcome
from timerd_client.link.promise import Reply
from timerd_client.outcome import State
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.state import LinkState
from timerd_shm.declare.errors import ErrorCode, NotAMemberError
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.limits import LEASE_NS
from timerd_shm.declare.states import Orphans
from timerd_shm.declare.wire import CommandHeader, UpKind

MS = 1_000_000


def register(worker: Worker, key: bytes = b"job", payload: bytes = b"load", *, timeout_ns: int = 10 * MS) -> None:
    """Register an operation of the worker's group."""
    command = Register(
        (Key(key),),
        timeout_ns=timeout_ns,
        payload=payload,
        registered_ns=worker.now_ns,
        for_group=True,
        wants_answer=True,
    )
    answer = worker.issue(encode(command))
    assert answer.come and answer.error is None, answer.error


def taken(worker: Worker) -> DeliveredOutcome | None:
    return worker.take(worker.inbox.outcomes)


@pytest.fixture
def world() -> World:
    return World(lease_ns=LEASE_NS).until_quiet()


def test_an_outcome_is_delivered_to_one_listening_member_with_all_its_fields(world: World) -> None:
    deaf, first, second = Worker(world), Worker(world).listen(), Worker(world).listen()
    register(deaf, b"topic/\xff", b"what to do")
    world.run(20 * MS)
    found = [(worker, given) for worker in (deaf, first, second) if (given := taken(worker)) is not None]
    assert len(found) == 1
    worker, given = found[0]
    assert worker is not deaf
    outcome = GroupOutcome(None, given)  # type: ignore[arg-type]
    assert (outcome.state, outcome.purgatory, outcome.keys) == (State.EXPIRED, "default", (b"topic/\xff",))
    assert (outcome.payload, outcome.deliveries, outcome.redelivered) == (b"what to do", 1, False)
    assert 0 <= outcome.lateness_ns < 20 * MS
    assert worker.ack(given) == 1
    assert worker.ack(given) == 0, "the outcome was done twice"
    worker.die()
    world.run(S)
    assert [taken(each) for each in (first, second) if each is not worker] == [None]


def test_overlapping_reports_deliver_no_outcome_twice(world: World) -> None:
    """When a client asks for a report again, the report and later ones may be on their way already."""
    worker = Worker(world).listen()
    register(worker, payload=b"first")
    register(worker, payload=b"second", timeout_ns=30 * MS)
    world.run(20 * MS)
    worker.receive()
    world.run(20 * MS)
    session = world.sessions.find(worker.protocol.session.secret)
    assert session is not None
    both = world.core.report(session.slot, 0, 0, worker.now_ns)
    worker.protocol.receive(bytes(both), worker.now_ns, published=False)
    given = [one for _ in range(3) if (one := taken(worker)) is not None]
    assert [one.payload for one in given] == [b"first", b"second"]
    assert [worker.ack(one) for one in given] == [1, 1]


def test_a_done_outcome_is_not_redelivered_while_its_acknowledgement_travels(world: World) -> None:
    """A member that stops listening and begins again may get the same outcome again; the caller acts once."""
    worker = Worker(world).listen()
    register(worker)
    world.run(20 * MS)
    given = taken(worker)
    assert given is not None
    worker.inbox.leave()
    worker.pump()
    worker.listen()
    world.run(100 * MS)
    worker.receive()
    assert [one.record.deliveries for one in worker.inbox.outcomes] == [2]
    assert worker.ack(given) == 1
    assert taken(worker) is None
    register(worker, payload=b"another")
    world.run(20 * MS)
    assert [one.payload for one in (taken(worker), taken(worker)) if one is not None] == [b"another"]


def test_an_outcome_that_a_dead_member_held_is_redelivered(world: World) -> None:
    first = Worker(world).listen()
    register(first)
    world.run(20 * MS)
    given = taken(first)
    assert given is not None
    second = Worker(world).listen()
    first.die()
    world.run(20 * MS)
    again = taken(second)
    assert again is not None
    assert (again.record.operation, again.record.deliveries, again.payload) == (given.record.operation, 2, b"load")
    assert GroupOutcome(None, again).redelivered  # type: ignore[arg-type]


def test_an_outcome_that_is_not_done_when_its_member_stops_listening_is_redelivered(world: World) -> None:
    first = Worker(world).listen()
    register(first)
    world.run(20 * MS)
    given = taken(first)
    assert given is not None
    second = Worker(world).listen()
    first.inbox.leave()
    first.pump()
    again = taken(second)
    assert again is not None and again.record.deliveries == 2
    assert first.ack(given) == 0, "another member holds the outcome"
    assert second.ack(again) == 1


def test_a_member_that_leaves_and_listens_again_at_once_listens(world: World) -> None:
    worker = Worker(world).listen()
    worker.inbox.leave()
    worker.protocol.tick(worker.now_ns)  # the message that it stops listening is on its way, unanswered
    worker.listen()
    register(worker)
    world.run(20 * MS)
    assert taken(worker) is not None


def test_an_outcome_that_is_not_done_is_redelivered_to_a_member_that_listens_again_at_once(world: World) -> None:
    worker = Worker(world).listen()
    register(worker)
    world.run(20 * MS)
    given = taken(worker)
    assert given is not None
    worker.inbox.leave()
    worker.listen()
    again = taken(worker)
    assert again is not None and again.record.deliveries == 2
    assert worker.ack(again) == 1


def test_a_member_that_listens_again_is_given_nothing_that_may_be_requeued(world: World) -> None:
    """The member has left, and the daemon has not confirmed this yet: another member may already hold the outcome."""
    worker = Worker(world).listen()
    register(worker, payload=b"first")
    register(worker, payload=b"second")
    world.run(20 * MS)
    given = taken(worker)
    assert given is not None and worker.inbox.may_have(worker.inbox.outcomes)
    worker.inbox.leave()
    worker.protocol.tick(worker.now_ns)  # the message that it stops listening is on its way
    worker.inbox.listen(worker.now_ns)
    assert worker.inbox.next(worker.inbox.outcomes, worker.now_ns) is None
    assert not worker.inbox.may_have(worker.inbox.outcomes)
    again = taken(worker), taken(worker)
    assert {(one.payload, one.record.deliveries) for one in again if one} == {(b"first", 2), (b"second", 2)}


def test_an_outcome_that_was_sent_while_the_daemon_requeued_it_is_checked_with_the_daemon(world: World) -> None:
    """The daemon sent outcomes again before it knew that the member left. The member listens again, and reads them."""
    worker, other = Worker(world).listen(), Worker(world)
    register(worker)
    world.run(20 * MS)
    session = world.sessions.find(worker.protocol.session.secret)
    assert session is not None
    world.network.published.clear()
    late = bytes(world.core.report(session.slot, 0, 0, worker.now_ns + MS))
    worker.inbox.leave()
    worker.pump()
    other.listen()
    again = taken(other)
    assert again is not None and again.record.deliveries == 2
    world.clock.move(2 * MS)
    worker.inbox.listen(worker.now_ns)
    worker.protocol.receive(late, worker.now_ns, published=True)
    assert len(worker.inbox.outcomes) == 1
    worker.pump()
    assert taken(worker) is None and worker.inbox.requeued == 1


def test_a_member_that_left_while_the_daemon_was_lost_and_serves_calls_gets_no_outcome(world: World) -> None:
    """The daemon believes that the member listens. Outcomes for it would reach no caller while the member lives."""
    worker = Worker(world).listen()
    worker.inbox.handle(["job"], 1, worker.now_ns)
    worker.pump()
    worker.inbox.leave()
    lose_daemon(worker)
    world.network.up.clear()  # the daemon goes on, and never gets the message that the member left
    while worker.protocol.lost:
        world.clock.move(S)
        worker.protocol.tick(worker.now_ns)
        while (frame := worker.protocol.next_frame(worker.now_ns)) is not None:
            world.network.up.append((worker.routing, frame))
        world.settle()
        worker.receive(published=False)  # the answer to its hello, before any report
    worker.wait(lambda: worker.protocol.state is LinkState.LIVE)
    worker.pump()
    heir = Worker(world).listen()
    for payload in (b"first", b"second"):
        register(heir, payload=payload)
    world.run(20 * MS)
    assert [one.payload for one in (taken(heir), taken(heir)) if one is not None] == [b"first", b"second"]


def test_an_answer_lost_with_a_dead_client_fails_when_the_client_returns(world: World) -> None:
    worker = Worker(world)
    answer, before = Answer(), worker.protocol.ledger.issued
    command = Register((Key(b"job"),), timeout_ns=S, registered_ns=worker.now_ns, for_group=True, wants_answer=True)
    worker.protocol.incoming.replies[worker.protocol.ledger.issue(encode(command))] = cast(Reply, answer)
    frame = worker.protocol.next_frame(worker.now_ns)
    assert frame is not None
    world.network.up.append((worker.routing, frame))
    world.settle()
    del world.network.published[worker.routing]  # the report is lost, too
    world.lifelines.cut(worker.lifeline)
    world.run(50 * MS)
    assert not answer.come
    worker.wait(lambda: answer.come)
    assert worker.protocol.ledger.applied == before + 1
    assert answer.error is not None and answer.error.code is ErrorCode.UNAVAILABLE


def test_an_outcome_in_two_reports_is_delivered_once(world: World) -> None:
    worker = Worker(world).listen()
    register(worker)
    register(worker, b"later", timeout_ns=S)
    world.run(20 * MS)
    worker.receive()  # the acknowledgement has not gone out when the daemon is killed
    world.run(S)
    world.network.published.clear()
    world.restart()
    world.until_quiet()
    worker.protocol.receive(world.core.report(0, 0, 0, worker.now_ns), worker.now_ns, published=False)
    first, second = worker.take(worker.inbox.outcomes), worker.take(worker.inbox.outcomes)
    assert first is not None and second is not None
    assert (first.keys, second.keys) == (("job",), ("later",))
    assert taken(worker) is None
    assert worker.protocol.statistics().outcomes_unknown == 0


def lose_daemon(worker: Worker) -> None:
    """Stop the daemon until the client takes it for lost. The client's frames meanwhile wait in the daemon's socket."""
    world, protocol = worker.world, worker.protocol
    while not protocol.lost:
        world.clock.move(S // 2)
        if worker.now_ns >= protocol.poll_deadline():
            protocol.tick(worker.now_ns)
        while (frame := protocol.next_frame(worker.now_ns)) is not None:
            world.network.up.append((worker.routing, frame))


def go_on_without_hello(worker: Worker) -> None:
    """The daemon goes on, and gets all frames but the hello. So its report makes the client live again."""
    world = worker.world
    for _ in range(len(world.network.up)):
        sent = world.network.up.popleft()
        if unpack(CommandHeader, sent[1]).kind != UpKind.HELLO:
            world.network.up.append(sent)
    world.settle()
    worker.receive()


def test_a_listen_command_without_an_answer_in_time_may_be_in_force(world: World) -> None:
    deaf, worker = Worker(world), Worker(world)
    register(deaf, timeout_ns=5 * S)
    worker.inbox.listen(worker.now_ns)
    lose_daemon(worker)
    world.run(3 * S)  # the daemon goes on, finds the command, and delivers to the member before the member asks again
    given = taken(worker)
    assert given is not None and worker.holds(given)


def test_a_member_that_left_before_the_answer_to_its_listen_gets_no_outcome(world: World) -> None:
    deaf, worker = Worker(world), Worker(world)
    register(deaf, timeout_ns=5 * S)
    worker.inbox.listen(worker.now_ns)
    lose_daemon(worker)
    go_on_without_hello(worker)
    worker.inbox.leave()
    worker.pump()
    world.run(3 * S)
    heir = Worker(world).listen()
    assert taken(heir) is not None


def test_a_member_whose_leaving_was_not_answered_in_time_asks_before_it_goes_on(world: World) -> None:
    worker, other = Worker(world).listen(), Worker(world)
    register(worker, payload=b"first")
    register(worker, payload=b"second")
    world.run(20 * MS)
    assert taken(worker) is not None
    other.listen()
    worker.inbox.leave()
    lose_daemon(worker)
    go_on_without_hello(worker)
    payloads = {one.payload for one in (taken(other), taken(other)) if one is not None}
    assert payloads == {b"first", b"second"}
    worker.inbox.listen(worker.now_ns)
    assert worker.inbox.next(worker.inbox.outcomes, worker.now_ns) is None, "another member holds the outcome"
    assert taken(worker) is None


def test_a_member_taken_for_dead_within_its_lease_dispatches_no_requeued_outcome(world: World) -> None:
    worker, other = Worker(world).listen(), Worker(world)
    register(worker)
    world.run(20 * MS)
    worker.pump()
    other.listen()
    world.lifelines.cut(worker.lifeline)  # something in its process has closed the descriptor
    world.run(50 * MS)
    again = taken(other)
    assert again is not None and again.record.deliveries == 2
    world.run(S)
    worker.pump()
    assert taken(worker) is None and worker.inbox.requeued == 1
    assert other.ack(again) == 1


def test_a_stopped_member_dispatches_no_outcome_that_was_requeued_meanwhile(world: World) -> None:
    stopped = Worker(world).listen()
    register(stopped)
    world.run(20 * MS)
    stopped.pump()
    assert len(stopped.inbox.outcomes) == 1, "the outcome is delivered to the client, and not yet given to the caller"
    other = Worker(world).listen()
    for _ in range(20):
        world.run(S)
        other.pump()
    again = taken(other)
    assert again is not None and again.record.deliveries == 2

    assert stopped.inbox.next(stopped.inbox.outcomes, stopped.now_ns) is None, "the member must ask the daemon first"
    assert taken(stopped) is None
    assert stopped.inbox.requeued == 1
    assert other.ack(again) == 1
    register(other)
    world.run(20 * MS)
    assert (taken(stopped) is None) != (taken(other) is None), "the stopped member takes part again"


def test_an_outcome_read_late_is_checked_with_the_daemon_even_with_a_renewed_lease(world: World) -> None:
    stopped = Worker(world).listen()
    register(stopped)
    world.run(20 * MS)  # the report lies unread in the stopped member's socket
    other = Worker(world).listen()
    for _ in range(20):
        world.run(S)
        other.pump()
    assert taken(other) is not None

    late = world.network.published.pop(stopped.routing)
    stopped.pump()  # the member pings, and gets the answer, before it reads the late report
    for frame in late:
        stopped.protocol.receive(frame, stopped.now_ns, published=True)
    assert len(stopped.inbox.outcomes) == 1
    assert taken(stopped) is None
    assert stopped.inbox.requeued == 1


def test_a_member_within_its_lease_dispatches_without_asking_the_daemon(world: World) -> None:
    worker = Worker(world).listen()
    for _ in range(30):
        world.run(S)
        worker.pump()
    register(worker)
    world.run(20 * MS)
    worker.pump()
    assert worker.inbox.next(worker.inbox.outcomes, worker.now_ns) is not None


def test_without_a_daemon_no_outcome_is_dispatched_after_the_lease(world: World) -> None:
    worker = Worker(world).listen()
    register(worker)
    world.run(20 * MS)
    worker.pump()
    world.clock.move(LEASE_NS)  # the daemon makes no turn
    assert worker.inbox.next(worker.inbox.outcomes, worker.now_ns) is None
    assert worker.inbox.next(worker.inbox.outcomes, worker.now_ns) is None

    world.restart()
    world.until_quiet()
    for _ in range(5):
        worker.pump()
        world.run(S)
    given = taken(worker)
    assert given is not None and given.record.deliveries == 1, "this member held the outcome all the time"
    assert worker.ack(given) == 1


def test_an_outcome_of_a_dead_member_is_delivered_to_its_group(world: World) -> None:
    owner, heir = Worker(world, orphans=Orphans.GROUP), Worker(world).listen()
    owner.protocol.ledger.issue(encode(Register((Key(b"own"),), timeout_ns=50 * MS)))
    owner.pump()
    owner.die()
    world.run(100 * MS)
    given = taken(heir)
    assert given is not None and given.keys == ("own",)


def test_a_client_without_a_group_cannot_listen(world: World) -> None:
    worker = Worker(world, group=None)
    with pytest.raises(NotAMemberError, match="group"):
        worker.inbox.listen(worker.now_ns)


def test_a_refused_listen_command_is_reported(world: World) -> None:
    worker = Worker(world)
    answer = Answer()
    worker.protocol.query({"query": "listen", "on": "perhaps"}, answer, worker.now_ns)
    worker.pump()
    assert answer.error is not None


# a member that leaves -------------------------------------------------------------------------------------------------


def test_a_member_that_leaves_gives_back_what_has_not_begun_while_its_handler_runs(world: World) -> None:
    ran, came = Job(), Job()
    leaving = worker_of(world, ran, periodic=False)
    leaving.handle(at_once=4)
    ran.during = lambda call: leave(world, leaving, other, [b"1", b"2", b"3"], came)
    other = Worker(world)
    for number in b"0123":
        command = other.calls.commands.later("job", 0.0, bytes([number]), None, "error").command
        assert other.issue(command).error is None
    world.run(20 * MS)
    delivered = leaving.take(leaving.inbox.calls)
    assert delivered is not None and len(leaving.inbox.calls) == 3
    leaving.inbox.begun[delivered.record.operation] = "job"
    leaving.do(leaving.calls.carry_out(delivered))
    del leaving.inbox.begun[delivered.record.operation]
    world.run(S)
    assert [call.payload for call in ran.calls] == [b"0"] and len(came.calls) == 3, "a call ran twice"


def leave(world: World, leaving: Worker, other: Worker, payloads: list[bytes], came: Job) -> None:
    """The member leaves while one of its calls runs. The other member gets the calls that have not begun."""
    leaving.inbox.handle_no_more(leaving.now_ns)
    leaving.pump()
    other.add("job", came)
    other.handle()
    run(world, [other], S)
    assert [call.payload for call in came.calls] == payloads
    assert [call.deliveries for call in came.calls] == [2, 2, 2]


def test_a_member_that_leaves_gives_back_what_was_on_its_way_to_it(world: World) -> None:
    ran, came = Job(), Job()
    leaving = worker_of(world, ran, periodic=False)
    other = worker_of(world, came, "other", periodic=False)
    assert later(other, delay=0.0)
    world.run(20 * MS)
    assert not leaving.inbox.calls, "the call was received before the member left"
    leaving.inbox.begun[1 << 40] = "job"  # another call runs
    leaving.inbox.handle_no_more(leaving.now_ns)
    leaving.pump()
    other.add("job", came)
    other.handle()
    run(world, [leaving, other], S)
    assert len(came.calls) == 1 and not ran.calls


@pytest.mark.parametrize("other_arena", [False, True])
def test_a_member_that_has_left_takes_nothing_after_a_restart_of_its_daemon(world: World, other_arena: bool) -> None:
    ran, came = Job(), Job()
    leaving = worker_of(world, ran, periodic=False)
    leaving.inbox.handle_no_more(leaving.now_ns)
    leaving.pump()
    world.restart()
    world.until_quiet()
    if other_arena:
        leaving.protocol.receive(session_gone(leaving), leaving.now_ns, published=False)
    leaving.wait(lambda: leaving.protocol.state is LinkState.LIVE)
    leaving.handle()  # as another serve() does
    other = worker_of(world, came, periodic=False)
    for _ in range(4):
        assert later(other, delay=0.0)
        run(world, [leaving, other], S)
    assert len(came.calls) == 4 and not ran.calls
