"""The marks of a registrar. It registers each operation with a mark that was read before the operation was due.

A program that causes an event reads a mark first: then the event counts, even for a late registration. So a late
registration loses no event, unless it is later than KEPT_NS: then the ring may have overwritten the event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from timerd_client.mark import Mark

KEPT_NS = 100_000_000  # a private daemon's ring holds four times that (own_daemon.py)


class Marks:
    """The marks that were read lately."""

    def __init__(self, read: Callable[[], Mark], start_ns: int) -> None:
        """`start_ns`: the moment from which the due times of operations count."""
        self._read = read
        self._start_ns = start_ns
        self._kept: deque[tuple[Mark, int]] = deque([(read(), time.monotonic_ns())])

    def read(self) -> None:
        """Read a mark now, and forget marks that are too old."""
        mark = self._read()
        now_ns = time.monotonic_ns()
        self._kept.append((mark, now_ns))
        while self._kept[0][1] < now_ns - KEPT_NS:
            self._kept.popleft()

    def before(self, due_ns: int) -> tuple[Mark, int]:
        """The newest mark read before `due_ns`, else the oldest, and when it was read. Calls have rising `due_ns`."""
        kept = self._kept
        while len(kept) > 1 and kept[1][1] <= self._start_ns + due_ns:
            kept.popleft()
        return kept[0]
