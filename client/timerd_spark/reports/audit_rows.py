"""The work of an audit's tasks on rows: pack() makes them few, and audited() gives them to Audits.

A registration is three or more neighbouring rows of a journal: REGISTER, REGISTERED, and a KEY row for each key. pack()
makes one row of them, with the bytes of all. If a part of the journal ends between them, pack() leaves fragments, and
join_fragments() puts these together after Spark has sorted them. The bytes of a row have its numbers. The other columns
are its texts, and what Spark groups by.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from timerd_client.audit.audit import Audit
from timerd_client.audit.records import APART, Finding, Owner, registration_of
from timerd_shm.declare.fields import offset_of, struct_of
from timerd_shm.declare.journal import ROW_SIZE, ROWS, JournalLevel, OutcomeRow, RegisterRow, RowKind, SegmentRow

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

FRAGMENT: Final = -1  # the kind of a packed row that is one row of a registration
FACTS: Final = -2  # the kind of a packed row that says what a batch had of an arena
# The columns of the events view that an audit needs.
COLUMNS: Final = ("host", "incarnation", "row", "bytes", "purgatory", "key", "owner", "group", "id")
# The columns of packed rows. `kind` is a RowKind. `operation` is of registrations, outcomes, actions, groups and
# fragments, `names` of registrations with several keys: all of them.
PACKED: Final = (
    "host string, incarnation string, row bigint, kind int, operation bigint, purgatory string, key string, "
    "owner string, `group` string, id string, names binary, bytes binary"
)
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string"
HELD_MAX: Final = 3_000_000  # rows of a task: some 900 MB
# Kinds of rows that each task has.
OF_ALL: Final = (RowKind.CLIENT, RowKind.SEGMENT, RowKind.TURN, RowKind.ANCHOR, RowKind.GAP, RowKind.END)
OF_REGISTRATIONS: Final = tuple(int(kind) for kind in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.KEY))
_REGISTER, _REGISTERED, _KEY = OF_REGISTRATIONS
_OF_OPERATIONS: Final = tuple(int(kind) for kind in (RowKind.OUTCOME, RowKind.ACTION, RowKind.GROUP))
_TEXTS: Final = ("purgatory", "key", "owner", "group", "id")
_WORD: Final = (1 << 64) - 1
NUMBER_AT: Final = offset_of(OutcomeRow, "operation")  # in all rows of operations; an event has its sequence there
_KEYS_AT: Final = offset_of(RegisterRow, "keys")


class Fragment(NamedTuple):
    """One row of a registration. All rows of a registration have the same `of`: host, incarnation and operation."""

    of: tuple[str, str, int]
    row: int
    kind: int
    data: bytes
    texts: tuple[str | None, ...]  # as _TEXTS


# packing --------------------------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What there is of an arena in a part of its journal, or in all of it."""

    oldest: int  # row
    newest: int
    end: int = -1  # the row of the newest END row; -1: none
    outcomes: int = 0
    segments: int = 0
    others: int = 0  # ACTION and GROUP rows
    fragments: int = 0
    bound: int = 0  # registrations with an id or with several keys, whose keys may depend on each other
    events: int = 0
    first: int = (1 << 63) - 1  # the numbers of its events
    last: int = 0
    lacks: str = ""  # a segment is not of level "events", or is of an older version, and lacks "columns"

    def with_more(self, more: Facts) -> Facts:
        """These facts and those of another part."""
        return Facts(
            oldest=min(self.oldest, more.oldest),
            newest=max(self.newest, more.newest),
            end=max(self.end, more.end),
            outcomes=self.outcomes + more.outcomes,
            segments=self.segments + more.segments,
            others=self.others + more.others,
            fragments=self.fragments + more.fragments,
            bound=self.bound + more.bound,
            events=self.events + more.events,
            first=min(self.first, more.first),
            last=max(self.last, more.last),
            lacks=max(self.lacks, more.lacks),
        )


