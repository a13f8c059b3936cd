"""The findings of an audit so far, and the row at which the audit is. All modules of this room report here."""

from __future__ import annotations

from .records import Finding


class Findings:
    """The findings of an audit, for all of its parts. After a GAP nothing is certain, so report() adds nothing."""

    __slots__ = ("causes", "cut", "row", "wrong")

    def __init__(self) -> None:
        self.wrong: list[Finding] = []
        self.causes: list[Finding] = []  # the findings in `wrong` that say that rows are missing
        self.row = -1  # number of the present row; -1: the end
        self.cut = False  # there was a GAP

    def report(self, operation: int, what: str) -> None:
        """Add a finding at the present row. Operation 0: the finding is not about an operation."""
        if not self.cut:
            self.wrong.append(Finding(self.row, operation, what))

    def cause(self, what: str) -> None:
        """Add a finding that rows are missing. Other findings may follow from it."""
        if not self.cut:
            self.report(0, what)
            self.causes.append(self.wrong[-1])
