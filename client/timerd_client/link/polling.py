"""What `wait_for` does without a daemon: raise, or look at the predicate again and again until it is back."""

from __future__ import annotations

import time

from timerd_client.arguments import wait_s
from timerd_shm.declare.errors import InvalidValueError
from timerd_shm.declare.limits import GRACE_NS

RAISE = "raise"
POLL = "poll"
POLL_S = 0.1
POLL_S_MAX = 1.0  # the pauses double until then
LOOK_S = 1.0  # while events are waited for: whether the daemon is lost
GRACE_S = GRACE_NS / 1e9


class Polling:
    """The pauses of one `wait_for`, in seconds. `left` is what its timeout leaves; None = no end."""

    def __init__(self, unavailable: str, interval: float) -> None:
        """Raises InvalidValueError."""
        if unavailable not in (RAISE, POLL):
            raise InvalidValueError(f'unavailable={unavailable!r}: "{RAISE}" or "{POLL}"')
        if type(interval) not in (int, float) or not interval > 0:
            raise InvalidValueError(f"poll_interval={interval!r}: seconds, more than 0")
        self.wanted = unavailable == POLL
        self._first_s = interval
        self._pause_s = interval

    def patience(self, left: float | None) -> float | None:
        """How long to wait for an event before it is time to look at the daemon."""
        self._pause_s = self._first_s
        if self.wanted:
            return LOOK_S if left is None else min(left, LOOK_S)
        return None if left is None else left + GRACE_S

    def waits_on(self, left: float | None, *, lost: bool) -> bool:
        """Whether to go on waiting for events after that."""
        return self.wanted and not lost and left != 0.0

    def pause(self, left: float | None) -> float:
        """How long to wait before the next look at the predicate, if the daemon is not heard before."""
        pause_s = self._pause_s
        self._pause_s = max(pause_s, min(2 * pause_s, POLL_S_MAX))
        return pause_s if left is None else min(pause_s, left)


def monotonic_deadline(timeout: float | None) -> float | None:
    """When that many seconds are over."""
    seconds = wait_s(timeout)
    return None if seconds is None else time.monotonic() + seconds


def seconds_left(deadline: float | None) -> float | None:
    """What is left until then, at least 0."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
