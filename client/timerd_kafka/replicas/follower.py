"""Copies partitions from a leader by fetch requests, one after the other over one connection, as Kafka's followers do.

The offsets in a follower's request show the leader which records the follower has. The leader's answer has the high
watermark. No partition delays the leader's other partitions: a partition that got records is asked for last in the next
request, and a partition that has failed is left out for a while.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.log.batch import CorruptBatch, UnsupportedBatch
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.replicas.store import Store
from timerd_kafka.wire.codec import Question

FETCH = 1
VERSION = 13  # the first version with topic ids. The replica's id is a plain field of the request, up to version 14
MAX_WAIT_S = 1.0
BYTES = 4 << 20  # of an answer
PARTITION_BYTES = 1 << 20  # of a partition in an answer
AGAIN_S = 0.05  # after an error that soon passes: the leader or its timer daemon is being started again
DISK_S = 1.0  # after an error of the leader's disk, or of this broker's
SAY_S = 10.0  # between two messages that a partition cannot be copied

log = logging.getLogger("timerd_kafka.replicas")


class Followers:
    """The tasks that copy partitions from the other brokers: one task for each broker."""

    def __init__(
        self,
        store: Store,
        broker: int,
        addresses: Sequence[tuple[str, int]],
        secret: str,
        progress: Callable[[Partition], None],
    ) -> None:
        """`addresses` are those of all brokers. Followers show `secret`. `progress` is called when more may be read."""
        self._store, self._broker, self._addresses = store, broker, addresses
        self._secret, self._progress = secret, progress
        self._question = Question(FETCH, VERSION)
        self._said = float("-inf")
        self._tasks: dict[int, tuple[list[Partition], asyncio.Task[None]]] = {}

    def refresh(self) -> None:
        """Follow the partitions that this broker should follow now."""
        for leader in range(len(self._addresses)):
            wanted = self._store.followed(leader)
            followed, task = self._tasks.get(leader, ([], None))
            if wanted == followed:
                continue
            if task is not None:
                task.cancel()
            self._tasks[leader] = wanted, asyncio.get_running_loop().create_task(self._follow(leader, wanted))

    async def _follow(self, leader: int, partitions: list[Partition]) -> None:
        again = dict.fromkeys(partitions, 0.0)  # the order of the next request; the values: not to ask before this time
        while again:
            try:
                reader, writer = await asyncio.open_connection(*self._addresses[leader])
                try:
                    while True:
                        await self._fetch(reader, writer, again)
                finally:
                    writer.close()
            except (OSError, EOFError):  # the leader is being started again, or it refuses the fetch
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("following broker %d failed; it is tried again", leader)
                await asyncio.sleep(1.0)

    async def _fetch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, again: dict[Partition, float]
    ) -> None:
        """Send one request, and handle its answer. It may wait only until a left-out partition is asked for."""
        clock = asyncio.get_running_loop().time
        now = clock()
        partitions = [partition for partition, when in again.items() if when <= now]
        wait = min([MAX_WAIT_S, *(when - now for when in again.values() if when > now)])
        if not partitions:
            await asyncio.sleep(wait)
            return
        writer.write(self._question.write(0, self._secret, self._request(partitions, wait)))
        size = int.from_bytes(await reader.readexactly(4))
        answer = self._question.read(await reader.readexactly(size))
        if answer.error_code != ErrorCode.none:
            raise ConnectionError(f"the leader refuses the fetch: {answer.error_code}")
        mine = {(partition.topic.id, partition.index): partition for partition in partitions}
        for topic in answer.responses:
            for data in topic.partitions:
                partition = mine[topic.topic_id, data.partition_index]
                pause = self._take(partition, data)
                if pause or data.records:
                    del again[partition]
                    again[partition] = clock() + pause

    def _request(self, partitions: list[Partition], wait: float) -> Any:
        module = self._question.module
        by_topic = groupby(partitions, attrgetter("topic.id"))  # in order, so a topic may come twice
        return module.FetchRequest(
            replica_id=self._broker,
            max_wait=datetime.timedelta(seconds=wait),
            min_bytes=1,
            max_bytes=BYTES,
            topics=tuple(
                module.FetchTopic(
                    topic_id=topic_id,
                    partitions=tuple(
                        module.FetchPartition(
                            partition=partition.index,
                            fetch_offset=partition.end_offset,
                            log_start_offset=partition.start_offset,
                            partition_max_bytes=PARTITION_BYTES,
                        )
                        for partition in of_topic
                    ),
                )
                for topic_id, of_topic in by_topic
            ),
            forgotten_topics_data=(),
        )

    def _take(self, partition: Partition, data: Any) -> float:
        """Append the records that the leader has sent. Returns the seconds for which the partition is left out."""
        if partition.is_deleted:
            return 0.0
        if data.error_code == ErrorCode.offset_out_of_range:  # possible after a crash of the machine
            log.warning("%s: the leader's log ends before %d", partition.key, partition.end_offset)
            partition.truncate(min(data.high_watermark, partition.end_offset - 1))
            return 0.0
        if data.error_code != ErrorCode.none:
            return DISK_S if data.error_code == ErrorCode.kafka_storage_error else AGAIN_S
        try:
            if data.records:
                partition.log.append_copy(data.records)
        except (CorruptBatch, UnsupportedBatch, OSError) as error:
            now = asyncio.get_running_loop().time()
            if now - self._said > SAY_S:
                self._said = now
                log.error("%s cannot be copied, and is tried again: %s", partition.key, error)
            return DISK_S
        reached = min(data.high_watermark, partition.end_offset)
        before = partition.high_watermark + partition.start_offset
        partition.set_high_watermark(max(reached, partition.high_watermark))
        partition.delete_before(min(data.log_start_offset, partition.high_watermark))
        if partition.high_watermark + partition.start_offset > before:
            self._progress(partition)
        return 0.0
