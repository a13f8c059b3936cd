"""what_if(), against a table computed by hand and against the distribution from which lives were drawn."""

from __future__ import annotations

import math
import random
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

import pytest

from lives import MS, life, lives
from timerd_shm.declare.errors import InvalidValueError
from timerd_spark import what_if

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_estimate_is_the_one_worked_out_by_hand(spark: SparkSession) -> None:
    # Waits 1, 3, 3, 5 ms; censored at 2 (cancelled) and at 4 (expired).
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
    one, three = 5 / 6, 5 / 6 * 2 / 4
    assert [row.timeout_ratio for row in rows] == pytest.approx([one, one, three, three, 0, 0])
    areas = [1, 1 + one, 1 + 2 * one, 1 + 2 * one + three, 1 + 2 * one + 2 * three, 1 + 2 * one + 2 * three]
    assert [row.mean_wait_ns / MS for row in rows] == pytest.approx(areas)
    assert [row.watched for row in rows] == [5, 4, 2, 1, 0, 0]
    assert [row.beyond for row in rows] == [False] * 5 + [True]
    assert rows[0].rate == 6 and rows[0].known_ns == 5 * MS
    assert rows[0].in_flight == pytest.approx(6 * 0.001)


@pytest.mark.long  # its short form is the one above
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
            assert row.timeout_ratio > true, "an upper bound"
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
    with pytest.raises(InvalidValueError, match="needs the column 'outcome'"):
        what_if(spark.range(1), ["1s"])
