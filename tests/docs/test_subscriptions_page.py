"""What the page of subscriptions shows works: its code is run, as it stands."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.real.daemons import Daemon
from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in BLOCK.findall((ROOT / "docs" / "subscriptions.md").read_text()):
        exec(compile(block, "subscriptions.md", "exec"), names)
    said = capsys.readouterr().out.split("\n")
    assert said[:3] == ["room/7 b'hello'", "room/8 812", "b'hello'"]
    assert re.fullmatch(r"id: [0-9a-f]{16}-\d+", said[3]) and said[4] == "data: while nobody listened"
    names["client"].close()
