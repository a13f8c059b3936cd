"""The metrics of an application's clients and of its daemon, in the application's own /metrics.

    from prometheus_client import REGISTRY
    from timerd_client.metrics import TimerdCollector

    REGISTRY.register(TimerdCollector())

Needs `pip install 'timerd[metrics]'`. The metrics of the daemon are read from its arena, and have the names that
`timerctl stats --prometheus` prints. The names of the clients' metrics begin with timerd_client_.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from timerd_client.link import link as link_module
from timerd_client.link.link import Link
from timerd_client.protocol.state import LIVE
from timerd_client.protocol.statistics import Statistics
from timerd_shm.declare.errors import TimerdError
from timerd_shm.host.paths import InstancePaths, open_arena_file
from timerd_shm.read.families import ABOUT_UP, Distribution, Family, Labels, families
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.statistics import collect, look

if TYPE_CHECKING:
    from timerd_client.aio.client import Client as AioClient
    from timerd_client.threaded.client import Client


class Figure(NamedTuple):
    """A figure of clients. The figures of all clients of an instance are added up."""

    kind: Literal["gauge", "counter"]
    about: str


# A figure of `Statistics` has the name of its field. Counters of closed clients are kept: a counter never falls.
FIGURES: Final = {
    "clients": Figure("gauge", "clients of this process that have been used"),
    "connected": Figure("gauge", "clients of this process that are connected: accepted by a daemon that is not lost"),
    "window": Figure("gauge", "how many unacknowledged commands these clients may have"),
    "waiting": Figure("gauge", "operations that have not settled"),
    "unacknowledged": Figure("gauge", "commands that the daemon has not acknowledged"),
    "losses": Figure("counter", "how often the daemon of a client was lost, or did not answer at first"),
    "commands_unknown": Figure("counter", "commands that were unacknowledged when the daemon forgot a client"),
    "given_up": Figure("counter", "operations that settled as UNAVAILABLE"),
    "outcomes_after_giving_up": Figure("counter", "late outcomes of operations that were UNAVAILABLE or withdrawn"),
    "outcomes_unknown": Figure("counter", "outcomes that nobody waited for"),
    "grants_requeued": Figure("counter", "limited events that were requeued: no caller waited any more"),
    "grants_unseen": Figure("counter", "limited events that were acknowledged although nobody had looked at them"),
    "frames_ignored": Figure("counter", "frames of another daemon or version, or malformed"),
    "commands_refused": Figure("counter", "refused commands that have no operation, such as fire and advance"),
    "calls_done": Figure("counter", "calls that these clients have ended, with success or without"),
    "calls_failed": Figure("counter", "attempts in which a handler has raised, and calls that were given up"),
    "calls_retried": Figure("counter", "calls that are run again, after an error or by call.retry"),
    "calls_late": Figure("counter", "handlers that have run for longer than their time_limit"),
    "calls_skipped": Figure("counter", "missed points of schedules that were skipped because of their grace"),
}
COUNTERS: Final = frozenset(name for name, figure in FIGURES.items() if figure.kind == "counter")


class TimerdCollector(Collector):
    """For prometheus_client's registry: the counts of clients, and the metrics of their daemons' arenas.

    `client` is one client; None = all clients of this process, threaded and asyncio. With `daemon=False` the arenas are
    left to another exporter: one on each host is enough. A scrape reads memory, and asks no daemon; it works while the
    daemon is dead. In a forked worker the collector counts that worker's clients. Any thread may call it.
    """

    def __init__(self, client: Client | AioClient | None = None, *, daemon: bool = True) -> None:
        self._client = client
        self._daemon = daemon
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._seen: dict[weakref.ref[Link], tuple[str, dict[str, int]]] = {}  # the counts of open links
        self._ended: dict[str, Counter[str]] = {}  # by instance: the counts of links that have ended

    def describe(self) -> Iterable[Metric]:
        """The names of the clients' metrics: by them the registry recognizes and refuses a second collector."""
        return list(self._of_clients({}))

    def collect(self) -> Iterable[Metric]:
        """The present metrics. The registry calls this."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            links = self._links()
            totals = self._add_up(links)
        yield from self._of_clients(totals)
        if self._daemon:
            found = (link.connection.paths for link in links)
            yield from self._of_daemons({(paths.directory, paths.instance): paths for paths in found})

    def _links(self) -> list[Link]:
        if self._client is None:
            return [link for link in link_module.links if not link.closed]
        made = self._client._lazy.made
        return [] if made is None or made.closed else [made]

    def _add_up(self, links: list[Link]) -> dict[str, Counter[str]]:
        """The figures of each instance. Its counters include those of links that have ended."""
        now = {weakref.ref(link): (link.connection.paths.instance, figures_of(link)) for link in links}
        for ref, (instance, figures) in self._seen.items():
            if ref not in now:
                link = ref()
                last = figures if link is None else figures_of(link)  # a closed link to which somebody still refers
                counted = {name: last[name] for name in COUNTERS}
                self._ended.setdefault(instance, Counter()).update(counted)
        self._seen = now
        totals = {instance: Counter(ended) for instance, ended in self._ended.items()}
        for instance, figures in now.values():
            totals.setdefault(instance, Counter()).update(figures)
        return totals

    def _of_clients(self, totals: dict[str, Counter[str]]) -> Iterator[Metric]:
        for name, figure in FIGURES.items():
            rows: list[tuple[Labels, float | Distribution]] = [
                ({"instance": instance}, float(figures[name])) for instance, figures in totals.items()
            ]
            yield metric(Family(f"client_{name}", figure.kind, figure.about, rows))

    def _of_daemons(self, instances: Mapping[tuple[Path, str], InstancePaths]) -> Iterator[Metric]:
        """The metrics of all arenas that this process may read, each name once."""
        found: dict[str, Family] = {}
        for _, paths in sorted(instances.items()):
            for family in read(paths):
                before = found.setdefault(family.name, family._replace(samples=[]))
                found[family.name] = before._replace(samples=[*before.samples, *family.samples])
        yield from map(metric, found.values())


def figures_of(link: Link) -> dict[str, int]:
    """The counts of one client, and its state."""
    protocol = link.protocol
    with link.lock:
        counted: Statistics = protocol.statistics()
        return {
            "clients": 1,
            "connected": int(protocol.state is LIVE),
            "window": protocol.ledger.window,
            "losses": link.connection.losses,
            **counted._asdict(),
        }


def read(paths: InstancePaths) -> list[Family]:
    """The metrics of an instance's arena; an empty list if there is no arena, or this process may not read it."""
    try:
        with ArenaReader.from_descriptor(open_arena_file(paths.judged())) as reader:
            seen = reader.between_turns(lambda: look(reader))
        return list(families(collect(seen, paths), seen))
    except (TimerdError, OSError):
        return []


def of_daemon(paths: InstancePaths) -> Iterator[Metric]:
    """The metrics of an instance's daemon. If its arena cannot be read, only that the daemon is not up."""
    found = read(paths) or [Family("up", "gauge", ABOUT_UP, [({"instance": paths.instance}, 0.0)])]
    return map(metric, found)


def metric(family: Family) -> Metric:
    """A family as an object of prometheus_client."""
    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    labels = list(family.samples[0][0]) if family.samples else ["instance"]
    made: Any = kinds[family.kind](f"timerd_{family.name}", family.about, labels=labels)
    for of, value in family.samples:
        if isinstance(value, Distribution):
            made.add_metric(list(of.values()), buckets=value.buckets, sum_value=value.sum)
        else:
            made.add_metric(list(of.values()), value)
    assert isinstance(made, Metric)
    return made
