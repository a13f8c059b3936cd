"""The page of deliveries is right: its code runs, and its figures are those of the bench."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.trees import ROOT

PAGE = (ROOT / "docs" / "deliveries.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"^\| (\d+) \| ([\d.]+) s \| ([\d.]+) s \| ([\d.]+) s \|$", re.MULTILINE)
PRINTED = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+) *$", re.MULTILINE)
JITTER = 0.02  # the backoffs are drawn


def test_the_code_of_the_page_runs(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    for block in BLOCK.findall(PAGE):
        exec(compile(block, "deliveries.md", "exec"), {})
    td.client().close()
    said = capsys.readouterr().out.splitlines()
    assert sorted(said) == ["1", *["POST user-7 [{'amount': 7}]"] * 2, *["delivered"] * 2]


def test_the_figures_of_the_page_are_those_of_the_bench() -> None:
    command = [sys.executable, str(ROOT / "bench" / "deliveries.py"), "--rules"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    rows, measured = FIGURE.findall(PAGE), PRINTED.findall(printed)
    assert len(rows) == len(measured) == 3, printed
    for row, now in zip(rows, measured, strict=True):
        assert [float(figure) for figure in row] == pytest.approx([float(figure) for figure in now], rel=JITTER)
