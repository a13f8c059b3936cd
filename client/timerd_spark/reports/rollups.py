"""Rollups: a row for each group of settled operations, with histograms that merge exactly.

    rollup(df, by=["purgatory"], window="10 seconds").write.parquet(path)     # df: the terminal view
    report(spark.read.parquet(path), by=["purgatory"], window="1 hour")       # the same as from df itself

The histograms are those of timerd_shm/read: 16 steps in each power of two, so a bucket is at most 6.25 % wide. A
percentile is the upper bound of its bucket: never below the true value, and at most ERROR above. Merging adds counts,
so merged rollups give the same percentiles as all rows, p99.9 included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.records import HISTOGRAM_SUB_BITS
from timerd_shm.read.histogram import STEPS
from timerd_spark.durations import duration_ns

from .inputs import names_of, need_view, types_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR: Final = 1 / STEPS  # the relative width of a bucket: a percentile is too large by at most this share
NEEDED: Final = ("outcome", "registered_at", "settled_at", "wait_ns", "lateness_ns")
OUTCOMES: Final = ("completed", "expired", "cancelled", "failed")
HISTOGRAM: Final = "array<struct<bucket:int,count:bigint>>"
# The columns of a rollup, after the columns that it is grouped by.
ROLLUP: Final = {
    "start": "timestamp",  # of the window; without windows, the same as `first`
    "end": "timestamp",  # of the window; without windows, the same as `last`
    "first": "timestamp",  # when the first of the operations was registered
    "last": "timestamp",  # when the last of them settled
    "n": "bigint",
    **dict.fromkeys(OUTCOMES, "bigint"),
    "waited_ns": "bigint",  # the sum of the waits of all outcomes
    "latency": HISTOGRAM,  # waits of the completed ones, ns
    "latency_max_ns": "bigint",
    "lateness": HISTOGRAM,  # of the expired ones, ns
    "lateness_max_ns": "bigint",
    "in_flight_max": "bigint",
    "pauses": "array<bigint>",  # in ms: the pauses of more than a second that began in the window
}
WINDOW_KEY: Final = "timerd_window_ns"  # in the metadata of `start`; Parquet keeps it
# Names of columns in the inner queries of rollup(), and of the functions that read a rollup.
INNER: Final = (
    "at", "before", "begin", "bucket", "cell", "count", "every", "exponent", "following", "guess", "most", "move",
    "net", "next", "one", "peak", "run", "silent", "step", "until", "value", "waited",
)  # fmt: skip
PAUSE_MS: Final = 1_000  # the shortest pause
PAUSE_INTERVALS: Final = 100  # a long pause is longer than this many mean intervals between operations
CELL_NS: Final = 10_000_000_000  # without windows, in-flight maxima are computed in parts of this length


def rollup(df: DataFrame, by: str | Sequence[str] = (), window: str | None = None) -> DataFrame:
    """Group the operations of a terminal view by columns, and by windows of the time at which they settled.

    The result has a row for each group and window in which an operation has settled: columns `by`, then ROLLUP.
    `in_flight_max` is the largest number of registered and not settled operations at the end of a millisecond of the
    window; operations that were registered before the window count, too. Raises InvalidValueError if `df` is no
    terminal view, `by` no column or `window` no duration.
    """
    need_view(df, "terminal", NEEDED, "rollup()")
    names = quoted(names_of(by, df, "rollup()", {*ROLLUP, *NEEDED, *INNER}))
    window_ns = None if window is None else window_of(window)
    values = f"""
        SELECT {names} {start_of("settled_at", window_ns)} AS cell, outcome, wait_ns,
               timestamp(registered_at) AS registered_at, timestamp(settled_at) AS settled_at,
               CASE outcome WHEN 'completed' THEN wait_ns WHEN 'expired' THEN lateness_ns END AS value
        FROM {{rows}}"""
    counted = f"""
        SELECT {names} cell, outcome, bucket, count(*) AS count, max(value) AS most, sum(wait_ns) AS waited,
               min(registered_at) AS first, max(settled_at) AS last, bigint(null) AS in_flight_max,
               CAST(array() AS array<bigint>) AS pauses
        FROM ({bucketed(values)}) GROUP BY {names} cell, outcome, bucket
        UNION ALL
        SELECT {names} {start_of("cell", window_ns)}, null, null, 0, null, 0, null, null, in_flight_max, pauses
        FROM ({_in_flight(names, window_ns)})"""
    return _grouped(df, counted, names, window_ns)


def is_rollup(df: DataFrame) -> bool:
    """Whether a DataFrame has the columns of a rollup."""
    there = types_of(df)
    return all(there.get(name) == kind for name, kind in ROLLUP.items())


def merged(df: DataFrame, by: str | Sequence[str] = (), window: str | None = None) -> DataFrame:
    """Merge rollups into larger groups and windows. The result is the rollup that all their rows together would give.

    `in_flight_max` and `pauses` are exceptions. They do not follow from those of the groups. So `in_flight_max` is null
    and `pauses` is empty, unless `by` has all columns that the rollup is grouped by. Raises InvalidValueError if
    `window` would cut the windows of the rollup, or if `by` has a column by which the rollup is not grouped.
    """
    chosen = names_of(by, df, "report()", INNER)
    own = [name for name in df.columns if name not in ROLLUP]
    if strange := sorted(set(chosen) - set(own)):
        raise InvalidValueError(f"report(): by={strange[0]!r} is not what the rollup is grouped by: {', '.join(own)}")
    own_window_ns = df.schema["start"].metadata.get(WINDOW_KEY) if df.schema["start"].metadata else None
    window_ns = None if window is None else window_of(window)
    if window_ns and (not own_window_ns or window_ns % own_window_ns):
        reason = "needs a rollup with windows"
        if own_window_ns:
            reason = f"would cut the windows of {own_window_ns / 1e9:g} s: give a multiple"
        raise InvalidValueError(f"report(): window={window!r} {reason}")
    names = quoted(chosen)

    def count(outcome: str, bucket: str, count: str) -> str:
        return f"named_struct('outcome', {outcome}, 'bucket', int({bucket}), 'count', {count})"

    # Each count of a rollup as an element of its own. The element without an outcome counts 0: it adds waited_ns and
    # the pauses once.
    counts = f"""concat(
        array({count("'cancelled'", "null", "cancelled")}, {count("'failed'", "null", "failed")},
              {count("string(null)", "null", "0L")}),
        transform(latency, one -> {count("'completed'", "one.bucket", "one.count")}),
        transform(lateness, one -> {count("'expired'", "one.bucket", "one.count")}))"""
    is_same = set(chosen) == set(own)
    in_flight = "in_flight_max" if is_same else "bigint(null)"
    pauses = "CASE WHEN one.outcome IS NULL THEN pauses END" if is_same else "CAST(array() AS array<bigint>)"
    counted = f"""
        SELECT {names} cell, one.outcome AS outcome, one.bucket AS bucket, sum(one.count) AS count,
               max(CASE one.outcome WHEN 'completed' THEN latency_max_ns WHEN 'expired' THEN lateness_max_ns END)
                   AS most,
               sum(CASE WHEN one.outcome IS NULL THEN waited_ns END) AS waited, min(first) AS first, max(last) AS last,
               max({in_flight}) AS in_flight_max, flatten(collect_list({pauses})) AS pauses
        FROM (SELECT {names} {start_of("start", window_ns)} AS cell, explode({counts}) AS one, latency_max_ns,
                     lateness_max_ns, waited_ns, first, last, in_flight_max, pauses FROM {{rows}})
        GROUP BY {names} cell, one.outcome, one.bucket"""
    return _grouped(df, counted, names, window_ns)


def window_of(window: str) -> int:
    """A window's length in ns. Raises InvalidValueError if it is not a whole number of microseconds from 1 on."""
    length = duration_ns("window", window)
    if length < 1_000 or length % 1_000:
        raise InvalidValueError(f"window={window!r}: give whole microseconds, from 1 on")
    return length


