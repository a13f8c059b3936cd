"""timerctl load: the judge, the columns, and runs that end well, badly or early. Runs are tiny."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.real.daemons import Daemon, arenas_of, processes_of
from support.rig.harness import MS, START_NS, US, Rig, fire
from timerctl import main
from timerctl.exits import Exit
from timerctl.load.harness import pace as pace_module
from timerctl.load.harness.messages import Fired, Registered, Usage
from timerctl.load.harness.pace import Pace
from timerctl.load.judge import Applied, Judgement, judge
from timerctl.load.own_daemon import INSTANCE, PREFIX, private_daemon
from timerctl.load.ring import RingFollower
from timerctl.load.stolen import Stolen
from timerd_client.outcome import State
from timerd_client.workload import (
    MARGIN_NS,
    Workload,
    fire_plan,
    plan,
)
from timerd_shm.declare.errors import TimerdUnavailableError
from timerd_shm.declare.layout import BATCH_MAX
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

LOW = Workload(rate=10_000, count=50_000)
END_S = 30
FIELDS = {
    "command", "machine", "seed", "workload", "partial", "valid", "sustained", "not_sustained", "asked_rate",
    "reached_rate", "backlog_s", "registered", "completed", "expired", "cancelled", "failed", "expected_expired",
    "expected_share", "lost", "duplicated", "early", "overruled", "mistaken", "undecided", "misjudged", "overtaken",
    "violations", "events_unseen", "examples", "errors", "completion_latency_us", "completion_latency_intended_us",
    "expiry_lateness_us", "expiry_settled_lateness_us", "harness_lateness_us", "harness_own_lateness_us", "cpu_s",
    "stolen_percent", "cpu_us_per_request", "rss_bytes",
}  # fmt: skip
LATENCIES = [field for field in FIELDS if field.endswith("lateness_us") or field.startswith("completion_latency")]


# the judge -----------------------------------------------------------------------------------------------------------

TINY = Workload(rate=2_000, count=400)
USAGE = Usage(0, 0)


class Evidence:
    """The records of the processes of a correct run of TINY. Tests falsify them."""

    def __init__(self) -> None:
        rows, events = plan(TINY), fire_plan(TINY)
        rounds = range(TINY.count)
        self.sent = array("q", (START_NS + due for due in rows.due_ns))
        self.marked = array("q", (at_ns - MS for at_ns in self.sent))
        self.fired = array("q", (START_NS + due for due in events.due_ns))
        self.applied = array("q", (at_ns + 50 * US for at_ns in self.fired))
        self.deadline = array("q", (at_ns + TINY.timeout_ns for at_ns in self.sent))
        self.completes = [rows.delay_ns[row] < TINY.timeout_ns for row in rounds]
        self.state = array("B", (int((State.EXPIRED, State.COMPLETED)[each].value) for each in self.completes))
        self.event = {operation: at for at, operation in enumerate(events.operation)}
        self.settled = array(
            "q", (self.applied[self.event[row]] if self.completes[row] else self.deadline[row] + MS for row in rounds)
        )
        self.told = array("B", [1] * TINY.count)
        self.rows, self.events = rows, events
        self.outcomes = TINY.count
        self.stamps = array("q")  # if not empty, these replace the right stamps

    def stamp(self, row: int) -> int:
        """The value of the event that completed the operation of this row."""
        return self.fired[self.event[row]] if self.completes[row] else 0

    def judge(self, partial: bool = False) -> Judgement:
        stamps = self.stamps or array("q", map(self.stamp, range(TINY.count)))
        delivered_ns = array("q", (at_ns + 100 * US for at_ns in self.settled))
        registered = Registered(
            self.rows, self.sent, self.marked, self.state, self.told, self.settled, self.deadline, stamps, delivered_ns,
            self.sent[-1] + US, self.outcomes, array("q"), {}, USAGE, "",
        )  # fmt: skip
        fired = Fired(self.events, self.fired, array("q"), USAGE, "")
        return judge(
            TINY, [registered], Applied(TINY, [registered], [fired], [self.applied]), START_NS, partial=partial
        )

    def expired(self) -> int:
        """A row that expired, and whose event was fired after its expiry."""
        return next(row for row in range(TINY.count) if not self.completes[row] and row in self.event)

    def completed(self) -> int:
        """A row that completed, well before its timeout."""
        return next(row for row in range(TINY.count) if self.rows.delay_ns[row] < TINY.timeout_ns // 2)


def test_a_correct_run_has_no_violations() -> None:
    evidence = Evidence()
    judged = evidence.judge()
    assert (judged.violations, judged.misjudged, judged.failed, judged.examples) == (0, 0, 0, [])
    assert judged.registered == judged.completed + judged.expired == TINY.count
    assert judged.expired == judged.expected_expired == evidence.completes.count(False)
    assert set(judged.completion_ns) == set(judged.completion_intended_ns) == {150 * US}
    assert set(judged.expiry_ns) == {MS + 100 * US}


def test_an_operation_without_an_outcome_is_lost_unless_the_run_is_partial() -> None:
    evidence = Evidence()
    evidence.told[7] = 0
    assert (evidence.judge().lost, evidence.judge().violations) == (1, 1)
    assert evidence.judge().examples[0].startswith("lost: operation 7 of registrar 0")
    assert evidence.judge(partial=True).lost == 0


def test_an_outcome_delivered_twice_is_duplicated() -> None:
    evidence = Evidence()
    evidence.told[7] = 3
    assert (evidence.judge().duplicated, evidence.judge().violations) == (2, 2)
    dropped = Evidence()
    dropped.outcomes += 1  # a second outcome of an operation, for which nobody waited
    assert (dropped.judge().duplicated, dropped.judge().violations) == (1, 1)


def test_an_expiry_is_early_before_its_deadline_or_if_the_deadline_is_before_the_timeout() -> None:
    before, short = Evidence(), Evidence()
    before.settled[before.expired()] -= MS + 1
    assert (before.judge().early, before.judge().violations) == (1, 1)
    short.deadline[short.expired()] -= 1
    assert (short.judge().early, short.judge().violations) == (1, 1)


def test_an_expiry_although_the_event_was_applied_before_the_deadline_is_overruled() -> None:
    evidence = Evidence()
    row = evidence.expired()
    evidence.applied[evidence.event[row]] = evidence.deadline[row]
    assert evidence.judge().overruled == 0, "at the deadline it came too late"
    evidence.applied[evidence.event[row]] -= 1
    assert (evidence.judge().overruled, evidence.judge().violations) == (1, 1)
    evidence.applied[evidence.event[row]] = evidence.marked[row]
    assert evidence.judge().overruled == 1, "the operation's mark had been read before the event"
    evidence.applied[evidence.event[row]] -= 1
    assert evidence.judge().overruled == 0, "the event may have come before the operation's mark"
    evidence.applied[evidence.event[row]] = 0
    assert evidence.judge().overruled == 0, "nobody has seen when the event was applied"


def test_a_completion_with_the_value_of_another_event_is_mistaken() -> None:
    evidence = Evidence()
    evidence.stamps = array("q", map(evidence.stamp, range(TINY.count)))
    evidence.stamps[evidence.completed()] += 1
    judged = evidence.judge()
    assert (judged.mistaken, judged.violations) == (1, 1)
    assert judged.examples[0].startswith("completed with another event's value: operation ")
    evidence.stamps[evidence.completed()] = 0
    assert evidence.judge().mistaken == 0, "a stamp of 0: the value was not looked at"


def test_an_operation_whose_event_arrived_first_is_right_and_counted() -> None:
    evidence = Evidence()
    row = evidence.completed()
    evidence.fired[evidence.event[row]] = evidence.sent[row] - 1
    judged = evidence.judge()
    assert (judged.overtaken, judged.misjudged, judged.violations) == (1, 0, 0)


def test_a_wrong_outcome_is_misjudged_and_near_the_timeout_either_outcome_is_right() -> None:
    evidence = Evidence()
    row = evidence.completed()
    for wrong in (State.EXPIRED, State.CANCELLED, State.FAILED):
        evidence.state[row] = int(wrong.value)
        evidence.settled[row] = evidence.deadline[row]
        evidence.applied[evidence.event[row]] = 0
        judged = evidence.judge()
        assert (judged.misjudged, judged.violations) == (1, 0), wrong
        assert judged.examples[0].startswith(f"misjudged: operation {row} ")
    near = Evidence()
    row = near.completed()
    near.rows.delay_ns[row] = TINY.timeout_ns - MARGIN_NS
    near.state[row] = int(State.EXPIRED.value)
    near.settled[row], near.applied[near.event[row]] = near.deadline[row], 0
    judged = near.judge()
    assert (judged.misjudged, judged.undecided) == (0, Evidence().judge().undecided + 1)


# the event ring and the schedule -------------------------------------------------------------------------------------


def test_the_follower_sees_when_each_event_was_applied_and_counts_overwritten_events() -> None:
    rig = Rig(ring_events=64)
    other, client = rig.client(), rig.client()
    rig.do(other, fire(b"before"))
    follower = RingFollower(ArenaReader.from_bytes(rig.memory))
    applied = []
    for round_ in range(10):
        rig.do(other, fire(b"theirs"), now_ns=rig.now_ns + MS)
        rig.do(client, fire(b"k%d" % round_), fire(b"k"), now_ns=rig.now_ns + MS)
        applied += [rig.now_ns] * 2
        follower.poll()
    assert list(follower.applied(rig.core.topic(client.slot), 21)) == [*applied, 0]
    assert follower.unseen == 0
    rig.do(client, *[fire(b"k") for _ in range(80)], now_ns=rig.now_ns + MS)
    follower.poll()
    seen = [at_ns for at_ns in follower.applied(rig.core.topic(client.slot), 100)[20:] if at_ns]
    assert seen == [rig.now_ns] * (64 - BATCH_MAX), "all but the entries of the ring that the daemon may be filling"
    assert follower.unseen == 80 - len(seen)


def test_the_follower_knows_every_event_and_reads_only_those_that_change_something(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(ring_events=4_096)
    clients = [rig.client() for _ in range(3)]
    applied: list[list[int]] = [[] for _ in clients]
    follower = RingFollower(ArenaReader.from_bytes(rig.memory))
    changes = 0
    for _ in range(200):
        rig.now_ns += MS
        for _ in range(rng.choice((1, 1, 3))):
            one = rng.randrange(3)
            events = rng.choice((1, 2, 100))
            rig.do(clients[one], *[fire(b"k%d" % rng.randrange(9)) for _ in range(events)], now_ns=rig.now_ns)
            applied[one] += [rig.now_ns] * events
            changes += 1
        if rng.random() < 0.2:
            follower.poll()
    follower.poll()
    for client, times in zip(clients, applied, strict=True):
        assert list(follower.applied(rig.core.topic(client.slot), len(times) + 1)) == [*times, 0]
        assert list(follower.applied(rig.core.topic(client.slot), len(times) // 2)) == times[: len(times) // 2]
    assert follower.unseen == 0
    assert len(follower._sequence) < 14 * changes < sum(map(len, applied))


def test_events_that_the_follower_has_seen_cost_the_garbage_collector_nothing() -> None:
    rig = Rig(ring_events=1_024)
    client = rig.client()
    follower = RingFollower(ArenaReader.from_bytes(rig.memory))
    before = 0
    for round_ in range(1_010):
        if round_ == 10:
            gc.collect()
            before = len(gc.get_objects())
        rig.do(client, fire(b"k"), now_ns=rig.now_ns + MS)
        follower.poll()
    gc.collect()
    assert len(follower._sequence) == 1_010
    assert len(gc.get_objects()) < before + 50, "after 1,000 rounds"


def test_the_follower_reads_no_event_before_it_is_in_the_ring() -> None:
    core: Any = pytest.importorskip("timerd.core_faults", reason="the build for tests was not made (TIMERD_FAULTS)")
    rig = Rig(ring_events=64, core=core)
    client, empty = rig.client(), bytes(rig.memory)
    rig.do(client, *(fire(b"k%d" % at) for at in range(64)))
    core.record(100)
    rig.do(client, *(fire(b"k%d" % at) for at in range(64, 80)))
    for point, copy in enumerate(core.snapshots()):
        memory = bytearray(empty)
        follower = RingFollower(ArenaReader(memoryview(memory)))
        memory[:] = copy
        newest = ArenaReader.from_bytes(copy).header().newest
        follower.poll()
        applied = follower.applied(rig.core.topic(client.slot), 80)
        assert not any(applied[newest:]), f"point {point}"
        assert follower.unseen + sum(map(bool, applied)) == newest, f"point {point}"


class Clock:
    """A clock in place of the time module."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.late_ns = 0  # by which each wake-up is late

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + self.late_ns


