"""timerctl top: one screen of an instance: rates, latencies, limits, and who does what."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Final

from timerctl.exits import Exit, UsageError
from timerctl.instance import NS, open_arena, paths_of
from timerctl.listing import declare
from timerctl.show.text import duration_ns, print_json

from .frame import document, frame
from .hot import HotKeys
from .samples import Samples
from .verdict import verdict
from .views import VIEWS, Source

EVERY_NS: Final = NS // 4
EVERY_MIN_NS: Final = NS // 20
ONCE_NS: Final = NS  # between the two looks of --once
ROWS_ONCE: Final = 10  # of each table
EPILOG: Final = """\
The first lines say what is wrong with the daemon, its limits and its groups,
and what helps. They do not say which operation is stuck: see `timerctl ops`.
With --once, clients are sorted by "share", and keys by "events/s". Rates and
percentiles are those of the last second. "full in": when the limit is reached
if its use goes on growing as in the last ten seconds.

keys:
  c k p g l    clients, keys, purgatories, groups, calls
  s, S         sort by the next column, or by the one before
  /            show only rows with a text; Escape ends it
  Enter        explain the row
  Space        stop, and go on
  q            end

A screen needs timerd[top]. --once and --json do not.

examples:
  timerctl top
  timerctl top --once | head -20
  timerctl top --json | jq '.limits[] | select(.full_in_ns != null)'
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "top",
        run,
        help="a screen of rates, latencies, limits; who does what",
        description="One screen of an instance, four times a second, from shared memory alone. It\n"
        "works on a dead daemon, too.",
        epilog=EPILOG,
    )
    command.add_argument("--once", action="store_true", help="print one screen after a second, and end")
    command.add_argument(
        "--every", type=duration_ns, default=EVERY_NS, metavar="TIME", help="time between two looks (default 250ms)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show the screen, or print it once."""
    if arguments.every < EVERY_MIN_NS:
        raise UsageError("--every is at least 50ms")
    if arguments.once or arguments.json:
        return once(arguments)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal: give --once for one screen, or --json")
    try:
        from .screen import Screen
    except ImportError:
        raise UsageError(
            "the screen of top needs Textual: pip install 'timerd[top]'. `timerctl top --once` works without it"
        ) from None
    paths = paths_of(arguments)
    Samples(paths).take()  # raises what is wrong with the instance before the screen is drawn
    Screen(paths, arguments).run()
    return Exit.OK


def once(arguments: argparse.Namespace) -> int:
    """Look twice, a second apart, and print."""
    paths = paths_of(arguments)
    samples, hot = Samples(paths), HotKeys()
    for number in range(2):
        if number:
            time.sleep(ONCE_NS / NS)
        with open_arena(paths) as reader:
            sample = samples.read(reader)
            hot.look(reader, sample.at_ns)
            if number:
                source = Source(reader, sample, hot)
                tables = [(view, view.sorted(view.rows(source), next(iter(view.orders)))) for view in VIEWS]
    found = verdict(sample, samples.kept[0])
    if arguments.json:
        print_json(document(sample, found, tables))
    else:
        short = [(view, rows[:ROWS_ONCE]) for view, rows in tables]
        print("\n".join(frame(samples.kept, found, short)))
    return Exit.OK
