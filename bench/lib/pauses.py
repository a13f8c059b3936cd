"""How often the machine itself stops a program: a process on each processor does nothing but read the clock.

If a delay of a timer service is no longer than such a pause, it may be the machine's fault. On a virtual machine the
host causes most pauses, and few of them are accounted as stolen time.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

from bench.lib.common import Failed, Row

NOTED_NS = 100_000
LONG_NS = 1_000_000
PATIENCE_S = 10.0
FORK = get_context("fork")  # safe: this process has one thread


def pauses(seconds: float) -> list[Row]:
    """A row for each processor that this process may use."""
    parts = []
    for processor in sorted(os.sched_getaffinity(0)):
        results, answers = FORK.Pipe(duplex=False)
        part = FORK.Process(target=_watch, args=(processor, seconds, answers), daemon=True)
        part.start()
        answers.close()
        parts.append((processor, part, results))
    rows = []
    for processor, part, results in parts:
        if not results.poll(seconds + PATIENCE_S):
            raise Failed(f"the process on processor {processor} has sent no result within {seconds + PATIENCE_S:.0f} s")
        found: list[int] = results.recv()
        part.join()
        long = [pause for pause in found if pause >= LONG_NS]
        rows.append(
            {
                "processor": processor,
                "over_100_us_per_s": len(found) / seconds,
                "over_1_ms_per_s": len(long) / seconds,
                "share_percent": 100 * sum(found) / (seconds * 1e9),
                "max_ms": max(found, default=0) / 1e6,
            }
        )
    return rows


def _watch(processor: int, seconds: float, answers: Connection) -> None:
    os.sched_setaffinity(0, {processor})
    found, before = list[int](), time.monotonic_ns()
    end = before + round(seconds * 1e9)
    while before < end:
        now = time.monotonic_ns()
        if now - before >= NOTED_NS:
            found.append(now - before)
        before = now
    answers.send(found)
