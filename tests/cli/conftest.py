"""An arena whose time stands still, and what `timerctl explain` shows of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from support.real.remains import bury
from support.real.shell import Explain, Run
from support.rig.damage import Pen
from support.rig.harness import Rig
from timerctl.exits import Exit
from timerd_shm.host.process import boot_id


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """An arena of this boot, whose time stands still."""
    made = Rig(capacity=64, ring_events=64, clients=6, purgatories=4)
    Pen(made.memory).header("boot_id", boot_id())
    monkeypatch.setattr(time, "monotonic_ns", lambda: made.now_ns)
    return made


@pytest.fixture
def explain(rig: Rig, run: Run, runtime_dir: Path) -> Explain:
    """The JSON of `timerctl explain` for the arena as it is now, whose daemon is dead."""

    def explained(*arguments: str, status: Exit = Exit.OK) -> Any:
        bury(rig, runtime_dir)
        ended, out, err = run("explain", *arguments, "--json")
        assert ended == status, out + err
        return json.loads(out)

    return explained
