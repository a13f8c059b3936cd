"""Where reading begins and ends, by the options that users of Kafka and Delta know; and how far a query is behind."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from support.real.patience import SPARK_PATIENCE_S, eventually
from support.rig.commands import Key, Register
from support.rig.harness import MS, S
from support.rig.journals import JournaledRig
from support.spark.spans import read, rows_of, settle_all, source, spans_of, stream
from timerd_client.arguments import id_hash as hash_of
from timerd_shm.declare.errors import InvalidConfigError, InvalidValueError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE
from timerd_shm.read.segment import JournalError, segment_path, segments_of
from timerd_spark import id_hash, progress
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.positions import offset_at
from timerd_spark.source.progress import Behind, behind, behind_of
from timerd_spark.source.schema import TERMINAL, spark_schema
from timerd_spark.source.segments import first_offset, last_offset


def batch(path: Path, **options: str) -> list[dict[str, Any]]:
    """The rows of a query of a table."""
    reader = source(path, **options).reader(spark_schema(TERMINAL))
    return [row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist()]


def to_end(reader: Any) -> list[dict[str, Any]]:
    """The rows of a stream from its start to the present end."""
    start = reader.initialOffset()
    return read(reader, start, reader.latestOffset(start, ReadAllAvailable()))


@pytest.mark.long
def test_a_stream_begins_where_the_option_says(journal: Path) -> None:
    every = rows_of(spans_of(journal), "terminal")
    assert to_end(stream(journal)) == to_end(stream(journal, startingOffsets="EARLIEST")) == every
    latest = stream(journal, startingOffsets="latest")
    (place,) = latest.reportLatestOffset().values()
    begun = {"begun": [place["segment"], place["row"]]}
    assert to_end(latest) == [] and latest.initialOffset() == {journal.name: place | begun}
    middle = stream(journal).latestOffset(stream(journal).initialOffset(), ReadMaxRows(1_000))
    rest = to_end(stream(journal, startingOffsets=json.dumps(middle)))
    assert 0 < len(rest) < len(every) and rest == every[-len(rest) :]
    assert to_end(stream(journal, startingOffsets=json.dumps({journal.name: "latest"}))) == []


def test_a_query_reads_between_two_positions_of_a_stream(journal: Path) -> None:
    reader = stream(journal)
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(700))
    end = reader.latestOffset(start, ReadMaxRows(1_100))
    between = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    assert batch(journal, **between) == read(reader, start, end) != []
    assert batch(journal, startingOffsets=json.dumps(end), endingOffsets=json.dumps(start)) == []
    assert batch(journal, endingOffsets="latest") == batch(journal)


@pytest.mark.long
def test_the_first_row_of_a_time_is_found_exactly(journal: Path) -> None:
    rows = rows_of(spans_of(journal), "terminal")
    times = sorted({row["settled_at"] for row in rows})
    for at in (times[0], times[len(times) // 3], times[-1]):
        for given in (at.isoformat(), at.astimezone(UTC).isoformat().replace("+00:00", "Z")):
            found = batch(journal, startingTimestamp=given)
            assert found == [row for row in rows if row["settled_at"] >= at]
    assert batch(journal, startingTimestamp="0") == rows
    after = times[-1] + timedelta(microseconds=1)
    assert batch(journal, startingTimestamp=after.isoformat()) == []
    assert offset_at(journal, 10**18) == last_offset(journal) and offset_at(journal, 0) == first_offset(journal)


def test_a_time_before_which_files_were_removed_begins_with_the_oldest_file(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(journal, copied)
    for sequence in segments_of(copied)[:2]:
        segment_path(copied, sequence).unlink()
    assert batch(copied, startingTimestamp="0") == rows_of(spans_of(copied), "terminal")
    with pytest.raises(JournalError, match=r"segment 1, row 5, and the journal goes from segment 3, row 0 to"):
        batch(copied, startingOffsets='{"copied": {"segment": 1, "row": 5}}')


def test_a_position_of_another_arena_is_refused(journal: Path) -> None:
    place = {**stream(journal).reportLatestOffset()[journal.name], "incarnation": "00000000000000ff"}
    with pytest.raises(JournalError, match="and had rows of 00000000000000ff"):
        batch(journal, startingOffsets=json.dumps({journal.name: place}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "newest"}, "startingOffsets='newest': give earliest, latest, or a position for each"),
        ({"startingOffsets": '{"j": 5}'}, "give earliest, latest, or a position"),
        ({"startingOffsets": '{"j": {"segment": -1, "row": 0}}'}, "give earliest, latest, or a position"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest': give latest, or offsets"),
        ({"startingTimestamp": "yesterday"}, "give a time with its zone, such as 2026-11-28T09:30:00Z"),
        ({"startingTimestamp": "2026-11-28 09:30:00"}, "give a time with its zone"),
        ({"startingTimestamp": "0", "startingOffsets": "latest"}, "give one of them"),
        ({"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger='many': give a number of bytes, such as 64m or 1g"),
        ({"startingVersion": "3"}, "no option 'startingVersion': give startingOffsets"),
        ({"maxFilesPerTrigger": "3"}, "give maxBytesPerTrigger"),
        ({"paths": "/a,/b"}, "paths='/a,/b': give a list in JSON"),
    ],
)
def test_a_wrong_position_is_refused_at_load(options: dict[str, str], said: str, journal: Path) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(said)):
        source(journal, **options).schema()


def test_options_that_fit_no_stream_or_no_table_are_refused_by_name(journal: Path) -> None:
    with pytest.raises(InvalidConfigError, match="startingOffsets='latest' is for a stream"):
        batch(journal, startingOffsets="latest")
    with pytest.raises(InvalidConfigError, match="endingOffsets is for a query of a table"):
        stream(journal, endingOffsets=json.dumps({journal.name: "latest"}))
    with pytest.raises(InvalidConfigError, match=rf"names 'web9'; the journals are '{journal.name}'"):
        batch(journal, startingOffsets='{"web9": "earliest"}')


def test_a_batch_is_bounded_by_rows_and_by_bytes(journal: Path) -> None:
    rows = {
        size: ReadOptions.of({"path": str(journal), "maxBytesPerTrigger": size}).rows_per_trigger
        for size in ("1m", "1MiB", "1048576", "4k", "1")
    }
    blocks = (1 << 20) // BLOCK_SIZE
    assert rows == {"1m": blocks * BLOCK_ROWS, "1MiB": blocks * BLOCK_ROWS, "1048576": blocks * BLOCK_ROWS,
                    "4k": BLOCK_ROWS, "1": 1}  # fmt: skip
    both = stream(journal, maxBytesPerTrigger="4k", maxOffsetsPerTrigger="50")
    assert both.getDefaultReadLimit() == ReadMaxRows(50)
    assert stream(journal, maxBytesPerTrigger="4k").getDefaultReadLimit() == ReadMaxRows(BLOCK_ROWS)


def test_several_paths_are_read_together_and_keep_their_names_in_offsets(small: Path, tmp_path: Path) -> None:
    for name in ("one/journal", "two/journal"):
        shutil.copytree(small, tmp_path / name)
    paths = json.dumps([f"{tmp_path}/one/journal", f"{tmp_path}/t*", f"{tmp_path}/one/journal"])
    reader = stream(small, paths=paths)  # the option `path` names one more journal
    begun = reader.initialOffset()
    assert sorted(begun) == sorted(map(str, (small.absolute(), tmp_path / "one/journal", tmp_path / "two/journal")))
    assert len(to_end(reader)) == 3 * len(rows_of(spans_of(small), "terminal"))


def test_a_time_is_found_behind_a_long_part_without_times(tmp_path: Path) -> None:
    """Within a turn, the rows of registrations have no time of the daemon, and a turn may be long."""
    rig = JournaledRig(tmp_path, capacity=8192, buffer_rows=1 << 15, segment_size=8 << 20)
    client = rig.client()
    settle_all(rig, client, 0, 20)
    register = Register((Key(b"k"),), timeout_ns=S)
    for _ in range(3_000):
        client.issue(register)
    rig.turn(rig.now_ns + MS)
    before = len(rows_of(spans_of(tmp_path), "events"))
    rig.turn(rig.now_ns + 2 * S)
    rows = [row for row in rows_of(spans_of(tmp_path), "terminal") if row["outcome"] == "expired"]
    assert before > 64 * BLOCK_ROWS and len(rows) == 3_000
    at = min(row["settled_at"] for row in rows)
    assert len(batch(tmp_path, startingTimestamp=at.isoformat())) == 3_000
    turn = at - timedelta(seconds=2)
    found = offset_at(tmp_path, int(turn.timestamp() * 1e6))
    assert found.record < before - 64 * BLOCK_ROWS, "it is at the long turn's beginning"
    rig.drop_journal()


def test_offsets_say_the_number_of_rows_and_their_time(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    settle_all(rig, client, 0, 400)
    reader = stream(tmp_path)
    begun = reader.initialOffset()
    read_until = reader.latestOffset(begun, ReadMaxRows(300))
    settle_all(rig, client, 400, 400)
    newest = reader.reportLatestOffset()
    rows = rows_of(spans_of(tmp_path), "terminal")
    assert begun[tmp_path.name]["number"] == 0 and read_until[tmp_path.name]["number"] == 300
    assert abs(newest[tmp_path.name]["at_us"] / 1e6 - rows[-1]["settled_at"].timestamp()) < 1e-3
    found = behind("j", read_until[tmp_path.name], newest[tmp_path.name])
    assert found.rows == newest[tmp_path.name]["number"] - 300
    assert found.rows is not None and found.bytes == -(-found.rows * BLOCK_SIZE // BLOCK_ROWS)
    assert found.read_until is not None and found.age is not None
    assert found.read_until + found.age == datetime.fromtimestamp(newest[tmp_path.name]["at_us"] / 1e6, UTC)
    with pytest.raises(InvalidValueError, match=r"progress\('q'\): give the query itself"):
        progress("q")
    other = {**newest[tmp_path.name], "incarnation": "0"}
    assert behind("j", read_until[tmp_path.name], other)[:3] == ("j", None, None)
    assert behind("j", {}, newest[tmp_path.name]).rows == newest[tmp_path.name]["number"], "the journal has just come"
    two = {"endOffset": json.dumps(read_until | {"b": read_until[tmp_path.name]}), "latestOffset": json.dumps(newest)}
    away = {one.journal: one for one in behind_of(two)}
    assert away["b"] == Behind("b", None, None, None, found.read_until), "the rows of an absent journal are not known"
    assert away[tmp_path.name].rows == found.rows
    rig.drop_journal()


@pytest.mark.long
def test_a_query_on_spark_says_how_far_it_is_behind(spark: SparkSession, small: Path, tmp_path: Path) -> None:
    rows = spark.readStream.format("timerd").option("columns", "op_id").option("maxOffsetsPerTrigger", "500")
    written = rows.load(str(small)).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    query = written.start()
    try:
        query.processAllAvailable()
        eventually(lambda: progress(query) and progress(query)[0].rows == 0, seconds=SPARK_PATIENCE_S)
        (at_end,) = progress(query)
        assert at_end == Behind(small.name, 0, 0, timedelta(0), at_end.read_until)
        first = next(one for one in query.recentProgress if one["sources"][0]["numInputRows"])
        place = json.loads(first["sources"][0]["endOffset"])[small.name]
        assert place["number"] == 500
    finally:
        query.stop()
    rates = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rates.option("checkpointLocation", str(tmp_path / "r")).start()
    try:
        with pytest.raises(InvalidValueError, match="the query reads no journal"):
            eventually(lambda: progress(query), seconds=SPARK_PATIENCE_S)
    finally:
        query.stop()


@pytest.mark.long
def test_columns_have_comments_and_id_hash_gives_the_hashes_of_ids(spark: SparkSession, small: Path) -> None:
    spark.sql("DROP TABLE IF EXISTS described")
    spark.sql(f"CREATE TABLE described USING timerd LOCATION '{small}'")
    try:
        comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE described").collect()}
        assert comments["wait_ns"].startswith("settled - registered") and comments["wait_ns"].endswith("(ns)")
        assert all(comments[column.name] for column in TERMINAL)
    finally:
        spark.sql("DROP TABLE described")
    ids = spark.createDataFrame([("order/17", b"a"), (None, None)], "text string, bytes binary")
    found = ids.select(id_hash("text"), id_hash(ids.bytes)).collect()
    assert tuple(found[0]) == (hash_of("order/17").hex(), hash_of(b"a").hex()) and tuple(found[1]) == (None, None)
    for wrong in ("''", "7"):
        with pytest.raises(Exception, match=r"an id is empty|give str or bytes"):
            spark.range(1).select(id_hash(spark_column(wrong))).collect()


def spark_column(expression: str) -> Any:
    from pyspark.sql import functions as F

    return F.expr(expression)
