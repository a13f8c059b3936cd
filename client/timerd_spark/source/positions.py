"""Positions in journals: their form in offsets, and the beginning and end of reading.

    {"web1": {"segment": 17, "row": 40960, "incarnation": "5d0c...", "number": 1088640, "at_us": 1795863600000000}}

`segment` and `row` are the position: `row` counts from the beginning of the segment. The other fields describe the
position. `incarnation` is of the arena whose rows the segment has: a journal that was begun anew has segments of the
same numbers, and rows of another arena. `number` counts the arena's rows from its first one. `at_us` is the time of the
newest row before the position, in microseconds since 1970. `number` and `at_us` show how far a reader is behind.

`gone` is true if the journal was away, and the query went on without it (failOnDataLoss=false). The position stays: if
the journal comes back, reading goes on there.

`begun` is the position at which the first batch with rows of the journal begins. The offsets of a stream have `begun`
up to the end of that batch. Spark keeps only the ends of batches. When Spark reads the first batch again, it asks the
source again where the batch begins, and by then "latest" has moved.

Standard library only, as segments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from timerd_shm.declare.fields import offset_of
from timerd_shm.declare.journal import BLOCK_ROWS, ROW_SIZE, ROWS, TIMES, RowKind
from timerd_shm.read.segment import JournalError, Offset, Segment

from .segments import BEGINNING, OTHER_JOURNAL, first_offset, last_offset, list_segments, open_segment

# For each kind of row, the field with the time at which the row was written. Kinds whose time is that of a call or an
# effect are left out.
CLOCKS = {
    int(kind): offset_of(ROWS[kind], name)
    for kind, name in TIMES.items()
    if kind not in (RowKind.REGISTER, RowKind.REGISTERED, RowKind.EVENT)
}
LOOK_BACK_BLOCKS = 64  # a row with a time is looked for in this many blocks before a position
EARLIEST, LATEST = "earliest", "latest"
Vector = Mapping[str, Mapping[str, Any]]
Start = str | Mapping[str, Any]  # of a journal: "earliest", "latest", or a position


class Places:
    """The positions of journals, by name. `begun`: where a journal's first batch begins, until that batch ends."""

    def __init__(self, vector: Vector = MappingProxyType({})) -> None:
        self.offsets = {host: Offset(place["segment"], place["row"]) for host, place in vector.items()}
        self.begun = {host: Offset(*place["begun"]) for host, place in vector.items() if "begun" in place}
        self._unread = {host for host, offset in self.begun.items() if offset == self.offsets[host]}
        self._more: dict[str, dict[str, Any]] = {
            host: {name: value for name, value in place.items() if name not in ("segment", "row", "begun")}
            for host, place in vector.items()
        }

    def check(self, host: str, directory: Path) -> None:
        """Raises JournalError if the segment is of another arena than when the offset was taken."""
        check_incarnation(directory, self.offsets[host], self._more[host].get("incarnation"))

    def expected(self, host: str, offset: Offset) -> tuple[int, int] | None:
        """(incarnation, number) of the row at `offset`; None if not known, or if the host is at another offset."""
        more = self._more.get(host, {})
        if self.offsets.get(host) != offset or not {"incarnation", "number"} <= more.keys():
            return None
        return int(more["incarnation"], 16), more["number"]

    def where(self, host: str) -> str:
        """The host's position, for people."""
        return f"segment {self.offsets[host].segment}, row {self.offsets[host].record}"

    def away(self, host: str) -> bool:
        """Note that the host's journal is not there. Returns whether that was noted before."""
        marked = "gone" in self._more[host]
        self._more[host]["gone"] = True
        return marked

    def back(self, host: str) -> None:
        """Note that the host's journal is there."""
        self._more[host].pop("gone", None)

    def begin(self, host: str, directory: Path, offset: Offset) -> None:
        """Note that a stream begins to read the host's journal at this offset."""
        self.move(host, directory, offset)
        self.begun[host] = offset
        self._unread.add(host)

    def move(self, host: str, directory: Path, offset: Offset) -> None:
        """Move the host's position to this offset."""
        if self.offsets.get(host) != offset or not self._more[host]:
            self.offsets[host], self._more[host] = offset, facts_at(directory, offset)
            if host not in self._unread:  # an earlier batch was the first of this journal
                self.begun.pop(host, None)

    def first(self, host: str, end: Places) -> Offset:
        """Where the host's batch that ends at `end` begins: at this position.

        If it is the first batch of the journal, it begins at the `begun` that `end` has.
        """
        if host in self.offsets and (host not in self._unread or host not in end.begun):
            return self.offsets[host]
        return end.begun.get(host, BEGINNING)

    def vector(self) -> dict[str, dict[str, Any]]:
        """The positions as Spark's logs have them."""
        begun = {host: {"begun": list(offset)} for host, offset in self.begun.items()}
        return {
            host: {"segment": at.segment, "row": at.record, **self._more[host], **begun.get(host, {})}
            for host, at in sorted(self.offsets.items())
        }


