"""A bucket: a purgatory whose operations lie in a Store, and come into it when a row or the clock concerns them.

A batch gives the bucket its rows and the time. The bucket takes from its store what the rows' keys and ids and the time
concern: operations, events, watermarks and ids. It applies the rows in their order by the rules of timerd_client.rules,
and puts back what is left. So a batch costs what its rows concern, and not what the bucket holds.

A row is *ripe* when no earlier row can come any more. In order (`ordered`), a bucket keeps rows until they are ripe,
and its outcomes are a function of the rows alone. Else it applies rows as they come; then a registration counts the
events after its own position that came before it, as if it had taken a mark there.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgpack
from timerd_client.rules import records as rules
from timerd_client.rules.purgatory import Purgatory
from timerd_shm.declare.errors import ErrorCode, InvalidValueError
from timerd_shm.declare.journal import RowFlag
from timerd_shm.declare.states import Condition, EventKind, Outcome

from .packs import packs_of, rows_of
from .rows import NEVER, Event, Key, Registration, Settled, order_of
from .store import Record, Store, hash_of

VERSION: Final = 1
_ROWS, _OPERATION, _EVENT, _WATERMARK, _ID = range(5)  # the kinds of records
_SEQ_BITS: Final = 64
_PURGATORY: Final = ""  # the only one of a bucket
_PLACE: Final = itemgetter(0, 1)  # the time and number of a row
_AT_LEAST, _ALL_SETTLED, _TOTAL = int(Condition.AT_LEAST), int(Condition.ALL_SETTLED), int(Condition.TOTAL)
_DEFAULTS: Final = {kind: list(kind._field_defaults.values()) for kind in (Registration, Event)}


class Settings(NamedTuple):
    """The durations of a bucket, in ns, and whether it applies rows in order."""

    ordered: bool
    marks_ns: int  # how long events are kept for marks
    ids_ns: int  # how long the id of a settled operation is remembered
    buckets: int = 0  # how many there are: all batches must agree
    grouped: bool = False  # whether names begin with that of a group


class Note(NamedTuple):
    """The memory of a bucket beside its records."""

    version: int = VERSION
    buckets: int = 0
    stage: int = 0
    grouped: bool = False
    until_ns: int = -1  # rows up to this time have been applied
    late_events: int = 0
    late_registrations: int = 0
    timer_ms: int = -1  # the time of the newest timer that was set
    watermark_ns: int = -1  # the watermark at the heartbeat `beat_ns`, since when it has not moved
    beat_ns: int = -1

    @property
    def has_counted(self) -> bool:
        """Whether there is something to tell, though no record is left."""
        return bool(self.late_events or self.late_registrations)


def position(at_ns: int, seq: int) -> int:
    """A row's time and number as one number, which the rules take for an event's sequence."""
    return at_ns << _SEQ_BITS | seq


def note_of(found: Any, settings: Settings, stage: int) -> Note:
    """The note of a bucket's state. Raises InvalidValueError if these settings or this version cannot go on with it."""
    if found is None:
        return Note(VERSION, settings.buckets, stage, settings.grouped)
    if found[0] != VERSION:
        raise InvalidValueError(
            f"purgatory(): the state of this checkpoint has version {found[0]}, and this timerd reads {VERSION}: go on "
            "with the timerd that made the checkpoint, or begin with another checkpoint"
        )
    note = Note(*found)
    if note.buckets != settings.buckets:
        raise InvalidValueError(
            f"purgatory(): this checkpoint has {note.buckets} buckets, and the query buckets={settings.buckets}: "
            f"give buckets={note.buckets}, or begin with another checkpoint"
        )
    if (note.stage, note.grouped) != (stage, settings.grouped):
        raise InvalidValueError(
            "purgatory(): this checkpoint was made with another layout: give by= and the type of keys as before, or "
            "begin with another checkpoint"
        )
    return note


