"""The tables of top: clients, keys, purgatories, groups and calls; and operations, which explain a row.

A view reads its rows from the arena. Some views go through all operations. So the rows of a view are read again only
after RESTED times the time that they took: a million operations cost a tenth of a core at most.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from timerctl.listing import Row
from timerctl.look import calls, clients, keys
from timerctl.look.clocks import Clocks
from timerctl.look.handlers import Handlers
from timerctl.show.table import Column, Table
from timerctl.show.text import size, span, word
from timerd_client.groups.listing import listed
from timerd_shm.read.reader import ArenaReader
from timerd_shm.read.text import plain

from .hot import HotKeys
from .samples import Sample

RESTED: Final = 10
ROWS_MAX: Final = 500  # of a table
ALL_KEYS: Final = 50_000  # watches; with more of them only the keys with the most watchers are rows


class Source(NamedTuple):
    """An open arena, and its newest sample and hot keys."""

    reader: ArenaReader
    sample: Sample
    hot: HotKeys


class View(NamedTuple):
    """A table of top."""

    name: str
    key: str  # to press
    table: Table
    rows: Callable[[Source], list[Row]]
    cells: Callable[[Row], Sequence[object]]
    nothing: str
    orders: dict[str, Callable[[Row], Any]]  # by the title of a column; the first one at the start

    def sorted(self, rows: list[Row], order: str, pattern: str = "") -> list[Row]:
        """The rows in this order; only those in which a cell has the pattern, in any case."""
        wanted = pattern.lower()
        shown = [row for row in rows if not wanted or any(wanted in str(cell).lower() for cell in self.cells(row))]
        return sorted(shown, key=self.orders[order])[:ROWS_MAX]


class Reading:
    """The rows of a view, read as often as their cost allows."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.rows: list[Row] = []
        self._again_s = 0.0

    def refresh(self, source: Source) -> bool:
        """Read the rows, unless it is too early. Returns whether it has."""
        began = time.monotonic()
        if began < self._again_s:
            return False
        self.rows = self.view.rows(source)
        ended = time.monotonic()
        self._again_s = ended + RESTED * (ended - began)
        return True


# the rows -------------------------------------------------------------------------------------------------------------


def _clients(source: Source) -> list[Row]:
    return clients.rows_of(source.reader, source.sample.header)


def _keys(source: Source) -> list[Row]:
    """The watched keys, and those that had an event in the last seconds. Of very many keys, the most watched ones."""
    rates, reader = source.hot.rates(), source.reader
    found = keys.rows_of(reader) if reader.nodes.high_water() <= ALL_KEYS else keys.most_watched(reader, ROWS_MAX)
    rows = {(row["purgatory"], row["key"]): row | {"rate": 0.0} for row in found}
    for (purgatory, name), rate in rates.items():
        row = rows.setdefault((purgatory, plain(name)), keys.row_of(purgatory, name) | {"rate": 0.0})
        row["rate"] = rate
    return list(rows.values())


def _purgatories(source: Source) -> list[Row]:
    stats = source.sample.stats["purgatories"]
    return [
        {
            "name": name,
            **each["counters"],
            "wait": each["histograms"]["wait_ns"],
            "rates": source.sample.purgatories[name],
        }
        for name, each in stats.items()
    ]


def _groups(source: Source) -> list[Row]:
    return [group._asdict() | {"holders": [each._asdict() for each in group.holders]} for group in source.sample.groups]


def _calls(source: Source) -> list[Row]:
    clocks = Clocks(source.sample.header)
    handlers, now = Handlers(source.reader), clocks.now
    arguments = argparse.Namespace(instance=None)
    found = listed(source.reader, clocks=clocks.of_calls)
    return [calls.row_of(call, now, 0) | {"hints": list(handlers.why(call, arguments))} for call in found]


# the tables -----------------------------------------------------------------------------------------------------------

KEYS_TABLE = Table(
    Column("key", flexible=True),
    Column("events/s", right=True),
    Column("watchers", right=True),
    Column("watermark", right=True),
    Column("purgatory", flexible=True),
)
PURGATORIES_TABLE = Table(
    Column("purgatory", flexible=True),
    *(Column(title, right=True) for title in ("registered/s", "completed/s", "expired/s", "events/s", "pending")),
    *(Column(title, right=True) for title in ("watched", "wait p50", "wait p99")),
)
GROUPS_TABLE = Table(
    Column("group", flexible=True),
    *(
        Column(title, right=True)
        for title in ("members", "silent", "doing", "pending", "backlog", "waits", "dead letters", "held")
    ),
)


def _key_cells(row: Row) -> tuple[object, ...]:
    watermark = "-" if row["watermark"] is None else row["watermark"]
    return word(row["key"]), f"{row['rate']:,.1f}", row["watchers"], watermark, row["purgatory"]


def _purgatory_cells(row: Row) -> tuple[object, ...]:
    rates = (f"{row['rates'][name]:,.0f}" for name in ("registered", "completed", "expired", "events"))
    waits = (span(round(row["wait"][name])) if row["wait"]["count"] else "-" for name in ("p50", "p99"))
    return row["name"], *rates, row["pending"], row["watched"], *waits


def _group_cells(row: Row) -> tuple[object, ...]:
    counts = (row[name] for name in ("name", "members", "silent", "held", "pending", "backlog"))
    return *counts, span(row["waits_ns"]) if row["waits_ns"] else "-", row["letters"], size(row["bytes"])


def _most(*names: str) -> Callable[[Row], Any]:
    return lambda row: tuple(-(row[name] or 0) for name in names)


VIEWS: Final = (
    View(
        "clients",
        "c",
        clients.CLIENTS_TABLE,
        _clients,
        clients.cells_of,
        "No clients.",
        {name: clients.ORDERS[name] for name in ("share", "pending", "backlog", "doing", "silent", "cpu", "name")},
    ),
    View(
        "keys",
        "k",
        KEYS_TABLE,
        _keys,
        _key_cells,
        "No keys.",
        {
            "events/s": _most("rate", "watchers"),
            "watchers": _most("watchers"),
            "watermark": _most("watermark"),
            "key": lambda row: row["key"],
        },
    ),
    View(
        "purgatories",
        "p",
        PURGATORIES_TABLE,
        _purgatories,
        _purgatory_cells,
        "No purgatories.",
        {
            "pending": _most("pending"),
            "registered/s": lambda row: -row["rates"]["registered"],
            "expired/s": lambda row: -row["rates"]["expired"],
            "purgatory": lambda row: row["name"],
        },
    ),
    View(
        "groups",
        "g",
        GROUPS_TABLE,
        _groups,
        _group_cells,
        "No groups.",
        {
            "waits": _most("waits_ns", "backlog", "pending"),
            "backlog": _most("backlog"),
            "pending": _most("pending"),
            "dead letters": _most("letters"),
            "silent": _most("silent"),
            "group": lambda row: row["name"],
        },
    ),
    View(
        "calls",
        "l",
        calls.CALLS_TABLE,
        _calls,
        calls.cells_of,
        "No calls.",
        {
            "now": lambda row: (calls_rank(row), row["due_in_ns"] or 0),
            "name": lambda row: row["name"],
            "attempt": _most("attempt"),
        },
    ),
)
WAITING: Final = ("late", "unhandled", "deserted", "silent", "busy", "waits", "runs", "delivered", "paused", "pending")


def calls_rank(row: Row) -> int:
    """The place of a call's state in the order of urgency."""
    return WAITING.index(row["state"]) if row["state"] in WAITING else len(WAITING)
