"""What the page of delayed operations shows works: its code is run, as it stands."""

from __future__ import annotations

import re

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    for block in BLOCK.findall((ROOT / "docs" / "delayed.md").read_text()):
        exec(compile(block, "delayed.md", "exec"), {})

    def answered() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return said == "answer with 1 records\n"

    eventually(answered)
    td.client().close()
