"""timerctl load: declares the command, and starts it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from typing import Any

from timerctl.exits import NoDaemonError, NoInstanceError
from timerctl.instance import running
from timerctl.listing import declare
from timerctl.show.text import duration_ns
from timerd_shm.host.paths import InstancePaths
from timerd_wire.transports import TRANSPORT_VARIABLE, TRANSPORTS

DURATION_NS = 5_000_000_000
NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kM]?)")
EPILOG = """\
The workload is that of Kafka's purgatory benchmark: exponential inter-arrival
times, a log-normal delay until the event (median --p50, upper quartile --p75)
and a timeout. All times count from one start, whatever the daemon does: a late
call is made at once, and its lateness is reported.

what it counts:
  violations   faults of timerd, which no load excuses: lost, duplicated
               (delivered twice), early (expired before its deadline), overruled
               (expired, though its event was applied before its deadline),
               mistaken (completed with the value of another event)
  misjudged    settled otherwise than planned, because something was late
  overtaken    completed by an event that was fired before register() was
               called; the operation's mark was read before the event
  undecided    the event is planned within 5 ms of the deadline: either
               outcome is right
  sustained    a rate: 99 % of it was reached, the last outcome was at most 1 s
               later than planned, 0.1 % were misjudged at most, and there was
               no violation
  invalid      a run that shows nothing about the daemon, because the harness
               was late by more than 10 ms (p99)

Exit status 1 for a violation, and for a run that is invalid or was cut short,
130 after Ctrl-C, 4 if the daemon ended.

examples:
  timerctl load --own --rate 20k --duration 5s        needs no daemon
  timerctl load --rate 100k --p50 200ms --p75 400ms   half of them expire
  timerctl load --own --rate 300k --bulk --json       one call each millisecond
  timerctl load --own --rate 50k --pending 1M         a million more are pending
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "load",
        run,
        help="the load test: right or wrong, how fast, how late",
        description="Start processes that register and fire at a given rate, judge every outcome,\n"
        "and print how fast and how late they were. Defaults stand in brackets.",
        epilog=EPILOG,
    )
    command.add_argument("--rate", type=number, required=True, help="operations per second, as in 500, 20k, 1M")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--duration", metavar="TIME", type=duration_ns, help="how long operations arrive (default 5s)")
    length.add_argument("--count", type=whole, help="how many operations, instead of --duration")
    command.add_argument("--registrars", metavar="N", type=whole, default=1, help="processes that register (1)")
    command.add_argument("--firers", metavar="N", type=whole, default=1, help="processes that fire (1)")
    command.add_argument(
        "--timeout", metavar="TIME", type=duration_ns, default="200ms", help="timeout of each operation (200ms)"
    )
    command.add_argument("--p50", metavar="TIME", type=duration_ns, default="20ms", help="median delay (20ms)")
    command.add_argument("--p75", metavar="TIME", type=duration_ns, default="60ms", help="upper quartile (60ms)")
    command.add_argument("--payload", metavar="BYTES", type=whole, default=100, help="payload of each operation (100)")
    command.add_argument(
        "--keys", metavar="unique|N", type=keys, default=0, help="one key for each operation, or N keys for all"
    )
    command.add_argument("--keys-per-op", metavar="N", type=whole, default=1, help="keys of each operation (1)")
    command.add_argument("--bulk", action="store_true", help="register_many and fire_many, once a millisecond")
    command.add_argument("--pending", metavar="N", type=whole, default=0, help="operations that stay pending (0)")
    command.add_argument(
        "--transport", choices=TRANSPORTS, help="transport of the clients (default: $TIMERD_TRANSPORT, else zeromq)"
    )
    command.add_argument("--seed", metavar="N", type=whole, default=1, help="seed of the plan (1)")
    command.add_argument("--own", action="store_true", help="start a daemon for this run alone, and remove it")


def run(arguments: argparse.Namespace) -> int:
    """Run the load test, and print its result."""
    # Imported here, because only this command needs psutil and multiprocessing.
    from timerctl.load.harness.crew import CrewError
    from timerd_client.workload import NS, Workload, check

    from . import report
    from .trial import Options, run_load

    duration = DURATION_NS if arguments.duration is None else arguments.duration
    count = arguments.count if arguments.count is not None else round(arguments.rate * duration / NS)
    workload = check(
        Workload(
            rate=arguments.rate,
            count=count,
            timeout_ns=arguments.timeout,
            p50_ns=arguments.p50,
            p75_ns=arguments.p75,
            payload=arguments.payload,
            keys=arguments.keys,
            keys_per_op=arguments.keys_per_op,
            registrars=arguments.registrars,
            firers=arguments.firers,
            seed=arguments.seed,
        )
    )
    if arguments.transport:
        os.environ[TRANSPORT_VARIABLE] = arguments.transport  # for the processes of the run
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run_load(workload, Options(arguments.bulk, arguments.pending, arguments.own), lambda: found(arguments))
    except CrewError as error:
        print(f"timerctl: {error}", file=sys.stderr)
        return error.status
    finally:
        signal.signal(signal.SIGTERM, before)
    made = report.Report(result)
    if arguments.json:
        made.print_json()
    else:
        made.print()
    return made.status


def found(arguments: argparse.Namespace) -> InstancePaths:
    """The running instance. Raises NoInstanceError, NoDaemonError, both with a remedy."""
    try:
        return running(arguments)
    except (NoInstanceError, NoDaemonError) as error:
        raise type(error)(f"{error}, or give --own for a daemon of this run alone") from None


def number(text: str) -> float:
    """Type of an argument: 500, 20k, 1.5M."""
    match = NUMBER.fullmatch(text.replace("_", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 500, 20k or 1.5M")
    return round(float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]], 3)


def whole(text: str) -> int:
    """Type of an argument: 500, 20k, 1M."""
    value = number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def keys(text: str) -> int:
    """Type of --keys: 0 for unique."""
    return 0 if text == "unique" else whole(text)