def test_late_commands_are_sent_at_once_and_the_harness_is_blamed_only_for_its_own_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", clock)
    due = array("q", (at * MS for at in (1, 2, 3, 10, 11)))
    pace = Pace(due, START_NS, bulk=False)
    clock.late_ns = MS // 2
    assert pace.begin(0) == 1  # half a millisecond late: `begin` has overslept
    clock.now_ns += 5 * MS  # the call takes long
    pace.end()
    clock.now_ns += MS // 4  # the bookkeeping of `pace` takes a while
    assert pace.begin(1) == 3, "both commands that are due, in one pass, without waiting"
    pace.end()
    assert pace.begin(3) == 4
    assert list(pace.own_lateness_ns) == [MS // 2, MS // 4, MS // 2]


def test_in_bulk_due_commands_are_sent_once_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(pace_module, "time", clock)
    pace = Pace(array("q", (at * 100 * US for at in range(100))), START_NS, bulk=True)
    passes = []
    row = 0
    while row < 100:
        row = pace.begin(row)
        passes.append(row)
        pace.end()
    assert passes == [11, 21, 31, 41, 51, 61, 71, 81, 91, 100]


# whole runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> Path:
    """Where --own makes its directory."""
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return runtime_dir


def own_directory(temporary: Path) -> Path:
    """The directory of the current run."""
    (directory,) = temporary.glob("td-load-*")
    assert arenas_of(directory) and processes_of(directory, timeout=0)
    return directory


def left_by(directory: Path) -> list[object]:
    """Everything that is left of a run with a daemon of its own."""
    return [*directory.parent.glob(directory.name), *arenas_of(directory), *processes_of(directory)]


Load = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def load() -> Iterator[Load]:
    """Starts `timerctl load --json ARGUMENTS`."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "timerctl", "load", "--json", *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=END_S)


def end_of(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
    """The exit status of a run, and the JSON that it printed."""
    out, err = process.communicate(timeout=END_S)
    assert out, err
    return process.returncode, json.loads(out)


def begin(process: subprocess.Popen[str]) -> None:
    """Wait for the progress line."""
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "registered" in line, line


@pytest.mark.long
def test_a_run_of_single_calls_on_the_running_instance(daemon: Daemon, load: Load) -> None:
    status, document = end_of(load("--rate=1k", "--count=600", "--seed=7"))
    assert set(document) == FIELDS
    assert (document["violations"], document["lost"], document["duplicated"], document["early"]) == (0, 0, 0, 0)
    assert status == (Exit.OK if document["valid"] else Exit.PROBLEM)
    assert document["registered"] == document["completed"] + document["expired"] == 600
    assert document["cancelled"] == document["failed"] == 0
    assert (document["seed"], document["asked_rate"]) == (7, 1_000)
    assert document["expected_expired"] == sum(
        delay > 200 * MS for delay in plan(Workload(rate=1_000, count=600, seed=7)).delay_ns
    )
    assert document["completion_latency_us"]["count"] == document["completed"]
    assert document["expiry_lateness_us"]["count"] == document["expired"]
    for field in LATENCIES:
        figures = document[field]
        assert 0 <= figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"], field
    assert set(document["cpu_s"]) == set(document["rss_bytes"]) == {"daemon", "registrars", "firers"}
    assert all(used > 0 for used in document["rss_bytes"].values())
    assert document["cpu_us_per_request"] > 0
    assert "--seed=7" in document["command"]
    counters = daemon.stats()["purgatories"]["load"]["counters"]
    assert (counters["completed"], counters["expired"]) == (document["completed"], document["expired"])
    assert counters["pending"] == 0


@pytest.mark.long  # its short form: a_run_of_single_calls_on_the_running_instance
def test_a_bulk_run_with_shared_keys_and_pending_operations_on_a_daemon_of_its_own(temporary: Path, load: Load) -> None:
    arguments = "--own --bulk --rate=4k --count=2k --registrars=2 --firers=2 --keys=200 --keys-per-op=2 --pending=1k"
    status, document = end_of(load(*arguments.split()))
    assert not list(temporary.glob("td-load-*"))
    assert (document["violations"], document["failed"], document["errors"]) == (0, 0, {})
    assert status == (Exit.OK if document["valid"] else Exit.PROBLEM)
    assert document["registered"] == document["completed"] + document["expired"] == 2_000
    assert 0 < document["completion_latency_us"]["count"] < 2_000, "one operation of each call is timed"
    assert document["workload"]["keys_per_op"] == 2


def test_the_next_run_removes_the_directories_of_killed_runs(temporary: Path) -> None:
    dead, running, young = (temporary / f"{PREFIX}{name}" for name in ("dead", "running", "young"))
    for directory in (dead, running, young):
        directory.mkdir()
        (directory / "log").touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(InstancePaths(running, INSTANCE).liveness))
        listener.listen()
        for directory in (dead, running):
            os.utime(directory, (0, 0))
        with pytest.raises(TimerdUnavailableError), private_daemon(["--no-such-flag"]):
            pass
    assert sorted(temporary.glob(f"{PREFIX}*")) == [running, young]


@pytest.mark.long
def test_ctrl_c_shows_the_results_so_far_and_leaves_no_files(temporary: Path, load: Load) -> None:
    process = load("--own", "--rate=500", "--duration=1m")
    begin(process)
    directory = own_directory(temporary)
    process.send_signal(signal.SIGINT)
    status, document = end_of(process)
    assert not left_by(directory)
    assert (status, document["partial"], document["sustained"]) == (Exit.INTERRUPTED, "interrupted", False)
    assert 0 < document["completed"] <= document["registered"] < 5_000
    assert document["violations"] == 0


@pytest.mark.long
def test_the_death_of_a_process_ends_the_run_with_the_results_so_far(temporary: Path, load: Load) -> None:
    process = load("--own", "--rate=500", "--duration=1m")
    begin(process)
    directory = own_directory(temporary)
    workers = [each for each in psutil.Process(process.pid).children() if "harness.worker" in " ".join(each.cmdline())]
    workers[-1].kill()
    status, document = end_of(process)
    assert not left_by(directory)
    assert status == Exit.PROBLEM
    assert document["partial"] == f"firer 0 (pid {workers[-1].pid}) has ended with status -9"
    assert document["registered"] > 0


@pytest.mark.long  # its short form: the_death_of_a_process_ends_the_run_with_the_results_so_far
def test_the_death_of_the_daemon_ends_the_run_with_the_results_so_far(daemon: Daemon, load: Load) -> None:
    process = load("--rate=500", "--duration=1m")
    begin(process)
    daemon.kill()
    status, document = end_of(process)
    assert (status, document["partial"]) == (Exit.NO_DAEMON, "the daemon of instance 'default' has ended")
    assert document["completed"] > 0
    assert document["violations"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--rate=fast", "'fast' is not a number"),
        ("--rate=0", "rate=0.0 is not within"),
        ("--rate=1k --payload=70k", "payload=70,000 is not within 0 and 65,536 bytes"),
        ("--rate=1k --p50=60ms --p75=20ms", "the upper quartile is above the median"),
        ("--rate=1k --count=5 --duration=1s", "not allowed with argument"),
        ("--rate=1k --keys=2 --keys-per-op=3", "keys=2 is not within 3"),
        ("--rate=10M --duration=200s", "ask for a shorter run"),
        ("--own --rate=10M --timeout=1h --count=30M", "an arena holds 16,777,216"),
        ("--rate=1k", "give --own"),
    ],
)
def test_a_senseless_argument_is_refused_with_the_remedy(
    capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    try:
        status = main(["load", *arguments.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    assert status not in (Exit.OK, Exit.INTERRUPTED)
    assert message in capsys.readouterr().err


def test_a_run_that_an_instance_has_no_room_for_is_refused(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--rate=100k"]) == Exit.PROBLEM
    refusal = capsys.readouterr().err
    assert "operations at once, and instance 'default' has 2,048 left" in refusal
    assert "--own" in refusal
    assert os.environ[RUNTIME_DIR_VARIABLE] == str(daemon.paths.directory)


def test_the_processor_time_that_the_host_steals_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # user, nice, system, idle, iowait, irq, softirq, steal; the other columns are contained in user
    times = [(10, 0, 0, 10, 0, 0, 0, 1, 5, 0), (40, 0, 10, 30, 0, 0, 0, 21, 35, 0)]
    kind = type(psutil.cpu_times())
    monkeypatch.setattr(psutil, "cpu_times", lambda: kind(*times.pop(0)))
    assert Stolen().share() == 20 / 80