class _Sender(rules.Sender):
    """A sender of events, whose positions do not fit into 64 bits."""

    def __init__(self) -> None:
        self.commands: Any = []
        self.sequences: Any = []


class _Operation(rules.Operation):
    """An operation of a bucket. `since`: events up to this position do not count, in whatever order they come."""

    __slots__ = ("copy", "registering", "row", "since")

    def __init__(self, row: Registration, copy: int, since: int, client: _Sender | None) -> None:
        # The order of its row: unique, and operations with a lower one see an event first.
        order: Any = (row.at_ns, row.seq, row, copy)
        _, _, id_, keys, deadline_ns, condition, needed, total, *_ = row
        super().__init__(order, _PURGATORY, keys, condition, needed, total, deadline_ns, id_, client)
        self.row, self.copy, self.since, self.registering = row, copy, since, False

    def is_concerned(self, event: rules.Event) -> bool:
        """Whether the event affects the operation. Out of order, an event after the deadline does not: an earlier one
        may come yet.
        """
        if event.sequence <= self.since or (self.since >= 0 and event.effective_ns >= self.deadline_ns):
            return False
        return super().is_concerned(event)


class _Event(rules.Event):
    """An event of a bucket, and its row."""

    __slots__ = ("is_stored", "row")

    row: Event
    is_stored: bool


