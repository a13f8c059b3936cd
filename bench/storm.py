"""A storm of real processes: a daemon with a journal, and workers; SIGKILL and SIGSTOP of everybody, again and again.

    python bench/storm.py [--seconds N] [--workers N] [--json FILE]

Workers register, fire, take and give jobs (limited events), cancel and reschedule. Every second worker does it over
packets (transport="unix"), the others over ZeroMQ. A worker that takes jobs is often stopped for a while and then
killed: the grants that it got meanwhile are requeued. A daemon that was killed is started again on its arena. At the
end all goes on, the workers end, the daemon ends in order, and then

* the audit computes each outcome again from the journal, and finds nothing;
* `timerctl check` finds nothing in the arena;
* the daemon has never ended by itself.
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
from pathlib import Path
from typing import Any

import helpers  # noqa: F401

# isort: split
from common import ROOT, Failed, Parser, Suite, amount, run_suite
from timerd_shm.host.paths import RUNTIME_DIR_VARIABLE

WORKER = Path(__file__).resolve().parent / "storm_worker.py"
ACTS_PER_S = 60  # of a worker
CALM_S = 90.0  # at the end, for workers to close
SAY_EVERY_S = 60.0
REQUEUES_PER_S = 300 / 3_600  # of a full run: some hundred in an hour
FLAGS = (
    "--capacity=65536",
    "--ring-events=65536",
    "--clients=256",
    "--journal-level=events",
    "--journal-keep=64GiB",
    "--journal-buffer=64MiB",
)
COUNTED = ("registered", "completed", "expired", "cancelled", "failed", "events", "granted", "requeued", "starts")


class Storm:
    """The processes, and what is done to them."""

    def __init__(self, suite: Suite, directory: Path) -> None:
        from daemons import Daemon

        self.rng = random.Random(suite.seed)
        self.suite = suite
        self.directory = directory
        self.counts: Counter[str] = Counter()
        self.made = 0
        self.journal = directory / "journal"
        self.journal.mkdir()
        self.daemon: Any = Daemon(directory, *FLAGS, f"--journal={self.journal}")
        self.workers: list[subprocess.Popen[bytes]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.stopped: set[int] = set()  # pids
        self.blows: list[tuple[Callable[[], None], float]] = [
            (self.kill_worker, 1.5),
            (self.stop_and_kill_worker, 3.0),
            (self.stop_worker, 2.0),
            (self.kill_daemon, 1.0),
            (self.stop_daemon, 1.0),
        ]

    def spawn(self) -> None:
        """Start another worker."""
        self.made += 1
        command = [sys.executable, str(WORKER), str(self.directory), f"{self.suite.seed}/{self.made}", str(ACTS_PER_S)]
        with (self.directory / "workers.log").open("ab") as log:
            self.workers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def run(self, seconds: float, workers: int) -> None:
        """Strike until the time is over."""
        blows, weights = zip(*self.blows, strict=True)
        end = time.monotonic() + seconds
        said = time.monotonic()
        while time.monotonic() < end:
            for worker in [worker for worker in self.workers if worker.poll() is not None]:
                self.counts["workers ended by themselves"] += worker.returncode != -signal.SIGKILL
                self.workers.remove(worker)
            while len(self.workers) < workers:
                self.spawn()
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

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        if process.poll() is None:
            process.send_signal(number)

    def _some(self) -> subprocess.Popen[bytes] | None:
        free = [worker for worker in self.workers if worker.pid not in self.stopped and worker.poll() is None]
        return self.rng.choice(free) if free else None

    def kill_worker(self) -> None:
        if (worker := self._some()) is not None:
            self.counts["workers killed"] += 1
            self._signal(worker, signal.SIGKILL)

    def _stop(self, worker: subprocess.Popen[bytes], for_s: float, then: signal.Signals) -> None:
        self.stopped.add(worker.pid)
        self._signal(worker, signal.SIGSTOP)

        def go_on() -> None:
            self.stopped.discard(worker.pid)
            self._signal(worker, then)

        self.later.append((time.monotonic() + for_s, go_on))

    def stop_worker(self) -> None:
        """Stop a worker, sometimes for longer than its lease (15 s)."""
        if (worker := self._some()) is not None:
            self.counts["workers stopped"] += 1
            self._stop(worker, 17 if self.rng.random() < 0.05 else self.rng.random() * 3, signal.SIGCONT)

    def stop_and_kill_worker(self) -> None:
        """Stop a worker, and kill it before it goes on: what it was granted meanwhile is requeued."""
        if (worker := self._some()) is not None:
            self.counts["workers stopped and killed"] += 1
            self._stop(worker, 0.2 + self.rng.random(), signal.SIGKILL)

    def kill_daemon(self) -> None:
        self.counts["daemon killed"] += 1
        self.daemon.kill()
        time.sleep(self.rng.choice((0, 0.05, 0.5, 4 * self.rng.random())))
        self.daemon.start()

    def stop_daemon(self) -> None:
        process = self.daemon.process
        self.counts["daemon stopped"] += 1
        self._signal(process, signal.SIGSTOP)
        long_s = 20 if self.rng.random() < 0.03 else self.rng.random() * 1.5
        self.later.append((time.monotonic() + long_s, lambda: self._signal(process, signal.SIGCONT)))

    def counters(self) -> dict[str, int]:
        """Counters of the daemon, over all its starts."""
        found = self.daemon.stats()["counters"]
        return {name: int(found[name]) for name in COUNTED if name in found}

    def end(self) -> None:
        """Let everybody go on, and end all in order. Raises Failed."""
        for _, act in self.later:
            act()
        self.later = []
        for worker in self.workers:
            self._signal(worker, signal.SIGCONT)
            self._signal(worker, signal.SIGTERM)
        until = time.monotonic() + CALM_S
        while any(worker.poll() is None for worker in self.workers):
            if time.monotonic() > until:
                raise Failed("a worker does not end")
            time.sleep(0.1)
        until = time.monotonic() + CALM_S
        while self.daemon.stats()["counters"]["pending"] and time.monotonic() < until:
            time.sleep(0.2)

    def close(self) -> None:
        """End what is left."""
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        if self.daemon.process is not None:
            self.daemon.process.send_signal(signal.SIGCONT)
            self.daemon.kill()
        self.daemon.destroy()


def judge(suite: Suite, storm: Storm, seconds: float) -> None:
    """End the daemon, and look at what is left."""
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
    for what, count in sorted(storm.counts.items()):
        suite.add("blows", what=what, count=count)
    for what, count in counters.items():
        suite.add("counters", what=what, count=count)
    needed = int(REQUEUES_PER_S * seconds)
    suite.check("requeued", counters["requeued"] >= needed, f"{counters['requeued']:,} grants; {needed} are needed")
    ended = storm.counts["workers ended by themselves"]
    suite.check("workers", ended == 0, f"{ended} workers ended by themselves")


def play(suite: Suite) -> None:
    args = suite.args
    directory = Path(tempfile.mkdtemp(prefix="storm-"))
    try:
        storm = Storm(suite, directory)
        try:
            storm.run(args.seconds, args.workers)
            storm.end()
            judge(suite, storm, args.seconds)
        except BaseException:
            kept = ROOT / "build" / "storm"
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            for name in ("default.log", "workers.log"):
                if (directory / name).exists():
                    shutil.copy(directory / name, kept)
            raise
        finally:
            storm.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    parser = Parser("storm", __doc__)
    parser.size("--seconds", amount(1, 1_000_000), "3600", "20", "seconds of blows")
    parser.add_argument(
        "--workers", type=amount(1, 200), default=3 * (os.cpu_count() or 1), metavar="N", help="at a time (3 a core)"
    )
    sys.exit(run_suite(parser, play))
