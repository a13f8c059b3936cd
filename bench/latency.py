"""How late an owner is told: completions at 100k/s, expiries at 100k/s with ticks of 1 ms, and at 10k/s with 100 us.

    python bench/latency.py [--seconds 5] [--short] [--json FILE]

Runs of `timerctl load` with a daemon of its own. Completion: from the call of fire() in one process to the callback of
the owner in another, low case. Expiry: from the deadline to the owner's callback, nearly all expire; of
it, *settled* is what had passed when the daemon settled the operation: at least until the tick is over.
"""

from __future__ import annotations

import sys

from common import Parser, Suite, amount, chosen, listed, need_memory, real, run_suite
from loads import APIS, measured, memory_of, run_load, why_not, workload_of

LATENCIES = {
    "completion": "completion_latency_us",
    "expiry": "expiry_lateness_us",
    "expiry, settled": "expiry_settled_lateness_us",
}


def play(suite: Suite) -> None:
    seconds, high, low = suite.args.seconds, suite.args.rate, suite.args.fine_rate
    need_memory(memory_of(high, seconds, 0), f"{high:,}/s for {seconds:g} s", "ask for less (--rate, --seconds)")
    for case, rate, tick in (("low", high, "1ms"), ("expire", high, "1ms"), ("expire", low, "100us")):
        for api in suite.args.apis:
            suite.say(f"{case}: {rate:,}/s, {api}, a tick of {tick}")
            document = run_load(workload_of(rate, seconds, case, suite.seed), api, flags=[f"--tick={tick}"])
            held = not document["violations"]
            suite.check("outcomes", held, "; ".join(document["examples"]) if not held else "none lost, twice or early")
            for what, name in LATENCIES.items():
                if (what == "completion") == (case == "low"):
                    latency = document[name]
                    suite.add(
                        "latency",
                        what=what,
                        rate=rate,
                        tick=tick,
                        api=api,
                        count=round(latency["count"]),
                        **{f"{figure}_ms": measured(latency, figure) for figure in ("p50", "p99", "p999", "max")},
                        sustained=document["sustained"],
                        why_not=why_not(document),
                    )


def main() -> int:
    parser = Parser("latency", __doc__)
    rates = amount(100, 1_000_000, "operations a second")
    parser.size("--seconds", real(0.2, 600, "seconds"), "5", "1", "of arrivals in each run")
    parser.size("--rate", rates, "100k", "20k", "operations a second, with ticks of 1 ms")
    parser.size("--fine-rate", rates, "10k", "2k", "operations a second, with ticks of 100 us")
    parser.size("--apis", listed(chosen(tuple(APIS))), "per-op,bulk", "per-op", "how it is registered and fired")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
