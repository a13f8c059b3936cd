"""Deliveries (KIP-91): the longest time to a callback, by calculation and in a real run.

    python bench/suites/deliveries.py [--rules] [--count 100k] [--rates 500,4k] [--collector on,off]
                                [--seconds-stopped 2] [--short] [--json FILE]

Table `rules`: a service never answers. For several `retries` the table has three times from send() to the callback:
KIP-19's sum, linger + (retries + 1) x request_timeout; the time without a delivery_timeout; and the time with a
delivery_timeout of 120 s. The last two are measured on a manual clock. The second time is longer than KIP-19's sum by
the backoffs, which the sum lacks. `--rules` prints this table alone.

Table `callbacks`: a process sends records over HTTP, in lanes. The server answers, fails with 503, and stalls, in turn.
Meanwhile the process and the daemon are stopped (SIGSTOP) and go on (SIGCONT), in turn, for up to `--seconds-stopped`.
Each record has to settle once. For records that settled after delivery_timeout, `beyond` is the time from
delivery_timeout to the callback. If the process itself was stopped, `beyond` counts from its SIGCONT. Records whose
deadline passed while the daemon was stopped have a row of their own, because the process waits a second and a half for
the daemon before it runs their callbacks. Records whose deadline passed while the process was stopped also have their
own row. Their callbacks run one after the other when the process goes on, so `beyond` grows with the rate. Therefore
each rate has a run of its own. `catching up` are records whose deadline came within a quarter of a second after a
SIGCONT: their callbacks run after the overdue callbacks. Each rate is run with Python's cyclic garbage collector and
without it, because a full collection stops every thread of the process, and takes longer if the process has more
objects.

Table `bursts`: how many records were overdue at a SIGCONT of the process, and the time for each. `floor_us` is the time
for each in a bare loop that settles as many futures of concurrent.futures, each with a callback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import bench.lib.helpers  # noqa: F401

# isort: split
import timerd as td
from bench.lib.common import Failed, Parser, Suite, amount, chosen, listed, real, run_suite
from timerd.testing import Manual
from timerd_client.delivery import Delivery, aio
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

RETRIES = (0, 3, 10)
RULES: dict[str, float] = {"linger": 0.005, "request_timeout": 30.0}
FAR_S = 1_000_000.0
REAL: dict[str, float] = {
    "delivery_timeout": 1.5,
    "request_timeout": 0.5,
    "linger": 0.01,
    "retry_backoff": 0.05,
    "retry_backoff_max": 0.2,
    "buffer_records": 100_000,
}
LANES = 4
MODES = (("ok", 1.5), ("fail", 1.0), ("ok", 1.0), ("stall", 2.5))  # of the server, and for how many seconds
CALM_S = 1.0  # between the end of a stop and the next stop
BURST = 100  # records that are overdue at once, at least
CATCHING_UP_NS = 250_000_000  # after a stop
STOPPED = ("none", "catching up", "sender", "daemon")
S = 1e9


# the rules ------------------------------------------------------------------------------------------------------------


def longest_s(retries: int, delivery_timeout: float) -> float:
    """From send() to the callback, with a service that never answers, on a manual clock."""

    async def hang(lane: Any, records: Sequence[Any]) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> Delivery:
        async with (
            td.aio.client() as client,
            aio.Producer(client, hang, retries=retries, delivery_timeout=delivery_timeout, **RULES) as producer,  # type: ignore[arg-type]
        ):
            return await (await producer.send("record", lane=0))

    with Manual() as manual:
        return manual.run(main()).latency_ns / S


def add_rules(suite: Suite) -> None:
    for retries in RETRIES:
        timed = longest_s(retries, 120.0)
        suite.add(
            "rules",
            retries=retries,
            kip_19_sum_s=RULES["linger"] + (retries + 1) * RULES["request_timeout"],
            without_delivery_timeout_s=round(longest_s(retries, FAR_S), 3),
            delivery_timeout_120_s=round(timed, 3),
        )
        suite.check(
            "bounded",
            timed <= 120.0,
            "on the manual clock (table `rules`) no callback comes later than delivery_timeout",
        )


# for real -------------------------------------------------------------------------------------------------------------


class Stop(NamedTuple):
    """A time in which a process was stopped, monotonic ns."""

    process: str
    begun_ns: int
    ended_ns: int


class Trouble(threading.Thread):
    """Stops the sender and the daemon in turn, and has the server fail and stall, until `over` is set."""

    def __init__(self, suite: Suite, endpoint: Any, pids: dict[str, int]) -> None:
        super().__init__(daemon=True)
        self.stops: list[Stop] = []
        self._rng = random.Random(suite.seed)
        self._endpoint = endpoint
        self._pids = pids
        self._longest_s = suite.args.seconds_stopped
        self.over = threading.Event()

    def run(self) -> None:
        modes = threading.Thread(target=self._modes, daemon=True)
        modes.start()
        turn = 0
        while not self.over.wait(CALM_S):
            name = ("sender", "daemon")[turn % 2]
            turn += 1
            begun_ns = time.monotonic_ns()
            os.kill(self._pids[name], signal.SIGSTOP)
            self.over.wait(self._rng.uniform(0.1, self._longest_s))
            ended_ns = time.monotonic_ns()
            os.kill(self._pids[name], signal.SIGCONT)
            self.stops.append(Stop(name, begun_ns, ended_ns))
        modes.join()

    def _modes(self) -> None:
        while True:
            for mode, seconds in MODES:
                self._endpoint.mode(mode)
                if self.over.wait(seconds):
                    self._endpoint.mode("ok")
                    return


def play_real(suite: Suite, rate: int, collector: str) -> None:
    """Send, stop, and judge."""
    from support.real.daemons import Daemon
    from support.real.endpoint import Endpoint

    args = suite.args
    with tempfile.TemporaryDirectory(prefix="td-deliveries-") as directory, Endpoint() as endpoint:
        place = Path(directory)
        daemon: Any = Daemon(place)
        try:
            plan = {
                "url": endpoint.url,
                "count": args.count,
                "rate": rate,
                "lanes": LANES,
                "collector": collector,
                "settings": REAL,
            }
            command = [sys.executable, "-m", "bench.lib.delivery_sender", json.dumps(plan), str(place / "rows.json")]
            sender = subprocess.Popen(
                command, env={**os.environ, RUNTIME_DIR_VARIABLE: directory}, stdout=subprocess.PIPE, text=True
            )
            assert sender.stdout is not None
            if sender.stdout.readline() != "ready\n":
                raise Failed("the process that sends has not started")
            trouble = Trouble(suite, endpoint, {"sender": sender.pid, "daemon": daemon.pid})
            trouble.start()
            said = time.monotonic()
            while sender.poll() is None:
                time.sleep(0.05)
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    suite.say(f"{len(trouble.stops)} stops so far")
                if time.monotonic() - said > 600:
                    sender.kill()
            sender.stdout.close()
            trouble.over.set()
            trouble.join()
            if sender.returncode:
                raise Failed(f"the process that sends has ended with {sender.returncode}")
            judge(
                suite,
                {"rate": rate, "collector": collector},
                json.loads((place / "rows.json").read_text()),
                trouble.stops,
                endpoint.taken(),
            )
        finally:
            daemon.destroy()


def beyond_of(deadline_ns: int, called_ns: int, stops: Sequence[Stop]) -> tuple[int, str]:
    """How long after its deadline a callback ran, in ns, and for which entry of STOPPED this time counts."""
    since_ns, seen = deadline_ns, {"none"}
    for stop in stops:
        if stop.begun_ns >= called_ns:
            continue
        if stop.ended_ns > deadline_ns:
            seen.add(stop.process)
            if stop.process == "sender":
                since_ns = max(since_ns, stop.ended_ns)
        elif stop.ended_ns + CATCHING_UP_NS > deadline_ns:
            seen.add("catching up")
    return called_ns - since_ns, max(seen, key=STOPPED.index)


def judge(suite: Suite, run: dict[str, Any], rows: list[list[Any]], stops: list[Stop], taken: list[int]) -> None:
    """Check that each record has settled once. Adds the rows of its lateness."""
    beyond: dict[str, list[float]] = {stopped: [] for stopped in STOPPED}
    timeout_ns = round(REAL["delivery_timeout"] * S)
    for returned_ns, callbacks, _ in rows:
        if callbacks and callbacks[0] > returned_ns + timeout_ns:
            late_ns, stopped = beyond_of(returned_ns + timeout_ns, callbacks[0], stops)
            beyond[stopped].append(late_ns / 1e6)
    outcomes = [outcome for _, _, outcome in rows]
    arrived = set(taken)
    missing = [number for number, outcome in enumerate(outcomes) if outcome == "delivered" and number not in arrived]
    for stopped, values in beyond.items():
        ordered = sorted(values) or [0.0]
        suite.add(
            "callbacks",
            **run,
            stopped=stopped,
            after_delivery_timeout=len(values),
            beyond_p50_ms=round(statistics.median(ordered), 3),
            beyond_p99_9_ms=round(ordered[min(len(ordered) - 1, int(0.999 * len(ordered)))], 3),
            beyond_max_ms=round(ordered[-1], 3),
        )
    add_bursts(suite, run, rows, stops)
    suite.add(
        "outcomes",
        **run,
        sent=len(rows),
        **{outcome: outcomes.count(outcome) for outcome in ("delivered", "failed", "expired")},
        stops_of_sender=sum(stop.process == "sender" for stop in stops),
        stops_of_daemon=sum(stop.process == "daemon" for stop in stops),
    )
    once = all(len(callbacks) == 1 for _, callbacks, _ in rows)
    suite.check("once", once and not outcomes.count(""), "each record has settled exactly once")
    suite.check("arrived", not missing, "each record that was delivered has arrived at the server")


def add_bursts(suite: Suite, run: dict[str, Any], rows: list[list[Any]], stops: list[Stop]) -> None:
    """Add the number of callbacks that were overdue at each SIGCONT of the sender, and the time that they took."""
    timeout_ns = round(REAL["delivery_timeout"] * S)
    overdue, took_us = [], []
    for stop in stops:
        late = [
            callbacks[0] - stop.ended_ns
            for returned_ns, callbacks, _ in rows
            if callbacks and returned_ns + timeout_ns < stop.ended_ns < callbacks[0]
        ]
        if stop.process == "sender" and len(late) >= BURST:
            overdue.append(len(late))
            took_us.append(max(late) / len(late) / 1e3)
    if overdue:
        suite.add(
            "bursts",
            **run,
            bursts=len(overdue),
            overdue_p50=round(statistics.median(overdue)),
            overdue_max=max(overdue),
            each_us=round(statistics.median(took_us), 1),
            floor_us=round(floor_us(max(overdue)), 1),
        )


def floor_us(count: int) -> float:
    """How long a bare loop takes to settle a future with a callback, in us; the median of several."""
    took = []
    called: list[int] = []
    for _ in range(5):
        futures: list[Future[int]] = [Future() for _ in range(count)]
        for future in futures:
            future.add_done_callback(lambda future: called.append(future.result()))
        begun_ns = time.perf_counter_ns()
        for number, future in enumerate(futures):
            future.set_result(number)
        took.append((time.perf_counter_ns() - begun_ns) / count / 1e3)
    return statistics.median(took)


def play(suite: Suite) -> None:
    add_rules(suite)
    if not suite.args.rules:
        for rate, collector in itertools.product(suite.args.rates, suite.args.collector):
            suite.say(f"{suite.args.count:,} records at {rate:,}/s, with the collector {collector}")
            play_real(suite, rate, collector)


def main() -> int:
    parser = Parser("deliveries", __doc__)
    parser.add_argument("--rules", action="store_true", help="the table `rules` alone")
    parser.size("--count", amount(1, 10_000_000, "records"), "100k", "10k", "records that are sent")
    parser.size("--rates", listed(amount(1, 100_000, "records a second")), "500,4k", "4k", "records a second")
    parser.size("--collector", listed(chosen(("on", "off"))), "on,off", "on", "the garbage collector of the sender")
    parser.size("--seconds-stopped", real(0.1, 60, "seconds"), "2", "1", "the longest stop")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
