"""The cost of an idle daemon: wake-ups and CPU while operations are due in two to three hours, and no client runs.

    python bench/suites/idle.py [--pending 0,1M] [--seconds 20] [--short] [--json FILE]

A client registers the operations with orphans="keep", and ends. Then the daemon's threads are watched from outside: a
wake-up is a voluntary context switch of any thread. *turns* are the conductor's own count. There is no watchdog and no
journal.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

import timerd as td
from bench.lib.common import Parser, Suite, amount, listed, need_memory, real, run_suite
from timerctl.instance import open_arena
from timerctl.load.harness.pending import CHUNK, HOURS_S
from timerctl.load.own_daemon import flags_of, private_daemon
from timerd_client.workload import Workload, key_names
from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, index_of
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE
from timerd_shm.read.reader import ArenaReader

TURNS = index_of(DAEMON_COUNTERS, "turns")
PENDING = index_of(PURGATORY_COUNTERS, "pending")  # of the default purgatory, the first one
REST_S = 2.0  # long enough to finish all work, and to notice the client's end
BYTES_PER_OPERATION = 1_000  # in the arena, and in the client that registers


class Look(NamedTuple):
    """The daemon's counts since its start."""

    switches: int
    cpu_ns: int
    turns: int


def look(pid: int, reader: ArenaReader) -> Look:
    """Read the daemon's counts, from /proc and from its arena."""
    switches = cpu_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        switches += int(status["voluntary_ctxt_switches"])
        cpu_ns += int((task / "schedstat").read_text().split()[0])
    return Look(switches, cpu_ns, reader.daemon_counters[TURNS].value)


def fill(paths: InstancePaths, pending: int) -> None:
    """Register `pending` operations. They stay when their client ends."""
    low, high = HOURS_S
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    with td.connect(paths.instance, orphans="keep", timeout=10.0) as client:
        for start in range(0, pending, CHUNK):
            numbers = range(start, min(pending, start + CHUNK))
            timeouts = [low + (high - low) * number / pending for number in numbers]
            client.register_many(key_names("-", numbers), timeout=timeouts)
            client.flush()


def play(suite: Suite) -> None:
    args = suite.args
    most = max(args.pending)
    need_memory(most * BYTES_PER_OPERATION, f"{most:,} pending operations", "ask for fewer (--pending)")
    for pending in args.pending:
        suite.say(f"{pending:,} pending: filling")
        flags = [*flags_of(Workload(rate=1.0, count=1), pending), f"--idle-exit={round(args.seconds) + 3_600}s"]
        with private_daemon(flags) as paths, open_arena(paths) as reader:
            pid = reader.header().pid
            fill(paths, pending)
            time.sleep(REST_S)
            suite.say(f"{pending:,} pending: watching for {args.seconds:g} s")
            before = look(pid, reader)
            time.sleep(args.seconds)
            after = look(pid, reader)
            kept = reader.purgatory_counters[PENDING].value
            memory = psutil.Process(pid).memory_info()
        suite.check("pending", kept == pending, f"{kept:,} of {pending:,} operations were pending in the end")
        tens = args.seconds / 10
        suite.add(
            "idle",
            pending=pending,
            seconds=args.seconds,
            wakeups_in_10_s=(after.switches - before.switches) / tens,
            turns_in_10_s=(after.turns - before.turns) / tens,
            cpu_ms_in_10_s=(after.cpu_ns - before.cpu_ns) / 1e6 / tens,
            private_mib=(memory.rss - memory.shared) / (1 << 20),
            shared_mib=memory.shared / (1 << 20),
        )


def main() -> int:
    parser = Parser("idle", __doc__)
    sizes = listed(amount(0, 8_000_000, "operations"))
    parser.size("--pending", sizes, "0,1M", "100k", "operations, with commas between")
    parser.size("--seconds", real(0.5, 3_600, "seconds"), "20", "3", "seconds of watching")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
