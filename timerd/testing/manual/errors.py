"""The errors of a test on a manual clock."""

from __future__ import annotations


class WouldBlockError(AssertionError):
    """A test waits for something that cannot come before the clock moves."""


class HangsError(AssertionError):
    """A handler, or other code of the test's program, hangs in real time, so the clock cannot move."""
