"""examples/celery_beside: four Celery workers. While the schedule runs, one of them is killed, and then the daemon."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from support.real.daemons import Daemon
from support.real.patience import PATIENCE_S, eventually
from support.real.trees import ROOT

EVERY_S = 0.5
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=warning")
START_S = 4 * PATIENCE_S  # each of four workers imports Celery, on a busy machine


class Workers:
    """Four Celery workers, and the table that they write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        environment = {"BESIDE_FOLDER": str(directory), "BESIDE_EVERY_S": str(EVERY_S), "BESIDE_PATIENCE_S": "2"}
        self.log_path = directory / "celery.log"
        with self.log_path.open("ab") as log:
            self.processes = [
                subprocess.Popen(
                    [sys.executable, "-m", "celery", "-A", "app", "worker", "--pool=solo", f"-nw{number}@here", *QUIET],
                    env={**os.environ, **environment},
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for number in range(4)
            ]

    def reports(self) -> list[tuple[datetime, int]]:
        """The due time and the writer of each report, in the order in which they were written."""
        rows: list[tuple[str, int]] = []
        with (
            closing(sqlite3.connect(self._directory / "reports.sqlite", timeout=30)) as connection,
            suppress(sqlite3.OperationalError),  # no worker has made the table yet
        ):
            rows = connection.execute("SELECT due, worker FROM reports ORDER BY rowid").fetchall()
        return [(datetime.fromisoformat(due), worker) for due, worker in rows]

    def wait_more(self, count: int) -> None:
        """Wait for `count` further reports."""
        wanted = len(self.reports()) + count
        eventually(lambda: len(self.reports()) >= wanted, f"no {wanted} reports: {self.log_path.read_text()[-5_000:]}")

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)


@contextmanager
def working(directory: Path) -> Iterator[Workers]:
    workers = Workers(directory)
    try:
        eventually((directory / "reports.sqlite").exists, "no worker has begun", START_S)
        yield workers
    finally:
        workers.end()


@pytest.mark.long
@pytest.mark.timeout(240)
def test_each_report_is_written_once_and_in_order_when_a_worker_and_the_daemon_are_killed(
    make_daemon: Callable[..., Daemon], runtime_dir: Path
) -> None:
    daemon = make_daemon()
    directory = runtime_dir / "app"
    shutil.copytree(ROOT / "examples/celery_beside", directory)
    for folder in ("queue", "control"):
        (directory / folder).mkdir()
    with working(directory) as workers:
        workers.wait_more(1)
        workers.wait_more(3)
        of_pid = {process.pid: process for process in workers.processes}
        of_pid[workers.reports()[-1][1]].kill()  # it has written the newest report
        workers.wait_more(3)
        daemon.kill()
        daemon.start()
        workers.wait_more(3)
        dues = [due for due, _ in workers.reports()]
    assert dues == sorted(set(dues)), "each once, and in order"
    steps = [(later - sooner).total_seconds() / EVERY_S for sooner, later in pairwise(dues)]
    assert all(abs(step - round(step)) < 0.2 for step in steps), f"all are points of the schedule: {steps}"
    assert {worker for _, worker in workers.reports()} <= set(of_pid)
