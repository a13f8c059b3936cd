"""The core beside its rivals: insert, cancel, complete by key, reschedule, expiry, worst tick, bytes for a timer.

    python bench/suites/rivals.py [--pending 10k,100k,1M,4M] [--repeat 5] [--work 20k] [--contestants timerd,heapq,...]
                           [--huge-pages] [--short] [--json FILE]

Each contestant is measured in a process of its own, in turns with the others. Beside the work there are --pending other
timers, with deadlines spread over a minute. timers.py describes each contestant and the measurement. In the table
`recent`, the timers that are cancelled, completed and rescheduled were inserted just before, as in a service with
requests. In the table `any` they are random timers, for which each step misses the cache.

timerd does more than its rivals, and its figures include this work. It alone keeps clients apart, logs each change so
that a SIGKILL harms nothing, and delivers every outcome to an owner. Its commands come encoded, and the figures include
the decoding. Bytes for a timer are bytes of the arena for timerd, bytes of records and tables for "wheel of 20" and
"bare", and the growth of the process for the others. "bare" is no rival but the floor: the core's records, lists and
hash without the core's promises (bench/rivals/bare.pyx).

With --huge-pages, timerd, "wheel of 20" and "bare" are also measured on pages of 2 MiB, in turns with the others.
`huge_share` is the share of their memory that is on such pages.

Figures are medians of the repeats. Only for the worst tick the lowest repeat counts, because any tick can be
interrupted. Beside a million pending timers only timerd, "wheel of 20" and "bare" have all repeats. Beside more than a
million each contestant has one run.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from typing import NamedTuple

import psutil

from bench.lib.common import MEMORY_SPARE, Parser, Suite, amount, chosen, listed, run_child, run_suite
from bench.lib.memory import measures_huge
from bench.rivals.timers import HUGE, SMALL, TIMERD
from timerctl.show.text import size

MANY = 1_000_000  # pending timers
RECENT = (
    "huge_share",
    "insert_ns",
    "cancel_ns",
    "complete_ns",
    "reschedule_ns",
    "expire_ns",
    "worst_tick_ms",
    "bytes_per_op",
)
ANY = ("cancel_any_ns", "complete_any_ns", "reschedule_any_ns")
ON_HUGE_PAGES = "_on_huge_pages"  # the end of a table's name
Figures = dict[str, float | None]


class Contestant(NamedTuple):
    """A contestant: its description, and its needs."""

    how: str
    module: str  # must be installed
    bytes_per_op: int  # memory for a timer at most, the measurement's memory included
    huge: bool = False  # whether its memory can be on huge pages


CONTESTANTS = {
    TIMERD: Contestant("compiled, in frames", "timerd", 900, True),
    "wheel of 20": Contestant("compiled, in bulk", "bench.rivals.wheel_of_20", 500, True),
    "bare": Contestant("compiled, in bulk: no promises", "bench.rivals.bare", 700, True),
    "heapq": Contestant("Python; heapq is compiled", "heapq", 600),
    "asyncio": Contestant("Python; heapq is compiled", "asyncio", 1_000),
    "uvloop": Contestant("compiled, called from Python", "uvloop", 1_400),
    "sortedcontainers": Contestant("Python", "sortedcontainers", 600),
}


def unfit(contestant: Contestant, pending: int) -> str | None:
    """Why this contestant cannot be measured here, and the remedy; None if it can."""
    if importlib.util.find_spec(contestant.module) is None:
        if contestant.module.startswith("bench."):
            return "not built: make build"
        return f"not installed: pip install {contestant.module}"
    need, available = pending * contestant.bytes_per_op, psutil.virtual_memory().available - MEMORY_SPARE
    if need > available:
        return f"not run: it needs {size(need)} of memory, and {size(max(available, 0))} are available"
    return None


def repeats_all(contestant: Contestant, pending: int) -> bool:
    """Whether all repeats are made beside `pending` timers. If not, only one is made, because each takes long."""
    return pending < MANY or (pending == MANY and contestant.huge)


def run_one(name: str, pending: int, seed: int, work: int, pages: str) -> Figures:
    """Measure one contestant once, in a process of its own."""
    done = run_child([sys.executable, "-m", "bench.rivals.timers", name, str(pending), str(seed), str(work), pages])
    if done.returncode != 0:
        raise RuntimeError(
            f"{name} with {pending:,} pending ended with status {done.returncode}: {done.stderr[-2_000:]}"
        )
    found: Figures = json.loads(done.stdout)
    return found


def of_runs(figure: str, runs: list[Figures]) -> float | None:
    """One figure over several runs; None if it was not measured."""
    values = [value for run in runs if (value := run.get(figure)) is not None]
    if not values:
        return None
    return min(values) if figure == "worst_tick_ms" else statistics.median(values)


def play_size(suite: Suite, pending: int) -> None:
    """Measure every contestant beside `pending` pending timers."""
    args = suite.args
    reasons = {name: unfit(CONTESTANTS[name], pending) for name in args.contestants}
    turns = [(name, "") for name in args.contestants]
    if measures_huge(suite):
        turns += [(name, ON_HUGE_PAGES) for name in args.contestants if CONTESTANTS[name].huge]
    runs: dict[tuple[str, str], list[Figures]] = {turn: [] for turn in turns}
    repeats = {name: args.repeat if repeats_all(CONTESTANTS[name], pending) else 1 for name in args.contestants}
    try:
        for repeat in range(args.repeat):
            for name, pages in turns:
                if reasons[name] is None and repeat < repeats[name]:
                    run = f"run {repeat + 1} of {repeats[name]}"
                    suite.say(f"{pending:,} pending, {name}{pages.replace('_', ' ')}, {run}")
                    given = HUGE if pages else SMALL
                    runs[name, pages].append(run_one(name, pending, suite.seed + repeat, args.work, given))
    finally:  # after an interruption, too: from the runs so far
        for name, pages in turns:
            about = {"pending": pending, "contestant": name, "how": reasons[name] or CONTESTANTS[name].how}
            found = runs[name, pages]
            if found or reasons[name]:
                suite.add("recent" + pages, **about, **{figure: of_runs(figure, found) for figure in RECENT})
                suite.add("any" + pages, **about, **{figure: of_runs(figure, found) for figure in ANY})


def play(suite: Suite) -> None:
    for pending in suite.args.pending:
        play_size(suite, pending)


def main() -> int:
    parser = Parser("rivals", __doc__)
    sizes = listed(amount(10_000, 8_000_000, "timers"))
    parser.size("--pending", sizes, "10k,100k,1M,4M", "10k,100k", "timers that stay, with commas between")
    parser.size("--repeat", amount(1, 100, "runs"), "5", "1", "runs of each")
    parser.size("--work", amount(100, 1_000_000, "timers"), "20k", "5k", "timers in a step; timerd always has 20k")
    names = ",".join(CONTESTANTS)
    parser.size("--contestants", listed(chosen(tuple(CONTESTANTS))), names, names, "contestants")
    parser.add_argument("--huge-pages", action="store_true", help="also measure some contestants on pages of 2 MiB")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
