"""The tests that timerd/GUARANTEES.md names, and whether a run of the whole suite has seen them pass."""

from __future__ import annotations

import re

from trees import ROOT

DOCUMENT = ROOT / "timerd" / "GUARANTEES.md"
ROW = re.compile(r"^\|.*\| (test_\w+\.py::test_\w+) \|$", re.MULTILINE)


def promises() -> list[str]:
    """The test of each promise, as file::name."""
    return ROW.findall(DOCUMENT.read_text())


def unproved(passed: set[str]) -> list[str]:
    """The promises whose test is not among those that passed (parameters of a test are left out)."""
    names = {nodeid.rpartition("/")[2].partition("[")[0] for nodeid in passed}
    return sorted(set(promises()) - names)
