"""Copies what another broker leads: one connection, and one fetch request after the other, as Kafka's followers do.

What a follower asks for tells the leader what the follower has. The leader's answer says how far all replicas are.
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
VERSION = 13  # the first one with topic ids, and the id of the replica in the request itself
MAX_WAIT_S = 1.0
BYTES = 4 << 20  # of an answer, and of a partition in it
AGAIN_S = 0.05  # after an error
SAY_S = 10.0  # between two complaints

log = logging.getLogger("timerd_kafka.replicas")


class Followers:
    """What this broker copies from the others: a task for each of them."""

    def __init__(
        self,
        store: Store,
        broker: int,
        addresses: Sequence[tuple[str, int]],
        secret: str,
        progress: Callable[[Partition], None],
    ) -> None:
        """`addresses` of all brokers. `secret` proves a follower. `progress` is called when more may be read."""
        self._store, self._broker, self._addresses = store, broker, addresses
        self._secret, self._progress = secret, progress
        self._question = Question(FETCH, VERSION)
        self._said = float("-inf")
        self._tasks: dict[int, tuple[list[Partition], asyncio.Task[None]]] = {}

    def refresh(self) -> None:
        """Follow what is to be followed now."""
        for leader in range(len(self._addresses)):
            wanted = self._store.followed(leader)
            followed, task = self._tasks.get(leader, ([], None))
            if wanted == followed:
                continue
            if task is not None:
                task.cancel()
            self._tasks[leader] = wanted, asyncio.get_running_loop().create_task(self._follow(leader, wanted))

    async def _follow(self, leader: int, partitions: list[Partition]) -> None:
        while partitions:
            try:
                reader, writer = await asyncio.open_connection(*self._addresses[leader])
                try:
                    while True:
                        if not await self._fetch(reader, writer, partitions):
                            await asyncio.sleep(AGAIN_S)
                finally:
                    writer.close()
            except (OSError, EOFError):  # the leader is not there: it is started again
                await asyncio.sleep(AGAIN_S)
            except Exception:
                log.exception("following broker %d failed; it is tried again", leader)
                await asyncio.sleep(1.0)

    async def _fetch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, partitions: list[Partition]
    ) -> bool:
        """One request and its answer; whether all partitions are right."""
        writer.write(self._question.write(0, self._secret, self._request(partitions)))
        size = int.from_bytes(await reader.readexactly(4))
        answer = self._question.read(await reader.readexactly(size))
        mine = {(partition.topic.id, partition.index): partition for partition in partitions}
        right = answer.error_code == ErrorCode.none
        for topic in answer.responses:
            for data in topic.partitions:
                right &= self._take(mine[topic.topic_id, data.partition_index], data)
        return bool(right)

    def _request(self, partitions: list[Partition]) -> Any:
        module = self._question.module
        by_topic = groupby(sorted(partitions, key=attrgetter("topic.id")), attrgetter("topic.id"))
        return module.FetchRequest(
            replica_id=self._broker,
            max_wait=datetime.timedelta(seconds=MAX_WAIT_S),
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
                            partition_max_bytes=BYTES,
                        )
                        for partition in of_topic
                    ),
                )
                for topic_id, of_topic in by_topic
            ),
            forgotten_topics_data=(),
        )

    def _take(self, partition: Partition, data: Any) -> bool:
        """Append what the leader has sent; whether that was right."""
        if partition.is_deleted:
            return True
        if data.error_code == ErrorCode.offset_out_of_range:  # the machine has ended, and the leader's log is shorter
            log.warning("%s: the leader's log ends before %d", partition.key, partition.end_offset)
            partition.truncate(min(data.high_watermark, partition.end_offset - 1))
            return False
        if data.error_code != ErrorCode.none:
            return False
        try:
            if data.records:
                partition.log.append_copy(data.records)
        except (CorruptBatch, UnsupportedBatch, OSError) as error:
            now = asyncio.get_running_loop().time()
            if now - self._said > SAY_S:
                self._said = now
                log.error("%s cannot be copied, and is tried again: %s", partition.key, error)
            return False
        reached = min(data.high_watermark, partition.end_offset)
        before = partition.high_watermark + partition.start_offset
        partition.set_high_watermark(max(reached, partition.high_watermark))
        partition.delete_before(min(data.log_start_offset, partition.high_watermark))
        if partition.high_watermark + partition.start_offset > before:
            self._progress(partition)
        return True
