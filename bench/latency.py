"""How late an owner is told: completions at 100k/s, expiries at 100k/s with ticks of 1 ms, and at 10k/s with 100 us.

    python bench/latency.py [--seconds 5] [--repeat 3] [--short] [--json FILE]

Runs of `timerctl load` with a daemon of its own, three of each kind with seeds of their own: of each figure the worst
counts (*runs* has each). Completion: from the call of fire() in one process to the callback of the owner in another,
low case. Expiry: from the deadline to the owner's callback, nearly all expire; of it, *settled* is what had passed when
the daemon settled the operation: at least until the tick is over.

*hops*, before each run: 4,000 frames a second between processes that do nothing else, over the sockets that timerd uses
(hops.py): two of them are the way of a completion, one that of an expiry. No timer service over this transport is
faster on this machine in that minute. *stolen* is what the host took of the processors' time during a run.
"""

from __future__ import annotations

import sys
from typing import Any

from common import Parser, Row, Suite, amount, chosen, listed, need_memory, real, run_suite
from hops import hops
from loads import APIS, measured, memory_of, run_load, why_not, workload_of, worst
from timerctl.load.report import percentiles

HOPS = {"one hop": 1, "two hops": 2}
HOPS_S = 1.0
RUNS = ("completion", "expiry", "fine")
LATENCIES = {
    "completion": "completion_latency_us",
    "expiry": "expiry_lateness_us",
    "expiry, settled": "expiry_settled_lateness_us",
}


def play(suite: Suite) -> None:
    seconds, high, low = suite.args.seconds, suite.args.rate, suite.args.fine_rate
    need_memory(memory_of(high, seconds, 0), f"{high:,}/s for {seconds:g} s", "ask for less (--rate, --seconds)")
    runs = {"completion": ("low", high, "1ms"), "expiry": ("expire", high, "1ms"), "fine": ("expire", low, "100us")}
    for case, rate, tick in map(runs.__getitem__, suite.args.runs):
        for api in suite.args.apis:
            found: dict[str, list[Row]] = {}
            for run in range(suite.args.repeat):
                for what, count in HOPS.items():
                    took_us = percentiles(hops(count, min(seconds, HOPS_S)))
                    suite.add("hops", what=what, before=f"{case}, {api}, run {run + 1}", **in_ms(took_us))
                suite.say(f"{case}: {rate:,}/s, {api}, a tick of {tick}, run {run + 1} of {suite.args.repeat}")
                document = run_load(workload_of(rate, seconds, case, suite.seed + run), api, flags=[f"--tick={tick}"])
                held = not document["violations"]
                says = "; ".join(document["examples"]) if not held else "none lost, twice or early"
                suite.check("outcomes", held, says)
                for what, name in LATENCIES.items():
                    if (what == "completion") == (case == "low"):
                        row = row_of(document, name)
                        found.setdefault(what, []).append(row)
                        suite.add("runs", what=what, rate=rate, tick=tick, api=api, run=run + 1, **row)
            for what, runs_of_it in found.items():
                suite.add(
                    "latency", what=what, rate=rate, tick=tick, api=api, runs=len(runs_of_it), **worst(runs_of_it)
                )


def row_of(document: dict[str, Any], name: str) -> Row:
    """A latency of one run."""
    return in_ms(document[name]) | {
        "stolen_percent": document["stolen_percent"],
        "sustained": document["sustained"],
        "why_not": why_not(document),
    }


def in_ms(latency: dict[str, float]) -> Row:
    """A latency for a table."""
    figures = {f"{figure}_ms": measured(latency, figure) for figure in ("p50", "p99", "p999", "max")}
    return {"count": round(latency["count"]), **figures}


def main() -> int:
    parser = Parser("latency", __doc__)
    rates = amount(100, 1_000_000, "operations a second")
    parser.size("--seconds", real(0.2, 600, "seconds"), "5", "1", "of arrivals in each run")
    parser.size("--repeat", amount(1, 100, "runs"), "3", "1", "runs of each kind")
    parser.size("--rate", rates, "100k", "20k", "operations a second, with ticks of 1 ms")
    parser.size("--fine-rate", rates, "10k", "2k", "operations a second, with ticks of 100 us")
    parser.size("--runs", listed(chosen(RUNS)), ",".join(RUNS), ",".join(RUNS), "what is measured")
    parser.size("--apis", listed(chosen(tuple(APIS))), "per-op,bulk", "per-op", "how it is registered and fired")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
