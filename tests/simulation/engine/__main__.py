"""Simulates one seed, or seed after seed, as engine/__init__.py describes.

python tests/support/run.py simulation.engine --seed 7 --steps 3000 --trace
python tests/support/run.py simulation.engine --seed 100 --soak
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter

from .measured import Measure, lines_executed
from .run import START_NS, STEPS, Failure, Simulation, simulate

MEASURED_SEEDS = 40  # measuring makes a seed slow, and coverage changes little after this number of seeds


class Soak:
    """The results of many seeds."""

    def __init__(self) -> None:
        self.seeds = self.failures = self.simulated_ns = 0
        self.counts: Counter[str] = Counter()
        self.measure = Measure()

    def run(self, seed: int, steps: int) -> None:
        """Run one seed. A failure is printed, with the command that repeats it."""
        done: list[Simulation] = []
        try:
            if self.seeds < MEASURED_SEEDS:
                self.measure.of(lambda: done.append(simulate(seed, steps)))
            else:
                done.append(simulate(seed, steps))
        except Failure as failure:
            self.failures += 1
            print(failure.short, flush=True)
            return
        self.seeds += 1
        for simulation in done:
            self.counts += simulation.faults + simulation.books.outcomes
            self.simulated_ns += simulation.clock.now_ns() - START_NS

    def report(self) -> None:
        for what, count in sorted(self.counts.items()):
            print(f"{count:10,} {what}")
        print(lines_executed(self.measure.percent()))
        hours = self.simulated_ns / 3.6e12
        print(f"{self.seeds} seeds hold, {self.failures} do not; {hours:,.0f} hours were simulated")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"events before the faults end (default: {STEPS})")
    parser.add_argument("--trace", action="store_true", help="print what happened, even if all is well")
    parser.add_argument(
        "--soak", type=float, nargs="?", const=float("inf"), help="seed after seed, for these seconds or until Ctrl-C"
    )
    arguments = parser.parse_args()
    if arguments.soak is None:
        try:
            simulation = simulate(arguments.seed, arguments.steps)
        except Failure as failure:
            print(failure if arguments.trace else failure.short)
            return 1
        if arguments.trace:
            print(*simulation.books.trace, sep="\n")
        print(f"seed {arguments.seed} holds")
        return 0
    soak = Soak()
    end = time.monotonic() + arguments.soak
    try:
        for seed in itertools.count(arguments.seed):
            if time.monotonic() >= end:
                break
            soak.run(seed, arguments.steps)
    except KeyboardInterrupt:
        pass
    soak.report()
    return 1 if soak.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
