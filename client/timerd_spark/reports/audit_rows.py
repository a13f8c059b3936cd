"""The work of an audit's tasks on rows: pack() makes them few and narrow, audited() gives them to Audits.

A registration is three or more neighbouring rows of a journal: REGISTER, REGISTERED, and a KEY row for each key. pack()
puts them together. If a part of the journal ends between them, pack() leaves fragments, and join_fragments() puts these
together after Spark has sorted them. The arguments that an Audit takes for a row travel as one value, `arguments`.
The other columns are there for Spark, which groups by them.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerd_client.audit.audit import Audit
from timerd_client.audit.records import Finding, Key, Registration
from timerd_shm.declare.journal import GroupStep, JournalLevel
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientFlag, ClientState, Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

if TYPE_CHECKING:
    import pyarrow

FRAGMENT: Final = "fragment"  # the kind of a packed row that is one row of a registration
# The columns of packed rows. `operation` is of registrations, actions, groups and fragments, `keys` (how many) and `id`
# of registrations, `sequence` of events. `lacks_events`: the segment is not of level events.
PACKED: Final = (
    "host string, incarnation string, row bigint, kind string, operation bigint, purgatory string, key string, "
    "keys bigint, id string, sequence bigint, lacks_events boolean, arguments binary"
)
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string"
_POSITION: Final = ("host", "incarnation", "row", "kind")
_WORD: Final = (1 << 64) - 1

# For each kind of row the columns that an Audit needs, in the order in which the kind's handler below takes them.
_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "event": (
        "event_kind", "flags", "purgatory", "key", "sequence", "effective_ns", "amount", "command", "limit", "client",
        "client_generation",
    ),
    "outcome": (
        "outcome", "settled_key", "flags", "key", "operation", "registered_ns", "deadline_ns", "settled_ns", "sequence",
    ),
    "action": ("command_kind", "flags", "orphans", "operation", "deadline_ns", "client", "client_generation"),
    "group": ("step", "deliveries", "group", "operation", "client", "client_generation"),
    "watermark": ("purgatory", "key", "watermark"),
    "client": ("client", "client_generation", "state", "flags", "orphans", "group", "at_ns"),
    "segment": ("flags", "newest"),
    "gap": ("rows",),
}  # fmt: skip
# The same for the rows of a registration; REGISTER says how many keys follow.
_FRAGMENTS: Final[dict[str, tuple[str, ...]]] = {
    "register": (
        "keys", "flags", "command_flags", "condition", "needed", "orphans", "command", "registered_ns", "deadline_ns",
        "mark_sequence", "mark_command",
    ),
    "registered": ("client", "client_generation", "total", "effective_ns", "purgatory", "id"),
    "key": ("ordinal", "key", "key_kind", "target"),
}  # fmt: skip
# The columns of the events view that an audit needs.
COLUMNS: Final = tuple(dict.fromkeys(
    (*_POSITION, "level", "operation", *chain(*_ARGUMENTS.values(), *_FRAGMENTS.values()))
))  # fmt: skip


class Fragment(NamedTuple):
    """One row of a registration. All rows of a registration have the same `of`: host, incarnation and operation."""

    of: tuple[str, str, int]
    row: int
    kind: str
    values: tuple[Any, ...]


# packing --------------------------------------------------------------------------------------------------------------


def pack(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Pack rows of the events view: batches with the columns PACKED."""
    import pyarrow.compute as pc

    joiner = Joiner()
    for batch in batches:
        for kind in pc.unique(batch["kind"]).to_pylist():
            if kind in _ARGUMENTS:
                yield _packed(batch.filter(pc.equal(batch["kind"], kind)), kind)
        fragments: list[Fragment | None] = [None] * batch.num_rows
        for kind, names in _FRAGMENTS.items():
            at = pc.indices_nonzero(pc.equal(batch["kind"], kind))
            some = batch.take(at)
            operations = zip(*(some[name].to_pylist() for name in ("host", "incarnation", "operation")), strict=True)
            values = zip(*(some[name].to_pylist() for name in names), strict=True)
            for index, of, row, value in zip(at.to_pylist(), operations, some["row"].to_pylist(), values, strict=True):
                fragments[index] = Fragment(of, row, kind, value)
        joiner.take(fragment for fragment in fragments if fragment is not None)
        yield from joiner.packed(left=_packed_fragment)
    joiner.end()
    yield from joiner.packed(left=_packed_fragment)


