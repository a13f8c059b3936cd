"""Subscribers of one asyncio process: the memory of each, and the time until an event has reached all of them.

    python bench/suites/subscribe.py [--subscribers 10k] [--keys 1,10k] [--events 50] [--short] [--json FILE]

The subscribers divide the keys among them. With one key, all of them share one watch. With as many keys as subscribers,
each subscriber has its own watch. Another client of the process fires on all keys, and waits until every subscriber has
its event. *bytes* is the growth of the process's memory for each subscriber and its task. *first* is the time from the
call of fire_many() until the first subscriber has its event, and *all* is the time until all have it. *events_s* is the
number of events that subscribers received in a second.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from bench.lib.common import Parser, Row, Suite, amount, listed, run_suite
from bench.lib.memory import resident
from timerctl.load.own_daemon import private_daemon
from timerctl.load.report import percentiles
from timerd_client import aio
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

PATIENCE_S = 60.0
CAPACITY = 65_536


class Meter:
    """Counts the subscribers that have received the present event."""

    def __init__(self, subscribers: int) -> None:
        self.subscribers = subscribers
        self.got = self.gaps = 0
        self.first_ns = 0
        self.all = asyncio.Event()

    def begin(self) -> None:
        """Reset the counts for the next event."""
        self.got = self.first_ns = 0
        self.all.clear()

    async def follow(self, subscription: aio.Subscription) -> None:
        """Follow one subscription."""
        async for item in subscription:
            self.gaps += isinstance(item, aio.Gap)
            self.first_ns = self.first_ns or time.monotonic_ns()
            self.got += 1
            if self.got == self.subscribers:
                self.all.set()


async def measure(suite: Suite, instance: str, subscribers: int, keys: int, events: int) -> None:
    names = [f"room/{number}" for number in range(keys)]
    async with aio.connect(instance, timeout=PATIENCE_S) as client, aio.connect(instance) as sender:
        meter = Meter(subscribers)
        bare = resident()
        subscriptions = [client.subscribe(names[number % keys]) for number in range(subscribers)]
        tasks = [asyncio.create_task(meter.follow(each)) for each in subscriptions]
        await asyncio.sleep(0)
        await client.flush(timeout=PATIENCE_S)
        grown = (resident() - bare) / subscribers
        watches = client.stats().waiting
        first, everybody = list[int](), list[int]()
        for _ in range(events):
            meter.begin()
            began_ns = time.monotonic_ns()
            sender.fire_many(names, values=b"x" * 50)
            await asyncio.wait_for(meter.all.wait(), PATIENCE_S)
            first.append(meter.first_ns - began_ns)
            everybody.append(time.monotonic_ns() - began_ns)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        row: Row = {"subscribers": subscribers, "keys": keys, "watches": watches, "bytes": round(grown)}
        row["events_s"] = round(subscribers * events / (sum(everybody) / 1e9))
        for what, times in (("first", first), ("all", everybody)):
            found = percentiles(times)
            row |= {f"{what}_{figure}_ms": round(found[figure] / 1e3, 3) for figure in ("p50", "p99")}
        suite.add("subscribers", **row)
        suite.check("every event", meter.gaps == 0 and watches == keys, f"{meter.gaps} gaps, {watches} watches")


def play(suite: Suite) -> None:
    args = suite.args
    for keys in args.keys:
        suite.say(f"{args.subscribers:,} subscribers of {keys:,} keys")
        with private_daemon([f"--capacity={CAPACITY}", f"--quota-operations={CAPACITY}"]) as paths:
            run(suite, paths, min(keys, args.subscribers))


def run(suite: Suite, paths: InstancePaths, keys: int) -> None:
    os.environ[RUNTIME_DIR_VARIABLE] = str(paths.directory)
    asyncio.run(measure(suite, paths.instance, suite.args.subscribers, keys, suite.args.events))


def main() -> int:
    parser = Parser("subscribe", __doc__)
    parser.size("--subscribers", amount(1, 50_000, "subscribers"), "10k", "1k", "subscribers in one process")
    parser.size("--keys", listed(amount(1, 50_000, "keys")), "1,10k", "1,1k", "keys that the subscribers divide")
    parser.size("--events", amount(1, 10_000, "events"), "50", "10", "events on each key")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
