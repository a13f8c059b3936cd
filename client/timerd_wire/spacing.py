"""How often something is done that costs a wake-up or a frame each time: at once when it was quiet, else at intervals.

A few may follow each other at once, so that who does one thing after the other waits for nothing. Under load there is
one in each interval, with all that piled up in it. (The generic cell rate algorithm of ITU-T I.371: `_full_ns` is its
theoretical arrival time.)

The interval is REST times what it took last, so that what does not depend on how much piled up has a bounded share of
the processor: a pass that costs 50 us is not made each 100 us. Where processors are short a pass takes longer by the
clock, and all of them become fewer and larger. `most_ns` bounds what that may cost in time.
"""

from __future__ import annotations

REST = 3  # intervals are so many times as long as what is done in them


class Spacing:
    """At most `burst` at once, then one every `least_ns` to `most_ns`. Times are those of one clock."""

    def __init__(self, least_ns: int, most_ns: int, burst: int) -> None:
        self._least_ns = least_ns
        self._most_ns = most_ns
        self._slack_ns = (burst - 1) * least_ns
        self._full_ns = 0
        self.interval_ns = least_ns  # to the next one, under load

    @property
    def due_ns(self) -> int:
        """From when on the next may be done."""
        return self._full_ns - self._slack_ns

    def done(self, now_ns: int, took_ns: int = 0) -> None:
        """It was begun at `now_ns`, early perhaps, and took so long. The next is due an interval later at most."""
        self.interval_ns = min(max(REST * took_ns, self._least_ns), self._most_ns)
        self._full_ns = min(max(self._full_ns, now_ns), now_ns + self._slack_ns) + self.interval_ns
