"""The examples on the pages of docs/ work: their code is run as it stands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALLS = (
    "remind b'user 7'",
    "remind b'user 8'",
    "gave up after attempt 4 no mail server",
    "imported b'a.csv' in attempt 3",
    "resized b'image 7'",
    "b'42'\nb'whoever lives' b'42'",
)
SUBSCRIPTIONS = r"room/7 b'hello'\nroom/8 812\nb'hello'\nid: [0-9a-f]{16}-\d+\ndata: while nobody listened\n"


def end_schedule(names: dict[str, Any]) -> None:
    names["client"].cancel_call_wait("cleanup")


@pytest.mark.parametrize(
    ("page", "printed", "end"),
    [
        ("docs/howto/calls.md", lambda text: all(line in text for line in CALLS), end_schedule),
        ("docs/howto/delayed.md", lambda text: text == "answer with 1 records\n", None),
        (
            "docs/howto/operations.md",
            lambda text: sorted(text.splitlines()) == ["['a', 'b'] []", "read [b'second']", "wrote 0"],
            None,
        ),
        ("docs/howto/subscriptions.md", lambda text: re.match(SUBSCRIPTIONS, text) is not None, None),
    ],
)
def test_the_code_of_a_page_prints_what_the_page_says(
    page: str,
    printed: Callable[[str], bool],
    end: Callable[[dict[str, Any]], None] | None,
    daemon: Daemon,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names: dict[str, Any] = {}
    for block in BLOCK.findall((ROOT / page).read_text()):
        exec(compile(block, page, "exec"), names)
    text = ""

    def is_complete() -> bool:
        nonlocal text
        text += capsys.readouterr().out
        return printed(text)

    eventually(is_complete)
    if end is not None:
        end(names)
    (names.get("client") or td.client()).close()
