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
from timerd_client.audit.records import Finding, Key, Owner, Registration
from timerd_shm.declare.fields import fields
from timerd_shm.declare.journal import ROWS, JournalLevel, RowKind
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.states import Condition, KeyKind, Orphans
from timerd_spark.source.schema import ENUM_TYPES, TEXTS, shown_fields, shown_kinds

if TYPE_CHECKING:
    import pyarrow

FRAGMENT: Final = "fragment"  # the kind of a packed row that is one row of a registration
# The columns of packed rows. `operation` is of registrations, actions, groups and fragments, `keys` (how many) and `id`
# of registrations, `sequence` of events. `lacks`: the segment is not of level "events", or is of an older version, and
# lacks "columns".
PACKED: Final = (
    "host string, incarnation string, row bigint, kind string, operation bigint, purgatory string, key string, "
    "keys bigint, id string, sequence bigint, lacks string, arguments binary"
)
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string"
_POSITION: Final = ("host", "incarnation", "row", "kind")
_WORD: Final = (1 << 64) - 1


def _columns_of(kind: RowKind) -> tuple[str, ...]:
    """The columns of a kind of row, and of its texts."""
    names = [field.name for field in shown_fields(kind)]
    return tuple(names + ["group"] * ("owner" in names and "group" not in names and kind in OWNED))


