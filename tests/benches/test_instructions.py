"""The bench `instructions`: which costs in a callgrind file are the core's own, and the error without valgrind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.suites import instructions

DUMP = """\
positions: line
events: Ir

ob=(1) /usr/lib/libc.so.6
fn=(1) memcpy
0 100
ob=(2) /env/timerd/core.cpython-311-x86_64-linux-gnu.so
fn=(2) 0x0000000000012340
0 7
+3 5
cob=(1)
cfn=(1)
calls=3 0
* 60
* 1
ob=(3) /env/timerd/core_faults.cpython-311-x86_64-linux-gnu.so
fn=(3) 0x10
0 1000
ob=(2)
fn=(4) 0x20
-3 20

totals: 1133
"""


def test_instructions_of_called_functions_do_not_count_as_the_cores(tmp_path: Path) -> None:
    dump = tmp_path / "dump.2"
    dump.write_text(DUMP)
    assert instructions.counted(dump) == 7 + 5 + 1 + 20


def test_without_valgrind_an_error_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sys.argv", ["instructions.py"])
    assert instructions.main() == 2
    assert "valgrind is not installed" in capsys.readouterr().err
