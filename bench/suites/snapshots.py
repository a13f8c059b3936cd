"""Copies of the arena while the daemon works: their cost in a turn, and their effect on a loader and a bystander.

    python bench/suites/snapshots.py [--pending 100k,4M] [--copies 3] [--rate 20k] [--short] [--json FILE]

The suite's daemon holds `pending` operations of a client that is stopped. A loader registers and fires `rate` times a
second. A bystander fires, and waits for the answer, some 200 times a second. A third client asks for `copies` copies
(`client.snapshot()`), one after the other. The daemon's rest between two copies is most of the run.

* `copy_ms`: the time from the turn that begins a copy to the turn that finds it whole, for the slowest copy.
* `tend_cpu_ms`: the conductor's CPU, in the worst turn, for the beginning, checking, ending and removal of a copy.
* `images_a_turn`: how many lines of the arena the worst turn has logged.
* `turn_cpu_ms` and `quiet_turn_cpu_ms`: all CPU of the conductor in the worst turn, during a copy and without one.
* `touched_a_turn` and `quiet_touched_a_turn`: the records that the worst turn touched, during a copy and without one.
* `round_trip_p99_ms` and `quiet_p99_ms`: p99 of the bystander's round trips, during a copy and without one. `lost`:
  round trips that failed.
* `memory_mb`: the growth of the daemon's own memory, without the copy's file, which is as large as the arena.

On a busy machine the figures also measure the other work. CPU is CLOCK_THREAD_CPUTIME_ID of the conductor's thread.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import timerd as td
from bench.lib.common import Parser, Refused, Suite, amount, listed, need_memory, run_suite
from bench.suites.recovery import BYTES_PER_OP, client_of
from timerctl.load.own_daemon import INSTANCE, private_daemon
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

BEAT_S = 0.005  # from one question of the bystander to the next
LOAD_S = 0.01  # from one batch of the loader to the next
PATIENCE_S = 120.0
COPY_PATIENCE_S = 600.0  # after a copy the daemon rests for nine times the copy's CPU time
TURN_MS_MAX = 5.0  # of the conductor's CPU in any turn during a copy
MEMORY_MB_MAX = 64


def serve(report: Path, flags: list[str]) -> None:
    """The daemon's process. It measures its turns, and writes the results when it ends."""
    from timerd import __main__
    from timerd.conductor.turn import Conductor
    from timerd.snapshots import Snapshots

    cpu, tend, do_work = time.thread_time_ns, Snapshots.tend, Conductor.do_work
    found: dict[str, Any] = {"spans": [], "tend": 0, "images": 0, "turn": [0, 0], "touched": [0, 0], "memory": 0}
    state = {"tend": 0}

    def logged(conductor: Any) -> int:
        copy = conductor._snapshots._files._copy
        return copy._copier.logged if copy is not None and not copy.is_over else 0

    def measured_tend(self: Any, now_ns: int) -> Iterator[Any]:
        began, was = cpu(), self.is_copying
        answers = list(tend(self, now_ns))
        state["tend"] = cpu() - began
        if self.is_copying and not was:
            found["spans"].append([time.monotonic_ns(), 0])
        if was and not self.is_copying:
            found["spans"][-1][1] = time.monotonic_ns()
        return iter(answers)

    def measured(self: Any, now_ns: int) -> int:
        copying, began, before = int(self._snapshots.is_copying), cpu(), logged(self)
        work = do_work(self, now_ns)
        spent = cpu() - began
        copying |= int(self._snapshots.is_copying)
        found["turn"][copying] = max(found["turn"][copying], spent)
        found["touched"][copying] = max(found["touched"][copying], work)
        found["tend"] = max(found["tend"], state["tend"])
        if copying:
            found["images"] = max(found["images"], logged(self) - before if before else 0)
            found["memory"] = max(found["memory"], own_memory() - idle)
        return work

    def own_memory() -> int:
        text = Path("/proc/self/status").read_text()
        [kib] = re.findall(r"RssAnon:\s+(\d+) kB", text)
        return int(kib) << 10

    idle = own_memory()
    Snapshots.tend = measured_tend  # type: ignore[method-assign]
    Conductor.do_work = measured  # type: ignore[method-assign]
    sys.argv = ["timerd", f"--instance={INSTANCE}", "--ephemeral", *flags]
    try:
        __main__.main()
    finally:
        report.write_text(json.dumps(found))


def load(directory: str, rate: int, over: Event) -> None:
    """The loader's process: half of `rate` are registrations, the other half events on their keys."""
    os.environ[RUNTIME_DIR_VARIABLE] = directory
    size = max(round(rate * LOAD_S / 2), 1)
    with contextlib.closing(td.connect(INSTANCE, timeout=PATIENCE_S)) as client:
        number = 0
        while not over.is_set():
            names = [b"loaded/%012d" % each for each in range(number, number + size)]
            batch = client.register_many(names, timeout=60.0)
            client.fire_many(names)
            batch.outcomes()
            number += size
            time.sleep(LOAD_S)


