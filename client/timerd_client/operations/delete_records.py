"""A delete-records request that waits until the low watermark has moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timerd_client.operations.codes import Errors
from timerd_client.operations.named import Lock
from timerd_client.operations.parts import Part, PartsOperation, Respond


class DelayedDeleteRecords(PartsOperation):
    """Complete when each partition has an error, or its low watermark has reached the requested offset.

    As Kafka's DelayedDeleteRecords: a partition that is unknown, whose leader is another one, or whose storage failed
    settles with its error and the offset -1, and holds up no other. At the deadline the pending partitions get
    REQUEST_TIMED_OUT.

    Keys: the partitions'.
    """

    def __init__(
        self,
        requested: Mapping[str, int],
        low_watermark: Callable[[str], tuple[int, int]],
        respond: Respond,
        *,
        errors: Mapping[str, int] | None = None,
        lock: Lock | None = None,
    ) -> None:
        """`requested`: offset by partition key. `low_watermark(partition)`: (watermark of all replicas, error code).

        `errors`: codes of partitions where the deletion failed at once.
        """
        failed = errors or {}
        super().__init__({name: Part(failed[name]) if name in failed else None for name in requested}, respond, lock)
        self._requested, self._low_watermark = requested, low_watermark

    def look_at(self, name: str) -> Part | None:
        watermark, error = self._low_watermark(name)
        if error:
            return Part(error)
        return Part(Errors.NONE, watermark) if watermark >= self._requested[name] else None
