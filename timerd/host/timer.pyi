"""A timer for the loop to sleep by."""

class Timer:
    """A timerfd on CLOCK_MONOTONIC (Python 3.11 has none)."""

    def fileno(self) -> int: ...
    def arm(self, at_ns: int) -> None:
        """Fire at `at_ns`. `arm(NEVER)` disarms the timer (`timerd.core.NEVER`)."""
    def read(self) -> int:
        """Number of times it fired since the last read; 0 if it did not."""
    def close(self) -> None: ...
