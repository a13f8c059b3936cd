"""How tests with real processes wait: for a condition, and never for a fixed time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 45.0  # ends a test that hangs. It is far longer than a loaded machine needs, and measures nothing.
SPARK_PATIENCE_S = 100.0  # for jobs of Spark: on a busy machine each may take seconds to start its Python workers


def eventually(
    condition: Callable[[], object], what: str = "the condition did not come true", seconds: float = PATIENCE_S
) -> float:
    """Wait until the condition holds. Returns the seconds that this took, or raises AssertionError(what)."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + seconds, what
        time.sleep(0.005)
    return time.monotonic() - start


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until each thread stands still. On a busy machine some threads go on for a while."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    eventually(lambda: all(_state(task) in "Tt" for task in tasks.iterdir()), f"process {pid} does not stop")


def _state(task: Path) -> str:
    """The state of a thread, from /proc/PID/task/TID/stat."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def until(get: Callable[[], T]) -> T:
    """The first result of `get` that is true. Raises AssertionError if none is true in time."""
    end = time.monotonic() + PATIENCE_S
    while not (found := get()):
        assert time.monotonic() < end, f"nothing within {PATIENCE_S:g} s"
        time.sleep(0.001)
    return found
