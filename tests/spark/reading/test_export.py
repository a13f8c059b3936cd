"""The export of a journal to Parquet: the same rows as in the journal, and each segment exported once."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from support.real.shell import Run
from support.rig.commands import Key, Register
from support.rig.harness import MS, Client, S
from support.rig.journals import JournaledRig, numbered, settle
from support.suite.tiers import in_tiers
from timerd_shm.read.segment import segments_of
from timerd_spark import read_journal
from timerd_spark.source.decode import SegmentRows
from timerd_spark.source.export import export
from timerd_spark.source.schema import TERMINAL, spark_schema


def fill(rig: JournaledRig, client: Client, first: int, count: int) -> None:
    for at in range(first, first + count, 10):
        settle(rig, client, *numbered(at, 10))
    client.issue(Register((Key(b"late"),), timeout_ns=MS))
    rig.turn()
    rig.turn(rig.now_ns + 600 * S)


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.parquet"))


def test_each_finished_segment_is_exported_once(tmp_path: Path, run: Run) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    rig = JournaledRig(journal)
    client = rig.client()
    fill(rig, client, 0, 400)
    command = ("journal", "export", "--format=parquet", f"--directory={journal}", f"--output={out}")
    status, said, message = run(*command)
    assert status == 0 and "rows of 2 segments" in message, message
    assert said.count("segment ") == 2
    before = {path: path.stat().st_mtime_ns for path in files(out)}
    assert before and all("host=" in str(path) and "/date=2023-" in str(path) for path in before)
    assert "0 rows of 0 segments" in run(*command)[2]
    fill(rig, client, 400, 400)
    assert "rows of 3 segments" in run(*command)[2]
    assert {path: path.stat().st_mtime_ns for path in files(out) if path in before} == before
    assert export(journal, out, all_segments=True).segments == 1
    keys = [key for path in files(out) for key in pq.read_table(path, partitioning=None)["key"].to_pylist()]
    assert sorted(keys) == sorted([f"key {n}" for n in range(800)] + ["late"] * 2)
    assert pq.ParquetFile(files(out)[0]).metadata.row_group(0).column(0).compression == "ZSTD"
    rig.drop_journal()


def test_rows_that_a_new_segment_gets_after_an_export_are_in_the_next_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    rig = JournaledRig(journal)
    client = rig.client()
    fill(rig, client, 0, 400)

    def before_the_newest_began(directory: Path) -> list[int]:
        monkeypatch.undo()
        return segments_of(directory)[:-1]

    monkeypatch.setattr("timerd_spark.source.export.list_segments", before_the_newest_began)
    export(journal, out, all_segments=True)
    fill(rig, client, 400, 400)
    export(journal, out, all_segments=True)
    keys = {key for path in files(out) for key in pq.read_table(path, partitioning=None)["key"].to_pylist()}
    assert keys == {f"key {n}" for n in range(800)} | {"late"}
    rig.drop_journal()


def test_a_hosts_name_stays_in_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = JournaledRig(tmp_path / "journal")
    fill(rig, rig.client(), 0, 10)
    rig.drop_journal()
    monkeypatch.setattr(SegmentRows, "host", "../../../a=b c%")
    export(tmp_path / "journal", tmp_path / "deep/out", all_segments=True)
    written = [path.relative_to(tmp_path / "deep/out") for path in tmp_path.rglob("*.parquet")]
    assert written and {path.parts[2] for path in written} == {"host=..%2F..%2F..%2Fa%3Db c%25"}


def test_senseless_options_are_refused(tmp_path: Path, run: Run) -> None:
    rig = JournaledRig(tmp_path / "journal")
    fill(rig, rig.client(), 0, 10)
    rig.drop_journal()
    assert segments_of(tmp_path / "journal") == [1]
    directory = f"--directory={tmp_path / 'journal'}"
    assert "needs --output DIR" in run("journal", "export", "--format=parquet", directory)[2]
    out = f"--output={tmp_path / 'out'}"
    assert "no --from, no --to" in run("journal", "export", "--format=parquet", directory, out, "--from=1:0")[2]
    export(tmp_path / "journal", tmp_path / "out", view="events", all_segments=True)
    assert "holds another view" in run("journal", "export", "--format=parquet", directory, out)[2]


@pytest.mark.long
@pytest.mark.parametrize("view", in_tiers(["terminal", "events"], 1))
def test_spark_reads_both_formats_as_the_same_rows(view: str, spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    rig = JournaledRig(journal)
    fill(rig, rig.client(), 0, 60)
    rig.drop_journal()
    export(journal, out, view=view, all_segments=True)
    own, exported = read_journal(spark, journal, view=view), read_journal(spark, out, view=view)
    assert own.columns == exported.columns
    assertDataFrameEqual(exported, own, ignoreNullable=True)
    if view == "terminal":
        assert own.schema == spark_schema(TERMINAL)
