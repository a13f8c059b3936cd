"""A delayed operation: its keys, its looks, and its end (DESIGN.md, "Looks").

The threaded and the asyncio client (the two *faces*) derive their delayed operations from it.

    started --register--> pending --look: try_complete() is false--> LOOKED, pending
                                  --look: try_complete() is true---> COMPLETE, and the daemon's outcome
                                  --deadline, cancel---------------> the daemon's outcome

The daemon decides: on_complete() runs when the daemon's outcome has come. A delayed operation with more than 64 keys
has *parts*: each part is an operation of the daemon with up to 64 of the keys. All parts have the same mark, and the
first part's outcome is the outcome of the delayed operation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar, cast

from timerd_client.arguments import key_bytes, payload_bytes, shown
from timerd_client.arguments import timeout_ns as nanoseconds
from timerd_client.conditions import OWNED
from timerd_client.declared import DelayedArguments, RegistrationArguments
from timerd_client.hot.commands import look_command
from timerd_client.link.base import logger
from timerd_client.link.link import Link
from timerd_client.link.operation import Operation
from timerd_client.link.promise import Reply
from timerd_client.link.surface import Surface
from timerd_client.link.withdrawals import abandon
from timerd_client.mark import Mark
from timerd_client.one_process import OneProcess
from timerd_client.outcome import State
from timerd_client.types import Key
from timerd_shm.declare.errors import InvalidKeyError, InvalidValueError, TooManyKeysError
from timerd_shm.declare.limits import KEYS_MAX
from timerd_shm.declare.wire import CommandFlag, CommandKind

DELAYED_KEYS_MAX = 10_000
_starting = threading.Lock()  # one for all operations: it is held only for an instant
LinkT = TypeVar("LinkT", bound=Link)


def keys_of(keys: Key | Iterable[Key]) -> list[Key]:
    """The keys of a delayed operation. Raises InvalidKeyError, TooManyKeysError."""
    if isinstance(keys, (str, bytes)):
        keys = (keys,)
    if isinstance(keys, Mapping) or not isinstance(keys, Iterable):
        raise InvalidKeyError(
            f"keys={shown(keys)}: give str, bytes, or an iterable of them; events on any of them count"
        )
    given = list(islice(keys, DELAYED_KEYS_MAX + 1))
    if not given:
        raise InvalidKeyError("no keys: nothing would make the owner look; give at least one")
    if len(given) > DELAYED_KEYS_MAX:
        raise TooManyKeysError(
            f"more than {DELAYED_KEYS_MAX:,} keys: split the operation, or let one key stand for many"
        )
    seen: set[bytes] = set()
    for key in given:
        encoded = key_bytes(key)
        if encoded in seen:
            raise InvalidKeyError(f"key {shown(key)} is given twice")
        seen.add(encoded)
    return given


class Part:
    """One operation of the daemon, with up to 64 keys of a delayed operation."""

    __slots__ = ("_driver", "answered", "operation", "sequence")

    def __init__(self, driver: DelayedDriver[Any]) -> None:
        self._driver = driver
        self.operation: Operation | None = None
        self.sequence = 0  # of the newest look
        self.answered = 0  # of the newest look that was answered

    def look(self, command: int, sequence: int) -> bool:
        """An event has come. Returns whether to call notify(). Called by the protocol, with the lock held."""
        if sequence <= self.sequence:
            return False  # the daemon has repeated this look
        self.sequence = sequence
        return self._driver.is_awake()

    def notify(self) -> None:
        """Evaluate the condition, in the client's thread or loop."""
        self._driver.wake()


