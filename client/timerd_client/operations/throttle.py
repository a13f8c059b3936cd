"""A channel that is muted for a while, because its client has gone beyond its quota."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from timerd_client import Purgatory
from timerd_client.operations.named import Lock, NamedOperation


class Quota:
    """The throttle time of a client that uses more than `rate` a second: a token bucket of `rate` x `window`.

    As Kafka's TokenBucket (KIP-599): each use takes tokens, and `rate` tokens come back each second, up to the burst. A
    client that has taken too many tokens waits until none are missing. So in T seconds it uses at most
    rate x (T + window), plus the excess of its last request. Kafka measures byte rates over sliding windows instead:
    with these, a client that sends in bursts can use up to 1.5 times as much.
    """

    def __init__(self, rate: float, window: float = 10.0) -> None:
        """`window` is in seconds: after a pause a client may use `rate * window` at once."""
        self.rate, self.burst = rate, rate * window
        self._tokens, self._since = self.burst, float("-inf")

    def record(self, amount: float, now: float) -> float:
        """Note a use (bytes, requests) at `now`. Returns the throttle time in seconds; 0.0 = within the quota."""
        if now > self._since:
            self._tokens = min(self.burst, self._tokens + (now - self._since) * self.rate)
            self._since = now
        self._tokens -= amount
        return max(0.0, -self._tokens / self.rate)


class ThrottledChannel(NamedOperation):
    """A channel is muted from watch() on, and `unmute()` is called when its throttle time is over, not earlier.

    As Kafka's ThrottledChannel (a Delayed element that an expiry thread takes from a DelayQueue): no event ends the
    operation. Only if the daemon refuses the operation, the channel is unmuted at once. `close()` forgets a channel
    whose connection has ended: then `unmute` is not called.

    Key: throttled:NAME. Events on this key have no effect.
    """

    def __init__(
        self, name: str, mute: Callable[[], object], unmute: Callable[[], object], *, lock: Lock | None = None
    ) -> None:
        super().__init__(lock)
        self._name, self._mute, self._unmute = name, mute, unmute

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Mute the channel for `timeout` seconds. With 0, neither `mute` nor `unmute` is called. Returns at once."""
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
        """Forget the channel, because its connection has ended."""
        self.cancel()

    def try_complete(self) -> bool:
        return False

    def on_expiration(self) -> None:
        self._unmute()
