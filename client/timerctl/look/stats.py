"""timerctl stats: capacity, counters and latencies, straight from shared memory, without the daemon.

The names of counters come from the arena itself, so an older timerctl shows a newer daemon's counters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from timerctl.exits import Exit, NoInstanceError, UsageError
from timerctl.instance import NS, is_alive, note_if_dead, now_ns, open_arena, paths_of
from timerctl.listing import declare
from timerctl.show.table import Column, Table, grid
from timerctl.show.text import duration_ns, label, print_json, size, span
from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX, DaemonHistogram, Histogram, Region
from timerd_shm.declare.records import BLOCK_DATA, ArenaHeader, CounterLabel, HistogramRecord, RegionRecord
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.process import process_is_stopped
from timerd_shm.read import histogram
from timerd_shm.read.reader import ArenaReader

from .prometheus import exposition

OF_PURGATORY, OF_DAEMON = 1, 2  # CounterLabel.scope
CAPACITY = {
    "ops": Region.OPS,
    "nodes": Region.NODES,
    "watermarks": Region.WATERMARKS,
    "clients": Region.CLIENTS,
    "ids": Region.IDS,
    "answers": Region.ANSWERS,
}
IN_NS = ("_ns", "_ns_max")
CLEAR_SCREEN = "\x1b[H\x1b[2J"
EPILOG = """\
examples:
  timerctl stats                      a table; also when the daemon is dead
  timerctl stats --watch 0.5          again every half a second, until Ctrl-C
  timerctl stats --json | jq .counters.pending
  timerctl stats --prometheus         for a textfile collector
