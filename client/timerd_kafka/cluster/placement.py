"""The broker that leads a partition or coordinates a group. Each broker computes it. There is no election."""

from __future__ import annotations

import zlib
from uuid import UUID


def replicas_of(topic_id: UUID, partition: int, replicas: int, workers: int) -> tuple[int, ...]:
    """The brokers that hold a partition. The first one leads it."""
    first = (zlib.crc32(topic_id.bytes) + partition) % workers
    return tuple((first + number) % workers for number in range(replicas))


def coordinator_of(group: str, workers: int) -> int:
    """The broker that coordinates a group."""
    return zlib.crc32(group.encode()) % workers
