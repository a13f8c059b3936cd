"""The benches: each suite at a tiny size, refused arguments, Ctrl-C, and a report made from results alone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from support.real.daemons import LEAVE_TIMEOUT_S
from support.real.trees import ROOT
from support.suite.tiers import in_tiers
from timerctl.load.harness.messages import Fired, Registered, Usage
from timerd_client.outcome import State
from timerd_client.workload import Events, Workload, plan

BENCH = ROOT / "bench"
TIMEOUT_S = 120
PAGE_OF_DELIVERIES = (ROOT / "docs/howto/deliveries.md").read_text()
FIGURE = re.compile(r"^\| (\d+) \| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) s \|$", re.MULTILINE)
PRINTED = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+) *$", re.MULTILINE)
JITTER = 0.02  # relative; the backoffs are random
FIELDS = {"suite", "about", "command", "machine", "started", "seconds", "short", "partial", "seed", "tables", "checks"}
MACHINE = {
    "cpu", "cores", "memory_bytes", "huge_pages", "kernel", "python", "libzmq", "pyzmq", "compiler", "versions",
    "commit", "load_average",
}  # fmt: skip


def bench(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the benches to its end."""
    command = [sys.executable, str(BENCH / "suites" / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def left_in(directory: Path) -> list[str]:
    """Files other than results that a suite has left in this directory, and processes whose TMPDIR it is."""
    ours = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(directory) and process.pid != os.getpid():
                ours.append(process)
    found = [str(process) for process in psutil.wait_procs(ours, LEAVE_TIMEOUT_S)[1]]
    return found + [path.name for path in directory.iterdir() if path.suffix != ".json"]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """A function that runs a program of the benches in this process, and returns its status."""

    def run(name: str, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        status: int = importlib.import_module(f"bench.{name}").main()
        return status

    return run


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> Path:
    """The directory in which a suite makes all its files."""
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    return runtime_dir


TINY = {
    "client": ("--requests=1k", "--pending=100", "--rounds=1", "--turns=1", "--handles=1k"),
    "core": ("--pending=10k", "--repeat=1", "--huge-pages"),
    "recovery": ("--pending=2k", "--repeat=2"),
    "rivals": ("--pending=10k", "--repeat=1", "--work=500", "--contestants=heapq,wheel of 20", "--huge-pages"),
    # The suites below take longer.
    "snapshots": ("--pending=2k", "--copies=1", "--rate=1k"),
    "idle": ("--pending=1k", "--seconds=0.5"),
    "why_cython": ("--count=1k", "--repeat=1"),
    "ladder": (
        *("--rates=1k", "--others=1k", "--seconds=0.3", "--keys=3", "--pending=1k", "--apis=bulk", "--cases=high"),
        *("--goal-runs=1", "--goal-seconds=0.2"),
    ),
    "latency": ("--fine-rate=500", "--seconds=0.2", "--apis=bulk", "--runs=fine"),
    "quiet": ("--count=20", "--rates=100", "--seconds=0.1", "--rounds=1", "--ways=timerd,hops,seqpacket core"),
    "kafka_mock": ("--rounds=1", "--seconds=0.2", "--ways=timerd_kafka 1,mock 1,client alone"),
    "longest": ("--capacities=10k", "--rounds=1"),
    "longpolls": ("--waiters=10", "--rate=20", "--seconds=0.5", "--ways=timerd"),
    "deliveries": ("--count=500", "--rates=500", "--collector=off", "--seconds-stopped=0.2"),
    "scale": ("--processes=2", "--polls=10", "--rate=200", "--seconds=0.2", "--rounds=1"),
    "cost": ("--seconds=0.2", "--rounds=1", "--transports=unix"),
    "subscribe": ("--subscribers=20", "--keys=1,20", "--events=2"),
    "alternatives": ("--ways=redis,uvloop", "--rates=500", "--seconds=0.2"),
    "article": ("--rates=5k", "--requests=1k", "--full", "--purge=100,never", "--memory=20"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", in_tiers(TINY, 1))
def test_each_suite_writes_one_document_and_leaves_no_files(name: str, place: Path) -> None:
    result = place / "result.json"
    done = bench(name, *TINY[name], f"--json={result}", "--seed=7")
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(result.read_text())
    assert set(document) == FIELDS and set(document["machine"]) == MACHINE
    assert document["suite"] == name and document["seed"] == 7 and not document["partial"]
    assert document["command"].startswith(f"python bench/suites/{name}.py ") and "json" not in document["command"]
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
        (
            "ladder",
            ("--rates=5M", "--pending=0", "--seconds=60"),
            "5,000,000/s for 60 s beside 0 pending operations need ",
        ),
        (
            "core",
            ("--pending=8M",),
            "8,000,000 pending operations need 8.9 GiB of memory, and 768.0 MiB are available: ",
        ),
        ("alternatives", ("--ways=celery",), "'celery' is none of timerd, timerd-bulk, redis, "),
        ("quiet", ("--ways=celery",), "'celery' is none of timerd, timerd asyncio, timerd unix, "),
        ("overload", ("--seconds=nan",), "nan is not between 1 and 3600 seconds"),
        ("rivals", ("--contestants=redis",), "'redis' is none of timerd, wheel of 20, bare, heapq, "),
        ("article", ("--purge=0",), "0 is not between 1 and 10,000,000 entries, or never"),
        ("article", ("--memory=1M",), "1000000 MiB of records need 978.0 GiB of memory"),
        ("run", ("cores",), "'cores' is no suite: name some of core, "),
    ],
)
def test_a_senseless_argument_is_refused_with_value_limit_and_remedy(
    name: str,
    arguments: tuple[str, ...],
    says: str,
    call: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30, total=1 << 30))
    with pytest.raises(SystemExit) as ended:
        call(name if name == "run" else f"suites.{name}", *arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.long
def test_a_refusal_of_the_daemon_is_reported_and_earlier_results_are_kept(place: Path) -> None:
    """A small /dev/shm can cause such a refusal. Here the load test refuses a rate: the arena holds 16 operations."""
    result = place / "result.json"
    program = (
        "import sys; from bench.lib import loads; from bench.suites import ladder;"
        "loads.flags_of = lambda workload, pending: [] if workload.rate < 2_000 else ['--capacity=16'];"
        f"sys.argv = ['ladder.py', '--rates=1k,2k', '--seconds=0.2', '--pending=0', '--cases=low', '--json={result}'];"
        "sys.exit(ladder.main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1, done.stderr
    assert "operations at once, and instance 'load' has 16 left" in done.stderr
    document = json.loads(result.read_text())
    # Two points if a busy machine misses the first rate by far: then the next series begins before the refusal.
    assert document["partial"] is True and 1 <= len(document["tables"]["points"]) <= 2
    assert not left_in(place)


@pytest.mark.long
def test_an_alternative_that_is_not_installed_says_how_to_install_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place))
    result = place / "result.json"
    done = bench("alternatives", "--ways=redis,blpop", "--rates=500", "--seconds=0.2", f"--json={result}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(result.read_text())["tables"]["runs"]
    assert [row["why_not"] for row in rows] == ["not installed: apt-get install redis-server"] * 2


def test_an_event_that_arrived_before_its_registration_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way forgets an event that no operation waits for yet. So some operations do not complete: they count."""
    from bench.rivals.alternative.trial import unheard

    ms, none = 1_000_000, array("q")
    workload = Workload(rate=1_000, count=4)
    sent_ns = array("q", [10 * ms, 11 * ms, 12 * ms, 13 * ms])
    returned_ns = array("q", [11 * ms, 12 * ms, 13 * ms, 14 * ms])
    expired, completed = int(State.EXPIRED.value), int(State.COMPLETED.value)
    state, told = array("B", [completed, expired, expired, 0]), array("B", [1, 1, 1, 0])
    delivered_ns = array("q", [26 * ms, 212 * ms, 213 * ms, 0])
    owner = Registered(
        plan(workload), sent_ns, returned_ns, state, told, none, none, none, delivered_ns, 14 * ms, 3, none, {},
        Usage(0, 0), "",
    )  # fmt: skip
    # Operation 0 completed, so the events of operations 1 and 3 were handled: they were fired before the event of
    # operation 0. The event of operation 2 was fired later.
    events = Events(none, array("I", [1, 3, 0, 2]), array("I"))
    at_ns = array("q", [20 * ms, 21 * ms, 25 * ms, 30 * ms])
    assert unheard(workload, owner, Fired(events, at_ns, none, Usage(0, 0), "")) == 2
    # An event that was fired before register() returned does not count.
    at_ns[0] = 11 * ms
    assert unheard(workload, owner, Fired(events, at_ns, none, Usage(0, 0), "")) == 1
    # Now the outcome of 0 is delivered after the deadlines: perhaps the events were late.
    delivered_ns[0] = 214 * ms
    assert unheard(workload, owner, Fired(events, at_ns, none, Usage(0, 0), "")) == 0


def interrupted(name: str, *arguments: str, after: str) -> tuple[int, str]:
    """Start a suite. Interrupt it 0.7 s after a line with `after`. Returns its status and the rest of its output."""
    process = subprocess.Popen(
        [sys.executable, str(BENCH / "suites" / f"{name}.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    while after not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.7)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, err


@pytest.mark.long  # the test below is the short form: Ctrl-C in one suite
def test_ctrl_c_ends_all_suites_and_keeps_the_rows_so_far(place: Path) -> None:
    status, err = interrupted("run", "why_cython", "core", f"--results={place}", after="run 1 of")
    assert status == 130, err
    assert json.loads((place / "why_cython.json").read_text())["partial"] is True
    assert "results so far" in err and not left_in(place)
    assert sorted(path.name for path in place.iterdir()) == ["why_cython.json"], "the second suite must not begin"


@pytest.mark.parametrize(
    ("name", "arguments", "after"),
    in_tiers(
        [
            ("alternatives", ("--ways=blpop,threads", "--rates=500", "--seconds=1"), "a thread for each wait"),
            ("ladder", ("--rates=1k,2k", "--seconds=1", "--apis=bulk", "--cases=low", "--pending=0"), "2,000/s"),
        ],
        1,
    ),
)
def test_ctrl_c_keeps_the_rows_so_far_and_leaves_no_files(
    name: str, arguments: tuple[str, ...], after: str, place: Path
) -> None:
    """The suite is interrupted in the second of two steps, while daemons and other processes run."""
    result = place / "result.json"
    status, err = interrupted(name, *arguments, f"--json={result}", after=after)
    assert status == 130, err
    document = json.loads(result.read_text())
    (rows,) = document["tables"].values()
    assert document["partial"] is True and len(rows) == 1
    assert not left_in(place)


def test_climbing_ends_after_two_rates_that_are_not_sustained_or_one_that_is_missed_by_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.lib.loads import gives_up

    held, failed = {"sustained": True, "reached_rate": 1_000}, {"sustained": False, "reached_rate": 900}
    assert not gives_up([], 1_000) and not gives_up([held, failed], 1_000) and not gives_up([failed, held], 1_000)
    assert gives_up([failed, held, failed], 1_000)
    assert gives_up([held, failed], 2_000), "900 of 2,000"


def test_the_figures_on_the_page_of_deliveries_are_those_of_the_suite() -> None:
    command = [sys.executable, str(ROOT / "bench" / "suites" / "deliveries.py"), "--rules"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    rows, measured = FIGURE.findall(PAGE_OF_DELIVERIES), PRINTED.findall(printed)
    assert len(rows) == len(measured) == 3, printed
    for row, now in zip(rows, measured, strict=True):
        assert [float(figure) for figure in row] == pytest.approx([float(figure) for figure in now], rel=JITTER)


# the report ----------------------------------------------------------------------------------------------------------


def test_the_committed_pages_pictures_and_figures_follow_from_the_committed_results(call: Callable[..., int]) -> None:
    assert call("lib.report", "--check") == 0


def write_document(directory: Path, suite: str, tables: dict[str, Any], **machine: Any) -> dict[str, Any]:
    """Write a document as this suite would, on a machine with these facts."""
    where: dict[str, Any] = dict.fromkeys(MACHINE, "a")
    where |= {"cores": 2, "memory_bytes": 1 << 30, "load_average": [0.1, 0.2, 0.3], "versions": {}}
    where |= machine
    document = {
        "suite": suite, "about": "The core alone.", "command": f"python bench/suites/{suite}.py", "machine": where,
        "started": "2026-01-01", "seconds": 1.5, "short": False, "partial": True, "seed": 1, "tables": tables,
        "checks": {"outcomes": {"held": False, "says": "one was lost"}},
    }  # fmt: skip
    assert set(document) == FIELDS
    (directory / f"{suite}.json").write_text(json.dumps(document))
    return document


def report_of(directory: Path, call: Callable[..., int], name: str = "R.md") -> str:
    """RESULTS.md as it is made from the documents in this directory."""
    out = directory / name
    out.parent.mkdir(exist_ok=True)
    assert call("lib.report", f"--results={directory}", f"--out={out}") == 0
    return out.read_text()


def test_the_report_follows_from_the_documents_alone(tmp_path: Path, call: Callable[..., int]) -> None:
    figures = [
        {"pending": 1_000_000, "figure": "expire_ns", "median": 500.0, "least": 90.0, "most": 620.0},
        {"pending": 1_000_000, "figure": "worst_tick_ms", "median": 0.05, "least": 0.05, "most": 0.4},
    ]
    document = write_document(tmp_path, "core", {"figures": figures})
    texts = [report_of(tmp_path, call, f"{name}/R.md") for name in ("one", "two")]
    assert texts[0] == texts[1]
    assert "| [core](tables/core.md) | The core alone. | A | 2026-01-01 | 0 of 1 (the run was not whole) |" in texts[0]
    targets, core = ((tmp_path / "one/tables" / name).read_text() for name in ("targets.md", "core.md"))
    command = f"`{document['command']}`"
    assert f"expiry with all sweeps, 1M pending | <= 250 ns | 500 ns | 2.00 | **no** | A | {command} |" in targets
    assert f"worst tick, 1M pending | <= 0.1 ms | 0.050 ms | 0.50 | yes | A | {command} |" in targets
    assert "expiry with all sweeps, 4M pending | <= 340 ns | - | - | not measured | - |" in targets
    assert core.startswith("# core\n\nThe core alone.\n\n`python")
    assert "* **does not hold**: outcomes: one was lost" in core
    assert "**Partial run.**" in " ".join(core.split()) and "| 1,000,000 | expire_ns | 500 | 90.0 | 620 |" in core


def test_results_is_one_page_of_pictures_with_their_conditions(tmp_path: Path, call: Callable[..., int]) -> None:
    rows = [
        {"pending": pending, "first_turn_ms": 92.0, "process_ms": 180.0, "starts": 5}
        for pending in (1_000_000, 4_000_000)
    ]
    write_document(tmp_path, "recovery", {"recovery": rows})
    text = report_of(tmp_path, call)
    after = text.partition("## A start after SIGKILL")[2].partition("\n## ")[0]
    assert "![A start after SIGKILL](plots/recovery.svg)" in after and "is back after 180 ms" in " ".join(after.split())
    assert "* [recovery](tables/recovery.md): `python bench/suites/recovery.py`, machine A, 2026-01-01." in after
    assert "1,000,000 operations pending" in (tmp_path / "plots/recovery.svg").read_text()
    assert "## HTTP long polls\n\nNot measured: `python bench/suites/longpolls.py`." in text
    committed = (BENCH / "RESULTS.md").read_text()
    assert len(committed.splitlines()) < 150 and committed.count("\n![") == 6


def test_the_report_says_on_which_machine_each_figure_was_measured(tmp_path: Path, call: Callable[..., int]) -> None:
    write_document(tmp_path, "idle", {"idle": [{"pending": 1_000_000, "wakeups_in_10_s": 0}]})
    rows = [{"pending": 1_000_000, "first_turn_ms": 92.0}]
    write_document(tmp_path, "recovery", {"recovery": rows}, cpu="another", commit="c0ffee")
    write_document(tmp_path, "gate", {"runs": [{"attack": "large"}]}, commit="c0ffee")
    text = report_of(tmp_path, call)
    assert "* Machine A: a, 2 cores, 1 GiB, " in text and "* Machine B: another, 2 cores, 1 GiB, " in text
    assert re.search(r"^\| \[gate\]\(tables/gate\.md\) \| [^|]+ \| A \|", text, re.MULTILINE)
    assert "| [recovery](tables/recovery.md) | The core alone. | B |" in text
    targets = (tmp_path / "tables/targets.md").read_text()
    assert "wake-ups in 10 s | <= 1 | 0.000 | 0.00 | yes | A | `python bench/suites/idle.py` |" in targets
    assert "| 92.0 ms | 0.61 | yes | B | `python bench/suites/recovery.py` |" in targets
    table = (tmp_path / "tables/recovery.md").read_text()
    assert (
        "`python bench/suites/recovery.py`, machine B, 2026-01-01, 2 s, commit c0ffee, load average before it 0.10, "
        in table
    )


def polls(way: str, **figures: Any) -> dict[str, Any]:
    row = {"way": way, "waiters": 1_000, "rate": 500, "p50_ms": 1.0, "p99_ms": 2.0, "memory_kb_per_waiter": 20.0}
    return row | {"lost": 0, "accepted": 5_000} | figures


def test_rivals_are_named_with_the_versions_that_the_run_has_noted(tmp_path: Path, call: Callable[..., int]) -> None:
    rows = [polls("timerd"), polls("redis blpop", p50_ms=0.5), polls("redis pubsub", lost=7)]
    for versions, says in (
        ({}, "this run did not note them"),
        ({"Redis": "7.0.1", "redis-py": "6.0"}, "Redis 7.0.1, redis-py 6.0"),
    ):
        write_document(tmp_path, "longpolls", {"polls": rows, "restart": rows}, versions=versions)
        text = " ".join(report_of(tmp_path, call).split())
        assert f"2026-01-01. Versions: {says}." in text
    assert "(BLPOP: 0.500 and 2.00)" in text and "(BLPOP: 0, pub/sub: 7)" in text


def test_the_worst_of_several_runs_counts_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.lib.loads import worst

    first = {"reached_rate": 99, "sustained": True, "cpu_us": 5.0, "expiry_p99_ms": None, "why_not": ""}
    second = {"reached_rate": 97, "sustained": False, "cpu_us": 4.0, "expiry_p99_ms": 2.0, "why_not": "too late"}
    third = {"reached_rate": 98, "sustained": False, "cpu_us": 6.0, "expiry_p99_ms": 1.0, "why_not": "too few"}
    found = worst([first, second, third])
    assert found == {
        "reached_rate": 97, "sustained": False, "cpu_us": 6.0, "expiry_p99_ms": 2.0, "why_not": "too late"
    }  # fmt: skip
    assert worst([first]) == first


LADDER_ROW = {"keys": 3, "api": "bulk", "case": "low", "pending": 0, "transport": "unix", "rate": 10, "cpu_us": 1.0}


def test_a_report_that_is_stale_or_lacks_a_file_or_has_one_too_many_is_refused(
    tmp_path: Path, call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    write_document(tmp_path, "ladder", {"points": [LADDER_ROW | {"sustained": True, "reached_rate": 10}]})
    given = (f"--results={tmp_path}", f"--out={tmp_path / 'R.md'}")
    assert call("lib.report", *given, "--check") == 1
    assert call("lib.report", *given) == 0
    assert call("lib.report", *given, "--check") == 0
    drawn, extra = tmp_path / "plots/ladder-cpu.svg", tmp_path / "tables/gone.md"
    for spoil in (drawn.unlink, lambda: drawn.write_text("other"), extra.touch):
        spoil()
        capsys.readouterr()
        assert call("lib.report", *given, "--check") == 1
        assert "run `python bench/lib/report.py`" in capsys.readouterr().err
        assert call("lib.report", *given) == 0
    assert not extra.exists()


def test_a_plot_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    from bench.lib.plots import PLOTS, draw, points

    plot = next(plot for plot in PLOTS if plot.name == "ladder-cpu")
    rows = [LADDER_ROW | {"rate": 10**at, "cpu_us": 9.0 / at} for at in (1, 2, 3)]
    rows.append(LADDER_ROW | {"pending": 1_000_000, "cpu_us": 20.0})  # not plotted: it has pending operations
    lines = points(plot, {"ladder": {"tables": {"points": rows}}})
    assert lines == {"3 keys, bulk, low, unix": ([10, 100, 1000], [9.0, 4.5, 3.0])}
    assert draw(plot, lines) == draw(plot, lines)
    assert draw(plot, lines).count("<circle") == 3 + 2, "three points, and two in the legend"
