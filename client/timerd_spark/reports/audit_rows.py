"""What the tasks of an audit do with rows: pack() makes them few and narrow, audited() gives them to Audits.

A registration is three rows or more of a journal, which follow each other. They are put together where they are read;
those between which a part of the journal ends go apart, and join_again() puts them together once they are side by side.
The arguments that an Audit takes for a row travel as one value, `told`: Spark has columns only to group by.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerd_client.audit.audit import Audit
from timerd_client.audit.records import Finding, Key, Registration
from timerd_shm.declare.journal import GroupStep, JournalLevel
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import ClientFlag, ClientState, Condition, EventKind, Orphans, Outcome
from timerd_shm.declare.wire import CommandKind

if TYPE_CHECKING:
    import pyarrow

HALF: Final = "half"  # the kind of a packed row that is a part of a registration
# Rows of a journal as they are packed. `operation` is of registrations, actions, groups and halves, `keys` (how many)
# and `id` of registrations, `sequence` of events; `silent` is that a segment is not of level events.
PACKED: Final = (
    "host string, incarnation string, row bigint, kind string, operation bigint, purgatory string, key string, "
    "keys bigint, id string, sequence bigint, silent boolean, told binary"
)
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string"
_PLACE: Final = ("host", "incarnation", "row", "kind")
_WORD: Final = (1 << 64) - 1

# For each kind of row the columns that an Audit needs, in the order in which its function below takes them.
_TOLD: Final[dict[str, tuple[str, ...]]] = {
    "event": (
        "event_kind", "flags", "purgatory", "key", "sequence", "applied_ns", "amount", "command", "limit", "client",
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
# The same of a registration's rows; REGISTER says how many keys follow.
_HALVES: Final[dict[str, tuple[str, ...]]] = {
    "register": (
        "keys", "flags", "command_flags", "condition", "needed", "orphans", "command", "registered_ns", "deadline_ns",
        "mark_sequence", "mark_command",
    ),
    "registered": ("client", "client_generation", "total", "applied_ns", "purgatory", "id"),
    "key": ("ordinal", "key", "key_kind", "target"),
}  # fmt: skip
# The columns of the events view that an audit needs.
COLUMNS: Final = tuple(dict.fromkeys(
    (*_PLACE, "level", "operation", *(name for kinds in (_TOLD, _HALVES) for names in kinds.values() for name in names))
))  # fmt: skip


class Half(NamedTuple):
    """A row of a registration. Those of one have the same `of`: host, incarnation and operation."""

    of: tuple[str, str, int]
    row: int
    kind: str
    values: tuple[Any, ...]


# packing --------------------------------------------------------------------------------------------------------------


def pack(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Rows of the events view as PACKED."""
    import pyarrow.compute as pc

    joiner = Joiner()
    for batch in batches:
        for kind in pc.unique(batch["kind"]).to_pylist():
            if kind in _TOLD:
                yield _packed(batch.filter(pc.equal(batch["kind"], kind)), kind)
        halves: list[Half | None] = [None] * batch.num_rows
        for kind, names in _HALVES.items():
            at = pc.indices_nonzero(pc.equal(batch["kind"], kind))
            some = batch.take(at)
            places = zip(*(some[name].to_pylist() for name in ("host", "incarnation", "operation")), strict=True)
            values = zip(*(some[name].to_pylist() for name in names), strict=True)
            for place, *half in zip(at.to_pylist(), places, some["row"].to_pylist(), values, strict=True):
                halves[place] = Half(half[0], half[1], kind, half[2])
        joiner.take(half for half in halves if half is not None)
        yield from joiner.packed(left=_half)
    joiner.end()
    yield from joiner.packed(left=_half)


