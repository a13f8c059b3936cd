"""what_if(), against a table computed by hand and against the distribution from which lives were drawn."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

import pytest

from support.spark.lives import MS, life, lives
from support.suite.tiers import in_tiers
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark import report, rollup, what_if

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_the_estimate_is_the_one_worked_out_by_hand(spark: SparkSession) -> None:
    # Waits 1, 2 (cancelled), 3, 3, 5 ms; censored at 4 (expired).
    df = lives(
        spark,
        life(0, 1),
        life(100, 2, "cancelled"),
        life(200, 3, "failed"),
        life(300, 3),
        life(400, 4.5, "expired", timeout_ns=4 * MS),
        life(1000, 5),
    )
    rows = what_if(df, ["1ms", "2ms", "3ms", "4ms", "5ms", "1 second"]).orderBy("timeout_ns").collect()
    one, two, three = 5 / 6, 5 / 6 * 4 / 5, 5 / 6 * 4 / 5 * 2 / 4
    assert [row.timeout_ratio for row in rows] == pytest.approx([one, two, three, three, 0, 0])
    areas = [1, 1 + one, 1 + one + two, 1 + one + two + three, *[1 + one + two + 2 * three] * 2]
    assert [row.mean_wait_ns / MS for row in rows] == pytest.approx(areas)
    assert [row.watched for row in rows] == [5, 4, 2, 1, 0, 0]
    assert [row.beyond for row in rows] == [False] * 5 + [True]
    greenwood = [1 / 30, 1 / 30 + 1 / 20, 1 / 30 + 1 / 20 + 2 / 8, 1 / 30 + 1 / 20 + 2 / 8]
    for row, total in zip(rows, greenwood, strict=False):
        width = 1.959964 * math.sqrt(total) / -math.log(row.timeout_ratio)
        assert row.timeout_ratio_low == pytest.approx(row.timeout_ratio ** math.exp(width))
        assert row.timeout_ratio_high == pytest.approx(row.timeout_ratio ** math.exp(-width))
    assert rows[4].timeout_ratio_low == 0 and rows[4].timeout_ratio_high == pytest.approx(0.975), (
        "of the one operation left, one ended"
    )
    assert rows[0].rate == 6 and rows[0].known_ns == 5 * MS
    assert rows[0].in_flight == pytest.approx(6 * 0.001)
    rolled = rollup(df, window="200ms")
    assert what_if(df, ["1ms"], rolled=rolled).collect() == rows[:1]
    with pytest.raises(InvalidValueError, match=r"what_if\(\): rolled has the columns start, .*: give rollup"):
        what_if(df, ["1ms"], "purgatory", rolled=rolled)


def test_with_cancelled_operations_the_estimate_for_their_own_timeout_is_the_ratio_of_the_report(
    spark: SparkSession, rng: random.Random, capfd: pytest.CaptureFixture[str]
) -> None:
    """A cancelled operation cannot expire: a cancellation is an end like any other, and competes with expiry."""
    rows, ends = [], []
    for at in range(1_000):
        end, how = min((rng.expovariate(1 / 80), "completed"), (rng.expovariate(1 / 300), "cancelled"))
        ends.append(end)
        rows.append(life(at, end, how) if end <= 200 else life(at, 200.3, "expired"))
    df = lives(spark, *rows)
    (told,) = report(df).collect()
    shorter, own = what_if(df, ["100ms", "200ms"]).orderBy("timeout_ns").collect()
    assert 0.1 < told.cancelled / told.n < 0.3
    assert own.timeout_ratio == pytest.approx(told.timeout_ratio) and not own.beyond
    assert shorter.timeout_ratio == pytest.approx(sum(end > 100 for end in ends) / len(ends))
    assert own.mean_wait_ns / MS == pytest.approx(fmean(min(end, 200) for end in ends))
    assert "WindowExec" not in capfd.readouterr().err, "Spark warns of each window over all rows"
    assert own.in_flight / own.rate == pytest.approx(told.in_flight_mean / told.rate, rel=0.01), "Little's law in both"


SETTLED_AT = "timestamp_micros(unix_micros(registered_at) + wait_ns DIV 1000) AS settled_at"


def exponential(spark: SparkSession, groups: int, count: int) -> DataFrame:
    """Groups of operations whose waits are exponential, 80 ms in the mean. The timeout is 100 or 200 ms."""
    drawn = spark.range(groups * count).selectExpr(
        f"CAST(id % {groups} AS string) AS purgatory",
        "timestamp_micros(id * 1000) AS registered_at",
        "CASE WHEN rand(3) < 0.5 THEN 100000000L ELSE 200000000L END AS timeout_ns",
        f"bigint(-ln(1 - rand(4)) * {80 * MS}) AS true_ns",
    )
    return drawn.selectExpr(
        "purgatory",
        "registered_at",
        "timeout_ns",
        "least(true_ns, timeout_ns + 100000) AS wait_ns",
        "CASE WHEN true_ns <= timeout_ns THEN 'completed' ELSE 'expired' END AS outcome",
    ).selectExpr("*", SETTLED_AT)


@pytest.mark.long
@pytest.mark.parametrize(("groups", "least", "most"), in_tiers([(100, 0.87, 1.0), (400, 0.91, 0.99)], 1))
def test_the_limits_contain_a_known_truth_in_95_cases_of_100(
    spark: SparkSession, groups: int, least: float, most: float
) -> None:
    mean = 80
    rows = what_if(exponential(spark, groups, 200), ["50ms", "150ms", "1s"], by="purgatory").collect()
    for timeout in (50, 150, 1000):
        of_timeout = [row for row in rows if row.timeout_ns == timeout * MS]
        share = math.exp(-timeout / mean)
        area = mean * (1 - share)
        held = [row.timeout_ratio_low <= share <= row.timeout_ratio_high for row in of_timeout]
        pending = [row.in_flight_low <= row.rate * area / 1e3 <= row.in_flight_high for row in of_timeout]
        if timeout < 200:
            assert least < sum(held) / groups <= most and least < sum(pending) / groups <= most
        else:
            assert all(row.beyond and 100 * MS < row.known_ns <= 200 * MS for row in of_timeout)
            assert sum(share <= row.timeout_ratio_high for row in of_timeout) == groups, "an upper bound"
            assert sum(row.in_flight_low <= row.rate * area / 1e3 for row in of_timeout) == groups, "a lower bound"


def test_a_few_operations_with_a_longer_timeout_give_no_bound(spark: SparkSession) -> None:
    """Only 20 of 4,020 were watched beyond 200 ms. They are of another kind, and none of them waits for 300 ms."""
    odd = (
        spark.range(20)
        .selectExpr(
            "'0' AS purgatory",
            "timestamp_micros(id * 1000) AS registered_at",
            "1000000000L AS timeout_ns",
            "210000000L + id * 1000000L AS wait_ns",
            "'completed' AS outcome",
        )
        .selectExpr("*", SETTLED_AT)
    )
    (row,) = what_if(exponential(spark, 1, 4_000).unionByName(odd), ["300ms"]).collect()
    true = math.exp(-300 / 80)
    assert row.beyond and row.known_ns == 200 * MS and row.watched == 20
    assert row.timeout_ratio_high > row.timeout_ratio > true


@pytest.mark.long  # its short form is the test above
def test_the_true_log_normal_is_recovered_from_censored_lives(spark: SparkSession) -> None:
    rng = random.Random(11)
    median, sigma = 20.0, math.log(3) / NormalDist().inv_cdf(0.75)
    rows, waits = [], []
    for at in range(20_000):
        wait, timeout = median * math.exp(rng.gauss(0, sigma)), rng.choice([100, 200])
        waits.append(wait)
        if wait <= timeout:
            rows.append(life(at, wait, timeout_ns=timeout * MS))
        else:  # now and then an event comes before the daemon notices the deadline
            late = "completed" if rng.random() < 0.02 else "expired"
            rows.append(life(at, timeout + 0.4, late, timeout_ns=timeout * MS))
    for row in what_if(lives(spark, *rows), ["50ms", "100ms", "150ms", "200ms", "400ms"]).collect():
        timeout = row.timeout_ns / MS
        true = 1 - NormalDist().cdf(math.log(timeout / median) / sigma)
        assert row.beyond == (timeout > 200)
        if row.beyond:
            assert row.timeout_ratio_high > row.timeout_ratio > true, "an upper bound"
        else:
            assert row.timeout_ratio == pytest.approx(true, abs=0.01)
            assert row.mean_wait_ns / MS == pytest.approx(fmean(min(wait, timeout) for wait in waits), rel=0.01)
            assert row.in_flight == pytest.approx(row.rate * row.mean_wait_ns / 1e9)


def test_groups_are_estimated_separately_and_senseless_arguments_are_refused(spark: SparkSession) -> None:
    df = lives(spark, life(0, 10, purgatory="a"), life(9, 201, "expired", purgatory="b"), life(20, 30, purgatory="a"))
    rows = what_if(df, ["15ms"], by="purgatory").orderBy("purgatory").collect()
    assert [(row.purgatory, row.timeout_ratio, row.watched) for row in rows] == [("a", 0.5, 1), ("b", 1.0, 1)]
    assert rows[1].rate is None and rows[1].in_flight is None, "one registration has no rate"
    for timeouts, said in (([], "give 1 to"), (["0s"], "above 0"), (["soon"], "timeouts='soon' is no duration")):
        with pytest.raises(InvalidValueError, match=said):
            what_if(df, timeouts)
    with pytest.raises(InvalidValueError, match="needs the columns 'outcome', 'registered_at'"):
        what_if(spark.range(1), ["1s"])
