"""The conversations of a client, each written once: a generator yields steps, and a face waits for each step.

    def flush(self, timeout):       drive(flows.flush(self._link, timeout))         # threaded: blocks
    async def flush(self, timeout): await drive(flows.flush(self._link, timeout))   # asyncio: awaits

The faces are threaded/ and aio/. A flow yields a step, and goes on with the result of the step. Each face has a `drive`
that does the steps (threaded/link.py, aio/link.py). An error in a step ends the flow: the flow's `finally` clauses run,
and the caller gets the error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from timerd_client.arguments import (
    column,
    each,
    function_of,
    kept,
    key_bytes,
    orphans_of,
    patience_s,
    shown,
    within,
)
from timerd_client.conditions import When
from timerd_client.discovery.autostart import start_daemon
from timerd_client.discovery.find_daemon import LOOK_AGAIN_S, Search, check_reach
from timerd_client.discovery.late_sockets import LateSockets, files_named
from timerd_client.hot.commands import in_purgatory, operation_command
from timerd_client.outcome import Outcome, State
from timerd_client.protocol.state import LinkState
from timerd_client.scope import Scope, current_scope, noted
from timerd_client.types import Key, Keys, OrphanPolicy, Patience, Payload, WhenLost
from timerd_client.waits.evaluating import refuse_in_callback
from timerd_client.waits.polling import GRACE_S, Polling
from timerd_shm.declare.errors import (
    ArenaFullError,
    CheckIncompleteError,
    ClosedError,
    ErrorCode,
    InvalidValueError,
    TimerdError,
    TimerdUnavailableError,
)
from timerd_shm.declare.limits import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S
from timerd_shm.declare.wire import CommandFlag, CommandKind
from timerd_wire.refusals import Subject

from .lazy import Lazy, openers
from .link import Link
from .promise import Promise, Reply
from .questions import number_in, query
from .surface import Surface

Value = TypeVar("Value")
LinkT = TypeVar("LinkT", bound=Link)
AGAIN = (
    ErrorCode.MARK_TOO_OLD,
    ErrorCode.SESSION_GONE,
    ErrorCode.KEY_FAILED,
)  # after these errors a waiter evaluates its predicate again
WORD_MAX = (1 << 64) - 1
WATERMARKS_KNOWN_MAX = 16_384  # keys of one purgatory whose records a client remembers
ISSUED_AT_ONCE = 4_096  # how many commands are issued before the lock is released


class Until(NamedTuple):
    """A step: wait until the condition holds, `seconds` at most. Gives whether it holds."""

    link: Link
    condition: Callable[[], bool]
    seconds: float | None
    then: Callable[[], Any] | None = None  # called before another thread can change anything; the step gives its result
    scope: Scope | None = None  # the request that ends the wait, with RequestEnded
    one_of: object | None = None  # threads that give the same object are woken one at a time


class Settles(NamedTuple):
    """A step: wait until the promise has settled, `seconds` at most. Gives whether it has settled."""

    promise: Promise
    seconds: float | None


class Evaluate(NamedTuple):
    """A step: call the user's function, and give its result. With asyncio it may be a coroutine function."""

    function: Callable[[], Any]


class Do(NamedTuple):
    """A step: call a function that blocks, and give its result."""

    function: Callable[[], Any]


class Room(NamedTuple):
    """A step: with asyncio, wait for room in the window. A thread does nothing here: it waits when it issues."""

    link: Link


class Finish(NamedTuple):
    """A step: start no more handlers of named calls, and wait for running handlers, `seconds` at most."""

    link: Link
    seconds: float | None


class Sleep(NamedTuple):
    """A step: wait for `seconds`."""

    seconds: float


Step: TypeAlias = Until | Settles | Evaluate | Do | Room | Finish | Sleep
Flow: TypeAlias = Generator[Step, Any, Value]


# the connection ---------------------------------------------------------------------------------------------------


