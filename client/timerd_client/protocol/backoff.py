"""Waits that double, from a first wait up to a longest wait: for frames that are sent again until they are answered."""

from __future__ import annotations

from typing import Final

RESTART_FIRST_NS: Final = 20_000_000
CALM_NS: Final = 3_000_000_000


class Backoff:
    """The next wait, in ns."""

    def __init__(self, first_ns: int, last_ns: int) -> None:
        self._first_ns = first_ns
        self._last_ns = last_ns
        self.wait_ns = first_ns

    def restart(self) -> None:
        """Begin with the first wait again."""
        self.wait_ns = self._first_ns

    def next_at(self, now_ns: int) -> int:
        """The end of a wait that begins now. The next wait is twice as long."""
        at_ns = now_ns + self.wait_ns
        self.wait_ns = min(2 * self.wait_ns, self._last_ns)
        return at_ns


class Restarts:
    """When to begin anew. A daemon may answer each HELLO with a frame after which the client has to begin anew.

    The first time is at once. The second time within CALM_NS waits 20 ms, and each further time twice the last.
    """

    def __init__(self, now_ns: int, last_ns: int) -> None:
        self._wait = Backoff(RESTART_FIRST_NS, last_ns)
        self._at_ns = now_ns - CALM_NS

    def next_at(self, now_ns: int) -> int:
        """When to begin anew."""
        if now_ns - self._at_ns >= CALM_NS:
            self._wait.restart()
            self._at_ns = now_ns
        else:
            self._at_ns = max(now_ns, self._wait.next_at(self._at_ns))
        return self._at_ns
