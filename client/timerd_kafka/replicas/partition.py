"""One partition, as one of its replicas sees it: its log, and its high watermark.

The high watermark is the offset that all replicas have reached. Consumers read up to it, and a produce request with
acks=all waits for it. There is no election, so stopped replicas stay in the in-sync set: requests that wait for them
time out.
"""

from __future__ import annotations

import logging
from math import inf
from pathlib import Path
from uuid import UUID

from timerd_client.operations import Available, Errors, partition_key
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.log.batch import Batch
from timerd_kafka.log.log import PartitionLog

log = logging.getLogger("timerd_kafka.replicas")


class Partition:
    """A partition. Only the broker's loop changes it. Any thread may read its numbers."""

    def __init__(self, topic: Topic, index: int, replicas: tuple[int, ...], broker: int, directory: Path) -> None:
        self.topic, self.index, self.replicas = topic, index, replicas
        self.key = key_of(topic.id, index)
        self.leader = replicas[0]
        self.is_leader = self.leader == broker
        self.follows = not self.is_leader  # a test may set it to False, to stop the follower
        self.directory = directory
        self.log = PartitionLog(directory)
        if self.log.is_damaged:
            log.error("%s is damaged from offset %d on", self.log.path, self.log.end_offset)
            if not self.is_leader:
                self.log.cut_damage()  # the part that is cut off is copied from the leader again
        self.is_deleted = False
        self.high_watermark = self.log.checkpoint.high_watermark
        self.start_offset = self.log.checkpoint.start_offset
        self._ends = dict.fromkeys(replicas[1:], 0)  # at the leader: the ends of the followers' logs
        self._starts = dict.fromkeys(replicas[1:], 0)  # at the leader: the beginnings of the followers' logs
        self._told = dict.fromkeys(replicas[1:], -1)  # high watermark + start offset, as sent to each follower
        if self.is_leader and not self.log.is_damaged:
            self.raise_high_watermark()

    @property
    def end_offset(self) -> int:
        """The offset after the last record of this replica's log."""
        return self.log.end_offset

    def append(self, data: bytes, batch: Batch, append_time: int | None = None) -> int:
        """As the leader: append the batch of a producer. Returns the offset of its first record.

        `append_time`: the time (ms) that all records of the batch get; None: the records have their own times.
        """
        base = self.log.append(data, batch, append_time)
        self.raise_high_watermark()
        return base

    # replication, as the leader ---------------------------------------------------------------------------------------

    def follower_has(self, broker: int, end_offset: int, start_offset: int) -> bool:
        """Note where a follower's log begins and ends. Returns whether the high or the low watermark has risen."""
        low = self.low_watermark
        self._ends[broker] = end_offset
        self._starts[broker] = start_offset
        return self.raise_high_watermark() or self.low_watermark > low

    def raise_high_watermark(self) -> bool:
        """Raise the high watermark to the offset that all replicas have. Returns whether it has risen."""
        reached = min((self.end_offset, *self._ends.values()))
        if reached <= self.high_watermark:
            return False
        self.set_high_watermark(reached)
        return True

    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark: all replicas have the records before `offset`."""
        self.high_watermark = self.log.checkpoint.high_watermark = offset

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all replicas, as their leader knows it; at a follower, its own start offset."""
        return min((self.start_offset, *self._starts.values())) if self.is_leader else self.start_offset

    def delete_before(self, offset: int) -> None:
        """Delete the records before `offset`: they can no longer be read. Their bytes stay in the file."""
        self.start_offset = self.log.checkpoint.start_offset = max(self.start_offset, offset)

    def retain(self, now: int) -> bool:
        """As the leader: delete the records that the topic's retention ends at `now` (ms). Returns whether it did."""
        rules = self.topic.rules
        if not rules.has_retention or self.log.is_damaged:
            return False
        kept = self.log.kept_from(
            self.start_offset,
            self.high_watermark,
            now - rules.retention_ms if rules.retention_ms >= 0 else -inf,
            rules.retention_bytes if rules.retention_bytes >= 0 else inf,
        )
        if kept <= self.start_offset:
            return False
        self.delete_before(kept)
        return True

    def truncate(self, offset: int) -> None:
        """As a follower: remove the batch with this offset and all after it. The watermarks sink to the new end."""
        self.log.truncate(offset)
        self.set_high_watermark(min(self.high_watermark, self.end_offset))
        self.start_offset = self.log.checkpoint.start_offset = min(self.start_offset, self.end_offset)

    def tell(self, broker: int) -> None:
        """Note that a follower gets the present watermarks."""
        self._told[broker] = self.high_watermark + self.start_offset

    # delayed operations call these, in the timer client's thread ------------------------------------------------------

    def replicated(self, offset: int) -> tuple[bool, int]:
        """Whether all replicas have the records before `offset`, and an error code."""
        if self.is_deleted:
            return False, Errors.UNKNOWN_TOPIC_OR_PARTITION
        return self.high_watermark >= offset, Errors.NONE

    def available(self, offset: int) -> Available:
        """The records that a consumer at `offset` may read."""
        if self.is_deleted:
            return Available(0, 0, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        if not self.start_offset <= offset <= self.end_offset:
            return Available(0, 0, Errors.OFFSET_OUT_OF_RANGE)
        end = self.high_watermark
        return Available(max(end, offset), self.log.size_of(offset, end))

    def available_to(self, broker: int, offset: int) -> Available:
        """The records that a follower may read. New watermarks count as a byte: the follower's consumers need them."""
        if self.is_deleted:
            return Available(0, 0, Errors.UNKNOWN_TOPIC_OR_PARTITION)
        if offset > self.end_offset:
            return Available(0, 0, Errors.OFFSET_OUT_OF_RANGE)
        news = self._told[broker] < self.high_watermark + self.start_offset
        return Available(self.end_offset, self.log.size_of(offset, self.end_offset) + news)

    def low_watermark_of_all(self) -> tuple[int, int]:
        """The low watermark, and an error code."""
        if self.is_deleted:
            return -1, Errors.UNKNOWN_TOPIC_OR_PARTITION
        return self.low_watermark, Errors.NONE


def key_of(topic_id: UUID, index: int) -> str:
    """The watch key of a partition. It has the topic's id, so a topic that is created again inherits nothing."""
    return partition_key(topic_id.hex, index)
