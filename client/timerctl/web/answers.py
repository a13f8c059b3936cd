"""The answers of the page's server: JSON about an arena, each a window whose cost has a bound.

A search goes through the records for BUDGET_S, and says where it goes on. So a million operations make a search longer,
but no answer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from timerctl.instance import open_arena
from timerctl.journal.rows import RowFormat
from timerctl.journal.source import opened
from timerctl.journal.tail import before, lines
from timerctl.known import slots_of
from timerctl.listing import Row
from timerctl.live.rows import STANDING, explained
from timerctl.live.views import VIEWS
from timerctl.look import calls, errors, ops
from timerctl.look.clocks import Clocks
from timerctl.look.find import INDEX_BITS, Found, meant, number_of
from timerctl.look.ops import Rows
from timerctl.show.table import Table
from timerctl.show.text import key_of
from timerd_client.groups.listing import listed
from timerd_shm.declare.records import OpRecord
from timerd_shm.host.paths import InstancePaths
from timerd_shm.read.reader import ArenaReader

from .feed import Feed

BUDGET_S: Final = 0.1
WINDOW: Final = 100  # rows of an answer
JOURNAL_ROWS: Final = 100
Query = dict[str, str]


class WrongQueryError(ValueError):
    """A query that no page makes."""


class Answers:
    """Answers by name. Each takes the query of the request, and gives something for JSON."""

    def __init__(self, paths: InstancePaths, feed: Feed, instance: str | None) -> None:
        self._paths, self._feed, self._instance = paths, feed, instance
        self.by_name: dict[str, Callable[[Query], Any]] = {
            "rows": self.rows,
            "operations": self.operations,
            "explain": self.explain,
            "letters": self.letters,
            "errors": self.errors,
            "journal": self.journal,
        }

    def rows(self, query: Query) -> Any:
        """A window of a table: ?view=keys&order=watchers&text=orders&from=0."""
        view = next((view for view in VIEWS if view.name == query.get("view")), None)
        if view is None:
            raise WrongQueryError(f"there is no table {query.get('view')!r:.40}")
        order = query.get("order") or next(iter(view.orders))
        if order not in view.orders:
            raise WrongQueryError(f"{view.name} cannot be sorted by {order!r:.40}")
        found = view.sorted(self._feed.rows(view.name), order, query.get("text", ""))
        start = whole(query, "from")
        more = {"orders": list(view.orders), "count": len(found)}
        return shown(view.table, view.cells, found[start : start + WINDOW]) | more

    def operations(self, query: Query) -> Any:
        """Operations from a record on: ?from=0, &key=, &id=, &owner= (the name of a client or group, or a slot)."""
        with open_arena(self._paths) as reader:
            rows, start = Rows(reader, Clocks(reader.header())), whole(query, "from")
            if query.get("id"):
                found = [each for each in meant(reader, key_of(query["id"]), None, None) if isinstance(each, Found)]
                by_id = [rows.of(each.at, each.op) for each in found]
                return shown(ops.OPERATIONS_TABLE, ops.cells_of, by_id) | {"next": None}
            window, further = scanned(reader, rows, start, wanted(reader, rows, query))
        return shown(ops.OPERATIONS_TABLE, ops.cells_of, window) | {"next": further}

    def explain(self, query: Query) -> Any:
        """What `timerctl explain` prints: ?op=7.1."""
        return {"lines": explained(self._paths, query.get("op", ""), self._instance)}

    def letters(self, query: Query) -> Any:
        """The dead letters, the newest first."""
        with open_arena(self._paths) as reader:
            clocks = Clocks(reader.header())
            found = sorted(listed(reader, failed=True, clocks=clocks.of_calls), key=lambda call: -call.number)
            rows = [calls.row_of(call, clocks.now, 0) for call in found[:WINDOW]]
        return shown(calls.LETTERS_TABLE, calls.letter_of, rows) | {"count": len(found)}

    def errors(self, query: Query) -> Any:
        """The distinct errors, the newest first."""
        with open_arena(self._paths) as reader:
            rows = errors.rows_of(reader)[::-1]
        return shown(errors.ERRORS_TABLE, errors.cells_of, rows)

    def journal(self, query: Query) -> Any:
        """The newest lines of the journal."""
        arguments = argparse.Namespace(directory=None, instance=self._instance)
        with opened(arguments, None) as reader:
            reader.position = before(reader, JOURNAL_ROWS, False)
            return {"lines": list(lines(reader, RowFormat(reader), False))[-JOURNAL_ROWS:]}


def shown(table: Table, cells: Callable[[Row], Sequence[object]], rows: Sequence[Row]) -> dict[str, Any]:
    """A table for the page: its columns, and its rows with their cells and the number that explains them."""
    return {
        "columns": [[column.title, column.right] for column in table.columns],
        "rows": [row | {"cells": list(map(str, cells(row))), "shown_number": number(row)} for row in rows],
    }


def number(row: Row) -> str | None:
    """The number of a row's operation, if the row is about one."""
    op = row.get("op")
    return None if op is None else number_of(op >> INDEX_BITS, op & (1 << INDEX_BITS) - 1)


def whole(query: Query, name: str) -> int:
    """A number of the query, 0 if it is not there."""
    text = query.get(name) or "0"
    if not (text.isascii() and text.isdecimal()) or len(text) > 12:
        raise WrongQueryError(f"{name}={text!r:.40} is not a number")
    return int(text)


def wanted(reader: ArenaReader, rows: Rows, query: Query) -> Callable[[int, OpRecord], bool]:
    """Whether an operation is searched for."""
    if key := query.get("key"):
        name = key_of(key)
        return lambda index, op: any(each == name for each, _, _ in ops.keys_of(reader, index, op))
    if owner := query.get("owner"):
        slots = slots_of(reader, owner)
        return lambda _, op: rows.client_of(op) in slots or rows.group_of(op) == owner
    return lambda _, op: True


def scanned(
    reader: ArenaReader, rows: Rows, start: int, is_meant: Callable[[int, OpRecord], bool]
) -> tuple[list[Row], int | None]:
    """Rows from a record on, and the record where the next search begins; None at the end."""
    found: list[Row] = []
    end = time.monotonic() + BUDGET_S
    used = min(reader.ops.row().high_water, reader.ops.count)
    for index in range(start, used):
        op = reader.ops[index]
        if op.state in STANDING and op.purgatory < len(rows.purgatories) and is_meant(index, op):
            found.append(rows.of(index, op))
        if len(found) == WINDOW or time.monotonic() > end:
            return found, index + 1 if index + 1 < used else None
    return found, None