def quoted(names: Sequence[str]) -> str:
    """Names of columns for a template of SQL, before other columns: each as `name` and a comma, with braces doubled."""
    return "".join(f"`{name}`, " for name in names).replace("{", "{{").replace("}", "}}")


def start_of(at: str, window_ns: int | None) -> str:
    """SQL for the start of the window of the time `at`. Windows count from 1970 UTC; without windows, always 1970."""
    if window_ns is None:
        return "timestamp_micros(0)"
    at_us = f"unix_micros(timestamp({at}))"
    return f"timestamp_micros({at_us} - pmod({at_us}, {window_ns // 1_000}L))"


def bucketed(values: str) -> str:
    """SQL that adds `bucket`, the histogram.index_of() of `value`, to a query. Null stays null; negative values are 0.

    The query has several steps, so that nothing is computed twice. The logarithm is rounded: near a power of two the
    guess may be one too small or too large, and the next step corrects it.
    """
    value = "greatest(value, 0L)"
    guess = f"int(least(floor(log2(double(greatest({value}, 1L)))), 62))"
    exponent = f"""CASE WHEN shiftleft(1L, guess) > {value} THEN guess - 1
        WHEN guess < 62 AND shiftleft(1L, guess + 1) <= {value} THEN guess + 1 ELSE guess END"""
    above = f"exponent - {HISTOGRAM_SUB_BITS}"
    step = f"(shiftright({value}, greatest({above}, 0)) & {STEPS - 1})"
    bucket = f"int(CASE WHEN {value} < {STEPS} THEN {value} ELSE ({above} + 1) * {STEPS} + {step} END)"
    return f"""
        SELECT *, CASE WHEN value IS NOT NULL THEN {bucket} END AS bucket FROM (
            SELECT *, {exponent} AS exponent FROM (SELECT *, {guess} AS guess FROM ({values})))"""


