"""The base class of all roles: a process of a run with its client, which plays its part when the run starts."""

from __future__ import annotations

import struct
import time
from array import array
from contextlib import suppress

import psutil

from timerd_client.threaded.client import connect
from timerd_shm.declare.errors import TimerdError

from .messages import Answer, Task, Usage

PURGATORY = "load"
CLOSE_TIMEOUT_S = 1.0
STAMP = struct.Struct("<q")  # of CLOCK_MONOTONIC
STAMPED = 8  # calls in a row that share a stamp: a stamp for each call would cost as much as fire()


class Part:
    """The part that a process plays in a run. Each role is a subclass. `play()` is called when the run starts."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.stopped = False  # set by the thread that listens to the load test
        self.client = connect(task.instance, name=f"load-{task.role.value}-{task.index}")
        self.purgatory = self.client.purgatory(PURGATORY)

    def prepare(self) -> None:
        """Prepare the part, before the run starts: for example, make all names of keys."""

    def play(self, start_ns: int) -> Answer:
        """Play the part. Returns early when `stopped` is set. Raises TimerdError if it has no results."""
        raise NotImplementedError

    def close(self) -> None:
        """End the client. This cancels its pending operations."""
        with suppress(TimerdError):
            self.client.close(timeout=CLOSE_TIMEOUT_S)


class Times:
    """A column of times, one after the other, each as a STAMP.

    All memory is allocated and written before the start. Otherwise the kernel would clear new pages during the run.
    """

    def __init__(self, rows: int) -> None:
        self._rows = bytearray(bytes(STAMP.size * rows))  # copied, so each page is written to
        self._used = 0

    def __len__(self) -> int:
        return self._used // STAMP.size

    def add(self, stamp: bytes, rows: int) -> None:
        """Add this stamp `rows` times."""
        end = self._used + STAMP.size * rows
        self._rows[self._used : end] = stamp * rows
        self._used = end

    def column(self) -> array[int]:
        """The times that were added."""
        return array("q", self._rows[: self._used])


class Meter:
    """CPU time and memory of this process."""

    def __init__(self) -> None:
        self._began_ns = time.process_time_ns()

    def read(self) -> Usage:
        """CPU time since the meter was made, and the memory now."""
        return Usage(time.process_time_ns() - self._began_ns, psutil.Process().memory_info().rss)