class Delayed(OneProcess):
    """A delayed operation, as its owner sees it. It settles once: completed, expired, cancelled, failed or unavailable.

    Give functions, or derive a class that overrides `try_complete`, `on_complete`, `on_expiration` and `on_error`.
    All private attributes are in `_delayed`, so that a derived class may choose its own names freely.
    """

    IN_PLACE = "make one in each process"
    NAME: ClassVar[str]  # the name of the face's own class, for messages
    _delayed: DelayedDriver[Any]

    def __init__(self, **given: Any) -> None:
        for name, function in given.items():
            if function is not None:
                if not callable(function):
                    raise InvalidValueError(
                        f"{name}={shown(function)} is {type(function).__name__}: give a function without arguments"
                    )
                setattr(self, name, function)

    # the owner's functions --------------------------------------------------------------------------------------------

    def try_complete(self) -> Any:
        """Whether the condition holds. Called at once, and after events on the keys. It must not block."""
        raise NotImplementedError(f"{type(self).__name__}: give try_complete, or override it")

    def on_complete(self) -> Any:
        """Called exactly once, when the operation has completed or expired; not called in other states."""

    def on_expiration(self) -> Any:
        """Called after on_complete(), when the operation has expired."""

    def on_error(self) -> Any:
        """Called in place of the other two when the operation is UNAVAILABLE or FAILED; `error` is the reason."""

    # its state --------------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether the operation has settled."""
        return self._delayed.done()

    @property
    def state(self) -> State | None:
        """How the operation has settled; None while it is pending."""
        return self._delayed.state

    @property
    def error(self) -> Exception | None:
        """Why the operation is FAILED or UNAVAILABLE, else None."""
        return self._delayed.error

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that the operation watches."""
        return self._delayed.names

    def __repr__(self) -> str:
        driver = self._delayed
        state = driver.state.name if driver.state is not None else "PENDING" if driver.started else "NEW"
        keys = driver.names[0] if len(driver.names) == 1 else driver.names
        return f"<{type(self).__name__} {shown(keys)} {state}>"

    # the owner's calls, shared by both faces --------------------------------------------------------------------------

    def force_complete(self) -> None:
        """Complete the operation, even if its condition does not hold. Returns at once.

        Does nothing if the operation has settled. It may be called in `try_complete()`, too, as in Kafka. An operation
        that was not started completes here, without the daemon.
        """
        self._delayed.force()

    def cancel(self) -> None:
        """Cancel the operation, unless it has settled. Returns at once. No callback runs."""
        self._delayed.cancel()

    # Each face overrides these calls without docstrings of its own: help() and editors show the docstrings below.

    @property
    def lock(self) -> object:
        """The lock that is held while one of the owner's functions runs."""

    def force_complete_wait(self, *given: Any, **named: Any) -> object:
        """As `force_complete`; returns whether this call completed the operation.

        Raises TimerdUnavailableError after `timeout` seconds.
        """

    def cancel_wait(self, *given: Any, **named: Any) -> object:
        """As `cancel`; returns True if the operation was cancelled, False if it had already settled in another way.

        Raises TimerdUnavailableError after `timeout` seconds.
        """

    def settled(self, *given: Any, **named: Any) -> object:
        """Wait until the operation has settled and its callbacks have run. Returns False after `timeout` seconds."""


DelayedT = TypeVar("DelayedT", bound=Delayed)


def delayed_of(kind: type[DelayedT], given: Any) -> DelayedT:
    """`given`, if it is an operation; else a new operation with `given` as `try_complete`. Raises InvalidValueError."""
    if isinstance(given, kind):
        return given
    if isinstance(given, Delayed):
        raise InvalidValueError(f"{given!r} derives from {given.NAME}: this client needs {kind.NAME}")
    if isinstance(given, type) and issubclass(given, Delayed):
        raise InvalidValueError(f"{given.__name__} is a class: give an operation, {given.__name__}(...)")
    return kind(try_complete=given)


