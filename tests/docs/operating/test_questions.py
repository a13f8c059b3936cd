"""docs/questions.md: thirty short answers, each with a link; and links of pages lead to pages and anchors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.real.shell import Run
from support.real.trees import ROOT, SETTINGS
from support.site import DOCS, anchors, links
from timerd_shm.declare.limits import CAPACITY_DEFAULT, CAPACITY_MAX, RING_EVENTS_DEFAULT, WINDOW_COMMANDS_MAX

FILE = DOCS / "questions.md"
ITEM = re.compile(r"^(\d+)\. \*\*(.+?)\*\* (.+(?:\n {3,4}\S.*)*)", re.MULTILINE)
ITEMS = ITEM.findall(FILE.read_text())
LINES_MAX = 4  # of a question, its answer and the link
PAGES = [
    FILE,
    DOCS / "troubleshooting.md",
    *(DOCS / "howto" / name for name in ("sizing.md", "upgrading.md", "operating.md")),
    DOCS / "reference/errors.md",
]


def test_there_are_thirty_questions_each_with_a_short_answer_and_a_link() -> None:
    assert [int(number) for number, _, _ in ITEMS] == list(range(1, 31))
    for number, question, answer in ITEMS:
        assert "?" in question, number
        assert re.search(r"\]\([^)]+\)", answer), number
        assert len(answer.splitlines()) <= LINES_MAX, number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_pages_and_anchors(page: Path) -> None:
    gone = [
        f"{to.name}#{anchor}" for to, anchor in links(page) if not to.exists() or (anchor and anchor not in anchors(to))
    ]
    assert not gone


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# How to: `one` of N, each day\n\n```sh\n# no heading\n```\n\n## A b\n\n## A b\n\n## [x_y](z.md) … w\n"
    )
    assert anchors(page) == {"how-to-one-of-n-each-day", "a-b", "a-b-1", "x_y--w"}


def test_the_numbers_of_the_answers_are_those_of_the_code() -> None:
    text = FILE.read_text()
    for number in (CAPACITY_DEFAULT, CAPACITY_MAX, RING_EVENTS_DEFAULT, WINDOW_COMMANDS_MAX):
        assert f"{number:,}" in text
    assert f"version is {SETTINGS['project']['version']} (beta)" in " ".join(text.split())
    assert "Development Status :: 4 - Beta" in SETTINGS["project"]["classifiers"]
    assert SETTINGS["project"]["license"] == "Apache-2.0" and (ROOT / "LICENSE").exists()
    assert f"CPython {SETTINGS['project']['requires-python'].removeprefix('>=')} or later" in text


def test_the_message_that_troubleshooting_begins_with_is_what_ping_says_without_a_daemon(run: Run) -> None:
    status, _, said = run("ping")
    shown = " ".join((DOCS / "troubleshooting.md").read_text().split())
    assert status == 1
    for piece in re.split(r"in /\S+", said.strip()):
        assert piece in shown
