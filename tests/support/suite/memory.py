"""Measures the memory that a test's own calls take and keep."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator

FRAMES = 16  # of each allocation: one of these has to be the test's


class Kept:
    """Bytes, when the block has ended."""

    bytes = 0


@contextlib.contextmanager
def kept_by(file: str) -> Iterator[Kept]:
    """Measure the bytes that are allocated in the block and still in use at its end.

    Only allocations under a function of `file` count: give `__file__`. Threads that earlier tests have left in this
    process may allocate meanwhile.
    """
    kept = Kept()
    tracemalloc.start(FRAMES)
    try:
        yield kept
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, file, all_frames=True)])
        kept.bytes = sum(trace.size for trace in own.traces)
    finally:
        tracemalloc.stop()
