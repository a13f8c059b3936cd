"""The source on Spark: DataFrames that are used several times, conditions, schemas and a stream."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from support.spark.spans import rows_of, spans_of
from support.suite.tiers import in_tiers
from timerd_shm.read.segment import segment_path, segments_of
from timerd_spark.source.schema import TERMINAL, spark_schema


def test_spark_finds_the_format_by_itself_and_reads_a_part_for_each_segment(spark: SparkSession, small: Path) -> None:
    found = spark.read.format("timerd").load(str(small))
    assert found.schema == spark_schema(TERMINAL)
    assert found.select(F.spark_partition_id()).distinct().count() == len(segments_of(small))
    expected = rows_of(spans_of(small), "terminal")
    by_id = {row["op_id"]: row for row in expected}
    for row in found.collect():
        said = {**by_id[row.op_id]}
        for name in ("registered_at", "deadline", "settled_at"):
            said[name] = said[name] and said[name].replace(tzinfo=None)
        assert row.asDict() == said
    assert found.count() == len(expected)
    events = spark.read.format("timerd").option("view", "events").load(str(small))
    assert events.count() == len(rows_of(spans_of(small), "events"))


def test_a_schema_or_an_option_chooses_the_columns(spark: SparkSession, small: Path) -> None:
    reader = spark.read.format("timerd").option("columns", "outcome, wait_ns")
    assert reader.load(str(small)).columns == ["outcome", "wait_ns"]
    chosen = spark.read.format("timerd").schema("wait_ns long, op_id string").load(str(small))
    assert chosen.select("op_id").distinct().count() == len(rows_of(spans_of(small), "terminal"))
    for wrong, said in (("wait_ns int", "is of type bigint, not int"), ("wait long", "has no column 'wait'")):
        with pytest.raises(Exception, match=said):
            spark.read.format("timerd").schema(wrong).load(str(small)).count()


@pytest.mark.parametrize("form", ["OPTIONS (path '{0}')", "OPTIONS (view 'events', path '{0}')", "LOCATION '{0}'"])
def test_a_journal_is_a_table(spark: SparkSession, small: Path, form: str) -> None:
    """Together with the options, Spark gives the source some properties of the table, such as its owner."""
    spark.sql("DROP TABLE IF EXISTS operations")
    try:
        spark.sql(f"CREATE TABLE operations USING timerd {form.format(small)} COMMENT 'what settled'")
        view = "events" if "events" in form else "terminal"
        assert spark.table("operations").count() == len(rows_of(spans_of(small), view))
        assert spark.sql("SELECT op_id FROM operations LIMIT 1").count() == 1
        spark.sql("DROP TABLE operations")
        spark.sql(f"CREATE TABLE operations (op_id STRING) USING timerd {form.format(small)}")
        with pytest.raises(Exception, match="create the table again without columns of its own"):
            spark.table("operations").count()
    finally:
        spark.sql("DROP TABLE IF EXISTS operations")
    assert segments_of(small), "DROP TABLE leaves the journal where it is"


@pytest.fixture(params=in_tiers(["true", "false"], 1))  # the first test below also sets the other value
def switch(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Spark's switch for filters that Python sources take. This source takes none, so the switch changes nothing."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    yield request.param
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.long
def test_a_frame_that_was_filtered_can_be_used_again(
    spark: SparkSession, small: Path, switch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(spans_of(small), "terminal")
    expired = [row for row in rows if row["outcome"] == "expired"]
    every, few = len(rows), len(expired)
    assert 0 < few < every
    frame = spark.read.format("timerd").load(str(small))
    some = frame.where("outcome = 'expired'")

    assert some.count() == few
    assert frame.count() == every
    assert some.union(frame).count() == few + every
    assert frame.union(some).count() == every + few
    assert frame.alias("a").join(some.alias("b"), "op_id", "left_anti").count() == every - few
    assert some.alias("a").join(frame.alias("b"), "op_id").count() == few

    frame.createOrReplaceTempView("operations")
    try:
        assert spark.sql("SELECT * FROM operations WHERE outcome = 'completed'").count() == every - few
        counted = spark.sql(
            "SELECT (SELECT count(*) FROM operations WHERE outcome = 'expired'), (SELECT count(*) FROM operations)"
        )
        assert tuple(counted.first() or ()) == (few, every)
        assert spark.table("operations").count() == every
    finally:
        spark.catalog.dropTempView("operations")

    some.explain(True)
    frame.explain(True)
    assert "Filter" in capsys.readouterr().out
    assert frame.count() == every
    cached = some.cache()
    assert (cached.count(), frame.count(), cached.count()) == (few, every, few)
    cached.unpersist()

    other = {"true": "false", "false": "true"}[switch]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", other)
    assert (some.count(), frame.count()) == (few, every)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", switch)
    assert (frame.where("outcome <> 'expired'").count(), frame.count(), some.count()) == (every - few, every, few)


def test_conditions_of_every_kind_find_the_same_rows_whatever_the_switch(
    spark: SparkSession, small: Path, switch: str
) -> None:
    frame = spark.read.format("timerd").load(str(small))
    rows = rows_of(spans_of(small), "terminal")
    for condition, wanted in (
        ("outcome = 'expired' and wait_ns > 1000", lambda row: row["outcome"] == "expired" and row["wait_ns"] > 1000),
        ("outcome <> 'expired'", lambda row: row["outcome"] != "expired"),
        ("error is null and key like 'key 1%'", lambda row: row["error"] is None and row["key"].startswith("key 1")),
        ("key in ('late', 'key 7')", lambda row: row["key"] in ("late", "key 7")),
        ("not (lateness_ns < 5)", lambda row: row["lateness_ns"] is not None and row["lateness_ns"] >= 5),
    ):
        expected = sorted(row["op_id"] for row in rows if wanted(row))
        assert sorted(row.op_id for row in frame.where(condition).select("op_id").collect()) == expected, condition
        assert 0 < len(expected) < len(rows), condition


def test_the_option_pushdown_is_refused(spark: SparkSession, small: Path) -> None:
    """The option once gave wrong rows: Spark kept the filter of one query in the frame, for all later queries."""
    with pytest.raises(Exception, match="format timerd has no option 'pushdown'"):
        spark.read.format("timerd").option("pushdown", "true").load(str(small)).collect()


def test_a_stream_on_spark_continues_and_reads_a_lost_batch_again(
    spark: SparkSession, small: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "journal"
    copied.mkdir()
    for sequence in segments_of(small)[:3]:
        shutil.copy(segment_path(small, sequence), copied)

    def run() -> None:
        rows = spark.readStream.format("timerd").option("columns", "op_id").option("maxOffsetsPerTrigger", "1500")
        query = (
            rows.load(str(copied))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    run()
    commits = sorted((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) > 1
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    for sequence in segments_of(small)[3:]:
        shutil.copy(segment_path(small, sequence), copied)
    run()
    found = [row.op_id for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == sorted(row["op_id"] for row in rows_of(spans_of(small), "terminal"))


@pytest.mark.long
def test_a_first_batch_on_spark_that_is_lost_with_its_files_is_an_error(
    spark: SparkSession, small: Path, tmp_path: Path
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    shutil.copytree(small, journal)

    def run() -> None:
        rows = spark.readStream.format("timerd").option("columns", "op_id").load(str(journal))
        query = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        query.trigger(availableNow=True).start(str(out)).awaitTermination()

    run()
    shutil.rmtree(out)
    shutil.rmtree(tmp_path / "c/commits")
    segment_path(journal, 1).unlink()
    with pytest.raises(Exception, match="rows from 1:0 on were removed"):
        run()
