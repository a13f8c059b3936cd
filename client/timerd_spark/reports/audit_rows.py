"""The rows of an audit: pack() packs the rows of the events view into fewer rows, and adds facts about each arena.

A registration is three or more neighbouring rows of a journal: REGISTER, REGISTERED, and a KEY row for each key. pack()
makes one row of them, with the bytes of all. If a part of the journal ends between these rows, pack() leaves fragments,
and join_fragments() joins them when they are sorted. The column `bytes` of a packed row has all numbers of its rows.
The other columns are its texts, and the columns to group by.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.fields import offset_of, struct_of
from timerd_shm.declare.journal import JournalLevel, OutcomeRow, RegisterRow, RowKind, SegmentRow
from timerd_spark.source.left_out import CODE, LeftOut

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

FRAGMENT: Final = -1  # the kind of a packed row that is one row of a registration
FACTS: Final = -2  # the kind of a packed row with facts about an arena in a batch
# The columns of the events view that an audit needs.
NAMED: Final = ("host", "incarnation", "row", "bytes")  # never null
COLUMNS: Final = (*NAMED, "purgatory", "key", "owner", "group", "id")
# The columns of packed rows. `kind` is a RowKind, FRAGMENT or FACTS. Registrations, outcomes, actions, groups and
# fragments have an `operation`. `names` has all keys of a registration with several.
PACKED: Final = (
    "host string, incarnation string, row bigint, kind int, operation bigint, purgatory string, key string, "
    "owner string, `group` string, id string, names binary, bytes binary"
)
OF_REGISTRATIONS: Final = tuple(int(kind) for kind in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY))
_REGISTER, _REGISTERED, _KEY = OF_REGISTRATIONS
_OF_OPERATIONS: Final = tuple(int(kind) for kind in (RowKind.OUTCOME, RowKind.ACTION, RowKind.GROUP))
NEVER: Final = (1 << 63) - 1
TEXTS: Final = ("purgatory", "key", "owner", "group", "id")
NUMBER_AT: Final = offset_of(OutcomeRow, "operation")  # in all rows of operations; event rows have their sequence there
_KEYS_AT: Final = offset_of(RegisterRow, "keys")


class Fragment(NamedTuple):
    """One row of a registration. All rows of a registration have the same `of`: host, incarnation and operation."""

    of: tuple[str, str, int]
    row: int
    kind: int
    data: bytes
    texts: tuple[str | None, ...]  # as TEXTS


# packing --------------------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """The extent and the counts of an arena's journal, or of a part of it."""

    oldest: int  # row number
    newest: int
    end: int = -1  # the row number of the newest END row; -1 if there is none
    outcomes: int = 0
    segments: int = 0
    gaps: int = 0  # times in which the journal was not written
    first_gap: int = NEVER  # the first GAP row
    left_out: tuple[tuple[int, int, str], ...] = ()  # rows that the query left out: the first, their number, why
    others: int = 0  # ACTION and GROUP rows
    fragments: int = 0
    bound: int = 0  # registrations with an id or with several keys, whose keys may depend on each other
    events: int = 0
    first: int = NEVER  # the lowest and the highest number of an event
    last: int = 0
    first_event: int = -1  # the row numbers of the first and the last event
    last_event: int = -1
    fall: int = NEVER  # the first row of an event whose number is not above the number of the event before it
    apart: int = NEVER  # the first REGISTERED or KEY row that directly follows a row that is of no registration
    lacks: str = ""  # "events": a segment is not of this level; "columns": a segment is of an older version

    def with_more(self, more: Facts) -> Facts:
        """These facts together with those of another part, whose events come later or lie among these."""
        falls = 0 <= self.last_event < more.first_event and more.first <= self.last
        return Facts(
            oldest=min(self.oldest, more.oldest),
            newest=max(self.newest, more.newest),
            end=max(self.end, more.end),
            outcomes=self.outcomes + more.outcomes,
            segments=self.segments + more.segments,
            gaps=self.gaps + more.gaps,
            first_gap=min(self.first_gap, more.first_gap),
            left_out=self.left_out + more.left_out,
            others=self.others + more.others,
            fragments=self.fragments + more.fragments,
            bound=self.bound + more.bound,
            events=self.events + more.events,
            first=min(self.first, more.first),
            last=max(self.last, more.last),
            first_event=self.first_event if self.events else more.first_event,
            last_event=max(self.last_event, more.last_event),
            fall=min(self.fall, more.fall, more.first_event if falls else NEVER),
            apart=min(self.apart, more.apart),
            lacks=max(self.lacks, more.lacks),
        )

    @property
    def lost_events(self) -> int:
        """How many events are missing between the first and the last one, by their numbers."""
        return self.last - self.first + 1 - self.events if self.events else 0

    @property
    def complete_to(self) -> int:
        """The last row up to which no row is missing; -1: there is none, or it is not known where rows are missing."""
        if self.lost_events and not self.left_out and not self.gaps:
            return -1
        return min(self.newest + 1, self.first_gap, *(first for first, *_ in self.left_out)) - 1


