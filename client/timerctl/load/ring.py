"""The time at which each event was applied, read from the daemon's ring in shared memory before it is overwritten.

Every few milliseconds the load test's own process looks at the new part of the ring, but not at every event. It begins
with the first and the last new event, for example 100 and 160. Say both are of one client and one turn, and come from
this client's commands 7 and 67. Then all events between them are of this client and this turn too, one for each
command. (A refused command makes no event, but it ends the run.) If the two events do not match in this way, the
stretch between them is halved, and looked at again. An event that was overwritten before it was looked at is counted
(`unseen`), and no operation is judged by it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

from timerd_shm.declare.fields import offset_of, size_of
from timerd_shm.declare.layout import BATCH_MAX, Region
from timerd_shm.declare.records import EventRecord
from timerd_shm.read.reader import NEWEST_WORD, ArenaReader

WORDS = size_of(EventRecord) // 8
APPLIED = offset_of(EventRecord, "effective_ns") // 8
COMMAND = offset_of(EventRecord, "command") // 8
CLIENT = offset_of(EventRecord, "client") // 8  # this word: slot (16 bits), kind and purgatory, generation (32 bits)
SLOT_BITS = 16  # the low bits of a topic; the slot's generation is above them
IDENTITY = 0xFFFF_FFFF_0000_FFFF  # mask of the client's word: slot and generation
assert offset_of(EventRecord, "client") % 8 == 0 and offset_of(EventRecord, "client_generation") == 8 * CLIENT + 4


class Seen(NamedTuple):
    """The result of a look at an event: equal for all consecutive events of one client and one turn."""

    effective_ns: int
    client: int
    ahead: int  # the event's sequence less its command number


NOTHING = Seen(0, 0, 0)


class RingFollower:
    """Follows the event ring of an arena from now on. Call `poll` every `period_s`, and `applied` at the end."""

    def __init__(self, reader: ArenaReader) -> None:
        region = reader.region(Region.EVENTS)
        self._words = reader.words
        self._first_word = region.offset // 8
        self._size = region.count
        self._next = reader.words[NEWEST_WORD] + 1
        self._sequence = array("q")  # sequences of the events that were looked at
        # The fields of Seen, as columns: the garbage collector would visit objects during the run.
        self._seen = array("Q"), array("Q"), array("q")
        self.unseen = 0

    def period_s(self, events_per_s: float) -> float:
        """The interval of `poll` at this rate: four calls for each round of the ring, and one every 10 ms at least."""
        return max(0.001, min(0.01, self._size / (4 * events_per_s)))

    def poll(self) -> None:
        """Look at the new events."""
        newest = self._words[NEWEST_WORD]
        first = max(self._next, newest + 1 - self._size)
        if first > newest:
            return
        before = len(self._sequence)
        self._look_at(first, newest)
        # The daemon has gone on. Drop the looks at events that it has overwritten, or may be filling now.
        there = self._words[NEWEST_WORD] + 1 + BATCH_MAX - self._size
        if there > first:
            behind = bisect_left(self._sequence, there, before)
            if before < behind < len(self._sequence) and all(one[behind - 1] == one[behind] for one in self._seen):
                behind -= 1  # the two looks agree, so the event at `there` is the same
                self._sequence[behind] = there
            for column in (self._sequence, *self._seen):
                del column[before:behind]
            self.unseen += min(there, newest + 1) - first
        self.unseen += first - self._next
        self._next = newest + 1

    def applied(self, topic: int, events: int) -> array[int]:
        """When the first `events` commands of a client were applied; 0 if that was not seen."""
        found = array("q", bytes(8 * events))
        client = topic & (1 << SLOT_BITS) - 1 | topic >> SLOT_BITS << 32
        before, upto = NOTHING, 0
        for sequence, seen in zip(self._sequence, map(Seen, *self._seen), strict=True):
            if seen.client == client:
                command = sequence - seen.ahead
                first = upto if seen == before else command - 1
                found[first:command] = array("q", (seen.effective_ns,)) * (command - first)
                before, upto = seen, command
        return found[:events]

    def _look_at(self, first: int, last: int) -> None:
        """Look at these two events, and at events between them as long as neighbouring looks differ."""
        words, start, mask = self._words, self._first_word, self._size - 1

        def look(sequence: int) -> Seen:
            word = start + (sequence & mask) * WORDS
            return Seen(words[word + APPLIED], words[word + CLIENT] & IDENTITY, sequence - words[word + COMMAND])

        def keep(sequence: int, seen: Seen) -> None:
            self._sequence.append(sequence)
            for column, one in zip(self._seen, seen, strict=True):
                column.append(one)

        def halve(low: int, one: Seen, high: int, other: Seen) -> None:
            if one == other or high - low < 2:
                return
            middle = (low + high) // 2
            seen = look(middle)
            halve(low, one, middle, seen)
            keep(middle, seen)
            halve(middle, seen, high, other)

        begin, end = look(first), look(last)
        keep(first, begin)
        if last > first:
            halve(first, begin, last, end)
            keep(last, end)