class DelayedDriver(Generic[LinkT]):
    """The client's side of a delayed operation: its parts, its looks, and its end."""

    link: LinkT

    def __init__(self, owner: Delayed) -> None:
        self.owner = owner
        self.started = False
        self._wakes = False  # whether a wake-up is under way
        self._looks = False  # whether the condition is being evaluated
        self.forced = False  # force() was called, perhaps before the parts are registered, or in an evaluation
        self.is_complete = False  # an evaluation has found it complete: later looks need no evaluation
        self.parts: list[Part] = []
        self.names: tuple[Key, ...] = ()
        self._end: Reply | None = None  # answered when the operation has settled and its callbacks have run
        self.state: State | None = None
        self.error: Exception | None = None

    def done(self) -> bool:
        """Whether the operation has settled."""
        return self.state is not None

    def cancel(self) -> None:
        """Cancel the operation, if it is pending."""
        if self.parts and not self.done():
            self._first().cancel()

    def force(self) -> None:
        """Complete the operation, unless it has settled.

        An evaluation that is under way sends COMPLETE for its looks, so that a check counts the operation as completed.
        """
        self.forced = True
        if not self.force_alone() and not self._looks:
            self.complete(None)

    def force_alone(self) -> bool:
        """If the operation was not started, complete it here, without the daemon. Returns whether this was done."""
        if not self._take_start():
            return False
        self.state = State.COMPLETED
        self._finish_alone()
        return True

    def _finish_alone(self) -> None:
        """Run the callbacks of an operation that has completed without the daemon."""
        raise NotImplementedError

    @property
    def is_alone(self) -> bool:
        """Whether the operation has completed without the daemon."""
        return self.state is not None and self._end is None

    def _take_start(self) -> bool:
        """Whether this call starts the operation. Only the first call does."""
        with _starting:
            first, self.started = not self.started, True
        return first

    def complete(self, reply: Reply | None) -> bool:
        """Send COMPLETE. Returns False if the operation has settled or was not started.

        With a `reply`, raises TimerdUnavailableError if the daemon is lost.
        """
        if not self.parts or self.done():
            return False
        link = self.link
        with link.lock:
            link.check_open()
            if reply is not None:
                link.connection.refuse_lost()
            flags = 0 if reply is None else CommandFlag.WANTS_ANSWER
            number = link.protocol.ledger.issue(
                look_command(CommandKind.COMPLETE, self._first().command, 0, flags=flags)
            )
            if reply is not None:
                link.protocol.incoming.replies[number] = reply
            link.wake_if_due(number)
        return True

    # starting ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def of(owner: Delayed) -> Any:
        """The driver of this operation. Raises InvalidValueError if a derived class has not called `__init__`."""
        if (driver := getattr(owner, "_delayed", None)) is None:
            raise InvalidValueError(f"{type(owner).__name__}: call super().__init__() in its __init__")
        return driver

    def _begin(self, surface: Surface[Any, LinkT], keys: Key | Iterable[Key], arguments: DelayedArguments) -> Mark:
        """Check the arguments, and read the mark from which events count. A second start raises InvalidValueError."""
        names = keys_of(keys)
        nanoseconds(arguments["timeout"])
        self.link = surface._live()
        mark = surface.mark()
        if not self._take_start():
            raise InvalidValueError(f"{self.owner!r} was started before: make a new one")
        self.names = tuple(names)
        self._end = Reply(self.link)
        return mark

    def _watch(
        self, surface: Surface[Any, LinkT], arguments: DelayedArguments, mark: Mark, *, may_exceed: bool
    ) -> None:
        """Register the parts, with this mark. Raises the errors of `register`; after an error no part is registered."""
        payload_bytes(arguments["payload"])
        names = iter(self.names)
        watched: dict[str, Any] = {"when": OWNED, "since": mark}
        first = cast(RegistrationArguments, watched | cast(dict[str, Any], arguments))
        rest = cast(RegistrationArguments, watched | {"timeout": arguments["timeout"], "orphans": "cancel"})
        try:
            while some := list(islice(names, KEYS_MAX)):
                part = Part(self)
                given = rest if self.parts else first
                part.operation = surface._register(
                    some, "try_complete_else_watch", given, may_exceed=may_exceed, looker=part
                )
                if self._is_kept(part):
                    self.state = State.KEPT
                    return
                self.parts.append(part)
        except BaseException:
            self._withdraw(self.parts)
            raise

    def _is_kept(self, part: Part) -> bool:
        """Whether another operation of this client has the same id, and is kept instead."""
        operation = self._operation(part)
        with self.link.lock:
            return not operation.done() and self.link.protocol.incoming.lookers.get(operation.command) is not part

    def _follow(self) -> None:
        """Take the outcomes of the parts when they come; the callbacks run in the client's thread or loop."""
        for part in self.parts:
            operation = self._operation(part)
            if not operation._add(self._part_settled):
                self._part_settled(operation)
        if self.forced:
            self.complete(None)

    def _first(self) -> Operation:
        return self._operation(self.parts[0])

    @staticmethod
    def _operation(part: Part) -> Operation:
        assert part.operation is not None, "a part enters `parts` when it is registered"
        return part.operation

    # looking ----------------------------------------------------------------------------------------------------------

    def is_awake(self) -> bool:
        """Note a wake-up. Returns True if none was under way: then the caller should wake the driver.

        Called with the lock held.
        """
        wakes, self._wakes = self._wakes, True
        return not wakes

    def wake(self) -> None:
        """Evaluate the condition for the looks that are due. Called without the lock."""
        raise NotImplementedError

    def _take_looks(self) -> list[tuple[Part, int]]:
        """The looks that are due, which the next evaluation answers. If none is due, the next look wakes the driver."""
        with self.link.lock:
            due = [(part, part.sequence) for part in self.parts if part.sequence > part.answered]
            if not due or self.done():
                self._rest()
                return []
            self._looks = True
            return due

    def _rest(self) -> None:
        """The evaluations have ended: the next look begins a new one."""
        self._wakes = self._looks = False

    def _answer_looks(self, looks: list[tuple[Part, int]], complete: bool) -> None:
        """Send the daemon the result of the evaluation: a command for each look. The commands may exceed the window."""
        link = self.link
        self._looks = False
        complete = self.is_complete = complete or self.forced
        with link.lock:
            for part, sequence in looks:
                part.answered = sequence
            if link.sealed:
                return
            kind = CommandKind.COMPLETE if complete else CommandKind.LOOKED
            commands = [look_command(kind, self._operation(part).command, sequence) for part, sequence in looks]
            if complete and looks[0][0] is not self.parts[0]:
                commands.insert(0, look_command(kind, self._first().command, 0))
            link.protocol.ledger.issue_all(commands)
            link.wake_if_due(link.protocol.ledger.issued)

    def _failed(self, what: str, error: BaseException) -> None:
        """A function of the owner has raised an error. The operation goes on."""
        logger.warning("timerd client: %s of %r failed", what, self.owner, exc_info=error)

    # settling ---------------------------------------------------------------------------------------------------------

    def _part_settled(self, operation: Operation) -> None:
        """The first part's outcome ends the operation. If another part is cancelled or refused, that ends it, too."""
        outcome = operation._outcome()
        if operation is not self._first():
            if outcome.state is State.CANCELLED and not self.done():
                self._first().cancel()
            elif outcome.state is State.FAILED and not self.done():
                self._settle(State.FAILED, outcome.error)
            return
        self._settle(outcome.state, outcome.error)

    def _settle(self, state: State, error: Exception | None) -> None:
        with self.link.lock:
            if self.state is not None:
                return
            self.state, self.error = state, error
        self._withdraw(self.parts)
        self._ended(state)

    def _ended(self, state: State) -> None:
        """Run the callbacks, then call `_tell()`."""
        raise NotImplementedError

    def _callbacks(self, state: State) -> Iterator[tuple[str, Any]]:
        """The callbacks for this state (KAFKA.md, O2: on_complete() comes first for an expired operation, too)."""
        if state in (State.COMPLETED, State.EXPIRED):
            yield "on_complete", self.owner.on_complete
        if state is State.EXPIRED:
            yield "on_expiration", self.owner.on_expiration
        if state in (State.UNAVAILABLE, State.FAILED):
            yield "on_error", self.owner.on_error

    def _tell(self) -> None:
        """The callbacks have run: wake the callers that wait for the operation's end."""
        if self._end is None:
            return  # it completed without the daemon
        with self.link.lock:
            notify = self._end.answer(True)
        if notify:
            self._end.notify()

    def _withdraw(self, parts: list[Part]) -> None:
        """Withdraw these parts: their looks and outcomes are no longer wanted."""
        link = self.link
        with link.lock:
            for part in parts:
                link.protocol.incoming.lookers.pop(self._operation(part).command, None)
            pending = [self._operation(part).command for part in parts if not self._operation(part).done()]
        if pending and not link.sealed:
            abandon(link, pending)

    def end(self) -> Reply:
        """The reply that settles when the operation has ended. Raises InvalidValueError if it was not started."""
        if self._end is None:
            raise InvalidValueError(
                f"{self.owner!r} was not started: purgatory.try_complete_else_watch(operation, keys, ...)"
            )
        return self._end
