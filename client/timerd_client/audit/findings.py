"""The findings of an audit so far, and the row that the audit looks at. audit.py and its neighbours report them."""

from __future__ import annotations

from .records import Finding


class Findings:
    """The findings of an audit, for all of its parts. Behind a GAP nothing is certain, so nothing is reported."""

    __slots__ = ("causes", "cut", "row", "wrong")

    def __init__(self) -> None:
        self.wrong: list[Finding] = []
        self.causes: list[Finding] = []  # of these, what says that rows are not there
        self.row = -1  # number of the present row; -1: the end
        self.cut = False  # there was a GAP

    def report(self, operation: int, what: str) -> None:
        """Add a finding at the present row (operation 0: none)."""
        if not self.cut:
            self.wrong.append(Finding(self.row, operation, what))

    def cause(self, what: str) -> None:
        """Add a finding that says that rows are not there: others may follow from it."""
        if not self.cut:
            self.report(0, what)
            self.causes.append(self.wrong[-1])
