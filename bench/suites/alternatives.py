"""Ways to build a purgatory without timerd, beside timerd: the same workload, the same judge, rate after rate.

    python bench/suites/alternatives.py [--rates 5k,20k,40k,80k,120k] [--seconds 2] [--ways redis,...]
                                  [--short] [--json FILE]

Each run has one process that registers and one that fires, and a server between them if the way needs one. Both make
their calls at the load test's times; above 10k/s each sends a batch every millisecond, as with timerd's bulk API.
timerd is in the same table. The load test's judge judges all ways, so *sustained* means the same as in the load test.
*unheard* are operations that did not complete although their event was handled before their deadline: the event
overtook its registration, and the way forgets an event that no operation waits for yet. *lost* operations have no
outcome; *early* operations expired before their deadline. CPU is that of all processes. For a way that is not
installed, the row says how to install it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.lib.common import Failed, Parser, Row, Suite, amount, chosen, listed, need_memory, real, run_suite
from bench.lib.loads import figures, gives_up, memory_of, workload_of
from bench.rivals.alternative.book import Way
from bench.rivals.alternative.trial import WAYS, run_way, unheard
from timerctl.load.report import document
from timerctl.load.trial import Options, Result, run_load
from timerd_client.workload import Workload
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import InstancePaths

SHORT_NAMES = ("redis", "redis-py", "blpop", "asyncio", "uvloop", "threads")
NAMES = ("timerd", "timerd-bulk", *SHORT_NAMES)
BY_NAME: dict[str, Way] = dict(zip(SHORT_NAMES, WAYS, strict=True))
SHOWN = ("reached_rate", "sustained", "misjudged_percent", "completion_p50_ms", "completion_p99_ms")
REST = ("expiry_p50_ms", "expiry_p99_ms", "cpu_us", "stolen_percent", "why_not")


def row_of(result: Result) -> Row:
    """The table row of a run."""
    found = document(result)
    shown, judged = figures(found), result.judgement
    overtaken = unheard(result.workload, result.registered[0], result.fired[0])
    share = 100 * overtaken / max(judged.registered, 1)
    counts = {"unheard": overtaken, "unheard_percent": share, "lost": judged.lost, "early": judged.early}
    return {name: shown[name] for name in SHOWN} | counts | {name: shown[name] for name in REST}


def no_instance() -> InstancePaths:
    raise AssertionError("each run has a daemon of its own")


def own_run(bulk: bool) -> Callable[[Workload], Result]:
    """A function that runs timerd itself, with a daemon of its own."""

    def run(workload: Workload) -> Result:
        result = run_load(workload, Options(bulk=bulk, own=True), no_instance)
        if result.partial == "interrupted":
            raise KeyboardInterrupt
        return result

    return run


def play(suite: Suite) -> None:
    args = suite.args
    most = max(args.rates)
    need_memory(memory_of(most, args.seconds, 0), f"{most:,}/s for {args.seconds:g} s", "ask for less (--rates)")
    for name in args.ways:
        if name.startswith("timerd"):
            way = "timerd, bulk API" if name == "timerd-bulk" else "timerd, per-op API"
            run = own_run(bulk=name == "timerd-bulk")
        else:
            way = BY_NAME[name].name
            if missing := BY_NAME[name].missing():
                suite.add("runs", way=way, rate=None, why_not=f"not installed: {missing}")
                continue
            run = runner(BY_NAME[name])
        rows: list[Row] = []
        for rate in sorted(args.rates):
            suite.say(f"{way}: {rate:,}/s")
            try:
                result = run(workload_of(rate, args.seconds, "low", suite.seed))
            except (Failed, TimerdError) as error:
                suite.add("runs", way=way, rate=rate, sustained=False, why_not=str(error))
                break
            row = suite.add("runs", way=way, rate=rate, **row_of(result))
            rows.append(row)
            if name.startswith("timerd"):
                wrong = result.judgement.violations + row["unheard"]
                says = f"{wrong} of timerd's outcomes were lost, delivered twice, early, or missed their event"
                suite.check("outcomes", not wrong, says)
            if gives_up(rows, rate):
                break


def runner(way: Way) -> Callable[[Workload], Result]:
    return lambda workload: run_way(way, workload)


def main() -> int:
    parser = Parser("alternatives", __doc__)
    rates = listed(amount(100, 1_000_000, "operations a second"))
    parser.size("--rates", rates, "5k,20k,40k,80k,120k", "10k", "operations a second, with commas")
    parser.size("--seconds", real(0.2, 600, "seconds"), "2", "0.5", "seconds of arrivals in each run")
    parser.size("--ways", listed(chosen(NAMES)), ",".join(NAMES), "timerd,redis,asyncio", "the ways that are run")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
