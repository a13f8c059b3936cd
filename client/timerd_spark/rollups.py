"""Rollups: a row for each group of settled operations, with histograms that merge exactly.

    rollup(df, by=["purgatory"], window="10 seconds").write.parquet(path)     # df: the terminal view
    report(spark.read.parquet(path), by=["purgatory"], window="1 hour")       # the same as from all rows

The histograms are those of timerd_shm.histogram: 16 steps in each power of two, so a bucket is at most 6.25 % wide. A
percentile of one is the upper bound of its bucket: never less than the true value, at most ERROR above it. Merging adds
counts; nothing is lost by it, at p99.9 neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from timerd_shm.errors import InvalidValueError
from timerd_shm.histogram import STEPS
from timerd_shm.layout import HISTOGRAM_SUB_BITS

from .durations import duration_ns
from .inputs import names_of, need_view, types_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR: Final = 1 / STEPS  # a bucket's width, of the values in it: a percentile is at most so much too large
NEEDED: Final = ("outcome", "registered_at", "settled_at", "wait_ns", "lateness_ns")
OUTCOMES: Final = ("completed", "expired", "cancelled", "failed")
HISTOGRAM: Final = "array<struct<bucket:int,count:bigint>>"
# The columns of a rollup, behind those that it is grouped by.
ROLLUP: Final = {
    "start": "timestamp",  # of the window; without windows, the same as `first`
    "end": "timestamp",  # of the window; without windows, the same as `last`
    "first": "timestamp",  # when the first of the operations was registered
    "last": "timestamp",  # when the last of them settled
    "n": "bigint",
    **dict.fromkeys(OUTCOMES, "bigint"),
    "waited_ns": "bigint",  # all their waits added up
    "latency": HISTOGRAM,  # waits of the completed ones, ns
    "latency_max_ns": "bigint",
    "lateness": HISTOGRAM,  # of the expired ones, ns
    "lateness_max_ns": "bigint",
    "in_flight_max": "bigint",
}
WINDOW_KEY: Final = "timerd_window_ns"  # in the metadata of `start`; Parquet keeps it
# Names that columns have on the way, in rollup() and in what reads one.
INNER: Final = ("at", "bucket", "cell", "count", "max", "move", "net", "one", "peak", "run", "step", "value", "waited")
CELL_NS: Final = 10_000_000_000  # without windows, in-flight maxima are found in parts of so long


def rollup(df: DataFrame, by: str | Sequence[str] = (), window: str | None = None) -> DataFrame:
    """Groups of the operations of a terminal view, by columns and by windows of the time at which they settled.

    A row for each group in which an operation has settled: columns `by`, then ROLLUP. `in_flight_max` is how many were
    registered and not settled, at most, at the end of a millisecond of the window; what was there before it counts.
    Raises InvalidValueError for what is no terminal view, no column or no duration.
    """
    from pyspark.sql import functions as F

    need_view(df, "terminal", NEEDED, "rollup()")
    names = names_of(by, df, "rollup()", {*ROLLUP, *NEEDED, *INNER})
    window_ns = None if window is None else window_of(window)
    cell = start_of(F.col("settled_at"), window_ns)
    value = F.when(F.col("outcome") == "completed", F.col("wait_ns")).when(
        F.col("outcome") == "expired", F.col("lateness_ns")
    )
    counted = (
        df.select(*names, cell.alias("cell"), *NEEDED, value.alias("value"))
        .groupBy(*names, "cell", "outcome", bucket_of(F.col("value")).alias("bucket"))
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.max("value").alias("max"),
            F.sum("wait_ns").alias("waited"),
            F.min("registered_at").alias("first"),
            F.max("settled_at").alias("last"),
        )
    )
    grouped = counted.groupBy(*names, "cell").agg(
        *_bounds(window_ns),
        F.sum("count").alias("n"),
        *(F.sum(F.when(F.col("outcome") == o, F.col("count")).otherwise(0)).alias(o) for o in OUTCOMES),
        F.sum("waited").alias("waited_ns"),
        *_histogram("latency", "completed"),
        *_histogram("lateness", "expired"),
    )
    joined = _beside(grouped, _in_flight(df, names, window_ns), [*names, "cell"])
    kept = [F.col(name) for name in names]
    return joined.select(*kept, _marked(F.col("start"), window_ns), *(F.col(c) for c in list(ROLLUP)[1:]))


def is_rollup(df: DataFrame) -> bool:
    """Whether it has a rollup's columns."""
    there = types_of(df)
    return all(there.get(name) == kind for name, kind in ROLLUP.items())


