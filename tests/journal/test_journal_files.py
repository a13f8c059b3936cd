"""The journal's files: read while they are written, continued by the next start, removed, locked; and a full disk."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerd.journal.files
import timerd.journal.writer
from support.rig.arenas import SEED, Memory
from support.rig.commands import Key, Register
from support.rig.harness import S, fire
from support.rig.journals import (
    BUFFER_ROWS,
    SEGMENT_SIZE,
    JournaledRig,
    empty_buffer,
    kinds,
    numbered,
    outcomes,
    settle,
)
from timerd.journal.blocks import write_blocks
from timerd.journal.buffer import open_buffer
from timerd.journal.files import JournalFiles
from timerd.journal.writer import Journal
from timerd_shm.declare.errors import InstanceRunningError
from timerd_shm.declare.journal import BLOCK_ROWS, BLOCK_SIZE, JournalLevel, RowFlag, RowKind, TextKind
from timerd_shm.declare.layout import Region
from timerd_shm.declare.states import Outcome
from timerd_shm.read.holds import hold
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, Offset, segment_path, segments_of


@pytest.fixture
def rig(tmp_path: Path) -> JournaledRig:
    return JournaledRig(tmp_path / "journal", level=JournalLevel.OUTCOMES, capacity=512, quota_operations=512)


def outcomes_in(reader: JournalReader) -> list[bytes | None]:
    """Keys of the outcomes so far, from the reader's position on."""
    return [reader.text(row.record.key) for row in reader.rows() if row.record.kind == RowKind.OUTCOME]


def errors(rig: JournaledRig) -> list[str]:
    """The errors that `timerctl errors` would show."""
    records = Memory(rig.memory).all_records(Region.ERRORS)
    return [record.message.rstrip(b"\0").decode() for record in records if record.count]


def starts_of(rig: JournaledRig) -> list[Any]:
    """The SEGMENT rows with which daemons began."""
    return [row.record for row in rig.rows() if row.record.kind == RowKind.SEGMENT and row.record.flags & RowFlag.START]


# tailing --------------------------------------------------------------------------------------------------------------


def test_a_reader_follows_new_rows_across_segments(rig: JournaledRig) -> None:
    client = rig.client()
    reader = JournalReader(rig.plan.directory)
    found: list[bytes | None] = []
    for turn in range(150):
        settle(rig, client, *numbered(turn * 20, turn % 20))
        found += outcomes_in(reader)
        assert len(found) == sum(each % 20 for each in range(turn + 1)), "rows of a turn cannot be read after the turn"
    assert found == [key for turn in range(150) for key in numbered(turn * 20, turn % 20)]
    assert len(segments_of(rig.plan.directory)) > 2
    assert not reader.damage


def test_another_reader_continues_from_any_offset(rig: JournaledRig) -> None:
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    with JournalReader(rig.plan.directory) as reader:
        whole = list(reader.rows())
        end = reader.position
    wanted = [row.offset for row in whole]
    for at in random.Random(1).sample(range(len(whole)), 60):
        with JournalReader(rig.plan.directory, start=wanted[at]) as reader:
            row = next(reader.rows())
            assert row == whole[at]
            if row.record.kind == RowKind.OUTCOME:
                assert (reader.text(row.record.key) or b"").startswith(b"key ")
                assert reader.text(row.record.purgatory) == b"default"
                assert (reader.text(row.record.owner) or b"")[16:] == b"client-1"
            assert reader.position == Offset(row.offset.segment, row.offset.record + 1)
            assert [row.offset for row in reader.rows()] == wanted[at + 1 :]
            assert reader.position == end == reader.end()


def test_an_end_bounds_rows_and_chunks(rig: JournaledRig) -> None:
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    whole = rig.rows()
    for at in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        with JournalReader(rig.plan.directory) as reader:
            assert [row.offset for row in reader.rows(whole[at].offset)] == [row.offset for row in whole[:at]]
            assert reader.position <= whole[at].offset
            assert next(reader.rows()) == whole[at]


