"""Exact percentiles against sorted rows, and the timeouts that are chosen from them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from support.spark.lives import MS, life, lives
from timerd_spark.pipeline.pipeline import curve_for, timeouts_for
from timerd_spark.reports.percentiles import LATENCY, LATENESS, SHARES, percentiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEASURES = {"latency": LATENCY, "lateness": LATENESS}


def test_a_percentile_is_the_value_at_its_place_in_the_sorted_rows_of_a_group(spark: SparkSession) -> None:
    rng = random.Random(7)
    rows = [life(at, rng.lognormvariate(3, 1.6), purgatory=rng.choice(["a", "b"])) for at in range(300)]
    rows += [life(at, 200 + rng.random(), "expired", purgatory="a") for at in range(7)]
    rows += [life(9, 3, "cancelled", purgatory=None, timeout_ns=None)]
    df = lives(spark, *rows, partitions=2)
    found = {(row.of_all, row.purgatory): row.asDict() for row in percentiles(df, MEASURES, "purgatory").collect()}
    assert set(found) == {(True, None), (False, "a"), (False, "b"), (False, None)}, "a null is a group of its own"
    for (of_all, name), row in found.items():
        own = [one for one in rows if of_all or one["purgatory"] == name]
        assert row["n"] == len(own) and row["cancelled"] == sum(one["outcome"] == "cancelled" for one in own)
        for measure, outcome, column in (("latency", "completed", "wait_ns"), ("lateness", "expired", "lateness_ns")):
            values = sorted(one[column] for one in own if one["outcome"] == outcome)
            assert row[outcome] == len(values)
            for short, share in SHARES.items():
                exact = values[math.ceil(share * len(values)) - 1] / MS if values else None
                assert row[f"{measure}_{short}_ms"] == exact, (name, measure, short)
    every = found[True, None]
    assert (every["timeout_low_ns"], every["timeout_high_ns"]) == (200 * MS, 200 * MS)
    assert every["end_us"] - every["start_us"] == max(
        round((one["settled_at"] - rows[0]["registered_at"]).total_seconds() * 1e6) for one in rows
    )


def test_timeouts_are_chosen_from_the_waits_and_the_timeouts_of_today(spark: SparkSession) -> None:
    rows = [life(at, 1.234 * (at + 1)) for at in range(100)]
    waited = lives(spark, *rows, life(0, 201, "expired"), life(0, 60, timeout_ns=80 * MS))
    assert timeouts_for(waited) == [0.062, 0.093, 0.11, 0.12], "two digits, and each once"
    curve = curve_for(waited)
    assert len(curve) > 40 and curve == sorted(curve) and {0.08, 0.2} <= set(curve), "with the timeouts of today"
    never = lives(spark, life(0, 201, "expired"))
    assert timeouts_for(never) == [0.2] and curve_for(never) == [0.2], "nothing has completed"
    nothing = waited.limit(0)
    assert timeouts_for(nothing) == curve_for(nothing) == [1.0]