OWNED: Final = (RowKind.OUTCOME, RowKind.REGISTERED)  # rows whose owner may be a group
# For each kind of row the columns that an Audit needs, in the order in which the kind's handler below takes them.
_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    kind.name.lower(): _columns_of(kind)
    for kind in shown_kinds()
    if kind not in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY)
}
# The same for the rows of a registration; REGISTER says how many keys follow.
_FRAGMENTS: Final[dict[str, tuple[str, ...]]] = {
    "register": (
        "keys", "registration", "flags", "command_flags", "condition", "needed", "orphans", "command", "registered_ns",
        "deadline_ns", "mark_sequence", "mark_command",
    ),
    "registered": (
        "client", "client_generation", "total", "effective_ns", "newest", "progress", "payload_length", "owner",
        "group", "purgatory", "id",
    ),
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
    arguments: Any = (first.of[2], *first.values[1:], *second.values, [key[1:] for key in keys])
    if [key[0] for key in keys] != list(range(len(keys))):
        arguments = None
    return (*first.of[:2], first.row, "register", first.of[2], purgatory, keys[0][1], len(keys), id_, None, None,
            arguments and marshal.dumps(arguments))  # fmt: skip


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
    lacks = None
    if kind == "segment":
        of_level = pc.equal(batch["level"], JournalLevel.EVENTS.name.lower())
        lacks = pc.if_else(pc.is_null(batch["kept_ns"]), "columns", pc.if_else(of_level, None, "events"))
    none = pa.nulls(batch.num_rows, pa.int64())
    columns = [
        *(batch[name] for name in (*_POSITION, "operation", "purgatory", "key")),
        none,
        batch["id"],
        batch["sequence"] if kind == "event" else none,
        pa.nulls(batch.num_rows, pa.string()) if lacks is None else lacks.cast(pa.string()),
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
            for row, operation, what in audit.finish():
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


def _numbers(kind: type[IntEnum]) -> Callable[[str], int]:
    """The number of a name; a code without a name is shown as its number."""
    numbers = {member.name.lower(): int(member) for member in kind}
    return lambda name: numbers[name] if name in numbers else int(name)


def _word(value: int) -> int:
    return value & _WORD


def _deadline(value: int | None) -> int:
    return NO_DEADLINE if value is None else value & _WORD


_WORDS: Final = ("amount", "command", "operation", "watermark", "at_ns", "rows", "newest")


def _record_of(kind: RowKind) -> Callable[[Sequence[Any]], Any]:
    """What makes the row of a kind from its columns, but for its texts, which are 0."""
    record = ROWS[kind]
    shown = [field.name for field in shown_fields(kind)]
    zeros = [
        int(kind) if f.name == "kind" else bytes(f.storage.count) if f.storage.count > 1 else 0 for f in fields(record)
    ]
    places: list[tuple[int, int, Callable[[Any], Any] | None]] = []
    for at, each in enumerate(fields(record)):
        if each.name not in shown or each.name in TEXTS:
            continue
        convert: Callable[[Any], Any] | None = None
        if each.name in ENUM_TYPES:
            convert = _numbers(ENUM_TYPES[each.name])
        elif each.name == "deadline_ns":
            convert = _deadline
        elif each.name in _WORDS:
            convert = _word
        places.append((at, shown.index(each.name), convert))
    new = tuple.__new__

    def made(values: Sequence[Any]) -> Any:
        row = zeros.copy()
        for at, place, convert in places:
            row[at] = values[place] if convert is None else convert(values[place])
        return new(record, row)

    return made


def _owner(owner: str | None, group: str | None) -> Owner:
    return (owner, False) if owner is not None else (group, True) if group is not None else None


def _handlers(audit: Audit) -> dict[str, Callable[..., None]]:
    """For each kind of row a function that gives the row to the audit, with the numbers of the journal for names."""
    kinds, conditions, orphan_kinds = _numbers(KeyKind), _numbers(Condition), _numbers(Orphans)
    made = {kind: _record_of(kind) for kind in shown_kinds()}
    places = {kind: {name: at for at, name in enumerate(_columns_of(kind))} for kind in made}

    def register(
        row: int, operation: int, registration: int, flags: int, command_flags: int, condition: str, needed: int,
        orphans: str, command: int, registered_ns: int, deadline_ns: int | None, mark_sequence: int, mark_command: int,
        client: int, generation: int, total: int, effective_ns: int, newest: int, progress: int, payload_length: int,
        owner: str | None, group: str | None, purgatory: str, id_: str | None,
        parts: list[tuple[str, str, int | None]],
    ) -> None:  # fmt: skip
        keys = tuple(
            Key(key, (target or 0) & _WORD if kinds(kind) == KeyKind.WATERMARK else None) for key, kind, target in parts
        )
        audit.registration(
            Registration(row, operation, registration, flags, command_flags, conditions(condition), needed,
                         orphan_kinds(orphans), command, registered_ns, _deadline(deadline_ns), mark_sequence & _WORD,
                         mark_command & _WORD, (client, generation), total & _WORD, effective_ns, newest,
                         progress & _WORD, payload_length, _owner(owner, group), purgatory, id_, keys)
        )  # fmt: skip

    def event(row: int, *values: Any) -> None:
        at = places[RowKind.EVENT]
        watch_key = values[at["purgatory"]], values[at["key"]]
        audit.event(row, made[RowKind.EVENT](values), watch_key, _owner(values[at["owner"]], None))

    def outcome(row: int, *values: Any) -> None:
        at = places[RowKind.OUTCOME]
        owner = _owner(values[at["owner"]], values[at["group"]])
        texts = values[at["purgatory"]], values[at["id"]]
        audit.outcome(row, made[RowKind.OUTCOME](values), values[at["key"]], owner, *texts)

    def action(row: int, *values: Any) -> None:
        at = places[RowKind.ACTION]
        audit.action(row, made[RowKind.ACTION](values), _owner(values[at["owner"]], None))

    def group(row: int, *values: Any) -> None:
        at = places[RowKind.GROUP]
        audit.group(row, made[RowKind.GROUP](values), values[at["group"]], _owner(values[at["owner"]], None))

    def client(row: int, *values: Any) -> None:
        at = places[RowKind.CLIENT]
        audit.client(row, made[RowKind.CLIENT](values), _owner(values[at["owner"]], None), values[at["group"]])

    def watermark(row: int, *values: Any) -> None:
        at = places[RowKind.WATERMARK]
        audit.watermark(row, made[RowKind.WATERMARK](values), (values[at["purgatory"]], values[at["key"]]))

    def framed(kind: RowKind, take: Callable[[int, Any], None]) -> Callable[..., None]:
        return lambda row, *values: take(row, made[kind](values))

    return {
        "register": register,
        "event": event,
        "outcome": outcome,
        "action": action,
        "group": group,
        "client": client,
        "watermark": watermark,
        "segment": framed(RowKind.SEGMENT, audit.segment),
        "turn": framed(RowKind.TURN, audit.turn),
        "anchor": framed(RowKind.ANCHOR, audit.anchor),
        "gap": framed(RowKind.GAP, audit.gap),
        "end": framed(RowKind.END, audit.end),
    }
