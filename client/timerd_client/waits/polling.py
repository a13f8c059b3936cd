"""The policy of `wait_for` while the daemon is lost: raise, or evaluate the predicate again and again."""

from __future__ import annotations

import time
from datetime import timedelta

from timerd_client.arguments import TIMEOUT_S_MAX, patience_s, seconds_of, shown
from timerd_client.types import Patience
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import GRACE_NS

RAISE = "raise"
POLL = "poll"
POLL_S = 0.1
POLL_S_MAX = 1.0  # the pauses double up to this
LOOK_S = 1.0  # in a wait for events: the time between two checks whether the daemon is lost
GRACE_S = GRACE_NS / 1e9


class Polling:
    """The pauses of one `wait_for`, in seconds. `left` is the rest of its timeout; None = no timeout."""

    def __init__(self, unavailable: str, interval: float | timedelta) -> None:
        """Raises InvalidValueError."""
        if unavailable not in (RAISE, POLL):
            raise InvalidValueError(f'unavailable={unavailable!r}: "{RAISE}" or "{POLL}"')
        seconds = seconds_of(interval)
        if seconds is None or not 0 < seconds <= TIMEOUT_S_MAX:
            raise InvalidValueError(f"poll_interval={shown(interval)}: give a time above 0, as seconds or a timedelta")
        self.wanted = unavailable == POLL
        self._first_s = seconds
        self._pause_s = seconds

    def patience(self, left: float | None) -> float | None:
        """How long to wait for an event before checking whether the daemon is lost."""
        self._pause_s = self._first_s
        if self.wanted:
            return LOOK_S if left is None else min(left, LOOK_S)
        return None if left is None else left + GRACE_S

    def waits_on(self, left: float | None, *, lost: bool) -> bool:
        """Whether to go on waiting for events, after the check whether the daemon is lost."""
        return self.wanted and not lost and left != 0.0

    def pause(self, left: float | None) -> float:
        """How long to wait before the predicate is evaluated again, unless the daemon is back earlier."""
        pause_s = self._pause_s
        self._pause_s = max(pause_s, min(2 * pause_s, POLL_S_MAX))
        return pause_s if left is None else min(pause_s, left)


def monotonic_deadline(timeout: Patience) -> float | None:
    """The time at which `timeout` is over; None = never."""
    seconds = patience_s(timeout)
    return None if seconds is None else time.monotonic() + seconds


def seconds_left(deadline: float | None) -> float | None:
    """The seconds that are left until the deadline, at least 0."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
