"""Reports and rollups against figures counted by hand, and against the histograms of timerd_shm."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.spark.lives import MS, START, life, lives
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.records import HISTOGRAM_BUCKETS
from timerd_shm.read.histogram import index_of, upper_bound
from timerd_spark import hot_keys, report, rollup, what_if
from timerd_spark.pipeline import plots
from timerd_spark.reports.rollups import ERROR, ROLLUP, bucketed, merged, upper_bound_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


CLOCKS_ARE_PUT = {
    "forward": datetime(2026, 3, 28, 23, tzinfo=UTC),
    "back": datetime(2026, 10, 24, 23, tzinfo=UTC),
}


@pytest.fixture(scope="module")
def many(spark: SparkSession) -> DataFrame:
    """2,000 operations of two purgatories over a minute, a tenth of them expired, in two partitions."""
    rng = random.Random(5)
    rows = []
    for _ in range(2_000):
        expired = rng.random() < 0.1
        wait_ms = 200 + rng.expovariate(2) if expired else rng.lognormvariate(3, 1.6)
        purgatory = rng.choice(["fetch", "produce"])
        rows.append(
            life(rng.random() * 60_000, wait_ms, "expired" if expired else "completed", purgatory=purgatory, owner=None)
        )
    return lives(spark, *rows, partitions=2).cache()


def test_buckets_and_their_bounds_are_those_of_the_shared_histograms(spark: SparkSession) -> None:
    edges = [(1 << power) + step for power in range(63) for step in (-1, 0, 1)]
    values = sorted({*range(70), *edges, (1 << 63) - 1, *(random.Random(1).getrandbits(62) for _ in range(200))})
    df = spark.createDataFrame([(value,) for value in values], "value bigint")
    found = spark.sql(bucketed("SELECT value FROM {rows}"), rows=df).collect()
    assert [row.bucket for row in found] == [index_of(value) for value in values]
    buckets = HISTOGRAM_BUCKETS - 16  # a bigint has 63 bits
    numbers = spark.range(buckets).selectExpr("int(id) AS id")
    bounds = numbers.selectExpr(f"{upper_bound_of('id')} AS u").collect()
    assert [row.u for row in bounds] == [upper_bound(index) for index in range(buckets)]


def test_a_report_has_the_figures_counted_by_hand(spark: SparkSession) -> None:
    df = lives(
        spark,
        life(0, 10),
        life(5, 20),
        life(10, 201, "expired"),
        life(20, 5, "cancelled"),
        life(1000, 0.5),
        life(1000, 300, "completed", timeout_ns=None),
    )
    first, second = report(df, window="1 second").orderBy("start").collect()
    assert (first.n, first.completed, first.expired, first.cancelled, first.failed) == (4, 2, 1, 1, 0)
    assert (first.rate, first.timeout_ratio) == (4.0, 0.25)
    assert (first.start.replace(tzinfo=UTC), first.end - first.start) == (START, timedelta(seconds=1))
    assert first.in_flight_max == 3, "at 10 ms one settles and another is registered; at 20 ms three are in flight"
    assert first.latency_max_ms == 20 and first.latency_p999_ms == 20
    assert 10 <= first.latency_p50_ms <= 10 * (1 + ERROR)
    assert first.lateness_max_ms == first.lateness_p50_ms == 1
    assert (second.n, second.in_flight_max, second.lateness_p50_ms, second.latency_max_ms) == (2, 1, None, 300)
    (all_of_it,) = report(df).collect()
    assert (all_of_it.n, all_of_it.in_flight_max) == (6, 3)
    assert all_of_it.rate == pytest.approx(6 / 1.3)
    assert all_of_it.in_flight_mean == pytest.approx((10 + 20 + 201 + 5 + 0.5 + 300) / 1300)


def test_percentiles_are_at_most_a_sixteenth_above_the_true_ones(many: DataFrame) -> None:
    (row,) = report(many).collect()
    waits = sorted(one.wait_ns for one in many.where("outcome = 'completed'").select("wait_ns").collect())
    for name, q in (("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        true = waits[-int(-len(waits) * q // 1) - 1] / MS
        assert true <= row[f"latency_{name}_ms"] <= true * (1 + ERROR)


@pytest.mark.long  # its short form is the test above
def test_merged_rollups_give_the_percentiles_of_all_rows(many: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rollup")
    rollup(many, by=["purgatory", "owner"], window="5 seconds").write.parquet(path)
    stored, rows = spark.read.parquet(path).coalesce(1), many.coalesce(1)
    halves = stored.where("start < '2026-01-01 00:00:30'").unionByName(stored.where("start >= '2026-01-01 00:00:30'"))
    for by, window in ((["purgatory"], "20 seconds"), (["owner"], None)):
        left = sorted(merged(halves.coalesce(1), by, window).drop("in_flight_max").collect(), key=str)
        right = sorted(rollup(rows, by, window).drop("in_flight_max").collect(), key=str)
        assert left == right, "histograms are equal, and so are their percentiles"
    whole = report(stored, ["purgatory", "owner"], "10 seconds").orderBy("purgatory", "start").collect()
    again = report(rows, ["purgatory", "owner"], "10 seconds").orderBy("purgatory", "start").collect()
    assert whole == again, "if the groups are the same, maxima of in-flight operations merge, too"


@pytest.mark.long
def test_rates_and_means_leave_out_the_pauses_between_rounds(spark: SparkSession, tmp_path: Path) -> None:
    """Three rounds of 2 s, with pauses of 40 s and 95 s. In a round, 100 operations of 50 ms begin each second."""
    starts = [0, 42_000, 139_000]
    df = lives(spark, *(life(start + 10 * at, 50) for start in starts for at in range(200)), partitions=2).cache()
    (row,) = report(df).collect()
    busy = 3 * (1.99 + 0.05)
    assert row.idle_s == pytest.approx(39.96 + 94.96, abs=0.01)
    assert row.rate == pytest.approx(600 / busy, rel=0.01)
    assert row.in_flight_mean == pytest.approx(600 * 0.05 / busy, rel=0.01)
    rollup(df, by=["purgatory"], window="4 seconds").write.parquet(str(tmp_path / "rollup"))
    (again,) = report(spark.read.parquet(str(tmp_path / "rollup")), ["purgatory"]).collect()
    assert (again.idle_s, again.rate) == (row.idle_s, row.rate)
    windows = report(df, window="4 seconds").collect()
    assert {one.idle_s for one in windows} == {0.0} and sum(one.n for one in windows) == 600
    for by in ((), "purgatory"):
        (asked,) = what_if(df, ["100ms"], by=by).collect()
        assert asked.rate == pytest.approx(600 / (busy - 0.05), rel=0.01)


def test_rare_operations_have_no_pauses_and_no_pause_has_a_waiting_operation(spark: SparkSession) -> None:
    rare = lives(spark, *(life(10_000 * at, 50) for at in range(20)))
    (row,) = report(rare).collect()
    assert row.idle_s == 0 and row.rate == pytest.approx(20 / 190.05)
    waits = lives(
        spark, life(0, 30_000, timeout_ns=None), *(life(start + at, 5) for start in (0, 20_000) for at in range(500))
    )
    assert report(waits).first().idle_s == 0, "an operation was in flight all along"


def test_in_flight_counts_operations_registered_in_an_earlier_window(spark: SparkSession) -> None:
    df = lives(spark, life(0, 25_000), life(100, 50), life(12_000, 10), life(12_005, 10))
    rows = report(df, window="10 seconds").orderBy("start").collect()
    assert [row.in_flight_max for row in rows] == [2, 3, 1]
    assert report(df).first().in_flight_max == 3


def test_no_hour_is_lost_or_counted_twice_when_clocks_change(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = {name: (day - START) / timedelta(milliseconds=1) for name, day in CLOCKS_ARE_PUT.items()}
    rows = [life(hours[name] + hour * 3_600_000, 1, key=name) for name in hours for hour in range(6)]
    df = lives(spark, *rows)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        for name in hours:
            reported = report(df.where(f"key = '{name}'"), "key", "1 hour")
            axes = plots.over_time(reported, "timeout_ratio", "key").axes[0]
            assert list(axes.lines[0].get_xdata()) == list(range(6)), name  # hours
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        monkeypatch.undo()
        time.tzset()


@pytest.mark.long  # its short form is the test above
def test_times_without_a_zone_are_in_the_zone_of_the_session(spark: SparkSession) -> None:
    rows = [life(at * 700, 10 + at) for at in range(5)]
    df = lives(spark, *rows)
    bare = df.select(*(df[name].cast(kind.replace("timestamp", "timestamp_ntz")) for name, kind in df.dtypes))
    assert dict(bare.dtypes)["settled_at"] == "timestamp_ntz"
    assert report(bare).collect() == report(df).collect()
    assert rollup(bare, window="1 second").collect() == rollup(df, window="1 second").collect()
    assert rollup(bare).dtypes == rollup(df).dtypes


def test_hot_keys_are_counted_exactly(spark: SparkSession) -> None:
    rng = random.Random(3)
    keys = [f"k{min(int(rng.expovariate(0.3)), 30)}" for _ in range(500)]
    df = lives(
        spark, *(life(at, 10, "expired" if key == "k0" else "completed", key=key) for at, key in enumerate(keys))
    )
    wanted = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))[:5]
    found = hot_keys(df, 5).collect()
    assert [(row.key, row.n) for row in found] == wanted
    assert found[0].timeout_ratio == 1 and found[0].share == wanted[0][1] / 500


def test_bad_input_is_refused_when_report_is_called(spark: SparkSession, many: DataFrame) -> None:
    stored = rollup(many, by="purgatory", window="10 seconds")
    assert report(many.withColumnRenamed("owner", "a{b}"), by="a{b}").columns[0] == "a{b}", (
        "braces in a name are no template"
    )
    assert set(stored.columns) == {"purgatory", *ROLLUP}
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: report(spark.range(3)), "needs the columns 'outcome', 'registered_at'"),
        (lambda: report(many.withColumn("wait_ns", many.wait_ns.cast("string"))), "of type string"),
        (lambda: report(many, by="tenant"), "by='tenant' is no column"),
        (lambda: report(many, by=["key", "key"]), "names a column twice"),
        (lambda: report(many, by="outcome"), "by='outcome' is also a column that rollup"),
        (lambda: report(many.withColumnRenamed("owner", "Rate"), by="Rate"), "by='Rate' is also a column that"),
        (
            lambda: report(many.withColumnRenamed("owner", "a.b"), by="a.b"),
            "Spark reads by='a.b' as a path in a column",
        ),
        (lambda: what_if(many, "100ms"), "timeouts='100ms': give a list of them"),
        (lambda: report(many, window="soon"), "window='soon' is no duration"),
        (lambda: report(many, window="100 ns"), "whole microseconds"),
        (lambda: report(stored, window="15 seconds"), "would cut the windows"),
        (lambda: report(stored, by="owner"), "by='owner' is no column"),
        (lambda: hot_keys(many, 0), "k=0"),
    ]
    for call, said in calls:
        with pytest.raises(InvalidValueError, match=said):
            call()
