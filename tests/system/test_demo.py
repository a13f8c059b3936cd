"""The demo, in its quick form: HTTP clients and the daemon count the same. Nothing is left behind, even on Ctrl-C."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real.daemons import arenas_of, processes_of
from support.real.trees import ROOT

RUN = ROOT / "examples/demo/run.py"
TIMEOUT_S = 60


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, runtime_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, started in a directory that its user may not read, as by `su` in a directory of root.

    The demo makes its own directory in the test's directory.
    """
    monkeypatch.setenv("TMPDIR", str(runtime_dir))
    there = runtime_dir / "there"
    there.mkdir()
    command = [sys.executable, str(RUN), "--quick"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=there,
    )
    there.chmod(0)
    yield process
    if process.poll() is None:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    there.chmod(0o700)


def left_by_demo(out: str) -> list[str]:
    """Remains of the demo: its directory, shared memory and processes."""
    found = re.search(r"ready in (\S+)", out)
    assert found is not None, out
    directory = Path(found[1])
    parts = (directory.parent.glob(directory.name), arenas_of(directory), processes_of(directory))
    return [str(each) for part in parts for each in part]


@pytest.mark.long  # the short form of this test is the one with Ctrl-C below
def test_clients_and_daemon_count_the_same_in_the_demo(demo: subprocess.Popen[str]) -> None:
    out, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, out
    assert "both sides agree" in out
    assert "DIFFER" not in out
    assert not left_by_demo(out), out


def test_ctrl_c_ends_the_demo_and_leaves_no_files(demo: subprocess.Popen[str]) -> None:
    assert demo.stdout is not None
    out = ""
    while "polls wait" not in out:
        line = demo.stdout.readline()
        assert line, f"the demo ended too early: {out}"
        out += line
    demo.send_signal(signal.SIGINT)
    rest, _ = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 130, out + rest
    assert not left_by_demo(out), out + rest
