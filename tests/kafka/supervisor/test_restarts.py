"""The pause before the next start of a process that ended at once."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from timerd_kafka.cluster.settings import Settings
from timerd_kafka.supervisor import supervisor as supervisor_module
from timerd_kafka.supervisor.supervisor import AGAIN_S, Supervisor


class Process:
    """The process of a timer daemon that does nothing."""

    pid = 1
    returncode: int | None = None

    def __init__(self, *_: object, **__: object) -> None:
        pass


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """A supervisor that does not run, and starts such daemons."""
    made = Supervisor(
        Settings(data=tmp_path / "data", workers=1, replicas=1, port=0, runtime_dir=str(tmp_path / "run"))
    )
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Process)
        yield made
    for kept in made._reserved:
        kept.close()
    made._selector.close()
    os.close(made._lock)


@pytest.mark.parametrize(("seconds", "pause"), [(60.0, AGAIN_S), (0.0, 0.0)], ids=["at once", "later"])
def test_a_daemon_that_ends_at_once_is_started_again_after_a_pause_the_first_one_too(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, seconds: float, pause: float
) -> None:
    monkeypatch.setattr(supervisor_module, "SHORT_S", seconds)
    daemon = supervisor.daemon
    assert daemon is not None
    for _ in range(2):
        daemon.start()
        assert daemon.ended(Process.pid)
        before = time.monotonic()
        supervisor._daemon_ended(0)
        ((when, _),) = supervisor._due
        assert before + pause <= when <= time.monotonic() + pause
        supervisor._due.clear()
