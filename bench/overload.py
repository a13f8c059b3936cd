"""A daemon that is offered three times its capacity: what its other clients notice, and what it remembers.

    python bench/overload.py [--seconds 30] [--senders 3] [--flood commands] [--json FILE]

A daemon of its own; `senders` processes with frames encoded beforehand, which speak the wire themselves; and one client
of the usual kind beside them, whose round trips are measured all the time. In this order:

    unhindered   the senders together write their frames to a socket behind which they are dropped: what they can write
    sustained    one sender that keeps up (65,536 commands in flight at most): commands applied in a second
    before       the client alone
    during       the senders together ask six times that, by the clock. A sender whose socket is full leaves out what
                 was due ("held back"): that is where the pressure goes
    after        the senders stop; how long until the client is served as before
    full         another, small daemon: two clients fill its arena, a third one has operations pending

A transport that holds senders back makes it a matter of definition how much is offered. Here it is what was asked by
the clock, as far as the senders can write it (the lower of asked and unhindered); sustained is the most that was
applied, before or during the flood. So what was offered and not applied is what timerd and its transport held back or
refused, not what the senders failed to make. With --flood commands, three times what is sustained must be offered.

--flood says what the senders send: `commands` (1,024 in a frame: registrations, each with the event that completes it),
`single` (the same, one command in a frame), `largest` (frames of 4 MiB, full of values), `hellos` (each with 100,000
waits), `asks` (by clients that have 4,096 outcomes, acknowledge none and read no answer), `queries`, `snapshots`. For
the kinds without commands the rate asked is that of RATES (flood/frames.py).

Bounds, with their reasons, stand in flood/bounds.py; exit status 1 where one is broken. For a machine that does other
work, `--slack 3` makes those of time three times as wide, and asks for a third of what is to be offered beyond what is
sustained: the two are measured one after the other, and a stolen half second halves either.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import timerd as td
from common import Parser, Suite, amount, real, run_suite
from flood.bounds import bounds, memory_bound
from flood.customer import Customer, Round
from flood.frames import FLOODS, RATES, S, frame_size
from flood.full import fill
from flood.senders import PATIENCE_S, Counts, Phase, crew
from flood.serving import daemon
from flood.watcher import Watcher
from timerctl.load.report import percentiles

MS = 1_000_000
ASKED = 6.0  # times what one sender sustains
PENDING = 5_000
SLICE_NS, SLOWER_NS = 100 * MS, 10 * MS


def overload(flood: str, seconds: float, senders: int) -> dict[str, Any]:
    """Everything but the full arena."""
    short_s = min(max(seconds / 6, 0.4), 2.0)
    with daemon() as (paths, pid), crew(paths, flood, senders) as counts:
        counts.phase.value = Phase.UNHINDERED
        time.sleep(short_s / 2)
        began, first = time.monotonic(), counts.total("unhindered")
        time.sleep(short_s)
        unhindered = (counts.total("unhindered") - first) / (time.monotonic() - began)
        counts.phase.value = Phase.KEEP_UP
        time.sleep(short_s / 2)
        began, first = time.monotonic(), counts.total("applied")
        time.sleep(short_s)
        sustained = (counts.total("applied") - first) / (time.monotonic() - began)
        counts.phase.value = Phase.PAUSE
        customer, watcher = Customer(paths.instance), Watcher(paths, pid)
        at_rest = watcher.private()
        customer.start()
        watcher.start()
        before_ns = time.monotonic_ns()
        time.sleep(short_s)
        counts.rate.value = RATES.get(flood, ASKED * sustained) / senders
        start = {name: counts.total(name) for name in Counts.NAMES}
        client = td.connect(paths.instance, timeout=PATIENCE_S)
        spread = [0.2 + (seconds + 0.5) * row / PENDING for row in range(PENDING)]
        batch = client.register_many([b"pending"] * PENDING, timeout=spread)
        counts.phase.value = Phase.FLOOD
        during_ns = time.monotonic_ns()
        time.sleep(seconds)
        done = {name: counts.total(name) - start[name] for name in Counts.NAMES}
        counts.phase.value = Phase.END
        after_ns = time.monotonic_ns()
        time.sleep(1.0 + short_s)
        rounds = list(customer.rounds)  # those that follow share this process with the reckoning
        outcomes = batch.outcomes(PATIENCE_S)
        states = {outcome.state.name for outcome in outcomes}
        wrong = [] if states == {"EXPIRED"} else [f"pending operations ended as {states}"]
        wrong += [f"{client.stats().outcomes_unknown} outcomes twice"] if client.stats().outcomes_unknown else []
        client.close()
        watcher.close()
        wrong += customer.close() + watcher.wrong
    spans = {"before": (before_ns, during_ns), "during": (during_ns, after_ns), "after": (after_ns, after_ns + S)}
    asked = done["asked"] / seconds
    return {
        "flood": flood,
        "unhindered_rate": round(unhindered),
        "sustained_rate": round(max(sustained, done["applied"] / seconds)),
        "offered_rate": round(min(asked, unhindered)),
        **{f"{name}_rate": round(done[name] / seconds) for name in ("asked", "sent", "held_back", "applied")},
        "told_expected": done["told_expected"],
        "hellos": done["hellos"],
        "latency_us": {
            what: {
                when: percentiles(r.took_ns for r in customer.rounds if r.what == what and first_ns <= r.at_ns < end_ns)
                for when, (first_ns, end_ns) in spans.items()
            }
            for what in ("cancel", "fire_wait", "refusal")
        },
        "recovered_ms": recovered_ms(rounds, before_ns, during_ns, after_ns),
        "lateness_us": percentiles(outcome.lateness_ns for outcome in outcomes if outcome.state is td.State.EXPIRED),
        "stats_us": percentiles(watcher.stats_ns),
        "private_bytes": {
            "at_rest": at_rest,
            "max": max(size for _, size in watcher.memory),
            "bound": memory_bound(senders, frame_size(flood), at_rest),
        },
        "counters": watcher.counters,
        "rounds": len(customer.rounds),
        "wrong": wrong,
    }


def recovered_ms(rounds: Sequence[Round], before_ns: int, during_ns: int, after_ns: int) -> float:
    """When most round trips are as before for good, after the end. In tenths of a second, by their medians."""
    median = statistics.median(r.took_ns for r in rounds if before_ns <= r.at_ns < during_ns)
    slices: dict[int, list[int]] = {}
    for r in rounds:
        slices.setdefault((r.at_ns + r.took_ns - after_ns) // SLICE_NS, []).append(r.took_ns)
    slow = [at for at, took in slices.items() if at >= 0 and statistics.median(took) > 5 * median + SLOWER_NS]
    return max(slow, default=-1) * SLICE_NS / MS + SLICE_NS / MS


def rows(suite: Suite, run: dict[str, Any], full: dict[str, Any]) -> None:
    """The figures, as tables."""
    flood = run["flood"]
    rates = ("unhindered", "sustained", "asked", "offered", "sent", "held_back", "applied")
    names = (*(f"{rate}_rate" for rate in rates), "told_expected", "hellos")
    suite.add("flood", flood=flood, **{name: run[name] for name in names}, recovered_ms=run["recovered_ms"])
    for what, spans in run["latency_us"].items():
        for when, values in spans.items():
            suite.add("latency_us", flood=flood, what=what, when=when, **values)
    suite.add("latency_us", flood=flood, what="lateness of what was pending", when="during", **run["lateness_us"])
    suite.add("latency_us", flood=flood, what="timerctl stats", when="during", **run["stats_us"])
    suite.add("latency_us", flood=flood, what="refusal", when="arena full", **full["refusal_us"])
    suite.add("latency_us", flood=flood, what="lateness", when="arena full", **full["lateness_us"])
    memory = run["private_bytes"]
    suite.add("private_bytes", flood=flood, **{name: memory[name] for name in ("at_rest", "max", "bound")})


def play(suite: Suite) -> None:
    args = suite.args
    suite.say(f"a flood of {args.flood}, {args.seconds:g} s")
    run = overload(args.flood, args.seconds, args.senders)
    suite.say("a full arena")
    full = fill(min(args.seconds / 3, 3.0))
    rows(suite, run, full)
    bounds(suite, run, full, args.slack)


def main() -> int:
    parser = Parser("overload", __doc__)
    parser.size("--seconds", real(1, 3_600, "seconds"), "30", "3", "of the flood")
    parser.add_argument("--senders", type=amount(1, 64, "processes"), default=3, help="processes (3)")
    parser.add_argument("--flood", default="commands", choices=FLOODS, help="what they send (commands)")
    parser.add_argument(
        "--slack", type=real(1, 1_000, ""), default=1.0, help="bounds of time so many times as wide, see above (1)"
    )
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
