"""timerctl stats --prometheus: the same figures in Prometheus' text format (version 0.0.4), for a textfile collector.

    timerctl stats --prometheus > /var/lib/node_exporter/timerd.prom.new && mv ...

Counters end in _total, times are seconds, and what exists in each purgatory has the label `purgatory`. A histogram's
bounds are 2 ** n - 1 ns for every second n. The buckets in the arena have the same bounds, so the counts are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, Counter
from timerd_shm.declare.layout import DaemonHistogram, Histogram
from timerd_shm.declare.records import HistogramRecord
from timerd_shm.read import histogram

NS = 10**9
FIRST_POWER, LAST_POWER, POWER_STEP = 14, 44, 2  # 16 us to 4.9 h
ABOUT: Final[dict[str, Counter]] = {counter.name: counter for counter in PURGATORY_COUNTERS + DAEMON_COUNTERS}
HISTOGRAMS: Final = {
    Histogram.EXPIRY_LATENESS: "from the deadline to the settling, of operations that expired",
    Histogram.WAIT: "from the registration to the settling",
}
DAEMON_HISTOGRAMS: Final = {
    DaemonHistogram.TURN_CPU: "CPU time of the conductor, from the end of one turn to the end of the next",
}


def exposition(
    stats: dict[str, Any],
    purgatories: Mapping[str, Sequence[HistogramRecord]],
    daemon: dict[DaemonHistogram, HistogramRecord],
) -> Iterator[str]:
    """The lines of what `stats --json` has, and of the histograms of each purgatory and of the daemon."""
    instance = label("instance", stats["instance"])
    yield from family("up", "gauge", "whether the daemon runs", [(instance, float(stats["alive"]))])
    uptime = stats["uptime_s"] or 0.0
    yield from family("uptime_seconds", "gauge", "since the daemon attached; 0 when it is dead", [(instance, uptime)])
    yield from family("arena_bytes", "gauge", "size of the arena", [(instance, stats["arena_bytes"])])
    limited = {name: each for name, each in stats["capacity"].items() if isinstance(each, dict)}
    for figure, about in (("used", "records or bytes in use"), ("limit", "records or bytes in all")):
        rows = [(f"{instance},{label('of', name)}", each[figure]) for name, each in limited.items()]
        yield from family(f"capacity_{figure}", "gauge", about, rows)
    ring = [(instance, stats["capacity"]["ring_span_s"])]
    yield from family("ring_span_seconds", "gauge", "how far the event ring reaches back", ring)
    named = {name: f"{instance},{label('purgatory', name)}" for name in purgatories}
    of_purgatory = dict.fromkeys(
        counter for purgatory in stats["purgatories"].values() for counter in purgatory["counters"]
    )
    for counter in of_purgatory:
        rows = [(named[name], stats["purgatories"][name]["counters"][counter]) for name in purgatories]
        yield from counted(counter, rows)
    for counter, value in stats["counters"].items():
        if counter not in of_purgatory:
            yield from counted(counter, [(instance, value)])
    for kind, about in HISTOGRAMS.items():
        yield from distribution(kind, about, {named[name]: records[kind] for name, records in purgatories.items()})
    for of_daemon, about in DAEMON_HISTOGRAMS.items():
        yield from distribution(of_daemon, about, {instance: daemon[of_daemon]})


def family(name: str, kind: str, about: str, rows: Sequence[tuple[str, float]]) -> Iterator[str]:
    """One metric with its help, type and samples."""
    yield f"# HELP timerd_{name} {about}"
    yield f"# TYPE timerd_{name} {kind}"
    for labels, value in rows:
        yield f"timerd_{name}{{{labels}}} {value!r}"


def counted(counter: str, rows: Sequence[tuple[str, int]]) -> Iterator[str]:
    """A counter of the arena. A newer daemon's counter, which this timerctl does not know, is printed as a gauge."""
    known = ABOUT.get(counter, Counter(counter, "", "of a newer daemon", gauge=True))
    name, values = counter, [(labels, float(value)) for labels, value in rows]
    if known.unit == "ns":
        name = counter.replace("_ns", "_seconds")
        values = [(labels, value / NS) for labels, value in values]
    if not known.gauge:
        name += "_total"
    yield from family(name, "gauge" if known.gauge else "counter", known.about, values)


def distribution(kind: Histogram | DaemonHistogram, about: str, records: dict[str, HistogramRecord]) -> Iterator[str]:
    """A histogram, with the labels of each record."""
    name = f"timerd_{kind.name.lower()}_seconds"
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} histogram"
    for labels, record in records.items():
        counts = histogram.counts_of(record)
        for power in range(FIRST_POWER, LAST_POWER + 1, POWER_STEP):
            below = sum(counts[: histogram.index_of(1 << power)])
            yield f'{name}_bucket{{{labels},le="{((1 << power) - 1) / NS!r}"}} {below}'
        # The sum of the buckets, not the stored count: a histogram must agree with itself.
        yield f'{name}_bucket{{{labels},le="+Inf"}} {sum(counts)}'
        yield f"{name}_sum{{{labels}}} {record.sum / NS!r}"
        yield f"{name}_count{{{labels}}} {sum(counts)}"


def label(name: str, value: str) -> str:
    """name="value", escaped."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{name}="{escaped}"'
