"""Rows as files of two streams, and the outcomes of a query over them in the form that a bucket gives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timerd_shm.declare.states import Condition, Outcome
from timerd_spark.purgatory.rows import CONDITIONS, EVENT_KINDS, Event, Registration, Settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REGISTRATIONS = (
    "`group` string, at bigint, seq bigint, id string, keys array<string>, targets array<bigint>, deadline bigint, "
    "`when` string, needed bigint, total bigint, payload binary, mark bigint, mark_seq bigint, sender string, "
    "command bigint"
)
EVENTS = (
    "`group` string, at bigint, seq bigint, kind string, key string, amount bigint, `limit` bigint, value binary, "
    "id string, sender string, command bigint"
)
WORDS = {int(code): name for name, code in CONDITIONS.items() if code != Condition.AT_LEAST} | {
    int(Condition.AT_LEAST): "at_least"
}
KINDS = {int(code): name for name, code in EVENT_KINDS.items()}

Grouped = tuple[str, Registration | Event]


def write(directory: Path, batches: Iterable[Sequence[Grouped]], first: int = 0) -> None:
    """A file of registrations and one of events for each batch."""
    for number, rows in enumerate(batches, first):
        made = [
            (
                group, r.at_ns, r.seq, r.id, [key.name for key in r.keys], [key.target for key in r.keys],
                r.deadline_ns, WORDS[r.condition], r.needed, r.total, r.payload, *(r.mark or (None, None)),
                r.sender, r.command,
            )
            for group, r in rows
            if isinstance(r, Registration)
        ]  # fmt: skip
        fired = [(group, r.at_ns, r.seq, KINDS[r.kind], r.key, *r[4:10]) for group, r in rows if isinstance(r, Event)]
        for name, schema, columns in (("r", REGISTRATIONS, made), ("e", EVENTS, fired)):
            _write(directory / name / f"{number}.parquet", schema, columns, number)


def _write(path: Path, schema: str, rows: Sequence[tuple[Any, ...]], number: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "string": pa.string(), "bigint": pa.int64(), "binary": pa.binary(), "array<string>": pa.list_(pa.string()),
        "array<bigint>": pa.list_(pa.int64()),
    }  # fmt: skip
    fields = [part.replace("`", "").split() for part in schema.split(", ")]
    columns = zip(*rows, strict=True) if rows else [()] * len(fields)
    arrays = [pa.array(column, kinds[kind]) for (_, kind), column in zip(fields, columns, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(pa.Table.from_arrays(arrays, [name for name, _ in fields]), hidden)
    os.utime(hidden, (1e9 + number, 1e9 + number))  # sources take files in the order of their times
    hidden.rename(path)


def streams(spark: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Registrations and events, a file of each in a batch."""
    reader = spark.readStream.option("maxFilesPerTrigger", 1)
    return (
        reader.schema(REGISTRATIONS).parquet(str(directory / "r")),
        reader.schema(EVENTS).parquet(str(directory / "e")),
    )


def tables(spark: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    """All registrations and events."""
    return (
        spark.read.schema(REGISTRATIONS).parquet(str(directory / "r")),
        spark.read.schema(EVENTS).parquet(str(directory / "e")),
    )


Said = tuple[Any, ...]


def said(outcomes: DataFrame) -> list[Said]:
    """The outcomes, sorted."""
    columns = "purgatory", "payload", "id", "outcome", "settled_key", "key", "settled_at", "wait_ns", "error", "value"
    found = outcomes.selectExpr(*columns[:6], "unix_micros(settled_at)", *columns[7:], "seq", "flags").collect()
    return sorted(
        (tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in found), key=repr
    )


def wanted(group: str, settled: Settled) -> Said:
    """An outcome of a bucket, in the same form."""
    r, by = settled.row, settled.settled_key
    return (
        group, r.payload, r.id, Outcome(settled.outcome).name.lower(), by, r.keys[by or 0].name,
        settled.settled_ns // 1000, max(settled.settled_ns - r.at_ns, 0), settled.error, settled.value, settled.seq,
        settled.flags,
    )  # fmt: skip