def upper_bound_of(bucket: str) -> str:
    """SQL for timerd_shm.read.histogram.upper_bound() of a bucket."""
    shift = f"greatest(int({bucket} div {STEPS}) - 1, 0)"
    steps = f"shiftleft(bigint({bucket} % {STEPS} + {STEPS}), {shift})"
    lower = f"CASE WHEN {bucket} < {2 * STEPS} THEN bigint({bucket}) ELSE {steps} END"
    return f"({lower}) - 1 + shiftleft(1L, {shift})"


def percentiles_of(histogram: str, total: str, largest: str, shares: Sequence[float]) -> str:
    """SQL for timerd_shm.read.histogram.percentile() of each share, as an array; null if nothing was counted.

    The arguments name columns: a histogram, its total count, and its largest value, which no percentile exceeds.
    """
    start = f"named_struct('rest', bigint(greatest(ceil({total} * q), 1)), 'bucket', 0)"
    further = "CASE WHEN at.rest > 0 THEN named_struct('rest', at.rest - one.count, 'bucket', one.bucket) ELSE at END"
    bucket = f"aggregate({histogram}, {start}, (at, one) -> {further}, at -> at.bucket)"
    buckets = f"transform(array({', '.join(f'{q!r}D' for q in shares)}), q -> {bucket})"
    return f"CASE WHEN {total} > 0 THEN transform({buckets}, b -> least({upper_bound_of('b')}, {largest})) END"


