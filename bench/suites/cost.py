"""The CPU of an operation: a model of a few terms, fitted to some runs, and its errors in other runs.

    python bench/suites/cost.py [--seconds 2] [--rounds 3] [--transports zeromq,unix] [--short] [--json FILE]

    CPU of an operation = wake-ups x wake-up + frames x frame + operation + further keys x key + call + second / rate

The terms are fitted to *runs*, by least squares of the relative error; no term is below 0. *terms* has the CPU of a
wake-up of a thread, of a frame, of an operation and of each key after the first. *call* is the CPU that register() and
fire() take beyond register_many() and fire_many(). *second* is the CPU that the three processes of a load test take
each second, whatever the rate of requests is. *predictions* are runs to which no term was fitted. Their frames and
wake-ups are counted and given to the model; *off* is the model's error. CPU is the sum over all processes: registrar,
firer and daemon. A figure is the median of the rounds.
"""

from __future__ import annotations

import resource
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from bench.lib.common import Parser, Row, Suite, amount, chosen, listed, real, run_suite
from bench.lib.loads import load_on, workload_of
from timerctl.instance import open_arena
from timerctl.load.own_daemon import flags_of, private_daemon
from timerd_shm.declare.counters import DAEMON_COUNTERS, index_of
from timerd_shm.read.reader import ArenaReader
from timerd_wire.transports import TRANSPORTS, Transport

FRAMES = [index_of(DAEMON_COUNTERS, name) for name in ("frames_in", "frames_out")]
CASE = "low"
SWEEPS = 20_000  # of the fit; after these the terms move by less than a thousandth


class Load(NamedTuple):
    """A run of the load test."""

    api: str
    keys: int
    rate: int


FITTED = (
    *(Load("per-op", 1, rate) for rate in (3_000, 30_000, 100_000, 200_000)),
    *(Load("bulk", 1, rate) for rate in (20_000, 100_000, 400_000)),
    *(Load("bulk", 3, rate) for rate in (20_000, 300_000)),
)
PREDICTED = (Load("per-op", 1, 10_000), Load("per-op", 3, 200_000), Load("bulk", 3, 500_000))


class Spent(NamedTuple):
    """CPU, frames and wake-ups of a run, for each of its operations."""

    cpu_us: float
    frames: float
    wakeups: float


class Terms(NamedTuple):
    """The CPU of each term of the model."""

    wakeup_us: float
    frame_us: float
    operation_us: float
    key_us: float
    call_us: float
    second_ms: float

    def predict(self, load: Load, spent: Spent) -> float:
        """The CPU of an operation in a run of this load, in us, predicted from the run's frames and wake-ups."""
        return sum(term * times for term, times in zip(self, times_of(load, spent), strict=True))


def times_of(load: Load, spent: Spent) -> tuple[float, ...]:
    """How many times each term counts for an operation of the run."""
    return spent.wakeups, spent.frames, 1.0, load.keys - 1.0, float(load.api == "per-op"), 1e3 / load.rate


def fit(runs: Sequence[tuple[Load, Spent]]) -> Terms:
    """The terms, none below 0, with the least squares of the relative errors.

    One term after the other is moved to its best value. That is slow, but needs no library in the tests.
    """
    rows = [[times / spent.cpu_us for times in times_of(load, spent)] for load, spent in runs]
    columns = list(zip(*rows, strict=True))
    squares = [sum(each * each for each in column) for column in columns]
    terms = [0.0] * len(columns)
    left = [1.0] * len(rows)
    for _ in range(SWEEPS):
        for at, column in enumerate(columns):
            step = sum(map(float.__mul__, column, left)) / squares[at]
            moved = max(0.0, terms[at] + step) - terms[at]
            if moved:
                terms[at] += moved
                left = [each - moved * cell for each, cell in zip(left, column, strict=True)]
    return Terms(*terms)


def run(load: Load, transport: Transport, seconds: float, seed: int) -> Spent:
    """One run with a daemon of its own. The wake-ups of all processes count, the load test's included."""
    workload = workload_of(load.rate, seconds, CASE, seed, load.keys)
    with private_daemon(flags_of(workload, 0)) as paths, open_arena(paths) as reader:
        pid = reader.header().pid
        frames, wakeups = frames_of(reader), wakeups_of(pid)
        document = load_on(paths, workload, load.api, transport=transport)
        frames, wakeups = frames_of(reader) - frames, wakeups_of(pid) - wakeups
    return Spent(document["cpu_us_per_request"], frames / workload.count, wakeups / workload.count)


def frames_of(reader: ArenaReader) -> int:
    """The frames that the daemon has received and sent."""
    return sum(reader.daemon_counters[at].value for at in FRAMES)


def wakeups_of(pid: int) -> int:
    """How often threads were woken: the main thread of process `pid` (the conductor), and all threads of the children
    that this process has waited for.
    """
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    daemon = next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
    return daemon + resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw


def play(suite: Suite) -> None:
    args = suite.args
    runs: dict[tuple[Load, Transport], list[Spent]] = defaultdict(list)
    for at in range(args.rounds):
        for transport, load in product(args.transports, (*FITTED, *PREDICTED)):
            suite.say(f"{load.api}, {load.keys} keys, {load.rate:,}/s, {transport}, round {at + 1} of {args.rounds}")
            runs[load, transport].append(run(load, transport, args.seconds, suite.seed + at))
    for transport in args.transports:
        of_load = {
            load: Spent(*map(statistics.median, zip(*runs[load, transport], strict=True)))
            for load in (*FITTED, *PREDICTED)
        }
        terms = fit([(load, of_load[load]) for load in FITTED])
        suite.add("terms", transport=transport, rounds=args.rounds, **terms._asdict())
        for load, spent in of_load.items():
            predicted = terms.predict(load, spent)
            row: Row = {
                **{"transport": transport, **load._asdict(), **spent._asdict(), "predicted_us": predicted},
                "off_percent": 100 * abs(predicted - spent.cpu_us) / spent.cpu_us,
            }
            suite.add("predictions" if load in PREDICTED else "runs", **row)


def main() -> int:
    parser = Parser("cost", __doc__)
    parser.size("--seconds", real(0.2, 600, "seconds"), "2", "0.5", "seconds of each run")
    parser.size("--rounds", amount(1, 100, "rounds"), "3", "1", "runs of each load")
    names = ",".join(TRANSPORTS)
    parser.size("--transports", listed(chosen(TRANSPORTS)), names, names, "transports")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
