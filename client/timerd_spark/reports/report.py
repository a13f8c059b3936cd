"""Reports on settled operations: from a journal, Parquet files, a load test or rollups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from timerd_shm.declare.errors import InvalidValueError

from .inputs import names_of, need_view
from .rollups import NEEDED, idle_of, is_rollup, merged, percentiles_of, rollup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PERCENTILES: Final = {"p50": 0.5, "p75": 0.75, "p90": 0.9, "p99": 0.99, "p999": 0.999}
KEYS_MAX: Final = 1_000_000


def report(df: DataFrame, by: str | Sequence[str] = (), window: str | None = None) -> DataFrame:
    """A row for each group and window: rates, timeout ratio, percentiles, the largest number of operations in flight.

    `df` is a terminal view, or a rollup of one. Percentiles are the same from both, because they are read from the
    rollup's histograms (at most rollups.ERROR too large). Columns: `by`, then

        start, end                the window; without windows, from the first registration to the last outcome
        n                         operations that settled in the window
        completed, expired, cancelled, failed         how many of them settled in this way
        idle_s                    the pauses in the time from start to end, if there are no windows; 0 if `by` lacks a
                                  column of the rollup
        rate                      n / the window's length; without windows, n / the time from start to end without
                                  pauses. A window that work did not fill has a low rate
        timeout_ratio             expired / n
        latency_p50_ms .. p999_ms, latency_max_ms     from registration to outcome, of the completed ones
        lateness_p50_ms .. p999_ms, lateness_max_ms   from deadline to outcome, of the expired ones
        in_flight_mean            by Little's law: the sum of all waits / the same time as for `rate`. With windows, a
                                  wait counts as a whole in the window in which it ends. So the mean is right if waits
                                  are much shorter than the windows; otherwise take `in_flight_max`, or no windows
        in_flight_max             the largest number of operations in flight at the end of a millisecond; null if `by`
                                  lacks a column of the rollup: see rollup()

    A pause is a time without operations in flight that is longer than a second and longer than 100 mean intervals
    between operations: for example, between the rounds of a load test, or at night.

    Raises InvalidValueError for columns that are missing or of another type, and for a window that is no duration.
    """
    measured = [f"{m}_{p}_ms" for m in ("latency", "lateness") for p in (*PERCENTILES, "max")]
    taken = {
        *measured,
        "idle_s",
        "busy",
        "rate",
        "timeout_ratio",
        "in_flight_mean",
        "seconds",
        "latency_shares",
        "lateness_shares",
    }
    names = [f"`{name}`" for name in names_of(by, df, "report()", taken)]
    if not is_rollup(df):
        need_view(df, "terminal", NEEDED, "report()")
    rolled = merged(df, by, window) if is_rollup(df) else rollup(df, by, window)
    shares, measures = [], []
    for measure, total in (("latency", "completed"), ("lateness", "expired")):
        of_all = percentiles_of(measure, total, f"{measure}_max_ns", list(PERCENTILES.values()))
        shares.append(f"{of_all} AS {measure}_shares")
        measures += [f"{measure}_shares[{at}] / 1e6D AS {measure}_{name}_ms" for at, name in enumerate(PERCENTILES)]
        measures.append(f"{measure}_max_ns / 1e6D AS {measure}_max_ms")
    seconds = "(unix_micros(`end`) - unix_micros(start)) / 1e6D"
    idle = idle_of(seconds, "n") if window is None else "0D"
    busy = f"{seconds} - {idle} AS busy"
    return rolled.selectExpr("*", *shares, busy, f"{idle} AS idle_s").selectExpr(
        *names,
        "start",
        "`end`",
        "n",
        "completed",
        "expired",
        "cancelled",
        "failed",
        "idle_s",
        "CASE WHEN busy > 0 THEN n / busy END AS rate",
        "expired / n AS timeout_ratio",
        *measures,
        "CASE WHEN busy > 0 THEN waited_ns / 1e9D / busy END AS in_flight_mean",
        "in_flight_max",
    )


def hot_keys(df: DataFrame, k: int = 20) -> DataFrame:
    """The k keys of a terminal view with the most settled operations, the hottest first. Raises InvalidValueError.

    Columns: purgatory, key, n (operations), share (of all operations), timeout_ratio. Counts are exact. Keys with the
    same n come in the order of their names.
    """
    from pyspark.sql import functions as F

    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= KEYS_MAX:
        raise InvalidValueError(f"hot_keys(): k={k!r}: give a number from 1 to {KEYS_MAX:,}")
    need_view(df, "terminal", ("purgatory", "key", "outcome"), "hot_keys()")
    keys = df.groupBy("purgatory", "key").agg(
        F.count(F.lit(1)).alias("n"),
        F.avg(F.when(F.col("outcome") == "expired", 1.0).otherwise(0.0)).alias("timeout_ratio"),
    )
    total = df.agg(F.count(F.lit(1)).alias("total"))
    largest = keys.orderBy(F.desc("n"), "purgatory", "key").limit(k)
    return (
        largest.crossJoin(F.broadcast(total))
        .select("purgatory", "key", "n", (F.col("n") / F.col("total")).alias("share"), "timeout_ratio")
        .orderBy(F.desc("n"), "purgatory", "key")
    )
