"""timerd/DESIGN.md: each ground rule has an example, a cost and a test that exists; and rule 12 holds."""

from __future__ import annotations

import ast
import re

import pytest

from support.real.trees import ROOT, file_of_tests

TEXT = (ROOT / "timerd/DESIGN.md").read_text()
RULE = re.compile(r"^### (\d+)\. ([^\n]+)\n\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^\* Test: `(test_\w+\.py)::(test_\w+)`", re.MULTILINE)
RULES = {int(number): (title, text) for number, title, text in RULE.findall(TEXT)}
CORE = ROOT / "timerd/purgatory"


def test_rules_are_numbered_one_by_one() -> None:
    assert list(RULES) == list(range(1, len(RULES) + 1))
    assert len(RULES) >= 15


@pytest.mark.parametrize("number", RULES)
def test_a_rule_has_an_example_a_cost_and_a_test_that_exists(number: int) -> None:
    text = RULES[number][1]
    assert "\n* Example: " in text
    assert "\n* Cost: " in text
    tests = NAMED.findall(text)
    assert tests, "the rule names no test"
    for file, name in tests:
        assert name in functions_of(file), f"{file} has no {name}"


def functions_of(file: str) -> set[str]:
    body = ast.parse(file_of_tests(file).read_text()).body
    return {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_rooms_that_the_tables_name_exist() -> None:
    client = (ROOT / "client/DESIGN.md").read_text()
    rooms = [ROOT / room for room in re.findall(r"^\| [^|]+ \| `([\w/]+/)`", TEXT, re.MULTILINE)]
    for room in re.findall(r"^\| [^|]+ \| `(\w+/)`", client, re.MULTILINE):
        rooms.append(ROOT / "client" / room if room.startswith("timer") else ROOT / "client/timerd_client" / room)
    assert len(rooms) >= 30
    assert not [str(room) for room in rooms if not room.is_dir()]


def test_the_core_is_inline_functions_of_one_unit() -> None:
    """Rule 12: a function of timerd/purgatory is inline, and no file there is compiled by itself."""
    assert not [*CORE.rglob("*.pyx"), *CORE.rglob("*.c")]
    found, apart = 0, []
    for path in sorted(CORE.rglob("*.pxd")):
        for line in re.findall(r"^cdef (?!extern|enum|struct)[^(\n]*\(", path.read_text(), re.MULTILINE):
            found += 1
            if not line.startswith("cdef inline "):
                apart.append(f"{path.relative_to(ROOT)}: {line}")
    assert found >= 300
    assert not apart, "\n".join(apart)
