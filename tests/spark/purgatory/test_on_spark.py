"""Queries on Spark give the outcomes that the rules give for all rows at once."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark.purgatory.buckets import MS
from spark.purgatory.feeds import said, streams, tables, write
from spark.purgatory.queries import OPTIONS, Query, compare, in_files, rows_of, without_group
from support.real.patience import SPARK_PATIENCE_S, eventually
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.states import EventKind
from timerd_spark.purgatory.purgatory import purgatory
from timerd_spark.purgatory.queries import late, pending, repartition, start
from timerd_spark.purgatory.rows import Event, Key, Registration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# On a busy machine Spark takes minutes, and a test that is interrupted spoils the session of the later ones.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.long  # the next test has a stream, too, but starts it once
def test_a_query_of_one_stage_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "ab", 200, limits=True)
    files = list(in_files(rng, rows, 4))
    write(tmp_path, files[:2])
    Query(spark, tmp_path, by="group").run()
    first = Query(spark, tmp_path, by="group").said()
    waiting = pending(spark, str(tmp_path / "checkpoint")).collect()
    came = sum(isinstance(row, Registration) for _, row in files[0] + files[1])
    assert len(waiting) > 0 and len({bytes(row.payload) for row in waiting}) + len({one[1] for one in first}) <= came
    write(tmp_path, files[2:], 2)
    Query(spark, tmp_path, by="group").run()
    compare(Query(spark, tmp_path, by="group").said(), outcomes, seed)


@pytest.mark.long
def test_a_query_of_two_stages_agrees_with_one_purgatory(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "a", 400, limits=False)
    write(tmp_path, in_files(rng, rows, 3))
    query = Query(spark, tmp_path)
    query.run()
    compare(without_group(query.said()), without_group(outcomes), seed)
    assert pending(spark, str(tmp_path / "checkpoint")).count() == 0
    assert tuple(*late(spark, str(tmp_path / "checkpoint")).collect()) == (0, 0)


@pytest.mark.long
def test_a_query_goes_on_with_other_partitions(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    if not hasattr(spark, "_streamingCheckpointManager"):
        with pytest.raises(InvalidValueError, match="Spark Connect cannot do it"):
            repartition(spark, str(tmp_path), 5)
        return
    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "ab", 200, limits=True)
    files = list(in_files(rng, rows, 4))
    checkpoint, out = str(tmp_path / "checkpoint"), tmp_path / "out"

    def run() -> None:
        """Not with a sink of files: its log lacks the batch of the repartition."""
        query = start(
            Query(spark, tmp_path, by="group", buckets=16).outcomes(),
            checkpoint,
            foreach_batch=lambda batch, number: batch.write.mode("overwrite").parquet(f"{out}/{number}"),
            available_now=True,
        )
        query.awaitTermination()

    def waiting() -> list[tuple[object, ...]]:
        return [tuple(row) for row in pending(spark, checkpoint).orderBy("registered_at", "payload").collect()]

    write(tmp_path, files[:2])
    run()
    before = waiting()
    repartition(spark, checkpoint, 5)
    assert waiting() == before
    write(tmp_path, files[2:], 2)
    run()
    compare(said(spark.read.parquet(f"{out}/*")), outcomes, seed)
    with pytest.raises(InvalidValueError, match="partitions=0: give a whole number"):
        repartition(spark, checkpoint, 0)


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


@pytest.mark.long
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
    seen: dict[str, tuple[str, float, int]] = {}

    def collect(outcomes: DataFrame, batch: int) -> None:
        for row in outcomes.collect():
            assert row.id not in seen
            seen[row.id] = row.outcome, time.time(), batch

    made = Query(spark, tmp_path, by="group", time_mode=mode, idle_after=1).outcomes()
    query = start(made, str(tmp_path / "checkpoint"), foreach_batch=collect, every=0.5)

    def has_ended() -> bool:
        """Whether both outcomes came, and the state of their batch is written."""
        progress = query.lastProgress
        done = -1 if progress is None else progress["batchId"]
        return query.exception() is not None or (len(seen) == 2 and done >= max(batch for _, _, batch in seen.values()))

    try:
        eventually(has_ended, seconds=SPARK_PATIENCE_S)
    finally:
        query.stop()
    assert query.exception() is None, str(query.exception())
    assert seen["fired"][0] == "completed", seen
    assert seen["due"][0] == "expired" and seen["due"][1] * 1e9 >= now_ns + 1_000 * MS
    assert [row.id for row in pending(spark, str(tmp_path / "checkpoint")).collect()] == ["far"]