"""


class Look(NamedTuple):
    """All that is read, in one moment between two turns."""

    header: ArenaHeader
    labels: list[CounterLabel]
    regions: dict[Region, RegionRecord]
    oldest_event_ns: int
    daemon: list[int]
    purgatories: dict[str, tuple[list[int], list[HistogramRecord]]]
    daemon_histograms: dict[DaemonHistogram, HistogramRecord]
    groups: int  # that have members or operations


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
        json="print one JSON document (with --watch: one a line)",
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
            # The arena is opened each time: a daemon that was started again may have another one.
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
        purgatories = {name: histograms for name, (_, histograms) in seen.purgatories.items()}
        print("\n".join(exposition(stats, purgatories, seen.daemon_histograms)))
    elif arguments.json and arguments.watch is not None:
        import json

        print(json.dumps(stats))
    elif arguments.json:
        print_json(stats)
    else:
        print("\n".join(lines_of(stats, paths)))
    return Exit.OK


# reading -------------------------------------------------------------------------------------------------------------


def look(reader: ArenaReader) -> Look:
    """One look at everything that stats shows."""
    header = reader.header()
    oldest = reader.event(header.tail).effective_ns if header.tail <= header.newest else 0
    words = [record.value for record in reader.purgatory_counters]
    purgatories = {}
    for index, purgatory in enumerate(reader.purgatories):
        if purgatory.state:
            counters = words[index * PURGATORY_COUNTERS_MAX : (index + 1) * PURGATORY_COUNTERS_MAX]
            histograms = [reader.histograms[index * len(Histogram) + kind] for kind in Histogram]
            purgatories[reader.purgatory_name(index)] = counters, histograms
    return Look(
        header,
        [label for label in reader.labels if label.name.rstrip(b"\0")],
        {region: reader.region(region) for region in Region},
        oldest,
        [record.value for record in reader.daemon_counters],
        purgatories,
        reader.daemon_histograms(),
        sum(bool(group.members or group.pending or group.unacknowledged) for group in reader.groups),
    )


def collect(seen: Look, paths: InstancePaths) -> dict[str, Any]:
    """Everything, as `stats --json` prints it. Counts are since the arena was made."""
    header, labels = seen.header, seen.labels
    alive = is_alive(paths, header)
    purgatories: dict[str, dict[str, Any]] = {
        name: {"counters": named(labels, OF_PURGATORY, counters), "histograms": summaries([histograms])}
        for name, (counters, histograms) in seen.purgatories.items()
    }
    whole: dict[str, int] = {}
    for purgatory in purgatories.values():
        for name, value in purgatory["counters"].items():
            whole[name] = whole.get(name, 0) + value
    return {
        "instance": paths.instance,
        "pid": header.pid,
        "alive": alive,
        "stopped": alive and process_is_stopped(header.pid, header.start_ticks),
        "uptime_s": round(max(now_ns(header) - header.attached_ns, 0) / NS, 3) if alive else None,
        "incarnation": header.incarnation,
        "arena_bytes": header.size,
        "tick_ns": header.tick_ns,
        "newest_event": header.newest,
        "killed_in_turn": not alive and bool(header.turn & 1),
        "capacity": capacity_of(seen),
        "counters": whole | named(labels, OF_DAEMON, seen.daemon),
        "purgatories": purgatories,
        "histograms": summaries([histograms for _, histograms in seen.purgatories.values()]),
        "daemon_histograms": {
            f"{kind.name.lower()}_ns": histogram.summary([record])._asdict()
            for kind, record in seen.daemon_histograms.items()
        },
    }


def capacity_of(seen: Look) -> dict[str, Any]:
    """How much is used, and the limit, of all that can be used up; and the time that the event ring reaches back."""
    header = seen.header
    capacity: dict[str, Any] = {
        name: {"used": seen.regions[region].in_use, "limit": seen.regions[region].count}
        for name, region in CAPACITY.items()
    }
    blocks = seen.regions[Region.BLOCKS]
    capacity["purgatories"] = {"used": len(seen.purgatories), "limit": seen.regions[Region.PURGATORIES].count}
    capacity["groups"] = {"used": seen.groups, "limit": seen.regions[Region.GROUPS].count}
    capacity["payload_bytes"] = {"used": blocks.in_use * BLOCK_DATA, "limit": blocks.count * BLOCK_DATA}
    held = header.newest + 1 - header.tail
    capacity["ring_events"] = {"used": held, "limit": seen.regions[Region.EVENTS].count}
    capacity["ring_bytes"] = {"used": header.ring_bytes, "limit": header.ring_bytes_max}
    capacity["ring_span_s"] = round(max(now_ns(header) - seen.oldest_event_ns, 0) / NS, 3) if held > 0 else 0.0
    return capacity


def named(labels: Sequence[CounterLabel], scope: int, values: Sequence[int]) -> dict[str, int]:
    """Counters by their names."""
    return {label(each.name): values[each.index] for each in labels if each.scope == scope and each.index < len(values)}


def summaries(purgatories: Sequence[Sequence[HistogramRecord]]) -> dict[str, dict[str, float]]:
    """Each histogram over these purgatories: count, mean, p50, p99, p999, max; in ns."""
    return {
        f"{kind.name.lower()}_ns": histogram.summary([histograms[kind] for histograms in purgatories])._asdict()
        for kind in Histogram
    }


# printing ------------------------------------------------------------------------------------------------------------


def lines_of(stats: dict[str, Any], paths: InstancePaths) -> list[str]:
    """The lines that people read."""
    first = f"timerd {stats['instance']}, arena {size(stats['arena_bytes'])}, tick {span(stats['tick_ns'])}"
    if stats["alive"]:
        first += f": pid {stats['pid']}, up {span(round(stats['uptime_s'] * NS))}"
    lines = [first]
    if note := note_if_dead(paths, stats["alive"]):
        lines.append(note)
    if stats["stopped"]:
        lines.append(f"The daemon is stopped, and nothing changes until it goes on: kill -CONT {stats['pid']}")
    if stats["counters"].get("journal_thread_dead"):
        lines.append(
            "The journal is not written any more: its thread has ended. `timerctl errors` says why; restart timerd."
        )
    if stats["killed_in_turn"]:
        lines.append("The daemon was killed in the middle of a turn: counts may lag by that turn until the next start.")
    lines += ["", *capacity_lines(stats["capacity"]), "", *counter_lines(stats["counters"])]
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
        lines.append(f"The event ring reaches back {reach}: older marks may be too old.")
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
