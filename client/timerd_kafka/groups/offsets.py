"""Offsets that a group has committed. They belong to a topic's id: a topic that is created again has none."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

METADATA_MAX = 4096  # Kafka's offset.metadata.max.bytes


class Place(NamedTuple):
    """A partition."""

    topic: UUID
    partition: int


class Committed(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets = dict[Place, Committed]


def record_of(offsets: Offsets) -> list[list[Any]]:
    """Offsets as a record for the disk."""
    return [[place.topic.bytes, place.partition, *committed] for place, committed in offsets.items()]


def offsets_of(record: list[list[Any]]) -> Offsets:
    """The offsets of a record that `record_of` made."""
    return {Place(UUID(bytes=topic), partition): Committed(*rest) for topic, partition, *rest in record}
