"""What the README shows works: its code is run, as it stands, beside a worker that does the others' part."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timerd as td
from daemons import Daemon
from timerd_client import aio
from trees import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHERS_FIRE = ("inbox/7", "write/7/r1", "write/7/r3", "stop")


def test_the_table_has_every_call() -> None:
    table = (ROOT / "docs" / "api.md").read_text()
    members = (td.Client, aio.Client, td.Outcome, td.GroupOutcome)
    calls = {name for kind in members for name in dir(kind) if name[0].islower()}
    calls |= {name for name in td.__all__ if name[0].islower() or name.isupper()}
    known = set(re.findall(r"\w+", table))
    assert calls - known == set()


def test_the_code_of_the_readme_runs(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = threading.Event()

    def others() -> None:
        with td.connect(name="the others") as client:
            while not done.wait(0.05):
                (tmp_path / "stop").touch()
                for key in OTHERS_FIRE:
                    client.fire(key, value=b"from the others")

    worker = threading.Thread(target=others)
    worker.start()
    names: dict[str, Any] = {}
    try:
        for block in BLOCK.findall(README.read_text()):
            exec(compile(block, "README.md", "exec"), names)
        said, end = "", time.monotonic() + 20
        while "remind b'user 7'" not in said:
            said += capsys.readouterr().out
            assert time.monotonic() < end, said
            time.sleep(0.01)
        names["worker"].close()
    finally:
        done.set()
        worker.join()
    assert "b'from the others'" in said and "State.COMPLETED ('write/7/r1', 'write/7/r3') ('write/7/r2',)" in said
    assert [outcome.value for outcome in names["batch"].outcomes()] == [b"2", b"1"]
    long_poll(names["poll"], names["post"])
    names["client"].close()


def long_poll(poll: Callable[[str], tuple[int, bytes]], post: Callable[[str, bytes], tuple[int, int]]) -> None:
    found: list[tuple[int, bytes]] = []
    waiting = threading.Thread(target=lambda: found.append(poll("7")))
    waiting.start()
    end = time.monotonic() + 20
    while post("7", b"posted") != (200, 1):
        assert time.monotonic() < end, "nobody waits"
    waiting.join()
    assert found == [(200, b"posted")]
