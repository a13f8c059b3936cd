"""What waits in a bucket, decoded from the values that Spark's state has of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgpack

from .bucket import operation_of
from .packs import EVENTS, ROWS, rows_of
from .rows import Registration
from .store import SegmentCache, Store

if TYPE_CHECKING:
    import pyarrow as pa

PENDING: Final = (
    "stage int, id string, keys array<string>, at_ns bigint, deadline_ns bigint, satisfied array<int>, "
    "failed array<int>, payload binary, waits_for string"
)


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
    stage = store.note[2] if isinstance(store.note, list) else 0
    found: list[tuple[Any, ...]] = []
    for record in map(msgpack.unpackb, store.all() if stage != 1 else ()):
        if record[0] == ROWS and record[1] != EVENTS:
            found += [_row(stage, each, 0, 0, "order") for each in rows_of(record)]
        elif (op := operation_of(record)) is not None:
            found.append(_row(stage, *op, "event"))
    types = {
        "stage": pa.int32(), "id": pa.string(), "keys": pa.list_(pa.string()), "at_ns": pa.int64(),
        "deadline_ns": pa.int64(), "satisfied": pa.list_(pa.int32()), "failed": pa.list_(pa.int32()),
        "payload": pa.binary(), "waits_for": pa.string(),
    }  # fmt: skip
    columns = zip(*found, strict=True) if found else [()] * len(types)
    return pa.table(
        {name: pa.array(column, type_) for (name, type_), column in zip(types.items(), columns, strict=True)}
    )


def _row(stage: int, r: Registration, satisfied: int, failed: int, waits_for: str) -> tuple[Any, ...]:
    positions = [[n for n in range(len(r.keys)) if bits >> n & 1] for bits in (satisfied, failed)]
    return stage, r.id, [key.name for key in r.keys], r.at_ns, r.deadline_ns, *positions, r.payload, waits_for
