"""Fresh seeds of the simulation: conductor, core, clients and injected faults in one process, on a manual clock.

    python bench/suites/soak.py [--seeds N] [--first N] [--json FILE]

Each seed decides a whole run: which faults happen, and when. If a seed fails, the suite shows the command that repeats
it. --seed is not used: the first seed is --first, and the others follow it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial

import bench.lib.helpers  # noqa: F401

# isort: split
from bench.lib.common import Parser, Row, Suite, amount, run_suite
from bench.lib.parallel import each

FAILURES_SHOWN = 20
SAY_EVERY = 100  # seeds


def one(seed: int, steps: int) -> Row:
    """Run one seed to its end."""
    from simulation.engine.run import START_NS, Failure, simulate

    try:
        simulation = simulate(seed, steps)
    except Failure as failure:
        return {"failure": failure.short}
    return {
        "failure": "",
        "steps": simulation.step,
        "simulated_ns": simulation.clock.now_ns() - START_NS,
        "faults": dict(simulation.faults),
        "outcomes": dict(simulation.books.outcomes),
    }


def play(suite: Suite) -> None:
    args = suite.args
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    seeds = range(args.first, args.first + args.seeds)
    try:
        for done, (seed, row) in enumerate(each(seeds, partial(one, steps=args.steps), args.processes), 1):
            if row["failure"]:
                failed.append((seed, row["failure"]))
                suite.say(f"seed {seed}: {row['failure']}")
            else:
                totals.update(seeds=1, steps=row["steps"], simulated_ns=row["simulated_ns"])
                faults.update(row["faults"])
                outcomes.update(row["outcomes"])
            if done % SAY_EVERY == 0:
                suite.say(f"{done} of {len(seeds)} seeds, {len(failed)} failed")
    finally:
        suite.add(
            "seeds",
            first=args.first,
            held=totals["seeds"],
            failed=len(failed),
            steps=totals["steps"],
            simulated_hours=totals["simulated_ns"] / 3.6e12,
            processes=args.processes,
        )
        for name, counts in (("faults", faults), ("outcomes", outcomes)):
            for what, count in sorted(counts.items()):
                suite.add(name, what=what, count=count)
        for seed, text in failed[:FAILURES_SHOWN]:
            suite.add("failures", seed=seed, failure=text)
        says = f"{totals['seeds']:,} seeds hold (the first is {args.first}), {len(failed)} do not"
        suite.check("every_seed_holds", not failed, says)


if __name__ == "__main__":
    parser = Parser("soak", __doc__)
    parser.size("--seeds", amount(1, 1_000_000), "10k", "20", "seeds")
    parser.add_argument("--first", type=amount(0, 1 << 32), default=1_000_000, metavar="N", help="first seed (1000000)")
    parser.add_argument("--steps", type=amount(1, 1_000_000), default=3_000, metavar="N", help="steps of a seed (3000)")
    parser.add_argument(
        "--processes",
        type=amount(1, 256),
        default=os.cpu_count() or 1,
        metavar="N",
        help="seeds at a time (one per core)",
    )
    sys.exit(run_suite(parser, play))
