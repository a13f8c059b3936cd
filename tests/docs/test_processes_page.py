"""What docs/processes.md shows works: each piece of its code is a program, whose events arrive."""

from __future__ import annotations

import re
import subprocess
import sys

import timerd as td
from patience import PATIENCE_S
from trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARRIVE = ({"done", "bye"}, {"step/1", "step/2"})


def test_the_events_of_each_program_of_the_page_arrive(client: td.Client) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "processes.md").read_text())
    for block, keys in zip(blocks, ARRIVE, strict=True):
        mark = client.mark()
        subprocess.run([sys.executable, "-c", block], check=True, timeout=4 * PATIENCE_S)
        assert {key for key in keys if client.register(key, timeout=0, since=mark).result(PATIENCE_S)} == keys
