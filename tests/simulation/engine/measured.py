"""Line coverage of the simulation's subjects: the conductor, the sessions, and the client's protocol without I/O."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType

import coverage

CONDUCTOR = (
    *("turn", "bounds", "gap", "deferred", "inbox", "hello", "subscriptions", "queries", "outbox", "departures"),
    "error_log",
)
SESSIONS = ("session", "sessions", "process", "ends", "silence", "reminders")
# Each subject has one share of executed lines: the conductor's modules together, the sessions' modules together, and
# each module of the client's protocol.
SUBJECTS = {
    "conductor": tuple(f"timerd.conductor.{name}" for name in CONDUCTOR),
    "sessions": tuple(f"timerd.clients.{name}" for name in SESSIONS),
    **{
        name: (f"timerd_client.protocol.{name}",)
        for name in ("protocol", "session", "incoming", "outgoing", "deadlines", "inbox")
    },
}


def file_of(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not there"
    return Path(spec.origin)


MEASURED = {subject: [file_of(module) for module in modules] for subject, modules in SUBJECTS.items()}


class Measure:
    """The lines that measured runs have executed. Lines that an import executes count as well."""

    def __init__(self) -> None:
        included = [str(path) for paths in MEASURED.values() for path in paths]
        self._coverage = coverage.Coverage(data_file=None, include=included)

    def of(self, run: Callable[[], None]) -> None:
        """Measure one run."""
        self._coverage.start()
        try:
            run()
        finally:
            self._coverage.stop()

    def percent(self) -> dict[str, float]:
        """The share of executed lines, by subject."""
        data = self._coverage.get_data()
        found = {}
        for subject, paths in MEASURED.items():
            executed, there = 0, 0
            for path in paths:
                at_import, in_functions = lines_of(compile(path.read_text(), str(path), "exec"))
                executed += len(at_import | (in_functions & set(data.lines(str(path)) or ())))
                there += len(at_import | in_functions)
            found[subject] = 100.0 * executed / there
        return found


def lines_of(code: CodeType) -> tuple[set[int], set[int]]:
    """Lines with code: those that an import executes, and those in the bodies of functions."""
    at_import = {line for _, _, line in code.co_lines() if line}
    in_functions: set[int] = set()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            its_own, inside = lines_of(inner)
            is_function = bool(inner.co_flags & CO_NEWLOCALS)
            in_functions |= inside | (its_own - {inner.co_firstlineno} if is_function else set())
            at_import |= set() if is_function else its_own
    return at_import, in_functions - at_import


def lines_executed(percent: dict[str, float]) -> str:
    """The shares in a sentence."""
    return "lines executed: " + ", ".join(f"{name} {share:.0f} %" for name, share in percent.items())
