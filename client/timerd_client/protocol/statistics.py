"""The counters of a client."""

from __future__ import annotations

from typing import NamedTuple


class Statistics(NamedTuple):
    """What this client has counted since it was made. The daemon's counters are in `timerctl stats`."""

    waiting: int  # operations that have not settled
    unacknowledged: int  # commands that the daemon has not acknowledged
    commands_unknown: int  # commands that were unacknowledged when the daemon forgot this client
    given_up: int  # operations that settled as UNAVAILABLE
    outcomes_after_giving_up: int  # late outcomes of these, cancellations not counted
    outcomes_unknown: int  # outcomes that nobody waited for
    frames_ignored: int  # frames of another daemon or version, or malformed
    commands_refused: int  # refused commands that have no operation, such as fire() and advance()
