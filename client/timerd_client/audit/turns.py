"""The segments of a journal, the daemon's starts and ends, and the clock of each turn.

A TURN row has the clock's time for all rows after it, and these rows have the same time again. The two are compared.
"""

from __future__ import annotations

from typing import Final

from timerd_shm.declare.journal import AnchorRow, EndRow, GapRow, RowFlag, SegmentRow, TurnRow

from .findings import Findings
from .records import Finding, is_clean

_START, _CONTINUES = int(RowFlag.START), int(RowFlag.CONTINUES)
NEVER: Final = 1 << 64
UNJOURNALED: Final = "a daemon without a journal ran before this row: what happened then is not known"


class Turns:
    """Takes SEGMENT, TURN, ANCHOR, GAP and END rows; checks the times of the other rows.

    `whole`: the audit gets all EVENT rows, so it knows the newest event.
    """

    def __init__(self, findings: Findings, whole: bool) -> None:
        self.now_ns = 0  # the turn's clock
        self.effective_ns = -1  # the effective time of commands in the turn; -1: no TURN row came in this segment
        self.newest: int | None = None  # sequence of the newest event; None: not known
        self.newest_effective_ns = 0  # the effective time of that event
        self.begins_late = False  # there were events before the journal
        self.kept_ns = 0  # the retention
        self.ended = False  # an END row has come, and no start after it
        self.first_gap = NEVER  # number of the first GAP row
        self._findings = findings
        self._whole = whole
        self._start = 0
        self._started = False  # whether a daemon has started since the newest TURN row
        self._least_ns = 0  # time of the newest SEGMENT, TURN or GAP row
        self._turn = (0, 0)  # (clock, effective time) of the newest TURN row
        self._gaps = 0

    def at(self, ns: int, operation: int) -> None:
        """Check a time that the daemon took from its clock."""
        if ns != self.now_ns or self.effective_ns < 0:
            self._findings.report(operation, f"its time is {ns}, and the turn's clock is {self.now_ns}")

    def event(self, sequence: int, effective_ns: int) -> None:
        """An EVENT row: its number, and its effective time."""
        if effective_ns != self.effective_ns:
            self.not_effective(0, effective_ns)
        if self._whole:
            if self.newest is not None and sequence != self.newest + 1:
                self._findings.report(0, f"event {sequence} follows event {self.newest}")
            self.newest = sequence
        self.newest_effective_ns = effective_ns

    def not_effective(self, operation: int, ns: int) -> None:
        """Report an effective time that is not the turn's."""
        self._findings.report(operation, f"its effective time is {ns}, and the turn's is {self.effective_ns}")

    def is_newest(self, sequence: int, operation: int) -> None:
        """Check that a row has the number of the newest event."""
        if self._whole and self.newest is not None and sequence != self.newest:
            self._findings.report(operation, f"its newest event is {sequence}, and should be {self.newest}")

    # rows -------------------------------------------------------------------------------------------------------------

    def segment(self, r: SegmentRow) -> None:
        """A SEGMENT row."""
        findings, starts = self._findings, r.flags & _START
        if r.flags & ~(_START | _CONTINUES) or not is_clean(r):
            findings.report(0, "the SEGMENT row has flags or bytes that no daemon writes")
        if self._start == 0:
            if r.flags != _START:
                findings.report(0, "the first SEGMENT row of an arena must have the flag START, and not CONTINUES")
            self.newest, self.begins_late = r.newest if self._whole else None, r.newest != 0
        elif not r.flags & _CONTINUES:
            findings.cause(UNJOURNALED)
        if (r.start > self._start) != bool(starts):
            findings.report(0, f"start {r.start} follows start {self._start}")
        if self.ended and not starts:
            findings.report(0, "rows follow the END row, and no daemon has started")
        self._goes_on(r.monotonic_ns)
        self.is_newest(r.newest, 0)
        self._start, self.kept_ns, self.ended = r.start, r.kept_ns, False
        self._started = self._started or bool(starts)
        self.effective_ns = -1

    def turn(self, r: TurnRow) -> None:
        """A TURN row."""
        findings, now_ns, effective_ns = self._findings, r.now_ns, r.effective_ns
        if self.ended:
            findings.report(0, "rows follow the END row, and no daemon has started")
        self._goes_on(now_ns)
        if effective_ns != now_ns:  # in a gap of the daemon, this is the time of the last turn before the gap
            before_ns, before_effective_ns = self._turn
            goes_on = self._started or effective_ns == before_effective_ns or effective_ns >= before_ns
            if effective_ns > now_ns or effective_ns < self.newest_effective_ns or not goes_on:
                findings.report(0, f"the effective time {effective_ns} is no time of a turn before {now_ns}")
        self.is_newest(r.newest, 0)
        if not is_clean(r):
            findings.report(0, "the TURN row has bytes that are not zero")
        self.now_ns, self.effective_ns, self._started = now_ns, effective_ns, False
        self._turn = now_ns, effective_ns

    def anchor(self, r: AnchorRow) -> None:
        """An ANCHOR row. The wall clock may have any value."""
        self.at(r.monotonic_ns, 0)
        if not is_clean(r):
            self._findings.report(0, "the ANCHOR row has bytes that are not zero")

    def gap(self, r: GapRow) -> None:
        """A GAP row: from here on the pending operations are not known, so no later row is audited."""
        findings = self._findings
        if r.from_ns and not self.now_ns <= r.from_ns <= r.to_ns:
            findings.report(0, f"the rows from {r.from_ns} to {r.to_ns} follow a row of {self.now_ns}")
        self._goes_on(r.to_ns)
        if not is_clean(r):
            findings.report(0, "the GAP row has bytes that are not zero")
        self._gaps += r.rows
        self.first_gap = min(self.first_gap, findings.row)
        findings.cause(f"{r.rows} rows were dropped here: no later row can be audited")
        findings.cut = True

    def end(self, r: EndRow) -> None:
        """An END row. It counts the missing rows, so it is checked after a GAP as well."""
        findings = self._findings
        if r.gaps != self._gaps or r.number != findings.row:
            what = f"the END row is row {r.number} and counts {r.gaps} rows as dropped, the GAP rows {self._gaps}"
            findings.wrong.append(Finding(findings.row, 0, what))
        self.at(r.at_ns, 0)
        self.is_newest(r.newest, 0)
        if r.start != self._start:
            findings.report(0, f"start {r.start} ends, and start {self._start} began")
        if not is_clean(r):
            findings.report(0, "the END row has bytes that are not zero")
        self.ended, self.effective_ns = True, -1

    def _goes_on(self, ns: int) -> None:
        """Check that a time is not before the time of any earlier row."""
        if ns < max(self.now_ns, self._least_ns):
            self._findings.report(0, f"the clock goes back to {ns} from {max(self.now_ns, self._least_ns)}")
        self._least_ns = ns
