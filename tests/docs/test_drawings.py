"""The drawings belong to their texts, and are readable: nothing is cut off, and each colour has enough contrast."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from support.colours import is_readable
from support.real.trees import ROOT
from support.site import module_of

FOLDER = ROOT / "docs/drawings"
TEXTS = sorted(FOLDER.glob("*.txt"))


@pytest.fixture
def draw() -> ModuleType:
    return module_of(FOLDER / "draw.py")


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_a_drawing_is_what_its_text_gives(text: Path, draw: ModuleType) -> None:
    drawing = text.with_suffix(".svg").read_text()
    assert drawing == draw.svg(text.read_text()), "run `python docs/drawings/draw.py`"
    ElementTree.fromstring(drawing)


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_its_colours_are_readable_on_light_and_on_dark_pages(text: Path) -> None:
    colours = set(re.findall(r'"(#\w+)"', text.with_suffix(".svg").read_text()))
    assert colours and all(map(is_readable, colours))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_its_words_stay_in_their_boxes_and_its_boxes_apart(text: Path, draw: ModuleType) -> None:
    size, *items = draw.items_of(text.read_text())
    width, height = size.numbers
    boxes = [item for item in items if item.what == "box"]
    for item in boxes:
        left, top, wide, high = item.numbers
        assert left >= 0 and left + wide <= width and top + high <= height, item
        assert len(item.lines) * draw.LINE + draw.PADDING <= high + 4, item
        assert all(len(line) * draw.SIZE * draw.LETTER + 2 * draw.PADDING <= wide + 4 for line in item.lines), item
    for one, other in combinations((item.numbers for item in boxes), 2):
        is_beside = one[0] + one[2] <= other[0] or other[0] + other[2] <= one[0]
        assert is_beside or one[1] + one[3] <= other[1] or other[1] + other[3] <= one[1], (one, other)
    for item in items:
        if item.what != "box":
            x, y = item.numbers[:2]
            assert all(x + len(line) * draw.SIZE * draw.LETTER <= width + 4 for line in item.lines), item
            assert 0 <= y <= height, item


def test_each_drawing_is_shown_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = "\n".join(page.read_text() for page in pages)
    assert TEXTS and all(f"drawings/{text.stem}.svg)" in shown for text in TEXTS)


def test_a_line_that_cannot_be_understood_is_named(draw: ModuleType) -> None:
    for line in ("box 1 2 3 4 cloud: x", "box 1 2 3 worker: x", "circle 1 2: x", "note a 2: x", "note 1 2:"):
        with pytest.raises(draw.DrawingError, match="line 2"):
            draw.svg(f"size 10 10: x\n{line}")
