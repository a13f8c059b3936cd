"""The conversations of a member with the daemon, in threads and in asyncio. link/flows.py says what a flow is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from timerd_client.arguments import patience_s
from timerd_client.link.flows import Flow, Settles, Until
from timerd_client.link.link import Link
from timerd_client.link.promise import Reply
from timerd_client.protocol.inbox import DeliveredOutcome
from timerd_client.protocol.session import CALLS
from timerd_client.types import Patience
from timerd_shm.declare.errors import OperationExistsError, UnknownOperationError
from timerd_wire.refusals import OF_GROUP

from .outcome import GroupOutcome, acknowledge, issue
from .steps import NOT_ACKNOWLEDGED, Ask

Found = TypeVar("Found")


def ack_wait(outcome: GroupOutcome, timeout: Patience) -> Flow[bool]:
    """Acknowledge, and wait. Returns whether this client still held the outcome. Raises TimerdUnavailableError."""
    link = outcome._link
    seconds = patience_s(timeout)  # first: a wrong timeout is refused before anything is acknowledged
    reply = Reply(link)
    acknowledge(link, outcome._told, reply)
    if not (yield Settles(reply, seconds)):
        raise link.connection.unavailable(timeout)
    return bool(reply.get())


def accepted(reply: Reply, timeout: Patience) -> Flow[None]:
    """Wait until the daemon has made a call, or kept one with the same id. Raises refusals, TimerdUnavailableError."""
    try:
        yield from _answered(reply, timeout)
    except OperationExistsError as error:
        if not error.kept:
            raise


def was_pending(reply: Reply, timeout: Patience) -> Flow[bool]:
    """Wait for the answer about a call. Returns whether the call was pending. Raises TimerdUnavailableError."""
    try:
        return bool((yield from _answered(reply, timeout)))
    except UnknownOperationError:
        return False


def was_made(reply: Reply, timeout: Patience) -> Flow[bool | None]:
    """Wait for the answer to a retry. True: the call was made. False: no such dead letter. None: the id is in use."""
    try:
        yield from _answered(reply, timeout)
    except UnknownOperationError:
        return False
    except OperationExistsError:
        return None
    return True


def _answered(reply: Reply, timeout: Patience) -> Flow[Any]:
    if not (yield Settles(reply, patience_s(timeout))):
        raise reply._link.connection.unavailable(timeout)
    return reply.get()


def ask(link: Link, step: Ask) -> Flow[tuple[Any, Any]]:
    """Issue a runner's command, and wait for its answer without a limit. Returns (value, error)."""
    yield Until(link, lambda: not link.protocol.lost or link.closed, None)
    reply = Reply(link, OF_GROUP)
    if not issue(link, step.command, step.done, reply, CALLS, step.about):
        return NOT_ACKNOWLEDGED
    yield Settles(reply, None)
    return reply.result()


def take_next(
    link: Link,
    take: Callable[[int], Found | None],
    may_have: Callable[[], bool],
    until: float | None,
    stop: Callable[[], bool] = lambda: False,
    one_of: object | None = None,
) -> Flow[Found | None]:
    """Wait for a result of `take`. None at the time `until` (in seconds of the link's clock), after a stop or a close.

    Threads with the same `one_of` are woken one at a time. A thread that gets a result wakes the next one if there is
    more.
    """
    while True:
        with link.lock:
            if link.closed or stop():
                return None
            if (found := take(link.now_ns())) is not None:
                if one_of is not None and may_have():
                    link.waiters.progressed_locked()
                return found
            if link.protocol.wants_to_send():  # `take` has asked the daemon something
                link.wake_if_due(link.protocol.ledger.issued)
        left = link.waiters.seconds_left(until)
        if left == 0.0:
            return None
        yield Until(link, lambda: may_have() or link.closed or stop(), left, one_of=one_of)


def listen(link: Link) -> None:
    """Count one more loop that receives outcomes."""
    with link.lock:
        link.protocol.inbox.listen(link.now_ns())
        link.wake_if_due(link.protocol.ledger.issued)


def next_outcome(link: Link, seconds: float | None) -> Flow[DeliveredOutcome | None]:
    """The next outcome of the group; None if none comes within `seconds`, or the link is closed."""
    inbox = link.protocol.inbox
    return take_next(
        link,
        lambda now_ns: inbox.next(inbox.outcomes, now_ns),
        lambda: inbox.may_have(inbox.outcomes),
        link.waiters.deadline(seconds),
        one_of=inbox,
    )


def leave(link: Link) -> None:
    """A loop that receives outcomes has ended. Takes no lock, because a garbage collection may end a loop."""
    link.protocol.inbox.leave()
    link.sender.ring()
