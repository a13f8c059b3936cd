"""The partitions that one broker holds, as the catalog demands."""

from __future__ import annotations

import logging
import shutil
import time
from collections import deque
from collections.abc import Iterator
from math import inf
from pathlib import Path
from threading import Thread
from uuid import UUID

from timerd_kafka.cluster.catalog import Catalog, Topic
from timerd_kafka.cluster.placement import replicas_of
from timerd_kafka.replicas.partition import Partition

SAY_S = 10.0  # between two messages that a partition cannot be opened
AGAIN_S = 1.0  # partitions that cannot be opened are tried again at this interval

Missing = tuple[Topic, int, tuple[int, ...]]  # a partition that is to be opened: its topic, number and replicas

log = logging.getLogger("timerd_kafka.replicas")


class Store:
    """The partitions on this broker's disk. Opening a large topic takes seconds, so it is done in parts."""

    def __init__(self, directory: Path, catalog: Catalog, broker: int, workers: int) -> None:
        self._directory, self._catalog = directory, catalog
        self._broker, self._workers = broker, workers
        self._held: dict[tuple[UUID, int], Partition] = {}
        self._missing: deque[Missing] = deque()  # to be opened
        self._failed: list[Missing] = []  # could not be opened
        self._said, self._again_at = float("-inf"), 0.0
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.refresh()
        self.open_some(inf)
        held = {partition.directory.name for partition in self}
        # Remove the directories of topics that were deleted while this broker did not run.
        for left in directory.iterdir() if not self._failed else ():
            if left.is_dir() and left.name not in held:
                shutil.rmtree(left, ignore_errors=True)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._held.values())

    def get(self, topic: Topic, index: int) -> Partition | None:
        """The partition; None if this broker does not hold it."""
        return self._held.get((topic.id, index))

    def replicas(self, topic: Topic, index: int) -> tuple[int, ...]:
        """The brokers that hold a partition, its leader first."""
        return replicas_of(topic.id, index, topic.replicas, self._workers)

    def refresh(self) -> list[Partition]:
        """Note new partitions, and new configurations of topics. Drop and return the partitions of deleted topics."""
        self._failed.clear()
        self._missing = deque(
            (topic, index, replicas)
            for topic in self._catalog.by_id.values()
            for index in range(topic.partitions)
            if (topic.id, index) not in self._held and self._broker in (replicas := self.replicas(topic, index))
        )
        for partition in self:
            partition.topic = self._catalog.by_id.get(partition.topic.id, partition.topic)  # it may have new settings
        gone = [partition for partition in self if partition.topic.id not in self._catalog.by_id]
        for partition in gone:
            del self._held[partition.topic.id, partition.index]
            partition.is_deleted = True
            partition.log.close()
        if gone:  # if this process is killed, the next start removes the rest
            Thread(target=remove, args=([partition.directory for partition in gone],), daemon=True).start()
        return gone

    def open_some(self, seconds: float) -> bool:
        """Open the noted partitions, for `seconds` at most. Returns whether some were not tried yet."""
        end = time.monotonic() + seconds
        while self._missing and time.monotonic() < end:
            topic, index, replicas = missing = self._missing.popleft()
            directory = self._directory / f"{topic.id.hex}-{index}"
            try:
                self._held[topic.id, index] = Partition(topic, index, replicas, self._broker, directory)
            except OSError as error:
                self._failed.append(missing)
                self._complain(directory, error)
        return bool(self._missing)

    def try_again(self) -> bool:
        """Once a second, note again the partitions that could not be opened. Returns whether any were noted now."""
        now = time.monotonic()
        if not self._failed or now < self._again_at:
            return False
        self._again_at = now + AGAIN_S
        self._missing.extend(self._failed)
        self._failed.clear()
        return True

    def _complain(self, directory: Path, error: OSError) -> None:
        if time.monotonic() - self._said > SAY_S:
            self._said = time.monotonic()
            log.error("%s cannot be opened, and is tried again: %s", directory, error)

    def followed(self, leader: int) -> list[Partition]:
        """The partitions that this broker copies from `leader`."""
        return [partition for partition in self if partition.leader == leader and partition.follows]


def remove(directories: list[Path]) -> None:
    """Remove these directories. The name of each has its topic's id, so no new topic uses it."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
