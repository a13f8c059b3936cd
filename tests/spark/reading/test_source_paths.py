"""The journals that a path or a pattern names, and options that are refused when a journal is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from support.spark.spans import source, stream
from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.read.segment import LOCK_NAME, JournalError
from timerd_spark.format import TimerdDataSource
from timerd_spark.source.frame import is_parquet
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.schema import TERMINAL, spark_schema
from timerd_spark.source.segments import hosts_of, journals_of


def test_a_journal_keeps_its_name_when_the_pattern_matches_another_journal(small: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "web1" / "journal", tmp_path / "web2" / "journal"
    shutil.copytree(small, first)
    pattern = f"{tmp_path}/*/journal"
    alone = stream(pattern)
    start = alone.initialOffset()
    read_already = alone.latestOffset(start, ReadAllAvailable())
    assert list(read_already) == ["web1/journal"]
    shutil.copytree(small, second)
    both = stream(pattern)
    end = both.latestOffset(read_already, ReadAllAvailable())
    assert set(end) == {"web1/journal", "web2/journal"}
    assert {Path(part.value.directory) for part in both.partitions(read_already, end)} == {second}
    assert hosts_of(f"{tmp_path}/web*") == {"web1/journal": first, "web2/journal": second}


def test_a_pattern_that_matches_a_journal_and_a_directory_with_another_is_refused(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "journal")
    copy = tmp_path / "backup" / "journal"
    shutil.copytree(small, copy)
    with pytest.raises(JournalError, match=f"the journal {tmp_path}/journal, and a directory .*{copy}, which may be"):
        hosts_of(f"{tmp_path}/*")
    assert hosts_of(str(tmp_path)) == {"journal": tmp_path / "journal"}
    shutil.rmtree(tmp_path / "journal")
    assert hosts_of(f"{tmp_path}/*") == {"backup/journal": copy}


def test_a_journal_and_a_link_to_it_are_not_read_twice(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "in" / "web1")
    (tmp_path / "current").symlink_to(tmp_path / "in" / "web1")
    for paths in ((f"{tmp_path}/current", f"{tmp_path}/in/web1"), (f"{tmp_path}/cur*", f"{tmp_path}/in")):
        with pytest.raises(JournalError, match=f"{tmp_path}/current and {tmp_path}/in/web1 are one journal, whose"):
            journals_of(paths)
    assert list(journals_of([f"{tmp_path}/current"])) == ["current"]
    (tmp_path / "in" / "newest").symlink_to("web1")
    for path in (f"{tmp_path}/in", f"{tmp_path}/in/*"):
        with pytest.raises(JournalError, match="are one journal, whose rows would be read twice"):
            source(path).schema()


def test_braces_in_a_path_are_alternatives_as_in_all_sources_of_spark(small: Path, tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in ("web1", "web2", "db/journal"))
    for journal in (a, b, c):
        shutil.copytree(small, journal)
    assert hosts_of(f"{tmp_path}/web{{1,2}}") == {"web1": a, "web2": b}
    assert hosts_of(f"{tmp_path}/{{web{{1,2}},db/journal}}") == {"web1": a, "web2": b, "db/journal": c}
    assert hosts_of(f"{tmp_path}/{{web*,db/*}}") == {"web1": a, "web2": b, "db/journal": c}
    assert hosts_of(f"{tmp_path}/{{web1,web3}}") == {"web1": a}
    with pytest.raises(JournalError, match=r"no directory matches '.*\{web3,web4\}'"):
        hosts_of(f"{tmp_path}/{{web3,web4}}")
    shutil.copytree(small, tmp_path / "{x,y}")
    assert hosts_of(f"{tmp_path}/{{x,y}}") == {"{x,y}": tmp_path / "{x,y}"}, "it exists literally"
    with pytest.raises(JournalError, match=r"there is no journal in .*open"):
        hosts_of(f"{tmp_path}/{{open")
    assert not is_parquet(f"{tmp_path}/web{{1,2}}")
    (tmp_path / "web2" / "date=2026-11-29").mkdir()
    assert is_parquet(f"{tmp_path}/web{{1,2}}")


def test_a_path_that_exists_literally_is_no_pattern(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "run[1]*" / "journal")
    (tmp_path / "run1x" / "journal").mkdir(parents=True)
    assert list(hosts_of(str(tmp_path / "run[1]*" / "journal"))) == ["journal"]
    assert list(hosts_of(str(tmp_path / "run[1]*"))) == ["journal"]


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_a_path_may_be_a_url_of_the_mounted_file_system(small: Path, form: str) -> None:
    options = ReadOptions.of({"path": form.format(small)})
    assert hosts_of(*options.paths) == {small.name: small}
    assert not is_parquet(form.format(small))


@pytest.mark.parametrize("path", ["s3://bucket/journal", "s3a:/journal", "dbfs:/journal", "file://elsewhere/journal"])
def test_a_url_of_another_file_system_is_refused(path: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"path='{path}': a journal is read from a mounted file system"):
        ReadOptions.of({"path": path})
    assert is_parquet(path), "only Spark can look there"


def test_a_name_may_have_a_colon(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "web1:journal")
    assert list(hosts_of(*ReadOptions.of({"path": f"{tmp_path}/web1:journal"}).paths)) == ["web1:journal"]
    assert ReadOptions.of({"path": "web1:journal"}).paths == ("web1:journal",)


def test_a_directory_without_a_journal_is_refused_and_a_new_journal_is_empty(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "in"):
        path.mkdir(exist_ok=True)
        with pytest.raises(JournalError, match=f"there is no journal in {path}: it has no segments"):
            source(path).schema()
    with pytest.raises(JournalError, match="or none of them has a journal"):
        hosts_of(f"{tmp_path}/i*")
    (tmp_path / "in" / LOCK_NAME).touch()
    source(tmp_path).schema()
    assert hosts_of(str(tmp_path)) == hosts_of(f"{tmp_path}/i*") == {"in": tmp_path / "in"}
    assert source(tmp_path).reader(spark_schema(TERMINAL)).partitions() == []


def test_a_pattern_that_matches_files_alone_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("")
    with pytest.raises(JournalError, match="no directory matches"):
        hosts_of(f"{tmp_path}/*")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "rows"}, "view='rows': give terminal or events"),
        ({"columns": "op_id, wait"}, "the terminal view has no 'wait': it has op_id"),
        ({"columns": "op_id,op_id"}, "twice"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0': give a whole number from 1 on"),
        ({"maxOffsetsPerTriger": "10"}, "no option 'maxOffsetsPerTriger': did you mean maxOffsetsPerTrigger? It has"),
        ({"colour": "red"}, "no option 'colour': it has path"),
        ({"failOnDataLoss": "maybe"}, "give true or false"),
        ({"consumer": "a b"}, "consumer='a b'"),
        ({"path": "s3://bucket/journal"}, "mounted file system"),
        ({"path": "/nowhere/at/all"}, "there is no journal in /nowhere/at/all"),
        ({"path": "/nowhere/*"}, "no directory matches"),
    ],
)
def test_a_wrong_option_is_refused_at_load(options: dict[str, str], said: str, journal: Path) -> None:
    with pytest.raises((InvalidConfigError, JournalError)) as caught:
        source(journal, **options).schema() if "path" not in options else TimerdDataSource(options).schema()
    assert said in str(caught.value)
