"""How often something is done that costs a wake-up or a frame each time: at once when it was quiet, else at intervals.

A few may follow each other at once, so that who does one thing after the other waits for nothing. Under load there is
one in each interval, with all that piled up in it. (The generic cell rate algorithm of ITU-T I.371: `_full_ns` is its
theoretical arrival time.)
"""

from __future__ import annotations


class Spacing:
    """At most `burst` at once, then one every `interval_ns`. Times are those of one clock."""

    def __init__(self, interval_ns: int, burst: int) -> None:
        self.interval_ns = interval_ns
        self._slack_ns = (burst - 1) * interval_ns
        self._full_ns = 0

    @property
    def due_ns(self) -> int:
        """From when on the next may be done."""
        return self._full_ns - self._slack_ns

    def done(self, now_ns: int) -> None:
        """It was done."""
        self._full_ns = max(self._full_ns, now_ns) + self.interval_ns
