"""The parts of segments to read: the journals below a path, and the spans of records for tasks.

A host has a journal: a directory with segments. `path` is a journal, a directory with one for each host, or a pattern
such as "/mnt/journals/*" or "/mnt/journals/{web1,web2}". Standard library only: this runs in the driver's planner.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from timerd_shm.declare.journal import BLOCK_ROWS
from timerd_shm.read.segment import LOCK_NAME, JournalError, Offset, Segment, is_unfinished, segments_of

SPAN_ROWS_MAX = 1 << 20  # for one task, which costs Spark some 50 ms; a segment of the default size is one span
LOOK_AHEAD_BLOCKS = 64  # how many blocks after a damaged one are searched for a good one
BEGINNING = Offset(0, 0)  # of a journal that has no segment yet: segments count from 1
SKIP_HINT = 'option("failOnDataLoss", "false") passes over it'
OTHER_JOURNAL = (
    "this is not the checkpoint's journal, or its mount is missing. Mount it again, or begin a new checkpoint"
)
log = logging.getLogger("timerd_spark")


BRACES = re.compile(r"\{([^{}]+)\}")


class Span(NamedTuple):
    """Records `first` to `end` - 1 of a segment, for one task. Spark sends it to an executor."""

    directory: str
    segment: int
    first: int
    end: int
    missing: int = 0  # number of rows that should directly precede `first`, but are in no segment


def hosts_of(path: str) -> dict[str, Path]:
    """The journals of `path`, by their names in offsets: {"web1": Path("/mnt/journals/web1")}. Raises JournalError.

    A journal's name does not depend on the other journals, so a stream goes on when the journal of another host
    appears. A pattern may match journals, or directories with journals. Both together are refused, because
    `backup/journal` may be a copy of `journal`.
    """
    if not is_pattern(path) or Path(path).is_dir():
        directory = Path(path)
        if not (there := journals_in(directory)):
            raise JournalError(
                f"there is no journal in {directory}: it has no segments, and no daemon has it. Is its mount missing?"
            )
        return {name or directory.name: journal for name, journal in there}
    patterns = expanded(path)
    base = Path(os.path.commonpath([base_of(Path(pattern)) for pattern in patterns]))
    matches: list[Path] = []
    inside: list[Path] = []
    for match in map(Path, sorted({found for pattern in patterns for found in glob.glob(pattern)})):
        if match.is_dir():
            for name, found in journals_in(match):
                (inside if name else matches).append(found)
    if inside and (journal := next(filter(is_journal, matches), None)) is not None:
        raise JournalError(
            f"{path!r} matches the journal {journal}, and a directory that holds another, {inside[0]}, which may be a "
            "copy: move one of them away, or give a pattern that does not match both"
        )
    if not matches and not inside:
        raise JournalError(f"no directory matches {path!r}, or none of them has a journal")
    return {str(found.relative_to(base)): found for found in sorted(matches + inside)}


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards, or alternatives in braces."""
    return glob.has_magic(path) or BRACES.search(path) is not None


def expanded(path: str) -> list[str]:
    """A path for each alternative in braces, as all sources of Spark take them: "/j/{a,b}/x" is /j/a/x and /j/b/x."""
    found = BRACES.search(path)
    if found is None:
        return [path]
    before, behind = path[: found.start()], path[found.end() :]
    return [each for one in found[1].split(",") for each in expanded(before + one + behind)]


def base_of(pattern: Path) -> Path:
    """The directory in which a pattern begins. For a path without wildcards, the directory that contains it."""
    base = pattern.parent
    while glob.has_magic(str(base)):
        base = base.parent
    return base


def journals_of(paths: Sequence[str]) -> dict[str, Path]:
    """The journals of one path or several. With several paths, their names are whole paths. Raises JournalError.

    A journal that occurs twice, as itself and as a link to it, would be read twice: this is refused.
    """
    if len(paths) == 1:
        found = hosts_of(paths[0])
    else:
        found = {str(journal.absolute()): journal for path in paths for journal in hosts_of(path).values()}
    seen: dict[Path, Path] = {}
    for journal in found.values():
        if (other := seen.setdefault(journal.resolve(), journal)) is not journal:
            raise JournalError(
                f"{other} and {journal} are one journal, whose rows would be read twice: give a path that has it once"
            )
    return found


