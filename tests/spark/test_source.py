"""The journal as a source: every row and field as the reader tells them, wherever spans begin; damage; and offsets."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from commands import Key, Register
from harness import MS, Client, S
from journalplay import play
from journals import JournaledRig, numbered, settle
from timerctl.journal.rows import RowFormat
from timerd_shm.declare.errors import InvalidConfigError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, TextKind
from timerd_shm.read.journal_reader import JournalError, JournalReader, Offset, holds_of, segment_path, segments_of
from timerd_spark.format import TimerdDataSource
from timerd_spark.source import segments
from timerd_spark.source.batches import batches
from timerd_spark.source.decode import SegmentRows, readable
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.readers import JournalStream
from timerd_spark.source.schema import EVENTS, HIDDEN_KINDS, TERMINAL, arrow_schema, spark_schema
from timerd_spark.source.segments import Span, Walk, first_offset, hosts_of, last_offset


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random program's journal, with groups, kills and long keys in it, over several segments."""
    directory = tmp_path_factory.mktemp("journal")
    played = play(4711, directory)
    rig = played.rig
    assert isinstance(rig, JournaledRig)
    client = rig.client()
    settle_all(rig, client, 0, 300)
    settle(rig, client, b"k" * 255, b"\xff\xfe not utf-8", "schlüssel".encode())
    settle_all(rig, client, 0, 300)
    rig.drop_journal()
    assert len(segments_of(directory)) > 3
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments, for Spark, which takes its time for each."""
    directory = tmp_path_factory.mktemp("small")
    rig = JournaledRig(directory)
    client = rig.client()
    settle_all(rig, client, 0, 390)
    client.issue(Register((Key(b"late"),), timeout_ns=MS))
    rig.turn()
    rig.turn(rig.now_ns + S)
    rig.drop_journal()
    assert len(segments_of(directory)) == 3
    return directory


def settle_all(rig: JournaledRig, client: Client, first: int, count: int) -> None:
    """So many operations, as many in a turn as a small arena holds."""
    for at in range(first, first + count, 10):
        settle(rig, client, *numbered(at, 10))


def largest(directory: Path) -> int:
    """The number of the segment with the most bytes, the last one left out."""
    return max(segments_of(directory)[:-1], key=lambda sequence: segment_path(directory, sequence).stat().st_size)


def spans_of(directory: Path, **more: Any) -> list[Span]:
    return list(Walk(directory, first_offset(directory), **more).spans())


def rows_of(spans: list[Span], view: str, **more: Any) -> list[dict[str, Any]]:
    columns = EVENTS if view == "events" else TERMINAL
    return [row for span in spans for batch in batches(span, columns, view, **more) for row in batch.to_pylist()]


def told(directory: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each row as `timerctl journal export` tells it, and the header of its segment."""
    with JournalReader(directory) as reader:
        show = RowFormat(reader)
        for row in reader.rows():
            show.follow(row)
            if row.record.kind not in HIDDEN_KINDS:
                yield (
                    reader.header,
                    {**show.fields(row), "number": row.number, "flag_bits": getattr(row.record, "flags", 0)},
                )


def instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)


def as_terminal(header: Any, said: dict[str, Any]) -> dict[str, Any]:
    """An outcome as the terminal view has it, from what the exporter says."""
    client, expired = "owner_incarnation" in said, said["outcome"] == "EXPIRED"
    return {
        "op_id": f"{header.incarnation:016x}-{said['operation']:016x}",
        "purgatory": said["purgatory"],
        "owner": said["owner"] if client else None,
        "group": said["owner"] if not client else None,
        "id": said["id"],
        "outcome": said["outcome"].lower(),
        "error": said["error"] if said["outcome"] == "FAILED" else None,
        "settled_key": said["settled_key"] - 1 if said["settled_key"] else None,
        "timeout_ns": None if said["deadline_ns"] is None else said["deadline_ns"] - said["registered_ns"],
        "wait_ns": said["wait_ns"],
        "lateness_ns": said["lateness_ns"] if expired else None,
        "settled_at": instant(said["at"]),
        "flags": said["flag_bits"],
    }


# what is told ---------------------------------------------------------------------------------------------------------


