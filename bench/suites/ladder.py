"""The ladder: timerd end to end, at one rate after the other, until two rates are not sustained.

    python bench/suites/ladder.py [--rates 10k,30k,...] [--others ...] [--seconds 3] [--keys 3,1] [--goal-runs 3]
                            [--short] [--json FILE]

Each point is a run of `timerctl load` with a daemon of its own. One process registers, another process fires, and every
outcome is compared with the plan. An operation has three keys, like the requests of the suite `article`, or one key.
There is a series for each number of keys, each API (per-op, or bulk with a call each millisecond) and each case (low:
7.9 % expire; high: half expire). The series with three keys are run once more beside a million operations that are due
in two to three hours. The series with three keys in the low case, without this million, have all rates, and are run
once more over `unix`, with the few rates that all other series have. *goals* are runs of 10 s at the rates to reach.
Each rate has three runs, with seeds of their own, and the worst of each figure counts (*goal runs* has each run). Goals
for the transport `unix` run over `unix`, all others over ZeroMQ: see the column *transport*.

*sustained* means: at least 99 % of the rate was reached, all operations had settled within 1 s of the end, at most 0.1
% of them ended other than planned, no outcome was wrong, and the harness itself was punctual. *busy* is CPU time
divided by time. A process that is 100 % busy limits the rate. If the sum over all processes is near 100 % for each
core, the machine limits it.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, NamedTuple

from bench.lib.common import Parser, Suite, amount, chosen, listed, need_memory, real, run_suite
from bench.lib.loads import APIS, figures, gives_up, memory_of, run_load, workload_of, worst
from bench.lib.targets import GOALS, Goal
from timerd_wire.transports import Transport

CASES = ("low", "high")
OTHERS_MOST = 1_000_000  # operations at a point of the other series


class Series(NamedTuple):
    """A series of points: the columns that all its rows share."""

    keys: int
    api: str
    case: str
    pending: int
    transport: Transport = "zeromq"


def series_of(args: Namespace) -> Iterator[tuple[Series, bool]]:
    """The series in order, and whether each has all rates. Only the main series also runs beside pending operations."""
    for keys in args.keys:
        for pending in args.pending if keys == args.keys[0] else args.pending[:1]:
            for case in args.cases:
                full = (keys, pending, case) == (args.keys[0], args.pending[0], args.cases[0])
                yield from ((Series(keys, api, case, pending), full) for api in args.apis)
    for api in args.apis:
        yield Series(args.keys[0], api, args.cases[0], args.pending[0], "unix"), False


def play(suite: Suite) -> None:
    args = suite.args
    most, most_pending, most_keys = max(args.rates + args.others), max(args.pending), max(args.keys)
    need_memory(
        memory_of(most, args.seconds, most_pending, most_keys),
        f"{most:,}/s for {args.seconds:g} s beside {most_pending:,} pending operations",
        "ask for less (--rates, --seconds, --pending)",
    )
    goals = [goal for goal in GOALS if goal.keys in args.keys and goal.api in args.apis and goal.case in args.cases]
    if goals and args.goal_runs:
        largest = max(goals, key=lambda goal: memory_of(goal.rate, args.goal_seconds, 0, goal.keys))
        need_memory(
            memory_of(largest.rate, args.goal_seconds, 0, largest.keys),
            f"{largest.rate:,}/s for {args.goal_seconds:g} s",
            "ask for less (--goal-seconds)",
        )
    for series, full in series_of(args):
        play_series(suite, series, full)
    for goal in goals:
        play_goal(suite, goal)


def play_series(suite: Suite, series: Series, full: bool) -> None:
    """Play one rate after the other. With `full` play all rates, each for the whole time."""
    args, rows = suite.args, []
    for rate in sorted(args.rates if full else args.others):
        suite.say(f"{in_words(series)}, {series.pending:,} beside: {rate:,}/s")
        seconds = args.seconds if full else min(args.seconds, OTHERS_MOST / rate)
        workload = workload_of(rate, seconds, series.case, suite.seed, series.keys)
        document = run_load(workload, series.api, series.pending, transport=series.transport)
        rows.append(suite.add("points", **series._asdict(), rate=rate, **figures(document)))
        judge(suite, document)
        if gives_up(rows, rate):
            break


def play_goal(suite: Suite, goal: Goal) -> None:
    """Play the runs at a rate to reach, and add the worst of each figure."""
    args, runs = suite.args, []
    for run in range(args.goal_runs):
        what = f"{in_words(goal)}: {goal.rate:,}/s for {args.goal_seconds:g} s"
        suite.say(f"{what}, run {run + 1} of {args.goal_runs}")
        workload = workload_of(goal.rate, args.goal_seconds, goal.case, suite.seed + run, goal.keys)
        document = run_load(workload, goal.api, transport=goal.transport)
        runs.append(figures(document))
        suite.add("goal_runs", **goal._asdict(), run=run + 1, **runs[-1])
        judge(suite, document)
    if runs:
        suite.add("goals", **goal._asdict(), runs=len(runs), **worst(runs))


def in_words(what: Series | Goal) -> str:
    return f"{what.keys} {'key' if what.keys == 1 else 'keys'}, {what.api}, {what.case} case, {what.transport}"


def judge(suite: Suite, document: dict[str, Any]) -> None:
    """Check that every outcome was right."""
    held = not document["violations"]
    says = "no outcome was lost, delivered twice or early" if held else "; ".join(document["examples"])
    suite.check("outcomes", held, says)


def main() -> int:
    parser = Parser("ladder", __doc__)
    rates = listed(amount(100, 5_000_000, "operations a second"))
    parser.size("--rates", rates, "10k,30k,100k,200k,300k,500k,700k,1M", "10k,100k", "operations a second, with commas")
    parser.size("--others", rates, "100k,300k,1M", "100k", "operations a second, in all other series")
    parser.size("--seconds", real(0.2, 600, "seconds"), "3", "1", "seconds of arrivals at each point")
    parser.size("--keys", listed(amount(1, 64, "keys")), "3,1", "3,1", "keys of each operation, the main series first")
    parser.size("--goal-runs", amount(0, 100, "runs"), "3", "0", "runs of each rate to reach")
    parser.size("--goal-seconds", real(0.2, 600, "seconds"), "10", "1", "seconds of arrivals in each of these runs")
    parser.size("--pending", listed(amount(0, 8_000_000, "operations")), "0,1M", "0", "pending far-future operations")
    parser.size("--cases", listed(chosen(CASES)), "low,high", "low", "cases of the workload")
    parser.size("--apis", listed(chosen(tuple(APIS))), "per-op,bulk", "per-op,bulk", "APIs that register and fire")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
