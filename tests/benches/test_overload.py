"""For some seconds the daemon gets more work than it can do: the bounds of bench/suites/overload.py hold."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.attack.attackers.collisions import HEADS_MOST, NAMES, keys_of_one_chain
from bench.attack.gate import resume
from bench.lib.common import Refused, Suite
from support.fakes.collisions import mix
from support.real.daemons import arenas_of, processes_of
from support.real.trees import ROOT

BENCH = ROOT / "bench/suites/overload.py"
TIMEOUT_S = 120
TURN_CPU_MS_MAX, GROWN_MB_MAX = 20, 64  # the bounds of the suite's gate
SLACK = 5  # bounds of times are five times as wide: the machine is busy even without these tests


@pytest.mark.long
def test_a_flood_is_bounded_in_memory_and_does_not_hurt_other_clients_for_long(
    monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    found = runtime_dir / "found.json"
    command = [sys.executable, str(BENCH), "--flood=commands", "--seconds=6", f"--slack={SLACK}"]
    done = subprocess.run(
        [*command, f"--json={found}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    assert found.exists(), done.stdout
    run = json.loads(found.read_text())
    failed = {name for name, check in run["checks"].items() if not check["held"]}
    # Bounds of times are meant for a machine that does nothing else: here other tests may take the processors for a
    # second. `offered` compares two rates that are measured one after the other, and a busy machine changes in between.
    timed = {name for name in failed if name.endswith("_ms")}
    assert run["checks"] and failed - timed <= {"offered"}, done.stdout
    assert done.returncode == bool(failed), done.stdout
    (flooded,), (memory,) = run["tables"]["flood"], run["tables"]["private_bytes"]
    assert memory["max"] <= memory["bound"]
    counts = {(row["what"], row["when"]): row["count"] for row in run["tables"]["latency_us"]}
    assert counts["cancel", "during"] > 0 and counts["refusal", "arena full"] > 0
    # More was offered than the daemon could apply, so senders were held back. But if the machine gave the sender no
    # time in the phase before the flood, the flood asks for a tiny rate: then `offered` has failed.
    assert flooded["sustained_rate"] > 0 and (flooded["held_back_rate"] > 0 or "offered" in failed)
    left = [str(process) for process in processes_of(runtime_dir)] + [str(path) for path in arenas_of(runtime_dir)]
    assert not left, f"left behind: {left}"


@pytest.mark.parametrize(
    ("attack", "seconds"),
    [
        pytest.param("subscriptions-stranger", 1, marks=pytest.mark.long),
        pytest.param("subscriptions-member", 1, marks=pytest.mark.long),
        pytest.param("large", 1, marks=pytest.mark.long),
        pytest.param("midst", 3, marks=pytest.mark.long),
        pytest.param("parts", 3, marks=pytest.mark.long),
        pytest.param("outlets", 5, marks=pytest.mark.long),
        pytest.param("incarnations", 3, marks=pytest.mark.long),
        pytest.param("fan", 3, marks=pytest.mark.long),
        pytest.param("collisions-keys", 3, marks=pytest.mark.long),
        pytest.param("collisions-ids", 3, marks=pytest.mark.long),
        pytest.param("unread-killed", 5, marks=pytest.mark.long),
        pytest.param("unix-unread-killed", 5, marks=pytest.mark.long),
        pytest.param("large-crowd", 3, marks=pytest.mark.long),
        pytest.param("unix-parts-crowd", 3, marks=pytest.mark.long),
        pytest.param("unix-continuations", 2, marks=pytest.mark.long),
        pytest.param("silent", 3, marks=pytest.mark.long),
        pytest.param("unix-silent", 3, marks=pytest.mark.long),
    ],
)
def test_an_attack_burdens_neither_the_turns_nor_the_memory_of_the_daemon(
    attack: str, seconds: int, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    """Checks the first half of the gate. The second half is the witnesses' times, which a busy machine spoils."""
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    found = runtime_dir / "found.json"
    command = [sys.executable, str(BENCH), f"--flood={attack}", f"--seconds={seconds}", "--runs=1", f"--json={found}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    assert found.exists(), done.stdout
    run = json.loads(found.read_text())
    (gate,) = run["tables"]["gate"]
    assert gate["acts"] > 0 and gate["unavailable"] == 0, done.stdout
    assert gate["turn_cpu_max_ms"] <= TURN_CPU_MS_MAX and gate["grown_mb"] <= GROWN_MB_MAX, done.stdout
    assert done.returncode == (not gate["holds"]), done.stdout
    assert {row["attacked"] for row in run["tables"]["runs"]} == {False, True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("attack", "restarts"), [("locks", 1), pytest.param("connections-limit", 0, marks=pytest.mark.long)]
)
def test_a_daemon_is_there_after_an_attack_and_serves_a_bystander(
    attack: str, restarts: int, monkeypatch: pytest.MonkeyPatch, runtime_dir: Path
) -> None:
    """`locks` kills the daemon, and locks every file that a neighbour can. `connections-limit` connects too often."""
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    found = runtime_dir / "found.json"
    command = [sys.executable, str(BENCH), f"--flood={attack}", "--seconds=3", "--runs=1", f"--json={found}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
    assert found.exists(), done.stdout
    tables = json.loads(found.read_text())["tables"]
    (gate,) = tables["gate"]
    # A run in which too much CPU time was stolen is repeated: the last run counts.
    peace, war = ([run for run in tables["runs"] if run["attacked"] is attacked][-1] for attacked in (False, True))
    assert gate["acts"] > 0 and war["rounds"] > 0, done.stdout
    assert (peace["restarts"], war["wrong"], war["alive"]) == (0, "", True), done.stdout
    assert gate["restarts"] == restarts, done.stdout
    left = [str(process) for process in processes_of(runtime_dir)] + [str(path) for path in arenas_of(runtime_dir)]
    assert not left, f"left behind: {left}"


def test_the_keys_of_an_attack_share_a_chain_where_hashes_have_no_secret() -> None:
    seed = 0x1234_5678_9ABC_DEF0
    rounds = keys_of_one_chain(seed)
    inverted, alike = next(rounds), next(rounds)
    assert len(set(inverted)) == len(set(alike)) == NAMES
    for key in inverted:
        assert mix(int.from_bytes(key, "little") ^ seed ^ len(key)) % HEADS_MOST == 0
    for key in alike:
        assert int.from_bytes(key, "little") % HEADS_MOST == 0


def test_a_gate_goes_on_with_the_attacks_that_an_interrupted_one_has_not_judged(tmp_path: Path) -> None:
    runs = [{"attack": attack, "attacked": attacked} for attack in ("looks", "fan") for attacked in (False, True)]
    tables = {"runs": runs, "gate": [{"attack": "looks", "holds": True}]}
    suite = Suite("gate", "", argparse.Namespace(short=False, seed=1))
    checks = {"looks": {"held": True, "says": "4 ms"}}
    document = {"machine": suite.machine, "tables": tables, "checks": checks}
    (tmp_path / "gate.json").write_text(json.dumps(document))
    resume(suite, tmp_path / "gate.json")
    assert suite.tables == {"runs": runs[:2], "gate": tables["gate"]}, "the runs of `fan` are played again"
    assert suite.checks == checks
    (tmp_path / "gate.json").write_text(json.dumps(document | {"machine": suite.machine | {"cores": 999}}))
    with pytest.raises(Refused, match="999 processors has played"):
        resume(suite, tmp_path / "gate.json")


@pytest.mark.long
@pytest.mark.parametrize("words", [("--resume",), ("--resume", "--gate", "--json=missing.json")])
def test_a_gate_that_was_not_begun_is_not_resumed(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(BENCH), *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "--resume goes on with the gate of a file" in done.stderr
