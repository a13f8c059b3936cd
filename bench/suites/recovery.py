"""A start after SIGKILL: the time until the first turn of a daemon whose arena has --pending operations.

    python bench/suites/recovery.py [--pending 1M,4M] [--repeat 5] [--short] [--json FILE]

The suite starts a daemon for itself. Its one client registers `pending` operations (one key of 12 bytes each, due in
one to two hours) through the ordinary API. A fifth of the records were used before, by operations that have expired. So
the order of the records differs from the order of registration. Then the client is stopped. The daemon is killed, and
started again on its arena, `repeat` times. The stamps of the mapping and of the first turn are the daemon's own, read
from the arena:

* `first_turn_ms`: the time from just before the daemon maps the arena's pages to its first turn. The goal in "Numbers
  to reach" is a bound of this time.
* `process_ms`: the time from the start of the process to this turn, with interpreter and imports. Clients wait this
  long.

Each start must find every operation pending. A figure is the median over the starts, with the worst beside it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import timerd as td
from bench.lib.common import Parser, Refused, Suite, amount, listed, need_memory, run_suite
from timerctl.load.own_daemon import INSTANCE, private_daemon
from timerd_shm.declare.counters import PURGATORY_COUNTERS, index_of
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

CHUNK = 50_000  # operations in one call
BYTES_PER_OP = 1_000  # in the arena, in the client, and in the lists that a start sorts
SHORT_LIVED_S = 0.3
PATIENCE_S = 120.0
LOOK_S = 0.0002
PENDING = index_of(PURGATORY_COUNTERS, "pending")


def fill(directory: str, pending: int, seed: int, is_full: Event) -> None:
    """The client's process: registers, sets `is_full`, and stays."""
    os.environ[RUNTIME_DIR_VARIABLE] = directory
    short = pending // 5
    with contextlib.closing(td.connect(INSTANCE, timeout=PATIENCE_S)) as client:
        kept = []
        for first in range(0, pending, CHUNK):
            names = [b"%012d" % number for number in range(first, min(first + CHUNK, pending))]
            lasting = [3_600 + (number * 7_919 + seed) % 3_600 for number in range(len(names))]
            # Every fifth operation expires soon, and frees its record for a later one.
            timeouts = [SHORT_LIVED_S if n % 5 == 0 else lasting[n] for n in range(len(names))]
            kept.append(client.register_many(names, timeout=timeouts))
            client.flush(timeout=PATIENCE_S)
        time.sleep(SHORT_LIVED_S + 0.2)
        for first in range(0, short, CHUNK):
            names = [b"again%07d" % number for number in range(first, min(first + CHUNK, short))]
            kept.append(client.register_many(names, timeout=3_600.0))
            client.flush(timeout=PATIENCE_S)
        is_full.set()
        signal.pause()


@contextlib.contextmanager
def client_of(paths: InstancePaths, reader: ArenaReader, pending: int, seed: int) -> Iterator[None]:
    """A client with `pending` pending operations. It is stopped (SIGSTOP), so that it does nothing during a start."""
    context = multiprocessing.get_context("spawn")
    is_full = context.Event()
    process = context.Process(target=fill, args=(str(paths.directory), pending, seed, is_full), daemon=True)
    process.start()
    try:
        end = time.monotonic() + PATIENCE_S + pending / 20_000
        while not is_full.wait(1.0):
            if time.monotonic() > end or not process.is_alive():
                raise Refused(f"the client did not register {pending:,} operations in time: is the machine busy?")
        if pending_in(reader) != pending:
            raise Refused(f"{pending_in(reader):,} of {pending:,} operations are pending: was a registration refused?")
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        yield
    finally:
        process.kill()
        process.join()


def pending_in(reader: ArenaReader) -> int:
    """The number of pending operations, from the arena."""
    value: int = reader.purgatory_counters[PENDING].value
    return value


def start(paths: InstancePaths, flags: list[str], reader: ArenaReader) -> tuple[subprocess.Popen[bytes], float, float]:
    """Start the daemon again. Returns its process, `first_turn_ms` and `process_ms` (see the module)."""
    before = reader.header()
    environment = {**os.environ, RUNTIME_DIR_VARIABLE: str(paths.directory)}
    began_ns = time.monotonic_ns()
    with (paths.directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "timerd", f"--instance={INSTANCE}", "--ephemeral", *flags],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + PATIENCE_S
    while True:
        header = reader.header()
        # While the daemon writes a stamp, the stamp may be 0 or half written for a moment.
        if header.attached_ns not in (0, before.attached_ns) and header.turn_at_ns > header.attached_ns:
            header = reader.header()
            first_turn_ns: int = header.turn_at_ns
            return process, (first_turn_ns - header.attached_ns) / 1e6, (first_turn_ns - began_ns) / 1e6
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise Refused(f"the daemon did not start again: {(paths.directory / 'log').read_text()[-500:]}")
        time.sleep(LOOK_S)


def recover(pending: int, repeat: int, seed: int, suite: Suite) -> None:
    """Measure one size: fill, then kill and start again, `repeat` times."""
    capacity = pending + max(pending // 100, 1_000)
    flags = [
        f"--capacity={capacity}",
        "--nodes=1",
        f"--quota-operations={capacity}",
        f"--quota-outcomes={capacity}",
        "--idle-exit=10m",  # on a busy machine the client starts late
    ]
    with private_daemon(flags) as paths, ArenaReader.from_descriptor(open_arena_file(paths)) as reader:
        first_turns, processes, found = [], [], []
        with client_of(paths, reader, pending, seed):
            suite.say(f"{pending:,} are pending")
            process: subprocess.Popen[bytes] | None = None
            try:
                for _ in range(repeat):
                    os.kill(reader.header().pid, signal.SIGKILL)
                    if process is not None:
                        process.wait()
                    process, first_turn_ms, process_ms = start(paths, flags, reader)
                    first_turns.append(first_turn_ms)
                    processes.append(process_ms)
                    found.append(pending_in(reader))
            finally:
                if process is not None:
                    process.terminate()
                    process.wait()
    suite.add(
        "recovery",
        pending=pending,
        first_turn_ms=round(statistics.median(first_turns), 1),
        first_turn_worst_ms=round(max(first_turns), 1),
        process_ms=round(statistics.median(processes), 1),
        process_worst_ms=round(max(processes), 1),
        starts=repeat,
    )
    suite.check("nothing is lost", all(each == pending for each in found), f"{pending:,} pending after each start")


def play(suite: Suite) -> None:
    need_memory(
        max(suite.args.pending) * BYTES_PER_OP, f"{max(suite.args.pending):,} operations", "ask for fewer (--pending)"
    )
    for pending in suite.args.pending:
        recover(pending, suite.args.repeat, suite.seed, suite)


def main() -> int:
    parser = Parser("recovery", __doc__)
    parser.size("--pending", listed(amount(1_000, 7_000_000, "operations")), "1M,4M", "100k", "operations pending")
    parser.size("--repeat", amount(1, 100, "starts"), "5", "3", "starts after a kill")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
