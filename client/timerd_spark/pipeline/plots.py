"""Figures of reports, with matplotlib. Each figure is drawn from aggregates: a few hundred numbers.

plots.waits(rollup(df, by="purgatory"), "latency").savefig("latency.png")
plots.over_time(report(df, window="10 seconds"), "timeout_ratio").savefig("timeouts.png")
plots.what_if(what_if(df, timeouts)).savefig("what-if.png")
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import accumulate, pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.read.histogram import index_of, lower_bound, upper_bound
from timerd_spark.reports.rollups import is_rollup, merged

from .verdicts import ms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure
    from pyspark.sql import DataFrame

MEASURES: Final = {"latency": "wait until completion", "lateness": "from deadline to expiry"}
COLOURS: Final = ("#2f6db3", "#c8553d", "#3a8f6f", "#8d6cab", "#b98a2f", "#5b6770")
INK, GRID = "#1d2329", "#c9d0d6"
# A page may set the colours of figures for its light and its dark form: var(--series-0), var(--ink), var(--grid).
VARIABLES: Final = {**{colour: f"series-{at}" for at, colour in enumerate(COLOURS)}, INK: "ink", GRID: "grid"}
NAMES: Final = {"rate": "outcomes a second", "timeout_ratio": "share that expired"}
LINES: Final = ("-", "--", ":", "-.")
SIZE: Final = (4.4, 3.1)  # inches: legible on a phone, and beside two other figures on a desktop screen
LOGARITHMIC: Final = ", logarithmic"  # in the names of axes that do not begin at 0
GROUPS_MAX = 12
LABELS_MAX = 12  # on an axis
POINTS_MAX = 5_000
FULL: Final = 0.9  # a window at an end is full if its rate is at least this share of the median rate
PARTLY_MAX: Final = 3  # the most windows of a part that are left out: one at its beginning, two at its end
POINT_MS: Final = 1e-6  # the position of waits of 0 on the logarithmic axis
UNSETTLED_MAX: Final = 0.999  # a figure of waits begins at the time when one operation in a thousand has settled
BAND: Final = "limits, 95 % confidence"
ROW_STEPS: Final = 8  # buckets in a row of a heatmap
LOWEST_NS: Final = 10_000  # the lowest row of a heatmap has all shorter times
SHADES: Final = (
    0.3,
    0.5,
    0.75,
    1.0,
)  # opacities of a heatmap's cells: much is dark on a light page, light on a dark one
# Times in microseconds, not in local time: a local hour may be skipped or repeated.
TIMES: Final = ("unix_micros(timestamp(start)) AS start", "unix_micros(timestamp(`end`)) AS `end`")
UNITS: Final = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))

Colours = Mapping[str, str]  # colours by the labels of groups; other groups get COLOURS, in the order of their names
Marks = Mapping[str, tuple[float, float]]  # by name ("p99"): a share (0.99), and the time in ms that it does not exceed
Gaps = Sequence[tuple[int, int, str]]  # times without work: begin and end, in us since 1970, and a name


def waits(
    rolled: DataFrame,
    measure: str = "latency",
    by: str | Sequence[str] = (),
    colours: Colours | None = None,
    *,
    marks: Marks | None = None,
    x: str = "",
) -> Figure:
    """For each time, the share of operations that took longer: a line for each group of a rollup.

    Both axes are logarithmic. Times are read from buckets, so they are at most rollups.ERROR too large. `marks` are
    points with their names and times. `x` is the name of the axis of time, if the measure's own does not fit. Raises
    InvalidValueError.
    """
    _need_rollup(rolled, measure, "waits()")
    names = [by] if isinstance(by, str) else list(by)
    groups = merged(rolled, names).select(*names, measure, f"{measure}_max_ns")
    rows = _at_most(GROUPS_MAX, groups, "waits(): there are more than {} groups: select some, or give fewer columns")
    figure, axes = _axes(f"{x or MEASURES[measure]} (ms{LOGARITHMIC})", f"share that took longer{LOGARITHMIC}")
    for row in sorted(rows, key=lambda row: str(tuple(row)[: len(names)])):
        counts = [one["count"] for one in row[measure]]
        total = sum(counts)
        left = [1 - part / total for part in accumulate(counts)]
        at = [min(upper_bound(one["bucket"]), row[f"{measure}_max_ns"]) / 1e6 for one in row[measure]]
        shown = [(x, y) for x, y in zip(at, left, strict=True) if x > 0 and 1e-12 < y <= UNSETTLED_MAX]
        if at:  # a group whose operations are all in one bucket is a point
            label, marker = _label(row, names), "" if shown else "."
            points = zip(*(shown or [(max(at[-1], POINT_MS), 1.0)]), strict=True)
            style = LINES[len(axes.lines) % len(LINES)]
            axes.step(*points, style, where="post", color=_colour(axes, label, colours), label=label, marker=marker)
    _finish(axes)
    if axes.lines:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name, (share, at_ms) in (marks or {}).items():
            axes.plot(max(at_ms, POINT_MS), 1 - share, "o", color=INK, markersize=5, label=f"_{name}")
            axes.annotate(
                f"{name} {ms(at_ms)}", (max(at_ms, POINT_MS), 1 - share), (6, 4), textcoords="offset points", color=INK
            )
        _plain_ticks(axes.xaxis)
        _plain_ticks(axes.yaxis, of_share=True)
    return figure


def heatmap(
    rolled: DataFrame, measure: str = "latency", *, y: str = "", p99_ms: float | None = None, gaps: Gaps = ()
) -> Figure:
    """How many operations took how long, over time: a column for each window of a rollup, two rows for each doubling.

    A dashed line is drawn at `p99_ms`. `gaps` are shaded, with their names. `y` is the name of the axis, if the
    measure's own does not fit. Raises InvalidValueError.
    """
    import numpy as np
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    _need_rollup(rolled, measure, "heatmap()")
    ordered = rolled.selectExpr(measure, *TIMES).orderBy("start")
    rows = _at_most(POINTS_MAX, ordered, "heatmap(): there are more than {} windows: give rollup() longer ones")
    cells: Counter[tuple[int, int, int]] = Counter()
    for row in rows:
        for one in row[measure]:
            cells[row["start"], row["end"], max(one["bucket"], index_of(LOWEST_NS)) // ROW_STEPS] += one["count"]
    time = _Time(rows)
    figure, axes = _axes(time.name, f"{y or MEASURES[measure]} (ms{LOGARITHMIC})")
    decades = len(str(max(cells.values(), default=0)))
    merged_below = max(decades - len(SHADES), 0)  # the lowest shade is for these decades, too
    for level, shade in enumerate(SHADES[: decades - merged_below] if cells else ()):
        low, high = 10 ** (level + merged_below) if level else 1, 10 ** (level + merged_below + 1)
        shown = [cell for cell, count in cells.items() if low <= count < high]
        if shown:
            corners = [
                [(time.of(at), lower_bound(row * ROW_STEPS) / 1e6) for at, row in zip(ats, rows, strict=True)]
                for start, end, bottom in shown
                for ats, rows in [((start, end, end, start), (bottom, bottom, bottom + 1, bottom + 1))]
            ]
            path = Path.make_compound_path_from_polys(np.array(corners))
            axes.add_patch(
                PathPatch(
                    path, facecolor=COLOURS[0], alpha=shade, linewidth=0, label=f"{low:,} to {high - 1:,} operations"
                )
            )
    if cells:
        axes.set_yscale("log")
        axes.autoscale_view()
        _name_gaps(axes, time, gaps)
        if p99_ms:
            _mark_level(axes, p99_ms, f"p99 {ms(p99_ms)}")
        _plain_ticks(axes.yaxis)
    _finish(axes)
    return figure


def over_time(
    reported: DataFrame,
    measures: str | Sequence[str],
    by: str | Sequence[str] = (),
    colours: Colours | None = None,
    *,
    plan: float | None = None,
    gaps: Gaps = (),
) -> Figure:
    """Columns of a report with windows, over time; a line for each group and measure. Raises InvalidValueError.

    The axis begins at 0. A dashed line is drawn at `plan`. `gaps` are shaded, with their names. Lines of the second
    measure are dashed, lines of the third dotted. A line is broken into parts where windows are missing. The first
    window of each part, and the last two, are left out if they are not full: work seldom begins and ends with a window,
    and the longest waits settle in the next window. A window is not full if its rate is below nine tenths of the part's
    median.
    """
    from matplotlib.ticker import MaxNLocator

    names, wanted = ([given] if isinstance(given, str) else list(given) for given in (by, measures))
    _need_columns(reported, [*names, "start", "end", "rate"], "over_time()", "report(df, window=...)")
    if unknown := [name for name in wanted if name not in reported.columns]:
        raise InvalidValueError(
            f"over_time(): measures={unknown[0]!r} is no column of the report; there are {', '.join(reported.columns)}"
        )
    columns = [*(f"`{name}`" for name in dict.fromkeys([*names, *wanted, "rate"])), *TIMES]
    ordered = reported.selectExpr(*columns).orderBy("start")
    rows = _at_most(POINTS_MAX, ordered, "over_time(): there are more than {} rows: give report() a longer window")
    time = _Time(rows)
    figure, axes = _axes(time.name, _measured(wanted))
    is_share = all(name.endswith("_ratio") for name in wanted)
    for label, group in sorted(_groups(rows, names).items()):
        colour = _colour(axes, label, colours)
        for style, measure in zip(LINES, wanted, strict=False):
            points: list[tuple[float, float]] = []
            for part in _parts(group):
                values = [(row["start"], math.nan if row[measure] is None else float(row[measure])) for row in part]
                points += [(time.of(start), value) for start, value in values]
                points.append((points[-1][0], math.nan))  # the line is broken here
            points.pop()
            if not all(math.isnan(y) for _, y in points):
                named = ", ".join([label] * bool(label) + [_short(measure)] * (len(wanted) > 1))
                axes.plot(*zip(*points, strict=True), style, color=colour, label=named, marker=".", markersize=3)
    if axes.lines:
        if plan is not None:
            _mark_level(axes, plan, f"the plan: {plan:.1%}" if is_share else f"the plan: {plan:,.0f}")
        axes.set_ylim(bottom=0)
        _name_gaps(axes, time, gaps)
    _finish(axes)
    if axes.lines:
        axes.yaxis.set_major_formatter(_percent if is_share else _number)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def what_if(
    asked: DataFrame,
    by: str | Sequence[str] = (),
    colours: Colours | None = None,
    *,
    today: tuple[int, int] | None = None,
) -> Figure:
    """The timeout ratio under other timeouts, from what_if(), with its limits of confidence as a band.

    `today` has the least and the largest timeout that the operations had, in ns: a line, or a span. Hollow triangles
    that point down are upper bounds, for timeouts that the data do not reach.
    """
    names = [by] if isinstance(by, str) else list(by)
    limits = ["timeout_ratio_low", "timeout_ratio_high"]
    columns = [*names, "timeout_ns", "timeout_ratio", *limits, "beyond"]
    _need_columns(asked, columns, "what_if()", "what_if(df, timeouts)")
    points = asked.select(*columns).orderBy("timeout_ns")
    rows = _at_most(POINTS_MAX, points, "what_if(): there are more than {} rows: select some groups")
    figure, axes = _axes(f"timeout (ms{LOGARITHMIC})", "share that would expire")
    for label, group in sorted(_groups(rows, names).items()):
        colour = _colour(axes, label, colours)
        known = [row for row in group if not row["beyond"]]
        at = [row["timeout_ns"] / 1e6 for row in known]
        beyond = [(row["timeout_ns"] / 1e6, row["timeout_ratio_high"]) for row in group if row["beyond"]]
        if known:
            marker = "." if len(known) <= LABELS_MAX else ""
            shares = [row["timeout_ratio"] for row in known]
            axes.plot(at, shares, color=colour, label=label or "estimate", marker=marker)
            low, high = ([row[name] for row in known] for name in limits)
            named = ", ".join([label] * bool(label) + [BAND])
            axes.fill_between(at, low, high, color=colour, alpha=0.25, linewidth=0, label=named)
        if beyond:
            axes.plot(
                *zip(*beyond, strict=True),
                color=colour,
                linestyle="",
                marker="v",
                markerfacecolor="none",
                label=", ".join([label] * bool(label) + ["at most"]),
            )
    if axes.lines:
        axes.set_xscale("log")
        if today:
            low_ms, high_ms = (timeout_ns / 1e6 for timeout_ns in today)
            text = f"today: {ms(low_ms)}" + (f" to {ms(high_ms)}" if high_ms > low_ms else "")
            if high_ms > low_ms:
                axes.axvspan(low_ms, high_ms, color=INK, alpha=0.12, linewidth=0)
            axes.axvline(low_ms, color=INK, linestyle="--", label=f"_{text}")
            axes.annotate(
                text, (low_ms, 1), (-4, -4), xycoords=("data", "axes fraction"), textcoords="offset points",
                color=INK, rotation=90, ha="right", va="top",
            )  # fmt: skip
        timeouts_ms = sorted({row["timeout_ns"] / 1e6 for row in rows})
        _plain_ticks(axes.xaxis)
        if len(timeouts_ms) <= LABELS_MAX:
            axes.set_xticks(timeouts_ms, [f"{timeout_ms:g}" for timeout_ms in timeouts_ms])
            axes.minorticks_off()
        axes.yaxis.set_major_formatter(_percent)
    axes.set_ylim(bottom=0)
    _finish(axes)
    return figure


def svg(figure: Figure, title: str = "") -> str:
    """A figure as an SVG element for HTML. Text stays text, and the page may replace the colours in VARIABLES."""
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"timerd {title}"}):
        figure.savefig(target, format="svg", metadata={"Date": None}, bbox_inches="tight", transparent=True)
    text = re.sub(r"<metadata>.*?</metadata>", "", target.getvalue(), flags=re.DOTALL)
    # Each figure has the same names of parts. A page with two figures would have each name twice.
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    for colour, name in VARIABLES.items():
        text = re.sub(rf"(?<=: ){colour}\b", f"var(--{name}, {colour})", text)
    element = text[text.index("<svg") :]
    head, rest = element.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)  # the page gives the figure its width
    return f'{head} role="img" aria-label="{escape(title)}">{rest}'


class _Time:
    """The axis of time of a figure: its name, and the places of times. Rows have TIMES."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._first_us = rows[0]["start"] if rows else 0
        length_s = (max((row["start"] for row in rows), default=0) - self._first_us) / 1e6
        self._unit_s, unit = next((one for one in UNITS if length_s >= 2 * one[0]), UNITS[-1])
        begun = f"{datetime.fromtimestamp(self._first_us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        self.name = f"{unit} since {begun}"

    def of(self, at_us: int) -> float:
        return (at_us - self._first_us) / 1e6 / self._unit_s


