"""The tasks of an audit. A task audits a bucket: the parcels (audit_parcels.py) of some of the keys.

Rows that audit_plain.py does not accept go to an Audit, one for each arena.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from timerd_client.audit.audit import Audit
from timerd_client.audit.records import APART, Finding, Owner, registration_of
from timerd_shm.declare.fields import struct_of
from timerd_shm.declare.journal import ROW_SIZE, ROWS, RowKind

from .audit_parcels import FINDINGS, OF_ALL, op_id, opened
from .audit_rows import OF_REGISTRATIONS, TEXTS, batch_of

if TYPE_CHECKING:
    import pyarrow

HELD_MAX: Final = 3_000_000  # rows of a task: some 900 MB


def audited(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Audit the parcels of a bucket, sorted by arena and first row: an Audit for each arena. Yields FINDINGS."""
    found: list[tuple[str, str, int, str | None, str, bool]] = []
    task: Task | None = None
    for parcel, rows in opened(batches):
        of = (parcel["host"], parcel["incarnation"])
        if task is None or task.of != of:
            found += task.findings() if task else ()
            task = Task(of, is_first=parcel["bucket"] == 0)
        task.take(rows)
    found += task.findings() if task else ()
    yield batch_of(FINDINGS, found)


class Task:
    """The rows of one arena in a bucket.

    Rows that audit_plain.py accepts do not go to the Audit. If a bucket has no other rows of its own, it needs no
    Audit, except the first bucket, which checks the rows that all buckets have. If a task gets more rows than HELD_MAX,
    it passes all rows to the Audit, and holds only the newest.
    """

    def __init__(self, of: tuple[str, str], *, is_first: bool) -> None:
        self.of, self._is_first = of, is_first
        self._held: list[pyarrow.RecordBatch] = []
        self._rows = 0  # the number of held rows
        self._is_large = False
        self._audit = Audit(whole=False)
        self._handlers = _handlers(self._audit)

    def take(self, rows: pyarrow.RecordBatch) -> None:
        """Take more rows of the arena, sorted. The first row is not before the first row of an earlier call."""
        if self._rows > HELD_MAX:
            self._is_large = True
            self._release(rows["row"][0].as_py())
        self._held.append(rows)
        self._rows += rows.num_rows

    def findings(self) -> Iterator[tuple[str, str, int, str | None, str, bool]]:
        """The findings of all rows. Called after the last row."""
        if self._is_large or self._is_needed():
            self._release(None)
            host, incarnation = self.of
            wrong, causes = self._audit.finish(), self._audit.findings.causes
            for finding in wrong:
                row, operation, what = finding
                id_ = op_id(incarnation, operation) if operation else None
                yield host, incarnation, row, id_, what, finding in causes

    def _sorted(self) -> pyarrow.Table:
        """All held rows, in order."""
        import numpy as np
        import pyarrow as pa

        rows = pa.Table.from_batches(self._held)
        return rows.take(pa.array(np.argsort(rows["row"].to_numpy(), kind="stable"))).combine_chunks()

    def _is_needed(self) -> bool:
        """Whether some rows need the Audit. Drops the rows that do not need it."""
        import numpy as np
        import pyarrow as pa

        from .audit_plain import accepted

        rows = self._sorted()
        left = ~accepted(rows)
        self._held = rows.filter(pa.array(left)).to_batches()
        is_own = ~np.isin(rows["kind"].to_numpy(), [int(kind) for kind in OF_ALL])
        return self._is_first or bool((left & is_own).any())

    def _release(self, before: int | None) -> None:
        """Pass held rows to the Audit: all, or those before row `before` if more rows may come from that row on."""
        if not self._held:
            return
        rows = self._sorted()
        count = rows.num_rows if before is None else int(rows["row"].to_numpy().searchsorted(before))
        self._held, self._rows = rows.slice(count).to_batches(), rows.num_rows - count
        columns = (rows[name].slice(0, count).to_pylist() for name in ("kind", "row", "bytes", *TEXTS, "names"))
        for kind, row, data, *texts in zip(*columns, strict=True):
            if kind in self._handlers:
                self._handlers[kind](row, data, *texts)
            else:
                what = f"its kind is {kind}, which no row of the events view has"
                self._audit.wrong.append(Finding(row, 0, what))


def _owner(owner: str | None, group: str | None) -> Owner:
    return (owner, False) if owner is not None else (group, True) if group is not None else None


def _record_of(kind: RowKind) -> Callable[[bytes], Any]:
    """The function that makes a row of this kind from its bytes."""
    unpack, record, new = struct_of(ROWS[kind]).unpack, ROWS[kind], tuple.__new__
    return lambda data: new(record, unpack(data))


def _handlers(audit: Audit) -> dict[int, Callable[..., None]]:
    """For each kind of row a function that passes the row, with its texts, to the audit."""
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
    } | {OF_REGISTRATIONS[0]: register}
