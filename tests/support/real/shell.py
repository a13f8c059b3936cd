"""timerctl as tests run it: in the tests' process, or in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from timerctl import main
from timerctl.exits import Exit

LOOKING = ("stats", "ops", "keys", "calls", "clients", "errors", "check")
Run = Callable[..., tuple[int, str, str]]
Explain = Callable[..., Any]


def runner(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs timerctl in this process. It returns (exit status, output, error output)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


def json_of(run: Run, *arguments: str) -> Any:
    """The output of a command with --json. If the command lists something, only the rows."""
    status, out, err = run(*arguments, "--json")
    assert status == Exit.OK, err
    found = json.loads(out)
    return found.get("rows", found)


def command_of(*arguments: str) -> list[str]:
    """The command line of timerctl as a process of its own."""
    return [sys.executable, "-m", "timerctl", *arguments]


def in_background(*arguments: str) -> subprocess.Popen[str]:
    """Start timerctl as a process of its own, without waiting for its end."""
    return subprocess.Popen(command_of(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
