"""A delete-records request that waits until the low watermark has moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timerd_client.operations.codes import Errors
from timerd_client.operations.named import Lock
from timerd_client.operations.parts import Part, PartsOperation, Respond


class DelayedDeleteRecords(PartsOperation):
    """Complete when each partition has an error, or its low watermark has reached the requested offset.

    As Kafka's DelayedDeleteRecords: a partition settles with an error and the offset -1 if it is unknown, if this
    broker is not its leader, or if its storage failed. It does not delay the other partitions. At the deadline the
    pending partitions get REQUEST_TIMED_OUT.

    Keys: partition_key() of each partition.
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
        """`requested` has the offset of each partition key. `low_watermark(partition)` returns (watermark, error code).

        The watermark is the lowest of all replicas. `errors` has the codes of partitions whose deletion failed at once.
        """
        failed = errors or {}
        super().__init__({name: Part(failed[name]) if name in failed else None for name in requested}, respond, lock)
        self._requested, self._low_watermark = requested, low_watermark

    def look_at(self, name: str) -> Part | None:
        watermark, error = self._low_watermark(name)
        if error:
            return Part(error)
        return Part(Errors.NONE, watermark) if watermark >= self._requested[name] else None
