"""The journal's files, damaged, cut, doubled or foreign: a reader returns the sound rows, and reports the damage."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.rig.damage import CHANGES, Change, changed, read_journal, with_right_sums
from support.rig.journals import (
    SEGMENT_ROWS,
    JournaledRig,
    numbered,
    settle,
)
from timerd_shm.declare.errors import ErrorCode, TimerdError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE
from timerd_shm.read.journal_reader import Damage, JournalReader, Row
from timerd_shm.read.segment import (
    JournalError,
    Offset,
    full_blocks,
    parse_header,
    rows_of_block,
    segment_path,
    segments_of,
)

Rows = dict[int, tuple[Offset, tuple[Any, ...]]]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A journal of several segments, and each of its rows by number."""
    directory = tmp_path_factory.mktemp("sound")
    rig = JournaledRig(directory, capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(30):
        settle(rig, client, *numbered(turn * 20, 20))
    rows = {row.number: (row.offset, tuple(row.record)) for row in rig.rows()}
    rig.drop_journal()
    return directory, rows


def damaged(directory: Path, harm: Callable[[bytearray], bytes | bytearray], segment: int) -> list[Row | Damage]:
    """The rows and damage that a reader finds in a copy with one harmed segment. May raise JournalError."""
    copy = directory.parent / f"{directory.name}-copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    path = segment_path(copy, segment)
    path.write_bytes(harm(bytearray(path.read_bytes())))
    return read_journal(copy)


def test_full_blocks_finds_as_many_full_blocks_as_a_look_at_each_block(
    sound: tuple[Path, Rows], rng: random.Random
) -> None:
    directory, _ = sound
    for segment in segments_of(directory):
        content = segment_path(directory, segment).read_bytes()
        header, blocks = parse_header(content, segment), content[BLOCK_SIZE:]
        for _ in range(60):
            lie = bytearray(blocks)
            for _ in range(rng.randrange(3)):
                lie[rng.randrange(len(lie))] ^= 1 << rng.randrange(8)
            begin = rng.randrange(len(lie) // BLOCK_SIZE)
            parts = [lie[at : at + BLOCK_SIZE] for at in range(begin * BLOCK_SIZE, len(lie), BLOCK_SIZE)]
            whole = [rows_of_block(bytes(part), header, begin + at) == BLOCK_ROWS for at, part in enumerate(parts)]
            expected = whole.index(False) if False in whole else len(whole)
            assert full_blocks(memoryview(lie)[begin * BLOCK_SIZE :], header, begin) == expected


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_segment_is_skipped_and_no_row_of_a_bad_block_is_returned(
    sound: tuple[Path, Rows], data: st.DataObject
) -> None:
    directory, rows = sound
    segment = data.draw(st.sampled_from(segments_of(directory)))
    size = segment_path(directory, segment).stat().st_size
    harms = data.draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("flip"), st.integers(0, size - 1), st.integers(1, 255)),
                st.tuples(st.just("zero"), st.integers(0, size - 1), st.integers(1, 3 * BLOCK_SIZE)),
                st.tuples(st.just("cut"), st.integers(0, size), st.just(0)),
                st.tuples(st.just("noise"), st.integers(0, size - 1), st.integers(1, 300)),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def harm(content: bytearray) -> bytearray:
        for kind, at, much in harms:
            if kind == "cut":
                del content[at:]
            elif at < len(content):
                end = min(at + (1 if kind == "flip" else much), len(content))
                if kind == "flip":
                    content[at] ^= much
                elif kind == "zero":
                    content[at:end] = bytes(end - at)
                else:
                    content[at:end] = random.Random(much).randbytes(end - at)
        return content

    for found in damaged(directory, harm, segment):
        if isinstance(found, Row):
            assert rows[found.number] == (found.offset, tuple(found.record)), "a row that was never written"


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_block_is_found_at_any_place(sound: tuple[Path, Rows], data: st.DataObject) -> None:
    """Blocks were cut out, moved or doubled. Each block that is still in the file is read once, in order."""
    directory, rows = sound
    segment = data.draw(st.sampled_from(segments_of(directory)))
    there = -(-len([None for offset, _ in rows.values() if offset.segment == segment]) // BLOCK_ROWS)
    order = data.draw(
        st.one_of(
            st.lists(st.integers(0, there - 1), min_size=1, max_size=there + 2),
            st.sets(st.integers(0, there - 1), min_size=1).map(sorted),
        )
    )

    def harm(content: bytearray) -> bytes:
        blocks = [content[at : at + BLOCK_SIZE] for at in range(0, len(content), BLOCK_SIZE)]
        return b"".join([blocks[0], *(blocks[1 + number] for number in order)])

    found = [one for one in damaged(directory, harm, segment) if isinstance(one, Row)]
    expected = [
        number
        for number, (offset, _) in rows.items()
        if offset.segment != segment or offset.record // BLOCK_ROWS in order
    ]
    assert [row.number for row in found] == expected
    assert all(rows[row.number] == (row.offset, tuple(row.record)) for row in found)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(number=st.integers(1, 3), changes=CHANGES)
def test_a_reader_survives_any_content_of_rows_under_a_right_checksum(
    sound: tuple[Path, Rows], number: int, changes: list[Change]
) -> None:
    directory, _ = sound
    alone = directory.parent / "alone"
    alone.mkdir(exist_ok=True)
    segment = changed(segment_path(directory, number).read_bytes(), changes)
    segment_path(alone, 1).write_bytes(with_right_sums(segment, 1))
    assert sum(isinstance(each, Row) for each in read_journal(alone)) <= SEGMENT_ROWS


def test_each_damaged_block_is_named_and_the_others_are_read(
    sound: tuple[Path, Rows],
) -> None:
    directory, rows = sound

    def harm(content: bytearray) -> bytearray:
        for block in (2, 3, 7):
            content[(1 + block) * BLOCK_SIZE + 100] ^= 1
        return content

    found = damaged(directory, harm, 1)
    damage = [each for each in found if isinstance(each, Damage)]
    assert [each.offset for each in damage] == [Offset(1, 2 * BLOCK_ROWS), Offset(1, 7 * BLOCK_ROWS)]
    gone = {number for number in rows if number // BLOCK_ROWS in (2, 3, 7)}
    assert {each.number for each in found if isinstance(each, Row)} == set(rows) - gone


def test_a_missing_segment_shows_in_the_row_numbers(sound: tuple[Path, Rows]) -> None:
    directory, _ = sound
    copy = directory.parent / "missing"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    segment_path(copy, 2).unlink()
    with JournalReader(copy) as reader:
        list(reader.rows())
        assert [f"rows {SEGMENT_ROWS} to {2 * SEGMENT_ROWS - 1} are in no segment"] == [d.what for d in reader.damage]


def test_a_segment_that_is_there_twice_is_read_once(sound: tuple[Path, Rows]) -> None:
    """For example, a backup was restored: another file has the same row numbers."""
    directory, rows = sound
    copy = directory.parent / "twice"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    last = segments_of(copy)[-1]
    content = bytearray(segment_path(copy, last).read_bytes())
    segment_path(copy, last + 1).write_bytes(with_right_sums(content, last + 1))
    with JournalReader(copy) as reader:
        assert [row.number for row in reader.rows()] == sorted(rows)
        assert not reader.damage


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda data: b"", "has 0 bytes, less than its header"),
        (lambda data: data[:100], "has 100 bytes, less than its header"),
        (lambda data: b"PAR1" + data[4:], "begins with b'PAR1rdj"),
        (lambda data: data[:12] + b"\x07" + data[13:], "is of journal version 7"),
        (lambda data: data[:16] + b"\xff" + data[17:], "fingerprint 0x"),
        (lambda data: data[:40] + b"\xff" + data[41:], "the header of segment 1 is damaged"),
    ],
)
def test_a_header_that_is_torn_foreign_or_of_another_version_is_named(
    sound: tuple[Path, Rows], harm: Callable[[bytes], bytes], said: str
) -> None:
    directory, _ = sound
    content = harm(segment_path(directory, 1).read_bytes()[:BLOCK_SIZE])
    with pytest.raises(JournalError, match=said.replace("(", r"\(")):
        parse_header(content, 1)
    found = damaged(directory, lambda data: bytearray(harm(bytes(data))), 1)
    assert any(isinstance(each, Damage) and said in each.what for each in found)
    assert any(isinstance(each, Row) and each.offset.segment == 2 for each in found)


def test_a_missing_journal_and_a_wrong_offset_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal in"):
        JournalReader(tmp_path / "nowhere")
    with pytest.raises(JournalError, match="not an offset: write SEGMENT:RECORD"):
        Offset.parse("17")
    with JournalReader(tmp_path) as reader:
        assert list(reader.rows()) == []
    assert issubclass(JournalError, TimerdError)
    assert ErrorCode.NONE is JournalError.code
