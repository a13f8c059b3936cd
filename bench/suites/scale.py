"""Many callers that wait at once: blocking loops in several processes, and asyncio long polls with an event for each.

    python bench/suites/scale.py [--processes 8] [--polls 1k] [--rate 5k] [--seconds 3] [--rounds 5]
                           [--short] [--json FILE]

*loops* are what request handlers do: each process registers an operation, fires its event by fire_wait(), and takes the
result, again and again. Every step waits for the one before. *workers* are *forked*, as gunicorn's are, or started
*apart*, each as a program of its own. Programs that start apart have different memory addresses. So after each switch
of processes the processor predicts branches badly, and a loop costs up to twice as much. *polls* are the long polls of
one asyncio process: each waits for the event of its own key, and registers again when the event has come. Another
process fires the events, one poll after the other, at a rate. The latency is from the call of fire() to the return of
the poll's `await`.

Loops and polls are measured over ZeroMQ and over `unix`, in turns. CPU is the sum over all threads of all processes,
the daemon included. A figure is the median of the rounds, and the worst round is beside it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import timerd as td
from bench.lib.common import Parser, Row, Suite, amount, real, run_suite
from bench.rivals.alternative.trial import answer, process
from bench.rivals.quiet_ways import READY_S, TIMEOUT_S, VALUE, Found, daemon, found_in
from bench.suites.quiet import PATIENCE_S, latencies, of_rounds, spent, wait_for_end
from timerctl.load.own_daemon import INSTANCE
from timerd_client import aio
from timerd_wire.transports import TRANSPORTS, Transport

WORKERS = ("forked", "apart")


def begin(connection: Connection) -> None:
    """Send "ready" and this process's pid, and wait for the start."""
    connection.send("ready")
    connection.send(os.getpid())
    connection.recv()


def be_looper(directory: Path, transport: Transport, number: int, seconds: float, connection: Connection) -> None:
    """A process of loops. It sends the number of its loops, and how many did not complete with their own value."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with td.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
        begin(connection)
        made = wrong = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            key, value = f"{number}/{made}", made.to_bytes(8, "little")
            operation = client.register(key, timeout=TIMEOUT_S)
            completed = client.fire_wait(key, value=value)
            wrong += completed != 1 or operation.result().value != value
            made += 1
        connection.send((made, wrong))
        wait_for_end(connection)


def be_poller(directory: Path, transport: Transport, polls: int, each: int, connection: Connection) -> None:
    """The process of the long polls. It sends the number in each event's value, and how long the event took."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found: Found = []

    async def play() -> None:
        async with aio.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
            first = [client.register(f"p{number}", timeout=TIMEOUT_S) for number in range(polls)]
            await client.flush()
            begin(connection)

            async def poll(number: int) -> None:
                operation = first[number]
                for left in range(each, 0, -1):
                    found.append(found_in((await operation).value))
                    if left > 1:
                        operation = client.register(f"p{number}", timeout=TIMEOUT_S)

            await asyncio.gather(*map(poll, range(polls)))

    asyncio.run(play())
    connection.send(found)
    wait_for_end(connection)


