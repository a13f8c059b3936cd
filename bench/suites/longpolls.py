"""Long polls over four gevent workers of gunicorn: timerd beside the same application on Redis.

    python bench/suites/longpolls.py [--waiters 1k] [--rate 500] [--seconds 10] [--ways timerd,...]
                               [--short] [--json FILE]

--waiters readers wait, each for a key of its own, and poll again when they have an answer. Posts come at planned times,
to random keys and any worker. The latency of a post counts from its planned time to the reader's answer. One client
process makes all requests in an open loop: a slow answer delays no later post. With "timerd" a reader's next poll names
the mark of its last value. "redis blpop" keeps a list for each key. "redis pubsub" subscribes in each poll, so it loses
messages between two polls. Redis logs its writes to a file. Memory is the growth of the workers and of the server when
all readers wait; a shared page counts in equal parts for its processes (PSS).

In the table `restart` the server is ended in the middle of the posts, by SIGTERM, and started again. A message is lost
if its post was answered with success and no reader ever gets it. The ways are run in turns, all in one run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.lib.common import Parser, Suite, amount, chosen, listed, real, run_suite
from bench.lib.longpoll.load import Load, Result
from bench.lib.longpoll.servers import Server, ended, gunicorn, memory
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

WAYS = ("timerd", "redis blpop", "redis pubsub")
BEGIN_S = 2.0  # for polls to begin
WARM_S = 1.0  # of posts that are not counted: each worker and each connection is used once


@contextmanager
def own_directory() -> Iterator[Path]:
    """A runtime directory, which child processes know, too."""
    before = os.environ.get(RUNTIME_DIR_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="td-polls-") as directory:
        os.environ[RUNTIME_DIR_VARIABLE] = directory
        try:
            yield Path(directory)
        finally:
            subprocess.run([sys.executable, "-m", "timerctl", "destroy", "--yes"], capture_output=True, check=False)
            del os.environ[RUNTIME_DIR_VARIABLE]
            if before is not None:
                os.environ[RUNTIME_DIR_VARIABLE] = before


def unfit(way: str) -> str:
    """The command that installs a missing program; empty if the way can be run."""
    if way == "timerd":
        return ""
    if not shutil.which("redis-server"):
        return "apt-get install redis-server"
    return "" if find_spec("redis") else "pip install 'timerd[bench]'"


def percentile(values: list[float], share: float) -> float | None:
    """A percentile in ms; None if there are no values."""
    ordered = sorted(values)
    return None if not ordered else ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3


def play_way(suite: Suite, way: str) -> None:
    """Make both measurements of one way."""
    args = suite.args
    with own_directory() as directory:
        server = Server(way, directory)
        try:
            with gunicorn(way, directory, args.waiters) as (workers, port):
                load = Load(port, args.waiters, suite.seed)
                try:
                    load.rest(BEGIN_S)
                    before = memory(workers.pid, server.process.pid)
                    load.open()
                    load.rest(BEGIN_S + args.waiters / 1_000)
                    grown = memory(workers.pid, server.process.pid) - before
                    load.settle(load.run(args.rate, WARM_S))
                    result = load.run(args.rate, args.seconds)
                    load.settle(result)
                    add_polls(suite, way, result, grown)
                    first = load.run(args.rate, args.seconds / 2)
                    server.restart()
                    second = load.run(args.rate, args.seconds / 2)
                    load.settle(first, second)
                    add_restart(suite, way, first, second)
                finally:
                    load.close()
        finally:
            ended(server.process)


def add_polls(suite: Suite, way: str, result: Result, grown: int) -> None:
    args = suite.args
    suite.add(
        "polls",
        way=way,
        waiters=args.waiters,
        rate=args.rate,
        polls_per_second=round(len(result.latencies) / args.seconds, 1),
        p50_ms=percentile(result.latencies, 0.5),
        p99_ms=percentile(result.latencies, 0.99),
        lost=result.lost,
        twice=result.twice,
        memory_kb_per_waiter=round(grown / args.waiters / 1e3, 1),
    )
    if way == "timerd":
        suite.check("nothing_lost", result.lost == 0 and result.twice == 0, "timerd loses no message, and repeats none")


def add_restart(suite: Suite, way: str, first: Result, second: Result) -> None:
    """Add the posts of both halves. A message of the first half may be received in the second."""
    accepted = first.accepted | second.accepted
    received = set(first.received) | set(second.received)
    twice = first.twice + second.twice + len(set(first.received) & set(second.received))
    suite.add(
        "restart",
        way=way,
        posted=first.planned + second.planned,
        accepted=len(accepted),
        lost=len(accepted - received),
        twice=twice,
    )
    if way == "timerd":
        suite.check("restart", not accepted - received, "timerd loses no accepted message when it is restarted")


def play(suite: Suite) -> None:
    for way in suite.args.ways:
        if missing := unfit(way):
            suite.say(f"{way} is left out: {missing}")
            continue
        suite.say(f"{way}: {suite.args.waiters:,} readers, {suite.args.rate:,} posts a second")
        play_way(suite, way)


def main() -> int:
    parser = Parser("longpolls", __doc__)
    parser.size("--waiters", amount(1, 10_000, "readers"), "1k", "100", "readers that wait")
    parser.size("--rate", amount(1, 10_000, "posts a second"), "500", "100", "posts a second")
    parser.size("--seconds", real(0.2, 600, "seconds"), "10", "2", "seconds of posts in each measurement")
    names = ",".join(WAYS)
    parser.size("--ways", listed(chosen(WAYS)), names, names, "contestants")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
