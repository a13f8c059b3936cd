"""How tests of the Kafka broker wait: for a condition, and never for a fixed time."""

from __future__ import annotations

from collections.abc import Callable

from support.real import patience

# Ends a test that hangs, and measures nothing. A machine that is five times as slow, and has other busy programs, needs
# less.
PATIENCE_S = 60.0


def eventually(condition: Callable[[], object], what: str = "the condition did not come true") -> float:
    """Wait until the condition holds. Returns the seconds that this took, or raises AssertionError(what)."""
    return patience.eventually(condition, what, PATIENCE_S)