def pack(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Pack rows of the events view: batches with the columns PACKED. Raises InvalidValueError for a null in NAMED."""
    import numpy as np
    import pyarrow as pa

    from .audit_plain import lines_of

    joiner = Joiner()
    for batch in batches:
        for name in NAMED:
            if batch[name].null_count:
                raise InvalidValueError(f"audit(): column {name!r} has a null: the events view has none in it")
        lines = lines_of(batch["bytes"])
        is_left_out = lines[:, 0] == CODE
        if is_left_out.any():
            yield batch_of(PACKED, list(_left_out(batch.filter(pa.array(is_left_out)))))
            batch, lines = batch.filter(pa.array(~is_left_out)), lines[~is_left_out]
        if not len(lines):
            continue
        kinds = lines[:, 0]
        is_part = np.isin(kinds, OF_REGISTRATIONS)
        yield batch_of(PACKED, list(_facts(batch, lines, is_part)))
        yield _packed(batch, lines, np.flatnonzero(~is_part))
        parts = np.flatnonzero(is_part)
        first = _whole(batch, lines, parts)
        if len(first):
            yield _packed_registrations(batch, lines, parts, first)
        taken = np.zeros(len(parts), bool)
        for at in range(3):
            taken[first + at] = True
        for begin, end in _runs(~taken):
            if begin > 0:
                joiner.end()  # a complete registration lies between these fragments and earlier ones
            joiner.take(_fragments(batch, lines, parts[begin:end]))
            if end < len(parts):
                joiner.end()
        if len(parts) and taken[0]:
            joiner.end()
        yield from joiner.packed(left=_packed_fragment)
    joiner.end()
    yield from joiner.packed(left=_packed_fragment)
    yield batch_of(PACKED, [_packed_facts(*each) for each in joiner.left_over.items()])


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of True."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _whole(batch: pyarrow.RecordBatch, lines: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The places, among the rows of registrations, at which a registration with one key (three rows) begins."""
    import numpy as np
    import pyarrow.compute as pc

    from .audit_plain import numbers_at

    if len(parts) < 3:
        return np.empty(0, np.int64)
    kinds, operations = lines[parts, 0], numbers_at(lines[parts], NUMBER_AT)
    begins = (kinds[:-2] == _REGISTER) & (kinds[1:-1] == _REGISTERED) & (kinds[2:] == _KEY)
    begins &= (lines[parts[:-2], _KEYS_AT] == 1) & (operations[:-2] == operations[1:-1])
    begins &= operations[:-2] == operations[2:]
    for name in ("host", "incarnation"):
        column = batch[name]
        if len(pc.unique(column)) > 1:
            codes = column.dictionary_encode().indices.to_numpy()[parts]
            begins &= (codes[:-2] == codes[1:-1]) & (codes[:-2] == codes[2:])
    return np.flatnonzero(begins)


def _packed_registrations(
    batch: pyarrow.RecordBatch, lines: np.ndarray, parts: np.ndarray, first: np.ndarray
) -> pyarrow.RecordBatch:
    """A row for each registration with one key. Its second row has purgatory, owner and id, its third row the key."""
    import numpy as np
    import pyarrow as pa

    one, two, three = (parts[first + at] for at in range(3))
    data = np.hstack([lines[one], lines[two], lines[three]])
    texts = {name: batch[name].take(pa.array(three if name == "key" else two)) for name in TEXTS}
    return _packed_batch(batch, one, lines, data, texts)


def _packed(batch: pyarrow.RecordBatch, lines: np.ndarray, at: np.ndarray) -> pyarrow.RecordBatch:
    """The rows at these places, which are not of registrations."""
    import pyarrow as pa

    index = pa.array(at)
    return _packed_batch(batch, at, lines, lines[at], {name: batch[name].take(index) for name in TEXTS})


def _packed_batch(
    batch: pyarrow.RecordBatch,
    at: np.ndarray,
    lines: np.ndarray,
    data: np.ndarray,
    texts: dict[str, pyarrow.Array],
) -> pyarrow.RecordBatch:
    """Packed rows, whose row numbers and operations are those of the rows `at`."""
    import numpy as np
    import pyarrow as pa

    from .audit_plain import numbers_at

    index, count = pa.array(at), len(at)
    kinds, numbers = lines[at, 0], numbers_at(lines[at], NUMBER_AT)
    of_operation = np.isin(kinds, (*_OF_OPERATIONS, _REGISTER))
    ends = np.arange(count + 1, dtype=np.int32) * data.shape[1]
    packed = pa.BinaryArray.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(data))]
    )
    columns = [
        *(batch[name].take(index) for name in ("host", "incarnation", "row")),
        pa.array(kinds.astype(np.int32)),
        pa.array(numbers, mask=~of_operation),
        *(texts[name] for name in TEXTS),
        pa.nulls(count, pa.binary()),
        packed,
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema_of(PACKED).names)


