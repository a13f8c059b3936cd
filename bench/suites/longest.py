"""The longest wait of a bystander while one event reaches nearly all operations of an arena.

    python bench/suites/longest.py [--capacities 131072,1M] [--rounds 5] [--short] [--json FILE]

An event is applied whole before the next command (timerd/DESIGN.md, rule 8). So a bystander's command waits for at most
one event under way. These are the longest ones that an arena allows: the operations that watch one key take nine tenths
of the arena, and belong to two clients.

    fire        completes all of them
    count       completes none: each counts the event, which may come again and again
    advance     completes all of them, which wait for random targets

The bystander is the gate's witness `member` (bench/attack/witnesses.py): a process that registers an operation,
completes it and waits for its outcome, again and again. A figure is the longest of these round trips from
the event on: the median of the rounds, and the worst. `peace` is the same without an event.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import timerd as td
from bench.attack.serving import daemon
from bench.attack.witnesses import witnesses
from bench.lib.common import Parser, Suite, amount, listed, run_suite
from timerd_wire.transports import Transport

PART = 5_000  # operations that one register_many() registers
FULL = 0.9  # of the arena's operations
BEFORE_S = 1.0  # the daemon comes to rest
AFTER_S = 1.0  # for each 131,072 operations
PATIENCE_S = 60.0
TARGET_MAX = 1 << 30


class Event(NamedTuple):
    """A kind of event, and its watchers."""

    register: Callable[[td.Client, int, random.Random], td.Batch]
    apply: Callable[[td.Client], object]
    completes: bool = True


EVENTS = {
    "peace": Event(
        lambda client, count, _: client.register_many(["hot"] * count, timeout=600), lambda _: None, completes=False
    ),
    "fire": Event(
        lambda client, count, _: client.register_many(["hot"] * count, timeout=600), lambda one: one.fire("hot")
    ),
    "count": Event(
        lambda client, count, _: client.register_many(["hot"] * count, timeout=600, when=td.total(10**15)),
        lambda one: one.fire("hot"),
        completes=False,
    ),
    "advance": Event(
        lambda client, count, chosen: client.register_many(
            [{"hot": chosen.randrange(1, TARGET_MAX)} for _ in range(count)], timeout=600
        ),
        lambda one: one.advance("hot", TARGET_MAX),
    ),
}


def measure(suite: Suite, capacity: int, name: str, transport: Transport, seed: int) -> float:
    """The bystander's longest round trip from the event on, in ms."""
    event, chosen, batches = EVENTS[name], random.Random(seed), list[td.Batch]()
    each = int(capacity * FULL) // 2
    with (
        daemon(f"--capacity={capacity}") as (paths, _),
        td.connect(paths.instance, timeout=PATIENCE_S, transport=transport) as one,
        td.connect(paths.instance, timeout=PATIENCE_S, transport=transport) as two,
        witnesses(paths, transport, ("member",)) as (member,),
    ):
        for client in (one, two):
            for begin in range(0, each, PART):
                batches.append(event.register(client, min(PART, each - begin), chosen))
            client.flush(timeout=PATIENCE_S)
        time.sleep(BEFORE_S)
        member.look()
        event.apply(one)
        time.sleep(AFTER_S * max(1.0, capacity / 131_072))
        seen = member.look()
        states = (
            {outcome.state for batch in batches for outcome in batch.outcomes(PATIENCE_S)} if event.completes else set()
        )
    right = states <= {td.State.COMPLETED} and not (seen.wrong or seen.unavailable)
    suite.check("outcomes", right, "each operation completed" if right else f"{name}: {states}, {seen.wrong}")
    return max(seen.took_ns) / 1e6


def play(suite: Suite) -> None:
    for capacity in suite.args.capacities:
        for name in EVENTS:
            for transport in ("zeromq", "unix"):
                rounds = []
                for number in range(suite.args.rounds):
                    suite.say(f"{name} over {transport}, {capacity:,} operations: round {number + 1}")
                    rounds.append(measure(suite, capacity, name, transport, suite.seed + number))
                suite.add(
                    "longest",
                    capacity=capacity,
                    event=name,
                    transport=transport,
                    longest_ms=round(statistics.median(rounds), 1),
                    worst_ms=round(max(rounds), 1),
                )


def main() -> int:
    parser = Parser("longest", __doc__)
    sizes = listed(amount(10_000, 8_000_000, "operations"))
    parser.size("--capacities", sizes, "131072,1M", "131072", "capacities, with commas between")
    parser.size("--rounds", amount(1, 100, "rounds"), "5", "1", "rounds of each kind of event")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
