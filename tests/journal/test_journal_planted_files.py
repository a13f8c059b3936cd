"""A neighbour plants files among a journal's segments: no reader hangs, and a start goes on after them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.real.planted_files import PLANTED, within
from support.real.shell import Run
from support.rig.arenas import Memory
from support.rig.journals import SEGMENT_SIZE, JournaledRig, numbered, outcomes, settle
from support.suite.tiers import in_tiers
from timerd_client.audit.audited import Audited
from timerd_client.audit.journal import audit_journal
from timerd_shm.declare.fields import offset_of, size_of, struct_of, unpack
from timerd_shm.declare.journal import BLOCK_SIZE, SEGMENT_SIZE_MAX, SegmentHeader
from timerd_shm.declare.layout import Region
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import HEADER_CRC, JournalError, Segment, segment_path, segments_of

TIME_S = 100  # a reader that hangs takes longer; a busy machine needs half a minute for two segments of 1 GiB
# Files that are empty or all zeros look like a file that a daemon has just begun. (For root, no file is unreadable.)
SILENT = ("a gigabyte", *(["a file without a number, unreadable"] if os.geteuid() == 0 else []))


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
    """The errors that `timerctl errors` would show."""
    records = Memory(rig.memory).all_records(Region.ERRORS)
    return " ".join(record.message.rstrip(b"\0").decode() for record in records if record.count)


def audited(directory: Path) -> Audited:
    found = within(TIME_S, lambda: audit_journal(directory))
    assert found, "the audit hangs, or has raised"
    assert isinstance(found[0], Audited)
    return found[0]


# readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("attack", PLANTED)
def test_an_audit_names_a_planted_file_behind_the_newest_segment(rig: JournaledRig, run: Run, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    newest = segments_of(directory)[-1] + 1
    PLANTED[attack](segment_path(directory, newest))
    found = audited(directory)
    if attack in SILENT:
        assert found.wrong == []
    else:
        assert [str(newest) in finding.what for finding in found.wrong] == [True]
    status, out, err = run("journal", "audit", "--directory", str(directory))
    assert (status, err) == (attack not in SILENT, "")
    assert f"{found.arenas[0].outcomes} outcomes" in out


@pytest.mark.parametrize("attack", PLANTED)
def test_an_audit_names_a_planted_file_among_the_segments(rig: JournaledRig, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    path = segment_path(directory, 2)
    path.unlink()
    PLANTED[attack](path)
    causes = [finding.what for finding in audited(directory).arenas[0].causes]
    assert len(causes) == 2 and "2" in causes[0] and "are in no segment" in causes[1]


@pytest.mark.parametrize("attack", PLANTED)
def test_the_newest_rows_are_printed_beside_a_planted_file(rig: JournaledRig, run: Run, attack: str) -> None:
    directory = rig.plan.directory
    rig.end()
    wanted = run("journal", "tail", "--directory", str(directory))
    PLANTED[attack](segment_path(directory, segments_of(directory)[-1] + 1))
    assert run("journal", "tail", "--directory", str(directory)) == wanted
    assert wanted[0] == 0


def test_a_planted_file_that_is_alone_is_no_journal(tmp_path: Path, run: Run) -> None:
    os.mkfifo(segment_path(tmp_path, 1))
    with pytest.raises(JournalError, match="is no plain file"):
        audit_journal(tmp_path)
    status, out, err = run("journal", "audit", "--directory", str(tmp_path))
    assert (status, out) == (1, "") and "is no plain file" in err


@pytest.mark.long
def test_a_segment_beyond_the_maximum_size_is_read_to_this_size_and_reported(rig: JournaledRig) -> None:
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


# the daemon's start ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("attack", PLANTED)
def test_a_start_goes_on_behind_a_planted_file_and_loses_no_row(rig: JournaledRig, attack: str) -> None:
    directory = rig.plan.directory
    before = len(outcomes(rig.rows()))
    newest = segments_of(directory)[-1] + 1
    path = segment_path(directory, newest)
    PLANTED[attack](path)
    there = path.lstat().st_mode
    assert within(TIME_S, rig.restart), "the start hangs, or has raised"
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(10_000 + turn * 20, 20))
    if attack in SILENT:
        assert "goes on after" not in errors(rig)
    else:
        assert f"the journal goes on after segment {newest}" in errors(rig)
        assert path.lstat().st_mode == there
    assert "not written" not in errors(rig)
    with JournalReader(directory) as reader:
        assert len(outcomes(list(reader.rows()))) == before + 800


def test_a_start_writes_nothing_through_a_link_that_leads_to_its_own_segment(rig: JournaledRig, tmp_path: Path) -> None:
    directory = rig.plan.directory
    newest = segment_path(directory, segments_of(directory)[-1])
    newest.rename(tmp_path / "moved")
    newest.symlink_to(tmp_path / "moved")
    content = (tmp_path / "moved").read_bytes()
    rig.restart()
    settle(rig, rig.client(), *numbered(10_000, 20))
    assert (tmp_path / "moved").read_bytes() == content
    assert "is a link" in errors(rig)


def test_a_start_refuses_a_segment_with_the_last_number(rig: JournaledRig) -> None:
    """No number is left for the next segment: readers would not see a file with a longer number."""
    path = segment_path(rig.plan.directory, 999_999_999_999)
    path.touch()
    path.write_text("no segment")
    with pytest.raises(OSError, match=f"{path.name} has the last number that a segment may have: move it away"):
        rig.restart()


ENTRIES: dict[str, Callable[[Path], object]] = {name: PLANTED[name] for name in ("a FIFO", "a directory", "a socket")}
ENTRIES["a link to nothing"] = PLANTED["a link to nothing"]
ENTRIES["a file of somebody"] = lambda path: path.write_text("precious")


@pytest.mark.parametrize("attack", ENTRIES)
def test_a_running_daemon_passes_over_the_names_that_are_taken(tmp_path: Path, attack: str) -> None:
    rig = JournaledRig(tmp_path, capacity=512, quota_operations=512)
    client = rig.client()
    settle(rig, client, *numbered(0, 20))
    for sequence in (2, 3, 5):
        ENTRIES[attack](segment_path(tmp_path, sequence))
    modes = {sequence: segment_path(tmp_path, sequence).lstat().st_mode for sequence in (2, 3, 5)}
    for turn in range(1, 80):
        settle(rig, client, *numbered(turn * 20, 20))
    assert {sequence: segment_path(tmp_path, sequence).lstat().st_mode for sequence in modes} == modes
    assert errors(rig) == ""
    if attack == "a file of somebody":
        assert {segment_path(tmp_path, sequence).read_text() for sequence in modes} == {"precious"}
    with JournalReader(tmp_path) as reader:
        assert len(outcomes(list(reader.rows()))) == 1_600


@pytest.mark.parametrize("attack", ["a FIFO", "a directory", "a link to nothing"])
def test_old_segments_are_removed_beside_planted_files(tmp_path: Path, attack: str) -> None:
    PLANTED[attack](segment_path(tmp_path, 1))
    rig = JournaledRig(tmp_path, keep=3 * SEGMENT_SIZE, capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(100):
        settle(rig, client, *numbered(turn * 20, 20))
    real = [number for number in segments_of(tmp_path) if segment_path(tmp_path, number).is_file()]
    assert 1 < len(real) <= 3
    assert "is not written" not in errors(rig)


# headers with wrong numbers and right checksums -----------------------------------------------------------------------

FORGED = (
    {"first_block": 5},
    {"first_block": (1 << 32) - 1},
    {"first_row": 0},
    {"first_row": 1 << 63},
    {"first_row": (1 << 64) - 1},
    {"level": 99},
    {"wall_ns": (1 << 64) - 1},
    {"monotonic_ns": (1 << 64) - 1},
    {"incarnation": (1 << 64) - 1},
    {"instance": b"\xff" * 32},
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("forged", "newest"),
    in_tiers(
        [(forged, bool((number + turn) % 2)) for turn in range(2) for number, forged in enumerate(FORGED)], len(FORGED)
    ),
    ids=str,
)
def test_a_forged_header_ends_no_reader_and_no_start_and_makes_no_file_large(
    rig: JournaledRig, run: Run, forged: dict[str, Any], newest: bool
) -> None:
    directory = rig.plan.directory
    path = segment_path(directory, segments_of(directory)[-1] if newest else 2)
    content = bytearray(path.read_bytes())
    header = unpack(SegmentHeader, bytes(content))._replace(**forged)
    content[: size_of(SegmentHeader)] = struct_of(SegmentHeader).pack(*header)
    content[HEADER_CRC - 4 : HEADER_CRC] = zlib.crc32(content[HEADER_CRC : size_of(SegmentHeader)]).to_bytes(
        4, "little"
    )
    path.write_bytes(content)
    rig.restart()
    settle(rig, rig.client(), *numbered(10_000, 20))
    assert max(segment_path(directory, each).stat().st_size for each in segments_of(directory)) <= SEGMENT_SIZE
    rig.end()
    for command in (("tail",), ("tail", "--json", "-n", "100000"), ("export",), ("audit",)):
        status, out, err = run("journal", *command, "--directory", str(directory))
        assert status in ((0, 1) if command == ("audit",) else (0,))
        assert command == ("audit",) or "10019" in out, "the newest row is missing"
        assert "Traceback" not in err


def test_rows_behind_a_header_with_a_forged_number_are_read(rig: JournaledRig) -> None:
    """No row of such a segment is good. So the reader must not count from the row number in its header."""
    directory = rig.plan.directory
    rig.end()
    with JournalReader(directory) as reader:
        wanted = [row.number for row in reader.rows() if row.offset.segment != 2]
    content = bytearray(segment_path(directory, 2).read_bytes())
    at = offset_of(SegmentHeader, "first_row")
    content[at : at + 8] = (1 << 40).to_bytes(8, "little")
    content[HEADER_CRC - 4 : HEADER_CRC] = zlib.crc32(content[HEADER_CRC : size_of(SegmentHeader)]).to_bytes(
        4, "little"
    )
    segment_path(directory, 2).write_bytes(content)
    with JournalReader(directory) as reader:
        assert [row.number for row in reader.rows()] == wanted
        assert any("are in no segment" in damage.what for damage in reader.damage)
