"""Queries that are killed again and again lose nothing, double nothing, and say nothing else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from spark.purgatory.feeds import said, write
from spark.purgatory.queries import compare, in_files, rows_of
from support.real.trees import TESTS

KILLS = 20
FILES = KILLS + 10


class Life:
    """A process with the query, from its start to its end."""

    def __init__(self, directory: Path) -> None:
        self.checkpoint = directory / "checkpoint"
        self.first = self.newest("commits")
        with (directory / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spark.purgatory.driving", str(directory)],
                env=os.environ | {"PYTHONPATH": str(TESTS)},
                stdout=log,
                stderr=log,
            )

    def newest(self, log: str) -> int:
        """The newest batch in a log of the checkpoint; -1 if there is none."""
        directory = self.checkpoint / log
        return (
            max((int(path.name) for path in directory.iterdir() if path.name.isdigit()), default=-1)
            if (directory.exists())
            else -1
        )

    def is_in_a_batch(self) -> bool:
        """Whether Spark has begun a batch, and not ended it."""
        return self.newest("offsets") > self.newest("commits")

    def wait_for_a_batch(self, *, inside: bool) -> bool:
        """Wait until this life has ended a batch, and is in one or not. Returns whether the process still runs."""
        while self.process.poll() is None:
            if self.newest("commits") > self.first and self.is_in_a_batch() == inside:
                return True
            time.sleep(0.01)
        return False

    def kill(self, *, workers: bool) -> bool:
        """Kill the whole tree, or the Python workers alone. Returns whether it was in the middle of a batch."""
        tree = psutil.Process(self.process.pid).children(recursive=True)
        if workers:
            killed = [child for child in tree if child.is_running() and "pyspark.daemon" in " ".join(child.cmdline())]
        else:
            killed = [psutil.Process(self.process.pid), *tree]
        was_inside = self.is_in_a_batch()
        for child in killed:
            try:
                child.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if workers:  # the query fails, or Spark starts them again
            time.sleep(1)
            return self.kill(workers=False) or was_inside
        self.process.wait()
        return was_inside


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_killed_queries_lose_nothing_and_double_nothing(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed, KILLS, FILES)


def check(directory: Path, seed: int, kills: int, files: int) -> None:
    from timerd_spark import local_session

    rng = random.Random(seed)
    rows, outcomes = rows_of(rng, "abc", 200 * files, limits=True)
    write(directory, in_files(rng, rows, files))
    done = inside = 0
    while done < kills:
        life = Life(directory)
        if not life.wait_for_a_batch(inside=done % 2 == 0):
            assert life.process.returncode, "the query has ended before its kills"
            continue
        inside += life.kill(workers=done % 5 == 4)
        done += 1
    last = Life(directory)
    assert last.process.wait() == 0, (directory / "log.txt").read_text()[-2_000:]
    print(f"{done} kills, {inside} in the middle of a batch, {last.newest('commits') + 1} batches")
    compare(said(local_session(2).read.parquet(str(directory / "out"))), outcomes, seed)
