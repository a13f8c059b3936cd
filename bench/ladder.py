"""The ladder: timerd end to end, at one rate after the other, until two are not sustained.

    python bench/ladder.py [--rates 10k,30k,...] [--others ...] [--seconds 3] [--goal-runs 3] [--short] [--json FILE]

Each point is a run of `timerctl load` with a daemon of its own. One process registers, another one fires, and every
outcome is compared with the plan. The series are: the per-op API and the bulk API (a call each millisecond), the low
case (7.9 % expire) and the high case (half expire), alone and beside a million operations that are due in two to three
hours. Only the low case alone has all rates. *goals* are runs of 10 s at the rates to reach. Each rate has three runs,
with seeds of their own, and the worst of each figure counts (*goal runs* has each run).

*sustained* means: at least 99 % of the rate was reached, all had settled within 1 s of the end, at most 0.1 % ended
other than planned, and the harness itself was punctual. *busy* is CPU time over time. A process at 100 % is the limit.
When the sum is near the cores of the machine, the machine is the limit.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

from common import Parser, Suite, amount, chosen, listed, need_memory, real, run_suite
from loads import APIS, figures, gives_up, memory_of, run_load, workload_of, worst

CASES = ("low", "high")
GOALS = (
    ("per-op", "low", 300_000),
    ("per-op", "high", 300_000),
    ("bulk", "low", 1_000_000),
    ("per-op", "low", 500_000),  # more than timerd has to reach
)
OTHERS_MOST = 1_000_000  # operations at a point of the other series


def play(suite: Suite) -> None:
    args = suite.args
    most, most_pending = max(args.rates + args.others), max(args.pending)
    need_memory(
        memory_of(most, args.seconds, most_pending),
        f"{most:,}/s for {args.seconds:g} s beside {most_pending:,} pending operations",
        "ask for less (--rates, --seconds, --pending)",
    )
    goals = [(api, case, rate) for api, case, rate in GOALS if api in args.apis and case in args.cases]
    if goals and args.goal_runs:
        most = max(rate for _, _, rate in goals)
        need_memory(
            memory_of(most, args.goal_seconds, 0),
            f"{most:,}/s for {args.goal_seconds:g} s",
            "ask for less (--goal-seconds)",
        )
    for pending, case, api in product(args.pending, args.cases, args.apis):
        first = (pending, case) == (args.pending[0], args.cases[0])
        rows = []
        for rate in sorted(args.rates if first else args.others):
            suite.say(f"{api}, {case} case, {pending:,} beside: {rate:,}/s")
            seconds = args.seconds if first else min(args.seconds, OTHERS_MOST / rate)
            document = run_load(workload_of(rate, seconds, case, suite.seed), api, pending)
            row = suite.add("points", api=api, case=case, pending=pending, rate=rate, **figures(document))
            judge(suite, document)
            rows.append(row)
            if gives_up(rows, rate):
                break
    for api, case, rate in goals:
        runs = []
        for run in range(args.goal_runs):
            suite.say(f"{api}, {case} case: {rate:,}/s for {args.goal_seconds:g} s, run {run + 1} of {args.goal_runs}")
            document = run_load(workload_of(rate, args.goal_seconds, case, suite.seed + run), api)
            runs.append(figures(document))
            suite.add("goal_runs", api=api, case=case, rate=rate, run=run + 1, **runs[-1])
            judge(suite, document)
        if runs:
            suite.add("goals", api=api, case=case, rate=rate, runs=len(runs), **worst(runs))


def judge(suite: Suite, document: dict[str, Any]) -> None:
    """Check that every outcome was right."""
    held = not document["violations"]
    says = "none lost, delivered twice or early" if held else "; ".join(document["examples"])
    suite.check("outcomes", held, says)


def main() -> int:
    parser = Parser("ladder", __doc__)
    rates = listed(amount(100, 5_000_000, "operations a second"))
    parser.size("--rates", rates, "10k,30k,100k,200k,300k,600k,1M", "10k,100k", "operations a second, with commas")
    parser.size("--others", rates, "100k,300k,1M", "100k", "operations a second, in all other series")
    parser.size("--seconds", real(0.2, 600, "seconds"), "3", "1", "of arrivals at each point")
    parser.size("--goal-runs", amount(0, 100, "runs"), "3", "0", "of each rate to reach")
    parser.size("--goal-seconds", real(0.2, 600, "seconds"), "10", "1", "of arrivals in each of these runs")
    parser.size("--pending", listed(amount(0, 8_000_000, "operations")), "0,1M", "0", "far-future operations beside it")
    parser.size("--cases", listed(chosen(CASES)), "low,high", "low", "cases of the workload")
    parser.size("--apis", listed(chosen(tuple(APIS))), "per-op,bulk", "per-op,bulk", "APIs that register and fire")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
