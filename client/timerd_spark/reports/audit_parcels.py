"""Parcels, which an audit sends between Spark's tasks. A parcel is a row for Spark, and contains rows of an arena.

Spark works row by row. It takes longer to keep, send and sort three million rows than the audit takes to check them.

The operations of a purgatory, and the events on its keys, are divided into shares by a hash of their keys. A parcel has
rows of one share, in order. Cancels and steps of groups name no key, so their shares are by operation. For these rows,
index() and placed() find the tasks that have the registrations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from timerd_shm.declare.journal import ROW_SIZE, RowFlag, RowKind

from .audit_rows import FACTS, FRAGMENT, NEVER, PACKED, batch_of, join_fragments, pack, schema_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

PARCELS: Final = "host string, incarnation string, purgatory string, share int, first bigint, content binary"
PLACED: Final = f"{PARCELS}, bucket int"  # `bucket`: the number of the task that audits the parcel
# The columns of findings: from the audit's tasks, and in the result. `cause`: rows are missing. `follows`: the finding
# may come from a cause.
FINDINGS: Final = "host string, incarnation string, row bigint, op_id string, what string, cause boolean"
ORDERED: Final = f"{FINDINGS}, follows boolean"
BOUND: Final = "host string, incarnation string, purgatory string, id string, operation bigint, several boolean"
CONTENT: Final = ", ".join(PACKED.split(", ")[2:])  # without host and incarnation, which the parcel has
SHARES: Final = 256  # of keys: 0 to 255; shares of operations follow
# The shares of rows that each task gets, of fragments (single rows of a registration), and of facts about arenas.
EVERY, FRAGMENTS, ABOUT = -1, -2, -3
INDEX: Final = -1  # `first` of a parcel with the numbers of registrations
WORD: Final = (1 << 64) - 1
PARCEL_ROWS: Final = 1 << 18  # rows that are held until they are sent: some 60 MB
# Kinds of rows of which each task gets all.
OF_ALL: Final = (RowKind.CLIENT, RowKind.SEGMENT, RowKind.TURN, RowKind.ANCHOR, RowKind.GAP, RowKind.END)
OF_OPERATIONS: Final = (RowKind.ACTION, RowKind.GROUP)  # they go to the task with their operation's registration


def parcels(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """The rows of the events view, packed and in parcels."""
    yield from _parcels(pack(batches))


def parcels_of_fragments(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """All fragments, joined to registrations and in parcels. An arena has few fragments, so all are held at once."""
    import pyarrow as pa

    tables = []
    for parcel, rows in opened(batches):
        of = [pa.array([parcel[name]] * rows.num_rows, pa.string()) for name in ("host", "incarnation")]
        tables.append(pa.RecordBatch.from_arrays([*of, *rows.columns], schema=schema_of(PACKED)))
    if tables:
        order = [(name, "ascending") for name in ("host", "incarnation", "operation", "row")]
        yield from _parcels(join_fragments(pa.Table.from_batches(tables).sort_by(order).to_batches()))


def opened(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[dict[str, Any], pyarrow.RecordBatch]]:
    """Each parcel: its columns except the content, and its rows."""
    for parcel, content in _contents(batches):
        yield parcel, rows_of(content)


def _contents(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[tuple[dict[str, Any], pyarrow.Buffer]]:
    """Each parcel: its columns except the content, and the content as the batch has it."""
    for batch in batches:
        contents = batch["content"]
        for at, parcel in enumerate(batch.drop_columns(["content"]).to_pylist()):
            yield parcel, contents[at].as_buffer()


def rows_of(content: pyarrow.Buffer | bytes) -> pyarrow.RecordBatch:
    """The rows in a parcel, with the columns CONTENT."""
    import pyarrow as pa

    return pa.ipc.read_record_batch(pa.py_buffer(content), schema_of(CONTENT))


def op_id(incarnation: str, operation: int) -> str:
    """The id of an operation, as the views have it."""
    return f"{incarnation}-{operation & WORD:016x}"


def _parcels(packed: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    held: list[pyarrow.RecordBatch] = []
    count = 0
    for batch in packed:
        held.append(batch)
        count += batch.num_rows
        if count >= PARCEL_ROWS:
            yield _sent(held)
            held, count = [], 0
    if held:
        yield _sent(held)


def _sent(held: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    """A batch of parcels with these packed rows, and of parcels with the numbers of their registrations."""
    import numpy as np
    import pyarrow as pa

    table = pa.Table.from_batches(held).cast(schema_of(PACKED))
    if not table.num_rows:
        return batch_of(PARCELS, [])
    shares = _shares(table)
    purgatories = np.where((shares >= 0) & (shares < SHARES), _codes(table["purgatory"]), 0)
    of = [_codes(table["host"]), _codes(table["incarnation"]), purgatories, shares]
    order = np.lexsort([table["row"].to_numpy(), *reversed(of)])
    (rows,) = table.take(pa.array(order)).combine_chunks().to_batches()
    edges = [at for at, _ in _groups(*(each[order] for each in of))]
    content = rows.select(schema_of(CONTENT).names)
    told = []
    for at, end in zip(edges, [*edges[1:], rows.num_rows], strict=True):
        host, incarnation, purgatory = (rows[name][at].as_py() for name in ("host", "incarnation", "purgatory"))
        share, first = int(shares[order[at]]), rows["row"][at].as_py()
        is_of_keys = 0 <= share < SHARES
        data = content.slice(at, end - at).serialize().to_pybytes()
        told.append((host, incarnation, purgatory if is_of_keys else None, share, first, data))
    for at, end in _groups(*(each[order] for each in of[:2])):
        host, incarnation = (rows[name][at].as_py() for name in ("host", "incarnation"))
        numbers = _registered(content.slice(at, end - at))
        told += [(host, incarnation, None, *each) for each in _by_share(numbers)]
    return batch_of(PARCELS, told)


def _registered(rows: pyarrow.RecordBatch) -> np.ndarray:
    """The numbers of the operations registered in these rows.

    Without operations that were pending when the journal began (RowFlag.SNAPSHOT): their rows may occur twice.
    """
    import numpy as np
    import pyarrow.compute as pc

    from .audit_plain import as_records, lines_of

    registered = rows.filter(pc.equal(rows["kind"], int(RowKind.REGISTER)))
    heads = pc.binary_slice(registered["bytes"], 0, ROW_SIZE)
    flags = as_records(RowKind.REGISTER, lines_of(heads))["flags"]
    numbers: np.ndarray = registered["operation"].to_numpy().astype(np.int64)
    return numbers[(flags & int(RowFlag.SNAPSHOT)) == 0]


def _by_share(numbers: np.ndarray) -> Iterator[tuple[int, int, bytes]]:
    """Numbers of operations by their shares: (share, INDEX, the numbers as bytes)."""
    import numpy as np

    shares = _shares_of(numbers)
    for share in np.unique(shares).tolist():
        yield share, INDEX, numbers[shares == share].tobytes()


def _shares(table: pyarrow.Table) -> np.ndarray:
    """The share of each packed row."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = table["key"].combine_chunks().dictionary_encode()
    names = keys.dictionary.cast(pa.binary()).to_pylist()
    hashes = np.array([crc32(name) % SHARES for name in names] or [0], np.int64)
    shares = hashes[np.asarray(pc.fill_null(keys.indices, 0))]
    kinds = table["kind"].to_numpy()
    of_operations = np.isin(kinds, [int(kind) for kind in OF_OPERATIONS])
    operations = np.asarray(pc.fill_null(table["operation"].combine_chunks(), 0)).astype(np.uint64)
    shares[of_operations] = _shares_of(operations[of_operations])
    shares[np.isin(kinds, [int(kind) for kind in OF_ALL])] = EVERY
    shares[kinds == FRAGMENT] = FRAGMENTS
    shares[kinds == FACTS] = ABOUT
    return shares


