"""A watch: operations that observe some keys, one after another. Each begins at the mark where the last one ended.

    mark 5 --> operation since 5 --> completed by event 8 --> mark 8 --> operation since 8 --> ...

So no event is missed between two operations: the daemon finds such an event in its ring. If the daemon forgets this
client, the next operation begins at the same mark. So the daemon finds in its ring even an event whose outcome was lost
on the way.

A watch that `polls` cancels each operation at once. Such an operation completes only by an event that is in the ring
already. If the operation is cancelled, there was no event up to the mark of its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias
from typing import Protocol as Interface

from timerd_client.conditions import OBSERVED
from timerd_client.declared import RegistrationArguments
from timerd_client.errors import OperationCancelled
from timerd_client.link.operation import Operation
from timerd_client.link.surface import Surface
from timerd_client.mark import Mark
from timerd_client.outcome import State
from timerd_client.types import Key
from timerd_shm.declare.errors import ErrorCode, TimerdError

from .event import Event, Gap, event_of

UNWATCHED: Final = OperationCancelled("the last subscriber has left")
Chores: TypeAlias = list[Callable[[], object]]  # calls to make without the lock


class Taker(Interface):
    """Gets the events of a watch, with the link's lock held. The methods return calls to make without the lock."""

    def seen(self, watch: Watch, event: Event) -> Chores:
        """An event has come. The watch goes on after this event."""

    def reached(self, watch: Watch) -> Chores:
        """A watch that polls has found no more events up to its mark."""

    def missed(self, watch: Watch, before: Mark, gap: Gap) -> Chores:
        """Events after the mark `before` may have been missed. The watch goes on after the gap."""

    def failed(self, watch: Watch, error: TimerdError) -> Chores:
        """The watch has ended with an error."""


class Watch:
    """The keys of a surface, watched from a mark on. It changes with the link's lock held."""

    __slots__ = ("_arena", "_keys", "_link", "_operation", "_surface", "_taker", "mark", "over", "polls")

    def __init__(
        self, surface: Surface[Any, Any], keys: tuple[Key, ...], taker: Taker, mark: Mark, *, polls: bool = False
    ) -> None:
        self._surface = surface
        self._link = surface._link
        self._keys = keys
        self._taker = taker
        self.mark = mark
        self.polls = polls
        self.over = False
        self._operation: Operation | None = None
        self._arena = 0  # the arena for which the present operation was registered

    def end(self) -> None:
        """Stop watching. Called with the lock held."""
        self.over = True
        link, operation = self._link, self._operation
        if operation is not None and not operation.done() and not link.closed:
            link.protocol.incoming.abandon([operation.command], UNWATCHED)
            link.wake_if_due(link.protocol.ledger.issued)

    def go_on(self) -> None:
        """Register operations until one is pending. When it settles, go on. Raises nothing. Called without the lock."""
        while not self.over:
            try:
                operation = self._register()
            except TimerdError as error:
                with self._link.lock:
                    self.over = True
                    chores = self._taker.failed(self, error)
                do(chores)
                return
            if operation._add(self._settled):
                return
            self._take(operation)

    def _register(self) -> Operation:
        link = self._link
        self._arena = link.protocol.session.arena
        operation = observe(self._surface, self._keys, self.mark, polls=self.polls)
        with link.lock:
            self._operation = operation
            if self.over:
                self.end()
        return operation

    def _settled(self, operation: Operation) -> None:
        self._take(operation)
        self.go_on()

    def _take(self, operation: Operation) -> None:
        with self._link.lock:
            chores = [] if self.over else self._judge(operation)
        do(chores)

    def _judge(self, operation: Operation) -> Chores:
        """Act on the outcome of the present operation."""
        outcome, session = operation._outcome(), self._link.protocol.session
        if outcome:
            event = event_of(outcome)
            self.mark = event.mark
            return self._taker.seen(self, event)
        if outcome.state is State.CANCELLED:
            self.mark = outcome.mark
            return self._taker.reached(self) if self.polls else []
        error = outcome.error
        assert isinstance(error, TimerdError), f"{outcome!r} without an error"
        if error.code is ErrorCode.SESSION_GONE:
            return []
        if error.code is not ErrorCode.MARK_TOO_OLD:
            self.over = True
            return self._taker.failed(self, error)
        before = self.mark
        if before.incarnation != session.arena:
            gap = Gap(Mark(session.arena, 0), "arena")
        elif self._arena != session.arena:
            return []  # the daemon refused the operation, because the client did not know the arena yet
        else:
            gap = Gap(Mark(session.arena, self._link.protocol.ledger.newest()), "overwritten")
        self.mark = gap.mark
        return self._taker.missed(self, before, gap)


def observe(surface: Surface[Any, Any], keys: tuple[Key, ...], mark: Mark, *, polls: bool) -> Operation:
    """An operation that the first event after the mark completes. With `polls`, it is cancelled if there is none yet.

    It is registered even if the window is full: this may be the client's own thread, which cannot wait for room.
    """
    if surface._link.sealed:  # closed, or the parent's: without this, the surface would use its client's next link
        surface._link.refuse_closed()
    given: RegistrationArguments = {"timeout": None, "when": OBSERVED, "since": mark, "orphans": "cancel"}
    operation: Operation = surface._register(keys, "subscribe", given, may_exceed=True)
    if polls:
        operation.cancel()
    return operation


def do(chores: Iterable[Callable[[], object]]) -> None:
    """Make the calls that had to wait until the lock is free."""
    for chore in chores:
        chore()