class Bucket(Purgatory[_Operation, _Event]):
    """A bucket for one batch."""

    stage = 0  # of two; 0 if there is one

    def __init__(self, store: Store, settings: Settings) -> None:
        super().__init__()
        self.note = note_of(store.note, settings, self.stage)
        self.outcomes: list[Settled] = []
        self._store, self._settings = store, settings
        self._pending: dict[_Operation, None] = {}
        self._due: list[tuple[int, Any, _Operation]] = []
        self._settled_ids: dict[str, int] = {}  # until when each is remembered
        self._senders: dict[str, _Sender] = {}
        self._now_ns = 0
        self._until_ns = -1  # rows up to this time were applied before this batch
        self._newest: tuple[Registration, int] | None = None  # the newest registration, and its number among equal ones

    def run(
        self, rows: Iterable[Registration | Event], until_ns: int, packs: Iterable[tuple[int, bytes]] = ()
    ) -> list[Settled]:
        """Apply rows, and let expire what is due. `until_ns`: no row that comes later is before this time.

        `packs` has more rows, each pack with the first time of its rows. Returns the outcomes, in the order in which
        the operations settled. The store then has what is left.
        """
        self._until_ns = self.note.until_ns
        until_ns = max(until_ns, self._until_ns)
        new, due = list(rows), []
        for first_ns, pack in packs:
            if self._settings.ordered and first_ns > until_ns:
                self._store.put([Record(first_ns, (), pack)])  # it is not looked at before its first row is ripe
            else:
                new += rows_of(msgpack.unpackb(pack))
        kept: list[Registration | Event] = []
        for record in map(msgpack.unpackb, self._store.take((), until_ns)):
            if record[0] == _ROWS:
                kept += rows_of(record)
            else:
                due.append(record)
        ripe = self._ripe(new, kept, until_ns)
        names, keys = _concerned(ripe), self._keys_looked_at(ripe)
        hashes = {*map(hash_of, names), *[_hash_of_event(key, limited=True) for key in keys]}
        taken = self._store.take(hashes, -1)
        found = self._store.find({_hash_of_event(key, limited=False) for key in keys}) if keys else []
        self._load([*due, *map(msgpack.unpackb, taken)], map(msgpack.unpackb, found))
        expiring = self._due if self._settings.ordered else []  # out of order, only the clock lets operations expire
        for row in ripe:
            at_ns = row.at_ns
            if (
                expiring
                and expiring[0][0] <= at_ns
                and (isinstance(row, Registration) or row.of is None or (at_ns, row.seq) > row.of)
            ):
                self._expire(at_ns)
            if isinstance(row, Registration):
                self._register(row)
            else:
                self._enter(row)
        self._expire(until_ns)
        self.note = self.note._replace(until_ns=until_ns)
        self._keep()
        return self.outcomes

    # rows -------------------------------------------------------------------------------------------------------------

    def _ripe(
        self, new: list[Registration | Event], kept: list[Registration | Event], until_ns: int
    ) -> list[Registration | Event]:
        """The rows that are ripe, in their order. The others are kept. `kept`: those that were kept before."""
        ripe = new
        if self._settings.ordered:
            before_ns = self._until_ns
            late = [
                row for row in new if row.at_ns <= before_ns and not isinstance(row, Registration) and row.of is None
            ]
            if late:
                self.note = self.note._replace(late_events=self.note.late_events + len(late))
                gone = set(map(id, late))
                new = [row for row in new if id(row) not in gone]
            new += kept
            ripe = [row for row in new if row.at_ns <= until_ns]
            if len(ripe) < len(new):
                rest = [row for row in new if row.at_ns > until_ns]
                self._store.put([Record(first_ns, (), pack) for first_ns, _, pack in packs_of(rest)])
        ripe.sort(key=_PLACE)
        if any(map(_same_place, ripe, islice(ripe, 1, None))) or any(
            not isinstance(row, Registration) and row.of is not None for row in ripe
        ):
            ripe.sort(key=order_of)
        return ripe

    def _register(self, row: Registration) -> None:
        own = position(row.at_ns, row.seq)
        if self._settings.ordered and row.at_ns <= self._until_ns:
            self.note = self.note._replace(late_registrations=self.note.late_registrations + 1)
        if row.id is not None and (self.pending_of((_PURGATORY, row.id)) is not None or self._remembers(row)):
            return
        copy = self._newest[1] + 1 if self._newest is not None and self._newest[0] == row else 0
        self._newest = row, copy
        op = self._operation(row, copy)
        mark = None
        if row.mark is not None:
            mark = rules.Mark(position(*row.mark), None if op.client is None else row.command)
        elif self._looks_back(row):
            mark = rules.Mark(own, None)
        if refusal := self._refusal(row):
            return self._outcome(op, Outcome.FAILED, None, None, row.at_ns, refusal)
        self._now_ns = row.at_ns
        self._pending[op] = None
        op.registering = True
        self.register(op, mark, row.at_ns, own)
        op.registering = False
        if op.pending:
            heappush(self._due, (op.deadline_ns, op.registration, op))
        return None

    def _operation(self, row: Registration, copy: int) -> _Operation:
        since = -1 if self._settings.ordered else position(*(row.mark or (row.at_ns, row.seq)))
        return _Operation(row, copy, since, None if row.sender is None else self._sender(row.sender))

    def _refusal(self, row: Registration) -> ErrorCode:
        """Why the daemon would refuse the registration; NONE if it would not."""
        keys, condition = row.keys, row.condition
        if len(keys) != 1 or not keys[0].name:
            names = [key.name for key in keys]
            if not names or not all(names) or len(set(names)) < len(names):
                return ErrorCode.INVALID_KEY
        if condition == _AT_LEAST:
            if not 1 <= row.needed <= len(keys):
                return ErrorCode.INVALID_CONDITION
        elif condition == _TOTAL:
            if row.total <= 0 or any(key.target is not None for key in keys):
                return ErrorCode.INVALID_CONDITION
        elif condition != _ALL_SETTLED:
            return ErrorCode.INVALID_CONDITION
        if row.deadline_ns == NEVER:
            return ErrorCode.TIMEOUT_OUT_OF_RANGE
        if row.mark is not None and row.mark[0] < row.at_ns - self._settings.marks_ns:
            return ErrorCode.MARK_TOO_OLD
        return ErrorCode.NONE

    def _remembers(self, row: Registration) -> bool:
        assert row.id is not None
        until_ns = self._settled_ids.get(row.id)
        return until_ns is not None and row.at_ns < until_ns

    def _enter(self, row: Event) -> None:
        self._now_ns = row.at_ns
        if row.id is not None:
            op = self.pending_of((_PURGATORY, row.id))
            if op is not None:
                self.settle(op, Outcome.CANCELLED, None, None)
            return
        watermark = self.watermark_of((_PURGATORY, row.key))
        if row.kind != EventKind.ADVANCE or watermark is None or row.amount > watermark:
            self.enter(self._event(row))

    def _event(self, row: Event) -> _Event:
        sender = None if row.sender is None else self._sender(row.sender)
        where, key = position(row.at_ns, row.seq), (_PURGATORY, row.key)
        event = _Event(where, row.kind, key, row.amount, row.limit, row.at_ns, sender, row.command)
        event.row, event.is_stored = row, False
        return event

    def _sender(self, name: str) -> _Sender:
        return self._senders.setdefault(name, _Sender())

    # settling ---------------------------------------------------------------------------------------------------------

    def _expire(self, until_ns: int) -> None:
        due = self._due
        while due and due[0][0] <= until_ns:
            _, _, op = heappop(due)
            if op.pending:
                self.settle(op, Outcome.EXPIRED, None, None)

    def on_settled(
        self, op: _Operation, state: int, ordinal: int | None, event: _Event | None, seen: int | None
    ) -> None:
        """Note an outcome, and remember the id."""
        del self._pending[op]
        if state == Outcome.EXPIRED:
            settled_ns = op.deadline_ns
        else:
            settled_ns = self._now_ns if event is None else event.effective_ns
        settled_ns = max(settled_ns, op.row.at_ns)
        if op.id is not None:
            self._settled_ids[op.row.id or ""] = settled_ns + self._settings.ids_ns
        error = event.amount if event is not None and event.kind == EventKind.FAIL else None
        self._outcome(op, state, ordinal, event, settled_ns, error)

    def _outcome(
        self,
        op: _Operation,
        state: int,
        ordinal: int | None,
        event: _Event | None,
        settled_ns: int,
        error: int | None,
    ) -> None:
        at_registration = op.registering or op.deadline_ns <= op.row.at_ns
        flags = (RowFlag.GRANTED if op.is_granted(event) else 0) | (RowFlag.AT_REGISTRATION if at_registration else 0)
        value, seq = (b"", None) if event is None else (event.row.value, event.row.seq)
        self.outcomes.append(Settled(op.row, op.copy, state, error, ordinal, settled_ns, flags, value, seq))

    # the store --------------------------------------------------------------------------------------------------------

    def _keys_looked_at(self, rows: Iterable[Registration | Event]) -> set[str]:
        """The keys whose earlier events may count for one of these registrations."""
        return {key.name for row in rows if isinstance(row, Registration) and self._looks_back(row) for key in row.keys}

    def _looks_back(self, row: Registration) -> bool:
        """Whether events before the registration may count: it has a mark, or comes after them."""
        return row.mark is not None or not self._settings.ordered or row.at_ns <= self._until_ns

    def _load(self, records: Iterable[list[Any]], stored: Iterable[list[Any]]) -> None:
        """Take records into the purgatory, and events that the store keeps."""
        operations: list[_Operation] = []
        events = [self._stored_event(record, is_stored=True) for record in stored]
        for kind, *fields in records:
            if kind == _OPERATION:
                row, copy, satisfied, failed, missing = fields
                op = self._operation(_registration_of(row), copy)
                op.satisfied, op.failed, op.missing = satisfied, failed, missing
                operations.append(op)
            elif kind == _EVENT:
                events.append(self._stored_event([kind, *fields], is_stored=False))
            elif kind == _WATERMARK:
                self.raise_watermark((_PURGATORY, fields[0]), fields[1])
            elif kind == _ID:
                self._settled_ids[fields[0]] = fields[1]
        for event in sorted(events, key=lambda one: one.sequence):
            self.remember(event)
        for op in sorted(operations, key=lambda one: one.registration):
            self._pending[op] = None
            self.watch(op)
            heappush(self._due, (op.deadline_ns, op.registration, op))

    def _stored_event(self, record: list[Any], *, is_stored: bool) -> _Event:
        _, left, fields = record
        event = self._event(Event(*fields))
        event.left, event.is_stored = left, is_stored
        return event

    def _keep(self) -> None:
        """Put into the store what is left."""
        until_ns, marks_ns, records = self.note.until_ns, self._settings.marks_ns, []
        for op in self._pending:
            body = msgpack.packb((_OPERATION, _short(op.row), op.copy, op.satisfied, op.failed, op.missing))
            records.append(Record(op.deadline_ns, _hashes(op.row), body))
        for events in self._events.values():
            for event in events:
                forgotten_ns, is_spent = event.effective_ns + marks_ns, event.limited and not event.left
                if forgotten_ns > until_ns and not event.is_stored and not is_spent:
                    hashes = (_hash_of_event(event.row.key, limited=event.limited),)
                    body = msgpack.packb((_EVENT, event.left, _short(event.row)))
                    records.append(Record(forgotten_ns, hashes, body))
        for (_, name), watermark in self._watermarks.items():
            records.append(Record(NEVER, (hash_of(f"watermark {name}"),), msgpack.packb((_WATERMARK, name, watermark))))
        for id_, forgotten_ns in self._settled_ids.items():
            if forgotten_ns > until_ns:
                records.append(Record(forgotten_ns, (hash_of(f"id {id_}"),), msgpack.packb((_ID, id_, forgotten_ns))))
        self._store.put(records)
        self._store.note = tuple(self.note)