def _shares_of(operations: np.ndarray) -> np.ndarray:
    """The shares by operation. They are distinct from the shares by key."""
    import numpy as np

    found: np.ndarray = SHARES + (operations.astype(np.uint64) % np.uint64(SHARES)).astype(np.int64)
    return found


def _codes(column: pyarrow.ChunkedArray) -> np.ndarray:
    """A number for each text; -1 for null."""
    import numpy as np
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(column.combine_chunks().dictionary_encode().indices, -1)).astype(np.int64)


def _groups(*columns: np.ndarray) -> Iterator[tuple[int, int]]:
    """(begin, end) of each run of rows with the same values."""
    import numpy as np

    if not len(columns[0]):
        return
    changes = np.zeros(len(columns[0]) - 1, bool)
    for column in columns:
        changes |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]
    yield from pairwise(edges)


# relations between rows -----------------------------------------------------------------------------------------------


def bound(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Rows of BOUND: one for each registration with an id, one for each parcel with a registration of several keys."""
    import pyarrow.compute as pc

    for parcel, rows in opened(batches):
        of = (parcel["host"], parcel["incarnation"], parcel["purgatory"])
        registered = rows.filter(pc.equal(rows["kind"], int(RowKind.REGISTER)))
        named = registered.filter(pc.is_valid(registered["id"]))
        found = [
            (*of, id_, operation, False)
            for id_, operation in zip(named["id"].to_pylist(), named["operation"].to_pylist(), strict=True)
        ]
        if registered["names"].null_count < registered.num_rows:
            found.append((*of, None, None, True))
        yield batch_of(BOUND, found)


def index(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Make parcels from which placed() takes the buckets of registrations.

    They have the numbers of the registered operations, in shares by operation. `batches` has parcels of rows, each with
    its bucket.
    """
    import numpy as np
    import pyarrow.compute as pc

    numbers: dict[tuple[str, str, int], list[np.ndarray]] = {}
    for parcel, rows in opened(batches):
        registered = rows.filter(pc.equal(rows["kind"], int(RowKind.REGISTER)))
        of = (parcel["host"], parcel["incarnation"], parcel["bucket"])
        numbers.setdefault(of, []).append(registered["operation"].to_numpy().astype(np.int64))
    for (host, incarnation, bucket), some in numbers.items():
        shares = _by_share(np.concatenate(some))
        yield batch_of(PLACED, [(host, incarnation, None, *each, bucket) for each in shares])


def twice(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Rows of FINDINGS: operations registered twice, perhaps in two tasks. `batches` has all parcels of each share."""
    import numpy as np

    numbers: dict[tuple[str, str], list[np.ndarray]] = {}
    for parcel, content in _contents(batches):
        of = (parcel["host"], parcel["incarnation"])
        numbers.setdefault(of, []).append(np.frombuffer(content, np.int64))
    for (host, incarnation), some in numbers.items():
        found, times = np.unique(np.concatenate(some), return_counts=True)
        again = ((op_id(incarnation, number), "it is registered twice") for number in found[times > 1].tolist())
        yield batch_of(FINDINGS, [(host, incarnation, -1, *each, False) for each in again])


def ordered(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """All findings, as rows of ORDERED: causes come first, and findings that may follow from a cause come last."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.Table.from_batches(batches, schema_of(FINDINGS))
    first: dict[tuple[str, str], int] = {}
    for cause in found.filter(found["cause"]).to_pylist():
        of, row = (cause["host"], cause["incarnation"]), cause["row"]
        first[of] = min(first.get(of, NEVER), row if row >= 0 else NEVER)
    rows, follows = found["row"].to_numpy(), np.zeros(found.num_rows, bool)
    for (host, incarnation), row in first.items():
        is_its = pc.and_(pc.equal(found["host"], host), pc.equal(found["incarnation"], incarnation)).to_numpy()
        follows |= is_its & ((rows < 0) | (rows >= row))
    is_cause = found["cause"].to_numpy()
    follows &= ~is_cause
    rank = pa.array(np.where(is_cause, 0, np.where(follows, 2, 1)))
    by = [(name, "ascending") for name in ("rank", "host", "incarnation", "row")]
    table = found.append_column("follows", pa.array(follows)).append_column("rank", rank).sort_by(by)
    yield from table.drop_columns(["rank"]).to_batches()


def placed(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Cancels and steps of groups, with the buckets of their registrations; bucket 0 if there is no registration.

    `batches` has all parcels of each share by operation, sorted by arena, share and `first`. So the parcels of index()
    come first.
    """
    import numpy as np
    import pyarrow as pa

    share: tuple[str, str, int] | None = None
    known: dict[int, list[np.ndarray]] = {}  # numbers of operations, by bucket
    for parcel, content in _contents(batches):
        of = (parcel["host"], parcel["incarnation"], parcel["share"])
        if of != share:
            share, known = of, {}
        if parcel["first"] == INDEX:
            known.setdefault(parcel["bucket"], []).append(np.frombuffer(content, np.int64))
            continue
        rows = rows_of(content)
        operations = rows["operation"].to_numpy().astype(np.int64)
        buckets = np.zeros(rows.num_rows, np.int64)
        for bucket, numbers in known.items():
            buckets[np.isin(operations, np.concatenate(numbers))] = bucket
        told = []
        for bucket in np.unique(buckets).tolist():
            some = rows.filter(pa.array(buckets == bucket))
            first = some["row"][0].as_py()
            told.append((*of[:2], None, of[2], first, some.serialize().to_pybytes(), bucket))
        yield batch_of(PLACED, told)
