"""purgatory(): registrations wait in Spark's state until their condition holds over the events, or they expire."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import Outcome
from timerd_spark.durations import duration_ns

from .bucket import Bucket, Settings
from .inputs import events_of, registrations_of, types_of
from .outcomes import OUTCOMES, unpacked
from .packs import EVENTS, PACKED, REGISTRATIONS, beats, names_of, pack
from .processor import HITS, NS_PER_MS, SAID, FirstStage, Purgatories, SecondStage, run_at_once, run_legs_at_once
from .two_stages import Joined

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKETS_MAX: Final = 1 << 20
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
DEFAULT: Final = "'default'"
BEATS: Final = "timerd.beats"  # whether the query has heartbeats
MARKED: Final = "timerd.time_mode"  # metadata of op_id, by which start() knows the mode
# In two stages each operation has an id: the user's after an i, or one of ours.
GIVEN_ID: Final = "CASE WHEN id LIKE 'i%' THEN substring(id, 2) END"
EVENT_TIME, PROCESSING_TIME = "EventTime", "ProcessingTime"
_IDENTITY: Final = "at_ns, seq, keys, deadline_ns, body, condition, needed, total, targets, mark_ns, mark_seq"


class Plan:
    """The settings that all stages of a query have in common."""

    def __init__(self, settings: Settings, time_mode: str, buckets: int, delay_ms: int, idle_ns: int) -> None:
        self.settings, self.time_mode, self.buckets = settings, time_mode, buckets
        self.delay_ms, self.idle_ns = delay_ms, idle_ns

    @property
    def by_event_time(self) -> bool:
        return self.time_mode == EVENT_TIME


def purgatory(
    registrations: DataFrame,
    events: DataFrame,
    *,
    by: str | None = None,
    delay: str | float | timedelta = "2s",
    buckets: int = 64,
    settled_ids: str | float | timedelta = "1h",
    marks: str | float | timedelta = "1m",
    max_wait: str | float | timedelta | None = None,
    idle_after: str | float | timedelta | None = "10s",
    time_mode: str = EVENT_TIME,
    ordered: bool = True,
) -> DataFrame:
    """The outcomes of registrations over events: an operation settles when its condition holds, or its deadline passes.

    Two streams, or two batches. Columns of `registrations` (at and keys are needed): at; keys, array<string>, or string
    for one key; deadline, or timeout in seconds or as an interval; id; when: any, all, all_settled, at_least (with
    needed), total (with total); targets, the watermark to reach for each key; payload; seq, which orders rows of one
    time; mark and mark_seq: events after this position count, else those after the registration. Columns of `events`
    (at and key are needed): at, key, kind: fire, advance, fail, cancel, forget; amount; value; seq; limit, how many
    operations the event may complete; id: the event cancels the operation of this id, whatever key it has. `at`,
    deadline and mark are timestamps, or ns since 1970. The outcomes have the columns of a journal's operations
    (schema.TERMINAL), and value, payload, and seq of the event; `purgatory` is the group.

    `by`: a column of both, whose rows belong together: an operation sees the events of its group alone, and a whole
    group is one small purgatory. Without it, operations of one key (keys is a string) take one stage, others two.
    `delay`: how far rows may be out of order: later events are counted and lost, later registrations settle at once by
    the events of the last `marks`. `buckets`: pieces of the state, many more than partitions; it cannot change later.
    `settled_ids`: how long an id of a settled operation is refused. `max_wait`: the deadline of rows without one.
    `idle_after`: if no row moves the watermark for this time, the clock does; None: never. `time_mode`: "EventTime" has
    the same outcomes whatever the order and the batches are; "ProcessingTime" expires by the clock, and applies rows as
    they come, as ordered=False does. Start the query with timerd_spark.start().

    Raises InvalidValueError: for a wrong argument or column; for registrations without deadline, timeout and max_wait;
    for a limit without `by` if operations have several keys; for a session whose state does not lie in RocksDB. The
    query fails with it if its checkpoint has other buckets, or the state of another version.
    """
    if type(buckets) is not int or not 1 <= buckets <= BUCKETS_MAX:
        raise InvalidValueError(f"purgatory(): buckets={buckets!r}: give a number from 1 to {BUCKETS_MAX:,}")
    if time_mode not in (EVENT_TIME, PROCESSING_TIME):
        raise InvalidValueError(f"purgatory(): time_mode={time_mode!r}: give {EVENT_TIME!r} or {PROCESSING_TIME!r}")
    if registrations.isStreaming != events.isStreaming:
        kinds = ["a stream" if df.isStreaming else "a batch" for df in (registrations, events)]
        raise InvalidValueError(f"purgatory(): registrations are {kinds[0]}, events {kinds[1]}: give two of one kind")
    spark = registrations.sparkSession
    if registrations.isStreaming and not str(spark.conf.get(PROVIDER, "")).endswith("RocksDBStateStoreProvider"):
        raise InvalidValueError(
            f"purgatory(): Spark keeps timers in RocksDB alone: spark.conf.set({PROVIDER!r}, {ROCKSDB!r}). "
            "local_session() has this setting"
        )
    delay_ms = duration_ns("delay", delay) // NS_PER_MS
    marks_ns = max(duration_ns("marks", marks), delay_ms * NS_PER_MS)
    settings = Settings(
        ordered and time_mode == EVENT_TIME, marks_ns, duration_ns("settled_ids", settled_ids), buckets, by is not None
    )
    max_wait_ns = None if max_wait is None else duration_ns("max_wait", max_wait)
    is_idle_seen = idle_after is not None and registrations.isStreaming and time_mode == EVENT_TIME
    idle_ns = duration_ns("idle_after", idle_after or 0) if is_idle_seen else 0
    plan = Plan(settings, time_mode, buckets, delay_ms, idle_ns)
    one_stage = by is not None or types_of(registrations).get("keys") == "string"
    if not one_stage and "limit" in types_of(events):
        raise InvalidValueError(
            "purgatory(): events have a column 'limit': a limited event must not be given to two operations, so their "
            "keys have to be in one bucket. Give by=, the column of a group that holds all keys of its operations"
        )
    made, fired = registrations_of(registrations, by, max_wait_ns, buckets), events_of(events, by, buckets)
    if not one_stage:
        own = f"'r' || hex(xxhash64({_IDENTITY})) || hex(xxhash64(1, {_IDENTITY}))"
        made = made.withColumn("id", _expr(f"coalesce('i' || id, {own})"))
        fired = fired.withColumn("id", _expr("'i' || id"))
    rows = _packed(made, REGISTRATIONS, buckets, one_stage).unionByName(_packed(fired, EVENTS, buckets, one_stage))
    if is_idle_seen:
        rows = rows.unionByName(_heartbeats(spark, buckets, one_stage))
    if not registrations.isStreaming:
        found = _at_once(rows, settings, one_stage)
        return _terminal(found.mapInArrow(unpacked, OUTCOMES), plan, by, one_stage)
    if plan.by_event_time:
        rows = rows.withColumn("time", _expr("if(pack IS NULL, NULL, timestamp_micros(newest_ns div 1000))"))
        rows = rows.withWatermark("time", f"{plan.delay_ms} milliseconds")
    if one_stage:
        found = _stage(rows, plan, Purgatories, SAID)
    else:
        found = _stage(_stage(rows, plan, FirstStage, HITS), plan, SecondStage, SAID)
    return _terminal(found.mapInArrow(unpacked, OUTCOMES), plan, by, one_stage)


def _at_once(rows: DataFrame, settings: Settings, one_stage: bool) -> DataFrame:
    """All buckets of a batch query, each with all its rows."""
    # Not partial(): pyspark looks for type hints, and fails if it finds something that cannot have them.
    buckets = rows.groupBy("bucket")
    if one_stage:
        return buckets.applyInArrow(lambda table: run_at_once(Bucket, settings, table), SAID)
    joined = buckets.applyInArrow(lambda table: run_legs_at_once(settings, table), PACKED).groupBy("bucket")
    return joined.applyInArrow(lambda table: run_at_once(Joined, settings, table), SAID)


def _packed(rows: DataFrame, kind: int, buckets: int, one_stage: bool) -> DataFrame:
    return rows.mapInArrow(partial(pack, kind, buckets, not one_stage), PACKED)


def _heartbeats(spark: SparkSession, buckets: int, one_stage: bool) -> DataFrame:
    """A row for each bucket and batch, which says what time it is: a silent source has no watermark that moves."""
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1).option("numPartitions", 1).load()
    times = rate.selectExpr("unix_micros(timestamp) * 1000 AS at_ns")
    return times.mapInArrow(partial(beats, buckets, not one_stage), PACKED)


def _expr(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


def _stage(rows: DataFrame, plan: Plan, processor: type[Purgatories], output: str) -> DataFrame:
    """One stage: packed rows, and what their buckets say."""
    if plan.by_event_time:
        # The column that has the watermark is null from here on: so Spark drops no row, and buckets count late rows.
        null = _expr("if(bucket < 0, timestamp_micros(first_ns), NULL)")
        rows = rows.select(*names_of(PACKED), null.alias("time", metadata={"spark.watermarkDelayMs": plan.delay_ms}))
    more = {"eventTimeColumnName": "time"} if processor is FirstStage and plan.by_event_time else {}
    return rows.groupBy("bucket").transformWithState(
        statefulProcessor=processor(plan.settings, event_time=plan.by_event_time, idle_ns=plan.idle_ns),
        outputStructType=output,
        outputMode="append",
        timeMode=plan.time_mode,
        **more,
    )


def _terminal(found: DataFrame, plan: Plan, by: str | None, one_stage: bool) -> DataFrame:
    id_ = GIVEN_ID if not one_stage else "id" if by is None else _without_group("id")
    names = " ".join(f"WHEN {int(code)} THEN '{code.name.lower()}'" for code in Outcome)
    outcomes = found.selectExpr(
        "op_id",
        "'spark' AS host",
        "'spark' AS instance",
        f"{'substring_index(key, chr(31), 1)' if by is not None else DEFAULT} AS purgatory",
        "CAST(NULL AS string) AS owner",
        "CAST(NULL AS string) AS `group`",
        f"{id_} AS id",
        "key" if by is None else f"{_without_group('key')} AS key",
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
    return outcomes.withMetadata("op_id", {MARKED: plan.time_mode, BEATS: plan.idle_ns > 0})


def _without_group(name: str) -> str:
    return f"substring({name}, locate(chr(31), {name}) + 1)"
