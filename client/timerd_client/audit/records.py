"""The records of an audit: the registrations in the rows, and the clients, events and operations that it keeps."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from timerd_shm.declare.fields import unpack
from timerd_shm.declare.journal import ROW_SIZE, ROWS, is_unused
from timerd_shm.declare.states import RULES, ClientFlag, ClientState, Condition, EventKind, KeyKind, Outcome
from timerd_shm.declare.wire import RegisterFlag

# Members of enumerations as plain numbers, for the code that runs for each row.
_NONE, _COMPLETED, _FAILED = int(Outcome.NONE), int(Outcome.COMPLETED), int(Outcome.FAILED)
_AT_LEAST, _ALL_SETTLED = int(Condition.AT_LEAST), int(Condition.ALL_SETTLED)
_OBSERVE, _OWNER = int(Condition.OBSERVE), int(Condition.OWNER)
_OBSERVING = frozenset(int(condition) for condition, rule in RULES.items() if rule.observes)
_FIRE, _FAIL = int(EventKind.FIRE), int(EventKind.FAIL)
_CANCEL_FOR_KEY, _FORGET = int(EventKind.CANCEL_FOR_KEY), int(EventKind.FORGET)
_EVENT_KEY, _WATERMARK_KEY, _OBSERVED_KEY = int(KeyKind.EVENT), int(KeyKind.WATERMARK), int(KeyKind.OBSERVE)
_FOR_GROUP, _CALL, _NO_MARK = int(RegisterFlag.FOR_GROUP), int(RegisterFlag.CALL), int(RegisterFlag.NO_MARK)

Text = str | bytes | None
Owner = tuple[Text, bool] | None  # a name, and whether it is a group's; None: no owner
Name = tuple[int, int]  # a client's slot and generation
WatchKey = tuple[Text, Text]  # purgatory, key
OperationId = tuple[Text, Text]  # purgatory, id


def _unused_of(row: type[Any]) -> tuple[Callable[[Any], object], object]:
    """A function that reads the unused columns of a row, and its result if all of these columns are zero."""
    unused = [at for at, name in enumerate(row._fields) if is_unused(name)]
    get: Callable[[Any], object] = itemgetter(*unused) if unused else lambda _: None
    return get, get(unpack(row, bytes(ROW_SIZE)))


_UNUSED: Final = {row: _unused_of(row) for row in ROWS.values()}


def is_clean(r: Any) -> bool:
    """Whether the unused bytes of a row are zero."""
    get, zero = _UNUSED[type(r)]
    return get(r) == zero


class Finding(NamedTuple):
    """A disagreement: the number of the row that shows it (-1: the end), and the op id (0: none)."""

    row: int
    operation: int
    what: str


class Key(NamedTuple):
    """A key of a registration, and the watermark to reach: None for an event key."""

    name: Text
    target: int | None


class Registration(NamedTuple):
    """A registration, put together from its REGISTER, REGISTERED and KEY rows."""

    row: int
    operation: int
    registration: int
    flags: int  # RowFlag
    command_flags: int  # RegisterFlag
    condition: int
    needed: int
    orphans: int
    command: int
    registered_ns: int
    deadline_ns: int
    mark_sequence: int
    mark_command: int
    client: Name
    total: int
    effective_ns: int
    newest: int
    progress: int
    payload_length: int
    owner: Owner
    purgatory: Text
    id: Text
    keys: tuple[Key, ...]


APART: Final = "the rows of its registration do not belong together"


def registration_of(
    number: int, rows: Sequence[Any], names: Sequence[Text], owner: Owner, purgatory: Text, id_: Text
) -> tuple[Registration, bool]:
    """The registration from REGISTER, REGISTERED and KEY rows and their texts, and whether the rows belong together."""
    r, s, *others = rows
    fits, keys = s.operation == r.operation and is_clean(s), []
    for ordinal, (k, name) in enumerate(zip(others, names, strict=True)):
        watermark = k.key_kind == _WATERMARK_KEY
        if k.ordinal != ordinal or k.operation != r.operation or not is_clean(k):
            fits = False
        if not watermark and (k.key_kind not in (_EVENT_KEY, _OBSERVED_KEY) or k.target):
            fits = False
        if (k.key_kind == _OBSERVED_KEY) != (r.condition in _OBSERVING):
            fits = False
        keys.append(Key(name, k.target if watermark else None))
    found = Registration(
        number,
        r.operation,
        r.registration,
        r.flags,
        r.command_flags,
        r.condition,
        r.needed,
        r.orphans,
        r.command,
        r.registered_ns,
        r.deadline_ns,
        r.mark_sequence,
        r.mark_command,
        (s.client, s.client_generation),
        s.total,
        s.effective_ns,
        s.newest,
        s.progress,
        s.payload_length,
        owner,
        purgatory,
        id_,
        tuple(keys),
    )
    return found, fits


class Settled(NamedTuple):
    """The settlement of an operation."""

    state: int
    ordinal: int | None
    event: Event | None
    seen: int | None = None  # without `event`: the newest event the operation has seen; None: only the daemon knows
    at_registration: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A client, from its CLIENT rows."""

    name: Name
    state: int  # ClientState
    orphans: int
    group: Text
    listens: bool
    text: Owner = None
    incarnation: tuple[object, object] = (0, 0)
    pid: int = 0
    flags: int = 0  # ClientFlag
    command: int = 0  # number of its newest command
    kept_ns: int = 0  # the daemon's retention when the client died
    next_outcome: int = 1  # number of the next outcome that is delivered to it
    pending: dict[int, Operation] = field(default_factory=dict)  # without those of its group, and without kept ones
    commands: array[int] = field(default_factory=lambda: array("Q"))  # command numbers of its events, rising
    sequences: array[int] = field(default_factory=lambda: array("Q"))  # sequences of the same events
    concerned: set[Operation] = field(default_factory=set)  # operations that it left at its death, or held

    def takes(self, op: Operation) -> bool:
        """Whether the operation's outcome may be delivered to this client.

        The name of a call is not checked, because no row has the names that a client handles.
        """
        return self.state == ClientState.LIVE and self._wants(op)

    def keeps(self, op: Operation) -> bool:
        """Whether this client may keep a delivered outcome: the client is live, or silent with the flag KEEPS."""
        return (self.state == ClientState.LIVE or bool(self.flags & ClientFlag.KEEPS)) and self._wants(op)

    def _wants(self, op: Operation) -> bool:
        return bool(self.group) and (self.listens or op.call)


