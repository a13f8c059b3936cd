"""An experiment of Confluent's article about Kafka's timing wheels: Kafka's old purgatory beside timerd's core.

    python bench/suites/article.py [--rates 10k,20k,...] [--purge 100,1k,10k,never] [--requests 1M] [--seconds 3]
                            [--memory 200] [--full] [--short] [--json FILE]

The article is "Apache Kafka, Purgatory, and Hierarchical Timing Wheels". Fake requests of 100 bytes arrive at a rate,
as a Poisson process. They wait on the same three keys, with a timeout of 200 ms. Each is forced to complete after a
random time. This time is log-normal, with median and upper quartile (20, 60) ms in the low case and (200, 400) ms in
the high case. So in the low case 7.9 % of the requests expire, in the high case 50 %. Everything is in one process. The
loop is open: arrivals have an absolute schedule, and a request that is late is sent at once. A point has --requests
requests, or as many as arrive in --seconds, and ends at 1.25 times its planned time at the latest. With --full each
point has all --requests, 1M as in the article. Then a point of 10,000/s takes 100 s, and the suite an hour. The reached
rate counts up to the last registration.

Both designs are compiled from the same language, by the same compiler, with the same options. Their records have the
same sizes, and payloads are copied in the same way (old_purgatory.pyx, designs.py). Both have --memory MiB for records:
a request that does not fit is refused, and the point fails. The old design purges its lists when they together have
--purge entries, and its queue when the queue has --purge entries. It has three threads, as in Kafka. timerd's core has
one thread and none of the daemon's sockets, and gets whole frames. Each request's outcome is compared with the plan.

The article also plots the time of the JVM's garbage collections. Nothing here makes garbage for a collector: the
designs manage the memory of their records. Three figures stand for the collections (table "reclaiming"). The first is
the time of the old design's purges, which free settled requests that its lists and queue still hold. The second is the
most memory that a design had in records, divided by the most requests that were pending at a time. The third is the
time of Python's own collections while the requests ran.

A design keeps up with a rate if it reaches 99 % of the rate and refuses nothing. It saturates after the last rate that
it keeps up with. `right` is stricter. Of a thousand requests, at most one may expire although it should have completed
5 ms or more before its deadline. And all requests must have settled within a second after the last timeout. A rate that
is narrowly missed is tried once more, because any machine has other things to do. After two rates in a row that it did
not reach, a design is tried at no higher rate.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, NamedTuple

from bench.lib.common import Parser, Row, Suite, amount, listed, need_memory, real, run_suite
from bench.lib.quoted import QUOTED
from bench.rivals.designs import HIGH, LOW, Case, Point, Requests, S, Verdict, draw, judge, play_old, play_timerd

TIMERD = "timerd"
REACHED = 0.99
MISSED = 0.001
NARROWLY = 0.9
ATTEMPTS = 2
NOT_REACHED = 2  # rates in a row: after them a design is tried at no higher rate
MEMORY_PER_REQUEST = 1_500  # bytes for its plan, its command and its outcome


class Design(NamedTuple):
    """A contestant."""

    name: str
    play: Callable[[Requests], Point]


def designs(purges: list[int], budget: int) -> list[Design]:
    """The contestants: timerd's core, and the old purgatory at each purge interval."""
    found = [Design(TIMERD, lambda requests: play_timerd(requests, budget))]
    for interval in purges:
        name = f"old, purge every {interval:,}" if interval else "old, never purged"
        found.append(Design(name, lambda requests, interval=interval: play_old(requests, interval, budget)))  # type: ignore[misc]
    return found


def row_of(design: Design, rate: int, requests: Requests, point: Point, verdict: Verdict) -> Row:
    """A row of the table of points."""
    asked = len(requests.due_ns) / (requests.span_ns / S)  # the rate of the random arrivals, which is not quite `rate`
    reached = point.registered / point.seconds / asked
    accepted = point.registered - point.refused
    in_time = reached >= REACHED and not point.refused

    def late_ms(quantile: float) -> float | None:
        return verdict.late_ns[round(quantile * (len(verdict.late_ns) - 1))] / 1e6 if verdict.late_ns else None

    return {
        "design": design.name,
        "asked": rate,
        "reached": round(rate * reached),
        "share": reached,
        "requests": point.registered,
        "cpu_cores": point.cpu_seconds / (point.seconds + point.drained_seconds),
        "cpu_us_per_request": point.cpu_seconds / point.registered * 1e6,
        "memory_mib": point.memory_bytes / (1 << 20),
        "refused": point.refused,
        "expired": verdict.expired / max(accepted, 1),
        "planned": verdict.expired_planned / max(accepted, 1),
        "missed": verdict.missed,
        "unsettled": verdict.unsettled,
        "late_p50_ms": late_ms(0.5),
        "late_p99_ms": late_ms(0.99),
        "kept_up": in_time,
        "right": in_time and verdict.missed <= MISSED * accepted and not verdict.unsettled and not verdict.wrong,
    }


def saturation(rows: list[Row]) -> Row:
    """The last rates that a design kept up with, from the lowest on, with their CPU and memory."""
    kept = list(takewhile(lambda row: row["kept_up"], rows))
    right = list(takewhile(lambda row: row["right"], rows))
    return {
        "saturates_after": kept[-1]["asked"] if kept else None,
        "right_up_to": right[-1]["asked"] if right else None,
        "asked_up_to": rows[-1]["asked"],
        "cpu_us_per_request": kept[-1]["cpu_us_per_request"] if kept else None,
        "memory_mib": kept[-1]["memory_mib"] if kept else None,
        "measured": "here",
    }


