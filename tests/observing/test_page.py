"""docs/howto/observing.md: its blocks run, and its tables have each metric of clients and each logger."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.imports import PACKAGES
from support.real.trees import ROOT
from timerd_client.metrics import FIGURES

PAGE = (ROOT / "docs/howto/observing.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


*SHORT, PROGRAM = BLOCK.findall(PAGE)
SPAN = re.compile(r"^(timerd\.\w+): trace (\w{8}), links \['(\w{8})'\]$", re.MULTILINE)


@pytest.mark.parametrize("block", SHORT, ids=["metrics", "traces"])
def test_a_block_runs(block: str, daemon: Daemon) -> None:
    try:
        exec(compile(block, "observing.md", "exec"), {})
    finally:
        td.client().close()


def test_the_program_prints_the_spans_of_the_page(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "joined.py").write_text(PROGRAM)
    ended = subprocess.run([sys.executable, "joined.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert joins(ended.stdout) == joins(PAGE) == {"event": "fire", "fire": "event", "operation": "event"}
    assert len(ended.stdout.splitlines()) == 3


def joins(printed: str) -> dict[str, str]:
    """To which span each span has its link."""
    spans = {name.removeprefix("timerd."): (ids, link) for name, ids, link in SPAN.findall(printed)}
    names = {ids: name for name, (ids, _) in spans.items()}
    return {name: names[link] for name, (_, link) in spans.items()}


def test_the_table_has_the_metrics_of_clients_and_their_sentences() -> None:
    rows = {
        f"| `{name}{'_total' if figure.kind == 'counter' else ''}` | {figure.kind} | {figure.about} |"
        for name, figure in FIGURES.items()
    }
    assert rows - set(PAGE.splitlines()) == set()


@pytest.mark.long
def test_the_table_has_each_logger_and_no_other() -> None:
    table = re.findall(r"^\| `([\w.]+)` \|", PAGE.partition("## Logs")[2], re.MULTILINE)
    assert sorted(table) == sorted({name for folder in PACKAGES.values() for name in loggers_of(folder)})


def loggers_of(folder: Path) -> set[str]:
    """The names of the loggers that a package's modules have."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger":
                assert isinstance(node.args[0], ast.Constant), f"{path}: the name of a logger is a constant"
                found.add(str(node.args[0].value))
    return found