def test_chunks_are_whole_blocks_and_hold_every_row_once(rig: JournaledRig) -> None:
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    numbers: list[int] = []
    with JournalReader(rig.plan.directory) as reader:
        for chunk in reader.chunks():
            assert len(chunk.blocks) % BLOCK_SIZE == 0
            first = chunk.header.first_row + chunk.first.record
            numbers += range(first, first + chunk.rows)
            kinds_there = bytes(chunk.blocks[64::64])
            assert kinds_there.count(RowKind.OUTCOME) <= chunk.rows
    assert numbers == list(range(rig.core.journal_rows))


def test_long_keys_span_rows_and_known_keys_are_written_once(rig: JournaledRig) -> None:
    client, long = rig.client(), b"x" * 255
    settle(rig, client, long, b"y" * 60, b"y" * 61, long, long)
    rows = rig.rows()
    texts = [row for row in rows if row.record.kind == RowKind.TEXT and row.record.text_kind == TextKind.KEY]
    assert [row.record.length for row in texts] == [255, 60, 61]
    assert kinds(rows).count(RowKind.CONTINUED) == 4 + 0 + 1
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == [long, b"y" * 60, b"y" * 61, long, long]


def test_unique_keys_cost_one_row_more_than_the_outcomes(rig: JournaledRig) -> None:
    client = rig.client()
    for turn in range(10):
        settle(rig, client, *numbered(turn * 40, 40))
    rows = rig.rows()
    assert len(outcomes(rows)) == 400
    assert len(rows) <= 2 * 400 + 10


def test_the_wall_clock_is_written_again_while_rows_are_written(rig: JournaledRig) -> None:
    client = rig.client()
    for _ in range(30):
        settle(rig, client, b"k")
        rig.turn(rig.now_ns + S)
    anchors = [row.record for row in rig.rows() if row.record.kind == RowKind.ANCHOR]
    assert 2 <= len(anchors) <= 4
    assert all(
        anchor.wall_ns - anchor.monotonic_ns == anchors[0].wall_ns - anchors[0].monotonic_ns for anchor in anchors
    )


def test_a_thread_writes_the_rows_of_each_turn(rig: JournaledRig) -> None:
    client = rig.client()
    rig.journal.start()
    for turn in range(20):
        settle(rig, client, *numbered(turn * 20, 20))
    rig.journal.close()
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == numbered(0, 400)
    assert isinstance(rig.journal, Journal)


# starts ---------------------------------------------------------------------------------------------------------------


def test_a_start_continues_where_the_killed_daemon_ended(rig: JournaledRig) -> None:
    client, wanted = rig.client(), []
    for turn in range(60):
        keys = numbered(turn * 10, 10)
        settle(rig, client, *keys)
        wanted += keys
        if turn % 3 == 0:
            rig.restart()
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == wanted
    starts = starts_of(rig)
    assert len(starts) == 21
    assert all(start.flags & RowFlag.CONTINUES for start in starts[1:])
    assert not starts[0].flags & RowFlag.CONTINUES


def test_the_next_daemon_writes_the_rows_that_a_killed_daemon_left_in_the_buffer(rig: JournaledRig) -> None:
    client = rig.client()
    rig.journal.tend = lambda now_ns: False  # type: ignore[method-assign]  # the journal's thread writes nothing
    settle(rig, client, *numbered(0, 60))
    settle(rig, client, *numbered(60, 60))
    assert not outcomes(rig.rows())
    rig.restart()
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == numbered(0, 120)


@pytest.mark.parametrize("cut", [0, 1, 700, BLOCK_SIZE - 1])
def test_a_torn_open_block_is_written_again(rig: JournaledRig, cut: int) -> None:
    client = rig.client()
    settle(rig, client, *numbered(0, 100))
    sequence = segments_of(rig.plan.directory)[-1]
    block = rig.core.journal_rows // BLOCK_ROWS
    with segment_path(rig.plan.directory, sequence).open("r+b") as file:
        file.seek((1 + block) * BLOCK_SIZE + cut)
        file.write(b"torn" if cut < BLOCK_SIZE - 4 else b"t")
    with JournalReader(rig.plan.directory) as reader:
        before = outcomes_in(reader)
        assert not reader.damage, "the last block of the newest segment counts as damaged, though it may be unfinished"
        rig.restart()
        assert before + outcomes_in(reader) == numbered(0, 100)


