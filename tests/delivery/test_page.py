"""The page of deliveries is right: its code runs."""

from __future__ import annotations

import re

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.trees import ROOT

PAGE = (ROOT / "docs/howto/deliveries.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    for block in BLOCK.findall(PAGE):
        exec(compile(block, "deliveries.md", "exec"), {})
    td.client().close()
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["1", *["POST user-7 [{'amount': 7}]"] * 2, *["delivered"] * 2]
