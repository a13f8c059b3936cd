"""What the host of a virtual machine takes of its processors' time: it may be why an operation was 20 ms late."""

from __future__ import annotations

import psutil

TIMES = 8  # user to steal; those that follow, of guests, are contained in user


class Stolen:
    """From when it is made (`steal` of /proc/stat)."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        """Its part of the time of all processors so far, 0 to 1; 0 where that is not known."""
        after = psutil.cpu_times()
        passed = sum(after[:TIMES]) - sum(self._before[:TIMES])
        return max(after.steal - self._before.steal, 0.0) / passed if passed > 0 else 0.0
