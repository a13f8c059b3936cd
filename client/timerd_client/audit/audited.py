"""The result of an audit of a whole journal: arena by arena, the causes before the findings that may follow from them.

A cause is a lack of rows: rows are missing, damaged, dropped, or were never written. After a cause nearly every row
disagrees with something: after one file of 945 rows was removed, there were outcomes of 235 operations that no row
registers. So causes come first, and similar findings share one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from .records import Finding
from .words import counted

FOLLOWS: Final = "the findings below may follow from these causes, and are counted:"
_VARIES = re.compile(r"0x[0-9a-f]+|'[^']*'|\d+")  # the parts in which similar findings may differ


@dataclass
class AuditedArena:
    """The result of an audit for the rows of one arena."""

    incarnation: int
    outcomes: int = 0  # OUTCOME rows that were checked
    segments: int = 0
    row: int = -1  # all rows up to this one are there; -1: row 0 is missing
    rows: int = 0  # number of the next row
    waiting: int = 0  # rows in the daemon's buffer that are in no file yet
    ended: bool = False  # the rows end with an END row
    causes: list[Finding] = field(default_factory=list)  # missing rows, in order
    others: list[Finding] = field(default_factory=list)  # rows that disagree

    def __str__(self) -> str:
        told = f"{counted(self.outcomes, 'outcome')}, {counted(self.segments, 'segment')}, complete to row {self.row:,}"
        if not self.rows:
            told = "the files have no row"
        waiting = f"{counted(self.waiting, 'row')} {'waits' if self.waiting == 1 else 'wait'} in the daemon's buffer"
        return f"{told}; {waiting}" if self.waiting else told

    def follows(self, finding: Finding) -> bool:
        """Whether a finding comes after the first cause, and so may follow from it."""
        first = next((cause.row for cause in self.causes if cause.row >= 0), None)
        return bool(self.causes) and (finding.row < 0 or (first is not None and finding.row >= first))

    def lines(self) -> Iterator[str]:
        """Lines for people: the causes, then findings that cannot follow from them, then findings that may."""
        yield from map(_line, self.causes)
        yield from _counted(finding for finding in self.others if not self.follows(finding))
        behind = list(_counted(finding for finding in self.others if self.follows(finding)))
        if behind:
            yield FOLLOWS
            yield from (f"  {line}" for line in behind)


@dataclass
class Audited:
    """The result of an audit of a whole journal."""

    arenas: list[AuditedArena] = field(default_factory=list)  # in the order of the journal

    @property
    def wrong(self) -> list[Finding]:
        """All findings, the causes first."""
        causes = [finding for arena in self.arenas for finding in arena.causes]
        return causes + [finding for arena in self.arenas for finding in arena.others]

    @property
    def outcomes(self) -> int:
        """OUTCOME rows that were checked, in all arenas."""
        return sum(arena.outcomes for arena in self.arenas)

    def lines(self) -> list[str]:
        """Lines about the findings, for people. If the journal has several arenas, each line begins with its arena."""
        return [self._of(arena) + line for arena in self.arenas for line in arena.lines()]

    def __str__(self) -> str:
        return "\n".join(self._of(arena) + str(arena) for arena in self.arenas)

    def _of(self, arena: AuditedArena) -> str:
        return f"arena {arena.incarnation:016x}: " if len(self.arenas) > 1 else ""


def _line(finding: Finding) -> str:
    row, operation, what = finding
    if operation:
        what = f"operation {operation:#x}: {what}"
    return f"row {row}: {what}" if row >= 0 else f"at the end: {what}" if operation else what


def _counted(findings: Iterable[Finding]) -> Iterator[str]:
    """One line for similar findings, in the order of their first findings."""
    alike: dict[str, list[Finding]] = {}
    for finding in findings:
        alike.setdefault(_VARIES.sub("#", finding.what), []).append(finding)
    for each in alike.values():
        first, *more = each
        if not more:
            yield _line(first)
            continue
        operations = {finding.operation for finding in each}
        count = f"{len(each):,} operations" if len(operations) == len(each) and 0 not in operations else ""
        last = each[-1].row
        rows = "at the end" if last < 0 else f"rows {first.row} to {last}" if last > first.row else f"row {last}"
        such = "" if all(finding.what == first.what for finding in more) else "for example, "
        which = f" (operation {first.operation:#x} first)" if first.operation else ""
        yield f"{count or f'{len(each):,} times'}, {rows}: {such}{first.what}{which}"