def merged(df: DataFrame, by: str | Sequence[str] = (), window: str | None = None) -> DataFrame:
    """Rollups merged into larger groups and windows: a rollup again, the same as from all their rows.

    But for `in_flight_max`: that of several groups together is not known from theirs, so it is null unless `by` has
    every column that the rollup has. Raises InvalidValueError where windows would have to be cut.
    """
    from pyspark.sql import functions as F

    names = names_of(by, df, "report()")
    own = [name for name in df.columns if name not in ROLLUP]
    if strange := sorted(set(names) - set(own)):
        raise InvalidValueError(f"report(): by={strange[0]!r} is not what the rollup is grouped by: {', '.join(own)}")
    had = df.schema["start"].metadata.get(WINDOW_KEY) if df.schema["start"].metadata else None
    window_ns = None if window is None else window_of(window)
    if window_ns and (not had or window_ns % had):
        raise InvalidValueError(
            f"report(): window={window!r} would cut the windows of the rollup, which are "
            f"{f'of {had / 1e9:g} s' if had else 'not there'}: give a multiple"
        )
    cell = start_of(F.col("start"), window_ns)
    rows = df.select(*names, cell.alias("cell"), *ROLLUP)
    whole = rows.groupBy(*names, "cell").agg(
        *_bounds(window_ns),
        *(F.sum(name).alias(name) for name in ("n", *OUTCOMES, "waited_ns")),
        *(F.max(f"{name}_max_ns").alias(f"{name}_max_ns") for name in ("latency", "lateness")),
        F.max(F.col("in_flight_max") if set(names) == set(own) else F.lit(None).cast("bigint")).alias("in_flight_max"),
    )
    for measure in ("latency", "lateness"):
        counts = (
            rows.select(*names, "cell", F.explode(measure).alias("one"))
            .groupBy(*names, "cell", F.col("one.bucket").alias("bucket"))
            .agg(F.sum("one.count").alias("count"))
            .groupBy(*names, "cell")
            .agg(F.array_sort(F.collect_list(F.struct("bucket", "count"))).alias(measure))
        )
        whole = _beside(whole, counts, [*names, "cell"])
        whole = whole.withColumn(measure, F.coalesce(measure, F.array().cast(HISTOGRAM)))
    kept = [F.col(name) for name in names]
    return whole.select(*kept, _marked(F.col("start"), window_ns), *(F.col(c) for c in list(ROLLUP)[1:]))


def window_of(window: str) -> int:
    """A window's length in ns, whole microseconds. Raises InvalidValueError."""
    length = duration_ns("window", window)
    if length < 1_000 or length % 1_000:
        raise InvalidValueError(f"window={window!r}: give whole microseconds, from 1 on")
    return length


def start_of(at: Column, window_ns: int | None) -> Column:
    """The start of the window that a time is in, windows counted from 1970 UTC; without windows always the same."""
    from pyspark.sql import functions as F

    if window_ns is None:
        return F.lit(0).cast("timestamp")
    us = window_ns // 1_000
    at_us = F.unix_micros(at.cast("timestamp"))
    return F.timestamp_micros(at_us - F.pmod(at_us, F.lit(us)))


def bucket_of(value: Column) -> Column:
    """timerd_shm.histogram.index_of() of a value, in Spark: null for null, negative ones count as 0."""
    from pyspark.sql import functions as F

    value = F.greatest(value, F.lit(0).cast("bigint"))
    one = F.lit(1).cast("bigint")
    guess = F.least(F.floor(F.log2(F.greatest(value, one).cast("double"))), F.lit(62)).cast("int")
    # The logarithm is rounded: next to a power of two it may be one too small or too large.
    exponent = (
        F.when(_shifted("shiftleft", one, guess) > value, guess - 1)
        .when((guess < 62) & (_shifted("shiftleft", one, guess + 1) <= value), guess + 1)
        .otherwise(guess)
    )
    shift = F.greatest(exponent - HISTOGRAM_SUB_BITS, F.lit(0))
    step = _shifted("shiftright", value, shift).bitwiseAND(F.lit(STEPS - 1))
    index = F.when(value < STEPS, value).otherwise((exponent - HISTOGRAM_SUB_BITS + 1) * STEPS + step).cast("int")
    return F.when(value.isNull(), None).otherwise(index)


def upper_bound_of(bucket: Column) -> Column:
    """timerd_shm.histogram.upper_bound() of a bucket, in Spark."""
    from pyspark.sql import functions as F

    shift = F.greatest(F.floor(bucket / STEPS).cast("int") - 1, F.lit(0))
    lower = F.when(bucket < 2 * STEPS, bucket.cast("bigint")).otherwise(
        _shifted("shiftleft", (bucket % STEPS + STEPS).cast("bigint"), shift)
    )
    return lower - 1 + _shifted("shiftleft", F.lit(1).cast("bigint"), shift)


