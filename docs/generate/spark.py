"""The columns that Spark shows: of the two views of a journal, and of the results of report() and what_if()."""

from __future__ import annotations

import re

from timerd_shm.declare.journal import RowKind
from timerd_spark.source.schema import EVENTS, TERMINAL, Column

from . import journal
from .sources import found, located
from .text import code, table

OF_ROWS = re.compile(rf"(?:^|; )({'|'.join(kind.name for kind in RowKind)}): ")  # in the meaning of a column


def terminal() -> list[str]:
    """The columns of the terminal view."""
    return _with_meaning(TERMINAL)


def events() -> list[str]:
    """The columns of the events view: the place of a row with meanings, and the others with the rows that have them."""
    first = tuple(column for column in EVENTS if not OF_ROWS.match(column.meaning))
    lines = _with_meaning(first)
    lines += ["", "The other columns, with the kinds of rows that have them; they are null in all other rows:", ""]
    rows = (
        (code(column.name), _type(column), ", ".join(map(_linked, OF_ROWS.findall(column.meaning))))
        for column in EVENTS[len(first) :]
    )
    return [*lines, *table(("column", "type", "in rows of the kind"), rows)]


def _with_meaning(columns: tuple[Column, ...]) -> list[str]:
    rows = (
        (code(column.name), _type(column), "" if column.nullable else "never", column.meaning) for column in columns
    )
    return table(("column", "type", "null", "what it is"), rows)


def _type(column: Column) -> str:
    return f"{column.type}, {column.unit}" if column.unit else column.type


def _linked(kind: str) -> str:
    return f"[{kind}](journal.md#{journal.anchor(RowKind[kind])})"


def report() -> list[str]:
    """The columns of the result of report()."""
    return _result("report")


def what_if() -> list[str]:
    """The columns of the result of what_if()."""
    return _result("what_if")


def _result(function: str) -> list[str]:
    rows = ((", ".join(map(_names, names.split(", "))), meaning) for names, meaning in described(function))
    return table(("column", "what it is"), rows)


def _names(text: str) -> str:
    """`latency_p50_ms .. p999_ms` are two names."""
    return " .. ".join(map(code, text.split(" .. ")))


def described(function: str) -> list[tuple[str, str]]:
    """The columns that the docstring of a function of timerd_spark lists: names, and what they are."""
    doc = found(located("timerd_spark"), function).doc
    _, _, listed = doc.partition("Columns: `by`, then\n\n")
    columns: list[tuple[str, str]] = []
    for line in listed.partition("\n\n")[0].splitlines():
        text = line.removeprefix("    ")
        if text.startswith(" "):  # the meaning of the column above goes on
            name, meaning = columns.pop()
            columns.append((name, f"{meaning} {text.strip()}".strip()))
        else:
            name, _, meaning = text.partition("  ")
            columns.append((name, meaning.strip()))
    return columns


PARTS = {"reference/spark.md": {"terminal": terminal, "events": events, "report": report, "what-if": what_if}}