def test_a_segment_file_of_zeros_is_skipped(rig: JournaledRig) -> None:
    client = rig.client()
    settle(rig, client, *numbered(0, 10))
    path = segment_path(rig.plan.directory, segments_of(rig.plan.directory)[-1] + 1)
    path.write_bytes(bytes(SEGMENT_SIZE))
    rig.restart()
    settle(rig, client, *numbered(10, 10))
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == numbered(0, 20)
        assert not reader.damage


def test_another_arena_begins_another_segment(tmp_path: Path, rig: JournaledRig) -> None:
    settle(rig, rig.client(), *numbered(0, 10))
    rig.drop_journal()
    other = JournaledRig(tmp_path / "journal", level=JournalLevel.OUTCOMES, incarnation=77)
    settle(other, other.client(), *numbered(10, 10))
    assert segments_of(tmp_path / "journal") == [1, 2]
    assert segment_path(tmp_path / "journal", 1).stat().st_size < SEGMENT_SIZE, (
        "the old segment was not cut to its content"
    )
    with JournalReader(tmp_path / "journal") as reader:
        assert outcomes_in(reader) == numbered(0, 20)
        assert not reader.damage


def test_a_journal_that_was_off_for_a_while_does_not_claim_to_continue(rig: JournaledRig) -> None:
    client = rig.client()
    settle(rig, client, b"a")
    rig.drop_journal()
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)  # a daemon without --journal
    rig.core.begin_turn(rig.now_ns)
    rig.core.end_turn(rig.now_ns)
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.open_journal()
    rig.tend()
    starts = starts_of(rig)
    assert [bool(start.flags & RowFlag.CONTINUES) for start in starts] == [False, False]


def test_a_journal_that_begins_late_writes_the_existing_operations(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, level=JournalLevel.OUTCOMES)
    client = rig.client()
    rig.do(client, Register((Key(b"k"), Key(b"l")), timeout_ns=S, needed=2), Register((Key(b"m"),)), fire(b"k"))
    rig.drop_journal()
    rig.core.release()
    rig.plan = rig.plan._replace(level=JournalLevel.EVENTS)
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.open_journal()
    client.issue(Register((Key(b"n"),)))
    rig.turn()
    registered = [row.record for row in rig.rows() if row.record.kind == RowKind.REGISTER]
    halves = [row.record for row in rig.rows() if row.record.kind == RowKind.REGISTERED]
    assert [bool(row.flags & RowFlag.SNAPSHOT) for row in sorted(registered, key=lambda row: row.registration)] == [
        True,
        True,
        False,
    ]
    assert {row.progress for row in halves} == {0, 1}
    rig.restart()
    assert len([row for row in rig.rows() if row.record.kind == RowKind.REGISTER]) == 3, "no row is written again"


def test_the_next_start_writes_the_segments_that_have_no_file(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path)
    rig.client()
    doomed = rig.clone(bytes(rig.memory))
    rig.restart(bytes(doomed.memory) + bytes(doomed.buffer))
    doomed.core.release()
    rows = rig.rows()
    assert rows[0].number == 0 and RowKind.CLIENT in kinds(rows)
    assert len(starts_of(rig)) == 3


# what can go wrong ----------------------------------------------------------------------------------------------------


