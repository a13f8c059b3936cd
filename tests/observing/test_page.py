"""docs/howto/observing.md: its blocks run, and its tables have each metric of clients and each logger."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import timerd as td
from support.real.daemons import Daemon
from support.real.imports import PACKAGES
from support.real.trees import ROOT
from timerd_client.metrics import FIGURES

PAGE = (ROOT / "docs/howto/observing.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCK.findall(PAGE), ids=["metrics", "traces", "context"])
def test_a_block_runs(block: str, daemon: Daemon) -> None:
    try:
        exec(compile(block, "observing.md", "exec"), {})
    finally:
        td.client().close()


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
