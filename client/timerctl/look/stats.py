"""timerctl stats: capacity, counters and latencies, straight from shared memory, without the daemon."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from timerctl.exits import Exit, NoInstanceError, UsageError
from timerctl.instance import NS, Life, open_arena, paths_of
from timerctl.listing import declare
from timerctl.show.table import Column, Table, grid
from timerctl.show.text import duration_ns, print_json, size, span
from timerd_client.protocol.session import CALLS
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.families import families
from timerd_shm.read.statistics import collect, look

from .prometheus import exposition

IN_NS = ("_ns", "_ns_max")
CLEAR_SCREEN = "\x1b[H\x1b[2J"
EPILOG = """\
examples:
  timerctl stats                      a table; also when the daemon is dead
  timerctl stats --watch 0.5          again every half a second, until Ctrl-C
  timerctl stats --json | jq .counters.pending
  timerctl stats --prometheus         for a textfile collector
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = declare(
        commands,
        common,
        "stats",
        run,
        help="capacity, counters and latencies",
        description="Capacity, counters and latencies of an instance, from shared memory.",
        epilog=EPILOG,
        json="print one JSON document (with --watch: one on each line)",
    )
    command.add_argument("--prometheus", action="store_true", help="print Prometheus' text format")
    command.add_argument(
        "--watch", nargs="?", type=duration_ns, const=NS, metavar="TIME", help="repeat (default: every second)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print once, or until Ctrl-C."""
    if arguments.prometheus and (arguments.json or arguments.watch is not None):
        raise UsageError("--prometheus prints a format of its own, once: leave out --json and --watch")
    if arguments.watch is None:
        return show(arguments)
    try:
        while True:
            if sys.stdout.isatty() and not arguments.json:
                print(CLEAR_SCREEN, end="")
            # The arena is opened each time: a daemon that was started again may have another arena.
            show(arguments)
            sys.stdout.flush()
            time.sleep(max(arguments.watch / NS, 0.05))
    except NoInstanceError:
        print("The instance does not exist any more.", file=sys.stderr)
        return Exit.NO_INSTANCE


def show(arguments: argparse.Namespace) -> int:
    paths = paths_of(arguments)
    with open_arena(paths) as reader:
        seen = reader.between_turns(lambda: look(reader))
        stats = collect(seen, paths)
    if arguments.prometheus:
        print("\n".join(exposition(families(stats, seen))))
    elif arguments.json and arguments.watch is not None:
        import json

        print(json.dumps(stats))
    elif arguments.json:
        print_json(stats)
    else:
        print("\n".join(lines_of(stats, paths)))
    return Exit.OK


# printing ------------------------------------------------------------------------------------------------------------


def lines_of(stats: dict[str, Any], paths: InstancePaths) -> list[str]:
    """The lines that people read."""
    first = f"timerd {stats['instance']}, arena {size(stats['arena_bytes'])}, tick {span(stats['tick_ns'])}"
    if stats["alive"]:
        first += f": pid {stats['pid']}, up {span(round(stats['uptime_s'] * NS))}"
    lines = [first]
    if note := Life(paths.instance, stats["alive"], stats["stopped"], stats["pid"]).note():
        lines.append(note)
    if stats["counters"].get("journal_thread_dead"):
        lines.append(
            "The journal is not written any more: its thread has ended. `timerctl errors` says why; restart timerd."
        )
    if stats["killed_in_turn"]:
        lines.append("The daemon was killed in the middle of a turn: counts may lag by that turn until the next start.")
    lines += ["", *capacity_lines(stats["capacity"]), "", *counter_lines(stats["counters"])]
    if due := stats["purgatories"].get(CALLS, {}).get("counters", {}).get("expired"):
        lines.append(f"Calls that came due count as expired: {due} of {stats['counters']['expired']}.")
    if len(stats["purgatories"]) > 1:
        lines += ["", *purgatory_lines(stats["purgatories"])]
    return [*lines, "", *histogram_lines(stats)]


def capacity_lines(capacity: dict[str, Any]) -> list[str]:
    table = Table(Column("capacity"), Column("used", right=True), Column("limit", right=True), Column("", right=True))
    rows = [
        (name, each["used"], each["limit"], f"{100 * each['used'] / each['limit']:.1f} %" if each["limit"] else "-")
        for name, each in capacity.items()
        if isinstance(each, dict)
    ]
    lines = list(table.lines(rows))
    if capacity["ids"]["used"]:
        lines.append("Ids of settled operations are counted, and give way to new ones.")
    if capacity["ring_events"]["used"]:
        reach = span(round(capacity["ring_span_s"] * NS))
        lines.append(f"A mark may be {reach} old; an older one may fail (MarkTooOldError).")
    return lines


def counter_lines(counters: dict[str, int]) -> list[str]:
    return grid([(name, span(value) if name.endswith(IN_NS) else str(value)) for name, value in counters.items()])


def purgatory_lines(purgatories: dict[str, Any]) -> list[str]:
    """A row for each purgatory, with as many counters as fit."""
    names = list(dict.fromkeys(name for each in purgatories.values() for name in each["counters"]))
    columns = [Column(name, right=True, optional=True) for name in names]
    rows = [(name, *(each["counters"].get(counter, "-") for counter in names)) for name, each in purgatories.items()]
    return Table(Column("purgatory"), *columns).lines(rows)


def histogram_lines(stats: dict[str, Any]) -> list[str]:
    table = Table(
        Column("latency"),
        Column("purgatory", flexible=True),
        *(Column(name, right=True) for name in ("count", "p50", "p99", "p99.9", "max")),
    )
    parts = [("(all)", stats)] if len(stats["purgatories"]) > 1 else []
    rows = []
    for kind in stats["histograms"]:
        for name, part in [*parts, *stats["purgatories"].items()]:
            rows.append(histogram_row(kind, name, part["histograms"][kind]))
    rows += [histogram_row(kind, "-", each) for kind, each in stats["daemon_histograms"].items()]
    return table.lines(rows)


def histogram_row(kind: str, purgatory: str, each: dict[str, float]) -> tuple[object, ...]:
    times = (span(round(each[figure])) if each["count"] else "-" for figure in ("p50", "p99", "p999", "max"))
    return (kind.removesuffix("_ns").replace("_", " "), purgatory, each["count"], *times)
