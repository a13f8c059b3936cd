"""The core beside its rivals: insert, cancel, complete by key, reschedule, expiry, worst tick, bytes for a timer.

    python bench/rivals.py [--pending 10k,100k,1M,4M] [--repeat 3] [--work 20k] [--contestants timerd,heapq,...]
                           [--short] [--json FILE]

Each contestant is measured in a process of its own, all of them in turns, beside so many pending timers with deadlines
spread over a minute; bench/timers.py tells what each is, and how it is measured. Table `recent`: cancel, complete and
reschedule of those inserted just before, as requests do; table `any`: of any, where each step is a miss of the cache.

What the figures leave out is in timerd's disfavour: it alone keeps clients apart, logs each change so that a SIGKILL
harms nothing, and tells every outcome to an owner; its commands come encoded, and are decoded within the figure. Its
bytes are those of the arena; of the wheel of 20 those of its records and table; else the growth of the process.
"bare" is no rival but the floor: the core's records and lists without what it promises (bench/bare.pyx).

Medians of the repeats; of the worst tick the least, because any tick can be interrupted. From a million on one repeat.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import psutil

from common import MEMORY_SPARE, Parser, Suite, amount, chosen, listed, run_child, run_suite
from timerd_client.timerctl.text import size
from timers import TIMERD

ONE_REPEAT = 1_000_000
CHILD = Path(__file__).with_name("timers.py")
RECENT = ("insert_ns", "cancel_ns", "complete_ns", "reschedule_ns", "expire_ns", "worst_tick_ms", "bytes_per_op")
ANY = ("cancel_any_ns", "complete_any_ns", "reschedule_any_ns")
Figures = dict[str, float | None]


class Contestant(NamedTuple):
    """Who is measured."""

    how: str
    module: str  # what must be installed
    bytes_per_op: int  # of memory that it needs at most, with what the measurement holds


CONTESTANTS = {
    TIMERD: Contestant("compiled, in frames", "timerd", 900),
    "wheel of 20": Contestant("compiled, in bulk", "wheel_of_20", 500),
    "bare": Contestant("compiled, in bulk: no promises", "bare", 700),
    "heapq": Contestant("Python; heapq is compiled", "heapq", 600),
    "asyncio": Contestant("Python; heapq is compiled", "asyncio", 1_000),
    "uvloop": Contestant("compiled, called from Python", "uvloop", 1_400),
    "sortedcontainers": Contestant("Python", "sortedcontainers", 600),
}


def unfit(contestant: Contestant, pending: int) -> str | None:
    """Why it can not be measured here, and what to do."""
    if importlib.util.find_spec(contestant.module) is None:
        if contestant.module in ("wheel_of_20", "bare"):
            return "not built: make build"
        return f"not installed: pip install {contestant.module}"
    need, available = pending * contestant.bytes_per_op, psutil.virtual_memory().available - MEMORY_SPARE
    if need > available:
        return f"not run: it needs {size(need)} of memory, and {size(max(available, 0))} are available"
    return None


def run_one(name: str, pending: int, seed: int, work: int) -> Figures:
    """Measure one contestant once, in a process of its own."""
    done = run_child([sys.executable, str(CHILD), name, str(pending), str(seed), str(work)])
    if done.returncode != 0:
        raise RuntimeError(
            f"{name} with {pending:,} pending ended with status {done.returncode}: {done.stderr[-2_000:]}"
        )
    found: Figures = json.loads(done.stdout)
    return found


def of_runs(figure: str, runs: list[Figures]) -> float | None:
    """One figure of some runs; None if it was not measured."""
    values = [value for run in runs if (value := run.get(figure)) is not None]
    if not values:
        return None
    return min(values) if figure == "worst_tick_ms" else statistics.median(values)


def play_size(suite: Suite, pending: int) -> None:
    """Every contestant beside so many pending timers."""
    args = suite.args
    reasons = {name: unfit(CONTESTANTS[name], pending) for name in args.contestants}
    runs: dict[str, list[Figures]] = {name: [] for name in args.contestants}
    repeats = args.repeat if pending < ONE_REPEAT else 1
    try:
        for repeat in range(repeats):
            for name in args.contestants:
                if reasons[name] is None:
                    suite.say(f"{pending:,} pending, {name}, run {repeat + 1} of {repeats}")
                    runs[name].append(run_one(name, pending, suite.seed + repeat, args.work))
    finally:  # also of what there was when it was interrupted
        for name in args.contestants:
            about = {"pending": pending, "contestant": name, "how": reasons[name] or CONTESTANTS[name].how}
            if runs[name] or reasons[name]:
                suite.add("recent", **about, **{figure: of_runs(figure, runs[name]) for figure in RECENT})
                suite.add("any", **about, **{figure: of_runs(figure, runs[name]) for figure in ANY})


def play(suite: Suite) -> None:
    for pending in suite.args.pending:
        play_size(suite, pending)


def main() -> int:
    parser = Parser("rivals", __doc__)
    sizes = listed(amount(10_000, 8_000_000, "timers"))
    parser.size("--pending", sizes, "10k,100k,1M,4M", "10k,100k", "timers that stay, with commas between")
    parser.size("--repeat", amount(1, 100, "runs"), "3", "1", "runs of each")
    parser.size("--work", amount(100, 1_000_000, "timers"), "20k", "5k", "timers of a step, but timerd's: 20k")
    names = ",".join(CONTESTANTS)
    parser.size("--contestants", listed(chosen(tuple(CONTESTANTS))), names, names, "who takes part")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
