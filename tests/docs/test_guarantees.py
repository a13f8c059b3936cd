"""Each guarantee that timerd/GUARANTEES.md gives names a test that exists. (That it ran is conftest.py's matter.)"""

from __future__ import annotations

import ast

from guarantees import promises
from trees import TESTS


def test_each_promise_names_a_test_that_exists() -> None:
    found = promises()
    assert len(found) >= 30
    missing = [test for test in found if not exists(test)]
    assert not missing, f"GUARANTEES.md names tests that there are not: {missing}"


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    paths = list(TESTS.rglob(file))
    if len(paths) != 1:
        return False
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return any(isinstance(each, functions) and each.name == name for each in ast.parse(paths[0].read_text()).body)