class Disk:
    """The system calls that a full disk refuses. A test sets `full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        monkeypatch.setattr(timerd.journal.files, "write_blocks", self.refusing(write_blocks))
        monkeypatch.setattr(os, "posix_fallocate", self.refusing(os.posix_fallocate))

    def refusing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments)

        return wrapped


def test_a_full_disk_stops_no_operation_is_reported_and_the_journal_resumes(
    rig: JournaledRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, client, keys = Disk(monkeypatch), rig.client(), []
    for turn in range(70):
        disk.full = 10 <= turn < 50
        keys += numbered(turn * 20, 20)
        settle(rig, client, *numbered(turn * 20, 20))
        assert [told.state for told in client.delivered[-20:]] == [Outcome.COMPLETED] * 20
    rows = rig.rows()
    gaps = [row.record for row in rows if row.record.kind == RowKind.GAP]
    assert disk.refused and rig.core.journal_dropped
    assert sum(gap.rows for gap in gaps) == rig.core.journal_dropped
    assert len(gaps) == 1 and gaps[0].from_ns < gaps[0].to_ns
    with JournalReader(rig.plan.directory) as reader:
        found = outcomes_in(reader)
    lost = len(keys) - len(found)
    assert lost == rig.core.journal_dropped
    first = next(at for at, key in enumerate(keys) if key != found[at])
    assert found == keys[:first] + keys[first + lost :], "more is missing than one stretch"
    assert any("is not written: No space left on device" in error for error in errors(rig))
    assert any("lacks rows" in error and "--journal-buffer" in error for error in errors(rig))
    assert rig.arena.count("journal_failures") == disk.refused


def test_a_gap_outlives_a_kill(rig: JournaledRig, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, client = Disk(monkeypatch), rig.client()
    disk.full = True
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    dropped = rig.core.journal_dropped
    assert dropped
    rig.restart()
    disk.full = False
    settle(rig, client, b"k")
    settle(rig, client, b"k")
    assert sum(row.record.rows for row in rig.rows() if row.record.kind == RowKind.GAP) == rig.core.journal_dropped
    assert rig.core.journal_dropped >= dropped


@pytest.mark.parametrize("whole", [False, True])
def test_a_removed_file_or_directory_is_reported_and_made_again(rig: JournaledRig, whole: bool) -> None:
    client = rig.client()
    settle(rig, client, *numbered(0, 100))
    if whole:
        shutil.rmtree(rig.plan.directory)
    else:
        segment_path(rig.plan.directory, 1).unlink()
    for turn in range(1, 5):
        settle(rig, client, *numbered(turn * 100, 100))
    assert any("was removed while it was written" in error for error in errors(rig))
    found = []
    with JournalReader(rig.plan.directory) as reader:
        found = [row for row in reader.rows() if row.record.kind == RowKind.OUTCOME]
    assert len(found) >= 400
    assert (rig.plan.directory / "lock").exists()


def test_two_daemons_cannot_write_one_journal(rig: JournaledRig) -> None:
    with pytest.raises(InstanceRunningError, match=r"written by another daemon \(instance test, pid \d+\)"):
        JournalFiles(rig.plan, rig.files._clock, b"b" * 16)


@pytest.mark.parametrize("said", ["instance test, pid 4194305\n", ""])  # a pid above the highest of Linux
def test_the_error_for_a_lock_whose_daemon_has_ended_does_not_name_a_writing_daemon(
    rig: JournaledRig, said: str
) -> None:
    """The lock may be held by a child of the daemon, or by a command such as `flock DIR/lock`."""
    path = rig.plan.directory / "lock"
    path.write_text(said)
    with pytest.raises(InstanceRunningError) as refused:
        JournalFiles(rig.plan, rig.files._clock, b"b" * 16)
    assert f"some process holds {path} (`fuser {path}` says which)" in str(refused.value)
    assert ("has ended, or runs in another container (instance test, pid 4194305)" in str(refused.value)) == bool(said)
    assert "written by another daemon" not in str(refused.value)


def test_old_segments_are_removed_and_held_segments_stay_up_to_a_limit(tmp_path: Path) -> None:
    rig = JournaledRig(
        tmp_path,
        level=JournalLevel.OUTCOMES,
        keep=4 * SEGMENT_SIZE,
        hold_limit=4 * SEGMENT_SIZE,
        capacity=512,
        quota_operations=512,
    )
    client = rig.client()

    def fill(segments: int) -> None:
        end = segments_of(tmp_path)[-1] + segments
        for turn in range(100 * segments):
            if segments_of(tmp_path)[-1] >= end:
                return
            settle(rig, client, *numbered(turn * 40, 40))

    settle(rig, client, b"k")
    fill(8)
    assert len(segments_of(tmp_path)) == 4
    oldest = segments_of(tmp_path)[0]
    hold(tmp_path, "spark-1", oldest)
    fill(3)
    assert segments_of(tmp_path)[0] == oldest
    assert not errors(rig)
    fill(3)
    assert len(segments_of(tmp_path)) == 8
    assert any("removed although spark-1 in holds/ holds them" in error for error in errors(rig))
    with pytest.raises(JournalError, match=f"offset {oldest}:0 was removed: the oldest segment"):
        JournalReader(tmp_path, start=Offset(oldest, 0))
    hold(tmp_path, "spark-1", None)
    fill(1)
    assert len(segments_of(tmp_path)) == 4


def test_a_reader_overtaken_by_retention_reports_the_removed_rows_and_continues(tmp_path: Path) -> None:
    rig = JournaledRig(tmp_path, level=JournalLevel.OUTCOMES, keep=SEGMENT_SIZE, capacity=512, quota_operations=512)
    client, reader = rig.client(), JournalReader(tmp_path)
    settle(rig, client, b"first")
    assert outcomes_in(reader) == [b"first"]
    reader.close()
    for turn in range(80):
        settle(rig, client, *numbered(turn * 40, 40))
    assert outcomes_in(reader)[-1] == b"key 3199"
    assert ["removed before they were read" in damage.what for damage in reader.damage] == [True]


def test_a_buffer_of_another_size_keeps_the_rows_that_no_file_has(tmp_path: Path, rig: JournaledRig) -> None:
    client = rig.client()
    settle(rig, client, *numbered(0, 50))
    header = rig.arena.header
    path = tmp_path / "arena.journal"
    path.write_bytes(rig.buffer)
    same, kept = open_buffer(path, BUFFER_ROWS, header, BUFFER_ROWS)
    assert kept and bytes(same) == bytes(rig.buffer)
    larger, kept = open_buffer(path, 4 * BUFFER_ROWS, header, 4 * BUFFER_ROWS)
    assert kept
    for number in range(header.journal_written, header.journal_rows):
        old, new = 4096 + number % BUFFER_ROWS * 64, 4096 + number % (4 * BUFFER_ROWS) * 64
        assert larger[new : new + 64] == rig.buffer[old : old + 64]
    _, kept = open_buffer(path, BUFFER_ROWS, header._replace(incarnation=1), BUFFER_ROWS)
    assert not kept
    assert [each.name for each in tmp_path.glob("arena*")] == ["arena.journal"]


def test_removed_files_are_written_again_as_far_as_the_buffer_reaches(tmp_path: Path) -> None:
    rig = JournaledRig(
        tmp_path / "journal",
        level=JournalLevel.OUTCOMES,
        buffer_rows=4 * BUFFER_ROWS,
        capacity=512,
        quota_operations=512,
    )
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 40, 40))
    there = segments_of(rig.plan.directory)
    for sequence in there[-3:]:
        segment_path(rig.plan.directory, sequence).unlink()
    rig.restart()
    settle(rig, client, *numbered(1600, 40))
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == numbered(0, 1640), "rows that were still in the buffer were not written again"
        assert not reader.damage
    for sequence in segments_of(rig.plan.directory):
        segment_path(rig.plan.directory, sequence).unlink()
    rig.restart()
    settle(rig, client, *numbered(1640, 40))
    with JournalReader(rig.plan.directory) as reader:
        found = outcomes_in(reader)
    assert found[-40:] == numbered(1640, 40)
    assert found == numbered(1680 - len(found), len(found))


def test_rows_whose_buffer_is_lost_are_reported(rig: JournaledRig) -> None:
    client = rig.client()
    rig.journal.tend = lambda now_ns: False  # type: ignore[method-assign]
    settle(rig, client, *numbered(0, 60))
    rig.drop_journal()
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.buffer = empty_buffer(rig.core.incarnation)
    rig.open_journal(buffered=False)
    settle(rig, client, b"after")
    assert any("are lost" in error for error in errors(rig))
    with JournalReader(rig.plan.directory) as reader:
        assert outcomes_in(reader) == [b"after"]


def test_names_of_consumers_are_checked(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="not of the form"):
        hold(tmp_path, "../lock", 3)