def pack(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Pack rows of the events view: batches with the columns PACKED."""
    import numpy as np

    from .audit_plain import lines_of

    joiner = Joiner()
    for batch in batches:
        lines = lines_of(batch["bytes"])
        if not len(lines):
            continue
        kinds = lines[:, 0]
        yield _batch(PACKED, list(_facts(batch, lines)))
        is_part = np.isin(kinds, OF_REGISTRATIONS)
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
                joiner.end()  # a whole one is between
            joiner.take(_fragments(batch, lines, parts[begin:end]))
            if end < len(parts):
                joiner.end()
        if len(parts) and taken[0]:
            joiner.end()
        yield from joiner.packed(left=_packed_fragment)
    joiner.end()
    yield from joiner.packed(left=_packed_fragment)
    yield _batch(PACKED, [_packed_facts(*each) for each in joiner.left_over.items()])


def _runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of True."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _whole(batch: pyarrow.RecordBatch, lines: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Where, among the rows of registrations, the three rows of one with one key begin."""
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
    """A row for each registration with one key: the second row names its purgatory, owner and id, the third its key."""
    import numpy as np
    import pyarrow as pa

    one, two, three = (parts[first + at] for at in range(3))
    data = np.hstack([lines[one], lines[two], lines[three]])
    texts = {name: batch[name].take(pa.array(three if name == "key" else two)) for name in _TEXTS}
    return _batch_of(batch, one, lines, data, texts)


def _packed(batch: pyarrow.RecordBatch, lines: np.ndarray, at: np.ndarray) -> pyarrow.RecordBatch:
    """The rows at these places, which are not of registrations."""
    import pyarrow as pa

    index = pa.array(at)
    return _batch_of(batch, at, lines, lines[at], {name: batch[name].take(index) for name in _TEXTS})


def _batch_of(
    batch: pyarrow.RecordBatch,
    at: np.ndarray,
    lines: np.ndarray,
    data: np.ndarray,
    texts: dict[str, pyarrow.Array],
) -> pyarrow.RecordBatch:
    """Packed rows: positions and numbers are those of the rows `at`."""
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
        *(texts[name] for name in _TEXTS),
        pa.nulls(count, pa.binary()),
        packed,
    ]
    return pa.RecordBatch.from_arrays(columns, names=_names(PACKED))


