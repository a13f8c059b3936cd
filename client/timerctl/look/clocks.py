"""The two clocks when an arena is read: the clock of the arena's times, and the wall clock at the same moment."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from timerctl.instance import NS
from timerctl.show.text import due_row, utc
from timerd_client.groups import listing
from timerd_client.groups.schedule import datetime_of
from timerd_shm.declare.limits import NO_DEADLINE
from timerd_shm.declare.records import ArenaHeader
from timerd_shm.host.process import boot_id
from timerd_shm.read.alive import now_ns

SET_NS = NS // 10  # the daemon notices that the wall clock was set if it was set by this much


class Clocks:
    """Now, on both clocks.

    The distance between the clocks is the one by which the daemon plans, so two readings of one operation show the same
    wall-clock times. If the wall clock was set since the daemon noted this distance, the distance is measured anew.
    """

    def __init__(self, header: ArenaHeader) -> None:
        self.now_ns = now_ns(header)
        ahead = time.time_ns() - self.now_ns
        planned = header.wall_ahead_ns
        self._ahead = planned if abs(planned - ahead) < SET_NS else ahead
        self._is_known = header.boot_id == boot_id()

    @property
    def of_calls(self) -> listing.Clocks:
        """These two clocks, for a list of calls."""
        return listing.Clocks(lambda: self.now_ns, lambda: self.now_ns + self._ahead)

    @property
    def now(self) -> datetime:
        """Now, on the wall clock."""
        return datetime_of(self.now_ns + self._ahead)

    def wall_ns(self, at_ns: int) -> int | None:
        """A time of the arena on the wall clock; None for an arena of an earlier boot."""
        return at_ns + self._ahead if self._is_known else None

    def wall(self, at_ns: int) -> str | None:
        """A time of the arena as UTC, or None."""
        wall_ns = self.wall_ns(at_ns)
        return None if wall_ns is None else utc(wall_ns)

    def due(self, deadline_ns: int) -> dict[str, Any]:
        """When a deadline is: its time (UTC), how long until then in ns, and the same as a text."""
        if deadline_ns == NO_DEADLINE:
            return due_row(None, None)
        return due_row(self.wall_ns(deadline_ns), deadline_ns - self.now_ns)
