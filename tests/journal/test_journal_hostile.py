"""A journal's directory with hostile entries among its segments: no reader hangs, and a start goes on behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arenas import Memory
from hostile import HOSTILE, within
from journals import JournaledRig, numbered, settle
from shell import Run
from timerd_client.audit.audited import Audited
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.journal import BLOCK_SIZE, SEGMENT_SIZE_MAX
from timerd_shm.declare.layout import Region
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import JournalError, Segment, segment_path, segments_of

TIME_S = 20  # far more than any of it takes
SILENT = ("a gigabyte", "a file without a number, unreadable")  # zeros: as a file that its daemon has just begun


@pytest.fixture
def rig(tmp_path: Path) -> JournaledRig:
    """A journal of more than three segments."""
    rig = JournaledRig(tmp_path / "journal", capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    assert len(segments_of(rig.plan.directory)) > 3
    return rig


def errors(rig: JournaledRig) -> str:
    """What `timerctl errors` would show."""
    records = Memory(rig.memory).all_records(Region.ERRORS)
    return " ".join(record.message.rstrip(b"\0").decode() for record in records if record.count)


def audited(directory: Path) -> Audited:
    found = within(TIME_S, lambda: audit_journal(directory))
    assert found, "the audit hangs, or has raised"
    assert isinstance(found[0], Audited)
    return found[0]


# readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", HOSTILE)
def test_an_audit_names_a_hostile_entry_behind_the_newest_segment(rig: JournaledRig, run: Run, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    newest = segments_of(directory)[-1] + 1
    HOSTILE[attack](segment_path(directory, newest))
    found = audited(directory)
    if attack in SILENT:
        assert found.wrong == []
    else:
        assert [str(newest) in finding.what for finding in found.wrong] == [True]
    status, out, err = run("journal", "audit", "--directory", str(directory))
    assert (status, err) == (attack not in SILENT, "")
    assert f"{found.arenas[0].outcomes} outcomes" in out


@pytest.mark.parametrize("attack", HOSTILE)
def test_an_audit_names_a_hostile_entry_among_the_segments(rig: JournaledRig, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    path = segment_path(directory, 2)
    path.unlink()
    HOSTILE[attack](path)
    causes = [finding.what for finding in audited(directory).arenas[0].causes]
    assert len(causes) == 2 and "2" in causes[0] and "are in no segment" in causes[1]


@pytest.mark.parametrize("attack", HOSTILE)
def test_the_newest_rows_are_printed_beside_a_hostile_entry(rig: JournaledRig, run: Run, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    wanted = run("journal", "tail", "--directory", str(directory))
    HOSTILE[attack](segment_path(directory, segments_of(directory)[-1] + 1))
    assert run("journal", "tail", "--directory", str(directory)) == wanted
    assert wanted[0] == 0


def test_a_hostile_entry_that_is_alone_is_no_journal(tmp_path: Path, run: Run) -> None:
    os.mkfifo(segment_path(tmp_path, 1))
    with pytest.raises(JournalError, match="is no plain file"):
        audit_journal(tmp_path)
    status, out, err = run("journal", "audit", "--directory", str(tmp_path))
    assert (status, out) == (1, "") and "is no plain file" in err


def test_a_segment_larger_than_any_is_read_to_the_size_of_one_and_named(rig: JournaledRig) -> None:
    directory = rig.plan.directory
    rig.end()
    wanted = audited(directory).outcomes
    for sequence in (2, segments_of(directory)[-1]):
        os.truncate(segment_path(directory, sequence), 1 << 40)
    found = audited(directory)
    assert found.outcomes == wanted
    said = [finding.what for finding in found.wrong]
    assert len(said) == 2 and all("1,099,511,627,776 bytes, and a segment has at most" in what for what in said)
    segment = Segment(directory, 2)
    try:
        most = SEGMENT_SIZE_MAX // BLOCK_SIZE - 1
        assert segment.read(most, 1) == b"" and len(segment.read(most - 1, 2)) == BLOCK_SIZE
    finally:
        segment.close()


def test_a_directory_of_many_segments_is_not_listed_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sequence in range(1, 501):
        segment_path(tmp_path, sequence).write_bytes(b"no segment")
    lists: list[object] = []
    listed = os.listdir

    def counted(path: Path) -> list[str]:
        lists.append(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", counted)
    with JournalReader(tmp_path) as reader:
        assert list(reader.rows()) == []
    assert len(lists) < 5
