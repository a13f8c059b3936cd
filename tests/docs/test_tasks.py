"""tasks.md (docs/contributing) has some forty exercises, answers.md an answer to each, and the names there exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.real.trees import ROOT

ITEM = re.compile(r"^(\d+)\. (.+(?:\n {3}.+)*)", re.MULTILINE)
NAMES = re.compile(r"`([\w/]+/[\w.]+\.\w+)`: ((?:`[^`]+`(?:, )?)+)")
QUESTIONS = dict(ITEM.findall((ROOT / "docs/contributing/tasks.md").read_text()))
ANSWERS = dict(ITEM.findall((ROOT / "docs/contributing/answers.md").read_text()))
ROOMS = ("shm_layout", "client", "timerd", "tests", "bench")
WRITTEN = {".py", ".pyx", ".pxd", ".h"}


def test_each_question_has_an_answer() -> None:
    assert len(QUESTIONS) >= 25  # a product that is deleted takes its questions along
    assert list(QUESTIONS) == list(ANSWERS) == [str(number) for number in range(1, len(QUESTIONS) + 1)]


@pytest.mark.parametrize("number", ANSWERS)
def test_files_and_names_in_an_answer_exist(number: str) -> None:
    found = NAMES.findall(" ".join(ANSWERS[number].split()))
    assert found, "the answer names no file"
    for path, names in found:
        for name in re.findall(r"`([^`]+)`", names):
            assert has(ROOT / path, name), (
                f"{path} has no {name}; look at {', '.join(places_of(name)) or 'its new name'}"
            )


def has(path: Path, name: str) -> bool:
    return path.is_file() and re.search(rf"(?<![\w-]){re.escape(name)}\b", path.read_text()) is not None


def places_of(name: str) -> list[str]:
    """The files that define the name now, as a hint in the message."""
    defined = re.compile(rf"^\s*(?:(?:async )?def |class |cdef [^(\n]*[ *])?{re.escape(name)}(?:\(|:| =)", re.MULTILINE)
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.suffix in WRITTEN)
    return sorted(str(path.relative_to(ROOT)) for path in files if defined.search(path.read_text()))
