"""what_if(): the effect of other timeouts, estimated from the waits that a journal has recorded.

Example: an operation that expired at 200 ms waited 200 ms or longer, and the rest is not known. Its life is *censored*
at 200 ms. So shares of lives cannot simply be counted. They are estimated by the product-limit method (E. L. Kaplan and
P. Meier, "Nonparametric estimation from incomplete observations", J. Am. Stat. Assoc. 53, 1958): S(t), the share that
still waits at t, is the product of (1 - settled / still watched) over all times up to t. The method assumes that the
timeout that an operation had does not depend on how long it would have waited. Beyond the largest watched time nothing
is known.

Completion, failure and cancellation are *competing risks*: each ends a life, and a cancelled life cannot expire. So
S(t) counts all three as ends, and the share that expires with a timeout is S(timeout). It is 1 minus the shares
that the estimate of O. O. Aalen and S. Johansen ("An empirical transition matrix", Scand. J. Statist. 5, 1978) gives
for the three risks up to the timeout. If cancelled lives were censored, S(t) would be of a world without cancellations:
the share would be too large, and would contradict report().

A few operations with a longer timeout show little: S jumps far when one of them ends, and they may differ from the
others. So the estimate ends where fewer than one in a hundred are still watched. Limits of confidence are Greenwood's
(M. Greenwood, "The natural duration of cancer", 1926) for log(-log S), which stay within 0 and 1. The limits of the
mean are those of the area under S (Kaplan and Meier, section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.durations import duration_ns

from .inputs import names_of, need_view
from .rollups import ROLLUP, idle_of, is_rollup, pauses_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NEEDED: Final = ("outcome", "registered_at", "settled_at", "timeout_ns", "wait_ns")
# Names of columns in the inner queries and in the result: no column to group by may have one of them.
TAKEN: Final = (
    "all_settled", "area", "areas", "areas_0", "areas_1", "areas_2", "asked", "at", "before", "beyond", "ended",
    "every", "first", "in_flight", "in_flight_high", "in_flight_low", "known_ns", "last", "last_at", "left", "log_left",
    "log_stay", "mean_at", "mean_wait_ns", "moment", "n", "of_step", "over", "previous", "rate", "registered_at",
    "settled", "since", "stay", "step", "survival", "timeout_ns", "timeout_ratio", "timeout_ratio_high",
    "timeout_ratio_low", "total", "until", "watched",
)  # fmt: skip
TIMEOUTS_MAX: Final = 1_000
WATCHED_SHARE: Final = 0.01  # the estimate ends where a smaller share of all operations is still watched
Z: Final = 1.959964  # for limits with a confidence of 95 %
BEYOND_Z: Final = 0.025  # the probability beyond each of the two limits
STEP_BITS: Final = 10  # times are rounded to one part in 1,024, so that more lives do not make more distinct times


def what_if(
    df: DataFrame,
    timeouts: Sequence[str | float],
    by: str | Sequence[str] = (),
    *,
    rolled: DataFrame | None = None,
) -> DataFrame:
    """The timeout ratio and the load that other timeouts would have given. A row for each group and timeout.

    `df` is a terminal view. A life ends with a completion, failure or cancellation within the timeout. An operation
    that expired or settled late is censored at its timeout. For the timeout that all operations had, `timeout_ratio` is
    that of report(). Columns: `by`, then

        timeout_ns      the timeout, one of `timeouts`
        timeout_ratio   S(timeout): the share that would have expired
        timeout_ratio_low, timeout_ratio_high     the limits of timeout_ratio, with a confidence of 95 %
        mean_wait_ns    the mean of min(wait, timeout): the area under S up to the timeout
        rate            registrations a second, without the pauses: see report()
        in_flight       rate x mean_wait: the mean number of pending operations (Little's law)
        in_flight_low, in_flight_high             the limits of in_flight, from the limits of mean_wait alone
        watched         operations that were watched until the timeout, or until known_ns
        known_ns        the longest time for which one in a hundred operations of the group was watched
        beyond          timeout_ns > known_ns: the data do not reach the timeout. All figures are those at known_ns:
                        the truth is at most timeout_ratio_high, and at least in_flight_low

    If you have a rollup() of the same operations by the same columns, with any windows, pass it as `rolled`. Then the
    pauses are taken from it. Otherwise the search for pauses takes half of the time of the call.

    Raises InvalidValueError for missing columns, and for timeouts that are not durations.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    need_view(df, "terminal", NEEDED, "what_if()")
    names = names_of(by, df, "what_if()", TAKEN)
    wanted = timeouts_of(timeouts)
    paused = pauses_of(df, names) if rolled is None else _pauses_in(rolled, names)
    # Waits beyond the timeout are seen only if the daemon was late. They are no fair sample, so they are censored.
    over = (F.col("outcome") == "expired") | (F.col("wait_ns") > F.col("timeout_ns"))
    settled = ~F.coalesce(over, F.lit(False))
    at = F.when(over, F.coalesce("timeout_ns", "wait_ns")).otherwise(F.col("wait_ns"))
    lives = df.select(*names, "registered_at", settled.alias("settled"), F.greatest(at, F.lit(0)).alias("at"))
    # No step of time contains a timeout, so the operations that settle before each timeout are known exactly.
    before = sum((F.when(F.col("at") > one, 1).otherwise(0) for one in wanted), F.lit(0))
    exponent = F.greatest(F.floor(F.log2(F.greatest("at", F.lit(1)).cast("double"))).cast("int") - STEP_BITS, F.lit(0))
    step = F.call_function("shiftleft", F.call_function("shiftright", F.col("at"), exponent), exponent)
    steps = lives.groupBy(*names, before.alias("before"), step.alias("step")).agg(
        F.count(F.when(F.col("settled"), 1)).alias("settled"),
        F.count(F.lit(1)).alias("ended"),
        F.avg(F.when(F.col("settled"), F.col("at"))).alias("mean_at"),
        F.max("at").alias("last_at"),
        F.min("registered_at").alias("first"),
        F.max("registered_at").alias("last"),
        F.min(F.lit(0)).alias("every"),  # see rollups._in_flight()
    )
    group: Any = Window.partitionBy(*(names or ["every"]))
    ordered = group.orderBy("before", "step")
    past = ordered.rowsBetween(Window.unboundedPreceding, -1)
    survival = F.when(F.col("left") <= 0, 0.0).otherwise(F.exp("log_left"))
    curve = (
        steps.withColumn("total", F.sum("ended").over(group))
        .withColumn("first", F.min("first").over(group))
        .withColumn("last", F.max("last").over(group))
        .withColumn("watched", F.col("total") - F.coalesce(F.sum("ended").over(past), F.lit(0)))
        .where(F.col("watched") >= F.col("total") * WATCHED_SHARE)
        .withColumn("stay", 1 - F.col("settled") / F.col("watched"))
        # When all watched operations have settled, the share that waits is 0 and has no logarithm.
        .withColumn("of_step", F.when(F.col("stay") > 0, (1 - F.col("stay")) / (F.col("stay") * F.col("watched"))))
        .withColumn("log_stay", F.when(F.col("stay") > 0, F.log("stay")).otherwise(0.0))
        .withColumn("log_left", F.sum("log_stay").over(ordered))
        .withColumn("left", F.min("stay").over(ordered))
        .withColumn("survival", survival)
        .withColumn("moment", F.coalesce("mean_at", F.col("step").cast("double")))
        .withColumn("previous", F.coalesce(F.lag("survival").over(ordered), F.lit(1.0)))
        .withColumn("since", F.coalesce(F.lag("moment").over(ordered), F.lit(0.0)))
        .withColumn("area", F.col("previous") * (F.col("moment") - F.col("since")))
        .withColumn("areas", F.sum("area").over(ordered))
    )
    asked = F.explode(
        F.array(*(F.struct(F.lit(at).alias("index"), F.lit(one).alias("timeout_ns")) for at, one in enumerate(wanted)))
    )
    within = F.col("before") <= F.col("asked.index")
    totals = (
        curve.withColumn("asked", asked)
        .groupBy(*names, F.col("asked.timeout_ns").cast("bigint").alias("timeout_ns"))
        .agg(
            F.coalesce(F.min(F.when(within, F.col("survival"))), F.lit(1.0)).alias("timeout_ratio"),
            F.coalesce(F.sum(F.when(within, F.col("area"))), F.lit(0.0)).alias("area"),
            F.coalesce(F.max(F.when(within, F.col("moment"))), F.lit(0.0)).alias("until"),
            F.max("total").alias("n"),
            F.coalesce(F.sum(F.when(within, F.col("ended"))), F.lit(0)).alias("over"),
            # The variance of an area is the sum of (area after a step)^2 x the step's part.
            *(
                F.coalesce(F.sum(F.when(within, F.pow("areas", F.lit(power)) * F.col("of_step"))), F.lit(0.0)).alias(
                    f"areas_{power}"
                )
                for power in range(3)
            ),
            F.max(F.when(within & (F.col("stay") <= 0), F.col("settled"))).alias("all_settled"),
            F.max("last_at").alias("known_ns"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
        )
    )
    same = [totals[name].eqNullSafe(paused[name]) for name in names]
    totals = totals.join(paused, reduce(and_, same, F.lit(True))).select(
        *(totals[name] for name in totals.columns), "pauses"
    )
    seconds = "((unix_micros(last) - unix_micros(first)) / 1e6D)"
    busy = F.expr(f"{seconds} - {idle_of(seconds, 'n')}")
    end = F.least("timeout_ns", "known_ns")
    mean = F.col("area") + F.col("timeout_ratio") * F.greatest(end - F.col("until"), F.lit(0.0))
    rate = F.when(busy > 0, F.col("n") / busy)
    watched = F.col("n") - F.col("over")
    variance = mean * mean * F.col("areas_0") - 2 * mean * F.col("areas_1") + F.col("areas_2")
    wide = Z * F.sqrt(F.greatest(variance, F.lit(0.0)))
    low, high = _limits(F.col("timeout_ratio"), F.col("areas_0"), watched, F.col("all_settled"))
    return totals.select(
        *(F.col(name) for name in names),
        "timeout_ns",
        "timeout_ratio",
        low.alias("timeout_ratio_low"),
        high.alias("timeout_ratio_high"),
        mean.alias("mean_wait_ns"),
        rate.alias("rate"),
        (rate * mean / 1e9).alias("in_flight"),
        (rate * F.greatest(mean - wide, F.lit(0.0)) / 1e9).alias("in_flight_low"),
        (rate * F.least(mean + wide, end.cast("double")) / 1e9).alias("in_flight_high"),
        watched.alias("watched"),
        "known_ns",
        (F.col("timeout_ns") > F.col("known_ns")).alias("beyond"),
    )


def _pauses_in(rolled: DataFrame, names: Sequence[str]) -> DataFrame:
    """The pauses of each group, from a rollup by these columns. Raises InvalidValueError for another DataFrame."""
    from pyspark.sql import functions as F

    own = [name for name in rolled.columns if name not in ROLLUP]
    if not is_rollup(rolled) or sorted(own) != sorted(names):
        raise InvalidValueError(
            f"what_if(): rolled has the columns {', '.join(rolled.columns)}: give rollup(df, by={list(names)!r})"
        )
    return rolled.groupBy(*names).agg(F.flatten(F.collect_list("pauses")).alias("pauses"))


def _limits(ratio: Column, steps: Column, watched: Column, all_settled: Column) -> tuple[Column, Column]:
    """The limits of a share that still waits. `steps` is Greenwood's sum.

    If none of the `watched` has settled, or all of the last `all_settled` have, there is no such sum. Then the limits
    are the exact ones for a sample of which none, or all, have settled.
    """
    from pyspark.sql import functions as F

    width = F.when((ratio > 0) & (ratio < 1), Z * F.sqrt(steps) / -F.log(ratio))
    none = F.pow(F.lit(BEYOND_Z), 1 / F.greatest(watched, F.lit(1)))
    every = F.when(all_settled > 0, 1 - F.pow(F.lit(BEYOND_Z), 1 / all_settled))
    low = F.when(ratio >= 1, none).when(ratio <= 0, 0.0).otherwise(F.pow(ratio, F.exp(width)))
    high = F.when(ratio >= 1, 1.0).when(ratio <= 0, every).otherwise(F.pow(ratio, F.exp(-width)))
    return low, high


def timeouts_of(timeouts: Sequence[str | float]) -> list[int]:
    """The timeouts in ns, sorted, each once. Raises InvalidValueError."""
    if isinstance(timeouts, str) or not isinstance(timeouts, Iterable):
        raise InvalidValueError(f'what_if(): timeouts={timeouts!r}: give a list of them, such as ["100ms", "1s"]')
    wanted = sorted({duration_ns("timeouts", one) for one in timeouts})
    if not 1 <= len(wanted) <= TIMEOUTS_MAX or wanted[0] < 1:
        raise InvalidValueError(f"what_if(): timeouts={list(timeouts)!r}: give 1 to {TIMEOUTS_MAX:,}, above 0")
    return wanted
