"""The intervals between passes: none after a quiet time, some under load, because a pass costs a wake-up or a frame.

A pass is one round of a thread: a turn of the conductor, or a round in which a client sends its commands.

A few passes may follow each other at once, so a caller that does one thing after another does not wait. Under load
there is one pass in each interval, for all that has come meanwhile. (This is the generic cell rate algorithm of ITU-T
I.371; `_full_ns` is its theoretical arrival time.)

The interval follows the duration of the last pass, so the fixed cost of passes has a bounded share of the processor.
For example, with `rest=3` a pass of 50 us is followed by the next one after 150 us. If processors are short, a pass
takes longer by the clock, so passes become fewer and larger. `most_ns` bounds the delay.
"""

from __future__ import annotations


class Spacing:
    """At most `burst` passes at once, then one every `least_ns` to `most_ns`. Times are those of one clock.

    An interval is `rest` times as long as the last pass.
    """

    def __init__(self, least_ns: int, most_ns: int, burst: int, *, rest: int) -> None:
        self._rest = rest
        self._least_ns = least_ns
        self._most_ns = most_ns
        self._slack_ns = (burst - 1) * least_ns
        self._full_ns = 0
        self.interval_ns = least_ns  # to the next pass, under load

    @property
    def due_ns(self) -> int:
        """The earliest time at which the next pass may begin."""
        return self._full_ns - self._slack_ns

    def done(self, now_ns: int, took_ns: int = 0) -> None:
        """A pass began at `now_ns`, perhaps early, and took `took_ns`. The next one waits for an interval at most."""
        self.interval_ns = min(max(self._rest * took_ns, self._least_ns), self._most_ns)
        self._full_ns = min(max(self._full_ns, now_ns), now_ns + self._slack_ns) + self.interval_ns
