"""Packs: rows of one bucket in one value, column by column. So Spark carries, sorts and stores a few rows, not many.

A pack is a msgpack array: the kind of its record, the kind of its rows, their number, and a list for each column. A
list with one value stands for a column that has this value in each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgpack
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import Condition

from .rows import NEVER, Event, Key, Registration

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 0  # the kind of a record that is a pack
REGISTRATIONS, EVENTS, LEGS = range(3)
PACK_ROWS: Final = 256
PACK_MAX: Final = 128 << 10  # bytes that a pack of several rows may have
ROW_MAX: Final = 256 << 10  # bytes of one row
TOTAL_OF_LEG: Final = NEVER  # what a leg under TOTAL never reaches, so that it reports each event
# The columns of a pack of each kind, in the order of the fields of its rows.
COLUMNS: Final = {
    REGISTRATIONS: (
        "at_ns bigint, seq bigint, id string, keys array<string>, targets array<bigint>, deadline_ns bigint, "
        "condition int, needed int, total bigint, body binary, mark_ns bigint, mark_seq bigint, sender string, "
        "command bigint"
    ),
    EVENTS: (
        "at_ns bigint, seq bigint, kind int, key string, amount bigint, `limit` int, body binary, id string, "
        "sender string, command bigint"
    ),
}
# The columns of a packed DataFrame. A pack with `onward` belongs to the same bucket of the second stage, and the first
# one only hands it on. A heartbeat has no pack: newest_ns says what time it is.
PACKED: Final = "bucket int, onward boolean, first_ns bigint, newest_ns bigint, pack binary"


def names_of(schema: str) -> list[str]:
    """The names of the columns of a schema, as an expression may use them."""
    return [part.split()[0] for part in schema.split(", ")]


# of rows --------------------------------------------------------------------------------------------------------------


def packs_of(rows: Sequence[Registration | Event]) -> Iterator[tuple[int, int, bytes]]:
    """Packs of these rows, each with the first and the newest time of its rows."""
    for kind, type_ in ((REGISTRATIONS, Registration), (EVENTS, Event)):
        some = sorted((row for row in rows if isinstance(row, type_)), key=lambda row: row.at_ns)
        if not some:
            continue
        columns: list[Any] = [list(column) for column in zip(*some, strict=True)]
        if kind == REGISTRATIONS:
            keys = columns[3]
            columns[3] = [[key.name for key in each] for each in keys]
            columns.insert(4, [[key.target for key in each] for each in keys])
            columns[10:11] = _split(columns[10])
        else:
            columns[10:11] = _split(columns[10])
        yield from _in_packs(kind, [_short(column) for column in columns], 0, len(some))


def _split(positions: list[Any]) -> list[list[Any]]:
    """Positions as a column of times and one of numbers."""
    return [[None if each is None else each[part] for each in positions] for part in (0, 1)]


def _short(column: list[Any]) -> list[Any]:
    return column[:1] if column.count(column[0]) == len(column) else column


def _in_packs(kind: int, columns: list[list[Any]], begin: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """The rows from begin to end, which are in the order of their times."""
    at = columns[0]
    while begin < end:
        count = min(PACK_ROWS, end - begin)
        while True:
            cut = [column if len(column) == 1 else column[begin : begin + count] for column in columns]
            pack = msgpack.packb([ROWS, kind, count, *cut])
            if len(pack) <= PACK_MAX or count == 1:
                break
            count = max(1, count * PACK_MAX // len(pack) // 2)
        if len(pack) > ROW_MAX:
            raise InvalidValueError(f"purgatory(): a row has {len(pack):,} bytes, and may have {ROW_MAX:,}")
        last = begin + count - 1
        yield (at[0], at[0], pack) if len(at) == 1 else (at[begin], at[last], pack)
        begin += count


def rows_of(pack: Sequence[Any]) -> list[Any]:
    """The rows of a pack, unpacked by msgpack."""
    _, kind, count, *columns = pack
    if kind == EVENTS:
        whole: list[Any] = [column if len(column) == count else repeat(column[0], count) for column in columns]
        whole[10:] = [repeat(None, count) if columns[10:] in ([], [[None], [None]]) else _positions(*whole[10:])]
        return list(map(Event._make, zip(*whole, strict=True)))
    targets = columns.pop(4)
    names = columns[3] if len(columns[3]) == count else columns[3] * count
    is_flat = isinstance(names[0], str)
    if targets == [None]:
        columns[3] = [(Key(name),) for name in names] if is_flat else [tuple(map(Key, each)) for each in names]
    else:
        if is_flat:
            names = [[name] for name in names]
        if len(targets) < count:
            targets *= count
        columns[3] = [
            tuple(map(Key, each, chain(target or (), repeat(None))))
            for each, target in zip(names, targets, strict=True)
        ]
    whole = [column if len(column) == count else repeat(column[0], count) for column in columns]
    whole[9:11] = [repeat(None, count) if columns[9] == [None] else _positions(whole[9], whole[10])]
    if kind == REGISTRATIONS:
        return list(map(Registration._make, zip(*whole, strict=True)))
    *whole, ordinals, seconds = whole
    return list(map(leg_of, map(Registration._make, zip(*whole, strict=True)), ordinals, seconds))


def _positions(times: Iterable[Any], numbers: Iterable[Any]) -> list[Any]:
    return [None if time is None else (time, number) for time, number in zip(times, numbers, strict=False)]


def leg_of(r: Registration, ordinal: int, second: int = 0) -> Registration:
    """The leg of a key. Its id makes equal registrations one; its payload names the operation, and its bucket."""
    counts = r.condition == Condition.TOTAL
    return r._replace(
        id=f"{r.id}@{r.at_ns}.{r.seq}#{ordinal}",
        condition=Condition.TOTAL if counts else Condition.AT_LEAST,
        needed=0 if counts else 1,
        total=TOTAL_OF_LEG if counts else 0,
        payload=msgpack.packb((r.id, r.at_ns, r.seq, ordinal, second)),
    )


# of Arrow -------------------------------------------------------------------------------------------------------------

BATCH_ROWS: Final = 1 << 16
BATCH_MAX: Final = 32 << 20  # bytes


def pack(kind: int, buckets: int, two_stages: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Packs of the rows of a partition: the columns are `bucket` and those of the kind. (For mapInArrow.)

    In two stages, a registration belongs to the second stage, and has a leg in the first one for each of its keys.
    """
    for table in _tables(batches):
        if table.column("at_ns").null_count:
            raise InvalidValueError(
                f"purgatory(): {'events' if kind == EVENTS else 'registrations'} have a row without at"
            )
        if not two_stages:
            yield _packed(kind, table, onward=False)
        elif kind == REGISTRATIONS:
            yield _packed(kind, _by_id(table, buckets), onward=True)
            legs = _legs(table, buckets)
            if legs.num_rows:
                yield _packed(LEGS, legs, onward=False)
        else:
            import pyarrow.compute as pc

            is_by_id = table.column("id").is_valid()
            if (some := table.filter(is_by_id)).num_rows:
                yield _packed(kind, _by_id(some, buckets), onward=True)
            if (some := table.filter(pc.invert(is_by_id))).num_rows:
                yield _packed(kind, some, onward=False)


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of a partition in large tables."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_MAX:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def bucket_of(name: str | None, buckets: int) -> int:
    """The bucket of a key or an id, as inputs.bucket_of() computes it."""
    return crc32((name or "").encode()) % buckets


