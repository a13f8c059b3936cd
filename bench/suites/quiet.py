"""The cost of one operation on a quiet machine: its latency, CPU and context switches, beside other transports.

    python bench/suites/quiet.py [--count 20k] [--rates 100,1k,10k] [--rounds 5] [--ways timerd,hops,...] [--short]
                          [--json FILE]

One process fires the events of operations that another process owns. Most machines are quiet most of the time: an event
comes now and then, and all threads sleep. Then the cost is wake-ups, and each further thread between fire() and
result() adds a wake-up.

*latency* is from the call of fire() to the return of the owner's result(), with 2 ms of rest before each fire(). *cost*
is counted in an open loop: --rates events a second. CPU and switch-ins are sums over all threads of all processes, the
server included; a switch-in is a context switch, voluntary or not. If a way has registrations, they are part of the
cost. *hops* are two bare hops of libzmq (hops.py), through a hub: a process that only passes frames on. *seqpacket* is
a hub without threads for the transport (seqpacket.py). *seqpacket core* is this hub with timerd's core behind it.
*ratios* are timerd's figures divided by the figures of the hops in the same run.

The contestants take turns. A figure is the median of the rounds, and the worst round is beside it.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from bench.lib.common import Parser, Row, Suite, amount, chosen, listed, real, run_suite
from bench.rivals.alternative.trial import answer, process
from bench.rivals.quiet_ways import VALUE, WAYS, Found

REST_S = 0.002
AHEAD_S = 0.5  # operations are registered this long before their event
AHEAD_LEAST = 100  # a reserve: an owner that is stopped for a moment still registers in time
PATIENCE_S = 60.0
FIGURES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
RATIOS = ("p50", "p99")


class Spent(NamedTuple):
    """CPU and context switches of processes since their start."""

    cpu_ns: int
    switches: int


def spent(pids: list[int]) -> Spent:
    """The sum over all threads of these processes."""
    cpu_ns = switches = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            switches += int(status["voluntary_ctxt_switches"]) + int(status["nonvoluntary_ctxt_switches"])
            cpu_ns += int((task / "schedstat").read_text().split()[0])
    return Spent(cpu_ns, switches)


def be_owner(name: str, directory: Path, count: int, ahead: int, connection: Connection) -> None:
    """The owner's process. It sends "ready", its pid and its results, and waits until it is asked to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready() -> None:
        connection.send("ready")
        connection.send(os.getpid())
        connection.recv()

    with WAYS[name].owner(directory) as take:
        connection.send(take(count, ahead, ready))
        wait_for_end(connection)


def be_firer(name: str, directory: Path, count: int, rate: int, connection: Connection) -> None:
    """The process that fires: `rate` events a second, or with rate 0 a rest before each event."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with WAYS[name].firer(directory) as fire:
        connection.send("ready")
        connection.send(os.getpid())
        connection.recv()
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(began + number / rate - time.monotonic(), 0.0) if rate else REST_S)
            fire(number, VALUE.pack(time.monotonic_ns(), number))
        wait_for_end(connection)


def wait_for_end(connection: Connection) -> None:
    """Wait until the bench closes the connection. Until then it can read this process's counts in /proc."""
    with suppress(EOFError, OSError):
        connection.recv()


def run(name: str, count: int, rate: int) -> tuple[Found, Spent]:
    """One run of one contestant. Raises Failed when one of its processes ends, or does not answer."""
    way, ahead = WAYS[name], max(round(rate * AHEAD_S), AHEAD_LEAST)
    seconds = count / rate if rate else count * 2 * REST_S
    with (
        way.serve() as (directory, servers),
        process(be_owner, name, directory, count, ahead) as owner,
        process(be_firer, name, directory, count, rate) as firer,
    ):
        end = time.monotonic() + seconds + PATIENCE_S
        pids = [*servers, answer(owner, end), answer(firer, end)]
        before = spent(pids)
        for connection in (owner, firer):
            connection.send("start")
        found: Found = answer(owner, end)
        after = spent(pids)
    return found, Spent(after.cpu_ns - before.cpu_ns, after.switches - before.switches)


def latencies(found: Found) -> Row:
    """The quantiles of a run, in us."""
    took = sorted(took_ns for _, took_ns in found)
    return {name: took[min(int(share * len(took)), len(took) - 1)] / 1e3 for name, share in FIGURES.items()}


def of_rounds(rounds: list[Row], unit: str) -> Row:
    """The median of each figure, and after the medians the worst of each figure."""
    medians = {f"{figure}{unit}": statistics.median(row[figure] for row in rounds) for figure in rounds[0]}
    return medians | {f"{figure}{unit}_worst": max(row[figure] for row in rounds) for figure in rounds[0]}


def play(suite: Suite) -> None:
    args = suite.args
    here = [name for name in args.ways if not WAYS[name].missing()]
    each = max(args.count // args.rounds, 1)
    latency: dict[str, list[Row]] = {}
    cost: dict[tuple[str, int], list[Row]] = {}

    def measure(name: str, count: int, rate: int) -> tuple[Found, Spent]:
        found, used = run(name, count, rate)
        right = [number for number, _ in found] == list(range(count))
        wrong = f"{name} at {rate:,}/s: an operation did not complete once, in order, with its value"
        suite.check("outcomes", right, "each operation completed once, with its value" if right else wrong)
        return found, used

    try:
        for at in range(args.rounds):
            for name in here:
                suite.say(f"{name}, round {at + 1} of {args.rounds}")
                latency.setdefault(name, []).append(latencies(measure(name, each, 0)[0]))
                for rate in args.rates:
                    count = max(round(rate * args.seconds), 1)
                    used = measure(name, count, rate)[1]
                    row = {"cpu_us": used.cpu_ns / 1e3 / count, "switch_ins": used.switches / count}
                    cost.setdefault((name, rate), []).append(row)
    finally:  # after an interruption, too: the rounds so far
        show(suite, latency, cost)


def show(suite: Suite, latency: dict[str, list[Row]], cost: dict[tuple[str, int], list[Row]]) -> None:
    """Add the rows of the tables."""
    for name in suite.args.ways:
        if missing := WAYS[name].missing():
            suite.add("latency", way=name, rounds=None, why_not=f"not installed: {missing}")
        elif latency.get(name):
            suite.add("latency", way=name, rounds=len(latency[name]), **of_rounds(latency[name], "_us"))
    for (name, rate), rounds in cost.items():
        suite.add("cost", way=name, rate=rate, rounds=len(rounds), **of_rounds(rounds, ""))
    for name in ("timerd", "timerd asyncio"):
        pairs = list(zip(latency.get(name, []), latency.get("hops", []), strict=False))
        if pairs:
            ratios = [{figure: own[figure] / bare[figure] for figure in RATIOS} for own, bare in pairs]
            suite.add("ratios", way=name, over="hops", **of_rounds(ratios, ""))


def main() -> int:
    parser = Parser("quiet", __doc__)
    rates = listed(amount(1, 20_000, "operations a second"))
    parser.size("--count", amount(10, 1_000_000, "operations"), "20k", "300", "operations of each contestant")
    parser.size("--rates", rates, "100,1k,10k", "100,1k", "operations a second, with commas between")
    parser.size("--seconds", real(0.1, 600, "seconds"), "2", "0.3", "seconds of each rate in each round")
    parser.size("--rounds", amount(1, 100, "rounds"), "5", "1", "rounds, each with all contestants")
    names = ",".join(WAYS)
    parser.size("--ways", listed(chosen(tuple(WAYS))), names, names, "contestants")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
