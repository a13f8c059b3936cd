"""Each guarantee of timerd/GUARANTEES.md names an existing test. A run of all tests fails if it leaves one out."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.real.trees import TESTS, python_path
from support.suite import guarantees
from support.suite.guarantees import promises

# A small suite with the plugin of this suite, and with two promises.
CONFTEST = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("guarantees", {guarantees.__file__!r})
guarantees = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guarantees)
guarantees.promises = lambda: ["test_a.py::test_quick", "test_a.py::test_slow"]
def pytest_configure(config):
    config.pluginmanager.register(guarantees.Guarantees(config))
"""
INI = """
[pytest]
testpaths = .
markers = long
"""
FAILS_IF_LONG = """
import pytest
def test_quick(): pass
@pytest.mark.long
def test_slow(): assert False
"""
SKIPS_IF_LONG = FAILS_IF_LONG.replace("assert False", "pytest.skip()")
HAS_BOTH_FORMS = """
import pytest
def test_quick(): pass
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.long)])
def test_slow(size): assert size == 2
"""
IS_NOT_THERE = "def test_quick(): pass"


def test_each_promise_names_a_test_that_exists() -> None:
    found = promises()
    assert len(found) >= 30
    missing = [test for test in found if not exists(test)]
    assert not missing, f"GUARANTEES.md names tests that do not exist: {missing}"


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    paths = list(TESTS.rglob(file))
    if len(paths) != 1:
        return False
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return any(isinstance(each, functions) and each.name == name for each in ast.parse(paths[0].read_text()).body)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "arguments", "fails", "says"),
    [
        (FAILS_IF_LONG, "-n1 -m 'not long'", False, "1 passed"),
        (FAILS_IF_LONG, "-n0 -m long", True, "1 failed"),
        (SKIPS_IF_LONG, "-n0 -m long", False, "test_a.py::test_slow was skipped"),
        (HAS_BOTH_FORMS, "-n0 -m 'not long'", True, "1 failed"),
        (HAS_BOTH_FORMS, "-n0 -m long", False, "1 passed"),
        (IS_NOT_THERE, "-n0 -m 'not long'", True, "test_a.py::test_slow did not run, or did not pass"),
        (IS_NOT_THERE, "-n0", True, "test_a.py::test_slow did not run, or did not pass"),
        (IS_NOT_THERE, "-n0 -k quick", False, "1 passed"),
    ],
    ids=range(8),
)
def test_a_run_may_leave_a_promise_to_the_other_tier_but_not_skip_it(
    code: str, arguments: str, fails: bool, says: str, tmp_path: Path
) -> None:
    for name, text in (("test_a.py", code), ("conftest.py", CONFTEST), ("pytest.ini", INI)):
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", *shlex.split(arguments), "--basetemp=temporary"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": python_path()},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert ran.returncode == fails, ran.stdout
    assert says in ran.stdout
