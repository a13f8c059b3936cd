"""A manual clock whose wall time may be set."""

from __future__ import annotations

from timerd.clock import ManualClock


class JumpingClock(ManualClock):
    """A clock that a test moves. Its wall time may jump forwards and backwards, as if it was set."""

    def jump(self, by_ns: int) -> None:
        self._wall_ns += by_ns