def test_the_terminal_view_tells_of_every_operation_what_the_reader_tells(journal: Path) -> None:
    found = rows_of(spans_of(journal), "terminal")
    expected = [as_terminal(header, said) for header, said in told(journal) if said["kind"] == "outcome"]
    assert len(found) == len(expected) > 600
    assert [{name: row[name] for name in wanted} for row, wanted in zip(found, expected, strict=True)] == expected
    assert len({row["op_id"] for row in found}) == len(found)
    assert {row["instance"] for row in found} == {"test"}
    assert {"k" * 255, "\\xff\\xfe not utf-8", "schlüssel", "key 299"} <= {row["key"] for row in found}
    assert all((row["registered_at"] - row["settled_at"]).total_seconds() <= 0 for row in found)


def test_the_events_view_tells_every_field_of_every_row(journal: Path) -> None:
    found = rows_of(spans_of(journal), "events")
    expected = [said for _, said in told(journal)]
    assert [row["row"] for row in found] == [said["number"] for said in expected]
    assert len({row["kind"] for row in found}) >= 8
    for row, said in zip(found, expected, strict=True):
        assert (row["kind"], f"{row['segment']}:{row['record']}") == (said["kind"], said["offset"])
        if "at" in said and row["at"] is not None:
            assert row["at"] == instant(said["at"])
        for name, value in said.items():
            if name in (
                "offset",
                "kind",
                "at",
                "number",
                "flags",
                "flag_bits",
                "command_flags",
                "incarnation",
                "instance",
            ):
                continue
            if name in ("owner_incarnation", "wait_ns", "lateness_ns") or name.startswith("incarnation_"):
                continue
            if name == "owner" and value is not None and "owner_incarnation" not in said:
                value = None  # a group, where an operation is nobody's yet
            if name in ("key", "group") and value is not None:
                value = value.replace("\\\\", "\\")
            seen = row[name]
            assert seen == (value.lower() if isinstance(value, str) and value.isupper() else value) or (
                isinstance(value, int) and seen == value - (1 << 64)
            ), (name, seen, said)


@pytest.mark.parametrize("view", ["terminal", "events"])
def test_wherever_spans_begin_and_end_the_rows_are_the_same(
    view: str, journal: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows_of(spans_of(journal), view)
    assert rows_of([span for span in cut(spans_of(journal), rng)], view) == whole
    monkeypatch.setattr(segments, "SPAN_ROWS_MAX", 100)
    spans = spans_of(journal)
    assert len(spans) > 30
    assert rows_of(spans, view) == whole


def cut(spans: list[Span], rng: random.Random) -> Iterator[Span]:
    for span in spans:
        places = sorted({span.first, span.end, *(rng.randint(span.first, span.end) for _ in range(5))})
        yield from (span._replace(first=first, end=end) for first, end in itertools.pairwise(places))


def test_wall_clock_times_follow_the_anchors_also_where_a_span_begins_behind_them(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    settle(rig, client, *numbered(0, 20))
    rig.turn(rig.now_ns + 11 * S)  # an anchor
    shift = 3600 * S
    rig.wall_ns = lambda: 1_700_000_000_000_000_000 + rig.now_ns + shift  # type: ignore[method-assign]  # it was set
    for _ in range(3):
        settle(rig, client, *numbered(0, 20))
        rig.turn(rig.now_ns + 11 * S)
    settle(rig, client, *numbered(0, 20))
    rig.drop_journal()
    whole = rows_of(spans_of(tmp_path), "terminal")
    apart = [row["settled_at"] - whole[0]["settled_at"] for row in whole]
    assert apart[0].total_seconds() == 0 and apart[-1].total_seconds() > 3600
    (span,) = spans_of(tmp_path)
    last = rows_of([span._replace(first=span.end - 3)], "terminal")
    assert last and last == whole[-len(last) :]


def test_batches_have_the_declared_schema_whatever_columns_are_asked_for(journal: Path) -> None:
    for view, columns in (("terminal", TERMINAL), ("events", EVENTS)):
        chosen = [columns[-1], columns[0], columns[3]]
        for span in spans_of(journal)[:2]:
            for batch in batches(span, chosen, view):
                assert batch.schema.equals(arrow_schema(chosen))
                batch.validate(full=True)


def test_declared_schemas_are_those_that_spark_expects_of_arrow() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    for columns in (TERMINAL, EVENTS):
        assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))


