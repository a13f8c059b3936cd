"""The statistics of an arena at one moment: capacity, counters and histograms, by name.

The names of counters come from the arena, so an older reader shows a newer daemon's counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from timerd_shm.declare.layout import PURGATORY_COUNTERS_MAX, DaemonHistogram, Histogram, Region
from timerd_shm.declare.records import BLOCK_DATA, ArenaHeader, CounterLabel, HistogramRecord, RegionRecord
from timerd_shm.host.paths import InstancePaths
from timerd_shm.host.process import process_is_stopped

from . import histogram
from .alive import is_alive, now_ns
from .reader import ArenaReader
from .text import label

NS = 1_000_000_000
OF_PURGATORY, OF_DAEMON = 1, 2  # CounterLabel.scope
CAPACITY = {
    "ops": Region.OPS,
    "nodes": Region.NODES,
    "watermarks": Region.WATERMARKS,
    "clients": Region.CLIENTS,
    "ids": Region.IDS,
    "answers": Region.ANSWERS,
}


class Look(NamedTuple):
    """All figures, read in one moment between two turns."""

    header: ArenaHeader
    labels: list[CounterLabel]
    regions: dict[Region, RegionRecord]
    oldest_event_ns: int
    daemon: list[int]
    purgatories: dict[str, tuple[list[int], list[HistogramRecord]]]
    daemon_histograms: dict[DaemonHistogram, HistogramRecord]
    groups: int  # groups that have members or operations


def look(reader: ArenaReader) -> Look:
    """Read everything that stats shows. The caller lets no turn come in between (ArenaReader.between_turns)."""
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
    """The use and the limit of each resource that stats shows, and the time that the event ring reaches back."""
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
