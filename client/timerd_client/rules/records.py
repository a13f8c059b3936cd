"""Operations, events, marks and clients, with no more than the rules need. Subclasses add the rest."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from timerd_shm.declare.states import Condition, EventKind, Outcome

# Members of enumerations as plain numbers, for the code that runs for each event.
_NONE, _COMPLETED, _FAILED = int(Outcome.NONE), int(Outcome.COMPLETED), int(Outcome.FAILED)
_AT_LEAST, _ALL_SETTLED = int(Condition.AT_LEAST), int(Condition.ALL_SETTLED)
_OBSERVE, _OWNER = int(Condition.OBSERVE), int(Condition.OWNER)
_FIRE, _FAIL = int(EventKind.FIRE), int(EventKind.FAIL)
_CANCEL_FOR_KEY, _FORGET = int(EventKind.CANCEL_FOR_KEY), int(EventKind.FORGET)

WatchKey = tuple[Hashable, Hashable]  # purgatory, key
OperationId = tuple[Hashable, Hashable]  # purgatory, id


class Key(Protocol):
    """A key of an operation, and the watermark to reach: None for an event key."""

    @property
    def name(self) -> Hashable: ...
    @property
    def target(self) -> int | None: ...


class Mark(NamedTuple):
    """A mark: events after it count. An event of the operation's own client is compared by its command number.

    `command` None: all events are compared by their sequence, because the mark is another client's.
    """

    sequence: int
    command: int | None


@dataclass(slots=True, eq=False)
class Sender:
    """A client: the command numbers of its events, which rise, and the sequences of the same events."""

    commands: array[int] = field(default_factory=lambda: array("Q"), kw_only=True)
    sequences: array[int] = field(default_factory=lambda: array("Q"), kw_only=True)


class Event:
    """An event in the ring. `left`: how many operations a limited event may still complete."""

    __slots__ = (
        "amount",
        "client",
        "command",
        "effective_ns",
        "key",
        "kind",
        "left",
        "limited",
        "purgatory",
        "redelivered",
        "sequence",
    )

    def __init__(
        self,
        sequence: int,
        kind: int,
        watch_key: WatchKey,
        amount: int,
        limit: int | None,
        effective_ns: int,
        client: Any = None,
        command: int = 0,
        *,
        redelivered: bool = False,
    ) -> None:
        self.sequence, self.kind, self.amount = sequence, kind, amount
        self.purgatory, self.key = watch_key
        self.limited, self.left = limit is not None, limit or 0
        self.effective_ns = effective_ns
        self.client, self.command = client, command  # a Sender; None: a requeued event has no client
        self.redelivered = redelivered

    @property
    def observed(self) -> bool:
        """Whether observers of the key see this event. They do not see a requeued event: they have seen it before."""
        return _FIRE <= self.kind <= _FAIL and not self.redelivered


class Operation:
    """An operation. `registration` is its place among the registrations: lower numbers see an event first."""

    __slots__ = (
        "client",
        "condition",
        "deadline_ns",
        "failed",
        "id",
        "kept",
        "keys",
        "missing",
        "needed",
        "observes",
        "owners",
        "pending",
        "purgatory",
        "registration",
        "satisfied",
        "undo",
    )

    def __init__(
        self,
        registration: int,
        purgatory: Hashable,
        keys: Sequence[Key],
        condition: int,
        needed: int,
        total: int,
        deadline_ns: int,
        id: Hashable = None,
        client: Any = None,
    ) -> None:
        self.registration, self.client = registration, client
        self.keys, self.condition, self.needed, self.missing = keys, condition, needed, total
        self.purgatory, self.id, self.deadline_ns = purgatory, id, deadline_ns
        self.observes = condition == _OBSERVE
        self.owners = condition == _OWNER  # its owner evaluates the condition, and no event completes it
        self.kept = False  # its client has died, and its outcome is not delivered: so it takes no grant
        self.satisfied = self.failed = 0  # keys, as bits
        self.pending = True
        self.undo = (0, 0)  # `satisfied` and `missing` before the limited event by which it should settle

    def is_concerned(self, event: Event) -> bool:
        """Whether the event affects the operation. An owner's condition ignores limited events."""
        if self.owners:
            return event.kind != _FORGET and not event.limited
        return event.observed if self.observes else event.kind <= _CANCEL_FOR_KEY

    def is_granted(self, event: Event | None) -> bool:
        """Whether the operation takes a grant of the event that settles it."""
        return event is not None and event.limited and not self.observes

    def verdict(self, satisfied: int) -> int:
        """The outcome with these keys satisfied; NONE: still pending. On purpose, this method does not use RULES."""
        failed, keys = self.failed, len(self.keys)
        if self.condition == _AT_LEAST:
            if satisfied.bit_count() >= self.needed:
                return _COMPLETED
            return _FAILED if keys - failed.bit_count() < self.needed else _NONE
        if self.condition == _ALL_SETTLED:
            return _COMPLETED if satisfied.bit_count() + failed.bit_count() == keys else _NONE
        if self.missing == 0:
            return _COMPLETED
        return _FAILED if failed.bit_count() == keys else _NONE
