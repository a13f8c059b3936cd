"""docs/howto/testing.md: each of its blocks is a test file, and passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.real.trees import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_tests_of_the_page_pass(runtime_dir: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs/howto/testing.md").read_text())
    assert len(blocks) >= 6
    for number, block in enumerate(blocks):
        (runtime_dir / f"test_block_{number}.py").write_text(block)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"],
        cwd=runtime_dir,
        env={name: value for name, value in os.environ.items() if not name.startswith(("TIMERD_", "PYTEST_"))},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
