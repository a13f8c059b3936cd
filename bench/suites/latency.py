"""How late outcomes reach their owner: completions at 100k/s and 10k/s, expiries at 100k/s and 10k/s.

    python bench/suites/latency.py [--seconds 5] [--repeat 3] [--short] [--json FILE]

These are runs of `timerctl load`, each with a daemon of its own. Each kind has three runs, with seeds of their own, and
the worst of each figure counts (*runs* has each run). A completion is measured from the call of fire() in one process
to the owner's callback in another process, in the low case. An expiry is measured from the deadline to the owner's
callback, in a case in which nearly all operations expire: at ticks of 1 ms for 100k/s, and of 100 us for 10k/s. Both
transports have such runs, in turns. For an expiry, *settled* is the first part: the time from the deadline until the
daemon has settled the operation, which it does at the end of the tick or later.

*hops* is measured before each run: 4,000 frames a second between processes that do nothing else, over sockets of libzmq
at both ends (hops.py). A completion takes two hops, an expiry one. No timer service over libzmq can be faster on this
machine in that minute. *p99 over hops* is the p99 of a run divided by the p99 of its hops. *stolen* is the share
of the processors' time that the host took during a run, as the host reports it. *pauses* is measured once: how often,
and for how long, a process that only reads the clock was stopped (pauses.py).
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

from bench.lib.common import Parser, Row, Suite, amount, chosen, listed, need_memory, real, run_suite
from bench.lib.hops import hops
from bench.lib.loads import APIS, measured, memory_of, run_load, why_not, workload_of, worst
from bench.lib.pauses import pauses
from timerctl.load.report import percentiles
from timerd_wire.transports import TRANSPORTS, Transport

HOPS = {"one hop": 1, "two hops": 2}
HOPS_S = 1.0
RUNS = ("completion", "tail", "expiry", "fine")
LATENCIES = {
    "completion": "completion_latency_us",
    "expiry": "expiry_lateness_us",
    "expiry, settled": "expiry_settled_lateness_us",
}


def play(suite: Suite) -> None:
    seconds, high, low = suite.args.seconds, suite.args.rate, suite.args.fine_rate
    need_memory(memory_of(high, seconds, 0), f"{high:,}/s for {seconds:g} s", "ask for less (--rate, --seconds)")
    runs = {
        "completion": ("low", high, "1ms"),
        "tail": ("low", low, "1ms"),
        "expiry": ("expire", high, "1ms"),
        "fine": ("expire", low, "100us"),
    }
    suite.say("pauses of the machine")
    for row in pauses(seconds):
        suite.add("pauses", **row)
    for case, rate, tick in map(runs.__getitem__, suite.args.runs):
        for api in suite.args.apis:
            found: dict[tuple[str, Transport], list[Row]] = {}
            for run, transport in product(range(suite.args.repeat), TRANSPORTS):
                bare: dict[int, Row] = {}
                for what, count in HOPS.items():
                    bare[count] = in_ms(percentiles(hops(count, min(seconds, HOPS_S))))
                    before = f"{case}, {rate:,}/s, {api}, {transport}, run {run + 1}"
                    suite.add("hops", what=what, before=before, **bare[count])
                which = f"{api}, {transport}, a tick of {tick}"
                suite.say(f"{case}: {rate:,}/s, {which}, run {run + 1} of {suite.args.repeat}")
                workload = workload_of(rate, seconds, case, suite.seed + run)
                document = run_load(workload, api, flags=[f"--tick={tick}"], transport=transport)
                held = not document["violations"]
                says = "; ".join(document["examples"]) if not held else "no outcome was lost, delivered twice or early"
                suite.check("outcomes", held, says)
                for what, name in LATENCIES.items():
                    if (what == "completion") == (case == "low"):
                        row = row_of(document, name, bare[2 if case == "low" else 1])
                        found.setdefault((what, transport), []).append(row)
                        about = {"what": what, "rate": rate, "tick": tick, "api": api, "transport": transport}
                        suite.add("runs", **about, run=run + 1, **row)
            for (what, transport), runs_of_it in found.items():
                about = {"what": what, "rate": rate, "tick": tick, "api": api, "transport": transport}
                suite.add("latency", **about, runs=len(runs_of_it), **worst(runs_of_it))


def row_of(document: dict[str, Any], name: str, bare: Row) -> Row:
    """The row of one latency of one run. `bare` is the latency of hops alone, measured before the run."""
    own = in_ms(document[name])
    return own | {
        "p99_over_hops": own["p99_ms"] / bare["p99_ms"] if own["p99_ms"] and bare["p99_ms"] else None,
        "stolen_percent": document["stolen_percent"],
        "sustained": document["sustained"],
        "why_not": why_not(document),
    }


def in_ms(latency: dict[str, float]) -> Row:
    """A latency as columns of a table, in ms."""
    figures = {f"{figure}_ms": measured(latency, figure) for figure in ("p50", "p99", "p999", "max")}
    return {"count": round(latency["count"]), **figures}


def main() -> int:
    parser = Parser("latency", __doc__)
    rates = amount(100, 1_000_000, "operations a second")
    parser.size("--seconds", real(0.2, 600, "seconds"), "5", "1", "seconds of arrivals in each run")
    parser.size("--repeat", amount(1, 100, "runs"), "3", "1", "runs of each kind")
    parser.size("--rate", rates, "100k", "20k", "operations a second, with ticks of 1 ms")
    parser.size("--fine-rate", rates, "10k", "2k", "operations a second, with ticks of 100 us, and for the tail")
    parser.size("--runs", listed(chosen(RUNS)), ",".join(RUNS), ",".join(RUNS), "what is measured")
    parser.size("--apis", listed(chosen(tuple(APIS))), "per-op,bulk", "per-op", "APIs that register and fire")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