def _facts(batch: pyarrow.RecordBatch, lines: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """A packed row for each arena of a batch: its Facts."""
    import numpy as np

    from .audit_plain import numbers_at

    kinds, numbers, rows = lines[:, 0], numbers_at(lines, NUMBER_AT), batch["row"].to_numpy()
    has_id = ~batch["id"].is_null().to_numpy(zero_copy_only=False)
    hosts, incarnations = (batch[name].dictionary_encode() for name in ("host", "incarnation"))
    arenas = hosts.indices.to_numpy().astype(np.int64) << 32 | incarnations.indices.to_numpy()
    for arena in np.unique(arenas).tolist():
        mine = arenas == arena

        def count(*kinds_of: RowKind, mine: np.ndarray = mine) -> int:
            return int((mine & np.isin(kinds, [int(each) for each in kinds_of])).sum())

        ends, events = rows[mine & (kinds == RowKind.END)], numbers[mine & (kinds == RowKind.EVENT)]
        is_bound = (kinds == _REGISTER) & (lines[:, _KEYS_AT] != 1) | (kinds == _REGISTERED) & has_id
        facts = Facts(
            oldest=int(rows[mine].min()),
            newest=int(rows[mine].max()),
            end=int(ends.max(initial=-1)),
            outcomes=count(RowKind.OUTCOME),
            segments=count(RowKind.SEGMENT),
            others=count(RowKind.ACTION, RowKind.GROUP),
            bound=int((mine & is_bound).sum()),
            lacks=max((_lacks(line) for line in lines[mine & (kinds == RowKind.SEGMENT)]), default=""),
        )
        if len(events):
            facts = facts._replace(events=len(events), first=int(events.min()), last=int(events.max()))
        names = hosts.dictionary[arena >> 32].as_py(), incarnations.dictionary[arena & 0xFFFF_FFFF].as_py()
        yield _packed_facts(names, facts)


def _packed_facts(of: tuple[str, str], facts: Facts) -> tuple[Any, ...]:
    return (*of, facts.oldest, FACTS, *[None] * 7, marshal.dumps(tuple(facts)))


def _lacks(line: np.ndarray) -> str:
    row = SegmentRow._make(struct_of(SegmentRow).unpack(line.tobytes()))
    if row.start == 0:  # its field is newer
        return "columns"
    return "" if row.level == JournalLevel.EVENTS else "events"


def _fragments(batch: pyarrow.RecordBatch, lines: np.ndarray, at: np.ndarray) -> Iterator[Fragment]:
    import pyarrow as pa

    from .audit_plain import numbers_at

    some = batch.take(pa.array(at))
    operations = numbers_at(lines[at], NUMBER_AT).tolist()
    of = zip(some["host"].to_pylist(), some["incarnation"].to_pylist(), operations, strict=True)
    texts = zip(*(some[name].to_pylist() for name in _TEXTS), strict=True)
    columns = (of, some["row"].to_pylist(), lines[at, 0].tolist(), some["bytes"].to_pylist(), texts)
    return (Fragment(*each) for each in zip(*columns, strict=True))


def join_fragments(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Join fragments, which come sorted by operation and row, into packed registrations."""
    joiner = Joiner()
    for batch in batches:
        of = zip(*(batch[name].to_pylist() for name in ("host", "incarnation", "operation")), strict=True)
        texts = zip(*(batch[name].to_pylist() for name in _TEXTS), strict=True)
        data = batch["bytes"].to_pylist()
        kinds = [each[0] for each in data]
        columns = (of, batch["row"].to_pylist(), kinds, data, texts)
        joiner.take(Fragment(*each) for each in zip(*columns, strict=True))
        yield from joiner.packed(left=_incomplete)
    joiner.end()
    yield from joiner.packed(left=_incomplete)


class Joiner:
    """Joins neighbouring fragments to registrations. Fragments that have no complete registration are left over."""

    def __init__(self) -> None:
        self._held: list[Fragment] = []
        self._whole: list[list[Fragment]] = []
        self._left: list[Fragment] = []
        self.left_over: dict[tuple[str, str], Facts] = {}  # of the fragments that packed() has given, by arena

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
        """Say that no more fragments come: those that are held are left over."""
        self._left += self._held
        self._held = []

    def packed(self, left: Callable[[Fragment], tuple[Any, ...]]) -> Iterator[pyarrow.RecordBatch]:
        """A batch of the registrations joined since the last call, and of the fragments left over, packed by `left`."""
        rows = [_packed_registration(fragments) for fragments in self._whole]
        rows += [left(fragment) for fragment in self._left]
        for of, row, *_ in self._left:
            one = Facts(row, row, fragments=1)
            before = self.left_over.get(of[:2])
            self.left_over[of[:2]] = before.with_more(one) if before else one
        self._whole, self._left = [], []
        if rows:
            yield _batch(PACKED, rows)


def _packed_registration(fragments: Sequence[Fragment]) -> tuple[Any, ...]:
    (first, second, *others) = fragments
    purgatory, _, owner, group, id_ = second.texts
    names = [fragment.texts[1] for fragment in others]
    more = marshal.dumps(names) if len(names) > 1 else None
    data = b"".join(fragment.data for fragment in fragments)
    return (*first.of[:2], first.row, _REGISTER, first.of[2], purgatory, names[0], owner, group, id_, more, data)


def facts_of(packed: bytes) -> Facts:
    """The facts in a packed row."""
    return Facts(*marshal.loads(packed))


def _packed_fragment(fragment: Fragment) -> tuple[Any, ...]:
    of, row, _, data, texts = fragment
    return (*of[:2], row, FRAGMENT, of[2], *texts, None, data)


def _incomplete(fragment: Fragment) -> tuple[Any, ...]:
    """A registration of one row, which audited() reports as incomplete."""
    of, row, _, data, _ = fragment
    return (*of[:2], row, _REGISTER, of[2], None, None, None, None, None, None, data)


def _names(ddl: str) -> list[str]:
    return [field.split()[0].strip("`") for field in ddl.split(", ")]


def _batch(ddl: str, rows: Sequence[tuple[Any, ...]]) -> pyarrow.RecordBatch:
    import pyarrow as pa

    types = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32(), "binary": pa.binary()}
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(_names(ddl))
    kinds = [types[field.split()[1]] for field in ddl.split(", ")]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=_names(ddl))


# auditing -------------------------------------------------------------------------------------------------------------


def audited(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Audit the packed rows of a bucket, sorted by arena and row: an Audit for each arena. Yields FINDINGS."""
    found: list[tuple[str, str, int, str | None, str]] = []
    task: Task | None = None
    for batch in batches:
        for of, rows in _arenas(batch):
            if task is None or task.of != of:
                found += task.findings() if task else ()
                task = Task(of, is_first=rows["bucket"][0].as_py() == 0)
            task.take(rows)
    found += task.findings() if task else ()
    yield _batch(FINDINGS, found)


def _arenas(batch: pyarrow.RecordBatch) -> Iterator[tuple[tuple[str, str], pyarrow.RecordBatch]]:
    """((host, incarnation), rows) of each arena of a batch that is sorted by arena."""
    import numpy as np

    if batch.num_rows == 0:
        return
    changes = np.zeros(batch.num_rows - 1, bool)
    for name in ("host", "incarnation"):
        codes = batch[name].dictionary_encode().indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for first, end in pairwise(edges):
        rows = batch.slice(first, end - first)
        yield (rows["host"][0].as_py(), rows["incarnation"][0].as_py()), rows


class Task:
    """The rows of one arena in a bucket.

    What audit_plain.py accepts is not given to an Audit. If nothing else is there, the first bucket alone looks at the
    rows that all buckets have. Of more rows than HELD_MAX, none is held: the Audit gets all of them as they come.
    """

    def __init__(self, of: tuple[str, str], *, is_first: bool) -> None:
        self.of, self._is_first = of, is_first
        self._held: list[pyarrow.RecordBatch] = []
        self._rows = 0
        self._audit = Audit(whole=False)
        self._handlers = _handlers(self._audit)

    def take(self, rows: pyarrow.RecordBatch) -> None:
        """The next rows of the arena."""
        self._held.append(rows)
        self._rows += rows.num_rows
        if self._rows > HELD_MAX:
            self._release()

    def findings(self) -> Iterator[tuple[str, str, int, str | None, str]]:
        """What is wrong, as no row comes any more."""
        if self._rows > HELD_MAX or self._is_needed():
            self._release()
            host, incarnation = self.of
            for row, operation, what in self._audit.finish():
                op_id = f"{incarnation}-{operation & _WORD:016x}" if operation else None
                yield host, incarnation, row, op_id, what

    def _is_needed(self) -> bool:
        """Whether there is something that the Audit has to see. What it need not see is not held any more."""
        import numpy as np
        import pyarrow as pa

        from .audit_plain import accepted

        rows = pa.Table.from_batches(self._held).combine_chunks()
        left = ~accepted(rows)
        self._held = rows.filter(pa.array(left)).to_batches()
        is_own = ~np.isin(rows["kind"].to_numpy(), [int(kind) for kind in OF_ALL])
        return self._is_first or bool((left & is_own).any())

    def _release(self) -> None:
        """Give the held rows to the Audit."""
        held, self._held = self._held, []
        for rows in held:
            columns = (rows[name].to_pylist() for name in ("kind", "row", "bytes", *_TEXTS, "names"))
            for kind, row, data, *texts in zip(*columns, strict=True):
                if kind in self._handlers:
                    self._handlers[kind](row, data, *texts)
                else:
                    what = f"it is of kind {kind}, which no row of the events view has"
                    self._audit.wrong.append(Finding(row, 0, what))


def _owner(owner: str | None, group: str | None) -> Owner:
    return (owner, False) if owner is not None else (group, True) if group is not None else None


def _record_of(kind: RowKind) -> Callable[[bytes], Any]:
    """What makes the row of a kind from its bytes."""
    unpack, record, new = struct_of(ROWS[kind]).unpack, ROWS[kind], tuple.__new__
    return lambda data: new(record, unpack(data))


def _handlers(audit: Audit) -> dict[int, Callable[..., None]]:
    """For each kind of row a function that gives the row, with its texts, to the audit."""
    made = {kind: _record_of(kind) for kind in ROWS}
    first, second, key_row = (made[RowKind(kind)] for kind in OF_REGISTRATIONS)

    def register(
        row: int, data: bytes, purgatory: str, key: str, owner: str, group: str, id_: str, names: bytes | None
    ) -> None:
        makes = (first, second, *repeat(key_row, len(data) // ROW_SIZE - 2))
        rows = [
            make(data[at * ROW_SIZE : (at + 1) * ROW_SIZE]) for at, make in enumerate(makes[: len(data) // ROW_SIZE])
        ]
        if len(rows) < 3:
            audit.wrong.append(Finding(row, rows[0].operation, "its registration lacks rows"))
            return
        texts = marshal.loads(names) if names else [key]
        found, fits = registration_of(row, rows, texts, _owner(owner, group), purgatory, id_)
        if not fits:
            audit.wrong.append(Finding(row, found.operation, APART))
        audit.registration(found)

    def of(kind: RowKind, give: Callable[..., None]) -> Callable[..., None]:
        make = made[kind]
        return lambda row, data, *texts: give(row, make(data), *texts)

    return {
        int(kind): of(kind, give)
        for kind, give in {
            RowKind.EVENT: lambda row, r, purgatory, key, owner, *_: audit.event(
                row, r, (purgatory, key), _owner(owner, None)
            ),
            RowKind.OUTCOME: lambda row, r, purgatory, key, owner, group, id_, _: audit.outcome(
                row, r, key, _owner(owner, group), purgatory, id_
            ),
            RowKind.ACTION: lambda row, r, purgatory, key, owner, *_: audit.action(row, r, _owner(owner, None)),
            RowKind.GROUP: lambda row, r, purgatory, key, owner, group, *_: audit.group(
                row, r, group, _owner(owner, None)
            ),
            RowKind.CLIENT: lambda row, r, purgatory, key, owner, group, *_: audit.client(
                row, r, _owner(owner, None), group
            ),
            RowKind.WATERMARK: lambda row, r, purgatory, key, *_: audit.watermark(row, r, (purgatory, key)),
            RowKind.SEGMENT: lambda row, r, *_: audit.segment(row, r),
            RowKind.TURN: lambda row, r, *_: audit.turn(row, r),
            RowKind.ANCHOR: lambda row, r, *_: audit.anchor(row, r),
            RowKind.GAP: lambda row, r, *_: audit.gap(row, r),
            RowKind.END: lambda row, r, *_: audit.end(row, r),
        }.items()
    } | {_REGISTER: register}
