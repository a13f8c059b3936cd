"""The process that holds far-future operations during a run. It registers them before the run. Its end cancels them."""

from __future__ import annotations

from timerd_client.workload import key_names

from .part import Part

CHUNK = 16_384
HOURS_S = (7_200.0, 10_800.0)  # the operations are due in two to three hours
PREFIX = "-"  # no key of the run begins with it


class Pending(Part):
    """Holds operations that are due in hours."""

    def prepare(self) -> None:
        """Register all operations. Waits for the last one of each chunk, and raises its refusal."""
        count = self.task.pending
        low, high = HOURS_S
        for start in range(0, count, CHUNK):
            numbers = range(start, min(count, start + CHUNK))
            timeouts = [low + (high - low) * number / count for number in numbers]
            keys = key_names(PREFIX + self.task.prefix, numbers)
            self.purgatory.register_many(keys[:-1], timeout=timeouts[:-1])
            self.purgatory.register_wait(keys[-1], timeout=timeouts[-1])
