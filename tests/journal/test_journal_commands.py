"""timerctl journal on files that no daemon writes any more: what tail, export and audit print, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from arenas import SEED
from harness import MS
from journals import JournaledRig, numbered, settle
from shell import Run
from timerd_shm.declare.journal import JournalLevel
from timerd_shm.read.segment import segments_of


def restart(rig: JournaledRig) -> None:
    """End in order, and start on the same arena."""
    rig.end()
    rig.core.release()
    rig.core = rig.module.Core(rig.memory, rig.now_ns, SEED)
    rig.open_journal()
    rig.turn(rig.now_ns + MS)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """800 outcomes over several full segments, then five starts that leave a few rows in a segment of their own."""
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
def test_tail_gives_as_many_rows_as_are_asked_for_from_whatever_segments(
    run: Run, journal: Path, rows: int, form: tuple[str, ...]
) -> None:
    status, everything, _ = run("journal", "tail", "--directory", str(journal), "--from", "1:0", *form)
    assert status == 0 and len(everything.splitlines()) > 800
    status, found, err = run("journal", "tail", "--directory", str(journal), "-n", str(rows), *form)
    assert (status, err) == (0, "")
    assert found.splitlines() == everything.splitlines()[-rows:]
