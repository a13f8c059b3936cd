"""The options of a run of the pipeline, checked before anything is started."""

from __future__ import annotations

from typing import Final, NamedTuple

from timerd_shm.declare.errors import InvalidValueError
from timerd_spark.reports.rollups import window_of
from timerd_spark.reports.survival import timeouts_of
from timerd_spark.source.segments import hosts_of

from .loadtest import PLAYERS_MAX
from .plans import shape_of

AUTO: Final = "auto"  # chosen from the data: pipeline.window_for(), pipeline.timeouts_for()


class Options(NamedTuple):
    """The options of a run. state.json keeps them, and a run with other options does not continue in its directory."""

    journal: str | None  # an existing journal; None: the run plays its own
    ops: int
    played: int
    rate: float
    profile: str
    seed: int
    window: str
    timeouts: tuple[str, ...]
    players: int
    open_end: bool = False  # the journal may go on after its last row

    def check(self) -> Options:
        """Return the options. Raises InvalidValueError if one is out of range."""
        if self.window != AUTO:
            window_of(self.window)
        if self.timeouts != (AUTO,):
            timeouts_of(self.timeouts)
        if not 1 <= self.players <= PLAYERS_MAX:
            raise InvalidValueError(f"cores={self.players}: give 1 to {PLAYERS_MAX:,}")
        if self.ops < 1:
            raise InvalidValueError(f"ops={self.ops:,}: give 1 or more")
        if self.journal is None:
            shape_of(self.profile, ops=self.ops, rate=self.rate, seed=self.seed, timeout=None)
            if not 0 < self.played <= self.ops:
                raise InvalidValueError(f"played={self.played:,}: give 1 to {self.ops:,}, the number of operations")
        elif not hosts_of(self.journal):
            raise InvalidValueError(f"journal={self.journal!r}: there is no journal")
        return self
