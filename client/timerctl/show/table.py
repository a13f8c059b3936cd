"""The one printer of tables: columns are as wide as their texts, and cut or left out if the terminal is narrower.

    table = Table(Column("op"), Column("keys", flexible=True), Column("due in", right=True))
    table.print(rows)

Where the terminal is too narrow, flexible columns shrink first (down to their least width). Then optional columns are
left out, the last one first, and print() names them in a line below. A text that still does not fit is cut, or goes on
in the lines below if its column wraps.
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
COLUMNS_OF_ALL = 250  # in which each table has room for all of its columns
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
        texts = [[str(cell) for cell in row] for row in rows]
        for line in (*self.lines(texts, width), *self.left_out(texts, width)):
            print(line)

    def lines(self, rows: Iterable[Sequence[object]], width: int | None = None) -> list[str]:
        """The lines of print(), at most `width` long (default: the terminal's), unless no column can shrink further."""
        texts = [[str(cell) for cell in row] for row in rows]
        shown, widths = self._fitted(texts, width)
        columns, room = [self.columns[at] for at in shown], [widths[at] for at in shown]
        return [
            self._line(cells, room, columns)
            for row in ([column.title for column in self.columns], *texts)
            for cells in self._wrapped([row[at] for at in shown], room, columns)
        ]

    def left_out(self, rows: Iterable[Sequence[object]], width: int | None = None) -> list[str]:
        """Lines that name the columns for which lines() has no room, and how to see them; none if it has all."""
        shown, _ = self._fitted([[str(cell) for cell in row] for row in rows], width)
        names = [column.title for at, column in enumerate(self.columns) if at not in shown]
        if not names:
            return []
        text = f"Columns without room: {', '.join(names)} (--json or COLUMNS={COLUMNS_OF_ALL} shows them)"
        width = terminal_width() if width is None else width
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fitted(self, texts: list[list[str]], width: int | None) -> tuple[list[int], list[int]]:
        """The columns that are shown, and the width of each column of the table."""
        width = terminal_width() if width is None else width
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
        return shown, widths

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