# damage ---------------------------------------------------------------------------------------------------------------


def damaged(journal: Path, directory: Path, block: int) -> tuple[Path, int]:
    copied = directory / "damaged"
    shutil.copytree(journal, copied)
    sequence = largest(copied)
    path = segment_path(copied, sequence)
    data = bytearray(path.read_bytes())
    data[(1 + block) * BLOCK_SIZE + 100] ^= 1
    path.write_bytes(data)
    return copied, sequence


def test_a_damaged_block_is_named_and_passed_over_when_asked_to(journal: Path, tmp_path: Path) -> None:
    copied, sequence = damaged(journal, tmp_path, 2)
    spans = spans_of(copied)
    with pytest.raises(JournalError, match=rf"segment {sequence} is damaged in blocks 2 to 2 .*onDamage"):
        rows_of(spans, "events")
    whole = rows_of(spans_of(journal), "events")
    lost = range(2 * BLOCK_ROWS, 3 * BLOCK_ROWS)
    expected = [
        (row["segment"], row["record"]) for row in whole if row["segment"] != sequence or row["record"] not in lost
    ]
    found = rows_of(spans, "events", skip=True)
    assert [(row["segment"], row["record"]) for row in found] == expected


def test_what_was_named_in_a_damaged_block_is_null_where_it_is_passed_over(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "damaged")
    path = segment_path(tmp_path / "damaged", 1)
    data = bytearray(path.read_bytes())
    data[BLOCK_SIZE + 100] ^= 1
    path.write_bytes(data)
    found = rows_of(spans_of(tmp_path / "damaged", skip=True), "terminal", skip=True)
    assert {row["purgatory"] for row in found} == {None, "default"} and None in {row["key"] for row in found}
    declared = [column.name for column in TERMINAL if not column.nullable]
    assert all(row[name] is not None for row in found for name in declared), "null, and not declared"


def test_a_segment_of_another_layout_is_refused_when_it_is_loaded(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "other"
    shutil.copytree(journal, copied)
    path = segment_path(copied, segments_of(copied)[-1])
    data = bytearray(path.read_bytes())
    data[12] ^= 0x40  # the version
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"version 65 .*read it with the version that wrote it"):
        source(copied).schema()


