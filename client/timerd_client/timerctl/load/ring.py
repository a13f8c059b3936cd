"""When each event was applied, by the daemon's own word: the ring is read from shared memory before it is overwritten.

The load test's own process copies three columns of what is new in the ring, every few milliseconds. An event that was
overwritten before is not judged by, and counted (`unseen`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from timerd_shm.fields import offset_of, size_of
from timerd_shm.layout import RUN_MAX, EventRecord, Region
from timerd_shm.reader import NEWEST_WORD, ArenaReader

WORDS = size_of(EventRecord) // 8
APPLIED = offset_of(EventRecord, "applied_ns") // 8
COMMAND = offset_of(EventRecord, "command") // 8
CLIENT = offset_of(EventRecord, "client") // 8  # this word: slot (16 bits), kind and purgatory, generation (32 bits)
SLOT_BITS = 16  # of a topic; above them stands the slot's generation
IDENTITY = 0xFFFF_FFFF_0000_FFFF  # of the client's word: slot and generation
assert offset_of(EventRecord, "client") % 8 == 0 and offset_of(EventRecord, "client_generation") == 8 * CLIENT + 4


class RingFollower:
    """Follows the event ring of an arena from now on. `poll` is called often enough, `applied` at the end."""

    def __init__(self, reader: ArenaReader) -> None:
        region = reader.region(Region.EVENTS)
        self._words = reader.words
        self._first_word = region.offset // 8
        self._size = region.count
        self._next = reader.words[NEWEST_WORD] + 1
        self._columns = {APPLIED: array("Q"), COMMAND: array("Q"), CLIENT: array("Q")}
        self.unseen = 0

    def period_s(self, events_per_s: float) -> float:
        """How often `poll` is to be called at that rate: four times a round of the ring, 50 ms at most."""
        return max(0.001, min(0.05, self._size / (4 * events_per_s)))

    def poll(self) -> None:
        """Copy what is new."""
        newest = self._words[NEWEST_WORD]
        first = max(self._next, newest + 1 - self._size)
        if first > newest:
            return
        before = len(self._columns[APPLIED])
        at, end = first & (self._size - 1), (newest & (self._size - 1)) + 1
        for part in (range(at, end),) if at < end else (range(at, self._size), range(end)):
            self._copy(part)
        # The daemon has gone on meanwhile: what it has overwritten, or may be just filling, is not what was meant.
        lost = self._words[NEWEST_WORD] + 1 + RUN_MAX - self._size - first
        if lost > 0:
            for column in self._columns.values():
                del column[before : before + lost]
            self.unseen += min(lost, newest + 1 - first)
        self.unseen += first - self._next
        self._next = newest + 1

    def applied(self, topic: int, events: int) -> array[int]:
        """When the first commands of a client were applied, 0 where that was not seen."""
        found = array("q", bytes(8 * events))
        client = topic & (1 << SLOT_BITS) - 1 | topic >> SLOT_BITS << 32
        columns = self._columns
        for word, command, applied_ns in zip(columns[CLIENT], columns[COMMAND], columns[APPLIED], strict=True):
            if word & IDENTITY == client and command <= events:
                found[command - 1] = applied_ns
        return found

    def _copy(self, part: Sequence[int]) -> None:
        if not part:
            return
        start = self._first_word + part[0] * WORDS
        records = self._words[start : start + len(part) * WORDS]
        for word, column in self._columns.items():
            column.frombytes(records[word::WORDS].tobytes())
