"""An instance, sample after sample: rates, percentiles of the last seconds, and when its limits will be full.

    samples = Samples(paths)
    samples.take()               # several times a second
    samples.newest.rates["completed"]

Rates and percentiles are those of the last second, so they need two samples. A limit is watched for ten seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from timerctl.instance import NS, open_arena
from timerd_shm.declare.layout import DaemonHistogram, Histogram
from timerd_shm.declare.records import ArenaHeader, HistogramRecord
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.alive import now_ns as arena_now_ns
from timerd_shm.read.histogram import Summary, counts_of, summary_of
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.statistics import Look, collect, look

from .groups import Group, groups_of

WINDOW_NS: Final = NS  # of rates and percentiles
TREND_NS: Final = 10 * NS  # over which a limit's use is watched
KEPT: Final = 300  # samples: a bit more than a minute at four a second
RATES: Final = ("registered", "completed", "expired", "cancelled", "failed", "events", "commands", "rejected")
# Limits that are not named: the ring is full as a rule, and its events and ids give way to new ones.
GIVING_WAY: Final = ("ring_events", "ring_bytes", "ids")
FAR_NS: Final = 365 * 86_400 * NS  # a limit that is full later than this has no such time


class Fill(NamedTuple):
    """A limit, and how full it is."""

    name: str
    used: int
    limit: int
    per_s: float  # by how much `used` has grown in a second, over the last ten seconds
    full_in_ns: int | None  # at this rate; None: never

    @property
    def share(self) -> float:
        """The part that is used, from 0 to 1."""
        return self.used / self.limit if self.limit else 0.0


class Sample(NamedTuple):
    """An instance at one moment, and what it did in the last second."""

    at_ns: int  # CLOCK_MONOTONIC
    header: ArenaHeader
    stats: dict[str, Any]  # as `timerctl stats --json` prints them
    rates: dict[str, float]  # by counter, a second
    wait: Summary  # of operations that were completed in the last second, in ns
    lateness: Summary  # of those that expired
    turn: Summary  # CPU time of turns
    turn_share: float  # the part of one core that turns took
    purgatories: dict[str, dict[str, float]]  # rates of each purgatory
    fills: list[Fill]  # the fullest first
    groups: list[Group]


class _Moment(NamedTuple):
    """Counts at one moment, for the rates of later samples."""

    at_ns: int
    incarnation: int
    counters: dict[str, int]
    purgatories: dict[str, dict[str, int]]
    histograms: dict[str, tuple[int, ...]]
    used: dict[str, int]


class Samples:
    """The samples of an instance, the newest last. Without a daemon, all rates are 0."""

    def __init__(self, paths: InstancePaths, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.paths = paths
        self._clock = clock
        self._moments: deque[_Moment] = deque(maxlen=KEPT)
        self.kept: deque[Sample] = deque(maxlen=KEPT)

    @property
    def newest(self) -> Sample:
        """The newest sample. There has to be one."""
        return self.kept[-1]

    def take(self) -> Sample:
        """Read the arena. Raises the errors of open_arena()."""
        # The arena is opened each time: a daemon that was started again may have another arena.
        with open_arena(self.paths) as reader:
            return self.read(reader)

    def read(self, reader: ArenaReader) -> Sample:
        """As take(), from an arena that is open."""
        seen, now_ns = reader.between_turns(lambda: look(reader)), self._clock()
        stats = collect(seen, self.paths)
        moment = _moment(now_ns, stats, seen)
        if self._moments and self._moments[-1].incarnation != moment.incarnation:
            self._moments.clear()  # another arena, which counts from 0
            self.kept.clear()
        self._moments.append(moment)
        before = self._since(now_ns - WINDOW_NS)
        seconds = max((now_ns - before.at_ns) / NS, 1e-9)
        sample = Sample(
            now_ns,
            seen.header,
            stats,
            {name: _rate(before.counters, moment.counters, name, seconds) for name in RATES},
            self._summary("wait", before, stats["histograms"]["wait_ns"]["max"]),
            self._summary("lateness", before, stats["histograms"]["expiry_lateness_ns"]["max"]),
            self._summary("turn", before, stats["daemon_histograms"]["turn_cpu_ns"]["max"]),
            _rate(before.counters, moment.counters, "busy_ns", seconds) / NS,
            {
                name: {each: _rate(before.purgatories.get(name, {}), counters, each, seconds) for each in RATES[:6]}
                for name, counters in moment.purgatories.items()
            },
            sorted(self._fills(stats, moment), key=lambda fill: -fill.share),
            groups_of(reader, arena_now_ns(seen.header)),
        )
        self.kept.append(sample)
        return sample

    def _since(self, at_ns: int) -> _Moment:
        """The newest moment before this time, or the oldest one."""
        return next((moment for moment in reversed(self._moments) if moment.at_ns <= at_ns), self._moments[0])

    def _summary(self, name: str, before: _Moment, largest: float) -> Summary:
        then, now = before.histograms[name], self._moments[-1].histograms[name]
        return summary_of([max(b - a, 0) for a, b in zip(then, now, strict=True)], int(largest))

    def _fills(self, stats: dict[str, Any], moment: _Moment) -> list[Fill]:
        before = self._since(moment.at_ns - TREND_NS)
        seconds = (moment.at_ns - before.at_ns) / NS
        fills = []
        for name, used in moment.used.items():
            limit = stats["capacity"][name]["limit"]
            per_s = (used - before.used.get(name, used)) / seconds if seconds > 0 else 0.0
            left_ns = (limit - used) / per_s * NS if per_s > 0 and name not in GIVING_WAY else FAR_NS
            fills.append(Fill(name, used, limit, per_s, round(left_ns) if left_ns < FAR_NS else None))
        return fills


def _moment(now_ns: int, stats: dict[str, Any], seen: Look) -> _Moment:
    of_purgatories = [records for _, records in seen.purgatories.values()]
    return _Moment(
        now_ns,
        stats["incarnation"],
        stats["counters"],
        {name: each["counters"] for name, each in stats["purgatories"].items()},
        {
            "wait": _sum([records[Histogram.WAIT] for records in of_purgatories]),
            "lateness": _sum([records[Histogram.EXPIRY_LATENESS] for records in of_purgatories]),
            "turn": _sum([seen.daemon_histograms[DaemonHistogram.TURN_CPU]]),
        },
        {name: each["used"] for name, each in stats["capacity"].items() if isinstance(each, dict)},
    )


def _sum(records: Sequence[HistogramRecord]) -> tuple[int, ...]:
    counts = [counts_of(record) for record in records]
    return counts[0] if len(counts) == 1 else tuple(map(sum, zip(*counts, strict=True)))


def _rate(before: dict[str, int], now: dict[str, int], name: str, seconds: float) -> float:
    return max(now.get(name, 0) - before.get(name, now.get(name, 0)), 0) / seconds