def test_an_older_segment_of_another_layout_is_named_and_passed_over_when_asked_to(
    journal: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "older"
    shutil.copytree(journal, copied)
    path = segment_path(copied, segments_of(copied)[1])
    data = bytearray(path.read_bytes())
    data[12] ^= 0x40
    path.write_bytes(data)
    reader = source(copied).reader(spark_schema(TERMINAL))
    with pytest.raises(JournalError, match=rf"{copied}: segment 2 is of journal version 65 .*onDamage"):
        reader.partitions()
    skipping = source(copied, onDamage="skip").reader(spark_schema(TERMINAL))
    found = [
        row["op_id"] for part in skipping.partitions() for batch in skipping.read(part) for row in batch.to_pylist()
    ]
    whole = rows_of([span for span in spans_of(journal) if span.segment != 2], "terminal")
    assert found == [row["op_id"] for row in whole]


def test_a_segment_that_is_removed_between_looking_and_opening_is_said(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "raced"
    shutil.copytree(journal, copied)
    there = segments_of(copied)
    segment_path(copied, there[0]).unlink()
    monkeypatch.setattr(segments, "segments_of", lambda _: there)
    with pytest.raises(JournalError, match=r"segment 1 was removed before it was read; .*onDamage"):
        list(Walk(copied, Offset(1, 0)).spans())
    assert {span.segment for span in Walk(copied, Offset(1, 0), skip=True).spans()} == set(there[1:])


def test_different_keys_are_different_texts(tmp_path: Path) -> None:
    ends = [
        b"",
        b"\\",
        b"\\x",
        b"\\x5c",
        b"\\xff",
        b"\xff",
        b"\\\xff",
        b"\\x5cxff",
        b"\\\\xff",
        b"x",
        b"\\xam",
        b"\xed\xa0\x80",
    ]
    keys = sorted({b"k" + one + other for one in ends for other in ends})
    assert len({readable(TextKind.KEY, key) for key in keys}) == len(keys)
    assert readable(TextKind.KEY, b"C:\\xampp\\temp") == "C:\\xampp\\temp", "what looks like nothing stays as it is"
    rig = JournaledRig(tmp_path)
    settle(rig, rig.client(), b"kxxxx", b"k\\xff")
    rig.drop_journal()
    assert [row["key"] for row in rows_of(spans_of(tmp_path), "terminal")] == ["kxxxx", "k\\x5cxff"]


def test_keys_of_the_events_view_are_the_same_however_they_are_decoded(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = rows_of(spans_of(journal), "events")
    monkeypatch.setattr(SegmentRows, "many", lambda self, texts: self.few(texts, readable))
    assert rows_of(spans_of(journal), "events") == quick


def test_a_journal_keeps_its_name_when_the_pattern_matches_another_one(small: Path, tmp_path: Path) -> None:
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


def test_a_stream_whose_checkpoint_calls_a_journal_otherwise_names_both_and_the_path_to_go_on_with(
    small: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "web1" / "journal", tmp_path / "web2" / "journal"
    shutil.copytree(small, first)
    pattern = f"{tmp_path}/*/journal"
    alone, many = stream(first), stream(pattern)
    by_itself = alone.latestOffset(alone.initialOffset(), ReadAllAvailable())
    assert list(by_itself) == ["journal"]
    with pytest.raises(JournalError, match=rf"a journal 'journal'.*'web1/journal'.*such as '{first}'"):
        many.latestOffset(by_itself, ReadAllAvailable())
    assert stream(first).latestOffset(by_itself, ReadAllAvailable()) == by_itself
    by_pattern = many.latestOffset(many.initialOffset(), ReadAllAvailable())
    with pytest.raises(JournalError, match=rf"a journal 'web1/journal'.*'journal'.*such as '{re.escape(pattern)}'"):
        alone.latestOffset(by_pattern, ReadAllAvailable())
    # What was read again already stays as it is; and a host that is gone is none that is new.
    shutil.copytree(small, second)
    assert set(many.latestOffset(by_itself | by_pattern, ReadAllAvailable())) == {"journal", *hosts_of(pattern)}
    shutil.rmtree(first.parent)
    assert set(many.latestOffset(by_pattern, ReadAllAvailable())) == {"web1/journal", "web2/journal"}


def test_a_pattern_that_matches_a_journal_and_a_directory_with_another_is_refused(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "journal")
    copy = tmp_path / "backup" / "journal"
    shutil.copytree(small, copy)
    with pytest.raises(JournalError, match=f"the journal {tmp_path}/journal, and a directory .*{copy}, which may be"):
        hosts_of(f"{tmp_path}/*")
    assert hosts_of(str(tmp_path)) == {"journal": tmp_path / "journal"}
    shutil.rmtree(tmp_path / "journal")
    assert hosts_of(f"{tmp_path}/*") == {"backup/journal": copy}


def test_a_path_that_stands_there_as_it_is_written_is_no_pattern(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "run[1]*" / "journal")
    (tmp_path / "run1x" / "journal").mkdir(parents=True)
    assert list(hosts_of(str(tmp_path / "run[1]*" / "journal"))) == ["journal"]
    assert list(hosts_of(str(tmp_path / "run[1]*"))) == ["journal"]


def test_a_pattern_that_matches_files_alone_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("")
    with pytest.raises(JournalError, match="no directory matches"):
        hosts_of(f"{tmp_path}/*")


def test_a_schema_without_columns_is_refused(small: Path) -> None:
    with pytest.raises(JournalError, match="a schema without columns reads no rows"):
        source(small).reader(spark_schema([]))


def test_a_segment_that_is_gone_from_the_middle_is_said(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "gap"
    shutil.copytree(journal, copied)
    rows = sum(span.end for span in spans_of(copied) if span.segment == segments_of(copied)[1])
    segment_path(copied, segments_of(copied)[1]).unlink()
    with pytest.raises(JournalError, match=rf"{rows} rows before segment 3 are in none"):
        spans_of(copied)
    assert len(spans_of(copied, skip=True)) == len(spans_of(journal)) - 1


# options --------------------------------------------------------------------------------------------------------------


def source(path: Path | str, **options: str) -> TimerdDataSource:
    return TimerdDataSource({"path": str(path), **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"view": "rows"}, "view='rows': give terminal or events"),
        ({"columns": "op_id, wait"}, "the terminal view has no 'wait': it has op_id"),
        ({"columns": "op_id,op_id"}, "twice"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger='0': give a whole number from 1 on"),
        ({"maxRowsPerTriger": "10"}, "no option 'maxRowsPerTriger': it has path"),
        ({"onDamage": "ignore"}, "give fail or skip"),
        ({"consumer": "a b"}, "consumer='a b'"),
        ({"path": "s3://bucket/journal"}, "mounted file system"),
        ({"path": "/nowhere/at/all"}, "there is no journal in /nowhere/at/all"),
        ({"path": "/nowhere/*"}, "no directory matches"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_when_it_is_loaded(
    options: dict[str, str], said: str, journal: Path
) -> None:
    with pytest.raises((InvalidConfigError, JournalError)) as caught:
        source(journal, **options).schema() if "path" not in options else TimerdDataSource(options).schema()
    assert said in str(caught.value)


# streams --------------------------------------------------------------------------------------------------------------


def stream(path: Path | str, **options: str) -> JournalStream:
    return JournalStream(ReadOptions.of({"path": str(path), **options}), TERMINAL)


def read(reader: JournalStream, start: Any, end: Any) -> list[dict[str, Any]]:
    # Offsets go through Spark's logs as JSON.
    parts = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_stream_gives_each_row_once_in_batches_of_the_size_asked_for(journal: Path, rng: random.Random) -> None:
    reader, found, batches_read = stream(journal), [], 0
    start = reader.initialOffset()
    while True:
        limit = rng.randint(1, 700)
        end = reader.latestOffset(start, ReadMaxRows(limit))
        if end == start:
            break
        rows = read(reader, start, end)
        assert len(rows) <= limit
        found += rows
        start, batches_read = end, batches_read + 1
    assert batches_read > 8
    assert found == rows_of(spans_of(journal), "terminal")
    assert reader.latestOffset(start, ReadAllAvailable()) == start == reader.reportLatestOffset()


def test_a_batch_that_is_read_again_later_is_the_same(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    reader = stream(tmp_path)
    start, told_before = reader.initialOffset(), []
    for turn in range(12):
        settle_all(rig, client, 100 * turn, 100)
        end = reader.latestOffset(start, ReadAllAvailable())
        told_before.append((start, end, read(reader, start, end)))
        start = end
    assert sum(len(rows) for _, _, rows in told_before) == 1200
    assert all(read(stream(tmp_path), begin, end) == rows for begin, end, rows in told_before)
    rig.drop_journal()


@pytest.mark.parametrize("there", [0, 100, 500])
def test_a_checkpoint_does_not_go_on_in_another_journal(there: int, tmp_path: Path) -> None:
    directory = tmp_path / "journal"

    def written(count: int) -> None:
        directory.mkdir()
        if count:
            rig = JournaledRig(directory)
            settle_all(rig, rig.client(), 0, count)
            rig.drop_journal()

    written(600)
    reader = stream(directory)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    shutil.rmtree(directory)
    written(there)
    said = "there is none" if not there else f"the newest is {segments_of(directory)[-1]}"
    if there == 500:
        end["journal"]["segment"] = segments_of(directory)[-1]
        end["journal"]["row"] = last_offset(directory).record + BLOCK_ROWS
        said = "records, and has"
    with pytest.raises(JournalError, match=rf"{said}.*this is not the checkpoint's journal, or its mount is missing"):
        stream(directory).latestOffset(end, ReadAllAvailable())
    if there < 500:
        with pytest.raises(JournalError, match="begin a new checkpoint"):
            stream(directory).partitions(start, end)


def test_available_now_ends_where_the_journal_ended_when_it_began(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    client = rig.client()
    settle_all(rig, client, 0, 50)
    reader = stream(tmp_path)
    reader.prepareForTriggerAvailableNow()
    settle_all(rig, client, 50, 50)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(read(reader, start, end)) == 50
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    rig.drop_journal()


def test_several_hosts_have_an_offset_each_and_share_the_limit(journal: Path, tmp_path: Path) -> None:
    for host in ("a", "b"):
        shutil.copytree(journal, tmp_path / host / "journal")
    (tmp_path / "c").mkdir()
    assert list(hosts_of(f"{tmp_path}/*/journal")) == ["a/journal", "b/journal"]
    rig = JournaledRig(tmp_path / "c" / "journal")
    client = rig.client()
    settle(rig, client, *numbered(0, 3))
    reader = stream(Path(f"{tmp_path}/*/journal"))
    start = reader.initialOffset()
    assert list(start) == ["a/journal", "b/journal", "c/journal"]
    small = last_offset(tmp_path / "c" / "journal").record
    end = reader.latestOffset(start, ReadMaxRows(300))
    used = dict.fromkeys(start, 0)
    for part in reader.partitions(start, end):
        used[f"{Path(part.value.directory).parent.name}/journal"] += part.value.end - part.value.first
    assert used["c/journal"] == small and sum(used.values()) == 300
    assert abs(used["a/journal"] - used["b/journal"]) <= 1
    rest = reader.latestOffset(end, ReadAllAvailable())
    total = len(read(reader, start, end)) + len(read(reader, end, rest))
    assert total == 2 * len(rows_of(spans_of(journal), "terminal")) + 3
    rig.drop_journal()


def test_files_are_held_until_the_batch_that_read_them_is_committed(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, keep=2 * 64 << 10)
    client = rig.client()
    held, free = stream(tmp_path, consumer="etl"), stream(tmp_path)
    start = held.initialOffset()
    assert holds_of(tmp_path) == {"etl": 0}
    settle_all(rig, client, 0, 2000)
    end = held.latestOffset(start, ReadAllAvailable())
    assert segments_of(tmp_path)[0] == 1 and len(read(held, start, end)) == 2000
    held.commit(end)
    assert holds_of(tmp_path) == {"etl": end[tmp_path.name]["segment"]}
    settle_all(rig, client, 0, 2000)
    assert segments_of(tmp_path)[0] > 1
    with pytest.raises(JournalError, match=r"rows from 1:7 on are gone.*consumer"):
        free.latestOffset({tmp_path.name: {"segment": 1, "row": 7}}, ReadAllAvailable())
    rig.drop_journal()


# on Spark -------------------------------------------------------------------------------------------------------------


def test_spark_finds_the_format_by_itself_and_reads_a_part_for_each_segment(spark: SparkSession, small: Path) -> None:
    found = spark.read.format("timerd").load(str(small))
    assert found.schema == spark_schema(TERMINAL)
    assert found.rdd.getNumPartitions() == len(segments_of(small))
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


def test_a_schema_or_an_option_names_the_columns_that_are_made(spark: SparkSession, small: Path) -> None:
    reader = spark.read.format("timerd").option("columns", "outcome, wait_ns")
    assert reader.load(str(small)).columns == ["outcome", "wait_ns"]
    chosen = spark.read.format("timerd").schema("wait_ns long, op_id string").load(str(small))
    assert chosen.select("op_id").distinct().count() == len(rows_of(spans_of(small), "terminal"))
    for wrong, said in (("wait_ns int", "is of type bigint, not int"), ("wait long", "has no column 'wait'")):
        with pytest.raises(Exception, match=said):
            spark.read.format("timerd").schema(wrong).load(str(small)).count()


@pytest.fixture(params=["false", "true"])
def switch(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Spark's own switch for filters that Python sources take over. This source takes none, so it changes nothing."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", request.param)
    yield request.param
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


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
    """It gave wrong rows: with it, Spark left the filter of one query in the frame, for all queries that followed."""
    with pytest.raises(Exception, match="format timerd has no option 'pushdown'"):
        spark.read.format("timerd").option("pushdown", "true").load(str(small))


def test_a_stream_on_spark_goes_on_where_it_was_and_reads_a_lost_batch_again(
    spark: SparkSession, small: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "journal"
    copied.mkdir()
    for sequence in segments_of(small)[:3]:
        shutil.copy(segment_path(small, sequence), copied)

    def run() -> None:
        rows = spark.readStream.format("timerd").option("columns", "op_id").option("maxRowsPerTrigger", "1500")
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
