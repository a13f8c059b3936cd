"""The journal's end: an END row at each orderly end. Without it, the arena and the next start show what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rig.arenas import SEED
from support.rig.commands import Key, Register
from support.rig.harness import INCARNATION, MS, S, fire
from support.rig.journals import JournaledRig, kinds, numbered, settle
from timerd_client.audit.journal import OPEN_END, audit_journal
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, ROW_SIZE, JournalLevel, RowKind
from timerd_shm.read.segment import JournalError, parse_header, segment_path, segments_of


def played(directory: Path, incarnation: int = INCARNATION) -> JournaledRig:
    """Some outcomes, over several segments."""
    rig = JournaledRig(directory, capacity=512, quota_operations=512, incarnation=incarnation)
    client = rig.client()
    for turn in range(15):
        settle(rig, client, *numbered(turn * 20, 20))
    return rig


def test_an_orderly_end_is_the_last_row_and_a_start_goes_on_behind_it(tmp_path: Path) -> None:
    rig = played(tmp_path)
    rig.end()
    rows = rig.rows()
    assert rows[-1].record.kind == RowKind.END
    assert (rows[-1].record.number, rows[-1].record.start, rows[-1].record.gaps) == (rows[-1].number, 1, 0)
    found = audit_journal(tmp_path)
    assert not found.wrong and str(found) == f"300 outcomes, {len(segments_of(tmp_path))} segments, " + (
        f"complete to row {rows[-1].number:,}"
    )
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.open_journal()
    rig.turn(rig.now_ns + MS)
    behind = kinds(rig.rows())[len(rows) :]
    assert behind[0] == RowKind.SEGMENT and not rig.audit().wrong
    assert [finding.what for finding in audit_journal(tmp_path).wrong] == [OPEN_END]


@pytest.mark.parametrize("level", [JournalLevel.OUTCOMES, JournalLevel.EVENTS])
def test_a_journal_of_each_level_has_an_end_row(tmp_path: Path, level: JournalLevel) -> None:
    rig = JournaledRig(tmp_path, level=level)
    rig.do(rig.client(), Register((Key(b"k"),), timeout_ns=S), fire(b"k"))
    rig.end()
    assert kinds(rig.rows())[-1] == RowKind.END
    assert (RowKind.TURN in kinds(rig.rows())) == (level is JournalLevel.EVENTS)


def test_a_missing_last_segment_is_found_by_the_end_row_and_by_the_arena(tmp_path: Path) -> None:
    rig = played(tmp_path)
    rig.end()
    segment_path(tmp_path, segments_of(tmp_path)[-1]).unlink()
    assert [finding.what for finding in audit_journal(tmp_path).wrong] == [OPEN_END]
    assert not audit_journal(tmp_path, open_end=True).wrong
    (finding,) = rig.audit().wrong
    assert f"to {rig.core.journal_rows - 1} are missing at the end" in finding.what


def test_the_next_start_knows_the_rows_of_a_killed_daemon(tmp_path: Path) -> None:
    rig = played(tmp_path)
    rows, last = rig.core.journal_rows, segments_of(tmp_path)[-1]
    path = segment_path(tmp_path, last)
    rig.restart()  # as after a kill
    rig.turn(rig.now_ns + MS)
    rig.end()
    assert not audit_journal(tmp_path).wrong
    content = path.read_bytes()
    path.write_bytes(content[: 2 * BLOCK_SIZE])  # without the last rows that the killed daemon had written
    found = audit_journal(tmp_path)
    first, end = parse_header(content, last).first_row + BLOCK_ROWS, -(-rows // BLOCK_ROWS) * BLOCK_ROWS
    assert any(f"rows {first} to {end - 1} are in no segment" in each.what for each in found.wrong)
    assert found.arenas[0].row == first - 1


def test_a_damaged_block_is_a_finding(tmp_path: Path) -> None:
    """Formerly, the audit raised AttributeError if the block held the first row of a registration."""
    rig = played(tmp_path)
    rig.end()
    path = segment_path(tmp_path, 1)
    whole = path.read_bytes()
    for block in range(1, len(whole) // BLOCK_SIZE - 2):
        content = bytearray(whole)
        content[(1 + block) * BLOCK_SIZE + ROW_SIZE] ^= 1
        path.write_bytes(content)
        found = audit_journal(tmp_path)
        assert any(f"blocks {block} to {block} are damaged" in each.what for each in found.wrong)
        assert found.arenas[0].row == block * BLOCK_ROWS - 1


# no rows at all -------------------------------------------------------------------------------------------------------


def test_an_audit_of_a_directory_without_segments_is_refused(tmp_path: Path) -> None:
    for open_end in (False, True):
        with pytest.raises(JournalError, match=r"there is no journal in .*: it holds no \*\.segment"):
            audit_journal(tmp_path, open_end=open_end)


@pytest.mark.parametrize("ended", [True, False])
def test_the_arena_shows_that_all_segments_are_missing(tmp_path: Path, ended: bool) -> None:
    rig = played(tmp_path)
    if ended:
        rig.end()
    for number in segments_of(tmp_path):
        segment_path(tmp_path, number).unlink()
    found = rig.audit()
    (finding,) = found.wrong
    assert f"rows 0 to {rig.core.journal_rows - 1} are missing in all files: the arena says" in finding.what
    assert found.outcomes == 0


def test_an_audit_with_the_arena_finds_that_all_its_rows_are_missing(tmp_path: Path) -> None:
    played(tmp_path, 7).end()
    there = segments_of(tmp_path)
    rig = played(tmp_path, 8)
    rig.end()
    for number in set(segments_of(tmp_path)) - set(there):
        segment_path(tmp_path, number).unlink()
    assert not audit_journal(tmp_path).wrong, "the files alone do not show that rows are missing"
    assert any("are missing in all files" in finding.what for finding in rig.audit().wrong)


def test_a_journal_that_has_just_begun_is_audited_although_no_file_is_there_yet(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    rig.core.tend_journal(0, 0)
    assert not segments_of(tmp_path) and rig.core.journal_rows > 0
    found = audit_journal(tmp_path, arena=rig.arena.header._replace(pid=1))  # a pid: the daemon runs
    assert not found.wrong
    assert str(found) == "the files have no row; 1 row waits in the daemon's buffer"


@pytest.mark.parametrize("number", [0, -1])
def test_a_broken_header_of_the_only_or_the_last_segment_is_named(tmp_path: Path, number: int) -> None:
    rig = played(tmp_path)
    rig.end()
    last = segments_of(tmp_path)[-1]
    if number == 0:
        for each in segments_of(tmp_path)[1:]:
            segment_path(tmp_path, each).unlink()
        last = 1
    path = segment_path(tmp_path, last)
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    said = f"the header of segment {last} is damaged"
    if number == 0:
        with pytest.raises(JournalError, match=said):
            audit_journal(tmp_path)
    assert any(said in finding.what for finding in rig.audit().wrong)
    path.write_bytes(bytes(len(content)))  # as it is left by a daemon that is killed while it makes the file
    assert not any("segment" in finding.what for finding in rig.audit().wrong)
