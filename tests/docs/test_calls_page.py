"""What docs/calls.md shows works: its code is run as it stands."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S
from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAID = (
    "remind b'user 7'",
    "remind b'user 8'",
    "gave up after attempt 4 no mail server",
    "imported b'a.csv' in attempt 3",
    "resized b'image 7'",
    "b'42'\nb'whoever lives' b'42'",
)


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in BLOCK.findall((ROOT / "docs" / "calls.md").read_text()):
        exec(compile(block, "docs/calls.md", "exec"), names)
    said, end = "", time.monotonic() + PATIENCE_S
    while not all(line in said for line in SAID):
        said += capsys.readouterr().out
        assert time.monotonic() < end, said
        time.sleep(0.01)
    names["client"].cancel_call_wait("cleanup")
    names["client"].close()
