"""Rows that went through packs, from Python or from Arrow, are the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

import msgpack
from spark.purgatory.buckets import MS, program
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.purgatory.packs import (
    COLUMNS,
    EVENTS,
    PACK_MAX,
    REGISTRATIONS,
    ROW_MAX,
    bucket_of,
    leg_of,
    pack,
    packs_of,
    rows_of,
)
from timerd_spark.purgatory.rows import Event, Key, Registration

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[Registration | Event]
BUCKETS = 5


def as_arrow(kind: int, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """The rows as Spark gives them to mapInArrow."""
    import pyarrow as pa

    types = {
        "bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "binary": pa.binary(),
        "array<string>": pa.list_(pa.string()), "array<bigint>": pa.list_(pa.int64()),
    }  # fmt: skip
    fields = [("bucket", "int"), *(part.replace("`", "").split() for part in COLUMNS[kind].split(", "))]
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    arrays = [pa.array(column, types[type_]) for (_, type_), column in zip(fields, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, [name for name, _ in fields])


def through_arrow(rows: Rows, *, two_stages: bool = False) -> Iterator[tuple[int, bool, Any]]:
    """(bucket, onward, row) of each row that comes out of the packs."""
    made = [
        (
            bucket_of(r.keys[0].name, BUCKETS), r.at_ns, r.seq, r.id, [key.name for key in r.keys],
            [key.target for key in r.keys], r.deadline_ns, r.condition, r.needed, r.total, r.payload,
            *(r.mark or (None, None)), r.sender, r.command,
        )
        for r in rows
        if isinstance(r, Registration)
    ]  # fmt: skip
    fired = [(bucket_of(r.key, BUCKETS), *r[:10]) for r in rows if isinstance(r, Event)]
    for kind, some in ((REGISTRATIONS, made), (EVENTS, fired)):
        for batch in pack(kind, BUCKETS, two_stages, [as_arrow(kind, some)]):
            for one in batch.to_pylist():
                found = rows_of(msgpack.unpackb(one["pack"]))
                assert (one["first_ns"], one["newest_ns"]) == (found[0].at_ns, found[-1].at_ns)
                yield from ((one["bucket"], one["onward"], row) for row in found)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 1_000])
def test_rows_survive_packs(seed: int, length: int) -> None:
    rng = random.Random(seed * 10 + length)
    rows = list(program(rng, length))
    packed = [row for _, _, one in packs_of(rows) for row in rows_of(msgpack.unpackb(one))]
    assert sorted(map(repr, packed)) == sorted(map(repr, map(plain, rows))), f"seed={seed}"
    found = list(through_arrow(rows))
    assert sorted(repr(row) for _, _, row in found) == sorted(map(repr, map(plain, rows))), f"seed={seed}"
    for bucket, onward, row in found:
        assert bucket == bucket_of(row.keys[0].name if isinstance(row, Registration) else row.key, BUCKETS)
        assert not onward


def plain(row: Registration | Event) -> Registration | Event:
    """The row with numbers instead of members of enumerations, as a pack has it."""
    return (
        row._replace(condition=int(row.condition))
        if isinstance(row, Registration)
        else row._replace(kind=int(row.kind))
    )


def test_a_registration_of_two_stages_goes_on_and_leaves_a_leg_for_each_key(seed: int) -> None:
    rng = random.Random(seed)
    rows = [row._replace(id=row.id or f"own {row.seq}") for row in program(rng, 300) if isinstance(row, Registration)]
    found = list(through_arrow(rows, two_stages=True))
    onward = [row for _, is_onward, row in found if is_onward]
    assert sorted(map(repr, onward)) == sorted(map(repr, map(plain, rows)))
    legs = [row for _, is_onward, row in found if not is_onward]
    wanted = [
        leg_of(r._replace(keys=(key,), condition=int(r.condition)), ordinal, bucket_of(r.id, BUCKETS))
        for r in rows
        for ordinal, key in enumerate(r.keys)
    ]
    assert sorted(map(repr, legs)) == sorted(map(repr, wanted)), f"seed={seed}"


def test_packs_are_bounded_and_a_row_that_is_too_large_is_refused() -> None:
    rows = [Registration(n * MS, n, None, (Key("key"),), 1 << 60, payload=b"." * 50_000) for n in range(100)]
    packs = [one for _, _, one in packs_of(rows)]
    assert max(map(len, packs)) <= PACK_MAX
    assert [row for one in packs for row in rows_of(msgpack.unpackb(one))] == rows
    with pytest.raises(InvalidValueError, match="a row has"):
        list(packs_of([rows[0]._replace(payload=b"." * ROW_MAX)]))
