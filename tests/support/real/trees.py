"""The project's folders, and the path on which tests find their helpers."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def python_path() -> str:
    """PYTHONPATH for a process that imports helpers of the tests: the folders that pyproject.toml gives to pytest."""
    return os.pathsep.join(str(ROOT / folder) for folder in SETTINGS["tool"]["pytest"]["ini_options"]["pythonpath"])


def file_of_tests(name: str) -> Path:
    """The path of a file of tests, by its name alone: no name occurs in two folders."""
    (found,) = TESTS.rglob(name)
    return found
