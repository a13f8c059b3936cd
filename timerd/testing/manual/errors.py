"""The errors of a test on a manual clock."""

from __future__ import annotations


class WouldBlockError(AssertionError):
    """A test waits for something that cannot come before the clock moves. Use `advance()`, or `autojump()`."""


class HangsError(AssertionError):
    """A handler, or other code of the program, hangs in real time. Replace the wait that the message names."""
