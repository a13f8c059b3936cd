"""The counters of an arena, as `timerctl stats` shows them."""

from __future__ import annotations

from timerd_shm.declare.counters import DAEMON_COUNTERS, PURGATORY_COUNTERS, Counter
from timerd_shm.read.families import counted

from .text import code, link, table

NEIGHBOURS = "../explanation/neighbours.md"
# The page that uses a counter, and names it.
USED_BY = {
    "expired": "../howto/operating.md",
    "rejected": "../howto/sizing.md",
    "values_dropped": "../howto/sizing.md",
    "refused_by_id": "../../timerd/DESIGN.md",
    "records_touched_max": NEIGHBOURS,
    "turns_cut": "../explanation/performance.md",
    "frames_malformed": NEIGHBOURS,
    "frames_unknown_session": NEIGHBOURS,
    "events_evicted": NEIGHBOURS,
    "replays_too_old": "../howto/sizing.md",
    "announcements": NEIGHBOURS,
    "asked_again": NEIGHBOURS,
    "ids_forgotten": "../howto/sizing.md",
    "starts": NEIGHBOURS,
    "clients_died": "../howto/processes.md",
    "liveness_refused": NEIGHBOURS,
    "journal_rows_dropped": NEIGHBOURS,
    "outlets_shut": "../explanation/neighbours.md",
    "dead_letters_dropped": "../howto/calls.md",
    "group_outcomes_evicted": NEIGHBOURS,
}


def of_purgatory() -> list[str]:
    """The counters of each purgatory."""
    return _table(PURGATORY_COUNTERS)


def of_daemon() -> list[str]:
    """The counters of the daemon."""
    return _table(DAEMON_COUNTERS)


def _table(counters: tuple[Counter, ...]) -> list[str]:
    rows = (
        (
            str(number),
            code(counter.name),
            f"{counter.unit}, gauge" if counter.gauge else counter.unit,
            counter.about,
            code(metric(counter)),
            link(USED_BY.get(counter.name, "")),
        )
        for number, counter in enumerate(counters)
    )
    return table(("id", "counter", "unit", "what it counts", "for Prometheus", "used by"), rows)


def metric(counter: Counter) -> str:
    """The name of a counter in `timerctl stats --prometheus`."""
    family = counted(counter.name, [])
    return f"timerd_{family.name}" + ("_total" if family.kind == "counter" else "")


PARTS = {"reference/counters.md": {"purgatory": of_purgatory, "daemon": of_daemon}}
