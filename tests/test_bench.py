"""The benches: each suite at a tiny size, what they refuse, what Ctrl-C leaves, and a report from results alone."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from daemons import arenas_of, processes_of
from timerd_client.outcome import State
from timerd_client.timerctl.load.messages import Fired, Registered, Usage
from timerd_client.workload import Events, Workload, plan

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
    "client": ("--requests=1k", "--pending=100", "--rounds=1", "--turns=1"),
    "ladder": ("--rates=1k", "--seconds=0.3", "--pending=1k", "--apis=bulk", "--cases=high"),
    "latency": ("--fine-rate=500", "--seconds=0.2", "--apis=bulk", "--runs=fine"),
    "alternatives": ("--ways=redis,blpop,uvloop,threads", "--rates=500", "--seconds=0.2"),
    "gil": ("--crews=2x2", "--rates=500", "--seconds=0.2"),
    "idle": ("--pending=1k", "--seconds=0.5"),
    "rivals": ("--pending=10k", "--repeat=1", "--work=500", "--contestants=heapq,wheel of 20"),
    "article": ("--rates=5k", "--requests=1k", "--seconds=0.2", "--purge=100,never", "--memory=20"),
    "recovery": ("--pending=2k", "--repeat=2"),
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
        ("ladder", ("--rates=6M",), "6M is not between 100 and 5,000,000 operations a second: ask for one that is"),
        ("ladder", ("--rates=5M", "--pending=0"), "beside 0 pending operations need"),
        (
            "core",
            ("--pending=8M",),
            "8,000,000 pending operations need 4.5 GiB of memory, and 768.0 MiB are available: ",
        ),
        ("alternatives", ("--ways=celery",), "'celery' is none of timerd, timerd-bulk, redis, "),
        ("gil", ("--crews=3",), "'' is not a number such as 500"),
        ("overload", ("--seconds=nan",), "nan is not between 1 and 3600 seconds"),
        ("rivals", ("--contestants=redis",), "'redis' is none of timerd, wheel of 20, heapq, "),
        ("article", ("--purge=0",), "0 is not between 1 and 10,000,000 entries, or never"),
        ("article", ("--memory=1M",), "1000000 MiB of records need 978.0 GiB of memory"),
        ("run", ("cores",), "'cores' is no suite: name some of core, "),
    ],
)
def test_nonsense_is_refused_with_value_limit_and_remedy(
    name: str,
    arguments: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30, total=1 << 30))
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_way_that_is_not_installed_says_how_to_install_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    result = place / "result.json"
    done = bench("alternatives", "--ways=redis,blpop", "--rates=500", "--seconds=0.2", f"--json={result}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["tables"]["runs"]
    assert [row["why_not"] for row in rows] == ["not installed: apt-get install redis-server"] * 2


def test_an_event_that_overtook_its_registration_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way forgets an event that nobody waits for yet: all that expire because of it count, and no others."""
    monkeypatch.syspath_prepend(str(BENCH))
    from alternative.trial import unheard

    ms, none = 1_000_000, array("q")
    workload = Workload(rate=1_000, count=4)
    sent_ns = array("q", [10 * ms, 11 * ms, 12 * ms, 13 * ms])
    expired, completed = int(State.EXPIRED.value), int(State.COMPLETED.value)
    state, told = array("B", [completed, expired, expired, 0]), array("B", [1, 1, 1, 0])
    owner = Registered(
        plan(workload), sent_ns, state, told, none, none, none, none, 14 * ms, 3, none, {}, Usage(0, 0), ""
    )  # fmt: skip
    # Operation 0 completed; 1's event came in time, 2's a moment before its deadline, 3 was told nothing.
    events = Events(none, array("I", [0, 1, 3, 2]), array("I"))
    at_ns = array("q", [20 * ms, 20 * ms, 150 * ms, (12 + 198) * ms])
    assert unheard(workload, owner, Fired(events, at_ns, none, Usage(0, 0), "")) == 2
    # One that was fired before register() had returned is nobody's fault.
    at_ns[1] = 11 * ms
    assert unheard(workload, owner, Fired(events, at_ns, none, Usage(0, 0), "")) == 1


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
    figures = [
        {"pending": 1_000_000, "figure": "insert_ns", "median": 100.0, "least": 90.0, "most": 120.0},
        {"pending": 1_000_000, "figure": "cancel_ns", "median": 32.5, "least": 30.0, "most": 40.0},
    ]
    where = dict.fromkeys(MACHINE, "a") | {"cores": 2, "memory_bytes": 1 << 30, "load_average": [0.1, 0.2, 0.3]}
    document = {
        "suite": "core", "command": "python bench/core.py --pending=1M", "machine": where, "started": "2026-01-01",
        "seconds": 1.5, "short": False, "partial": True, "seed": 1, "tables": {"figures": figures},
        "checks": {"outcomes": {"held": False, "says": "one was lost"}},
    }  # fmt: skip
    assert set(document) == FIELDS
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
    assert "* **does not hold**: outcomes: one was lost" in texts[0]
    assert "**Partial run.**" in texts[0] and "| 1,000,000 | insert_ns | 100 | 90.0 | 120 |" in texts[0]
