"""Charts as text of SVG, without a library. The same figures give the same bytes.

    sheet = Sheet("Latency")
    sheet.bars([Bar("timerd", 206.0, "206 us", BLUE)])
    sheet.curves([Curve("timerd", [(1.0, 2.0), (10.0, 3.0)], BLUE)], Axis("rate", log=True), Axis("ms"))
    Path("latency.svg").write_text(sheet.text())

The background is transparent. Each colour has a contrast of 3 to 1 at least on white and on the dark pages of GitHub
and of the site. So a chart needs no second version for dark pages. Its letters are large enough on a page of 360 px.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

WIDTH, MARGIN, SIZE, SMALL = 400, 8, 15, 13
SHOWN = 1.3  # wide pages show a chart larger by this factor
GREY, BLUE, ORANGE, GREEN = "#797979", "#2f7fe0", "#d0660f", "#2a9150"
PURPLE, RED, TEAL, OLIVE, PINK = "#9a63d8", "#d9483b", "#148f9c", "#8f8210", "#c9509a"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, PINK)
DASHES = ("", "6 3", "2 3")  # further series have the same colours, with dashes
LETTER = 0.56  # a letter's mean width, divided by its height
LEFT, RIGHT = MARGIN, WIDTH - MARGIN
PLOT_LEFT, PLOT_RIGHT, PLOT_HEIGHT = 48, WIDTH - 16, 210
ROW, BAR = 22, 9  # heights


class Bar(NamedTuple):
    """A row of a bar chart: its bar is as long as `value`, and a thin line goes on to `most`. Its text stands above."""

    label: str
    value: float
    says: str
    colour: str
    most: float | None = None


class Curve(NamedTuple):
    """A series of points, in the order of their x."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    dash: str = ""
    is_joined: bool = True
    has_dots: bool = True
    is_hollow: bool = False


class Axis(NamedTuple):
    """An axis. Its range is that of the points."""

    label: str
    log: bool = False
    has_ticks: bool = True


