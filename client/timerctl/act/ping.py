"""timerctl ping: asks the daemon for an answer, for health checks."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from typing import Any

from timerctl.exits import Exit, exit_of
from timerctl.instance import NS, running
from timerctl.listing import declare
from timerctl.show.text import duration_ns, print_json, span
from timerd_shm.declare.errors import ArenaFullError, TimerdError
from timerd_shm.declare.limits import CONNECT_TIMEOUT_S

CLOSE_S = 0.5  # so short, because a ping sends no command that could be lost
EPILOG = """\
The question goes through the daemon's turn, as a command does. A daemon that is
stopped, or stuck in a turn, gives no answer. Exit status 0: it has answered.
1: it has not, whatever the reason: no such instance, no daemon, no permission,
no answer within --timeout. 2: the command line is wrong. Docker, Kubernetes and
monit can use these statuses as they are. A daemon whose client slots are all in
use has answered: it lives, and a restart would not help.

examples:
  timerctl ping
  timerctl ping --timeout 500ms || systemctl restart timerd
  timerctl ping --json | jq .round_trip_ns
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "ping",
        run,
        help="whether the daemon answers, and how fast",
        description="Ask the daemon for an answer, and print how long it took.",
        epilog=EPILOG,
    )
    default = round(CONNECT_TIMEOUT_S * NS)
    about = f"how long to wait in all (default {CONNECT_TIMEOUT_S:g}s)"
    command.add_argument("--timeout", metavar="TIME", type=duration_ns, default=default, help=about)


def run(arguments: argparse.Namespace) -> int:
    """Ask, and print the time."""
    row: dict[str, Any] = {"answers": False, "round_trip_ns": None, "connect_ns": None, "error": None}
    try:
        row |= asked(arguments)
    except TimerdError as error:
        if exit_of(error) is Exit.USAGE:
            raise
        row["error"] = str(error)
    except OSError as error:
        row["error"] = f"{error.filename}: {error.strerror}"
    if arguments.json:
        print_json(row)
    elif row["round_trip_ns"] is not None:
        print(f"The daemon answered in {span(row['round_trip_ns'])} (connected in {span(row['connect_ns'])}).")
    elif row["answers"] and row["error"] is None:
        print(f"The daemon accepted a client in {span(row['connect_ns'])}. No time was left for a second question.")
    if row["error"] is not None and not arguments.json:
        print(f"timerctl: {row['error']}", file=sys.stderr)
    return Exit.OK if row["answers"] else Exit.PROBLEM


def asked(arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts of the daemon's answer. Raises the client's error if there is none, and the errors of running()."""
    from timerd_client import connect

    paths = running(arguments)
    begun = time.monotonic_ns()
    end = begun + arguments.timeout
    try:
        client = connect(paths.instance, name="timerctl", timeout=arguments.timeout / NS)
    except ArenaFullError as error:
        return {"answers": True, "error": f"the daemon answers, and takes no more clients: {error}"}
    connected = time.monotonic_ns()
    row = {"answers": True, "connect_ns": connected - begun}
    try:
        if connected < end:  # otherwise the acceptance was the answer
            row["round_trip_ns"] = round(client.ping(timeout=(end - connected) / NS) * NS)
    finally:
        with suppress(TimerdError):  # the answer, or its absence, is what counts
            client.close(timeout=CLOSE_S)
    return row
