"""The plots of bench/tables. Each plot names a table and columns. The pictures of RESULTS.md are in pictures.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bench.lib.common import rows_with
from bench.lib.svg import DASHES, PALETTE, Axis, Curve, Sheet


class Plot(NamedTuple):
    """A plot of one table: a line for each combination of the values of `series`, in the order of the rows."""

    name: str  # of the file
    title: str
    suite: str
    table: str
    x: str
    y: str
    series: tuple[str, ...]
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False
    where: tuple[tuple[str, Any], ...] = ()  # columns and values: only rows with these


RATE = "operations asked for in a second"


def of_article(case: str, y: str, title: str, y_label: str, log_y: bool) -> Plot:
    """A plot of the article: a figure against the rate, in one of the two cases."""
    name, table = f"article_{case}_{y}", f"points_{case}"
    label = "requests a second, asked"
    return Plot(name, f"{title}, {case} case", "article", table, "asked", y, ("design",), label, y_label, True, log_y)


def of_ladder(name: str, y: str, title: str, y_label: str) -> Plot:
    """A plot of the ladder: a figure against the rate, while no other operations are pending."""
    series, alone = ("keys", "api", "case", "transport"), (("pending", 0),)
    return Plot(f"ladder-{name}", title, "ladder", "points", "rate", y, series, RATE, y_label, True, True, alone)


def of_rivals(y: str, title: str, y_label: str) -> Plot:
    """A plot of the rivals: a figure of each contestant against the number of pending timers."""
    name, label = f"rivals_{y}", "pending timers"
    return Plot(name, title, "rivals", "recent", "pending", y, ("contestant",), label, y_label, True, True)


PLOTS: tuple[Plot, ...] = (
    of_rivals("insert_ns", "Insert", "ns"),
    of_rivals("cancel_ns", "Cancel", "ns"),
    of_rivals("worst_tick_ms", "Worst tick", "ms"),
    *(of_article(case, "reached", "Rate reached", "requests a second", True) for case in ("low", "high")),
    *(of_article(case, "cpu_cores", "CPU", "cores busy", False) for case in ("low", "high")),
    *(of_article(case, "memory_mib", "Memory of records", "MiB", True) for case in ("low", "high")),
    of_ladder("reached", "reached_rate", "Reached", "reached in a second"),
    of_ladder("latency", "completion_p99_ms", "From fire() to the owner's callback, p99", "ms"),
    of_ladder("cpu", "cpu_us", "CPU of all processes for a request", "us"),
    Plot("alternatives-latency", "From fire() to the owner, p99", "alternatives", "runs", "rate", "completion_p99_ms",
         ("way",), RATE, "ms", log_x=True, log_y=True),
    Plot("alternatives-unheard", "Completions lost: the event came too early", "alternatives", "runs", "rate",
         "unheard_percent", ("way",), RATE, "% of the operations", log_x=True),
)  # fmt: skip


def points(plot: Plot, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a plot, {name: (xs, ys)}; empty if nothing was measured."""
    rows = documents.get(plot.suite, {}).get("tables", {}).get(plot.table, [])
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows_with(rows, dict(plot.where)):
        if row.get(plot.x) is None or row.get(plot.y) is None:
            continue
        name = ", ".join(label(column, row[column]) for column in plot.series if column in row)
        xs, ys = lines.setdefault(name, ([], []))
        xs.append(row[plot.x])
        ys.append(row[plot.y])
    return lines


def label(column: str, value: Any) -> str:
    """A value in a legend: a text as it is, a number with the name of its column."""
    if isinstance(value, bool):
        return column.replace("_", " ") if value else f"not {column.replace('_', ' ')}"
    return value if isinstance(value, str) else f"{value:,} {column.replace('_', ' ')}"


def draw(plot: Plot, lines: Mapping[str, tuple[list[float], list[float]]]) -> str:
    """The text of one SVG."""
    sheet = Sheet(plot.title)
    sheet.heading(plot.title)
    series = [
        Curve(
            name, list(zip(xs, ys, strict=True)), PALETTE[at % len(PALETTE)], DASHES[at // len(PALETTE) % len(DASHES)]
        )
        for at, (name, (xs, ys)) in enumerate(lines.items())
    ]
    sheet.curves(series, Axis(plot.x_label, log=plot.log_x), Axis(plot.y_label, log=plot.log_y))
    return sheet.text()
