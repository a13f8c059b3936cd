"""The pages of docs/ for tests: their programs, headings, anchors and links, and the generator of their parts."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from support.real.trees import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```py\n# ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]*\.md)?(?:#([^)\s]+))?\)")
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@cache
def module_of(script: Path) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generator() -> ModuleType:
    return module_of(DOCS / "generate_tables.py")


def made(module: str) -> ModuleType:
    """A module of docs/generate, such as `errors`."""
    generator()
    return importlib.import_module(f"generate.{module}")


def programs(page: Path) -> dict[str, str]:
    """The programs of a page: each fenced block whose first line is a comment with the name of a file."""
    return dict(PROGRAM.findall(page.read_text()))


def headings(page: Path, level: int | None = None) -> list[str]:
    """The headings of a page, of this level alone if one is given. Comments in code are no headings."""
    found = HEADING.findall(FENCE.sub("", page.read_text()))
    return [title for marks, title in found if level in (None, len(marks))]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page."""
    found = set[str]()
    for title in headings(page):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)  # of a link, its text
        anchor = NOT_IN_ANCHORS.sub("", shown.lower()).replace(" ", "-")
        name, number = anchor, 0
        while name in found:
            number += 1
            name = f"{anchor}-{number}"
        found.add(name)
    return found


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Each link of a page to a page or an anchor: the page to which it leads, and the anchor ("": none)."""
    for name, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        yield (page.parent / name).resolve() if name else page, anchor
