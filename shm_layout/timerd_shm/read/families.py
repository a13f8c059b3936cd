"""The metrics of an arena, for Prometheus and the like: names, kinds, descriptions and samples.

Counters end in _total, times are seconds, and what exists in each purgatory has the label `purgatory`. A histogram's
bounds are 2 ** n - 1 ns, for each even n from 14 to 44. The buckets in the arena have the same bounds, so the counts
are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, Counter
from timerd_shm.declare.layout import DaemonHistogram, Histogram
from timerd_shm.declare.records import HistogramRecord

from . import histogram
from .statistics import NS, Look

FIRST_POWER, LAST_POWER, POWER_STEP = 14, 44, 2  # 16 us to 4.9 h
ABOUT: Final[dict[str, Counter]] = {counter.name: counter for counter in PURGATORY_COUNTERS + DAEMON_COUNTERS}
ABOUT_UP: Final = "whether the daemon runs"
HISTOGRAMS: Final = {
    Histogram.EXPIRY_LATENESS: "from the deadline to the settling, of operations that expired",
    Histogram.WAIT: "from the registration to the settling",
}
DAEMON_HISTOGRAMS: Final = {
    DaemonHistogram.TURN_CPU: "CPU time of the conductor, from the end of one turn to the end of the next",
}
Labels: TypeAlias = dict[str, str]


class Distribution(NamedTuple):
    """A histogram's counts: the number of values up to each bound (in seconds, as text), and the sum of all values."""

    buckets: list[tuple[str, int]]  # the last one has the bound +Inf
    sum: float


class Family(NamedTuple):
    """A metric: its name without timerd_ and _total, and a sample for each set of labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    about: str
    samples: Sequence[tuple[Labels, float | Distribution]]


def families(stats: dict[str, Any], seen: Look) -> Iterator[Family]:
    """The metrics of one look at an arena. `stats` is what `collect` has made of the same look."""
    instance: Labels = {"instance": stats["instance"]}

    def gauge(name: str, about: str, value: float) -> Family:
        return Family(name, "gauge", about, [(instance, value)])

    yield gauge("up", ABOUT_UP, float(stats["alive"]))
    yield gauge("uptime_seconds", "since the daemon attached; 0 when it is dead", stats["uptime_s"] or 0.0)
    yield gauge("arena_bytes", "size of the arena", stats["arena_bytes"])
    limited = {name: each for name, each in stats["capacity"].items() if isinstance(each, dict)}
    for figure, about in (("used", "records or bytes in use"), ("limit", "records or bytes in all")):
        rows = [(instance | {"of": name}, each[figure]) for name, each in limited.items()]
        yield Family(f"capacity_{figure}", "gauge", about, rows)
    yield gauge("ring_span_seconds", "how far the event ring reaches back", stats["capacity"]["ring_span_s"])
    named = {name: instance | {"purgatory": name} for name in seen.purgatories}
    of_purgatory = dict.fromkeys(
        counter for purgatory in stats["purgatories"].values() for counter in purgatory["counters"]
    )
    for counter in of_purgatory:
        yield counted(counter, [(named[name], stats["purgatories"][name]["counters"][counter]) for name in named])
    for counter, value in stats["counters"].items():
        if counter not in of_purgatory:
            yield counted(counter, [(instance, value)])
    for kind, about in HISTOGRAMS.items():
        records = [(named[name], histograms[kind]) for name, (_, histograms) in seen.purgatories.items()]
        yield distributed(kind, about, records)
    for of_daemon, about in DAEMON_HISTOGRAMS.items():
        yield distributed(of_daemon, about, [(instance, seen.daemon_histograms[of_daemon])])


def counted(counter: str, rows: Sequence[tuple[Labels, int]]) -> Family:
    """A counter of the arena. A newer daemon's counter, which this code does not know, is a gauge."""
    known = ABOUT.get(counter, Counter(counter, "", "of a newer daemon", gauge=True))
    name, values = counter, [(labels, float(value)) for labels, value in rows]
    if known.unit == "ns":
        name = counter.replace("_ns", "_seconds")
        values = [(labels, value / NS) for labels, value in values]
    return Family(name, "gauge" if known.gauge else "counter", known.about, values)


def distributed(
    kind: Histogram | DaemonHistogram, about: str, records: Sequence[tuple[Mapping[str, str], HistogramRecord]]
) -> Family:
    """A histogram, with the labels of each record."""
    samples = [(dict(labels), distribution(record)) for labels, record in records]
    return Family(f"{kind.name.lower()}_seconds", "histogram", about, samples)


def distribution(record: HistogramRecord) -> Distribution:
    """The counts of a histogram. The total is their sum, so that the histogram agrees with itself."""
    counts = histogram.counts_of(record)
    buckets = [
        (repr(((1 << power) - 1) / NS), sum(counts[: histogram.index_of(1 << power)]))
        for power in range(FIRST_POWER, LAST_POWER + 1, POWER_STEP)
    ]
    return Distribution([*buckets, ("+Inf", sum(counts))], record.sum / NS)
