"""The bounds of a turn: how many records each of its steps may touch, and whether a bound has cut one of them.

A record is an operation, a watcher or a bucket. For example: an event on a key that 200,000 operations watch takes 13
turns. It touches two records for each operation, and a step of a turn touches 32,768. The rest waits for the next turn.
A record takes 30 to 50 ns of CPU time, or 100 ns if little of the arena is in the caches. So a step takes 1 to 3 ms.
Other work is charged as the number of records that takes the same time.
"""

from __future__ import annotations

RECORDS_PER_STEP = 32_768  # the bound of reading, of resuming, and of the wheel
RECORDS_WHILE_COPYING = 1_024  # the same while the arena is copied: each line that a turn changes is logged first


class Bounds:
    """The state that the parts of a turn share: the records of a step, and whether work is left for the next turn."""

    def __init__(self, records: int) -> None:
        self._most = records
        self.records = records
        self.turns = 0  # of this conductor
        self.is_cut = False  # a bound was reached, or something is left: the next turn follows at once

    def cut(self) -> None:
        """Let the next turn follow at once, because something is left."""
        self.is_cut = True

    def narrow(self, is_copying: bool) -> None:
        """Touch fewer records in a step while the arena is copied. That bounds the copy's share of a turn."""
        self.records = min(self._most, RECORDS_WHILE_COPYING) if is_copying else self._most
