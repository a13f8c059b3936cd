"""Queries on Spark give the outcomes that the rules give for all rows at once."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.purgatory.feeds import Grouped, Said, said, streams, tables, wanted, write
from spark.purgatory.test_bucket import END_NS, MS, State, program
from support.real.patience import SPARK_PATIENCE_S, eventually
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import EventKind
from timerd_spark.purgatory.bucket import Settings
from timerd_spark.purgatory.purgatory import purgatory
from timerd_spark.purgatory.queries import pending, start
from timerd_spark.purgatory.rows import Event, Key, Registration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY_NS = 20 * MS
SETTINGS = Settings(ordered=True, marks_ns=10_000 * MS, ids_ns=50 * MS)
OPTIONS: dict[str, Any] = {"delay": 0.02, "marks": 10, "settled_ids": 0.05, "buckets": 8, "idle_after": None}
T0_NS = 1_790_000_000_000 * MS


def later(row: Registration | Event) -> Registration | Event:
    """The row at a time that Spark takes for one of our days."""
    row = row._replace(at_ns=row.at_ns + T0_NS)
    if isinstance(row, Event):
        return row
    mark = None if row.mark is None else (row.mark[0] + T0_NS, row.mark[1])
    return row._replace(deadline_ns=row.deadline_ns + T0_NS, mark=mark)


def rows_of(rng: random.Random, groups: str, length: int, *, limits: bool) -> tuple[list[Grouped], list[Said]]:
    """Programs of groups that share keys and ids, and what the rules make of each."""
    rows: list[Grouped] = []
    outcomes: list[Said] = []
    for group in groups:
        own = [later(row) for row in program(rng, length)]
        if not limits:
            own = [row._replace(limit=None) if isinstance(row, Event) else row for row in own]
        rows += [(group, row) for row in own]
        outcomes += [wanted(group, each) for each in State(SETTINGS).run(own, T0_NS + END_NS)]
    return rows, sorted(outcomes, key=repr)


def in_files(rng: random.Random, rows: list[Grouped], count: int) -> Iterator[list[Grouped]]:
    """The rows as they arrive, at most DELAY_NS out of order, and at last an event after all deadlines."""
    arrivals = sorted(rows, key=lambda one: one[1].at_ns + rng.randrange(DELAY_NS))
    cuts = [0, *sorted(rng.sample(range(len(arrivals)), count - 2)), len(arrivals)]
    for begin, end in itertools.pairwise(cuts):
        yield arrivals[begin:end]
    last_ns = max(row.deadline_ns for _, row in rows if isinstance(row, Registration))
    yield [("", Event(max(last_ns, arrivals[-1][1].at_ns) + 1_000 * MS, 0, EventKind.FIRE, "the end"))]


def compare(found: list[Said], outcomes: list[Said], seed: int) -> None:
    one, other = Counter(found), Counter(outcomes)
    only = list((one - other).elements()), list((other - one).elements())
    text = f"seed={seed}: {len(only[0])} only on Spark, {len(only[1])} only by the rules: {only[0][:3]}, {only[1][:3]}"
    assert found == outcomes, text


def without_group(outcomes: list[Said]) -> list[Said]:
    return sorted((one[1:] for one in outcomes), key=repr)


class Query:
    """A query over files in a directory."""

    def __init__(self, spark: SparkSession, directory: Path, **options: Any) -> None:
        self.spark, self.directory, self.options = spark, directory, {**OPTIONS, **options}

    def run(self) -> None:
        query = start(
            self.outcomes(), str(self.directory / "checkpoint"), path=str(self.directory / "out"), available_now=True
        )
        query.awaitTermination()

    def outcomes(self) -> DataFrame:
        registrations, events = streams(self.spark, self.directory)
        if "by" in self.options:
            return purgatory(registrations, events, **self.options)
        return purgatory(registrations.drop("group"), events.drop("group", "limit"), **self.options)

    def said(self) -> list[Said]:
        return said(self.spark.read.parquet(str(self.directory / "out")))


def test_a_query_of_one_stage_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "ab", 400, limits=True)
    files = list(in_files(rng, rows, 4))
    write(tmp_path, files[:2])
    Query(spark, tmp_path, by="group").run()
    first = Query(spark, tmp_path, by="group").said()
    waiting = pending(spark, str(tmp_path / "checkpoint")).collect()
    came = sum(isinstance(row, Registration) for _, row in files[0] + files[1])
    assert len(waiting) > 0 and len({bytes(row.payload) for row in waiting}) + len({one[1] for one in first}) <= came
    write(tmp_path, files[2:], 2)
    with pytest.raises(Exception, match="this checkpoint has 8 buckets, and the query buckets=16"):
        Query(spark, tmp_path, by="group", buckets=16).run()
    Query(spark, tmp_path, by="group").run()
    compare(Query(spark, tmp_path, by="group").said(), outcomes, seed)


def test_a_query_of_two_stages_agrees_with_one_purgatory(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "a", 600, limits=False)
    write(tmp_path, in_files(rng, rows, 4))
    query = Query(spark, tmp_path)
    query.run()
    compare(without_group(query.said()), without_group(outcomes), seed)
    assert pending(spark, str(tmp_path / "checkpoint")).count() == 0


def test_batches_agree_with_streams(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "ab", 300, limits=True)
    write(tmp_path, [rows])
    registrations, events = tables(spark, tmp_path)
    compare(said(purgatory(registrations, events, by="group", **OPTIONS)), outcomes, seed)
    rows, outcomes = rows_of(rng, "a", 300, limits=False)
    write(tmp_path / "two", [rows])
    registrations, events = tables(spark, tmp_path / "two")
    found = said(purgatory(registrations.drop("group"), events.drop("group", "limit"), **OPTIONS))
    compare(without_group(found), without_group(outcomes), seed)


def test_wrong_arguments_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [[]])
    registrations, events = streams(spark, tmp_path)
    one, fired = registrations.selectExpr("at", "keys[0] AS keys", "deadline"), events.select("at", "key")
    with pytest.raises(InvalidValueError, match="no column 'deadline' or 'timeout', and there is no max_wait"):
        purgatory(registrations.select("at", "keys"), fired)
    with pytest.raises(InvalidValueError, match=r"a column 'limit'.*Give by="):
        purgatory(registrations.select("at", "keys", "deadline"), events.select("at", "key", "limit"))
    with pytest.raises(InvalidValueError, match="registrations lack the column 'keys': they have at"):
        purgatory(registrations.select("at"), fired)
    with pytest.raises(InvalidValueError, match="a column 'payload2', and it would be lost"):
        purgatory(one.withColumn("payload2", one.keys), fired)
    with pytest.raises(InvalidValueError, match="registrations are a stream, events a batch"):
        purgatory(one, tables(spark, tmp_path)[1].select("at", "key"))
    with pytest.raises(InvalidValueError, match="never ends"):
        start(purgatory(one, fired, time_mode="ProcessingTime"), "/nowhere", available_now=True)
    with pytest.raises(InvalidValueError, match="give purgatory\\(\\) idle_after=None"):
        start(purgatory(one, fired), "/nowhere", available_now=True)
    with pytest.raises(InvalidValueError, match="give the outcomes of purgatory"):
        start(fired, "/nowhere")


@pytest.mark.parametrize("mode", ["EventTime", "ProcessingTime"])
def test_operations_expire_without_rows_and_never_early(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    now_ns = time.time_ns()
    rows: list[Registration | Event] = [
        Registration(now_ns, 1, "fired", (Key("a"),), now_ns + 60_000 * MS),
        Event(now_ns + 1, 2, EventKind.FIRE, "a"),
        Registration(now_ns, 3, "due", (Key("b"),), now_ns + 1_000 * MS),
        Registration(now_ns, 4, "far", (Key("c"),), now_ns + 3_600_000 * MS),
    ]
    write(tmp_path, [[("", row) for row in rows]])
    seen: dict[str, tuple[str, float]] = {}

    def collect(outcomes: DataFrame, batch: int) -> None:
        for row in outcomes.collect():
            assert row.id not in seen
            seen[row.id] = row.outcome, time.time()

    made = Query(spark, tmp_path, by="group", time_mode=mode, idle_after=1).outcomes()
    query = start(made, str(tmp_path / "checkpoint"), foreach_batch=collect, every=0.5)
    try:
        eventually(lambda: len(seen) == 2 or query.exception() is not None, seconds=SPARK_PATIENCE_S)
    finally:
        query.stop()
    assert query.exception() is None, str(query.exception())
    assert seen["fired"][0] == "completed", seen
    assert seen["due"][0] == "expired" and seen["due"][1] * 1e9 >= now_ns + 1_000 * MS
    assert [row.id for row in pending(spark, str(tmp_path / "checkpoint")).collect()] == ["far"]
