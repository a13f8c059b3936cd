"""The plugin that notes the results of other projects' tests: the worst phase of a test counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = """
import pytest

@pytest.fixture
def skips_late():
    yield
    pytest.skip("late")

@pytest.fixture
def fails_late():
    yield
    assert False, "late"

def test_passes():
    pass

def test_skips():
    pytest.skip("self")

def test_fails_before_its_teardown_is_skipped(skips_late):
    assert False, "call"

def test_passes_before_its_teardown_is_skipped(skips_late):
    pass

def test_skips_before_its_teardown_fails(fails_late):
    pytest.skip("self")

def test_fails_twice(fails_late):
    assert False, "call"

def test_lacks(fails_late):
    assert False, "call"
"""
EXPECTED = {
    "test_passes": ("passed", ""),
    "test_skips": ("cannot", "self"),
    "test_fails_before_its_teardown_is_skipped": ("failed", "call"),
    "test_passes_before_its_teardown_is_skipped": ("cannot", "late"),
    "test_skips_before_its_teardown_fails": ("failed", "late"),
    "test_fails_twice": ("failed", "call"),
    "test_lacks": ("cannot", "it is absent"),
}


def test_the_outcome_of_a_test_is_that_of_its_worst_phase(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    results = tmp_path / "results.jsonl"
    environment = os.environ | {
        "PYTHONPATH": str(HERE),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "UPSTREAM_RESULTS": str(results),
        "UPSTREAM_CANNOT": json.dumps({"test_some.py::test_lacks": "it is absent"}),
        "UPSTREAM_ALL": "1",
        "UPSTREAM_FLAGS": "",
    }
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "upstream_shim"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert {one["test"]: one["outcome"] for one in found} == {
        f"test_some.py::{name}": outcome for name, (outcome, _) in EXPECTED.items()
    }
    for one, (_, why) in zip(found, EXPECTED.values(), strict=True):
        assert why in one["reason"]
