"""docs/howto/kafka.md: pytest runs its examples as a user's tests are run. Its table has the versions of all APIs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.real.trees import ROOT
from timerd_kafka.apis.table import APIS
from timerd_kafka.wire.codec import api_of, versions_of

PAGE = ROOT / "docs/howto/kafka.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    for number, block in enumerate(blocks):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0 and f"{len(blocks)} passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_page_has_the_versions_of_each_api() -> None:
    table = PAGE.read_text().partition("## What it has")[2].partition("The numbers are")[0]
    for key, (name, _) in APIS.items():
        versions = versions_of(name)
        assert f"{api_of(key, versions[-1]).name} {versions[0]} to {versions[-1]}" in table