# parts of a figure ----------------------------------------------------------------------------------------------------


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")  # so that the image has room for the labels and the legend
    axes = figure.add_subplot()
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GRID)
    axes.tick_params(which="both", color=GRID, labelcolor=INK)
    axes.grid(color=GRID, alpha=0.5)
    return figure, axes


def _name_gaps(axes: Axes, time: _Time, gaps: Gaps) -> None:
    """Shade times without work, and write their names into them, upwards."""
    for begin_us, end_us, name in gaps:
        begin, end = time.of(begin_us), time.of(end_us)
        axes.axvspan(begin, end, color=GRID, alpha=0.35, linewidth=0)
        axes.annotate(
            name, ((begin + end) / 2, 0.03), xycoords=("data", "axes fraction"), color=INK, rotation=90, ha="center",
            va="bottom", fontsize="small",
        )  # fmt: skip


def _mark_level(axes: Axes, at: float, name: str) -> None:
    """A dashed line across the figure."""
    axes.axhline(at, color=INK, linestyle="--", linewidth=1, label=name)


def _finish(axes: Axes) -> None:
    if not axes.lines and not axes.patches:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=INK)
        axes.set(xticks=[], yticks=[])
    elif axes.get_legend_handles_labels()[1]:
        # Above the figure, where it hides no line.
        legend = axes.legend(
            frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=2
        )
        for text in legend.get_texts():
            text.set_parse_math(False)  # a $ in a name is no formula