def join_again(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Halves that were packed, in order of their operations and rows, as PACKED registrations."""
    joiner = Joiner()
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("host", "incarnation", "operation", "row", "told"))
        joiner.take(
            Half((host, incarnation, operation), row, *marshal.loads(told))
            for host, incarnation, operation, row, told in zip(*columns, strict=True)
        )
        yield from joiner.packed(left=_lacking)
    joiner.end()
    yield from joiner.packed(left=_lacking)


class Joiner:
    """Puts halves together that come one behind the other."""

    def __init__(self) -> None:
        self._held: list[Half] = []
        self._whole: list[list[Half]] = []
        self._left: list[Half] = []

    def take(self, halves: Iterable[Half]) -> None:
        held = self._held
        for half in halves:
            if half.kind == "register":
                self._left += held
                held = [half]
            elif held and held[0].of == half.of and half.kind == ("registered" if len(held) == 1 else "key"):
                held.append(half)
                if len(held) == 2 + held[0].values[0]:
                    self._whole.append(held)
                    held = []
            else:
                self._left += [*held, half]
                held = []
        self._held = held

    def end(self) -> None:
        """No half comes any more."""
        self._left += self._held
        self._held = []

    def packed(self, left: Callable[[Half], tuple[Any, ...]]) -> Iterator[pyarrow.RecordBatch]:
        """What was put together since, and what was left over, which `left` packs."""
        rows = [_whole(halves) for halves in self._whole] + [left(half) for half in self._left]
        self._whole, self._left = [], []
        if rows:
            yield _batch(PACKED, rows)


def _whole(halves: Sequence[Half]) -> tuple[Any, ...]:
    (first, second, *others) = halves
    keys = sorted(half.values for half in others)
    purgatory, id_ = second.values[-2:]
    told = (first.of[2], *first.values[1:], *second.values, [key[1:] for key in keys])
    return (*first.of[:2], first.row, "register", first.of[2], purgatory, keys[0][1], len(keys), id_, None, None,
            marshal.dumps(told))  # fmt: skip


def _half(half: Half) -> tuple[Any, ...]:
    told = marshal.dumps((half.kind, half.values))
    return (*half.of[:2], half.row, HALF, half.of[2], None, None, None, None, None, None, told)


def _lacking(half: Half) -> tuple[Any, ...]:
    return (*half.of[:2], half.row, "register", half.of[2], None, None, None, None, None, None, None)


def _packed(batch: pyarrow.RecordBatch, kind: str) -> pyarrow.RecordBatch:
    """Rows of one kind that is not a registration's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = zip(*(batch[name].to_pylist() for name in _TOLD[kind]), strict=True)
    silent = pc.not_equal(batch["level"], JournalLevel.EVENTS.name.lower()) if kind == "segment" else None
    none = pa.nulls(batch.num_rows, pa.int64())
    columns = [
        *(batch[name] for name in (*_PLACE, "operation", "purgatory", "key")),
        none,
        batch["id"],
        batch["sequence"] if kind == "event" else none,
        pa.nulls(batch.num_rows, pa.bool_()) if silent is None else silent,
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
    """FINDINGS of packed rows with their bucket, which come sorted: one Audit for each arena in each bucket."""
    found: list[tuple[str, str, int, str | None, str]] = []
    now: tuple[Any, str, str] | None = None
    audit = Audit(whole=False)

    def ended() -> None:
        if now is not None:
            _, host, incarnation = now
            for row, operation, what in audit.end():
                found.append(
                    (host, incarnation, row, f"{incarnation}-{operation & _WORD:016x}" if operation else None, what)
                )

    for batch in batches:
        for first, end in _runs(batch):
            part = batch.slice(first, end - first)
            of = (part["bucket"][0].as_py(), part["host"][0].as_py(), part["incarnation"][0].as_py())
            if of != now:
                ended()
                now, audit = of, Audit(whole=False)
                takers = _takers(audit)
            columns = (part[name].to_pylist() for name in ("kind", "row", "operation", "told"))
            for kind, row, operation, told in zip(*columns, strict=True):
                if told is None:
                    audit.wrong.append(Finding(row, operation, "its registration lacks rows"))
                else:
                    takers[kind](row, *marshal.loads(told))
    ended()
    yield _batch(FINDINGS, found)


def _runs(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where a batch goes on with another bucket or arena."""
    import numpy as np

    if batch.num_rows == 0:
        return
    columns = [batch[name] for name in ("bucket", "host", "incarnation")]
    last = batch.num_rows - 1
    if all(column[0] == column[last] for column in columns):
        yield 0, batch.num_rows  # they are sorted
        return
    changes = np.zeros(last, bool)
    for column in columns:
        values = column.to_numpy(zero_copy_only=False)
        changes |= values[1:] != values[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    yield from pairwise(edges)


def _numbers(kind: type[IntEnum]) -> dict[str | None, int]:
    return {member.name.lower(): int(member) for member in kind}


def _takers(audit: Audit) -> dict[str, Callable[..., None]]:
    """For each kind of row, what gives one to the audit: names of the view are numbers of the journal again."""
    events, outcomes, orphan_kinds = _numbers(EventKind), _numbers(Outcome), _numbers(Orphans)
    commands, conditions = _numbers(CommandKind), _numbers(Condition)
    states, steps = {s.name.lower(): s for s in ClientState}, {s.name.lower(): s for s in GroupStep}

    def register(
        row: int, operation: int, flags: int, command_flags: int, condition: str, needed: int, orphans: str,
        command: int, registered_ns: int, deadline_ns: int | None, mark_sequence: int, mark_command: int, client: int,
        generation: int, total: int, applied_ns: int, purgatory: str, id_: str | None,
        parts: list[tuple[str, str, int | None]],
    ) -> None:  # fmt: skip
        due = NO_DEADLINE if deadline_ns is None else deadline_ns
        keys = tuple(Key(key, (target or 0) & _WORD if kind == "watermark" else None) for key, kind, target in parts)
        audit.registration(
            Registration(row, operation, flags, command_flags, conditions[condition], needed, orphan_kinds[orphans],
                         command, registered_ns, due, mark_sequence & _WORD, mark_command & _WORD, (client, generation),
                         total & _WORD, applied_ns, None, purgatory, id_, keys)
        )  # fmt: skip

    def event(
        row: int, kind: str, flags: int, purgatory: str, key: str, sequence: int, applied_ns: int, amount: int,
        command: int, limit: int, client: int, generation: int,
    ) -> None:  # fmt: skip
        audit.event(
            row, events[kind], flags, (purgatory, key), sequence, applied_ns, amount & _WORD, command, limit,
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