# facts about positions ------------------------------------------------------------------------------------------------


def facts_at(directory: Path, offset: Offset) -> dict[str, Any]:
    """The arena, row number and time of an offset's position; empty if the segment cannot be read."""
    try:
        segment = open_segment(directory, offset.segment, being_made=True)
    except JournalError:
        return {}
    if segment is None:
        return {}
    try:
        header = segment.header
        facts = {"incarnation": f"{header.incarnation:016x}", "number": header.first_row + offset.record}
        at_ns = time_before(segment, offset.record)
    finally:
        segment.close()
    return facts if at_ns is None else facts | {"at_us": wall_us(segment, at_ns)}


def check_incarnation(directory: Path, offset: Offset, before: object) -> None:
    """Raises JournalError if a segment has rows of another arena than `before`, if `before` is known (not None)."""
    now = facts_at(directory, offset).get("incarnation")
    if before is not None and now is not None and now != before:
        raise JournalError(
            f"{directory}: segment {offset.segment} has rows of arena {now}, and had rows of {before}: {OTHER_JOURNAL}"
        )


def wall_us(segment: Segment, monotonic_ns: int) -> int:
    """A time of CLOCK_MONOTONIC by the wall clock, as that clock was set when the segment was begun."""
    return (segment.header.wall_ns - segment.header.monotonic_ns + monotonic_ns) // 1_000


def times_of(segment: Segment, block: int) -> list[tuple[int, int]]:
    """(record, ns) of the rows of a block that have a time of the daemon; none if the block is not good."""
    data, rows = segment.good(block, 1)
    found = []
    for at in range(min(rows, BLOCK_ROWS)):
        begin = (1 + at) * ROW_SIZE
        clock = CLOCKS.get(data[begin])
        if clock is not None:
            ns = int.from_bytes(data[begin + clock : begin + clock + 8], "little")
            found.append((block * BLOCK_ROWS + at, ns))
    return found


def time_before(segment: Segment, record: int, blocks: int = LOOK_BACK_BLOCKS) -> int | None:
    """The time of the newest row before a record; None if `blocks` blocks before it have none."""
    last = (record - 1) // BLOCK_ROWS
    for block in range(last, max(last - blocks, segment.header.first_block - 1), -1):
        earlier = [ns for at, ns in times_of(segment, block) if at < record]
        if earlier:
            return earlier[-1]
    return None


# where to begin, and to end -------------------------------------------------------------------------------------------


def start_of(directory: Path, start: Start) -> Offset:
    """The offset that an option gives for a journal. Raises JournalError if the journal has no such position."""
    if isinstance(start, str):
        return first_offset(directory) if start == EARLIEST else last_offset(directory)
    offset, first, last = Offset(start["segment"], start["row"]), first_offset(directory), last_offset(directory)
    if not first <= offset <= last:
        raise JournalError(
            f"{directory}: an option gives segment {offset.segment}, row {offset.record}, and the journal goes from "
            f"segment {first.segment}, row {first.record} to segment {last.segment}, row {last.record}"
        )
    check_incarnation(directory, offset, start.get("incarnation"))
    return offset


def offset_at(directory: Path, at_us: int) -> Offset:
    """The position of the first row whose time is `at_us` (microseconds since 1970) or later; the end if none is."""
    listed = list_segments(directory)
    if not listed:
        return BEGINNING
    begins = first_offset(directory)
    for sequence in reversed(listed):
        segment = open_segment(directory, sequence, being_made=sequence == listed[-1])
        if segment is None:
            continue
        try:
            if wall_us(segment, segment.header.monotonic_ns) >= at_us and sequence > begins.segment:
                continue
            found = _record_at(segment, at_us)
        finally:
            segment.close()
        if found is not None:
            return max(Offset(sequence, found), begins)
        return last_offset(directory) if sequence == listed[-1] else Offset(sequence + 1, 0)
    return begins


def _record_at(segment: Segment, at_us: int) -> int | None:
    """The first record of a segment whose time is `at_us` or later; None if there is none."""
    low, high = segment.header.first_block, -(-segment.end() // BLOCK_ROWS)
    while low < high:  # the first block whose last time is not before `at_us`
        middle = (low + high) // 2
        ns = time_before(segment, (middle + 1) * BLOCK_ROWS, blocks=middle + 1 - low)
        if ns is None or wall_us(segment, ns) < at_us:
            low = middle + 1
        else:
            high = middle
    return next((record for record, ns in times_of(segment, low) if wall_us(segment, ns) >= at_us), None)
