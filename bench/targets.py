"""The numbers that timerd is to reach on a 2-core machine: declared once, each with where it stands in the results.

A target finds its figure in the documents of bench/results alone: bench/RESULTS.md says nothing that was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Documents = Mapping[str, Mapping[str, Any]]  # by suite


class Target(NamedTuple):
    """One number to reach."""

    what: str
    goal: float
    unit: str
    suite: str
    find: Callable[[list[dict[str, Any]]], float | None]  # from the rows of `table`
    table: str
    at_least: bool = False  # else at most

    def reached(self, documents: Documents) -> float | None:
        """The figure; None where it was not measured."""
        document = documents.get(self.suite)
        return self.find(document["tables"].get(self.table, [])) if document else None

    def held(self, figure: float) -> bool:
        """Whether that is enough."""
        return figure >= self.goal if self.at_least else figure <= self.goal


def cell(column: str, **where: Any) -> Callable[[list[dict[str, Any]]], float | None]:
    """The column of the row with these values."""

    def find(rows: list[dict[str, Any]]) -> float | None:
        found = [row for row in rows if all(row.get(name) == value for name, value in where.items())]
        return found[-1].get(column) if found else None

    return find


def highest(column: str, **where: Any) -> Callable[[list[dict[str, Any]]], float | None]:
    """The largest value of a column over the rows with these values; 0 when there are rows, but none of that kind."""

    def find(rows: list[dict[str, Any]]) -> float | None:
        found = [row[column] for row in rows if all(row.get(name) == value for name, value in where.items())]
        return max(found, default=0.0) if rows else None

    return find


def core(what: str, figure: str, goal: float, unit: str, pending: int) -> Target:
    """A figure of the core alone."""
    return Target(what, goal, unit, "core", cell("median", figure=figure, pending=pending), "figures")


M = 1_000_000
TARGETS = (
    core("core, 1M pending, one key: insert", "insert_ns", 50, "ns", M),
    core("core, 1M pending, one key: cancel", "cancel_ns", 65, "ns", M),
    core("core, 1M pending, one key: complete by key", "complete_ns", 65, "ns", M),
    core("expiry with all sweeps, 1M pending", "expire_ns", 250, "ns", M),
    core("expiry with all sweeps, 4M pending", "expire_ns", 340, "ns", 4 * M),
    core("worst tick, 1M pending", "worst_tick_ms", 0.1, "ms", M),
    core("worst tick, 4M pending", "worst_tick_ms", 0.6, "ms", 4 * M),
    core("arena bytes for a pending operation, one key", "bytes_per_op", 256, "bytes", M),
)
