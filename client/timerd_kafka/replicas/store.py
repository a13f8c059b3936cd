"""The partitions of one broker, as the catalog says which it holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from timerd_kafka.cluster.catalog import Catalog, Topic
from timerd_kafka.cluster.placement import replicas_of
from timerd_kafka.replicas.partition import Partition


class Store:
    """The partitions on this broker's disk."""

    def __init__(self, directory: Path, catalog: Catalog, broker: int, workers: int) -> None:
        self._directory, self._catalog = directory, catalog
        self._broker, self._workers = broker, workers
        self._held: dict[tuple[UUID, int], Partition] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.refresh()
        for left in directory.iterdir():  # of topics that were deleted while this broker did not run
            if left.is_dir() and left.name not in {partition.directory.name for partition in self}:
                shutil.rmtree(left, ignore_errors=True)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._held.values())

    def get(self, topic: Topic, index: int) -> Partition | None:
        """The partition; None: this broker does not hold it."""
        return self._held.get((topic.id, index))

    def replicas(self, topic: Topic, index: int) -> tuple[int, ...]:
        """The brokers that hold a partition, its leader first."""
        return replicas_of(topic.id, index, topic.replicas, self._workers)

    def refresh(self) -> list[Partition]:
        """Take up the partitions of new topics, and drop those of deleted ones, which are returned."""
        for topic in self._catalog.by_id.values():
            for index in range(topic.partitions):
                replicas = self.replicas(topic, index)
                if self._broker in replicas and (topic.id, index) not in self._held:
                    directory = self._directory / f"{topic.id.hex}-{index}"
                    self._held[topic.id, index] = Partition(topic, index, replicas, self._broker, directory)
        gone = [partition for partition in self if partition.topic.id not in self._catalog.by_id]
        for partition in gone:
            del self._held[partition.topic.id, partition.index]
            partition.is_deleted = True
            partition.log.close()
            shutil.rmtree(partition.directory, ignore_errors=True)
        return gone

    def followed(self, leader: int) -> list[Partition]:
        """The partitions that this broker copies from that leader."""
        return [partition for partition in self if partition.leader == leader and partition.follows]