def join_fragments(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Join fragments, which come sorted by operation and row, into packed registrations."""
    joiner = Joiner()
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("host", "incarnation", "operation", "row", "arguments"))
        joiner.take(
            Fragment((host, incarnation, operation), row, *marshal.loads(arguments))
            for host, incarnation, operation, row, arguments in zip(*columns, strict=True)
        )
        yield from joiner.packed(left=_incomplete)
    joiner.end()
    yield from joiner.packed(left=_incomplete)


class Joiner:
    """Joins neighbouring fragments to registrations. Fragments that have no complete registration are left over."""

    def __init__(self) -> None:
        self._held: list[Fragment] = []
        self._whole: list[list[Fragment]] = []
        self._left: list[Fragment] = []

    def take(self, fragments: Iterable[Fragment]) -> None:
        held = self._held
        for fragment in fragments:
            if fragment.kind == "register":
                self._left += held
                held = [fragment]
            elif held and held[0].of == fragment.of and fragment.kind == ("registered" if len(held) == 1 else "key"):
                held.append(fragment)
                if len(held) == 2 + held[0].values[0]:
                    self._whole.append(held)
                    held = []
            else:
                self._left += [*held, fragment]
                held = []
        self._held = held

    def end(self) -> None:
        """Say that no more fragments come: those that are held are left over."""
        self._left += self._held
        self._held = []

    def packed(self, left: Callable[[Fragment], tuple[Any, ...]]) -> Iterator[pyarrow.RecordBatch]:
        """A batch of the registrations joined since the last call, and of the fragments left over, packed by `left`."""
        rows = [_packed_registration(fragments) for fragments in self._whole]
        rows += [left(fragment) for fragment in self._left]
        self._whole, self._left = [], []
        if rows:
            yield _batch(PACKED, rows)


def _packed_registration(fragments: Sequence[Fragment]) -> tuple[Any, ...]:
    (first, second, *others) = fragments
    keys = sorted(fragment.values for fragment in others)
    purgatory, id_ = second.values[-2:]
    arguments = (first.of[2], *first.values[1:], *second.values, [key[1:] for key in keys])
    return (*first.of[:2], first.row, "register", first.of[2], purgatory, keys[0][1], len(keys), id_, None, None,
            marshal.dumps(arguments))  # fmt: skip


def _packed_fragment(fragment: Fragment) -> tuple[Any, ...]:
    arguments = marshal.dumps((fragment.kind, fragment.values))
    return (*fragment.of[:2], fragment.row, FRAGMENT, fragment.of[2], None, None, None, None, None, None, arguments)


def _incomplete(fragment: Fragment) -> tuple[Any, ...]:
    """A registration without arguments, which audited() reports as incomplete."""
    return (*fragment.of[:2], fragment.row, "register", fragment.of[2], None, None, None, None, None, None, None)


def _packed(batch: pyarrow.RecordBatch, kind: str) -> pyarrow.RecordBatch:
    """Pack rows of one kind; not for the kinds of rows that a registration has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = zip(*(batch[name].to_pylist() for name in _ARGUMENTS[kind]), strict=True)
    lacks_events = pc.not_equal(batch["level"], JournalLevel.EVENTS.name.lower()) if kind == "segment" else None
    none = pa.nulls(batch.num_rows, pa.int64())
    columns = [
        *(batch[name] for name in (*_POSITION, "operation", "purgatory", "key")),
        none,
        batch["id"],
        batch["sequence"] if kind == "event" else none,
        pa.nulls(batch.num_rows, pa.bool_()) if lacks_events is None else lacks_events,
        pa.array([marshal.dumps(row) for row in rows], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=_names(PACKED))


def _names(ddl: str) -> list[str]:
    return [field.split()[0] for field in ddl.split(", ")]


def _batch(ddl: str, rows: Sequence[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "binary": pa.binary()}
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(_names(ddl))
    kinds = [types[field.split()[1]] for field in ddl.split(", ")]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=_names(ddl))


# auditing -------------------------------------------------------------------------------------------------------------


def audited(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Audit packed rows, sorted by bucket, arena and row: an Audit for each arena in each bucket. Yields FINDINGS."""
    found: list[tuple[str, str, int, str | None, str]] = []
    current: tuple[Any, str, str] | None = None
    audit = Audit(whole=False)

    def finish() -> None:
        if current is not None:
            _, host, incarnation = current
            for row, operation, what in audit.end():
                found.append(
                    (host, incarnation, row, f"{incarnation}-{operation & _WORD:016x}" if operation else None, what)
                )

    for batch in batches:
        for first, end in _stretches(batch):
            part = batch.slice(first, end - first)
            of = (part["bucket"][0].as_py(), part["host"][0].as_py(), part["incarnation"][0].as_py())
            if of != current:
                finish()
                current, audit = of, Audit(whole=False)
                handlers = _handlers(audit)
            columns = (part[name].to_pylist() for name in ("kind", "row", "operation", "arguments"))
            for kind, row, operation, arguments in zip(*columns, strict=True):
                if arguments is None:
                    audit.wrong.append(Finding(row, operation, "its registration lacks rows"))
                else:
                    handlers[kind](row, *marshal.loads(arguments))
    finish()
    yield _batch(FINDINGS, found)


def _stretches(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, int]]:
    """(first, end) of each stretch of a batch's rows that has one bucket and one arena."""
    import numpy as np

    if batch.num_rows == 0:
        return
    columns = [batch[name] for name in ("bucket", "host", "incarnation")]
    last = batch.num_rows - 1
    if all(column[0] == column[last] for column in columns):
        yield 0, batch.num_rows  # the rows are sorted, so those between are the same
        return
    changes = np.zeros(last, bool)
    for column in columns:
        values = column.to_numpy(zero_copy_only=False)
        changes |= values[1:] != values[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


def _numbers(kind: type[IntEnum]) -> dict[str | None, int]:
    return {member.name.lower(): int(member) for member in kind}


def _handlers(audit: Audit) -> dict[str, Callable[..., None]]:
    """For each kind of row a function that gives the row to the audit, with the numbers of the journal for names."""
    events, outcomes, orphan_kinds = _numbers(EventKind), _numbers(Outcome), _numbers(Orphans)
    commands, conditions = _numbers(CommandKind), _numbers(Condition)
    states, steps = {s.name.lower(): s for s in ClientState}, {s.name.lower(): s for s in GroupStep}

    def register(
        row: int, operation: int, flags: int, command_flags: int, condition: str, needed: int, orphans: str,
        command: int, registered_ns: int, deadline_ns: int | None, mark_sequence: int, mark_command: int, client: int,
        generation: int, total: int, effective_ns: int, purgatory: str, id_: str | None,
        parts: list[tuple[str, str, int | None]],
    ) -> None:  # fmt: skip
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        keys = tuple(Key(key, (target or 0) & _WORD if kind == "watermark" else None) for key, kind, target in parts)
        audit.registration(
            Registration(row, operation, flags, command_flags, conditions[condition], needed, orphan_kinds[orphans],
                         command, registered_ns, due, mark_sequence & _WORD, mark_command & _WORD, (client, generation),
                         total & _WORD, effective_ns, None, purgatory, id_, keys)
        )  # fmt: skip

    def event(
        row: int, kind: str, flags: int, purgatory: str, key: str, sequence: int, effective_ns: int, amount: int,
        command: int, limit: int, client: int, generation: int,
    ) -> None:  # fmt: skip
        audit.event(
            row, events[kind], flags, (purgatory, key), sequence, effective_ns, amount & _WORD, command, limit,
            (client, generation),
        )  # fmt: skip

    def outcome(
        row: int, state: str, settled_key: int, flags: int, key: str, operation: int, registered_ns: int,
        deadline_ns: int | None, settled_ns: int, sequence: int,
    ) -> None:  # fmt: skip
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        audit.outcome(
            row, outcomes[state], settled_key, flags, key, operation, registered_ns, due, settled_ns, sequence, None
        )

    def action(
        row: int, kind: str, flags: int, orphans: str, operation: int, deadline_ns: int | None, client: int,
        generation: int,
    ) -> None:  # fmt: skip
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        audit.action(row, commands[kind], flags, orphan_kinds[orphans], operation, due, (client, generation))

    def group(row: int, step: str, deliveries: int, name: str, operation: int, client: int, generation: int) -> None:
        audit.group(row, steps[step], deliveries, name, operation, (client, generation))

    def client(
        row: int, slot: int, generation: int, state: str, flags: int, orphans: str, name: str | None, at_ns: int
    ) -> None:
        listens = bool(flags & ClientFlag.LISTENS)
        audit.client(row, (slot, generation), states[state], listens, orphan_kinds[orphans], name, at_ns)

    def watermark(row: int, purgatory: str, key: str, value: int) -> None:
        audit.watermark(row, (purgatory, key), value & _WORD)

    return {
        "register": register,
        "event": event,
        "outcome": outcome,
        "action": action,
        "group": group,
        "client": client,
        "watermark": watermark,
        "segment": audit.segment,
        "gap": audit.gap,
    }