def check_names(known: Collection[str], hosts: Mapping[str, Path], paths: Sequence[str]) -> None:
    """Raises JournalError if a stream would read a journal again, because its name is not the one in `known`.

    Example: the checkpoint knows "journal", and the path gives "web1/journal". This happens if a query goes on with
    another path than before. It also happens with a checkpoint of an earlier version, in which the only match of a
    pattern was called by the last part of its present name. If one host has left and another host has come, this does
    not raise.
    """
    for old in sorted(set(known) - hosts.keys()):
        same = [new for new in hosts if new.endswith(f"/{old}") or old.endswith(f"/{new}")]
        if same and not set(same) & set(known):
            directory, depth = hosts[same[0]].absolute(), old.count("/")
            before = Path(directory.parents[depth], *"*" * depth, directory.name)
            raise JournalError(
                f"the checkpoint names a journal {old!r}, which is none of {shown(paths)}, and does not name "
                f"{same[0]!r} ({directory}): if both are one journal, its rows would be read again. Go on with a path "
                f"that gives the old name, such as {str(before)!r}, or begin a new checkpoint"
            )


@lru_cache(maxsize=1_000)
def pass_over(what: str) -> None:
    """Log, once, that something is left out of the rows, because the option allows it."""
    log.warning("%s: passed over", what)


def shown(paths: Sequence[str]) -> str:
    """The paths of load(), for errors."""
    return ", ".join(map(repr, paths))


def journals_in(directory: Path) -> list[tuple[str, Path]]:
    """(name, journal): the directory itself as "" if it is a journal, else the journals in it. Raises JournalError."""
    if is_journal(directory):
        return [("", directory)]
    try:
        inside = sorted(child for child in directory.iterdir() if child.is_dir() and is_journal(child))
    except OSError as error:
        raise JournalError(f"there is no journal in {directory}: {error.strerror}") from None
    return [(child.name, child) for child in inside]


def is_journal(directory: Path) -> bool:
    """Whether the directory has segments, or a daemon that has not written yet uses it. False if it cannot be read."""
    try:
        return bool(segments_of(directory)) or (directory / LOCK_NAME).exists()
    except OSError:
        return False


def list_segments(directory: Path) -> list[int]:
    try:
        return segments_of(directory)
    except OSError as error:
        raise JournalError(f"there is no journal in {directory}: {error.strerror}") from None


def check_header(directory: Path) -> None:
    """Raises JournalError if the newest segment of a journal is of another layout."""
    for sequence in reversed(list_segments(directory)):
        if (segment := open_segment(directory, sequence, being_made=True)) is not None:
            segment.close()
            return


def open_segment(directory: Path, sequence: int, *, being_made: bool) -> Segment | None:
    """A segment; None if it was removed, or (`being_made`) has no header yet. Raises JournalError, with the path."""
    try:
        return Segment(directory, sequence, older=True)
    except FileNotFoundError:
        return None
    except JournalError as error:
        try:
            if being_made and is_unfinished(directory, sequence):
                return None
        except FileNotFoundError:
            return None
        except OSError:
            pass
        raise JournalError(f"{directory}: {error}") from None


