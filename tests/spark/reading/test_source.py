"""The journal as a source: every row and field is as JournalReader shows it, wherever spans begin.

Some tests are about damaged journals, and journals of older versions.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from support.oracle.olderjournals import as_older
from support.rig.harness import S
from support.rig.journals import JournaledRig, numbered, settle
from support.spark.spans import rows_of, source, spans_of
from support.suite.tiers import in_tiers
from timerctl.journal.rows import RowFormat
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, JOURNAL_VERSION, OLDER, TextKind
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, Offset, segment_path, segments_of
from timerd_spark.source import segments
from timerd_spark.source.batches import batches
from timerd_spark.source.decode import SegmentRows, readable
from timerd_spark.source.left_out import LeftOut
from timerd_spark.source.schema import EVENTS, HIDDEN_KINDS, LEFT_OUT, TERMINAL, arrow_schema, spark_schema
from timerd_spark.source.segments import Span, Walk


def largest(directory: Path) -> int:
    """The number of the largest segment, not counting the last one."""
    return max(segments_of(directory)[:-1], key=lambda sequence: segment_path(directory, sequence).stat().st_size)


def exported_rows(directory: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """For each row the header of its segment, and the row as `timerctl journal export` writes it."""
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
    """The row of the terminal view for an outcome that `timerctl journal export` writes."""
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


def test_the_terminal_view_has_the_fields_of_the_reader_for_every_operation(journal: Path) -> None:
    found = rows_of(spans_of(journal), "terminal")
    expected = [as_terminal(header, said) for header, said in exported_rows(journal) if said["kind"] == "outcome"]
    assert len(found) == len(expected) > 600
    assert [{name: row[name] for name in wanted} for row, wanted in zip(found, expected, strict=True)] == expected
    assert len({row["op_id"] for row in found}) == len(found)
    assert {row["instance"] for row in found} == {"test"}
    assert {"k" * 255, "\\xff\\xfe not utf-8", "schlüssel", "key 299"} <= {row["key"] for row in found}
    assert all((row["registered_at"] - row["settled_at"]).total_seconds() <= 0 for row in found)


def test_the_events_view_has_every_field_of_every_row(journal: Path) -> None:
    found = rows_of(spans_of(journal), "events")
    expected = [said for _, said in exported_rows(journal)]
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
                value = None  # a group, while no member holds the operation
            if name in ("key", "group") and value is not None:
                value = value.replace("\\\\", "\\")
            seen = row[name]
            assert seen == (value.lower() if isinstance(value, str) and value.isupper() else value) or (
                isinstance(value, int) and seen == value - (1 << 64)
            ), (name, seen, said)


@pytest.mark.long
@pytest.mark.parametrize("view", in_tiers(["events", "terminal"], 1))
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
    rig.wall_ns = lambda: 1_700_000_000_000_000_000 + rig.now_ns + shift  # type: ignore[method-assign]  # the clock was set
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


def damaged(journal: Path, directory: Path, block: int) -> tuple[Path, int]:
    copied = directory / "damaged"
    shutil.copytree(journal, copied)
    sequence = largest(copied)
    path = segment_path(copied, sequence)
    data = bytearray(path.read_bytes())
    data[(1 + block) * BLOCK_SIZE + 100] ^= 1
    path.write_bytes(data)
    return copied, sequence


@pytest.mark.long
def test_a_damaged_block_is_named_or_skipped_by_the_option(journal: Path, tmp_path: Path) -> None:
    copied, sequence = damaged(journal, tmp_path, 2)
    spans = spans_of(copied)
    with pytest.raises(JournalError, match=rf"segment {sequence} is damaged in blocks 2 to 2 .*failOnDataLoss"):
        rows_of(spans, "events")
    whole = rows_of(spans_of(journal), "events")
    lost = range(2 * BLOCK_ROWS, 3 * BLOCK_ROWS)
    expected = [
        (row["segment"], row["record"]) for row in whole if row["segment"] != sequence or row["record"] not in lost
    ]
    found = rows_of(spans, "events", skip=True)
    assert [(row["segment"], row["record"]) for row in found if row["kind"] != LEFT_OUT] == expected
    (lacking,) = (row for row in found if row["kind"] == LEFT_OUT)
    assert (lacking["segment"], lacking["record"], lacking["rows"]) == (sequence, 2 * BLOCK_ROWS, BLOCK_ROWS)
    first = next(row for row in whole if row["segment"] == sequence)
    assert lacking["row"] - lacking["record"] == first["row"] - first["record"]
    assert LeftOut.of(lacking["bytes"])[1:] == tuple(lacking[name] for name in ("row", "rows", "segment", "record"))
    assert len(rows_of(spans, "terminal", skip=True)) < len(rows_of(spans_of(journal), "terminal"))


@pytest.mark.long
def test_blocks_behind_a_block_that_was_cut_out_are_placed_by_their_headers(journal: Path, tmp_path: Path) -> None:
    copied, sequence = damaged(journal, tmp_path, 2)
    path = segment_path(copied, sequence)
    data = bytearray(path.read_bytes())
    del data[3 * BLOCK_SIZE : 4 * BLOCK_SIZE]
    path.write_bytes(data)
    with pytest.raises(JournalError, match=rf"segment {sequence} is damaged in blocks 2 to 2 .*failOnDataLoss"):
        rows_of(spans_of(copied), "events")
    lost = range(2 * BLOCK_ROWS, 3 * BLOCK_ROWS)
    whole = [
        (row["segment"], row["record"], row["at"])
        for row in rows_of(spans_of(journal), "events")
        if row["segment"] != sequence or row["record"] not in lost
    ]
    found = rows_of(spans_of(copied), "events", skip=True)
    assert [(row["segment"], row["record"], row["at"]) for row in found if row["kind"] != LEFT_OUT] == whole


@pytest.mark.parametrize("are_cut", [False, True], ids=["zeros", "cut out"])
@pytest.mark.parametrize("segment", [1, 2])
def test_a_journal_whose_first_blocks_are_gone_begins_behind_them(
    small: Path, tmp_path: Path, segment: int, are_cut: bool
) -> None:
    """The rows are those of a journal that never had these blocks. If a later segment lacks blocks, that is damage."""
    shutil.copytree(small, tmp_path / "gone")
    path = segment_path(tmp_path / "gone", segment)
    data = bytearray(path.read_bytes())
    data[BLOCK_SIZE : 4 * BLOCK_SIZE] = b"" if are_cut else bytes(3 * BLOCK_SIZE)
    path.write_bytes(data)
    if segment > 1:
        with pytest.raises(JournalError, match="segment 2 is damaged in blocks 0 to 2"):
            rows_of(spans_of(tmp_path / "gone"), "events")
        return
    whole = [
        row for row in rows_of(spans_of(small), "events") if (row["segment"], row["record"]) >= (1, 3 * BLOCK_ROWS)
    ]
    found = rows_of(spans_of(tmp_path / "gone"), "events")
    assert [(row["segment"], row["record"], row["at"]) for row in found] == [
        (row["segment"], row["record"], row["at"]) for row in whole
    ]


def test_names_from_a_skipped_damaged_block_are_null(small: Path, tmp_path: Path) -> None:
    shutil.copytree(small, tmp_path / "damaged")
    path = segment_path(tmp_path / "damaged", 1)
    data = bytearray(path.read_bytes())
    data[BLOCK_SIZE + 100] ^= 1
    path.write_bytes(data)
    found = rows_of(spans_of(tmp_path / "damaged", skip=True), "terminal", skip=True)
    assert {row["purgatory"] for row in found} == {None, "default"} and None in {row["key"] for row in found}
    declared = [column.name for column in TERMINAL if not column.nullable]
    assert all(row[name] is not None for row in found for name in declared), "these columns are declared not null"


def test_a_segment_of_another_layout_is_refused_when_it_is_loaded(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "other"
    shutil.copytree(journal, copied)
    path = segment_path(copied, segments_of(copied)[-1])
    data = bytearray(path.read_bytes())
    data[12] ^= 0x40  # the version
    path.write_bytes(data)
    with pytest.raises(
        JournalError, match=rf"version {JOURNAL_VERSION ^ 0x40} .*read it with the version that wrote it"
    ):
        source(copied).schema()


def test_an_older_segment_of_another_layout_is_named_or_skipped_by_the_option(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "older"
    shutil.copytree(journal, copied)
    path = segment_path(copied, segments_of(copied)[1])
    data = bytearray(path.read_bytes())
    data[12] ^= 0x40
    path.write_bytes(data)
    reader = source(copied).reader(spark_schema(TERMINAL))
    with pytest.raises(
        JournalError, match=rf"{copied}: segment 2 is of journal version {JOURNAL_VERSION ^ 0x40} .*failOnDataLoss"
    ):
        reader.partitions()
    skipping = source(copied, failOnDataLoss="false").reader(spark_schema(TERMINAL))
    found = [
        row["op_id"] for part in skipping.partitions() for batch in skipping.read(part) for row in batch.to_pylist()
    ]
    whole = rows_of([span for span in spans_of(journal) if span.segment != 2], "terminal")
    assert found == [row["op_id"] for row in whole]


@pytest.mark.parametrize("layout", sorted(OLDER))
def test_segments_of_an_older_version_are_read_with_nulls(small: Path, tmp_path: Path, layout: tuple[int, int]) -> None:
    shutil.copytree(small, tmp_path / "older")
    as_older(tmp_path / "older", layout)
    source(tmp_path / "older").schema()
    lacks = {kind.name.lower(): names for kind, names in OLDER[layout].fields.items()}
    whole = [
        {name: None if name in lacks.get(row["kind"], ()) else value for name, value in row.items()}
        for row in rows_of(spans_of(small), "events")
    ]
    found = rows_of(spans_of(tmp_path / "older"), "events")
    for row in [*whole, *found]:
        if row["kind"] in lacks:
            del row["bytes"]  # the bytes of a row keep the older layout
    assert found == whole
    assert rows_of(spans_of(tmp_path / "older"), "terminal") == rows_of(spans_of(small), "terminal")


def test_a_segment_removed_between_listing_and_opening_is_reported(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "raced"
    shutil.copytree(journal, copied)
    there = segments_of(copied)
    segment_path(copied, there[0]).unlink()
    monkeypatch.setattr(segments, "segments_of", lambda _: there)
    with pytest.raises(JournalError, match=r"segment 1 was removed before it was read; .*failOnDataLoss"):
        list(Walk(copied, Offset(1, 0)).spans())
    assert {span.segment for span in Walk(copied, Offset(1, 0), skip=True).spans()} == set(there[1:])


def test_a_journal_whose_newest_file_was_removed_while_the_daemon_ran_reads_the_same_with_both_readers(
    tmp_path: Path,
) -> None:
    """The texts of the removed blocks are not known, but the other rows are not damaged."""
    rig = JournaledRig(tmp_path)
    client = rig.client()
    for turn in range(8):
        settle(rig, client, *numbered(turn * 10, 10))
    segment_path(tmp_path, 1).unlink()
    for turn in range(3):
        settle(rig, client, *numbered(turn * 10, 10))
    rig.end()
    said = [said for _, said in exported_rows(tmp_path) if said["kind"] == "outcome"]
    found = rows_of(spans_of(tmp_path), "terminal")
    assert [(row["key"], row["purgatory"]) for row in found] == [(each["key"], each["purgatory"]) for each in said]
    assert len(found) >= 30
    with JournalReader(tmp_path) as reader:
        assert list(reader.rows()) and not reader.damage


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
    assert readable(TextKind.KEY, b"C:\\xampp\\temp") == "C:\\xampp\\temp", (
        "a backslash that begins no escape stays as it is"
    )
    rig = JournaledRig(tmp_path)
    settle(rig, rig.client(), b"kxxxx", b"k\\xff")
    rig.drop_journal()
    assert [row["key"] for row in rows_of(spans_of(tmp_path), "terminal")] == ["kxxxx", "k\\x5cxff"]


def test_keys_of_the_events_view_are_the_same_however_they_are_decoded(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = rows_of(spans_of(journal), "events")
    monkeypatch.setattr(SegmentRows, "many_texts", lambda self, texts: self.few_texts(texts, readable))
    assert rows_of(spans_of(journal), "events") == quick


def test_a_schema_without_columns_is_refused(small: Path) -> None:
    with pytest.raises(JournalError, match="a schema without columns reads no rows"):
        source(small).reader(spark_schema([]))


def test_a_missing_segment_in_the_middle_is_reported(journal: Path, tmp_path: Path) -> None:
    copied = tmp_path / "gap"
    shutil.copytree(journal, copied)
    rows = sum(span.end for span in spans_of(copied) if span.segment == segments_of(copied)[1])
    segment_path(copied, segments_of(copied)[1]).unlink()
    with pytest.raises(JournalError, match=rf"{rows} rows before segment 3 are missing"):
        spans_of(copied)
    assert len(spans_of(copied, skip=True)) == len(spans_of(journal)) - 1
