"""docs/reference/spark.md has every option of the format, and every column of its views and of the reports."""

from __future__ import annotations

import re

import pytest

from support.real.trees import ROOT
from support.site import DOCS, made
from timerd_spark.sink.options import WRITE_OPTIONS
from timerd_spark.source.options import READ_OPTIONS
from timerd_spark.source.schema import EVENTS, TERMINAL, Column

PAGE = (DOCS / "reference/spark.md").read_text()
FIRST_CELL = re.compile(r"^\| (.+?) \|", re.MULTILINE)


def words_of(text: str) -> set[str]:
    """The words in code within the first cells of tables."""
    return {word for cell in FIRST_CELL.findall(text) for word in re.findall(r"`([^`]+)`", cell)}


def part(title: str) -> str:
    """The part of the page with this heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "names"), [("Options of a read", READ_OPTIONS), ("Options of a write", WRITE_OPTIONS)]
)
def test_every_option_is_on_the_page_and_no_other(title: str, names: tuple[str, ...]) -> None:
    assert words_of(part(title)) == set(names)


@pytest.mark.parametrize(
    ("title", "columns"), [("Columns of the terminal view", TERMINAL), ("Columns of the events view", EVENTS)]
)
def test_every_column_of_a_view_is_on_the_page(title: str, columns: tuple[Column, ...]) -> None:
    assert words_of(part(title)) == {column.name for column in columns}
    assert not [column for column in columns if not column.meaning or not column.type]


@pytest.mark.parametrize("function", ["report", "what_if"])
def test_every_column_of_a_result_has_its_sentence(function: str) -> None:
    described = made("spark").described(function)
    assert described and not [names for names, meaning in described if not meaning], "give it one in the docstring"
    assert f"\n## Columns of `{function}`\n" in PAGE


def test_the_docstring_of_report_has_every_column_that_it_selects() -> None:
    source = (ROOT / "client/timerd_spark/reports/report.py").read_text()
    selects = source.partition("return rolled.selectExpr(")[2].partition("\n    )\n")[0]
    selected = set(re.findall(r'(?:AS |^        "`?)(\w+)`?",$', selects, re.MULTILINE))
    described = {word for names, _ in made("spark").described("report") for word in re.split(r", | \.\. ", names)}
    assert "in_flight_mean" in selected
    assert selected - {"busy"} <= described