class Scale:
    """The range of an axis, its ticks, and the place of a value between 0 and 1."""

    def __init__(self, axis: Axis, values: Iterable[float]) -> None:
        self.log = axis.log
        found = [value for value in values if not axis.log or value > 0]
        low, high = (min(found), max(found)) if found else (1.0, 10.0)
        if axis.log:
            self.low, self.high = low / 1.1, max(high, low * 1.5) * 1.1
        else:
            self.low, self.high = min(low, 0.0), high * 1.05 or 1.0

    def at(self, value: float) -> float:
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if math.log10(self.high / self.low) > 2.5 else (1, 2, 5)
            found = [float(f"{step}e{decade}") for decade in decades for step in steps]
        else:
            rough = (self.high - self.low) / 4
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(unit * each for each in (1, 2, 5, 10) if unit * each >= rough)
            found = [step * at for at in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [tick for tick in found if self.low <= tick <= self.high]


def amount(value: float) -> str:
    """The text of a tick: 0.1, 20, 5k, 1M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def px(value: float) -> str:
    """A coordinate, with a digit after the point if it needs one."""
    return f"{value:.1f}".removesuffix(".0")


def width_of(text: str, size: float = SIZE) -> float:
    """About how wide a text is."""
    return len(text) * size * LETTER


class Sheet:
    """A picture. Each part goes below the parts before it."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []
        self._y = 4.0

    def text(self) -> str:
        """The file."""
        height = math.ceil(self._y + MARGIN)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH * SHOWN:.0f}" height="{height * SHOWN:.0f}" '
            f'font-family="system-ui, sans-serif" font-size="{SIZE}" fill="{GREY}" role="img">'
        )
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *self._parts, "</svg>", ""])

    def heading(self, text: str) -> None:
        """A line of text in bold."""
        self._y += SIZE + 6
        self._write(LEFT, self._y, text, extra=' font-weight="600"')
        self._y += 4

    def note(self, text: str) -> None:
        """A line of smaller text."""
        self._y += SMALL + 4
        self._write(LEFT, self._y, text, SMALL)
        self._y += 2

    def bars(self, rows: Sequence[Bar]) -> None:
        """Draw the rows. All bars have one scale, which begins at 0."""
        longest = max((max(row.value, row.most or 0.0) for row in rows), default=0.0) or 1.0
        for row in rows:
            self._y += SMALL + 4
            self._write(LEFT, self._y, row.label, SMALL)
            self._write(RIGHT, self._y, row.says, SMALL, "end")
            end, middle = LEFT + (RIGHT - LEFT) * row.value / longest, self._y + 5 + BAR / 2
            self._add(
                f'<rect x="{px(LEFT)}" y="{px(middle - BAR / 2)}" width="{px(max(end - LEFT, 1))}" height="{BAR}" '
                f'fill="{row.colour}"/>'
            )
            if row.most is not None and row.most > row.value:
                beyond = LEFT + (RIGHT - LEFT) * row.most / longest
                self._line(end, middle, beyond, middle, row.colour, 2)
                self._line(beyond, middle - 4, beyond, middle + 4, row.colour, 2)
            self._y += 5 + BAR + 3
        self._y += 4

    def curves(
        self, series: Sequence[Curve], x: Axis, y: Axis, height: float = PLOT_HEIGHT, legend: bool = True
    ) -> None:
        """Draw a plot of lines or of dots, with its legend below it."""
        points = [point for curve in series for point in curve.points]
        across, up = Scale(x, (at for at, _ in points)), Scale(y, (at for _, at in points))
        self.note(y.label)
        top, bottom = self._y + 6, self._y + 6 + height

        def place(point: tuple[float, float]) -> tuple[float, float]:
            left = PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * across.at(point[0])
            return left, bottom - height * up.at(point[1])

        for tick in up.ticks():
            level = place((across.low, tick))[1]
            self._line(PLOT_LEFT, level, PLOT_RIGHT, level, GREY, 1, extra=' stroke-opacity="0.3"')
            self._write(PLOT_LEFT - 6, level + 4.5, amount(tick), SMALL, "end")
        for tick in across.ticks() if x.has_ticks else ():
            at = place((tick, up.low))[0]
            self._line(at, top, at, bottom, GREY, 1, extra=' stroke-opacity="0.15"')
            self._write(at, bottom + SMALL + 4, amount(tick), SMALL, "middle")
        for curve in series:
            self._curve(curve, [place(point) for point in curve.points])
        self._y = bottom + (SMALL + 6 if x.has_ticks else 2)
        self._y += SMALL + 2
        self._write(PLOT_RIGHT, self._y, x.label, SMALL, "end")
        self._y += 6
        if legend:
            self.legend(series)

    def _curve(self, curve: Curve, places: Sequence[tuple[float, float]]) -> None:
        if curve.is_joined and len(places) > 1:
            path = " ".join(f"{px(left)},{px(up)}" for left, up in places)
            dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
            self._add(f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="2"{dash}/>')
        for left, up in places if curve.has_dots else ():
            self._dot(left, up, curve)

    def _dot(self, x: float, y: float, curve: Curve) -> None:
        hollow = f'fill="none" stroke="{curve.colour}" stroke-width="1.5"'
        look = hollow if curve.is_hollow else f'fill="{curve.colour}"'
        self._add(f'<circle cx="{px(x)}" cy="{px(y)}" r="3" {look}/>')

    def legend(self, series: Iterable[Curve]) -> None:
        """Name the series, as many in a line as fit."""
        for line in lines_of(series):
            x = float(LEFT)
            self._y += ROW
            for curve in line:
                self._curve(curve, [(x + 2, self._y - 4.5), (x + 22, self._y - 4.5)] if curve.is_joined else [])
                if not curve.is_joined:
                    self._dot(x + 12, self._y - 4.5, curve)
                self._write(x + 30, self._y, curve.label, SMALL)
                x += legend_width(curve)
        self._y += 4

    def _write(self, x: float, y: float, text: str, size: int = SIZE, anchor: str = "start", extra: str = "") -> None:
        size_of = f' font-size="{size}"' if size != SIZE else ""
        anchor_of = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._add(f'<text x="{px(x)}" y="{px(y)}"{size_of}{anchor_of}{extra}>{escape(text, quote=False)}</text>')

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float, extra: str = "") -> None:
        self._add(
            f'<line x1="{px(x1)}" y1="{px(y1)}" x2="{px(x2)}" y2="{px(y2)}" stroke="{colour}" '
            f'stroke-width="{px(width)}"{extra}/>'
        )

    def _add(self, part: str) -> None:
        self._parts.append(part)


def legend_width(curve: Curve) -> float:
    return 30 + width_of(curve.label, SMALL) + 16


def lines_of(series: Iterable[Curve]) -> Iterator[list[Curve]]:
    """The lines of a legend."""
    line: list[Curve] = []
    for curve in series:
        if line and LEFT + sum(map(legend_width, [*line, curve])) > WIDTH:
            yield line
            line = []
        line.append(curve)
    if line:
        yield line
