"""Waits that double, from a first wait up to a longest wait: for frames that are sent again until they are answered."""

from __future__ import annotations


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
