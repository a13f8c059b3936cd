"""The marks of a registrar. Each operation gets a mark that was read before the planned time of its registration.

Real programs do the same: they read a mark before they cause an event, so the event counts even if the registration is
late. Only a registration that is late by more than KEPT_NS may lose an event: the mark of its time is forgotten by
then, and its own mark may be newer than the event. (The ring may have overwritten the events after an older mark.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from timerd_client.mark import Mark

KEPT_NS = 100_000_000  # a private daemon's ring holds the events of four times this time (own_daemon.py)


class Marks:
    """The marks that were read lately."""

    def __init__(self, read: Callable[[], Mark], start_ns: int) -> None:
        """`start_ns`: the start of the run, from which the planned times of registrations (`due_ns`) count."""
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
        """The newest mark read before `due_ns`, else the oldest, and when it was read. Call it with rising `due_ns`."""
        kept = self._kept
        while len(kept) > 1 and kept[1][1] <= self._start_ns + due_ns:
            kept.popleft()
        return kept[0]