def connect(lazy: Lazy[LinkT], timeout: Patience) -> Flow[LinkT]:
    """Find the daemon, or start it, and connect. Ends when the daemon has accepted this client."""
    target, seconds = lazy.target, patience_s(timeout)
    if openers:
        link = lazy.link()
        yield from ready(link, CONNECT_TIMEOUT_S if timeout is None else seconds)
        return link
    check_reach(target)
    with files_named():
        paths = None
        if target.autostart:
            paths = yield Do(partial(start_daemon, target))
        search = Search(target, seconds, is_stated=timeout is not None)
        while paths is None and (paths := search.look()) is None:
            yield Sleep(LOOK_AGAIN_S)
    link = lazy.open(paths)
    accepted = False
    try:
        yield from ready(link, search.patience())
        accepted = True
    finally:
        if not accepted:
            lazy.closed = True
            link.stop()
    return link


def ready(link: Link, timeout: Patience) -> Flow[None]:
    """Wait until the daemon has accepted this client. Raises the daemon's refusal, or TimerdUnavailableError."""
    protocol, sockets = link.protocol, link.connection.sockets
    if isinstance(sockets, LateSockets) and sockets.kept_away:  # it would wait for ever
        raise TimerdUnavailableError(sockets.kept_away, in_doubt=False)

    def error() -> TimerdError | None:
        if protocol.state is LinkState.LIVE:
            return None
        return protocol.refused or link.connection.unavailable(timeout, in_doubt=False)

    # The wait itself calls error(), before another thread can change anything. After the wait a repeated hello might be
    # accepted first, and the refusal would be gone.
    refused = yield Until(
        link,
        lambda: protocol.state is LinkState.LIVE or protocol.refused is not None or link.closed,
        patience_s(timeout),
        error,
    )
    if refused is not None:
        raise refused


def flush(link: Link, timeout: Patience) -> Flow[None]:
    """Wait until everything issued so far has been applied, and raise the first refusal."""
    seconds = patience_s(timeout)
    with link.lock:
        begun = link.flushes.begin()
    # The wait itself calls flushes.end(), before another thread can change anything: later losses do not belong to this
    # flush.
    yield Until(link, lambda: link.flushes.is_done(begun), seconds, lambda: link.flushes.end(begun, timeout))


def received(link: Link, number: int, timeout: Patience) -> Flow[None]:
    """Wait until the daemon has answered all commands up to this number. Raises TimerdUnavailableError."""
    outgoing = link.protocol.outgoing
    with link.lock:
        link.connection.refuse_lost(is_issued=number > 0)
        beginning = outgoing.beginnings
        link.sender.confirm_locked()

    def is_answered() -> bool:
        return outgoing.answered >= number or outgoing.beginnings != beginning or link.closed

    if not (yield Until(link, is_answered, patience_s(timeout))):
        raise link.connection.unavailable(timeout)


def close(lazy: Lazy[Any], timeout: Patience) -> Flow[None]:
    """Wait until handlers have returned and everything is acknowledged. Then end the link, even after an error."""
    patience_s(timeout)
    link = lazy.close()
    if link is not None and not link.closed:
        yield from end(link, timeout)


def end(link: Link, timeout: Patience, flush_s: float | None = None) -> Flow[None]:
    """Like close(), but only the link ends: its client may make a new link. The flush takes `flush_s` s at most."""
    seconds = patience_s(timeout)
    deadline = link.waiters.deadline(seconds)
    try:
        yield Finish(link, seconds)
        link.seal()
        limits = [limit for limit in (link.waiters.seconds_left(deadline), flush_s) if limit is not None]
        yield from flush(link, min(limits, default=None))
    except ClosedError:
        pass  # another thread has closed the link meanwhile
    finally:
        link.stop(seconds)


