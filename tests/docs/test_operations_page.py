"""What the page of Kafka's named operations shows works: its code is run, as it stands."""

from __future__ import annotations

import re

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    for block in BLOCK.findall((ROOT / "docs" / "operations.md").read_text()):
        exec(compile(block, "operations.md", "exec"), {})

    def answered() -> bool:
        said.extend(capsys.readouterr().out.splitlines())
        return sorted(said) == ["['a', 'b'] []", "read [b'second']", "wrote 0"]

    eventually(answered)
    td.client().close()
