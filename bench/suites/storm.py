"""A storm of real processes: a daemon with a journal and workers, all of them killed and stopped again and again.

    python bench/suites/storm.py [--seconds N] [--workers N] [--json FILE]

Workers register, fire, take and give jobs (limited events), cancel and reschedule. Every second worker uses packets
(transport="unix"), the others ZeroMQ. A worker is often stopped for a while and then killed: the grants that it got
meanwhile are requeued. Workers have children, whose last act returns before it is applied. Every third
worker makes and takes group calls instead. The handlers of some calls end their process. A daemon that was killed is
started again on its arena. At the end stopped processes are continued, and no new calls are made. The workers end, the
daemon ends in order, and then

* the audit computes each outcome again from the journal, and finds nothing;
* `timerctl check` finds nothing in the arena;
* the daemon has never ended by itself;
* each call that was accepted has run to its end, was cancelled, or is a dead letter. Only calls that end processes are
  dead letters. No such call began more often than `deliveries` says, and from the third time on it ran alone in its
  process;
* the last act of each child is in the journal, or the child has reported the loss and the daemon was away then.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench.lib.helpers  # noqa: F401

# isort: split
import timerd as td
from bench.attack.storm_calls import CALM, GROUP, PATIENCE_S, WAYS, Caller, id_of_letter
from bench.attack.storm_children import RECORDS, id_of, journaled, judge_children, read_children
from bench.attack.storm_notes import KILLERS, NOTES, Notes, judge_notes, read_notes
from bench.lib.common import ROOT, Failed, Parser, Suite, amount, run_suite
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

ACTS_PER_S = 60  # of a worker
CALLS_PER_S = 5  # of a worker of calls
CALM_S = 90.0  # at the end, for workers to close, and for calls to come to their ends
LONG_S = 17.0  # longer than a lease
SAY_EVERY_S = 60.0
REQUEUES_PER_S = 300 / 3_600  # at least
FLAGS = (
    "--capacity=65536",
    "--ring-events=65536",
    "--clients=256",
    "--journal-level=events",
    "--journal-keep=64GiB",
    "--journal-buffer=64MiB",
    "--dead-letters=16384",
)
COUNTED = ("registered", "completed", "expired", "cancelled", "failed", "events", "granted", "requeued", "starts")


@dataclass(eq=False)
class Worker:
    """A process of the storm."""

    name: str
    calls: bool
    process: subprocess.Popen[bytes]
    stopped: bool = False
    expected: tuple[int, ...] = ()  # the exit statuses that are no fault

    def signal(self, number: signal.Signals) -> None:
        """Send the signal, unless the process has ended."""
        if self.process.poll() is None:
            if number in (signal.SIGKILL, signal.SIGTERM):
                self.expected += (-number, 0) if number == signal.SIGTERM else (-number,)
            self.process.send_signal(number)


class Storm:
    """The processes, and the faults that they suffer."""

    def __init__(self, suite: Suite, directory: Path) -> None:
        from support.real.daemons import Daemon

        self.rng = random.Random(suite.seed)
        self.suite = suite
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self.made = 0
        self.journal = directory / "journal"
        self.journal.mkdir()
        self.daemon: Any = Daemon(directory, *FLAGS, f"--journal={self.journal}")
        (directory / RECORDS).mkdir()
        self.workers: list[Worker] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.silent: set[str] = set()  # workers that were stopped for longer than a lease
        self.ended: dict[str, int] = {}  # workers of calls that have ended by themselves, with their status
        self.away: list[tuple[float, float]] = []  # begin and end of each time without the daemon
        self.blows: list[tuple[Callable[[], None], float]] = [
            (self.kill_worker, 1.5),
            (self.stop_and_kill_worker, 3.0),
            (self.stop_worker, 2.0),
            (self.kill_daemon, 1.0),
            (self.stop_daemon, 1.0),
        ]

    def tend(self, count: int, calls: int) -> None:
        """Start workers up to `count`, `calls` of them for calls. Note workers that have ended by themselves."""
        for worker in [worker for worker in self.workers if worker.process.poll() is not None]:
            self.workers.remove(worker)
            if (status := worker.process.returncode) not in worker.expected:
                if worker.calls:
                    self.ended[worker.name] = status
                else:
                    self.counts["workers ended by themselves"] += 1
                    self.suite.add("faults", fault=f"worker {worker.name} has ended with {status}")
        while len(self.workers) < count:
            self.spawn(sum(worker.calls for worker in self.workers) < calls)

    def spawn(self, calls: bool) -> None:
        """Start another worker."""
        self.made += 1
        name = f"{self.suite.seed}-{self.made}"
        program, per_s = ("storm_calls", CALLS_PER_S) if calls else ("storm_worker", ACTS_PER_S)
        environment = {
            **os.environ,
            RUNTIME_DIR_VARIABLE: str(self.directory),
            TRANSPORT_VARIABLE: TRANSPORTS[self.made % len(TRANSPORTS)],
        }
        with (self.directory / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"bench.attack.{program}", str(self.directory), name, str(per_s)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.workers.append(Worker(name, calls, process))

    def run(self, seconds: float, workers: int) -> None:
        """Kill and stop processes at random for `seconds`."""
        blows, weights = zip(*self.blows, strict=True)
        end = time.monotonic() + seconds
        said = time.monotonic()
        while time.monotonic() < end:
            self.tend(workers, calls_of(workers))
            if self.daemon.process.poll() is not None:
                raise Failed(f"the daemon has ended by itself:\n{self.daemon.log[-4_000:]}")
            self.rng.choices(blows, weights)[0]()
            until = time.monotonic() + self.rng.random()
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(left, 0.02))
                self._do_later()
            if time.monotonic() - said > SAY_EVERY_S:
                said = time.monotonic()
                self.suite.say(f"{dict(self.counts)}, {self.counters()}")

    def _do_later(self) -> None:
        now = time.monotonic()
        due = [act for at, act in self.later if at <= now]
        self.later = [(at, act) for at, act in self.later if at > now]
        for act in due:
            act()

    def _some(self) -> Worker | None:
        free = [worker for worker in self.workers if not worker.stopped and worker.process.poll() is None]
        return self.rng.choice(free) if free else None

    def kill_worker(self) -> None:
        if (worker := self._some()) is not None:
            self.counts["workers killed"] += 1
            worker.signal(signal.SIGKILL)

    def _stop(self, worker: Worker, for_s: float, then: signal.Signals) -> None:
        worker.stopped = True
        worker.signal(signal.SIGSTOP)
        if for_s >= LONG_S:
            self.silent.add(worker.name)

        def go_on() -> None:
            worker.stopped = False
            worker.signal(then)

        self.later.append((time.monotonic() + for_s, go_on))

    def stop_worker(self) -> None:
        """Stop a worker, sometimes for longer than its lease (15 s)."""
        if (worker := self._some()) is not None:
            self.counts["workers stopped"] += 1
            self._stop(worker, LONG_S if self.rng.random() < 0.05 else self.rng.random() * 3, signal.SIGCONT)

    def stop_and_kill_worker(self) -> None:
        """Stop a worker, and kill it before it goes on: the grants that it got meanwhile are requeued."""
        if (worker := self._some()) is not None:
            self.counts["workers stopped and killed"] += 1
            self._stop(worker, 0.2 + self.rng.random(), signal.SIGKILL)

    def kill_daemon(self) -> None:
        self.counts["daemon killed"] += 1
        began = time.monotonic()
        self.daemon.kill()
        time.sleep(self.rng.choice((0, 0.05, 0.5, 4 * self.rng.random())))
        self.daemon.start()
        self.away.append((began, time.monotonic()))

    def stop_daemon(self) -> None:
        process, began = self.daemon.process, time.monotonic()
        self.counts["daemon stopped"] += 1
        process.send_signal(signal.SIGSTOP)

        def go_on() -> None:
            process.send_signal(signal.SIGCONT)
            self.away.append((began, time.monotonic()))

        long_s = 20 if self.rng.random() < 0.03 else self.rng.random() * 1.5
        self.later.append((began + long_s, go_on))

    def counters(self) -> dict[str, int]:
        """Counters of the daemon, over all its starts."""
        found = self.daemon.stats()["counters"]
        return {name: int(found[name]) for name in COUNTED if name in found}

    def begin(self, workers: int) -> None:
        """Start the workers, and make one call of each kind that ends its worker."""
        self.tend(workers, calls_of(workers))
        with self.client() as client:
            caller = Caller(client, Notes(self.directory, "storm"), "storm", self.rng)
            for name in KILLERS:
                for way in WAYS:
                    caller.make(name, way, self.rng.random())

    def client(self) -> td.Client:
        """A member of the group `calls` that serves no calls."""
        return td.connect(runtime_dir=str(self.directory), group=GROUP, timeout=PATIENCE_S)

    def end(self) -> list[str]:
        """Continue stopped processes, and end all in order. Returns the ids of dead letters' calls. Raises Failed."""
        for _, act in self.later:
            act()
        self.later = []
        (self.directory / CALM).touch()
        calls = sum(worker.calls for worker in self.workers)
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
            if not worker.calls:
                worker.signal(signal.SIGTERM)
        self._wait("a worker runs", lambda: all(worker.calls for worker in self.workers), calls)
        self._wait("a child runs", lambda: not self._children(), calls)
        began = time.monotonic()
        with self.client() as client:
            self._wait("there are calls", lambda: not client.calls(), calls)
            letters = [id_of_letter(letter.payload) for letter in client.dead_letters()]
        self.suite.add("calm", until_no_call_was_left_s=time.monotonic() - began)
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        self._wait("a worker of calls runs", lambda: not self.workers)
        self._wait("there are operations", lambda: not self.daemon.stats()["counters"]["pending"])
        return letters

    def _wait(self, what: str, is_over: Callable[[], bool], calls: int = 0) -> None:
        """Wait until `is_over`, with `calls` workers of calls. Raises Failed if `what` still holds after CALM_S."""
        until = time.monotonic() + CALM_S
        self.tend(calls, calls)
        while not is_over():
            if time.monotonic() > until:
                raise Failed(f"after {CALM_S:g} s of calm, {what}")
            time.sleep(0.1)
            self.tend(calls, calls)

    def _children(self) -> list[int]:
        """Pids of processes that are neither the daemon nor workers."""
        from support.real.daemons import processes_of

        known = {self.daemon.pid, *(worker.process.pid for worker in self.workers)}
        return [process.pid for process in processes_of(self.directory, 0) if process.pid not in known]

    def close(self) -> None:
        """End the processes that still run."""
        for worker in self.workers:
            worker.signal(signal.SIGKILL)
            worker.process.wait()
        if self.daemon.process is not None:
            self.daemon.process.send_signal(signal.SIGCONT)
            self.daemon.kill()
        self.daemon.destroy()