def _plain_ticks(axis: Any, of_share: bool = False) -> None:
    """Plain numbers on a logarithmic axis. On an axis of few powers of ten there are also ticks at 2 and 5."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0,) if low > 0 and high / low > 300 else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(_percent if of_share else _number)
    axis.set_minor_formatter(NullFormatter())


def _number(value: float, _: object = None) -> str:
    return f"{value:,.10g}"


def _percent(value: float, _: object = None) -> str:
    return f"{value * 100:,.6g}%"


def _measured(measures: Sequence[str]) -> str:
    """The name of an axis."""
    first = measures[0]
    if first.endswith("_ms"):
        what = {"latency": "wait", "lateness": "late"}[first.partition("_")[0]]
        return f"{what}, {', '.join(map(_short, measures))} (ms)"
    if first in NAMES:
        return NAMES[first]
    return first.replace("_", " ") if len(measures) == 1 else first.rpartition("_")[0].replace("_", " ")


def _short(measure: str) -> str:
    """ "p99" of "latency_p99_ms", "max" of "in_flight_max"."""
    return measure.removesuffix("_ms").rpartition("_")[2].replace("p999", "p99.9")


def _colour(axes: Axes, label: str, colours: Colours | None) -> str:
    """The colour that `colours` has for a group, else the next unused one of COLOURS."""
    own = (colours or {}).get(label)
    drawn = len({line.get_color() for line in axes.lines})
    return own or COLOURS[drawn % len(COLOURS)]


def _label(row: Any, names: Sequence[str]) -> str:
    """A group's name for a legend, printable. Matplotlib leaves out names that begin with _, so a space goes first."""
    label = ", ".join(str(row[name]) for name in names)
    return " " * label.startswith("_") + "".join(one if one.isprintable() else "\ufffd" for one in label)


