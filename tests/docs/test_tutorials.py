"""The tutorials work: a reader's terminals are played, and show what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import eventually
from support.real.terminals import Player
from support.real.trees import ROOT

TUTORIALS = ROOT / "docs/tutorial"


def page_of(name: str) -> str:
    return (TUTORIALS / f"{name}.md").read_text()


@pytest.fixture
def directory(runtime_dir: Path) -> Path:
    made = runtime_dir / "tutorial"
    made.mkdir()
    return made


def test_two_terminals(directory: Path) -> None:
    daemon = Daemon(directory.parent, start=False)
    # The reader needs longer than the daemon to go on to the next terminal.
    has_cancelled = lambda: daemon.stats()["counters"]["orphans_cancelled"] == 1  # noqa: E731
    with Player(directory, before={"Killed": lambda: eventually(has_cancelled)}) as player:
        player.play(page_of("two-terminals"))
