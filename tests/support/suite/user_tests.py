"""Runs pytest in a process of its own, as a user of timerd's fixtures does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def environment_of(path: Path) -> dict[str, str]:
    """The environment of that pytest: what it makes lies below `path`."""
    (path / "tmp").mkdir(exist_ok=True)
    return {name: value for name, value in os.environ.items() if not name.startswith(("TIMERD_", "PYTEST_"))} | {
        "TMPDIR": str(path / "tmp")
    }


def run_pytest(path: Path, files: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Write these files, and run their tests with these words of the command line."""
    for name, text in files.items():
        (path / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=path,
        env=environment_of(path),
        capture_output=True,
        text=True,
    )
