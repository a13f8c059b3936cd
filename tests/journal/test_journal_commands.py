"""timerctl journal on the files of an ended daemon: the output of tail, export and audit, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.real.shell import Run
from support.rig.arenas import SEED
from support.rig.harness import MS, Rig
from support.rig.journals import JournaledRig, numbered, settle
from timerctl.exits import Exit
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.read.journal_reader import JournalReader
from timerd_shm.read.segment import segments_of


def restart(rig: JournaledRig) -> None:
    """End the daemon in order, and start it on the same arena."""
    rig.end()
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.open_journal()
    rig.turn(rig.now_ns + MS)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """800 outcomes in several full segments, then five starts. Each start leaves a few rows in a segment of its own."""
    directory = tmp_path / "journal"
    rig = JournaledRig(directory, level=JournalLevel.OUTCOMES, capacity=512, quota_operations=512)
    client = rig.client()
    for turn in range(40):
        settle(rig, client, *numbered(turn * 20, 20))
    for _ in range(5):
        restart(rig)
    rig.end()
    assert len(segments_of(directory)) > 6
    return directory


# tail -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 12, 50, 700, 100_000])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_tail_gives_the_requested_number_of_rows_from_any_segments(
    run: Run, journal: Path, rows: int, form: tuple[str, ...]
) -> None:
    status, everything, _ = run("journal", "tail", "--directory", str(journal), "--from", "1:0", *form)
    assert status == 0 and len(everything.splitlines()) > 800
    status, found, err = run("journal", "tail", "--directory", str(journal), "-n", str(rows), *form)
    assert (status, err) == (0, "")
    assert found.splitlines() == everything.splitlines()[-rows:]


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("tail",), ("export",), ("tail", "--json")])
@pytest.mark.parametrize("behind", ["99:0", "1:99999"])
def test_a_position_behind_the_end_is_refused(run: Run, journal: Path, command: tuple[str, ...], behind: str) -> None:
    with JournalReader(journal) as reader:
        end = reader.end()
    if behind.startswith("1:"):
        behind = f"{end.segment}:{end.record + 1}"
    status, out, err = run("journal", *command, "--directory", str(journal), "--from", behind)
    assert (status, out) == (Exit.USAGE, "")
    assert f"--from {behind} is after the journal's end, which is {end}" in err


def test_an_export_may_begin_at_the_position_at_which_another_ended(run: Run, journal: Path) -> None:
    *_, err = run("journal", "export", "--directory", str(journal))
    for place in (err.split()[-1], f"{segments_of(journal)[-1] + 1}:0"):
        assert run("journal", "export", "--directory", str(journal), "--from", place)[:2] == (0, "")


def test_an_export_whose_end_is_before_its_beginning_is_refused(run: Run, journal: Path) -> None:
    status, out, err = run("journal", "export", "--directory", str(journal), "--from", "1:5", "--to", "1:4")
    assert (status, out) == (Exit.USAGE, "") and "--to 1:4 is before --from 1:5" in err


@pytest.mark.parametrize("more", [(), ("--output", "x", "--from", "1:0"), ("--output", "x", "--to", "1:0")])
def test_an_export_of_files_with_wrong_flags_is_refused(run: Run, journal: Path, more: tuple[str, ...]) -> None:
    status, _, err = run("journal", "export", "--directory", str(journal), "--format", "parquet", *more)
    assert status == Exit.USAGE and "--format parquet needs --output DIR" in err


@pytest.mark.parametrize("action", ["tail", "export", "audit"])
def test_the_error_for_a_journal_whose_directory_was_removed_says_where_it_was(
    run: Run, dead: Rig, runtime_dir: Path, tmp_path: Path, action: str
) -> None:
    (runtime_dir / "default.journal").symlink_to(tmp_path / "gone")
    status, out, err = run("journal", action)
    assert (status, out) == (Exit.PROBLEM, "")
    assert f"there is no journal in {tmp_path / 'gone'}, where the daemon of 'default' writes" in err
