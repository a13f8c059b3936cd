"""The records of an audit: the registrations in the rows, and the clients, events and operations that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

from timerd_client.rules import records as rules
from timerd_shm.declare.fields import unpack
from timerd_shm.declare.journal import ROW_SIZE, ROWS, is_unused
from timerd_shm.declare.states import RULES, ClientFlag, ClientState, KeyKind
from timerd_shm.declare.wire import RegisterFlag

# Members of enumerations as plain numbers, for the code that runs for each row.
_OBSERVING = frozenset(int(condition) for condition, rule in RULES.items() if rule.observes)
_EVENT_KEY, _WATERMARK_KEY, _OBSERVED_KEY = int(KeyKind.EVENT), int(KeyKind.WATERMARK), int(KeyKind.OBSERVE)
_FOR_GROUP, _CALL, _NO_MARK = int(RegisterFlag.FOR_GROUP), int(RegisterFlag.CALL), int(RegisterFlag.NO_MARK)
_BY_SEQUENCE = int(RegisterFlag.MARK_BY_SEQUENCE)

Text = str | bytes | None
Owner = tuple[Text, bool] | None  # a name, and whether it is a group's; None: no owner
Name = tuple[int, int]  # a client's slot and generation
WatchKey = tuple[Text, Text]  # purgatory, key


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

    @property
    def mark(self) -> rules.Mark | None:
        """The operation's mark; None: no earlier event counts."""
        if self.command_flags & _NO_MARK:
            return None
        return rules.Mark(self.mark_sequence, None if self.command_flags & _BY_SEQUENCE else self.mark_command)


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
class Member(rules.Sender):
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


class Event(rules.Event):
    """An event in the ring, and its value, of which a journal has the length."""

    __slots__ = ("value_dropped", "value_length")

    client: Member | None
    purgatory: Text
    key: Text
    value_dropped: bool
    value_length: int


class Operation(rules.Operation):
    """An operation whose OUTCOME row has not come, or whose outcome or limited event may still go to another client."""

    __slots__ = (
        "call",
        "deliveries",
        "done",
        "dropped",
        "expected",
        "group",
        "holder",
        "left",
        "left_ns",
        "letter",
        "number",
        "orphans",
        "outcome_number",
        "registered_ns",
        "requeue_asked",
        "settled",
        "settled_ns",
        "wall_ns",
    )

    client: Member
    keys: tuple[Key, ...]
    purgatory: Text
    id: Text

    def __init__(self, r: Registration, client: Member, number: int) -> None:
        super().__init__(number, r.purgatory, r.keys, r.condition, r.needed, r.total, r.deadline_ns, r.id, client)
        self.number, self.registered_ns, self.orphans = r.operation, r.registered_ns, r.orphans
        self.call = bool(r.command_flags & _CALL)
        # When a call is due by the wall clock; 0 = it has no time of the wall clock, or was rescheduled.
        self.wall_ns = r.mark_command if self.call and r.command_flags & _NO_MARK else 0
        self.group: Text = client.group if r.command_flags & _FOR_GROUP else None
        self.expected: Settled | None = None  # how its OUTCOME row should be
        self.settled: Settled | None = None  # how its OUTCOME row was
        self.left: Member | None = None  # the dead client of a pending operation that is to be cancelled or adopted
        self.left_ns = 0  # when its client died, if it is kept without a deadline: its new deadline is in no row
        self.requeue_asked = False  # a command has asked to requeue its event
        self.holder: Member | None = None  # the member of its group that has the outcome
        self.deliveries = 0
        self.outcome_number = 0  # the number of its outcome among the holder's outcomes
        self.settled_ns = 0
        self.dropped = False  # its value was dropped
        self.letter = False  # a call that is over, and kept as a dead letter
        self.done = False  # its event was requeued; or in its group it was acknowledged, dropped, cancelled or evicted