def be_firer(directory: Path, transport: Transport, polls: int, count: int, rate: int, connection: Connection) -> None:
    """The process that fires the events of the polls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with td.connect(INSTANCE, runtime_dir=str(directory), timeout=READY_S, transport=transport) as client:
        begin(connection)
        began = time.monotonic()
        for number in range(count):
            if (pause := began + number / rate - time.monotonic()) > 0:
                time.sleep(pause)
            client.fire(f"p{number % polls}", value=VALUE.pack(time.monotonic_ns(), number))
        wait_for_end(connection)


def loops(transport: Transport, workers: str, processes: int, seconds: float) -> tuple[Row, int]:
    """One run of the loops: its row, and how many loops were wrong."""
    with ExitStack() as stack:
        directory, servers = stack.enter_context(daemon())
        loopers = [
            stack.enter_context(process(be_looper, directory, transport, number, seconds, forked=workers == "forked"))
            for number in range(processes)
        ]
        end = time.monotonic() + seconds + PATIENCE_S
        pids = [*servers, *(answer(looper, end) for looper in loopers)]
        before, began = spent(pids), time.monotonic()
        for looper in loopers:
            looper.send("start")
        found = [answer(looper, end) for looper in loopers]
        took_s, after = time.monotonic() - began, spent(pids)
    made = sum(count for count, _ in found)
    row = {"loops_per_s": made / took_s, "cpu_us": (after.cpu_ns - before.cpu_ns) / 1e3 / max(made, 1)}
    return row, sum(wrong for _, wrong in found)


def long_polls(transport: Transport, polls: int, each: int, rate: int) -> tuple[Row, int]:
    """One run of the polls, each of which waits for `each` events: its row, and how many events were wrong."""
    count = polls * each
    with (
        daemon() as (directory, servers),
        process(be_poller, directory, transport, polls, each) as poller,
        process(be_firer, directory, transport, polls, count, rate) as firer,
    ):
        end = time.monotonic() + count / rate + PATIENCE_S
        pids = [*servers, answer(poller, end), answer(firer, end)]
        before = spent(pids)
        for connection in (poller, firer):
            connection.send("start")
        found: Found = answer(poller, end)
        after = spent(pids)
    row = {f"{figure}_us": us for figure, us in latencies(found).items()}
    row["cpu_us"] = (after.cpu_ns - before.cpu_ns) / 1e3 / count
    return row, missing(found, count)


def missing(found: Found, count: int) -> int:
    """The number of events from 0 to `count` - 1 that no poll returned, plus the number of unexpected events."""
    numbers = [number for number, _ in found]
    return len(set(range(count)).symmetric_difference(numbers)) + len(numbers) - len(set(numbers))


def play(suite: Suite) -> None:
    args = suite.args
    each = max(round(args.rate * args.seconds / args.polls), 1)
    loop_rows: dict[tuple[str, Transport], list[Row]] = {which: [] for which in product(WORKERS, TRANSPORTS)}
    poll_rows: dict[Transport, list[Row]] = {transport: [] for transport in TRANSPORTS}
    try:
        for at in range(args.rounds):
            for workers, transport in loop_rows:
                suite.say(f"loops over {transport}, workers {workers}, round {at + 1} of {args.rounds}")
                row, wrong = loops(transport, workers, args.processes, args.seconds)
                loop_rows[workers, transport].append(row)
                check(suite, "loops", wrong)
            for transport in poll_rows:
                suite.say(f"polls over {transport}, round {at + 1} of {args.rounds}")
                row, wrong = long_polls(transport, args.polls, each, args.rate)
                poll_rows[transport].append(row)
                check(suite, "polls", wrong)
    finally:  # after an interruption, too: from the rounds so far
        for (workers, transport), rounds in loop_rows.items():
            if rounds:
                about = {"transport": transport, "workers": workers, "processes": args.processes}
                worst = min(row["loops_per_s"] for row in rounds)
                medians = {column: statistics.median(row[column] for row in rounds) for column in rounds[0]}
                suite.add("loops", **about, rounds=len(rounds), **medians, loops_per_s_worst=worst)
        for transport, rounds in poll_rows.items():
            if rounds:
                about = {"transport": transport, "polls": args.polls, "rate": args.rate}
                suite.add("polls", **about, rounds=len(rounds), **of_rounds(rounds, ""))


def check(suite: Suite, what: str, wrong: int) -> None:
    """Note whether a run was right."""
    says = "each operation completed once, with its value" if not wrong else f"{wrong} of the {what} were wrong"
    suite.check("outcomes", not wrong, says)


def main() -> int:
    parser = Parser("scale", __doc__)
    parser.size("--processes", amount(1, 64, "processes"), "8", "2", "processes of loops")
    parser.size("--polls", amount(1, 10_000, "polls"), "1k", "100", "long polls at once")
    parser.size("--rate", amount(1, 100_000, "events a second"), "5k", "1k", "events a second for the polls")
    parser.size("--seconds", real(0.1, 600, "seconds"), "3", "0.5", "seconds of each run")
    parser.size("--rounds", amount(1, 100, "rounds"), "5", "1", "rounds of each measurement")
    return run_suite(parser, play)


if __name__ == "__main__":
    sys.exit(main())
