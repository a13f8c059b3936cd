"""docs/howto/kafka.md: pytest runs each of its examples as a user's test. Its table has the versions of all APIs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.real.trees import ROOT
from timerd_kafka.apis.table import APIS
from timerd_kafka.wire.codec import api_of, versions_of

PAGE = ROOT / "docs/howto/kafka.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {re.findall(r"def (test_\w+)", block)[0]: block for block in BLOCK.findall(PAGE.read_text())}


@pytest.mark.long
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    for name, block in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-ra"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0 and f"{len(BLOCKS)} passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_page_has_the_versions_of_each_api() -> None:
    table = PAGE.read_text().partition("## What it has")[2].partition("The numbers are")[0]
    for key, (name, _) in APIS.items():
        versions = versions_of(name)
        assert f"{api_of(key, versions[-1]).name} {versions[0]} to {versions[-1]}" in table
