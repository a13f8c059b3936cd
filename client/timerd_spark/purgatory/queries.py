"""Queries over purgatories: their start, and what waits in the state of a checkpoint."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.durations import duration_ns

from .pending import LATE, PENDING, late_of, pending_of
from .purgatory import BEATS, MARKED, PROCESSING_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

OPERATOR: Final = "transformWithState"  # part of the name of the operators that have buckets


def start(
    outcomes: DataFrame,
    checkpoint: str,
    *,
    sink: str = "parquet",
    foreach_batch: Callable[[DataFrame, int], None] | None = None,
    every: str | float | timedelta = "1s",
    available_now: bool = False,
    **options: Any,
) -> StreamingQuery:
    """Start a query that writes the outcomes of purgatory() to a sink, or gives each batch of them to a function.

    `checkpoint`: the directory of the query's state. `every`: from one batch to the next one at least; without it, a
    query that expires by the clock would take a core when nothing happens. `available_now`: take what is there, and
    end. `options`: the sink's, such as path=. Raises InvalidValueError if the DataFrame does not come from purgatory(),
    and for available_now with ProcessingTime, which never ends, or with idle_after, whose source needs a clock.
    """
    marked = [field.metadata for field in outcomes.schema.fields if MARKED in (field.metadata or {})]
    if not marked or not outcomes.isStreaming:
        raise InvalidValueError("start(): give the outcomes of purgatory() over two streams, with their column op_id")
    if available_now and any(each[MARKED] == PROCESSING_TIME for each in marked):
        raise InvalidValueError(
            'start(): available_now=True with time_mode="ProcessingTime" never ends, because the clock goes on: use '
            '"EventTime", or stop the query yourself'
        )
    if available_now and any(each[BEATS] for each in marked):
        raise InvalidValueError(
            "start(): available_now=True with heartbeats reads everything in one batch, because their source cannot do "
            "this trigger: give purgatory() idle_after=None"
        )
    every_ms = duration_ns("every", every) // 1_000_000
    writer = outcomes.writeStream.option("checkpointLocation", checkpoint).outputMode("append").options(**options)
    writer = writer.format(sink) if foreach_batch is None else writer.foreachBatch(foreach_batch)
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_ms} milliseconds").start()


def pending(spark: SparkSession, checkpoint: str) -> DataFrame:
    """The operations that wait in the state of a checkpoint, as of its newest batch.

    Columns: purgatory (the group), id, keys, registered_at, deadline, satisfied and failed (positions of keys),
    payload, waits_for: "event", or "order" while the registration waits until no earlier row can come. Raises
    InvalidValueError if the checkpoint has no purgatory.
    """
    rows: DataFrame | None = None
    for manifests, segments in _states(spark, checkpoint):
        parts = manifests.selectExpr(
            "key.bucket AS bucket", "value.manifest AS manifest", "CAST(NULL AS bigint) AS id", "X'' AS segment"
        ).unionByName(
            segments.selectExpr(
                "key.bucket AS bucket",
                "CAST(NULL AS binary) AS manifest",
                "user_map_key.id AS id",
                "user_map_value.segment AS segment",
            )
        )
        decoded = parts.groupBy("bucket").applyInArrow(pending_of, PENDING)
        rows = decoded if rows is None else rows.unionByName(decoded)
    assert rows is not None
    return rows.selectExpr(
        "purgatory",
        "id",
        "keys",
        "timestamp_micros(at_ns div 1000) AS registered_at",
        "timestamp_micros(deadline_ns div 1000) AS deadline",
        "satisfied",
        "failed",
        "payload",
        "waits_for",
    )


def late(spark: SparkSession, checkpoint: str) -> DataFrame:
    """How many rows came later than `delay`: one row with late_events, which were lost, and late_registrations.

    Raises InvalidValueError if the checkpoint has no purgatory.
    """
    rows: DataFrame | None = None
    for manifests, _ in _states(spark, checkpoint):
        counted = manifests.selectExpr("value.manifest AS manifest").mapInArrow(late_of, LATE)
        rows = counted if rows is None else rows.unionByName(counted)
    assert rows is not None
    sums = [f"coalesce(sum({name}), 0L) AS {name}" for name in ("late_events", "late_registrations")]
    return rows.selectExpr(*sums)


def repartition(spark: SparkSession, checkpoint: str, partitions: int) -> None:
    """Divide the state of a stopped query among another number of partitions. The next start goes on with it.

    More partitions than buckets would stay empty. A query with a sink of files cannot go on: Spark's log of the files
    lacks the batch in which it repartitions. Spark's interface is experimental (4.2 and later); Spark Connect lacks it.
    Raises InvalidValueError for a wrong number, for Spark Connect, and if the checkpoint has no purgatory. An error of
    Spark, for example of a query that has ended in the middle of a batch, goes to the caller.
    """
    if type(partitions) is not int or partitions < 1:
        raise InvalidValueError(f"repartition(): partitions={partitions!r}: give a whole number from 1 on")
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        raise InvalidValueError("repartition(): Spark Connect cannot do it: use a classic session")
    next(_states(spark, checkpoint))
    manager.repartition(checkpoint, partitions)


def _states(spark: SparkSession, checkpoint: str) -> Iterator[tuple[DataFrame, DataFrame]]:
    """The manifests and the segments of each stage."""
    operators = spark.read.format("state-metadata").load(checkpoint)
    found = [row for row in operators.collect() if OPERATOR in row.operatorName and row.stateStoreName == "default"]
    if not found:
        raise InvalidValueError(f"{checkpoint} is no checkpoint of a purgatory that has run a batch")
    for operator in sorted({row.operatorId for row in found}):
        read = spark.read.format("statestore").option("path", checkpoint).option("operatorId", operator)
        yield read.option("stateVarName", "manifest").load(), read.option("stateVarName", "segments").load()
