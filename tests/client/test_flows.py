"""The flows that both faces (threaded and asyncio) share, step by step, without a daemon; how a face drives a flow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from support.fakes.lazies import lazy_of
from support.fakes.no_sockets import NOWHERE, NobodyWaits, new_protocol, no_sockets
from timerd_client.aio.link import drive as drive_in_loop
from timerd_client.conditions import ANY
from timerd_client.link import flows
from timerd_client.link.flows import Evaluate, Finish, Flow, Room, Settles, Until
from timerd_client.link.link import Link
from timerd_client.link.operation import ThreadedOperation
from timerd_client.link.surface import Surface
from timerd_client.outcome import State
from timerd_client.threaded.io_thread import IoThread
from timerd_client.threaded.link import ThreadedLink
from timerd_client.threaded.link import drive as drive_in_thread
from timerd_client.types import WhenLost
from timerd_client.waiter import local
from timerd_shm.declare.errors import (
    ArenaFullError,
    ClosedError,
    ErrorCode,
    OperationFailed,
    TimerdUnavailableError,
    error_for,
)

DRIVES: dict[str, Callable[[Flow[Any]], Any]] = {
    "threaded": drive_in_thread,
    "asyncio": lambda flow: asyncio.run(drive_in_loop(flow)),
}


class StillLink(Link):
    """A link that sends nothing, on a clock that stands still. It notes how it was ended."""

    WAITERS = NobodyWaits

    def __init__(self) -> None:
        self.at_ns = 10**9
        super().__init__(NOWHERE, new_protocol(self.at_ns), no_sockets(), lambda: self.at_ns)
        self.stopped: list[float | None] = []

    def wake(self) -> None:
        """Nothing is sent."""

    def stop(self, timeout: float | None = 0.0) -> None:
        self.stopped.append(timeout)


@pytest.fixture
def link() -> StillLink:
    return StillLink()


def waiting(link: StillLink, predicate: Callable[[], object] = bool, unavailable: WhenLost = "raise") -> Flow[Any]:
    surface: Surface[ThreadedOperation, StillLink] = Surface(lazy_of(link), "default", ThreadedOperation)
    return flows.wait_for(surface, predicate, "k", 5.0, ANY, unavailable, 0.1)


def begun(flow: Flow[Any]) -> ThreadedOperation:
    """The operation that a wait_for waits for, because its predicate was false."""
    assert isinstance(next(flow), Evaluate)
    step = flow.send(False)
    assert isinstance(step, Settles)
    return cast(ThreadedOperation, step.promise)


def result_of(flow: Flow[Any], sent: object) -> Any:
    with pytest.raises(StopIteration) as end:
        flow.send(sent)
    return end.value.value


def test_wait_for_evaluates_before_it_waits(link: StillLink) -> None:
    flow = waiting(link)
    assert isinstance(next(flow), Evaluate)
    assert result_of(flow, "there") == "there"
    assert link.protocol.ledger.issued == 0


def test_wait_for_waits_a_grace_after_its_deadline_and_then_evaluates_once_more(link: StillLink) -> None:
    flow = waiting(link)
    next(flow)
    step = flow.send(False)
    assert isinstance(step, Settles) and step.seconds == 6.0
    assert isinstance(flow.send(False), Evaluate)  # nothing has settled
    with pytest.raises(TimerdUnavailableError, match="no word from the daemon for 1 s after the deadline"):
        flow.send(False)
    assert not link.protocol.ledger.pending


def test_an_interrupted_wait_for_withdraws_its_operation(link: StillLink) -> None:
    flow = waiting(link)
    operation = begun(flow)
    flow.close()
    outcome = operation.outcome()
    assert outcome is not None and outcome.state is State.FAILED
    assert not link.protocol.ledger.pending


def test_wait_for_evaluates_again_after_a_refusal_that_does_not_end_it(link: StillLink) -> None:
    flow = waiting(link)
    operation = begun(flow)
    operation.settle(operation.command, local(error_for(ErrorCode.MARK_TOO_OLD, "too old")))
    assert isinstance(flow.send(True), Evaluate)
    assert result_of(flow, 1) == 1


def test_wait_for_raises_any_other_refusal(link: StillLink) -> None:
    flow = waiting(link)
    operation = begun(flow)
    operation.settle(operation.command, local(ArenaFullError("full")))
    with pytest.raises(ArenaFullError):
        flow.send(True)


def test_wait_for_polls_while_the_daemon_is_lost(link: StillLink) -> None:
    for _ in range(8):
        link.at_ns += 500_000_000
        link.protocol.tick(link.at_ns)
    assert link.protocol.lost
    flow = waiting(link, unavailable="poll")
    pauses = []
    step: object = next(flow)
    for _ in range(5):
        assert isinstance(step, Evaluate)
        until = flow.send(False)
        assert isinstance(until, Until)
        pauses.append(until.seconds)
        step = flow.send(False)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0]


def test_close_ends_the_link_whatever_happens(link: StillLink) -> None:
    link.protocol.ledger.issue(b"a command")
    flow = flows.close(lazy_of(link), 3.0)
    assert next(flow) == Finish(link, 3.0)
    until = flow.send(None)
    assert isinstance(until, Until) and until.then is not None
    assert link.sealed and not link.stopped
    with pytest.raises(TimerdUnavailableError, match="1 command is unacknowledged"):
        until.then()
    flow.close()  # as each face does
    assert link.stopped == [3.0]


def test_close_returns_silently_if_another_caller_has_closed_the_link_meanwhile(link: StillLink) -> None:
    flow = flows.close(lazy_of(link), 3.0)
    next(flow)
    link.closed = True
    assert result_of(flow, None) is None
    assert link.stopped == [3.0]


def test_set_orphans_waits_for_room_between_its_parts(link: StillLink) -> None:
    surface: Surface[ThreadedOperation, StillLink] = Surface(lazy_of(link), "default", ThreadedOperation)
    for number in range(5):
        surface.register(f"k{number}", timeout=60)
    link.protocol.ledger.window = 8
    flow = flows.set_orphans(link, "keep")
    assert next(flow) == Room(link)
    assert link.protocol.ledger.issued == 8
    link.protocol.ledger.window = 100
    assert result_of(flow, None) == 5
    assert link.protocol.ledger.issued == 10


@pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
def test_a_face_does_the_steps_and_returns_what_the_flow_returns(
    drive: Callable[[Flow[Any]], Any], link: StillLink
) -> None:
    def flow() -> Flow[Any]:
        first = yield Evaluate(lambda: 20)
        second = yield flows.Do(lambda: 22)
        yield flows.Sleep(0)
        return first + second

    assert drive(flow()) == 42


@pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
@pytest.mark.parametrize("error", [KeyError("wrong"), KeyboardInterrupt(), OperationFailed("failed")], ids=repr)
def test_an_error_in_a_step_ends_the_flow_and_reaches_the_caller(
    drive: Callable[[Flow[Any]], Any], error: BaseException, link: StillLink
) -> None:
    ended: list[bool] = []

    def fail() -> None:
        raise error

    def flow() -> Flow[None]:
        try:
            yield Evaluate(fail)
        finally:
            ended.append(True)

    with pytest.raises(type(error)):
        drive(flow())
    assert ended == [True]


@pytest.mark.parametrize("drive", DRIVES.values(), ids=DRIVES)
def test_an_error_of_the_flow_itself_reaches_the_caller(drive: Callable[[Flow[Any]], Any], link: StillLink) -> None:
    link.closed = True
    with pytest.raises(ClosedError):
        drive(flows.flush(link, 1.0))


class NoIoThread(IoThread):
    """A thread that never runs."""

    def start(self) -> None:
        """Nothing to do."""

    def is_current(self) -> bool:
        return False


class ThreadlessLink(ThreadedLink):
    """A threaded link whose own thread never runs."""

    THREAD = NoIoThread


class IntrudedLock:
    """A lock. When it is released for the `number`-th time, `intrude` does what another thread would do then."""

    def __init__(self, number: int, intrude: Callable[[], None]) -> None:
        self._left = number
        self._intrude = intrude

    def __enter__(self) -> None:
        """Nobody else holds the lock."""

    def locked(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._intrude()


@pytest.fixture
def threaded_link() -> Iterator[ThreadlessLink]:
    yield ThreadlessLink(NOWHERE, new_protocol(10**9), no_sockets(), lambda: 10**9)


def test_a_refusal_reaches_its_caller_although_the_next_hello_is_welcomed(threaded_link: ThreadlessLink) -> None:
    protocol = threaded_link.protocol
    protocol.refused = ArenaFullError("full")
    threaded_link.lock = cast(threading.Lock, IntrudedLock(1, lambda: setattr(protocol, "refused", None)))
    with pytest.raises(ArenaFullError):
        drive_in_thread(flows.ready(threaded_link, 1.0))


def test_a_flush_does_not_raise_for_commands_that_were_lost_after_it(threaded_link: ThreadlessLink) -> None:
    outgoing = threaded_link.protocol.outgoing
    threaded_link.lock = cast(threading.Lock, IntrudedLock(2, lambda: setattr(outgoing, "commands_unknown", 3)))
    drive_in_thread(flows.flush(threaded_link, 1.0))
    assert outgoing.commands_unknown == 3


def test_a_predicate_of_the_asyncio_face_may_be_a_coroutine_function(link: StillLink) -> None:
    async def predicate() -> str:
        return "there"

    assert DRIVES["asyncio"](waiting(link, predicate)) == "there"
