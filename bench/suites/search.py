"""Searches for the mixture of commands that makes others wait longest: three hostile processes beside three witnesses.

    python bench/suites/search.py [--seconds 3600] [--each 2] [--seed N] [--json FILE]

A mixture gives each of three processes some commands, which the process repeats (attack/attackers/mixtures.py). The
*lateness* of a mixture is how long the witnesses of the gate wait beside it, as a share of the gate's bounds: 0.4 means
that the worst of member, newcomer and call has 0.4 of its bound at p99.

A climb begins with the worst of DRAWS new mixtures, and then changes it a little, step by step. A change is kept if the
lateness grows. The median of three runs counts here, because one run may have been late by chance. After STALE changes
without growth the next climb begins. At the end the worst mixture of each climb has five further runs. Before each of
these the attack goes to another daemon. That shows the *floor*: how long the witnesses wait only because the attacker's
processes take their processors.

The suite writes each worst mixture as JSON, which from_rows() in attack/attackers/mixtures.py reads.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from typing import NamedTuple

from bench.attack.attackers import Attack
from bench.attack.attackers.mixtures import Mix, Mixture, changed, drawn
from bench.attack.gate import GROWN_MB_MAX, TURN_CPU_MS_MAX, Run, stage
from bench.attack.witnesses import WITNESSES
from bench.lib.common import Parser, Suite, real, run_suite

HOUR_S, SHORT_S = 3_600.0, 60.0
EACH_S = 2.0
DRAWS = 12
STALE = 25
AGAIN = 2  # further runs of a mixture whose first run is later than the worst mixture so far
LAST_RUNS = 5


class Found(NamedTuple):
    """A mixture, and its lateness."""

    mixture: Mixture
    lateness: float


def lateness(run: Run) -> float:
    """The worst p99 of the witnesses, as a share of the gate's bound. It is 10 if a witness was not served."""
    if run.unavailable or not run.rounds:
        return 10.0
    return max(float(getattr(run, f"{name}_p99_ms")) / kind.p99_ms_max for name, kind in WITNESSES.items())


class Search:
    """A search, until its time is over."""

    def __init__(self, suite: Suite, seconds: float, each_s: float) -> None:
        self.suite = suite
        self.rng = random.Random(suite.seed)
        self.runs = 0
        self._until_s = suite.seconds + seconds
        self._each_s = each_s
        self.broken: list[str] = []  # bounds of the daemon that a run has broken

    @property
    def is_over(self) -> bool:
        return self.suite.seconds >= self._until_s

    def run(self, mixture: Mixture) -> Run:
        """Play a mixture once."""
        self.runs += 1
        with stage("mixture", Attack(Mix(mixture))) as made:
            return self._noted(mixture, made.attacked(self._each_s, self.suite.seed))

    def run_beside_floor(self, mixture: Mixture) -> tuple[Run, Run]:
        """Play a mixture once at another daemon, which gives the floor, and then once as `run()` does."""
        self.runs += 1
        with stage("mixture", Attack(Mix(mixture), is_crowd=True)) as made:
            floor = made.at_peace(self._each_s, self.suite.seed)
            return floor, self._noted(mixture, made.attacked(self._each_s, self.suite.seed))

    def _noted(self, mixture: Mixture, run: Run) -> Run:
        if not run.alive or run.wrong:
            self.broken.append(f"{'; '.join(run.wrong) or 'the daemon has ended'}: {as_text(mixture)}")
        if run.turn_cpu_max_ms > TURN_CPU_MS_MAX or run.grown_mb > GROWN_MB_MAX:
            figures = f"{run.turn_cpu_max_ms:.1f} ms of CPU in a turn, {run.grown_mb:.1f} MB more"
            self.broken.append(f"{figures}: {as_text(mixture)}")
        return run

    def look(self, mixture: Mixture, least: float) -> Found:
        """The lateness of a mixture in one run. If it is above `least`: the median of it and of AGAIN further runs."""
        seen = [lateness(self.run(mixture))]
        if seen[0] > least:
            seen += [lateness(self.run(mixture)) for _ in range(AGAIN)]
        return Found(mixture, statistics.median(seen))

    def climb(self) -> Found:
        """Climb from a new mixture, until STALE changes in a row brought no growth, or the time is over."""
        worst = Found((), 0.0)
        for _ in range(DRAWS):
            if not self.is_over:
                worst = max(worst, self.look(drawn(self.rng), worst.lateness), key=lambda found: found.lateness)
        stale = 0
        while stale < STALE and not self.is_over:
            found = self.look(changed(worst.mixture, self.rng), worst.lateness)
            stale += 1
            if found.lateness > worst.lateness:
                worst, stale = found, 0
                self.suite.say(f"{self.runs} runs; lateness {worst.lateness:.2f}: {as_text(worst.mixture)}")
        return worst


def as_text(mixture: Mixture) -> str:
    """A mixture as JSON."""
    return json.dumps(mixture)


def play(suite: Suite) -> None:
    seconds = suite.args.seconds or (SHORT_S if suite.short else HOUR_S)
    search = Search(suite, seconds, suite.args.each)
    climbs = []
    while not search.is_over:
        climbs.append(search.climb())
        suite.say(f"climb {len(climbs)}: lateness {climbs[-1].lateness:.2f}")
    for number, found in enumerate(sorted(climbs, key=lambda each: -each.lateness)):
        floor, attacked = zip(*(search.run_beside_floor(found.mixture) for _ in range(LAST_RUNS)), strict=True)
        last = statistics.median(lateness(run) for run in attacked)
        suite.add(
            "mixtures",
            climb=number + 1,
            lateness=round(last, 3),
            floor=round(statistics.median(lateness(run) for run in floor), 3),
            **{
                f"{name}_p99_ms": statistics.median(getattr(run, f"{name}_p99_ms") for run in attacked)
                for name in WITNESSES
            },
            turn_cpu_max_ms=max(run.turn_cpu_max_ms for run in attacked),
            grown_mb=max(run.grown_mb for run in attacked),
            mixture=as_text(found.mixture),
        )
        suite.check("lateness", last <= 1.0, f"{last:.2f} of the gate's bounds: {as_text(found.mixture)}")
    suite.add("runs", runs=search.runs, climbs=len(climbs))
    suite.check("daemon", not search.broken, search.broken[0] if search.broken else "it kept the gate's own bounds")


def main() -> int:
    parser = Parser("search", __doc__)
    parser.add_argument(
        "--seconds",
        type=real(1, 86_400, "seconds"),
        metavar="N",
        help=f"length of the search, without the last runs ({HOUR_S:g}; short: {SHORT_S:g})",
    )
    parser.add_argument(
        "--each", type=real(0.5, 60, "seconds"), default=EACH_S, metavar="N", help=f"seconds of each run ({EACH_S:g})"
    )
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