def percentiles_of(histogram: str, total: str, largest: str, shares: Sequence[float]) -> Column:
    """timerd_shm.histogram.percentile() for each of the shares, as an array; null where nothing was counted.

    From columns: a histogram, how many it counts, and its largest value, which none of them exceeds.
    """
    from pyspark.sql import functions as F

    def further(at: Column, one: Column) -> Column:
        there = F.struct((at["left"] - one["count"]).alias("left"), one["bucket"].alias("bucket"))
        return F.when(at["left"] > 0, there).otherwise(at)

    def bucket(q: Column) -> Column:
        rank = F.greatest(F.ceil(F.col(total) * q), F.lit(1)).cast("bigint")
        start = F.struct(rank.alias("left"), F.lit(0).alias("bucket"))
        return F.aggregate(histogram, start, further)["bucket"]

    buckets = F.transform(F.array(*(F.lit(q) for q in shares)), bucket)
    return F.when(F.col(total) > 0, F.transform(buckets, lambda b: F.least(upper_bound_of(b), F.col(largest))))


def _shifted(how: str, value: Column, by: Column) -> Column:
    from pyspark.sql import functions as F

    return F.call_function(how, value, by)


def _marked(start: Column, window_ns: int | None) -> Column:
    """The column with its window in its metadata, where merged() finds it before anything is read."""
    return start.alias("start", metadata={WINDOW_KEY: window_ns}) if window_ns else start.alias("start", metadata={})


def _bounds(window_ns: int | None) -> list[Column]:
    from pyspark.sql import functions as F

    first, last = F.min("first"), F.max("last")
    start, end = first, last
    if window_ns is not None:
        start = F.min("cell")
        end = F.timestamp_micros(F.unix_micros(start) + window_ns // 1_000)
    return [start.alias("start"), end.alias("end"), first.alias("first"), last.alias("last")]


def _histogram(measure: str, outcome: str) -> list[Column]:
    """The histogram of a measure, in order of its buckets, and its largest value, from rows of counts."""
    from pyspark.sql import functions as F

    counted = F.when(F.col("outcome") == outcome, F.struct("bucket", "count"))
    return [
        F.array_sort(F.collect_list(counted)).cast(HISTOGRAM).alias(measure),
        F.max(F.when(F.col("outcome") == outcome, F.col("max"))).alias(f"{measure}_max_ns"),
    ]


def _in_flight(df: DataFrame, names: Sequence[str], window_ns: int | None) -> DataFrame:
    """How many operations were registered and not settled, at most, at the end of a millisecond of each window.

    Sums of sums, so that no task has to see all of a group: first within parts of time, then over the parts.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    one = F.lit(1)
    moves = F.array(
        F.struct(F.col("registered_at").alias("at"), one.alias("move")),
        F.struct(F.col("settled_at").alias("at"), (-one).alias("move")),
    )
    steps = (
        df.select(*names, F.explode(moves).alias("one"))
        .select(*names, "one.move", start_of(F.col("one.at"), window_ns or CELL_NS).alias("cell"), "one.at")
        .groupBy(*names, "cell", F.unix_millis("at").alias("step"))
        .agg(F.sum("move").alias("net"))
    )
    within = Window.partitionBy(*names, "cell").orderBy("step")
    cells = (
        steps.withColumn("run", F.sum("net").over(within))
        .groupBy(*names, "cell")
        .agg(F.sum("net").alias("net"), F.max("run").alias("peak"))
    )
    before = Window.partitionBy(*names).orderBy("cell").rowsBetween(Window.unboundedPreceding, -1)
    carried = F.coalesce(F.sum("net").over(before), F.lit(0))
    peaks = cells.select(*names, "cell", (carried + F.greatest("peak", F.lit(0))).alias("in_flight_max"))
    if window_ns is not None:
        return peaks
    return peaks.groupBy(*names, start_of(F.col("cell"), None).alias("cell")).agg(
        F.max("in_flight_max").alias("in_flight_max")
    )


def _beside(left: DataFrame, right: DataFrame, on: Sequence[str]) -> DataFrame:
    """What the right has for the left's groups, beside it. A group may be that of null."""
    from pyspark.sql import functions as F

    renamed = right.select(
        *(F.col(name).alias(f"{name}__right") for name in on), *(name for name in right.columns if name not in on)
    )
    same = F.lit(True)
    for name in on:
        same = same & F.col(name).eqNullSafe(F.col(f"{name}__right"))
    return left.join(renamed, same, "left").drop(*(f"{name}__right" for name in on))