def end_in(segment: Segment, finished: bool) -> int:
    """The number of the record after the last written one. Damaged records count as written."""
    if finished:
        blocks = segment.blocks()
    else:
        blocks = -(-segment.end() // BLOCK_ROWS)
        while (later := segment.next_good(blocks + 1, LOOK_AHEAD_BLOCKS)) is not None:
            blocks = later + 1
    if blocks <= segment.header.first_block:
        return segment.header.first_block * BLOCK_ROWS
    _, rows = segment.good(blocks - 1, 1)
    if rows == 0 and not finished:
        return (blocks - 1) * BLOCK_ROWS  # the daemon is writing the last block
    return (blocks - 1) * BLOCK_ROWS + (rows or BLOCK_ROWS)


def first_offset(directory: Path) -> Offset:
    """The offset at which a journal begins. If its first blocks are gone, it begins after them."""
    listed = list_segments(directory)
    if not listed:
        return BEGINNING
    try:
        segment = open_segment(directory, listed[0], being_made=len(listed) == 1)
    except JournalError:  # the reader of the segment reports it
        segment = None
    if segment is None:
        return Offset(listed[0], 0)
    try:
        first = segment.first(LOOK_AHEAD_BLOCKS if len(listed) == 1 else None)
    finally:
        segment.close()
    return Offset(listed[0], first * BLOCK_ROWS if first > segment.header.first_block else 0)


def last_offset(directory: Path) -> Offset:
    """The offset at which a journal ends now, or up to which it can be read."""
    listed = list_segments(directory)
    for sequence in reversed(listed):
        try:
            segment = open_segment(directory, sequence, being_made=sequence == listed[-1])
        except JournalError:
            continue
        if segment is not None:
            try:
                return Offset(sequence, end_in(segment, finished=sequence != listed[-1]))
            finally:
                segment.close()
    return Offset(listed[0], 0) if listed else BEGINNING


class Walk:
    """A walk over a journal from `start` to its end, or to `end`; `position` is the offset at which it stopped.

    `end` is not checked against the file: the journal ended there when `end` was taken. With `skip`, the walk leaves
    out damaged parts instead of raising JournalError. `expected`: (incarnation, number) of the row at `start`, if it is
    known.
    """

    def __init__(
        self,
        directory: Path,
        start: Offset,
        end: Offset | None = None,
        *,
        skip: bool = False,
        expected: tuple[int, int] | None = None,
    ) -> None:
        self.directory, self.position, self._end, self._skip = directory, start, end, skip
        self._expected = expected  # of the row that comes next
        self._missing = 0  # number of rows before that row that are in no segment

    def spans(self, rows: int | None = None) -> Iterator[Span]:
        """A span for each segment, several for a large one; `rows` rows at most in all. Raises JournalError."""
        listed = list_segments(self.directory)
        start, end = self.position, self._end
        seen = max(start.segment, end.segment if end is not None else 0)
        if seen > (listed[-1] if listed else 0):
            has = f"the newest is {listed[-1]}" if listed else "there is none"
            raise JournalError(f"{self.directory}: segment {seen} was here, and {has}: {OTHER_JOURNAL}")
        if listed and max(start.segment, 1) < listed[0]:
            self._lost(
                f"{self.directory}: rows from {start} on were removed, the oldest segment is {listed[0]}",
                'hold unread files with option("consumer", NAME), raise --journal-keep, or go on without these rows by '
                'option("failOnDataLoss", "false")',
            )
        for sequence in listed:
            if sequence < start.segment or (end is not None and sequence > end.segment):
                continue
            for span in self._in_segment(sequence, finished=sequence != listed[-1]):
                left = span.end - span.first if rows is None else min(rows, span.end - span.first)
                if left == 0:
                    return
                self.position = Offset(sequence, span.first + left)
                yield span._replace(end=span.first + left)
                if rows is not None:
                    rows -= left
                    if left < span.end - span.first:
                        return

    def _lost(self, what: str, remedy: str = SKIP_HINT) -> None:
        """Log that rows are lost, if rows may be left out. Else raises JournalError."""
        if not self._skip:
            raise JournalError(f"{what}; {remedy}")
        pass_over(what)

    def _in_segment(self, sequence: int, finished: bool) -> Iterator[Span]:
        try:
            segment = open_segment(self.directory, sequence, being_made=not finished)
        except JournalError as error:
            self._lost(str(error))
            return
        if segment is None:
            if finished:
                self._lost(f"{self.directory}: segment {sequence} was removed before it was read")
            return
        try:
            header, last = segment.header, end_in(segment, finished)
        finally:
            segment.close()
        first = max(header.first_block * BLOCK_ROWS, self.position.record if sequence == self.position.segment else 0)
        if self._expected is not None and self._expected[0] == header.incarnation:
            missing = header.first_row + first - self._expected[1]
            if missing > 0:
                self._lost(f"{self.directory}: {missing} rows before segment {sequence} are missing")
                self._missing += missing
            first -= min(missing, 0)  # rows that are in two segments are read once
        # The last block may be unreadable while the daemon writes it. So one block less does not mean another journal.
        if sequence == self.position.segment and self.position.record >= last + BLOCK_ROWS and not self._skip:
            was = self.position.record
            raise JournalError(
                f"{self.directory}: segment {sequence} had {was} records, and has {last}: {OTHER_JOURNAL}"
            )
        self._expected = (header.incarnation, header.first_row + max(first, last))
        if self._end is not None and sequence == self._end.segment:
            last = self._end.record
        while first < last:
            part = min(first + SPAN_ROWS_MAX, last)
            yield Span(str(self.directory), sequence, first, part, self._missing)
            first, self._missing = part, 0