def _by_id(table: pa.Table, buckets: int) -> pa.Table:
    """The rows with the buckets of their ids."""
    import pyarrow as pa

    found = [bucket_of(id_, buckets) for id_ in table.column("id").to_pylist()]
    return table.set_column(0, "bucket", pa.array(found, pa.int32()))


def _legs(table: pa.Table, buckets: int) -> pa.Table:
    """A row for each key of each registration."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = table.column("keys").combine_chunks()
    owners = pc.list_parent_indices(keys)
    counts = np.bincount(owners.to_numpy(), minlength=len(table))
    ordinals = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    names = pc.fill_null(pc.list_flatten(keys), "")
    targets: list[list[int | None] | None] = [None] * len(names)
    if table.column("targets").null_count < len(table):
        listed = table.column("targets").to_pylist()
        for n, (owner, ordinal) in enumerate(zip(owners.to_pylist(), ordinals.tolist(), strict=True)):
            if (given := listed[owner]) is not None and ordinal < len(given):
                targets[n] = [given[ordinal]]
    seconds = pa.array([bucket_of(id_, buckets) for id_ in table.column("id").to_pylist()], pa.int32())
    legs = table.take(owners)
    legs = legs.set_column(0, "bucket", pa.array([bucket_of(name, buckets) for name in names.to_pylist()], pa.int32()))
    singles = pa.ListArray.from_arrays(pa.array(np.arange(len(names) + 1, dtype=np.int32)), names)
    legs = legs.set_column(legs.column_names.index("keys"), "keys", singles)
    legs = legs.set_column(legs.column_names.index("targets"), "targets", pa.array(targets, pa.list_(pa.int64())))
    legs = legs.set_column(legs.column_names.index("body"), "body", pa.nulls(len(names), pa.binary()))
    legs = legs.append_column("ordinal", pa.array(ordinals.astype(np.int32)))
    return legs.append_column("second", seconds.take(owners))


def _packed(kind: int, table: pa.Table, *, onward: bool) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    buckets, at = (table.column(n).to_numpy() for n in (0, 1))
    order = np.lexsort((at, buckets))
    buckets, table = buckets[order], table.take(pa.array(order))
    columns = [_values(table.column(n).combine_chunks()) for n in range(1, table.num_columns)]
    if kind == EVENTS:
        columns[3] = _with_default(columns[3], "")
        columns[6] = _with_default(columns[6], b"")
    else:
        columns[9] = _with_default(columns[9], b"")
    begins = np.flatnonzero(np.diff(buckets, prepend=-1)).tolist()
    found: list[tuple[int, bool, int, int, bytes]] = []
    for begin, end in zip(begins, [*begins[1:], len(buckets)], strict=True):
        found += [(int(buckets[begin]), onward, *each) for each in _in_packs(kind, columns, begin, end)]
    types = (pa.int32(), pa.bool_(), pa.int64(), pa.int64(), pa.binary())
    arrays = [pa.array(column, type_) for column, type_ in zip(zip(*found, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names_of(PACKED))


def beats(buckets: int, two_stages: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A heartbeat for each bucket, with the newest time of a partition in ns. (For mapInArrow.)"""
    import pyarrow as pa
    import pyarrow.compute as pc

    newest_ns = max((pc.max(batch.column(0)).as_py() for batch in batches if batch.num_rows), default=None)
    if newest_ns is not None:
        times = pa.array([newest_ns] * buckets, pa.int64())
        arrays = [pa.array(range(buckets), pa.int32()), pa.array([two_stages] * buckets), times, times]
        yield pa.RecordBatch.from_arrays([*arrays, pa.nulls(buckets, pa.binary())], names_of(PACKED))


def _values(column: pa.Array) -> list[Any]:
    """The values of a column, in the form that a pack has."""
    import pyarrow as pa

    if column.null_count == len(column):
        return [None]
    if pa.types.is_list(column.type):
        items = column.flatten()
        if not pa.types.is_string(items.type) or not (column.null_count or items.null_count):
            is_flat = pa.types.is_string(items.type) and (column.value_lengths().to_numpy() == 1).all()
            listed: list[Any] = items.to_numpy(zero_copy_only=False).tolist() if is_flat else column.to_pylist()
            return listed
        return [[name or "" for name in each or ()] for each in column.to_pylist()]
    if not pa.types.is_integer(column.type):
        found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    elif column.null_count:
        found = column.to_pylist()
    else:
        numbers = column.to_numpy()
        found = [int(numbers[0])] if (numbers == numbers[0]).all() else numbers.tolist()
    return found


def _with_default(column: list[Any], default: Any) -> list[Any]:
    """The column, with this value instead of None."""
    return [default if value is None else value for value in column] if None in column else column