def calls_of(workers: int) -> int:
    """The number of workers that make and take calls."""
    return max(1, workers // 3)


def judge(suite: Suite, storm: Storm, seconds: float, letters: list[str]) -> None:
    """End the daemon, and check its arena, journal and notes. `letters` are the ids of the dead letters' calls."""
    from timerd_client.audit.journal import audit_journal

    counters = storm.counters()
    checked = subprocess.run(
        [sys.executable, "-m", "timerctl", "check"],
        env={**os.environ, RUNTIME_DIR_VARIABLE: str(storm.directory)},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    suite.check("check", checked.returncode == 0, (checked.stdout + checked.stderr).strip()[-500:])
    status = storm.daemon.stop()
    suite.check("orderly_end", status == 0, f"the daemon's exit status is {status}")
    rows = sum(512 * file.stat().st_blocks for file in storm.journal.glob("*.segment"))
    suite.say(f"audit of {rows:,} bytes")
    found = audit_journal(storm.journal)
    for wrong in found.wrong[:20]:
        suite.add("findings", finding=str(wrong))
    suite.add("audit", outcomes=found.outcomes, journal_bytes=rows, findings=len(found.wrong))
    says = f"{found.outcomes:,} outcomes were computed again: {len(found.wrong)} findings"
    suite.check("audit", not found.wrong and found.outcomes > 0, says)
    judge_calls_and_children(suite, storm, letters)
    for what, count in sorted(storm.counts.items()):
        suite.add("blows", what=what, count=count)
    for what, count in counters.items():
        suite.add("counters", what=what, count=count)
    needed = int(REQUEUES_PER_S * seconds)
    suite.check("requeued", counters["requeued"] >= needed, f"{counters['requeued']:,} grants; {needed} are needed")
    ended = storm.counts["workers ended by themselves"]
    suite.check("workers", ended == 0, f"{ended} workers ended by themselves")


def judge_calls_and_children(suite: Suite, storm: Storm, letters: list[str]) -> None:
    """Judge the notes of the calls, and the records of the children."""
    children = list(read_children(storm.directory))
    made = [id_of(child.name) for child in children if child.verb == "call_later" and not child.lost]
    calls = judge_notes(read_notes(storm.directory), made, letters, storm.silent, storm.ended)
    last_acts = judge_children(children, journaled(storm.journal), storm.away)
    for name, found in (("calls", calls), ("children", last_acts)):
        for what, count in sorted(found.counts.items()):
            suite.add(name, what=what, count=count)
        for fault in found.faults[:20]:
            suite.add("faults", fault=fault)
    away_s = sum(end - begin for begin, end in storm.away)
    suite.add("children", what="seconds without the daemon", count=away_s)
    ends, killers = calls.counts["innocents that were ended"], len(set(letters))
    says = f"{len(calls.faults)} faults; {killers:,} calls are dead letters, {ends:,} others were ended and ran again"
    suite.check("calls", not calls.faults and killers > 0, says)
    lost = last_acts.counts["said lost"]
    says = f"{len(last_acts.faults)} faults; {len(children):,} children, {lost:,} have reported a loss"
    suite.check("children", not last_acts.faults and len(children) > lost, says)


def keep(suite: Suite, directory: Path) -> None:
    """Keep the files that show the cause of a fault."""
    kept = ROOT / "build" / "storm"
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in ("default.log", "workers.log", NOTES, RECORDS, "journal"):
        if (directory / name).exists():
            shutil.move(directory / name, kept)
    suite.say(f"logs, notes, records and the journal are kept in {kept}")


def play(suite: Suite) -> None:
    args = suite.args
    directory = Path(tempfile.mkdtemp(prefix="storm-"))
    try:
        storm, is_right = Storm(suite, directory), False
        try:
            storm.begin(args.workers)
            storm.run(args.seconds, args.workers)
            judge(suite, storm, args.seconds, storm.end())
            is_right = all(check["held"] for check in suite.checks.values())
        finally:
            storm.close()
            if not is_right:
                keep(suite, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    parser = Parser("storm", __doc__)
    parser.size("--seconds", amount(1, 1_000_000), "3600", "20", "seconds of kills and stops")
    parser.add_argument(
        "--workers",
        type=amount(1, 200),
        default=3 * (os.cpu_count() or 1),
        metavar="N",
        help="workers at a time (3 per core)",
    )
    sys.exit(run_suite(parser, play))
