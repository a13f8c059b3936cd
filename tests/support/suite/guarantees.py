"""The tests that timerd/GUARANTEES.md names, and whether they passed in a run of the whole suite."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from support.real.trees import ROOT

DOCUMENT = ROOT / "timerd" / "GUARANTEES.md"
TIERS = ("", "not long", "long")  # what -m says in a run of the whole suite, in `make test`, in `make test-long`
ROW = re.compile(r"^\|.*\|([^|]*::[^|]*)\|$", re.MULTILINE)
TEST = re.compile(r"test_\w+\.py::test_\w+")


def promises() -> list[str]:
    """The tests of each promise, as file::name."""
    return [test for cell in ROW.findall(DOCUMENT.read_text()) for test in TEST.findall(cell)]


def named(nodeids: Iterable[str]) -> set[str]:
    """Tests as GUARANTEES.md names them: file::name, without folders and parameters."""
    return {nodeid.partition("[")[0].rpartition("/")[2] for nodeid in nodeids}


def unproved(passed: set[str]) -> list[str]:
    """The tests of promises that are not among the passed tests."""
    return sorted(set(promises()) - named(passed))


class Guarantees:
    """Fails a run of the whole suite, or of one tier, if a test that proves a guarantee did not pass.

    `make test` leaves out tests marked `long`, and `make test-long` runs only these. A test of the other tier must
    exist, but need not run. A test that has a short form and a long form is in both tiers. A skipped test is listed,
    and fails nothing.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")  # a worker of pytest-xdist does not judge the run
        self.passed: set[str] = set()
        self.other_tier: set[str] = set()
        self.skipped: set[str] = set()  # a machine may lack what a test needs; the test says what
        self.missing: list[str] = []

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        long = self.config.getoption("markexpr") == "long"
        others = {item.nodeid for item in items if (item.get_closest_marker("long") is None) == long}
        self.other_tier |= set(promises()) & named(others)
        if self.is_worker:
            self.config.workeroutput["other_tier"] = sorted(self.other_tier)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.other_tier.update(getattr(node, "workeroutput", {}).get("other_tier", ()))  # a crashed worker has none

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        chosen = (
            self.config.getoption("keyword")
            or self.config.getoption("markexpr") not in TIERS
            or self.config.getoption("lf", False)
            or self.config.getoption("collectonly")
        )
        whole = self.config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
        if whole and exitstatus == pytest.ExitCode.OK and not self.is_worker:
            self.missing = unproved(self.passed | self.skipped | self.other_tier)
            if self.missing:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in sorted(named(self.skipped) & set(unproved(self.passed))):
            terminalreporter.write_line(f"GUARANTEES.md: {test} was skipped", yellow=True)
        for test in self.missing:
            terminalreporter.write_line(f"GUARANTEES.md: {test} did not run, or did not pass", red=True)
