"""Figures of reports, with matplotlib. Each figure is drawn from aggregates: a few hundred numbers.

plots.waits(rollup(df, by="purgatory"), "latency").savefig("latency.png")
plots.timeout_ratio(report(df, window="10 seconds")).savefig("timeouts.png")
plots.what_if(what_if(df, timeouts)).savefig("what-if.png")
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.read.histogram import upper_bound
from timerd_spark.reports.rollups import is_rollup, merged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

MEASURES = {
    "latency": "from registration to completion (ms)",
    "lateness": "from deadline to expiry (ms)",
}
COLOURS = ("#2f6db3", "#c8553d", "#3a8f6f", "#8d6cab", "#b98a2f", "#5b6770")
SIZE = (7.2, 3.4)  # inches
GROUPS_MAX = 12
LABELS_MAX = 12  # on an axis
POINTS_MAX = 5_000


def waits(rolled: DataFrame, measure: str = "latency", by: str | Sequence[str] = ()) -> Figure:
    """The share of operations that took longer than a time, a line for each group of a rollup; both axes logarithmic.

    Times are read from buckets, so they are at most rollups.ERROR too large. Raises InvalidValueError.
    """
    if measure not in MEASURES:
        raise InvalidValueError(f"waits(): measure={measure!r}: give {' or '.join(MEASURES)}")
    if not is_rollup(rolled):
        raise InvalidValueError("waits() needs a rollup: give it rollup(df, ...)")
    names = [by] if isinstance(by, str) else list(by)
    rows = merged(rolled, names).select(*names, measure, f"{measure}_max_ns").limit(GROUPS_MAX).collect()
    figure, axes = _axes(MEASURES[measure], "share that took longer")
    for colour, row in zip(_colours(), sorted(rows, key=lambda row: str(tuple(row)[: len(names)])), strict=False):
        counts = [one["count"] for one in row[measure]]
        total = sum(counts)
        left = [1 - part / total for part in accumulate(counts)]
        at = [min(upper_bound(one["bucket"]), row[f"{measure}_max_ns"]) / 1e6 for one in row[measure]]
        shown = [(x, y) for x, y in zip(at, left, strict=True) if x > 0 and y > 1e-12]
        if shown:
            axes.step(*zip(*shown, strict=True), where="post", color=colour, label=_label(row, names))
    _finish(axes, names)
    if axes.lines:
        axes.set_xscale("log")
        axes.set_yscale("log")
    return figure


def timeout_ratio(reported: DataFrame, by: str | Sequence[str] = ()) -> Figure:
    """The timeout ratio over time, from a report with windows; a line for each group. Raises InvalidValueError."""
    names = [by] if isinstance(by, str) else list(by)
    _need_columns(reported, [*names, "start", "timeout_ratio"], "timeout_ratio()", "report(df, window=...)")
    # In microseconds, not in local time: a local hour may be skipped or repeated.
    columns = [*(f"`{name}`" for name in names), "unix_micros(timestamp(start)) AS start", "timeout_ratio"]
    rows = reported.selectExpr(*columns).orderBy("start").limit(POINTS_MAX).collect()
    figure, axes = _axes("seconds since the first window", "timeout ratio")
    first = rows[0]["start"] if rows else None
    for colour, (label, group) in zip(_colours(), sorted(_groups(rows, names).items()), strict=False):
        seconds = [(row["start"] - first) / 1e6 for row in group]
        axes.plot(seconds, [row["timeout_ratio"] for row in group], color=colour, label=label, marker=".")
    axes.set_ylim(bottom=0)
    _finish(axes, names)
    return figure


def what_if(asked: DataFrame, by: str | Sequence[str] = ()) -> Figure:
    """The timeout ratio under other timeouts, from what_if(). Beyond the data points are hollow: upper bounds."""
    names = [by] if isinstance(by, str) else list(by)
    columns = [*names, "timeout_ns", "timeout_ratio", "timeout_ratio_high", "beyond"]
    _need_columns(asked, columns, "what_if()", "what_if(df, timeouts)")
    rows = asked.select(*columns).orderBy("timeout_ns").limit(POINTS_MAX).collect()
    figure, axes = _axes("timeout (ms)", "timeout ratio")
    for colour, (label, group) in zip(_colours(), sorted(_groups(rows, names).items()), strict=False):
        known = [(row["timeout_ns"] / 1e6, row["timeout_ratio"]) for row in group if not row["beyond"]]
        beyond = [(row["timeout_ns"] / 1e6, row["timeout_ratio_high"]) for row in group if row["beyond"]]
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, label=label, marker=".")
        if beyond:
            bounds = zip(*(known[-1:] + beyond), strict=True)
            axes.plot(*bounds, color=colour, linestyle=":", marker="o", markerfacecolor="white")
    if axes.lines:
        axes.set_xscale("log")
        timeouts_ms = sorted({row["timeout_ns"] / 1e6 for row in rows})
        if len(timeouts_ms) <= LABELS_MAX:  # a log scale's minor labels would overlap
            axes.set_xticks(timeouts_ms, [f"{timeout_ms:g}" for timeout_ms in timeouts_ms])
            axes.minorticks_off()
    axes.set_ylim(bottom=0)
    _finish(axes, names)
    return figure


def svg(figure: Figure) -> str:
    """A figure as an SVG element for a page of HTML; text stays text."""
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "timerd"}):
        figure.savefig(target, format="svg", metadata={"Date": None}, bbox_inches="tight")
    text = target.getvalue()
    element = text[text.index("<svg") :]
    head, rest = element.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", head) + ">" + rest  # the page gives the figure its width


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _finish(axes: Axes, names: Sequence[str]) -> None:
    if not axes.lines:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")
    elif names and axes.get_legend_handles_labels()[1]:
        for text in axes.legend(frameon=False).get_texts():
            text.set_parse_math(False)  # a $ in a name is no formula


def _colours() -> list[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(GROUPS_MAX)]


def _label(row: Any, names: Sequence[str]) -> str:
    """A group's name for a legend, printable. Matplotlib leaves out names that begin with _, so a space goes first."""
    label = ", ".join(str(row[name]) for name in names)
    return " " * label.startswith("_") + "".join(one if one.isprintable() else "\ufffd" for one in label)


def _groups(rows: Iterable[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(_label(row, names), []).append(row)
    return found


def _need_columns(df: DataFrame, names: Sequence[str], what: str, given: str) -> None:
    for name in names:
        if name not in df.columns:
            raise InvalidValueError(f"{what} needs the column {name!r}: give it {given}")
