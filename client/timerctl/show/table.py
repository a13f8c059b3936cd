"""The one printer of tables: columns are as wide as their texts, and cut or left out if the terminal is narrower.

    table = Table(Column("op"), Column("keys", flexible=True), Column("due in", right=True))
    table.print(rows)

Where the terminal is too narrow, flexible columns shrink first (down to their least width). Then optional columns are
left out, the last one first. A text that still does not fit is cut, or goes on in the lines below if its column wraps.
Plain text: no colours, no cursor movements, no trailing blanks.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from .text import columns_of

UNLIMITED = 1_000_000  # columns of a file or a pipe: nothing is cut there
GRID_WIDTH = 80  # of a grid in a file or a pipe
FLEXIBLE_MIN = 12
WRAPPED_MIN = 30
GAP = "  "
CUT = "..."


class Column(NamedTuple):
    """One column. It may be cut if `flexible`, wrapped if `wraps` too, and left out if `optional`."""

    title: str
    right: bool = False
    flexible: bool = False
    optional: bool = False
    wraps: bool = False

    @property
    def least(self) -> int:
        """The least width of a flexible column."""
        return WRAPPED_MIN if self.wraps else FLEXIBLE_MIN


class Table:
    """A table. Its rows are sequences with a text for each column."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns

    def print(self, rows: Iterable[Sequence[object]], width: int | None = None) -> None:
        """Print the rows under their titles."""
        for line in self.lines(rows, width):
            print(line)

    def lines(self, rows: Iterable[Sequence[object]], width: int | None = None) -> list[str]:
        """The lines of print(), at most `width` long (default: the terminal's), unless no column can shrink further."""
        width = terminal_width() if width is None else width
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [
            max([len(column.title), *(columns_of(row[at]) for row in texts)]) for at, column in enumerate(self.columns)
        ]
        shown = list(range(len(self.columns)))
        while (over := self._over(widths, shown, width)) > 0:
            least = sum(max(widths[at] - self.columns[at].least, 0) for at in shown if self.columns[at].flexible)
            optional = [at for at in shown if self.columns[at].optional]
            if over > least and optional:
                shown.remove(optional[-1])
                continue
            self._cut(widths, shown, over)
            break
        columns, room = [self.columns[at] for at in shown], [widths[at] for at in shown]
        return [
            self._line(cells, room, columns)
            for row in ([column.title for column in self.columns], *texts)
            for cells in self._wrapped([row[at] for at in shown], room, columns)
        ]

    def _wrapped(self, cells: list[str], room: list[int], columns: list[Column]) -> Iterable[list[str]]:
        """The lines of a row: columns that wrap go on in further lines."""
        parts = [
            textwrap.wrap(cell, wide) or [""] if column.wraps else [cell]
            for cell, wide, column in zip(cells, room, columns, strict=True)
        ]
        return map(list, zip_longest(*parts, fillvalue=""))

    def _over(self, widths: list[int], shown: list[int], width: int) -> int:
        return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1) - width

    def _cut(self, widths: list[int], shown: list[int], over: int) -> None:
        """Make the flexible columns narrower by `over` in all, always the widest one."""
        while over > 0:
            flexible = [at for at in shown if self.columns[at].flexible and widths[at] > self.columns[at].least]
            if not flexible:
                return
            widths[max(flexible, key=lambda at: widths[at])] -= 1
            over -= 1

    def _line(self, cells: list[str], widths: list[int], columns: list[Column]) -> str:
        parts = []
        for cell, room, column in zip(cells, widths, columns, strict=True):
            text = cell if columns_of(cell) <= room else _beginning(cell, room - len(CUT)) + CUT
            blanks = " " * (room - columns_of(text))
            parts.append(blanks + text if column.right else text + blanks)
        return GAP.join(parts).rstrip()


def _beginning(text: str, width: int) -> str:
    """The beginning of a text that fits in `width` columns."""
    cut = text[:width]
    while columns_of(cut) > width:
        cut = cut[:-1]
    return cut


def terminal_width() -> int:
    """Columns of the terminal: $COLUMNS if set, and UNLIMITED without a terminal."""
    return shutil.get_terminal_size((UNLIMITED, 24)).columns


def grid(pairs: Sequence[tuple[str, str]], width: int | None = None) -> list[str]:
    """(name, value) pairs in as many columns as fit, filled column by column."""
    if width is None:
        width = terminal_width()
        width = GRID_WIDTH if width == UNLIMITED else width
    if not pairs:
        return []
    names = max(len(name) for name, _ in pairs)
    values = max(len(value) for _, value in pairs)
    columns = max(1, (width + 3) // (names + values + 5))
    height = -(-len(pairs) // columns)
    cells = [f"{name:{names}}  {value:>{values}}" for name, value in pairs]
    return ["   ".join(cells[row::height]) for row in range(height)]
