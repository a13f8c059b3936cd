"""The time that a host takes from the processors of a virtual machine. It may make an operation 20 ms late."""

from __future__ import annotations

import psutil

TIMES = 8  # the fields from `user` to `steal`; the guests' times, which follow them, are already part of `user`


class Stolen:
    """Measures stolen time from its creation on (`steal` of /proc/stat)."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        """The stolen part of the time of all processors so far, 0 to 1; 0 if it is not known."""
        after = psutil.cpu_times()
        passed = sum(after[:TIMES]) - sum(self._before[:TIMES])
        return max(after.steal - self._before.steal, 0.0) / passed if passed > 0 else 0.0
