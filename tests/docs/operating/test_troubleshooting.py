"""docs/troubleshooting.md: each heading is a message of the code, and every public error is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from support.real.trees import ROOT
from support.site import DOCS, headings, made

FILE = DOCS / "troubleshooting.md"
TITLES = headings(FILE, 3)
MESSAGES = [title.strip("`") for title in TITLES if title.startswith("`")]
ROOMS = ("shm_layout/timerd_shm", "client/timerd_client", "client/timerd_wire", "client/timerctl", "timerd")
GAP = "…"
FIXED_MIN = 8  # letters that a heading and its message have in common, at least in one piece
FIELD = re.compile(r"%[sdrg]|%\.\d[fg]|\{\w*\}")


def texts(tree: ast.AST) -> Iterator[str]:
    """Each text of a module, with a gap in place of each value: f-strings, {0} of format(), and %s of logging."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [piece.value if isinstance(piece, ast.Constant) else GAP for piece in node.values]
            yield FIELD.sub(GAP, "".join(map(str, pieces)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield FIELD.sub(GAP, node.value)


@cache
def templates() -> list[str]:
    """The texts of all modules, each on one line."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    found = {" ".join(text.split()) for path in paths for text in texts(ast.parse(path.read_text()))}
    return [text for text in found if len(text) >= FIXED_MIN]


def is_in(message: str, template: str) -> bool:
    """Whether all fixed pieces of the message stand in the template, in their order."""
    at = 0
    for piece in message.split(GAP):
        at = template.find(piece.strip(), at)
        if at < 0:
            return False
        at += len(piece.strip())
    return True


@pytest.mark.parametrize("message", MESSAGES)
def test_the_fixed_words_of_a_heading_stand_in_a_message_of_the_code(message: str) -> None:
    assert max(map(len, message.split(GAP))) >= FIXED_MIN
    assert any(is_in(message, template) for template in templates()), f"no message of the code has: {message}"


def test_a_message_that_does_not_exist_is_found() -> None:
    assert not any(is_in("no daemon of that name was ever here", template) for template in templates())
    assert is_in("the arena has … bytes", f"the arena has {GAP} bytes, and its header says {GAP}")
    assert not is_in("bytes … the arena has", f"the arena has {GAP} bytes, and its header says {GAP}")


def test_each_other_heading_begins_with_the_name_of_an_error() -> None:
    names = {error.name for section in made("errors").sections().values() for error in section}
    others = [title for title in TITLES if not title.startswith("`")]
    assert not [title for title in others if re.match(r"\w+", title)[0] not in names]  # type: ignore[index]


def test_every_public_error_is_named() -> None:
    text = FILE.read_text()
    names = {error.name for section in made("errors").sections().values() for error in section} - {"TimerdError"}
    assert not {name for name in names if not re.search(rf"\b{name}\b", text)}


def test_no_message_has_two_headings() -> None:
    assert len(TITLES) == len(set(TITLES))


def test_each_section_is_short() -> None:
    for section in re.split(r"^#{2,3} ", FILE.read_text(), flags=re.MULTILINE)[2:]:
        title, _, body = section.partition("\n")
        lines = [line for line in body.splitlines() if line.strip()]
        assert len(lines) <= 6, f"{len(lines)} lines: {title}"