class Event:
    """An event in the ring."""

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
        "value_dropped",
        "value_length",
    )

    def __init__(
        self,
        sequence: int,
        kind: int,
        watch_key: WatchKey,
        amount: int,
        limit: int | None,
        client: Member | None,
        command: int,
    ) -> None:
        self.sequence, self.kind, self.amount = sequence, kind, amount
        self.purgatory, self.key = watch_key
        self.limited, self.left = limit is not None, limit or 0
        self.client, self.command = client, command
        self.effective_ns = self.value_length = 0
        self.redelivered = self.value_dropped = False

    @property
    def observed(self) -> bool:
        """Whether observers of the key see this event. They do not see a requeued event: they have seen it before."""
        return _FIRE <= self.kind <= _FAIL and not self.redelivered


class Operation:
    """An operation whose OUTCOME row has not come, or whose outcome or limited event may still go to another client."""

    __slots__ = (
        "call",
        "client",
        "condition",
        "deadline_ns",
        "deliveries",
        "done",
        "dropped",
        "expected",
        "failed",
        "group",
        "holder",
        "id",
        "kept",
        "keys",
        "left",
        "left_ns",
        "letter",
        "missing",
        "needed",
        "number",
        "observes",
        "orphans",
        "outcome_number",
        "owners",
        "pending",
        "purgatory",
        "registered_ns",
        "registration",
        "requeue_asked",
        "satisfied",
        "settled",
        "settled_ns",
        "undo",
        "wall_ns",
    )  # fmt: skip

    def __init__(self, r: Registration, client: Member, number: int) -> None:
        self.number, self.registration, self.client = r.operation, number, client
        self.keys, self.condition, self.needed, self.missing = r.keys, r.condition, r.needed, r.total
        self.purgatory, self.id = r.purgatory, r.id
        self.observes = r.condition == _OBSERVE
        self.owners = r.condition == _OWNER  # its owner evaluates the condition, and no event completes it
        self.registered_ns, self.deadline_ns = r.registered_ns, r.deadline_ns
        self.orphans = r.orphans
        self.call = bool(r.command_flags & _CALL)
        # When a call is due by the wall clock; 0 = it has no time of the wall clock, or was rescheduled.
        self.wall_ns = r.mark_command if self.call and r.command_flags & _NO_MARK else 0
        self.group: Text = client.group if r.command_flags & _FOR_GROUP else None
        self.kept = False  # its client has died, and its outcome is not delivered
        self.satisfied = self.failed = 0
        self.pending = True
        self.expected: Settled | None = None  # how its OUTCOME row should be
        self.settled: Settled | None = None  # how its OUTCOME row was
        self.left: Member | None = None  # the dead client of a pending operation that is to be cancelled or adopted
        self.undo = (0, 0)  # `satisfied` and `missing` before the limited event by which it should settle
        self.left_ns = 0  # when its client died, if it is kept without a deadline: its new deadline is in no row
        self.requeue_asked = False  # a command has asked to requeue its event
        self.holder: Member | None = None  # the member of its group that has the outcome
        self.deliveries = 0
        self.outcome_number = 0  # the number of its outcome among the holder's outcomes
        self.settled_ns = 0
        self.dropped = False  # its value was dropped
        self.letter = False  # a call that is over, and kept as a dead letter
        self.done = False  # its event was requeued; or in its group it was acknowledged, dropped, cancelled or evicted

    def is_concerned(self, event: Event) -> bool:
        """Whether the event affects the operation. An owner's condition ignores limited events."""
        if self.owners:
            return event.kind != _FORGET and not event.limited
        return event.observed if self.observes else event.kind <= _CANCEL_FOR_KEY

    def is_granted(self, event: Event | None) -> bool:
        """Whether the operation takes a grant of the event that settles it."""
        return event is not None and event.limited and not self.observes

    def verdict(self, satisfied: int) -> int:
        """The outcome with these keys satisfied; _NONE: still pending. On purpose, this method does not use RULES."""
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
