"""A fetch request that waits for enough bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

from timerd_client import Purgatory
from timerd_client.operations.codes import Errors
from timerd_client.operations.named import Lock, NamedOperation


class Asked(NamedTuple):
    """The request for one partition: the first offset, the largest number of bytes, the leader's epoch (None: any)."""

    offset: int
    max_bytes: int = 1 << 20
    epoch: int | None = None


class Available(NamedTuple):
    """The readable part of a partition: its end, the bytes from the asked offset to the end, epoch, error."""

    end_offset: int
    size: int
    error: int = Errors.NONE
    epoch: int | None = None


class DelayedFetch(NamedOperation):
    """Complete when the partitions together have at least `min_bytes`, or something is wrong with one of them.

    As Kafka's DelayedFetch. It completes at once if ANY partition has an error (not the leader, unknown, its storage
    failed), if the leader's epoch is another one, or if the asked offset lies beyond the end (the log was truncated).
    Then the answer has the error. Bytes of a partition count up to its `max_bytes`. If no partition is asked for, if
    there is no time to wait, or if no bytes are needed, the operation answers at once, without a registration. At the
    deadline it answers with the bytes that are there.

    Keys: partition_key() of each partition.
    """

    def __init__(
        self,
        asked: Mapping[str, Asked],
        look: Callable[[str, int], Available],
        respond: Callable[[], object],
        *,
        min_bytes: int = 1,
        lock: Lock | None = None,
    ) -> None:
        """`asked` has an Asked for each partition key. `look(key, offset)` gives an Available. `respond()` answers."""
        super().__init__(lock)
        self._asked, self._look, self._respond, self._min_bytes = dict(asked), look, respond, min_bytes

    def watch(self, purgatory: Purgatory, *, timeout: float) -> Self:
        """Answer at once, or wait, `timeout` seconds (fetch.max.wait) at most. Returns at once."""
        self.once(purgatory)
        if self._asked and timeout > 0 and self._min_bytes > 0:
            self.begin(purgatory, list(self._asked), timeout)
        else:
            self.force_complete()
        return self

    def try_complete(self) -> bool:
        size = 0
        for partition, asked in self._asked.items():
            there = self._look(partition, asked.offset)
            if there.error or asked.offset > there.end_offset:
                return True
            if asked.epoch is not None and there.epoch != asked.epoch:
                return True
            size += min(there.size, asked.max_bytes)
        return size >= self._min_bytes

    def on_complete(self) -> None:
        self._respond()
