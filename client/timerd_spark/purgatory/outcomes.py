"""Outcomes as a bucket says them: an Arrow stream in one value, which mapInArrow turns into rows again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgpack

from .rows import Settled

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOMES: Final = (
    "op_id string, id string, key string, outcome int, error bigint, settled_key int, at_ns bigint, "
    "deadline_ns bigint, settled_ns bigint, flags int, value binary, payload binary, seq bigint"
)
PIECE: Final = 4096  # outcomes in a value


def said(outcomes: Sequence[Settled]) -> Iterator[bytes]:
    """Outcomes in pieces, each an Arrow stream with the columns OUTCOMES."""
    if not outcomes:
        return
    import pyarrow as pa

    kinds = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in (part.split() for part in OUTCOMES.split(", "))])
    for begin in range(0, len(outcomes), PIECE):
        some = outcomes[begin : begin + PIECE]
        rows, copies, states, errors, settled_keys, settled_ns, flags, values, seqs = zip(*some, strict=True)
        at, own_seqs, ids, keys, deadlines, _, _, _, payloads, *_ = zip(*rows, strict=True)
        identities = zip(at, own_seqs, ids, keys, deadlines, payloads, copies, strict=True)
        columns = (
            [blake2b(said, digest_size=16).hexdigest() for said in map(msgpack.packb, identities)],
            ids,
            [watched[by or 0].name if watched else None for watched, by in zip(keys, settled_keys, strict=True)],
            states,
            errors,
            settled_keys,
            at,
            deadlines,
            settled_ns,
            flags,
            values,
            payloads,
            seqs,
        )
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        yield sink.getvalue().to_pybytes()


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The outcomes of a partition. (For mapInArrow.)"""
    import pyarrow as pa

    for batch in batches:
        tables = [pa.ipc.open_stream(each.as_buffer()).read_all() for each in batch.column(0)]
        if tables:
            yield from pa.concat_tables(tables).combine_chunks().to_batches()