def _grouped(df: DataFrame, counted: str, names: str, window_ns: int | None) -> DataFrame:
    """The rollup that a query's counts and in-flight maxima make. `{rows}` in the query `counted` stands for `df`."""
    start, end = ("min(first)", "max(last)")
    if window_ns is not None:
        start, end = ("cell", f"timestamp_micros(unix_micros(cell) + {window_ns // 1_000}L)")

    def histogram(measure: str, outcome: str) -> str:
        own = f"CASE WHEN outcome = '{outcome}' THEN"
        return f"""CAST(array_sort(collect_list({own} struct(bucket, count) END)) AS {HISTOGRAM}) AS {measure},
               max({own} most END) AS {measure}_max_ns"""

    outcomes = ", ".join(f"sum(CASE WHEN outcome = '{o}' THEN count ELSE 0 END) AS {o}" for o in OUTCOMES)
    rolled = df.sparkSession.sql(
        f"""
        SELECT {names} {start} AS start, {end} AS `end`, min(first) AS first, max(last) AS last, sum(count) AS n,
               {outcomes}, sum(waited) AS waited_ns,
               {histogram("latency", "completed")}, {histogram("lateness", "expired")},
               max(in_flight_max) AS in_flight_max, array_sort(flatten(collect_list(pauses))) AS pauses
        FROM ({counted}) GROUP BY {names} cell HAVING sum(count) > 0""",
        rows=df,
    )
    # merged() finds the window in the metadata, before any row is read.
    return rolled if window_ns is None else rolled.withMetadata("start", {WINDOW_KEY: window_ns})


def _in_flight(names: str, window_ns: int | None) -> str:
    """SQL for the largest number of registered and not settled operations at the end of a millisecond, by window.

    The result also has the pauses that begin in the window. The query adds up within parts of time first, and then over
    the parts, so that no task has to see a whole group. All parts of a group are partitioned by `every`, which is 0 in
    all rows. Spark would warn of a window without a partition, or with a constant as its partition, but it does not see
    that this aggregate is a constant.
    """
    return f"""
        SELECT {names} cell, greatest(peak, 0) + before AS in_flight_max, concat(
            transform(filter(silent, one -> one.run + before = 0), one -> one.length),
            CASE WHEN net + before = 0 AND following - until > {PAUSE_MS} THEN array(following - until)
                 ELSE CAST(array() AS array<bigint>) END) AS pauses
        FROM (SELECT *, lead(begin) OVER (PARTITION BY {names} every ORDER BY cell) AS following, coalesce(sum(net)
                  OVER (PARTITION BY {names} every ORDER BY cell ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
                  AS before
        FROM (SELECT {names} cell, sum(net) AS net, max(run) AS peak, min(step) AS begin, max(step) AS until,
                     min(0) AS every,
                     collect_list(CASE WHEN next - step > {PAUSE_MS} THEN struct(run, next - step AS length) END)
                         AS silent
              FROM (SELECT *, sum(net) OVER (PARTITION BY {names} cell ORDER BY step) AS run,
                              lead(step) OVER (PARTITION BY {names} cell ORDER BY step) AS next
                    FROM (SELECT {names} {start_of("at", window_ns or CELL_NS)} AS cell,
                                 unix_millis(timestamp(at)) AS step, sum(move) AS net
                          FROM (SELECT {names} stack(2, registered_at, 1, settled_at, -1) AS (at, move) FROM {{rows}})
                          GROUP BY {names} cell, step))
              GROUP BY {names} cell))"""


def pauses_of(df: DataFrame, by: Sequence[str]) -> DataFrame:
    """The pauses of each group of a terminal view: columns `by`, and `pauses` as in a rollup."""
    names = quoted(by)
    grouped = f"GROUP BY {names.removesuffix(', ')}" if by else ""
    return df.sparkSession.sql(
        f"SELECT {names} flatten(collect_list(pauses)) AS pauses FROM ({_in_flight(names, None)}) {grouped}", rows=df
    )


def idle_of(seconds: str, n: str, pauses: str = "pauses") -> str:
    """SQL for the seconds of the long pauses: longer than PAUSE_INTERVALS times the mean interval `seconds` / `n`."""
    long = f"one -> one > {PAUSE_INTERVALS}e3D * {seconds} / {n}"
    return f"aggregate(filter({pauses}, {long}), 0L, (sum, one) -> sum + one) / 1e3D"
