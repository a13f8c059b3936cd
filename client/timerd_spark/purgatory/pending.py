"""The operations that wait in a bucket, decoded from the values that Spark's state has of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgpack

from .bucket import Note, operation_of
from .packs import EVENTS, ROWS, rows_of
from .rows import SEPARATOR, Registration
from .store import SegmentCache, Store

if TYPE_CHECKING:
    import pyarrow as pa

PENDING: Final = (
    "purgatory string, id string, keys array<string>, at_ns bigint, deadline_ns bigint, satisfied array<int>, "
    "failed array<int>, payload binary, waits_for string"
)


LATE: Final = "late_events bigint, late_registrations bigint"


def late_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The counts of buckets, with the columns LATE, from their manifests. (For mapInArrow.)"""
    import pyarrow as pa

    for batch in batches:
        notes = [Note(*msgpack.unpackb(manifest)[0]) for manifest in batch.column(0).to_pylist()]
        own = [0 if note.stage == 1 else note.late_registrations for note in notes]  # not the legs of the first stage
        columns = [[note.late_events for note in notes], own]
        arrays = [pa.array(column, pa.int64()) for column in columns]
        yield pa.RecordBatch.from_arrays(arrays, ["late_events", "late_registrations"])


def pending_of(table: pa.Table) -> pa.Table:
    """The operations of a bucket, with the columns PENDING. `table` has its manifest, and its segments."""
    import pyarrow as pa

    manifest, segments = b"", {}
    for row in table.to_pylist():
        if row["manifest"] is not None:
            manifest = row["manifest"]
        else:
            segments[row["id"]] = row["segment"]
    store = Store(manifest, segments.__getitem__, SegmentCache())
    note = Note(*store.note) if isinstance(store.note, list) else Note()
    found: list[tuple[Any, ...]] = []
    for record in map(msgpack.unpackb, store.all() if note.stage != 1 else ()):
        if record[0] == ROWS and record[1] != EVENTS:
            found += [_row(note, each, 0, 0, "order") for each in rows_of(record)]
        elif (op := operation_of(record)) is not None:
            found.append(_row(note, *op, "event"))
    types = {
        "purgatory": pa.string(), "id": pa.string(), "keys": pa.list_(pa.string()), "at_ns": pa.int64(),
        "deadline_ns": pa.int64(), "satisfied": pa.list_(pa.int32()), "failed": pa.list_(pa.int32()),
        "payload": pa.binary(), "waits_for": pa.string(),
    }  # fmt: skip
    columns = zip(*found, strict=True) if found else [()] * len(types)
    return pa.table(
        {name: pa.array(column, type_) for (name, type_), column in zip(types.items(), columns, strict=True)}
    )


def _row(note: Note, r: Registration, satisfied: int, failed: int, waits_for: str) -> tuple[Any, ...]:
    id_, names, group = r.id, [key.name for key in r.keys], "default"
    if note.stage == 2:  # in two stages each operation has an id: the user's after an i, or one of ours
        id_ = id_[1:] if id_ is not None and id_.startswith("i") else None
    if note.grouped:
        group = names[0].partition(SEPARATOR)[0] if names else ""
        names = [name.partition(SEPARATOR)[2] for name in names]
        id_ = None if id_ is None else id_.partition(SEPARATOR)[2]
    positions = [[n for n in range(len(r.keys)) if bits >> n & 1] for bits in (satisfied, failed)]
    return group, id_, names, r.at_ns, r.deadline_ns, *positions, r.payload, waits_for
