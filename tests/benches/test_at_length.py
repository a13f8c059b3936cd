"""The suites soak, fuzz and storm at a tiny size: their figures, and that a process that dies is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.real.trees import ROOT
from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.wire import CommandHeader

BENCH = ROOT / "bench"
TIMEOUT_S = 200


def play(name: str, *arguments: str, directory: Path) -> tuple[int, dict[str, Any]]:
    """Run a suite. Returns its exit status and its document."""
    file = directory / f"{name}.json"
    command = [sys.executable, str(BENCH / "suites" / f"{name}.py"), f"--json={file}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert file.exists(), done.stdout + done.stderr
    return done.returncode, json.loads(file.read_text())


@pytest.mark.long
def test_fresh_seeds_of_the_simulation_hold(tmp_path: Path) -> None:
    status, document = play("soak", "--seeds=3", "--first=7", "--steps=500", "--processes=2", directory=tmp_path)
    assert status == 0, document["tables"]
    (row,) = document["tables"]["seeds"]
    assert (row["first"], row["held"], row["failed"]) == (7, 3, 0) and row["steps"] > 1_500
    assert document["tables"]["faults"] and document["machine"]["commit"]


@pytest.mark.long
def test_mutated_frames_are_counted_and_a_world_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, document = play("fuzz", "--frames=12000", "--processes=1", directory=tmp_path)
    assert status == 0, document["tables"]
    (row,) = document["tables"]["frames"]
    assert row["frames"] == 12_000 and row["worlds"] == 1 and row["corpus"] > 60
    from bench.suites import fuzz

    places = (fuzz.INCARNATION, fuzz.SESSION, fuzz.FIRST_COMMAND)
    assert [place.start for place in places] == [
        offset_of(CommandHeader, name) for name in ("incarnation", "session", "first_command")
    ]
    worlds = [fuzz.Fuzzed(3, 1) for _ in range(2)]
    for each in worlds:
        each.run(2_400)
    assert len({each.rng.random() for each in worlds}) == 1


@pytest.mark.long  # shorter storms: tests/system/test_members.py, tests/kafka/test_acceptance.py
@pytest.mark.timeout(300)
def test_a_storm_is_survived_and_audited(tmp_path: Path) -> None:
    status, document = play("storm", "--seconds=5", "--workers=3", directory=tmp_path)
    assert document["checks"]["audit"]["held"], document
    assert document["checks"]["check"]["held"] and document["checks"]["orderly_end"]["held"], document["checks"]
    assert document["checks"]["calls"]["held"] and document["checks"]["children"]["held"], document["tables"]["faults"]
    assert status == 0, document["checks"]
    assert sum(row["count"] for row in document["tables"]["blows"]) >= 3


def test_a_process_that_dies_is_a_failure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lib.parallel import each

    def work(number: int) -> dict[str, Any]:
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 5:
            raise ValueError("it is five")
        return {"failure": "", "square": number * number}

    rows = dict(each(range(10), work, 3))
    assert sorted(rows) == [*range(10)]
    assert rows[4]["failure"] == "its process ended with -9"
    assert rows[5]["failure"] == "ValueError: it is five"
    assert [rows[number]["square"] for number in (0, 7, 9)] == [0, 49, 81]