def operation_of(record: list[Any]) -> tuple[Registration, int, int] | None:
    """The registration of a record, with the keys that are satisfied and failed, as bits; None: another record."""
    return (_registration_of(record[1]), record[3], record[4]) if record[0] == _OPERATION else None


def _hash_of_event(key: str, *, limited: bool) -> int:
    """The hash of events on a key. It differs from the key's, so that events do not find earlier events.

    Limited events have another one: they are taken out of the store, because a grant changes them.
    """
    return hash_of(("limited " if limited else "event ") + key)


def _hashes(row: Registration) -> tuple[int, ...]:
    """The hashes of an operation: of its keys and its id."""
    found = [hash_of(f"key {key.name}") for key in row.keys]
    if row.id is not None:
        found.append(hash_of(f"id {row.id}"))
    return tuple(found)


def _concerned(rows: Iterable[Registration | Event]) -> set[str]:
    """The names that rows concern: an event its key's operations, a registration its id; watermarks of keys."""
    names: set[str] = set()
    for row in rows:
        if row.id is not None:
            names.add(f"id {row.id}")
        if isinstance(row, Registration):
            for key in row.keys:
                if key.target is not None:
                    names.add(f"watermark {key.name}")
        elif row.of is None:
            names.add(f"key {row.key}")
            if row.kind in (EventKind.ADVANCE, EventKind.FORGET):
                names.add(f"watermark {row.key}")
    return names


def _same_place(one: Registration | Event, other: Registration | Event) -> bool:
    return one.seq == other.seq and one.at_ns == other.at_ns


def _short(row: Registration | Event) -> list[Any]:
    """The row without the defaults at its end."""
    fields, defaults = list(row), _DEFAULTS[type(row)]
    at = len(defaults)
    while at and fields[-1] == defaults[at - 1]:
        fields.pop()
        at -= 1
    return fields


def _registration_of(fields: list[Any]) -> Registration:
    r = Registration(*fields)
    mark = None if r.mark is None else (r.mark[0], r.mark[1])
    return r._replace(keys=tuple(Key(*key) for key in r.keys), mark=mark)