class Collections:
    """How long Python's garbage collections took."""

    def __init__(self) -> None:
        self.took_ns = 0
        self._began_ns = 0

    def _note(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._began_ns = time.perf_counter_ns()
        else:
            self.took_ns += time.perf_counter_ns() - self._began_ns

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the collections that happen in the block."""
        gc.callbacks.append(self._note)
        try:
            yield
        finally:
            gc.callbacks.remove(self._note)


def pending_max(requests: Requests, point: Point) -> int:
    """The most requests that were pending at a time, from the times of their registrations and settlements."""
    steps = sorted(
        [(at, 1) for at in point.registered_ns if at] + [(at, -1) for at in point.settled_ns if at],
    )
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most


def reclaiming(requests: Requests, point: Point, collections: Collections) -> Row:
    """The figures that stand for the article's GC time."""
    pending = pending_max(requests, point)
    seconds = point.seconds + point.drained_seconds
    return {
        "purge_ms_per_second": point.work.get("purge_ns", 0) / 1e6 / seconds,
        "pending_max": pending,
        "bytes_per_pending": round(point.memory_bytes / max(pending, 1)),
        "python_gc_ms_per_second": collections.took_ns / 1e6 / seconds,
    }


def play_point(suite: Suite, case: Case, rate: int, design: Design, requests: Requests) -> Row:
    """Measure one design at one rate, and add a row to each table. The better of two attempts counts."""
    attempts: list[tuple[Row, Point, Row]] = []
    while not attempts or (len(attempts) < ATTEMPTS and NARROWLY <= attempts[0][0]["share"] < REACHED):
        suite.say(f"{case.name} case, {rate:,}/s, {design.name}{', again' * len(attempts)}")
        collections = Collections()
        with collections.counted():
            point = design.play(requests)
        verdict = judge(requests, point)
        says = "; ".join(verdict.wrong[:3]) or "no request settled twice, early, or other than planned"
        suite.check("outcomes", not verdict.wrong, says)
        reclaimed = reclaiming(requests, point, collections)
        attempts.append((row_of(design, rate, requests, point, verdict), point, reclaimed))
    best, point, reclaimed = max(attempts, key=lambda attempt: attempt[0]["share"])
    suite.add(f"points_{case.name}", **best)
    suite.add("reclaiming", case=case.name, design=design.name, asked=rate, **reclaimed)
    table = "wheel" if design.name == TIMERD else "reaper"
    suite.add(table, case=case.name, design=design.name, asked=rate, requests=best["requests"], **point.work)
    return best


def requests_of_point(args: argparse.Namespace, rate: int) -> int:
    """The number of requests of a point at this rate."""
    return int(args.requests if args.full else min(args.requests, round(rate * args.seconds)))


def play_case(suite: Suite, case: Case) -> None:
    """One case: at each rate every design, until the design has missed two rates in a row."""
    args = suite.args
    contestants = designs(args.purge, args.memory << 20)
    missed = dict.fromkeys(contestants, 0)
    try:
        for rate in sorted(args.rates):
            requests = draw(case, rate, requests_of_point(args, rate), suite.seed)
            for design in contestants:
                if missed[design] < NOT_REACHED:
                    row = play_point(suite, case, rate, design, requests)
                    missed[design] = 0 if row["kept_up"] else missed[design] + 1
    finally:  # after an interruption, too: from the rows so far
        rows = suite.tables.get(f"points_{case.name}", [])
        for design in contestants:
            if mine := [row for row in rows if row["design"] == design.name]:
                suite.add("saturation", case=case.name, design=design.name, **saturation(mine))
        for name, (rate_quoted, source) in QUOTED[case.name].items():
            suite.add("saturation", case=case.name, design=name, saturates_after=rate_quoted, measured=source)


def play(suite: Suite) -> None:
    args = suite.args
    most = requests_of_point(args, max(args.rates))
    need = most * MEMORY_PER_REQUEST + (args.memory << 20)
    need_memory(need, f"{most:,} requests and {args.memory} MiB of records", "ask for fewer (--requests, --memory)")
    suite.tables["saturation"] = []  # the table with the results comes first
    for case in (LOW, HIGH):
        play_case(suite, case)
        mine = [row for row in suite.tables[f"points_{case.name}"] if row["design"] == TIMERD and row["kept_up"]]
        suite.check(
            f"timerd_{case.name}",
            all(row["right"] for row in mine),
            "at each rate that timerd kept up with, every outcome was right and in time",
        )


def interval(text: str) -> int:
    """Type of an argument: entries between two purges, or never."""
    return 0 if text == "never" else amount(1, 10_000_000, "entries, or never")(text)


def main() -> int:
    parser = Parser("article", __doc__)
    rates = listed(amount(1_000, 5_000_000, "requests a second"))
    parser.size(
        "--rates",
        rates,
        "10k,20k,30k,40k,60k,80k,100k,200k,300k,400k,600k,1M,1.5M",
        "20k,80k",
        "requests a second, with commas between",
    )
    parser.size("--purge", listed(interval), "100,1k,10k,never", "1k,never", "purge intervals of the old purgatory")
    parser.size("--requests", amount(1_000, 10_000_000, "requests"), "1M", "40k", "requests of a point at most")
    parser.size("--seconds", real(0.05, 1_000, "seconds"), "3", "0.8", "planned length of a point at most")
    parser.add_argument("--full", action="store_true", help="all --requests at every point, however long that takes")
    parser.size("--memory", amount(16, 1 << 20, "MiB"), "200", "200", "MiB of records for each design")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