def set_orphans(link: Link, policy: OrphanPolicy) -> Flow[int]:
    """Give this policy to all operations that are pending now, in parts. Returns how many commands were issued."""
    orphans = orphans_of(policy, link.protocol.session.identity.group)
    ledger = link.protocol.ledger
    with link.lock:
        pending, maker = list(ledger.pending), ledger.incarnation
    sent = 0
    try:
        while sent < len(pending):
            if sent:
                yield Room(link)
            with link.lock:
                link.sender.ready_locked()
                if ledger.incarnation != maker:  # the daemon has forgotten this client, so these operations have failed
                    return sent
                part = pending[sent : sent + min(link.protocol.outgoing.room, ISSUED_AT_ONCE)]
                ledger.issue_all(
                    [operation_command(CommandKind.SET_ORPHANS, number, orphans=orphans) for number in part]
                )
                link.wake_if_due(ledger.issued)
            sent += len(part)
    except TimerdError as error:
        error.in_doubt = sent > 0
        raise
    return sent


def check(surface: Surface[Any, Any], key: Key, timeout: Patience) -> Flow[int]:
    """Ask all owners that watch the key to look, and wait until they have: see `Purgatory.check_and_complete`."""
    refuse_in_callback()
    seconds = patience_s(timeout)
    link = surface._live()
    deadline = link.waiters.deadline(seconds)
    number, reply = surface._ask_check(key)
    maker, completed = surface._ledger.incarnation, 0
    if (yield Settles(reply, seconds)):
        reply.get()
        question = {"query": "check", "command": number, "end": False}
        try:
            asked = query(link, question)
            yield Settles(asked, link.waiters.seconds_left(deadline))
            if not asked.done():
                asked = query(link, {**question, "end": True})
                yield Settles(asked, CLOSE_TIMEOUT_S)
            found = asked.get() if asked.done() else None
            if found is not None and surface._ledger.incarnation == maker:
                completed = number_in(found, "completed")
                if found.get("finished"):
                    return completed
        except TimerdError as error:
            error.in_doubt = True  # the owners were asked to look
            raise
    raise CheckIncompleteError(
        f"not every owner that watches {shown(key)} has looked {within(timeout)}; completed so far: {completed}"
        f"{link.connection.held_up()}",
        completed,
    )


def watermark(surface: Surface[Any, Any], key: Key, timeout: Patience) -> Flow[int | None]:
    """A key's watermark: read from shared memory if the key's record is known, otherwise asked from the daemon."""
    encoded, seconds, link = key_bytes(key), patience_s(timeout), surface._live()
    known = surface._watermarks
    if (place := known.get(encoded)) is not None:
        if (found := _watermark_at(link, *place)) is not None:
            return found
        known.pop(encoded, None)
    asked = query(link, {"query": "watermark", "purgatory": surface._name, "key": encoded})
    arena = link.protocol.session.arena
    if not (yield Settles(asked, seconds)):
        raise link.connection.unavailable(timeout)
    answer = asked.get()
    if answer.get("watermark") is None:
        return None
    mark = number_in(answer, "watermark", WORD_MAX)
    place = arena, number_in(answer, "index"), number_in(answer, "hash", WORD_MAX)
    while len(known) >= WATERMARKS_KNOWN_MAX:
        known.pop(next(iter(known)), None)
    known[encoded] = place
    return mark


def _watermark_at(link: Link, arena: int, index: int, hash: int) -> int | None:
    """The watermark in a record of this arena, read from shared memory. None: the caller must ask the daemon."""
    reader = link.connection.reader
    if reader is None or arena != link.connection.mapped:
        return None
    try:
        return reader.watermark_at(index, hash)
    except ValueError:  # another thread has closed the reader, because there is a new arena
        return None


# waiting for a predicate ------------------------------------------------------------------------------------------


def wait_for(
    surface: Surface[Any, Any],
    predicate: Callable[[], Any],
    keys: Keys,
    timeout: Patience,
    when: When,
    unavailable: WhenLost,
    poll_interval: float | timedelta,
) -> Flow[Any]:
    """A condition variable across processes: see `Purgatory.wait_for`."""
    polling = Polling(unavailable, poll_interval)
    function_of("predicate", predicate, "without arguments, which is called at once and after each event")
    keys = kept(keys)
    link = surface._live()
    protocol = link.protocol
    deadline = link.waiters.deadline(timeout)
    while True:
        mark = surface.mark()
        value = yield Evaluate(predicate)
        left = link.waiters.seconds_left(deadline)
        if value or left == 0.0:
            return value
        if polling.wanted and protocol.lost:
            yield Until(link, lambda: not protocol.lost or link.closed, polling.pause(left), scope=current_scope())
            continue
        operation = surface.register(keys, timeout=left, when=when, since=mark)
        outcome: Outcome | None = None
        try:
            while not (yield Settles(operation, polling.patience(left))):
                left = link.waiters.seconds_left(deadline)
                if not polling.waits_on(left, lost=protocol.lost):
                    break
            outcome = operation.outcome()
        finally:
            if outcome is None:  # the wait was cancelled, or the daemon is lost
                operation._give_back()
        if is_known(outcome):
            continue
        if not polling.wanted:
            return value_or_lost(link, (yield Evaluate(predicate)))


