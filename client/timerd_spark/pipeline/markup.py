"""The parts of the page: style, tables, figures. The HTML has no scripts, and loads no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from . import plots
from .verdicts import Verdict

# For the dark form of the page, in which the colours of figures are lighter.
DARK: Final = ("#7db1ea", "#f08a72", "#6cc5a1", "#c3a5dd", "#dcb45f", "#a5b0b8")
SERIES_LIGHT: Final = " ".join(f"--series-{at}: {colour};" for at, colour in enumerate(plots.COLOURS))
SERIES_DARK: Final = " ".join(f"--series-{at}: {colour};" for at, colour in enumerate(DARK))
STYLE: Final = f"""
:root {{ color-scheme: light dark; --ink: {plots.INK}; --paper: #fff; --soft: #56616b; --grid: {plots.GRID};
         --line: #dde3e8; --good: #21744f; --bad: #b3261e; {SERIES_LIGHT} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e4e9ed; --paper: #14181c; --soft: #a3afb9; --grid: #48525b; --line: #323a41; --good: #6fcf9f;
           --bad: #ff8a80; {SERIES_DARK} }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 110rem;
        margin: 1.5rem auto; padding: 0 clamp(1rem, 2vw, 3rem); overflow-wrap: break-word; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin-bottom: 0; }} h2 {{ font-size: 1.25rem; margin: 2.4rem 0 .4rem; }}
p {{ max-width: 60rem; }} .note {{ color: var(--soft); font-size: .9rem; }}
.verdicts, .beside {{ display: grid; gap: .7rem 2rem; margin: 1.2rem 0; }}
.verdicts {{ list-style: none; padding: 0; grid-template-columns: repeat(auto-fit, minmax(min(100%, 32rem), 1fr)); }}
.beside {{ grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }}
@media (min-width: 60rem) {{ .beside .twice {{ grid-column: span 2; }} }}
.verdicts li {{ border-left: 4px solid var(--grid); padding: .1rem 0 .1rem .8rem; }}
.verdicts .good {{ border-color: var(--good); }} .verdicts .bad {{ border-color: var(--bad); }}
.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }}
.fact {{ border: 1px solid var(--line); border-radius: 6px; padding: .5rem .8rem; font-size: .9rem; }}
.fact b {{ display: block; font-size: 1.3rem; line-height: 1.3; }} .fact small {{ display: block; color: var(--soft); }}
.fact:first-child {{ grid-column: span 2; border: 2px solid var(--ink); }} .fact:first-child b {{ font-size: 2.2rem; }}
.good b {{ color: var(--good); }} .bad b {{ color: var(--bad); }}
/* A shadow at the right says that the table goes on there. A cover that scrolls with the table hides it at the end. */
.wide {{ overflow-x: auto; background:
         linear-gradient(to left, var(--paper) 2rem, transparent) right / 4rem 100% no-repeat local,
         linear-gradient(to left, var(--grid), transparent) right / 1rem 100% no-repeat scroll; }}
table {{ border-collapse: collapse; font-size: .9rem; }}
th, td {{ text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top;
          font-variant-numeric: tabular-nums; }}
th {{ font-weight: 600; vertical-align: bottom; }} td + td {{ white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; min-width: 4.5rem; }}
td small, th small {{ display: block; color: var(--soft); font-weight: 400; }}
.texts td {{ text-align: left; white-space: normal; overflow-wrap: anywhere; }}
.texts td:first-child {{ overflow-wrap: normal; }} .texts {{ margin-bottom: 1.2rem; }}
figure, .twice {{ margin: 0; min-width: 0; }}
figure {{ display: flex; flex-direction: column; justify-content: space-between; }}
figure:has(+ .twice) {{ justify-content: start; }}
figcaption b {{ display: block; }} figcaption {{ font-size: .9rem; }}
figure svg {{ width: 100%; max-width: 38rem; height: auto; margin-top: .4rem; }}
details {{ margin: 2.4rem 0 0; }} summary {{ font-size: 1.25rem; font-weight: 600; cursor: pointer; }}
"""


def document(title: str, parts: Iterable[str]) -> str:
    """A whole page."""
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def section(title: str, *parts: str) -> str:
    """A part with a title; an empty text if the part is empty."""
    return "\n".join([f"<h2>{escape(title)}</h2>", *parts]) if any(parts) else ""


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def note(text: str) -> str:
    return paragraph(text, "note")


def verdicts(found: Iterable[Verdict]) -> str:
    """A list of sentences."""
    lines = "".join(f'<li class="{kind}">{escape(text)}</li>' for kind, text in found)
    return f'<ul class="verdicts">{lines}</ul>'


class Fact(NamedTuple):
    """A figure of the first lines: what it is, the value, a few words below it, and the kind of a Verdict."""

    name: str
    value: str
    small: str = ""
    kind: str = ""


def facts(found: Iterable[Fact]) -> str:
    """The most important figures. The first is the largest."""
    boxes = (
        f'<div class="fact {kind}"><b>{escape(value)}</b>{escape(name)}<small>{escape(small)}</small></div>'
        for name, value, small, kind in found
    )
    return f'<div class="facts">{"".join(boxes)}</div>'


def details(title: str, *parts: str) -> str:
    """A part that is folded away until a reader opens it."""
    return "\n".join([f"<details><summary>{escape(title)}</summary>", *parts, "</details>"])


def beside(cells: Iterable[str]) -> str:
    """Figures and blocks, side by side if there is room."""
    return f'<div class="beside">{"".join(cells)}</div>'


def block(*parts: str) -> str:
    """Parts that stay together beside a figure. On a wide screen they have the width of two."""
    return f'<div class="twice">{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, which scrolls inside itself. In a cell, the text after a line break is small."""
    lines = list(rows)
    if not lines:
        return ""
    body = "".join(_line(row, "td") for row in lines)
    return f'<div class="wide" tabindex="0"><table>{_line(head, "th")}{body}</table></div>'


def texts(rows: Iterable[tuple[str, str] | Sequence[str]]) -> str:
    """Names and texts, which may be long."""
    return '<table class="texts">' + "".join(_line(row, "td") for row in rows) + "</table>"


def _line(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{_cell(cell)}</{tag}>" for cell in cells) + "</tr>"


def _cell(text: str) -> str:
    first, _, small = text.partition("\n")
    return escape(first) + (f"<small>{escape(small)}</small>" if small else "")


def figure(title: str, sentence: str, drawn: plots.Figure) -> str:
    """A figure with its title, and the sentence that says what the figure shows."""
    caption = f"<figcaption><b>{escape(title)}</b>{escape(sentence)}</figcaption>"
    return f"<figure>{caption}{plots.svg(drawn, f'{title}: {sentence}')}</figure>"
