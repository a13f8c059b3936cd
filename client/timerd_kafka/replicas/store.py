"""The partitions of one broker, as the catalog says which it holds."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from timerd_kafka.cluster.catalog import Catalog, Topic
from timerd_kafka.cluster.placement import replicas_of
from timerd_kafka.replicas.partition import Partition

SAY_S = 10.0  # between two complaints

log = logging.getLogger("timerd_kafka.replicas")


class Store:
    """The partitions on this broker's disk."""

    def __init__(self, directory: Path, catalog: Catalog, broker: int, workers: int) -> None:
        self._directory, self._catalog = directory, catalog
        self._broker, self._workers = broker, workers
        self._held: dict[tuple[UUID, int], Partition] = {}
        self.is_complete = True  # False: a partition could not be opened; the next refresh() tries again
        self._said = 0.0
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.refresh()
        held = {partition.directory.name for partition in self}
        for left in directory.iterdir() if self.is_complete else ():  # of topics that were deleted meanwhile
            if left.is_dir() and left.name not in held:
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
        self.is_complete = True
        for topic in self._catalog.by_id.values():
            for index in range(topic.partitions):
                replicas = self.replicas(topic, index)
                if self._broker in replicas and (topic.id, index) not in self._held:
                    directory = self._directory / f"{topic.id.hex}-{index}"
                    try:
                        self._held[topic.id, index] = Partition(topic, index, replicas, self._broker, directory)
                    except OSError as error:
                        self._failed(directory, error)
        gone = [partition for partition in self if partition.topic.id not in self._catalog.by_id]
        for partition in gone:
            del self._held[partition.topic.id, partition.index]
            partition.is_deleted = True
            partition.log.close()
            shutil.rmtree(partition.directory, ignore_errors=True)
        return gone

    def _failed(self, directory: Path, error: OSError) -> None:
        self.is_complete = False
        if time.monotonic() - self._said > SAY_S:
            self._said = time.monotonic()
            log.error("%s cannot be opened, and is tried again: %s", directory, error)

    def followed(self, leader: int) -> list[Partition]:
        """The partitions that this broker copies from that leader."""
        return [partition for partition in self if partition.leader == leader and partition.follows]