def value_or_lost(link: Link, value: Value) -> Value:
    """The predicate's last value, if it is true. Raises if it is false: without the daemon, false says nothing."""
    if not value:
        late = f"no word from the daemon for {GRACE_S:g} s after the deadline, so events may be unknown"
        raise noted(TimerdUnavailableError(f"{late}{link.connection.held_up() or ': is it running?'}"))
    return value


def is_known(outcome: Outcome | None) -> bool:
    """Whether the daemon has settled the operation. Raises errors after which evaluating again would not help."""
    if outcome is None or outcome.state is State.UNAVAILABLE:
        return False
    raise_unless_again(outcome)
    return True


def raise_unless_again(outcome: Outcome) -> None:
    """Raise an outcome's error. After an event, an expiry, or one of AGAIN the waiter evaluates again: no error."""
    if outcome.state is State.FAILED and isinstance(outcome.error, TimerdError) and outcome.error.code not in AGAIN:
        raise outcome.error


def unsettled(left: int, count: int, timeout: Patience) -> TimeoutError:
    """The error of as_completed() after its timeout."""
    return TimeoutError(f"{left} of {count} operations have not settled {within(timeout)}")


# events of several purgatories -------------------------------------------------------------------------------------

Together = tuple[Surface[Any, Any], Key, Payload]


def fire_together(link: Link, events: Sequence[Together], timeout: Patience) -> Flow[list[int]]:
    """Fire (purgatory, key, value) in one frame. Returns the positions of events whose value had no room.

    Raises TimerdUnavailableError after `timeout` s. If an event is wrong, raises its error and sends nothing.
    """
    given: list[Together] = each("events", column("event", events), lambda event: _event_of(link, event))
    commands = each("events", given, _command_of)
    replies: dict[int, Reply] = {}
    indices = link.protocol.session.purgatories
    with link.lock:
        link.sender.ready_locked()
        for position, ((purgatory, _, value), command) in enumerate(zip(given, commands, strict=True)):
            number = link.protocol.ledger.issue(in_purgatory(command, indices[purgatory._name]))
            if value:
                replies[position] = Reply(link, Subject(None, purgatory._name))
                link.protocol.incoming.replies[number] = replies[position]
        link.wake_if_due(link.protocol.ledger.issued)
    deadline = link.waiters.deadline(timeout)
    refused: list[int] = []
    for position, reply in replies.items():
        if not (yield Settles(reply, link.waiters.seconds_left(deadline))):
            raise link.connection.unavailable(timeout)
        try:
            reply.get()
        except ArenaFullError:
            refused.append(position)
    return refused


def _event_of(link: Link, event: object) -> Together:
    if not isinstance(event, tuple) or len(event) != 3 or not isinstance(event[0], Surface):
        raise InvalidValueError(
            f"{shown(event)}: give (purgatory, key, value); the purgatory is what client.purgatory(NAME) gave, or the "
            "client itself"
        )
    if event[0]._live() is not link:
        raise InvalidValueError(f"{shown(event[0])} belongs to another client; a frame has events of one client")
    return event


def _command_of(event: Together) -> bytes:
    # Only a value needs room, so only an event with a value can be refused.
    purgatory, key, value = event
    command: bytes = purgatory._fire_command(key, value, 1, None, CommandFlag.WANTS_ANSWER if value else 0)
    return command
