"""A produce request that waits for its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from timerd_client import Purgatory
from timerd_client.errors import InvalidValueError
from timerd_client.operations.codes import Errors
from timerd_client.operations.keys import replica_key
from timerd_client.operations.named import Lock, threaded
from timerd_client.operations.parts import Part, PartsOperation, Respond

ALL_REPLICAS = -1
"""`acks` of a write that all replicas have to have."""


class Appended(NamedTuple):
    """The result of the leader's append to a partition: the first offset, and the offset that replicas must reach."""

    base_offset: int
    required_offset: int
    error: int = Errors.NONE


class Replicas:
    """Whether enough replicas have an offset, by the watermarks that they advance: `replicas.acknowledge(...)`.

    A replica may be any process. The leader reads the watermarks from shared memory.
    """

    def __init__(self, purgatory: Purgatory, names: Sequence[str], needed: int | None = None) -> None:
        """`needed` is how many of these replicas, including the leader, must have an offset; None = all."""
        self._purgatory, self.names = threaded(purgatory), names
        self.needed = len(names) if needed is None else needed
        if len(set(names)) < len(names):
            raise InvalidValueError(f"names={list(names)!r}: one name is there twice; a replica counts once")
        if not 1 <= self.needed <= len(names):
            raise InvalidValueError(f"needed={self.needed!r}: from 1 to {len(names)}, the number of replicas")

    def acknowledge(self, partition: str, replica: str, offset: int) -> None:
        """Report, in the replica's process, that the replica has the partition up to this offset (exclusive)."""
        if replica not in self.names:
            raise InvalidValueError(f"replica={replica!r} is none of {list(self.names)!r}")
        self._purgatory.advance(replica_key(partition, replica), offset)

    def prepare(self, partition: str) -> None:
        """Make a watermark for each replica, so that a callback can read it without asking the daemon."""
        for name in self.names:
            key = replica_key(partition, name)
            if self._purgatory.watermark(key) is None:
                self._purgatory.advance(key, 0)
                self._purgatory.fire_wait(key)  # after this answer the watermark is there
                self._purgatory.watermark(key)

    def __call__(self, partition: str, offset: int) -> tuple[bool, int]:
        """Whether enough replicas have the partition up to this offset, and an error code."""
        reached = sum((self._purgatory.watermark(replica_key(partition, name)) or 0) >= offset for name in self.names)
        return reached >= self.needed, Errors.NONE


class DelayedProduce(PartsOperation):
    """Complete when each partition has enough replicas at its required offset, or an error.

    As Kafka's DelayedProduce (kafka.server.DelayedProduce, ReplicaManager.delayedProduceRequestRequired): it waits only
    with acks=all, if something was appended, and if not all partitions have errors. Otherwise it answers at once, and
    registers nothing. It also answers at once if there is only one replica, which has the records already. A partition
    that has another leader now, or another error, settles with this error; it does not delay the other partitions. At
    the deadline the pending partitions get REQUEST_TIMED_OUT: the records may still be replicated.

    Keys: partition_key() of each partition. If `replicated` is a Replicas, also replica_key() of each replica.
    """

    def __init__(
        self,
        appended: Mapping[str, Appended],
        replicated: Callable[[str, int], tuple[bool, int]],
        respond: Respond,
        *,
        acks: int = ALL_REPLICAS,
        lock: Lock | None = None,
    ) -> None:
        """`appended` has an Appended for each partition key. `replicated(key, offset)` returns (enough, error code)."""
        waits = acks == ALL_REPLICAS
        parts = {
            name: None if waits and not one.error else Part(one.error, one.base_offset if not one.error else -1)
            for name, one in appended.items()
        }
        super().__init__(parts, respond, lock)
        self._appended, self._replicated = appended, replicated

    def look_at(self, name: str) -> Part | None:
        one = self._appended[name]
        enough, error = self._replicated(name, one.required_offset)
        if error:
            return Part(error)
        return Part(Errors.NONE, one.base_offset) if enough else None

    def watch_keys(self) -> Iterable[str]:
        replicas = self._replicated.names if isinstance(self._replicated, Replicas) else ()
        return [key for name in self.pending for key in (name, *(replica_key(name, replica) for replica in replicas))]

    def is_required(self) -> bool:
        if isinstance(self._replicated, Replicas):
            for name in self.pending:
                self._replicated.prepare(name)
        return super().is_required()
