"""A channel that is muted for a while, because its client has gone beyond its quota."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Self

from timerd_client import Purgatory
from timerd_client.operations.named import Lock, NamedOperation


class Quota:
    """How long a client is throttled that uses more than `rate` a second, measured over `window` seconds.

    As Kafka's ClientQuotaManager: with a use of U over a window of W seconds and a rate of R, the throttle time is
    (U / W - R) / R * W seconds, at most W: after it the rate over the window is R again.
    """

    def __init__(self, rate: float, window: float = 10.0) -> None:
        self.rate, self.window = rate, window
        self._used: deque[tuple[float, float]] = deque()  # when, how much

    def record(self, amount: float, now: float) -> float:
        """Note a use (bytes, requests) at a time in seconds; the throttle time in seconds, 0.0 = within the quota."""
        self._used.append((now, amount))
        while self._used[0][0] <= now - self.window:
            self._used.popleft()
        observed = sum(used for _, used in self._used) / self.window
        if observed <= self.rate:
            return 0.0
        return min((observed - self.rate) / self.rate * self.window, self.window)


class ThrottledChannel(NamedOperation):
    """A channel is muted from watch() on, and `unmute()` is called when its throttle time is over, never earlier.

    As Kafka's ThrottledChannel (a Delayed element that an expiry thread takes from a DelayQueue). Nothing but time
    ends it; if the daemon refuses the operation, the channel is unmuted at once. `close()` forgets a channel whose
    connection has ended: `unmute` is not called.

    Key: throttled:NAME, on which no event counts.
    """

    def __init__(
        self, name: str, mute: Callable[[], object], unmute: Callable[[], object], *, lock: Lock | None = None
    ) -> None:
        super().__init__(lock)
        self._name, self._mute, self._unmute = name, mute, unmute

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Mute the channel for `timeout` seconds. 0: it is not throttled, and nothing is called. Returns at once."""
        self.once(purgatory)
        if timeout > 0:
            self._mute()
            try:
                self.begin(purgatory, f"throttled:{self._name}", timeout)
            except BaseException:
                self._unmute()
                raise
        else:
            self.force_complete()
        return self

    def close(self) -> None:
        """The channel's connection has ended."""
        self.cancel()

    def try_complete(self) -> bool:
        return False

    def on_expiration(self) -> None:
        self._unmute()
