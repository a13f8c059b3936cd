"""Make the drawings of the pages: each NAME.txt here becomes NAME.svg. The same text gives the same bytes.

    python docs/drawings/draw.py [--check]

architecture.txt explains the lines. The background is transparent, and each colour is readable on white and on dark
pages. --check writes nothing, and ends with status 1 if a drawing is not what its text gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
GREY = "#797979"
COLOURS = {"worker": "#2a9150", "daemon": "#2f7fe0", "memory": "#9a63d8"}
NUMBERS = {"size": 2, "box": 4, "arrow": 3, "note": 2}  # of an item
SIZE, LINE, PADDING = 13, 18, 8
LETTER = 0.56  # a letter's mean width, divided by its height
SHOWN = 4 / 3  # wide pages show a drawing larger by this factor


class Item(NamedTuple):
    """A line of a text."""

    what: str
    numbers: tuple[float, ...]
    kind: str  # of a box
    lines: list[str]


class DrawingError(Exception):
    """A line cannot be understood."""


def items_of(text: str) -> Iterator[Item]:
    """The items of a text."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        head, _, rest = line.partition(":")
        what, *words = head.split()
        kind = words.pop() if what == "box" and words else ""
        lines = [part.strip() for part in rest.split(" / ") if part.strip()]
        try:
            numbers = tuple(float(word) for word in words)
        except ValueError:
            raise DrawingError(f"line {number}: {line!r}: a number is expected") from None
        if len(numbers) != NUMBERS.get(what) or kind not in ("", *COLOURS) or not lines:
            raise DrawingError(f"line {number}: {line!r}: see the head of architecture.txt")
        yield Item(what, numbers, kind, lines)


def svg(text: str) -> str:
    """The SVG of a text."""
    size, *items = items_of(text)
    if size.what != "size":
        raise DrawingError("the first item is `size`")
    width, height = size.numbers
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width * SHOWN:g}" '
        f'height="{height * SHOWN:.0f}" font-family="system-ui, sans-serif" font-size="{SIZE}" '
        f'fill="{GREY}" role="img">',
        f"<title>{escape(size.lines[0])}</title>",
    ]
    for item in items:
        parts += {"box": box, "arrow": arrow, "note": note}[item.what](item)
    return "\n".join([*parts, "</svg>", ""])


def box(item: Item) -> Iterator[str]:
    left, top, width, height = item.numbers
    colour = COLOURS[item.kind]
    yield (
        f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="6" fill="{colour}" '
        f'fill-opacity="0.08" stroke="{colour}" stroke-width="1.5"/>'
    )
    for at, line in enumerate(item.lines):
        look = f' fill="{colour}" font-weight="600"' if at == 0 else ""
        yield written(left + PADDING, top + LINE * (at + 1), line, look)


def arrow(item: Item) -> Iterator[str]:
    """An arrow that goes straight up or down."""
    x, begin, end = item.numbers
    back = 6 if end > begin else -6
    yield f'<path d="M{x:g} {begin:g}V{end:g}" stroke="{GREY}" stroke-width="1.5"/>'
    yield f'<path d="M{x:g} {end:g}l-4 {-back}h8z"/>'
    for at, line in enumerate(item.lines):
        yield written(x + PADDING, (begin + end) / 2 + LINE * at, line)


def note(item: Item) -> Iterator[str]:
    x, y = item.numbers
    yield written(x, y, item.lines[0])


def written(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(text, quote=False)}</text>'


def main() -> int:
    check, status = "--check" in sys.argv, 0
    for source in sorted(HERE.glob("*.txt")):
        drawing, text = source.with_suffix(".svg"), svg(source.read_text())
        if drawing.exists() and drawing.read_text() == text:
            continue
        if check:
            sys.stderr.write(f"draw: {drawing} is not what its text gives: run `python docs/drawings/draw.py`\n")
            status = 1
        else:
            drawing.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