def _facts(batch: pyarrow.RecordBatch, lines: np.ndarray, is_part: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """A packed row with the Facts of each arena of a batch."""
    import numpy as np

    from .audit_plain import numbers_at

    kinds, numbers, rows = lines[:, 0], numbers_at(lines, NUMBER_AT), batch["row"].to_numpy()
    has_id = ~batch["id"].is_null().to_numpy(zero_copy_only=False)
    follows = np.diff(rows, prepend=-1) == 1
    follows[1:] &= is_part[1:] & (kinds[1:] != _REGISTER) & ~is_part[:-1]
    follows[0] = False
    hosts, incarnations = (batch[name].dictionary_encode() for name in ("host", "incarnation"))
    arenas = hosts.indices.to_numpy().astype(np.int64) << 32 | incarnations.indices.to_numpy()
    for arena in np.unique(arenas).tolist():
        mine = arenas == arena

        def count(*kinds_of: RowKind, mine: np.ndarray = mine) -> int:
            return int((mine & np.isin(kinds, [int(each) for each in kinds_of])).sum())

        gaps = rows[mine & (kinds == RowKind.GAP)]
        ends, at = rows[mine & (kinds == RowKind.END)], np.flatnonzero(mine & (kinds == RowKind.EVENT))
        at = at[np.argsort(rows[at], kind="stable")]
        events, falls = numbers[at], rows[at[1:]][np.diff(numbers[at]) <= 0]
        is_bound = (kinds == _REGISTER) & (lines[:, _KEYS_AT] != 1) | (kinds == _REGISTERED) & has_id
        facts = Facts(
            oldest=int(rows[mine].min()),
            newest=int(rows[mine].max()),
            end=int(ends.max(initial=-1)),
            outcomes=count(RowKind.OUTCOME),
            segments=count(RowKind.SEGMENT),
            gaps=len(gaps),
            first_gap=int(gaps.min(initial=NEVER)),
            others=count(RowKind.ACTION, RowKind.GROUP),
            bound=int((mine & is_bound).sum()),
            apart=int(rows[mine & follows].min(initial=NEVER)),
            lacks=max((_lacks(line) for line in lines[mine & (kinds == RowKind.SEGMENT)]), default=""),
        )
        if len(events):
            facts = facts._replace(
                events=len(events),
                first=int(events.min()),
                last=int(events.max()),
                first_event=int(rows[at[0]]),
                last_event=int(rows[at[-1]]),
                fall=int(falls.min(initial=NEVER)),
            )
        names = hosts.dictionary[arena >> 32].as_py(), incarnations.dictionary[arena & 0xFFFF_FFFF].as_py()
        yield _packed_facts(names, facts)


def _left_out(batch: pyarrow.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """A packed row with Facts for each row of the view that stands for rows which were left out."""
    for row in batch.select(["host", "incarnation", "bytes"]).to_pylist():
        one = LeftOut.of(row["bytes"])
        facts = Facts(oldest=NEVER, newest=-1, left_out=((one.row, one.rows, str(one)),))
        yield _packed_facts((row["host"], row["incarnation"]), facts)


def _packed_facts(of: tuple[str, str], facts: Facts) -> tuple[Any, ...]:
    return (*of, facts.oldest, FACTS, *[None] * 7, marshal.dumps(tuple(facts)))


def _lacks(line: np.ndarray) -> str:
    row = SegmentRow._make(struct_of(SegmentRow).unpack(line.tobytes()))
    if row.start == 0:  # an older version, without this field
        return "columns"
    return "" if row.level == JournalLevel.EVENTS else "events"


def _fragments(batch: pyarrow.RecordBatch, lines: np.ndarray, at: np.ndarray) -> Iterator[Fragment]:
    import pyarrow as pa

    from .audit_plain import numbers_at

    some = batch.take(pa.array(at))
    operations = numbers_at(lines[at], NUMBER_AT).tolist()
    of = zip(some["host"].to_pylist(), some["incarnation"].to_pylist(), operations, strict=True)
    texts = zip(*(some[name].to_pylist() for name in TEXTS), strict=True)
    columns = (of, some["row"].to_pylist(), lines[at, 0].tolist(), some["bytes"].to_pylist(), texts)
    return (Fragment(*each) for each in zip(*columns, strict=True))


def join_fragments(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Join fragments, which come sorted by operation and row, into packed registrations."""
    joiner = Joiner()
    for batch in batches:
        of = zip(*(batch[name].to_pylist() for name in ("host", "incarnation", "operation")), strict=True)
        texts = zip(*(batch[name].to_pylist() for name in TEXTS), strict=True)
        data = batch["bytes"].to_pylist()
        kinds = [each[0] for each in data]
        columns = (of, batch["row"].to_pylist(), kinds, data, texts)
        joiner.take(Fragment(*each) for each in zip(*columns, strict=True))
        yield from joiner.packed(left=_incomplete)
    joiner.end()
    yield from joiner.packed(left=_incomplete)


class Joiner:
    """Joins neighbouring fragments to registrations. Fragments of incomplete registrations are left over."""

    def __init__(self) -> None:
        self._held: list[Fragment] = []
        self._whole: list[list[Fragment]] = []
        self._left: list[Fragment] = []
        self.left_over: dict[tuple[str, str], Facts] = {}  # by arena: facts of the fragments that packed() left over

    def take(self, fragments: Iterable[Fragment]) -> None:
        held = self._held
        for fragment in fragments:
            if fragment.kind == _REGISTER:
                self._left += held
                held = [fragment]
            elif held and held[0].of == fragment.of and fragment.kind == (_REGISTERED if len(held) == 1 else _KEY):
                held.append(fragment)
                if fragment.kind == _KEY and len(held) == 2 + held[0].data[_KEYS_AT]:
                    self._whole.append(held)
                    held = []
            else:
                self._left += [*held, fragment]
                held = []
        self._held = held

    def end(self) -> None:
        """End a run of fragments: the fragments that are still held are left over."""
        self._left += self._held
        self._held = []

    def packed(self, left: Callable[[Fragment], tuple[Any, ...]]) -> Iterator[pyarrow.RecordBatch]:
        """A batch of the registrations joined since the last call, and of the left-over fragments, packed by `left`."""
        rows = [_packed_registration(fragments) for fragments in self._whole]
        rows += [left(fragment) for fragment in self._left]
        for of, row, *_ in self._left:
            one = Facts(row, row, fragments=1)
            before = self.left_over.get(of[:2])
            self.left_over[of[:2]] = before.with_more(one) if before else one
        self._whole, self._left = [], []
        if rows:
            yield batch_of(PACKED, rows)


def _packed_registration(fragments: Sequence[Fragment]) -> tuple[Any, ...]:
    (first, second, *others) = fragments
    purgatory, _, owner, group, id_ = second.texts
    names = [fragment.texts[1] for fragment in others]
    more = marshal.dumps(names) if len(names) > 1 else None
    data = b"".join(fragment.data for fragment in fragments)
    return (*first.of[:2], first.row, _REGISTER, first.of[2], purgatory, names[0], owner, group, id_, more, data)


def facts_of(packed: Iterable[tuple[str, str, bytes]]) -> dict[tuple[str, str], Facts]:
    """The facts of each arena, from the packed rows of the arena's parts, which may come in any order."""
    parts = [(of, Facts(*marshal.loads(data))) for *of, data in packed]
    found: dict[tuple[str, str], Facts] = {}
    for (host, incarnation), part in sorted(parts, key=lambda one: one[1].first_event):
        before = found.get((host, incarnation))
        found[host, incarnation] = before.with_more(part) if before else part
    return found


def _packed_fragment(fragment: Fragment) -> tuple[Any, ...]:
    of, row, _, data, texts = fragment
    return (*of[:2], row, FRAGMENT, of[2], *texts, None, data)


def _incomplete(fragment: Fragment) -> tuple[Any, ...]:
    """A registration of one row, which audited() reports as incomplete."""
    of, row, _, data, _ = fragment
    return (*of[:2], row, _REGISTER, of[2], None, None, None, None, None, None, data)


def schema_of(ddl: str) -> pyarrow.Schema:
    """The Arrow schema of columns that are given as Spark's DDL."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
    }
    columns = (column.split() for column in ddl.split(", "))
    return pa.schema([(name.strip("`"), types[kind]) for name, kind in columns])


def batch_of(ddl: str, rows: Sequence[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    """A batch with these rows."""
    import pyarrow as pa

    schema = schema_of(ddl)
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
