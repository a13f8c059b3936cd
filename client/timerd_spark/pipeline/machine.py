"""The machine of a run: its description, its load, and the run's memory, measured four times a second."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_S: Final = 0.25


class Load(NamedTuple):
    """The load of the machine's processors during a step, as shares of all processors."""

    busy: float
    others: float  # the part of `busy` that other processes than the run's own used


class Machine:
    """Watches the machine during a run, whose processes are this one and its children (JVM, workers, a daemon)."""

    def __init__(self) -> None:
        self.peak = 0  # bytes: the most memory that the run had at one time
        self._own = psutil.Process()
        self._spent: dict[tuple[int, float], float] = {}  # CPU seconds by process, ended processes included

    @contextmanager
    def watched(self) -> Iterator[None]:
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,), name="timerd-machine", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    @contextmanager
    def load(self) -> Iterator[list[Load]]:
        """Measure the load while the block runs, and put it into the list at the end."""
        found: list[Load] = []
        self._look()  # else CPU time from before the first look would count for this step
        before, own = psutil.cpu_times(), sum(self._spent.values())
        yield found
        self._look()
        after = psutil.cpu_times()
        every = sum(after) - sum(before) - (after.guest - before.guest)  # `user` includes `guest`
        idle = after.idle + after.iowait - before.idle - before.iowait
        if every > 0:
            busy = min(max(1 - idle / every, 0.0), 1.0)
            mine = (sum(self._spent.values()) - own) / every
            found.append(Load(busy, max(busy - mine, 0.0)))

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        total = 0
        for process in [self._own, *self._own.children(recursive=True)]:
            try:
                total += process.memory_info().rss
                spent = process.cpu_times()
                self._spent[process.pid, process.create_time()] = spent.user + spent.system
            except psutil.Error:
                continue
        self.peak = max(self.peak, total)


def described(spark: SparkSession | None) -> dict[str, Any]:
    """The machine and the versions of its software, for the page of a run."""
    return {
        "host": platform.node(),
        "processor": _processor(),
        "processors": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "versions": {
            "timerd": version("timerd"),
            "PySpark": spark.version if spark is not None else "none",
            "Java": _java(),
            "Python": platform.python_version(),
        },
        "command": " ".join(["python -m timerd_spark", *sys.argv[1:]]),
    }


def _processor() -> str:
    """The processor's name, if the system gives one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    try:
        release = Path(home or "/", "release").read_text()
    except OSError:
        release = ""
    found = (line.partition("=")[2].strip('"') for line in release.splitlines() if line.startswith("JAVA_VERSION="))
    return next(found, "unknown")