def trips(directory: str, over: Event, out: Any) -> None:
    """The bystander's process. It notes when each round trip began, and its length in ns; -1 if it failed."""
    os.environ[RUNTIME_DIR_VARIABLE] = directory
    found = []
    with contextlib.closing(td.connect(INSTANCE, timeout=PATIENCE_S)) as client:
        while not over.is_set():
            began = time.monotonic_ns()
            try:
                client.fire_wait("bystander")
                found.append((began, time.monotonic_ns() - began))
            except td.TimerdError:
                found.append((began, -1))
            time.sleep(BEAT_S)
    out.put(found)


def ask(directory: str, copies: int, suite: Suite) -> int:
    """Ask for copies. Returns the number of copies that were given up."""
    os.environ[RUNTIME_DIR_VARIABLE] = directory
    refused = 0
    for number in range(copies):
        # When the client ends, its copy is removed.
        with contextlib.closing(td.connect(INSTANCE, timeout=PATIENCE_S)) as client:
            try:
                client.snapshot(timeout=COPY_PATIENCE_S)
                suite.say(f"copy {number + 1} of {copies}")
            except td.TimerdError as error:
                refused += 1
                suite.say(f"copy {number + 1} of {copies}: {error}")
    return refused


def p99(spans: list[int]) -> float | None:
    return round(statistics.quantiles(spans, n=100)[98] / 1e6, 2) if len(spans) > 100 else None


def start(paths: InstancePaths, report: Path, flags: list[str]) -> subprocess.Popen[bytes]:
    """Start the daemon that measures itself, on the arena of the killed daemon."""
    with (paths.directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", str(report), *flags],
            env={**os.environ, RUNTIME_DIR_VARIABLE: str(paths.directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def measure(pending: int, suite: Suite) -> None:
    """Measure one size."""
    capacity = pending + max(pending // 10, 200_000)
    flags = [
        *(f"--capacity={capacity}", "--nodes=1", f"--quota-operations={capacity}"),
        *(f"--quota-outcomes={capacity}", "--idle-exit=10m"),
    ]
    context = multiprocessing.get_context("spawn")
    with private_daemon(flags) as paths, ArenaReader.from_descriptor(open_arena_file(paths)) as reader:
        with client_of(paths, reader, pending, suite.seed):
            suite.say(f"{pending:,} are pending")
            report, directory = paths.directory / "report", str(paths.directory)
            os.kill(reader.header().pid, signal.SIGKILL)
            daemon = start(paths, report, flags)
            over, out = context.Event(), context.Queue()
            loader = context.Process(target=load, args=(directory, int(suite.args.rate), over), daemon=True)
            bystander = context.Process(target=trips, args=(directory, over, out), daemon=True)
            try:
                loader.start()
                bystander.start()
                time.sleep(3)
                refused = ask(directory, suite.args.copies, suite)
                over.set()
                taken = out.get(timeout=PATIENCE_S)
            finally:
                for process in (loader, bystander):
                    process.kill()
                    process.join()
                daemon.terminate()
                daemon.wait()
            if not report.exists():
                raise Refused(f"the daemon has left no report: {(paths.directory / 'log').read_text()[-500:]}")
            found = json.loads(report.read_text())
        size = reader.header().size
    spans = [(first, last) for first, last in found["spans"] if last]
    inside: list[int] = []
    outside: list[int] = []
    for at, took in taken:
        if took >= 0:
            (inside if any(first <= at + took and at <= last for first, last in spans) else outside).append(took)
    lost = sum(took < 0 for _, took in taken)
    row = suite.add(
        "snapshots",
        pending=pending,
        arena_mb=size >> 20,
        copies=len(spans) - refused,
        given_up=refused,
        copy_ms=round(max(last - first for first, last in spans) / 1e6, 1),
        tend_cpu_ms=round(found["tend"] / 1e6, 3),
        images_a_turn=found["images"],
        turn_cpu_ms=round(found["turn"][1] / 1e6, 2),
        quiet_turn_cpu_ms=round(found["turn"][0] / 1e6, 2),
        touched_a_turn=found["touched"][1],
        quiet_touched_a_turn=found["touched"][0],
        round_trip_p99_ms=p99(inside),
        quiet_p99_ms=p99(outside),
        lost=lost,
        memory_mb=found["memory"] >> 20,
    )
    suite.check("no turn is long", row["turn_cpu_ms"] < TURN_MS_MAX, f"at most {TURN_MS_MAX} ms of CPU")
    suite.check("nothing is lost", lost == 0 and refused == 0, "each round trip and each copy came to its end")
    suite.check("memory is bounded", row["memory_mb"] <= MEMORY_MB_MAX, f"at most {MEMORY_MB_MAX} MB beside the copy")


def play(suite: Suite) -> None:
    need_memory(
        max(suite.args.pending) * (BYTES_PER_OP + 500),  # with the copy
        f"{max(suite.args.pending):,} operations and a copy",
        "ask for fewer (--pending)",
    )
    for pending in suite.args.pending:
        measure(pending, suite)


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3:])
        return 0
    parser = Parser("snapshots", __doc__)
    parser.size("--pending", listed(amount(1_000, 7_000_000, "operations")), "100k,4M", "100k", "operations pending")
    parser.size("--copies", amount(1, 100, "copies"), "3", "1", "copies of each size")
    parser.size("--rate", amount(100, 1_000_000, "commands"), "20k", "2k", "commands a second of the loader")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
