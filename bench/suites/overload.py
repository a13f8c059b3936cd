"""A daemon that is offered three times its capacity: the effect on other clients, and the daemon's memory.

    python bench/suites/overload.py [--seconds 30] [--senders 3] [--flood commands] [--json FILE]
    python bench/suites/overload.py --flood ATTACK [--seconds 5] [--runs 5]
    python bench/suites/overload.py --gate [--seconds 5] [--runs 5] [--resume]

The suite starts a daemon, and `senders` processes whose frames are encoded beforehand. Beside the senders runs one
ordinary client, whose round trips are measured all the time. The phases, in this order:

* *unhindered*: the senders together write their frames to a socket that drops them. So this is the rate that they can
  write.
* *sustained*: one sender sends as fast as the daemon applies, with 65,536 commands in flight at most.
* *before*: the client alone.
* *during*: the senders together ask for six times the sustained rate, by the clock. A sender whose socket is full skips
  the commands that are due (*held back*).
* *after*: the senders stop. The time until the client is served as before is measured.
* *full*: a daemon with a small arena. Two clients fill the arena, and a third client has operations pending.

The transport holds senders back, so *offered* needs a definition. It is the lower of two rates: *asked* (the commands
that were due by the clock) and *unhindered* (the commands that the senders can write). *sustained* is the highest rate
that was applied, before or during the flood. So the senders could have written the commands that were offered and not
applied: timerd and its transport held them back or refused them. With --flood commands at least three times the
sustained rate must be offered.

--flood names what the senders send: `commands` (1,024 in a frame: registrations, each with the event that completes
it), `single` (the same commands, one in a frame), `largest` (frames of 4 MiB, full of values), `hellos` (each with
100,000 waits), `asks` (from clients that have 4,096 outcomes, acknowledge none and read no answer), `queries`,
`snapshots`. For the kinds without commands, RATES in attack/frames.py has the rate asked for.

--flood also takes an attack, such as `subscriptions-stranger` (attack/attackers has all): a hostile process, or
several, beside three witnesses, whose requests are measured: a member, a newcomer, and a worker of a group. Each daemon
is first at peace and then attacked, for as many seconds. With `locks` the daemon is also killed and started again, as
by its systemd unit. `--gate` plays all attacks, which takes an hour and a half. After Ctrl-C, `--gate --resume` goes
on. attack/gate.py has the gate's limits, and judges the runs. The results of `--gate` go to results/gate.json, unless
--json says otherwise.

The bounds are in attack/bounds.py, with their reasons. The exit status is 1 when a bound is broken. For a busy machine,
`--slack 3` makes the bounds of time three times as wide, and a flood of commands must then offer at least 1.7 times the
sustained rate, not 3 times. (The two rates are measured one after the other. If the host does other work for half a
second meanwhile, one of the two may come out at half.)
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import timerd as td
from bench.attack.attackers import ATTACKS
from bench.attack.bounds import bounds, memory_bound
from bench.attack.customer import Customer, Round
from bench.attack.frames import FLOODS, RATES, S
from bench.attack.full import fill
from bench.attack.gate import judge, resume
from bench.attack.senders import PATIENCE_S, Counts, Phase, crew
from bench.attack.serving import daemon
from bench.attack.watcher import Watcher
from bench.lib.common import ROOT, Parser, Refused, Suite, amount, real, run_suite
from timerctl.load.report import percentiles

MS = 1_000_000
ASKED = 6.0  # the rate that a flood asks for, as a multiple of the sustained rate
PENDING = 5_000
SLICE_NS, SLOWER_NS = 100 * MS, 10 * MS
FLOOD_S, SHORT_S, ATTACK_S = 30.0, 3.0, 5.0  # lengths of a flood, a short flood, an attack


def overload(flood: str, seconds: float, senders: int) -> dict[str, Any]:
    """Play all phases except the full arena."""
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
        rounds = list(customer.rounds)  # no later ones: they are slowed by the computation below, in the same process
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
            "bound": memory_bound(at_rest),
        },
        "counters": watcher.counters,
        "rounds": len(customer.rounds),
        "wrong": wrong,
    }


def recovered_ms(rounds: Sequence[Round], before_ns: int, during_ns: int, after_ns: int) -> float:
    """ms from the end of the flood until round trips are fast again, and stay so: by medians of 100 ms each.

    Fast: at most five times the median before the flood, plus 10 ms.
    """
    median = statistics.median(r.took_ns for r in rounds if before_ns <= r.at_ns < during_ns)
    slices: dict[int, list[int]] = {}
    for r in rounds:
        slices.setdefault((r.at_ns + r.took_ns - after_ns) // SLICE_NS, []).append(r.took_ns)
    slow = [at for at, took in slices.items() if at >= 0 and statistics.median(took) > 5 * median + SLOWER_NS]
    return max(slow, default=-1) * SLICE_NS / MS + SLICE_NS / MS


def rows(suite: Suite, run: dict[str, Any], full: dict[str, Any]) -> None:
    """Add the figures to the tables."""
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
    if args.resume:
        if not args.gate or not args.json.exists():
            raise Refused("--resume goes on with the gate of a file: give --gate, and --json with a file that is there")
        resume(suite, args.json)
    if args.gate or args.flood in ATTACKS:
        for name in ATTACKS if args.gate else (args.flood,):
            if name in suite.checks:
                continue
            judge(suite, name, args.runs, args.seconds if args.seconds is not None else ATTACK_S)
        return
    if args.seconds is None:
        args.seconds = SHORT_S if args.short else FLOOD_S
    suite.say(f"a flood of {args.flood}, {args.seconds:g} s")
    run = overload(args.flood, args.seconds, args.senders)
    suite.say("a full arena")
    full = fill(min(args.seconds / 3, 3.0))
    rows(suite, run, full)
    bounds(suite, run, full, args.slack)


def main() -> int:
    parser = Parser("overload", __doc__)
    parser.add_argument(
        "--seconds",
        type=real(1, 3_600, "seconds"),
        metavar="N",
        help=f"length of the flood ({FLOOD_S:g}; short: {SHORT_S:g}; an attack: {ATTACK_S:g})",
    )
    parser.add_argument("--senders", type=amount(1, 64, "processes"), default=3, help="processes that send (3)")
    parser.add_argument(
        "--flood",
        default="commands",
        choices=(*FLOODS, *ATTACKS),
        metavar="NAME",
        help=f"what is sent (commands): {', '.join((*FLOODS, *ATTACKS))}",
    )
    parser.add_argument("--gate", action="store_true", help="play all attacks, and check the gate's limits")
    parser.add_argument(
        "--resume", action="store_true", help="with --gate: play only attacks that the file of --json has not judged"
    )
    parser.size("--runs", amount(1, 100, "runs"), "5", "1", "runs with an attack, and as many without it")
    parser.add_argument(
        "--slack", type=real(1, 1_000, ""), default=1.0, help="make the bounds of time N times as wide, see above (1)"
    )
    if "--gate" in sys.argv:
        parser.suite = "gate"
        if not any(word.startswith("--json") for word in sys.argv):
            sys.argv.append(f"--json={ROOT / 'bench/results/gate.json'}")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
