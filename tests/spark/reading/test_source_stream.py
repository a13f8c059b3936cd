"""The journal as a stream: offsets, batches that are read again, several hosts, and held files."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from support.rig.journals import JournaledRig, numbered, settle
from support.spark.spans import read, rows_of, settle_all, spans_of, stream
from timerd_shm.declare.journal import BLOCK_ROWS
from timerd_shm.read.holds import holds_of
from timerd_shm.read.segment import JournalError, segments_of
from timerd_spark.source.options import ReadOptions
from timerd_spark.source.readers import JournalStream
from timerd_spark.source.schema import EVENTS, LEFT_OUT
from timerd_spark.source.segments import hosts_of, last_offset


def test_a_stream_whose_checkpoint_has_another_name_of_a_journal_names_both_and_the_right_path(
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
    # A checkpoint with both names goes on. A host that has left is not mistaken for a new host.
    shutil.copytree(small, second)
    lenient = stream(pattern, failOnDataLoss="false")
    assert set(lenient.latestOffset(by_itself | by_pattern, ReadAllAvailable())) == {"journal", *hosts_of(pattern)}
    shutil.rmtree(first.parent)
    assert set(lenient.latestOffset(by_pattern, ReadAllAvailable())) == {"web1/journal", "web2/journal"}


def test_a_journal_that_vanishes_with_unread_rows_is_an_error_that_names_it_and_its_last_position(
    small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for host in ("a", "b"):
        shutil.copytree(small, tmp_path / "j" / host)
    pattern = f"{tmp_path}/j/*"
    reader, lenient = stream(pattern), stream(pattern, failOnDataLoss="false")
    start = reader.initialOffset()
    part = reader.latestOffset(start, ReadMaxRows(400))
    known = read(reader, start, part)
    (tmp_path / "j" / "b").rename(tmp_path / "away")
    said = (
        rf"the journal 'b' is not in '{re.escape(pattern)}' any more: .* to segment 1, row {part['b']['row']}\b.*false"
    )
    for ask in (lambda: reader.latestOffset(part, ReadAllAvailable()), lambda: read(reader, start, part)):
        with pytest.raises(JournalError, match=said):
            ask()
    with caplog.at_level("WARNING", "timerd_spark"):
        end = lenient.latestOffset(part, ReadAllAvailable())
        rest_of_a = read(lenient, part, end)
        assert lenient.latestOffset(end, ReadAllAvailable()) == end
        assert len(read(lenient, start, part)) < len(known)
    assert len(known) > 0 < len(rest_of_a)
    (first, *_) = (line for line in caplog.messages if re.search("'b' is not in .* any more", line))
    assert f"segment 1, row {part['b']['row']}" in first and first.endswith("passed over")
    # The loss of b was accepted once. If b comes back, nothing of b is lost or read twice.
    assert stream(pattern).latestOffset(end, ReadAllAvailable()) == end
    (tmp_path / "away").rename(tmp_path / "j" / "b")
    more = stream(pattern).latestOffset(end, ReadAllAvailable())
    every = [row["op_id"] for row in known + rest_of_a + read(stream(pattern), end, more)]
    assert sorted(every) == sorted(2 * [row["op_id"] for row in rows_of(spans_of(small), "terminal")])
    (tmp_path / "j" / "b").rename(tmp_path / "away")
    with pytest.raises(JournalError, match="'b' is not in"):
        stream(pattern).latestOffset(more, ReadAllAvailable())


def test_a_stream_returns_each_row_once_in_batches_of_the_requested_size(journal: Path, rng: random.Random) -> None:
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


@pytest.mark.parametrize("options", [{}, {"startingOffsets": "latest"}, {"startingTimestamp": "2026-11-01T00:00:00Z"}])
def test_the_first_batch_begins_where_it_began_when_it_is_read_again(tmp_path: Path, options: dict[str, str]) -> None:
    """Spark does not store where the first batch began. It asks again, and by then "latest" is elsewhere."""
    rig = JournaledRig(tmp_path)
    client = rig.client()
    settle_all(rig, client, 0, 100)
    reader = stream(tmp_path, consumer="etl", **options)
    start = reader.initialOffset()
    settle_all(rig, client, 100, 2_000)
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = read(reader, start, end)
    settle_all(rig, client, 2_100, 400)
    again = stream(tmp_path, consumer="etl", **options)
    assert read(again, again.initialOffset(), end) == rows and len(rows) >= 2_000
    assert holds_of(tmp_path) == {"etl": start[tmp_path.name]["segment"]}, "the batch is not committed"
    more = again.latestOffset(end, ReadAllAvailable())
    assert len(read(again, end, more)) == 400 and "begun" not in more[tmp_path.name]
    assert again.latestOffset(more, ReadAllAvailable()) == more
    rig.drop_journal()


def test_the_first_batch_of_a_new_host_begins_at_the_same_row_when_it_is_read_again(tmp_path: Path) -> None:
    first = JournaledRig(tmp_path / "a")
    settle_all(first, first.client(), 0, 20)
    reader = stream(tmp_path)
    start = reader.initialOffset()
    late = JournaledRig(tmp_path / "b", keep=2 * 64 << 10)
    client = late.client()
    settle_all(late, client, 0, 100)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(read(reader, start, end)) == 120
    settle_all(late, client, 100, 2_000)
    assert segments_of(tmp_path / "b")[0] > 1
    with pytest.raises(JournalError, match=r"rows from 1:0 on were removed"):
        read(stream(tmp_path), start, end)
    first.drop_journal()
    late.drop_journal()


def test_rows_that_were_removed_are_a_row_of_the_events_view_if_the_option_allows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = JournaledRig(tmp_path, keep=2 * 64 << 10)
    client = rig.client()
    options = ReadOptions.of({"path": str(tmp_path), "view": "events", "failOnDataLoss": "false"})
    reader = JournalStream(options, EVENTS)
    settle_all(rig, client, 0, 100)
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    settle_all(rig, client, 100, 2_000)
    rows = read(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    (lost,) = (row for row in rows if row["kind"] == LEFT_OUT)
    others = [row["row"] for row in rows if row["kind"] != LEFT_OUT]
    assert lost["row"] == start[tmp_path.name]["number"] and lost["row"] + lost["rows"] == min(others)
    assert lost["segment"] == segments_of(tmp_path)[0] > 1 and lost["rows"] > 1_000
    assert "rows from 1:" in caplog.text and f"{lost['rows']} rows before segment" in caplog.text
    rig.drop_journal()


def test_rows_that_were_removed_are_reported_also_where_a_journal_had_no_segment_yet(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, keep=2 * 64 << 10)
    client = rig.client()
    reader = stream(tmp_path)
    start = reader.initialOffset()
    assert start[tmp_path.name]["begun"] == [0, 0]
    settle_all(rig, client, 0, 100)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(read(reader, start, end)) == 100
    settle_all(rig, client, 100, 2_000)
    again = stream(tmp_path)
    for ask in (lambda: read(again, again.initialOffset(), end), lambda: again.latestOffset(start, ReadAllAvailable())):
        with pytest.raises(JournalError, match="rows from 0:0 on were removed, the oldest segment is"):
            ask()
    rig.drop_journal()


def test_a_host_that_comes_is_no_reason_to_refuse_the_positions_of_the_others(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "a")
    options = {"startingOffsets": '{"a": {"segment": 2, "row": 0}}'}
    reader = stream(tmp_path, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = read(reader, start, end)
    shutil.copytree(small, tmp_path / "b")
    again = stream(tmp_path, **options)
    assert read(again, again.initialOffset(), end) == rows != []
    both = again.latestOffset(end, ReadAllAvailable())
    assert read(again, end, both) == rows_of(spans_of(tmp_path / "b"), "terminal")


@pytest.mark.parametrize("there", [0, 100, 500])
def test_a_checkpoint_is_refused_with_another_journal(there: int, tmp_path: Path) -> None:
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
    if not there:
        with pytest.raises(JournalError, match=r"there is no journal in .* Is its mount missing\?"):
            stream(directory).latestOffset(end, ReadAllAvailable())
        return
    for places in (start, end):  # as an earlier version wrote them: only the numbers of rows can be compared
        del places["journal"]["incarnation"]
    said = f"the newest is {segments_of(directory)[-1]}"
    if there == 500:
        end["journal"]["segment"] = segments_of(directory)[-1]
        end["journal"]["row"] = last_offset(directory).record + BLOCK_ROWS
        said = "records, and has"
    with pytest.raises(JournalError, match=rf"{said}.*this is not the checkpoint's journal, or its mount is missing"):
        stream(directory).latestOffset(end, ReadAllAvailable())
    if there < 500:
        with pytest.raises(JournalError, match="begin a new checkpoint"):
            stream(directory).partitions(start, end)


def test_a_journal_that_was_begun_anew_is_refused_also_where_its_numbers_fit(tmp_path: Path) -> None:
    directory = tmp_path / "journal"

    def written(incarnation: int) -> None:
        rig = JournaledRig(directory, incarnation=incarnation)
        settle_all(rig, rig.client(), 0, 600)
        rig.drop_journal()

    written(0xAB)
    reader = stream(directory)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert {place["journal"]["incarnation"] for place in (start, end)} == {f"{0xAB:016x}"}
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert all(end["journal"][name] == value for name, value in reader.reportLatestOffset()["journal"].items())
    shutil.rmtree(directory)
    written(0xCD)
    said = rf"segment \d+ has rows of arena {0xCD:016x}, and had rows of {0xAB:016x}: this is not the checkpoint's"
    with pytest.raises(JournalError, match=said):
        stream(directory).latestOffset(end, ReadAllAvailable())
    with pytest.raises(JournalError, match=said):
        stream(directory).partitions(start, end)


def test_available_now_ends_at_the_end_of_the_journal_at_its_start(tmp_path: Path) -> None:
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
    with pytest.raises(JournalError, match=r"rows from 1:7 on were removed.*consumer"):
        free.latestOffset({tmp_path.name: {"segment": 1, "row": 7}}, ReadAllAvailable())
    rig.drop_journal()
