"""The benches: each suite at a tiny size, what they refuse, what Ctrl-C leaves, and a report from results alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemons import arenas_of, processes_of

BENCH = Path(__file__).resolve().parent.parent / "bench"
TIMEOUT_S = 120
FIELDS = {"suite", "command", "machine", "started", "seconds", "short", "partial", "seed", "tables", "checks"}
MACHINE = {
    "cpu", "cores", "memory_bytes", "kernel", "python", "libzmq", "pyzmq", "compiler", "commit", "load_average",
}  # fmt: skip


def bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the benches to its end."""
    command = [sys.executable, str(BENCH / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def left_in(directory: Path) -> list[str]:
    """What a suite has left there, beside its results."""
    found = [str(process) for process in processes_of(directory)] + [str(path) for path in arenas_of(directory)]
    return found + [path.name for path in directory.iterdir() if path.suffix != ".json"]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> Path:
    """A directory in which a suite makes whatever it makes."""
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    return runtime_dir


TINY = {
    "core": ("--pending=10k", "--repeat=1"),
    "why_cython": ("--count=1k", "--repeat=1"),
    "ladder": ("--rates=1k", "--seconds=0.3", "--pending=1k", "--apis=bulk", "--cases=high"),
    "recovery": ("--pending=2k", "--repeat=2"),
    "latency": ("--rate=1k", "--fine-rate=500", "--seconds=0.2", "--apis=bulk"),
}


@pytest.mark.parametrize("name", TINY)
def test_each_suite_writes_one_document_and_leaves_nothing(name: str, place: Path) -> None:
    result = place / "result.json"
    done = bench(name, *TINY[name], f"--json={result}", "--seed=7")
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(result.read_text())
    assert set(document) == FIELDS and set(document["machine"]) == MACHINE
    assert document["suite"] == name and document["seed"] == 7 and not document["partial"]
    assert document["command"].startswith(f"python bench/{name}.py ") and "json" not in document["command"]
    assert document["tables"] and all(rows for rows in document["tables"].values())
    assert not left_in(place)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("core", ("--pending=9M",), "9M is not between 10,000 and 8,000,000 operations: ask for one that is"),
        ("core", ("--pending=many",), "'many' is not a number such as 500, 10k or 1M"),
        ("core", ("--repeat=0",), "0 is not between 1 and 100 runs"),
        ("core", ("--json=/nowhere/x.json",), "there is no directory /nowhere; make it first"),
        ("overload", ("--seconds=nan",), "nan is not between 1 and 3600 seconds"),
        ("run", ("cores",), "'cores' is no suite: name some of core, "),
    ],
)
def test_nonsense_is_refused_with_value_limit_and_remedy(name: str, arguments: tuple[str, ...], says: str) -> None:
    done = bench(name, *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    program = (
        "import sys, psutil, core; from types import SimpleNamespace as N;"
        "psutil.virtual_memory = lambda: N(available=1 << 30, total=1 << 30);"
        "sys.argv = ['core.py', '--pending=8M']; sys.exit(core.main())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=BENCH, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert "8,000,000 pending operations need 4.5 GiB of memory, and 768.0 MiB are available: ask for" in done.stderr


def test_ctrl_c_leaves_what_there_was_and_says_so(place: Path) -> None:
    """Through run.py, as `make bench` does; the second suite is not begun."""
    command = [sys.executable, str(BENCH / "run.py"), "why_cython", "core", f"--results={place}"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    assert process.stderr is not None
    while "run 1 of" not in process.stderr.readline():
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, err
    assert json.loads((place / "why_cython.json").read_text())["partial"] is True
    assert "what there was" in err and not left_in(place)
    assert sorted(path.name for path in place.iterdir()) == ["why_cython.json"]


# the report ----------------------------------------------------------------------------------------------------------


def test_the_committed_report_is_what_the_committed_results_make() -> None:
    done = bench("report", "--check")
    assert done.returncode == 0, done.stderr


def test_the_report_follows_from_the_documents_alone(tmp_path: Path) -> None:
    assert bench("core", "--pending=10k", "--repeat=1", f"--json={tmp_path / 'core.json'}").returncode == 0
    document = json.loads((tmp_path / "core.json").read_text())
    document["tables"]["figures"] = [
        {"pending": 1_000_000, "figure": "insert_ns", "median": 100.0, "least": 90.0, "most": 120.0},
        {"pending": 1_000_000, "figure": "cancel_ns", "median": 32.5, "least": 30.0, "most": 40.0},
    ]
    document["partial"] = True
    (tmp_path / "core.json").write_text(json.dumps(document))
    texts = []
    for name in ("one.md", "two.md"):
        done = bench("report", f"--results={tmp_path}", f"--out={tmp_path / name}")
        assert done.returncode == 0, done.stderr
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    command = f"`{document['command']}`"
    assert f"insert | <= 50 ns | 100 ns | 2.00 | **no** | {command} |" in texts[0]
    assert f"cancel | <= 65 ns | 32.5 ns | 0.50 | yes | {command} |" in texts[0]
    assert "complete by key | <= 65 ns | - | - | not measured |" in texts[0]
    assert "**Partial run.**" in texts[0] and "| 1,000,000 | insert_ns | 100 | 90.0 | 120 |" in texts[0]