def _groups(rows: Iterable[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(_label(row, names), []).append(row)
    return found


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The windows of a group, in parts without a gap. A window at an end of a part is left out if it is not full."""
    ends = [at for at, (row, following) in enumerate(pairwise(rows), 1) if following["start"] > row["end"]]
    for begin, end in pairwise([0, *ends, len(rows)]):
        part = rows[begin:end]
        if len(part) > PARTLY_MAX:
            rates = [row["rate"] or 0.0 for row in part]  # null if no time has passed, in a report without windows
            full = FULL * median(rates)
            to = next(at for at in range(PARTLY_MAX) if at == PARTLY_MAX - 1 or rates[-1 - at] >= full)
            part = part[int(rates[0] < full) : len(part) - to]
        yield part


def _at_most(most: int, df: DataFrame, wrong: str) -> list[Any]:
    """All rows of a DataFrame. Raises InvalidValueError if it has more than `most`: too many for a figure."""
    rows: list[Any] = df.limit(most + 1).collect()
    if len(rows) > most:
        raise InvalidValueError(wrong.format(f"{most:,}"))
    return rows


def _need_rollup(df: DataFrame, measure: str, what: str) -> None:
    if measure not in MEASURES:
        raise InvalidValueError(f"{what}: measure={measure!r}: give {' or '.join(MEASURES)}")
    if not is_rollup(df):
        raise InvalidValueError(f"{what} needs a rollup: give it rollup(df, ...)")


def _need_columns(df: DataFrame, names: Sequence[str], what: str, given: str) -> None:
    for name in names:
        if name not in df.columns:
            raise InvalidValueError(f"{what} needs the column {name!r}: give it {given}")
