"""Markdown: tables, wrapped lines, and the place of a part in its page.

A part stands between two comments: `<!-- knobs: Made by ... -->` and `<!-- end of knobs -->`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

NOTICE = "Made by docs/generate_tables.py from the code. Do not modify: run `make generate`."
BEGIN = "<!-- {part}: " + NOTICE + " -->"
END = "<!-- end of {part} -->"
WIDTH = 120
Part: TypeAlias = Callable[[], list[str]]  # makes the lines of a part


def with_parts(page: Path, parts: Mapping[str, Sequence[str]]) -> str:
    """The text of a page with these parts made anew. Raises ValueError if the page has no place for a part."""
    text = page.read_text()
    for part, lines in parts.items():
        begin, end = BEGIN.format(part=part), END.format(part=part)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{page} needs the lines {begin!r} and {end!r}")
        text = "\n".join([before + begin, "", *lines, "", end + after])
    return text


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table. A cell may have any text: a bar in it is escaped."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return [*lines, *(f"| {' | '.join(map(cell, row))} |" for row in rows)]


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def code(text: str) -> str:
    """A text as code within a line."""
    return f"`{text}`"


def wrapped(text: str, indent: str = "", width: int = WIDTH) -> list[str]:
    """A paragraph in lines. All lines but the first begin with `indent`."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> list[str]:
    """An item of a list in lines."""
    return wrapped(f"* {text}", "  ")


def sentences(paragraph: str) -> tuple[str, str]:
    """The first sentence of a paragraph, and the others."""
    first, _, rest = re.sub(r"(?<=\.) (?=[A-Z`])", "\0", paragraph, count=1).partition("\0")
    return first, rest


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring; empty if there is none."""
    paragraph = re.split(r"\n\s*\n", text or "")[0]
    return sentences(" ".join(paragraph.split()))[0]


def link(page: str) -> str:
    """A link to a page or to a part of it, as a page of docs/reference has it. Its text is the name of the file."""
    return f"[{Path(page.partition('#')[0]).name}]({page})" if page else ""
