"""A plugin of pytest for other projects' tests: notes the result of each test, and skips tests that cannot pass.

Its environment variables:
UPSTREAM_RESULTS    a file of JSON lines: one for each test, and one for the log of each cluster
UPSTREAM_CANNOT     a JSON object: patterns of tests, and the reasons why they cannot pass
UPSTREAM_ALL        1: run these tests all the same; if such a test fails, it still counts as "cannot"
UPSTREAM_FLAGS      flags of the cluster
"""

from __future__ import annotations

import json
import os
import sys
from fnmatch import fnmatchcase
from typing import Any

import pytest

LOG_MAX = 50_000  # characters of the log of a test that failed
FLAGS = os.environ["UPSTREAM_FLAGS"].split()
_reasons: dict[str, str] = {}
_found: dict[str, dict[str, Any]] = {}
_port = 0
_connections = 0


def say(line: dict[str, Any]) -> None:
    """Add a line to the results."""
    with open(os.environ["UPSTREAM_RESULTS"], "a", encoding="utf-8") as results:
        results.write(json.dumps(line) + "\n")


def name_of(nodeid: str) -> str:
    """The name of a test in the tables: file::class::test."""
    path, colons, rest = nodeid.partition("::")
    return path.rpartition("/")[2] + colons + rest


def count_connections(port: int) -> None:
    """From now on, count the connections to the cluster: a test that makes none does not test the cluster."""
    global _port
    _port = port
    sys.addaudithook(note_connection)


def note_connection(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook of the interpreter. It counts this process's connections to the broker."""
    global _connections
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][1] == _port:
        _connections += 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that cannot pass."""
    reasons = json.loads(os.environ["UPSTREAM_CANNOT"])
    for item in items:
        name = name_of(item.nodeid)
        if why := next((why for pattern, why in reasons.items() if fnmatchcase(name, pattern)), ""):
            _reasons[name] = why
            if not os.environ.get("UPSTREAM_ALL"):
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test, which is that of its worst phase: failed, before skipped, before passed."""
    global _connections
    name = name_of(report.nodeid)
    line = _found.setdefault(name, {"test": name, "outcome": "passed", "reason": "", "seconds": 0.0})
    line["seconds"] += report.duration
    if report.failed and "text" not in line:
        crash = getattr(report.longrepr, "reprcrash", None)
        line["outcome"] = "cannot" if name in _reasons else "failed"
        line["reason"] = _reasons.get(name) or str(crash.message if crash else report.longrepr)
        line["text"] = "\n".join((report.longreprtext, report.caplog[-LOG_MAX:]))
    elif report.skipped and line["outcome"] == "passed":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        line["outcome"], line["reason"] = "cannot", _reasons.get(name) or why.removeprefix("Skipped: ")
    if report.when == "teardown":
        say({**_found.pop(name), "connections": _connections})
        _connections = 0


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported as a failed test."""
    if report.failed:
        why = {"reason": "it cannot be read", "text": report.longreprtext}
        say({"test": name_of(report.nodeid), "outcome": "failed", "seconds": 0.0, "connections": 0, **why})
