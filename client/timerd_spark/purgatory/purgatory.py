"""purgatory(): registrations wait in Spark's state until their condition holds over the events, or they expire."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import Outcome
from timerd_spark.durations import duration_ns

from .bucket import Settings
from .inputs import events_of, registrations_of, types_of
from .processor import INPUT, NS_PER_MS, OUTPUT, Purgatories

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BUCKETS_MAX: Final = 1 << 20
EVENT_TIME, PROCESSING_TIME = "EventTime", "ProcessingTime"
_COLUMNS: Final = [part.split()[0].strip("`") for part in INPUT.split(", ")]


def purgatory(
    registrations: DataFrame,
    events: DataFrame,
    *,
    by: str | None = None,
    delay: str | float | timedelta = "2s",
    buckets: int = 64,
    settled_ids: str | float | timedelta = "1h",
    idle_after: str | float | timedelta | None = "10s",
    marks: str | float | timedelta = "10m",
    max_wait: str | float | timedelta | None = None,
    time_mode: str = EVENT_TIME,
    ordered: bool = True,
) -> DataFrame:
    """TODO"""
    if type(buckets) is not int or not 1 <= buckets <= BUCKETS_MAX:
        raise InvalidValueError(f"purgatory(): buckets={buckets!r}: give a number from 1 to {BUCKETS_MAX:,}")
    if time_mode not in (EVENT_TIME, PROCESSING_TIME):
        raise InvalidValueError(f"purgatory(): time_mode={time_mode!r}: give {EVENT_TIME!r} or {PROCESSING_TIME!r}")
    if registrations.isStreaming != events.isStreaming:
        kinds = ["a stream" if df.isStreaming else "a batch" for df in (registrations, events)]
        raise InvalidValueError(f"purgatory(): registrations are {kinds[0]}, events {kinds[1]}: both have to be one kind")
    delay_ms = duration_ns("delay", delay) // NS_PER_MS
    marks_ns = max(duration_ns("marks", marks), delay_ms * NS_PER_MS)
    settings = Settings(ordered and time_mode == EVENT_TIME, marks_ns, duration_ns("settled_ids", settled_ids))
    max_wait_ns = None if max_wait is None else duration_ns("max_wait", max_wait)
    limited = "limit" in types_of(events)
    one_key = types_of(registrations).get("keys") == "string"
    if limited and by is None and not one_key:
        raise InvalidValueError("purgatory(): events have a column 'limit', which needs by=")
    rows = registrations_of(registrations, by, max_wait_ns).unionByName(events_of(events, by))
    return settled(rows, by, delay_ms, buckets, settings, time_mode)


def settled(
    rows: DataFrame, by: str | None, delay_ms: int, buckets: int, settings: Settings, time_mode: str
) -> DataFrame:
    """The outcomes of rows in the form of buckets: one stage."""
    from pyspark.sql import functions as F

    group = "`by`" if by is not None else "xxhash64(keys[0])"
    rows = rows.selectExpr(f"CAST(pmod({group}, {buckets}) AS int) AS bucket", *[f"`{name}`" for name in _COLUMNS[1:]])
    if time_mode == EVENT_TIME:
        # The column that has the watermark is null from here on: so Spark drops no row, and buckets count late rows.
        watermark = {"spark.watermarkDelayMs": delay_ms}
        rows = rows.withColumn("time", F.expr("timestamp_micros(at_ns div 1000)")).withWatermark(
            "time", f"{delay_ms} milliseconds"
        )
        rows = rows.withColumn("time", F.expr("if(bucket < 0, time, NULL)").alias("time", metadata=watermark))
    found = rows.groupBy("bucket").transformWithState(
        statefulProcessor=Purgatories(settings, event_time=time_mode == EVENT_TIME),
        outputStructType=OUTPUT,
        outputMode="append",
        timeMode=time_mode,
    )
    return _terminal(found)


def _terminal(found: DataFrame) -> DataFrame:
    names = " ".join(f"WHEN {int(code)} THEN '{code.name.lower()}'" for code in Outcome)
    return found.selectExpr(
        "op_id",
        "'spark' AS host",
        "'spark' AS instance",
        "'default' AS purgatory",
        "CAST(NULL AS string) AS owner",
        "CAST(NULL AS string) AS `group`",
        "id",
        "key",
        f"CASE outcome {names} END AS outcome",
        "error",
        "settled_key",
        "timestamp_micros(at_ns div 1000) AS registered_at",
        "timestamp_micros(deadline_ns div 1000) AS deadline",
        "timestamp_micros(settled_ns div 1000) AS settled_at",
        "deadline_ns - at_ns AS timeout_ns",
        "greatest(settled_ns - at_ns, 0L) AS wait_ns",
        f"CASE outcome WHEN {int(Outcome.EXPIRED)} THEN greatest(settled_ns - deadline_ns, 0L) END AS lateness_ns",
        "flags",
        "value",
        "payload",
        "seq",
    )
