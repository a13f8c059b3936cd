"""OffsetFetch: the offsets up to which a group has read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.wire.codec import BadFrame, milliseconds

NONE = Committed(-1)
ALL_FROM = 2  # from this version on a request without topics means all topics
OFFSETS_MAX = 200_000  # of an answer: a short request may name one group many times, each time for all its offsets


async def answer(broker: Broker, call: Call) -> Any:
    """The offsets of one group or of several, as the request asks."""
    api, body, offsets = call.api, call.body, _Offsets(broker, call)
    if not api.has("OffsetFetchResponseGroup"):
        error, topics = await offsets.of(body.group_id, body.topics)
        return api.make("OffsetFetchResponse", throttle_time=milliseconds(0), topics=topics, error_code=error)
    groups = []
    for asked in body.groups:
        error, topics = await offsets.of(asked.group_id, asked.topics)
        made = api.make("OffsetFetchResponseGroup", group_id=asked.group_id, topics=topics, error_code=error)
        groups.append(made)
        await offsets.pauses.made()
    return api.make("OffsetFetchResponse", throttle_time=milliseconds(0), groups=tuple(groups))


def nothing(_: int) -> Committed:
    """No offset is committed for a partition."""
    return NONE


class _Offsets:
    """The offsets of one answer. Raises BadFrame, which ends the connection, if they are too many."""

    def __init__(self, broker: Broker, call: Call) -> None:
        self._broker, self._api, self._number = broker, call.api, 0
        self.pauses = Pauses()

    async def of(self, group: str, asked: Iterable[Any] | None) -> tuple[ErrorCode, tuple[Any, ...]]:
        """An error, and the offsets of a group: for the topics that are asked for, or for all."""
        refusal = self._broker.coordinator.refusal(group, may_be_empty=True)
        if refusal is not ErrorCode.none:
            # The oldest versions have no field for the error except in partitions.
            parts = [] if self._api.version >= ALL_FROM else asked or []
            found = [await self._topic(one.name, None, refusal, one.partition_indexes, nothing) for one in parts]
            return refusal, tuple(found)
        if asked is None:
            return ErrorCode.none, await self._all(group)
        return ErrorCode.none, tuple([await self._one(group, one) for one in asked])

    async def _one(self, group: str, asked: Any) -> Any:
        """One topic that is asked for."""
        broker, name, topic_id = self._broker, getattr(asked, "name", None), getattr(asked, "topic_id", None)
        by_id = hasattr(asked, "topic_id")
        topic = broker.topic(name, topic_id) if not by_id or topic_id is not None else None
        error = ErrorCode.unknown_topic_id if by_id and topic is None else ErrorCode.none

        def look(index: int) -> Committed:
            found = None if topic is None else broker.coordinator.committed(group, Place(topic.id, index))
            return found or NONE

        return await self._topic(name, topic_id, error, asked.partition_indexes, look)

    async def _all(self, group: str) -> tuple[Any, ...]:
        """All topics of which the group has offsets."""
        by_topic: dict[str, tuple[Topic, dict[int, Committed]]] = {}
        for topic, index, committed in self._broker.coordinator.all_committed(group):
            by_topic.setdefault(topic.name, (topic, {}))[1][index] = committed
        return tuple(
            [
                await self._topic(topic.name, topic.id, ErrorCode.none, found, found.__getitem__)
                for topic, found in by_topic.values()
            ]
        )

    async def _topic(
        self,
        name: str | None,
        topic_id: UUID | None,
        error: ErrorCode,
        indexes: Collection[int],
        look: Callable[[int], Committed],
    ) -> Any:
        self._number += len(indexes)
        if self._number > OFFSETS_MAX:
            raise BadFrame(f"a request for more than {OFFSETS_MAX} offsets")
        plural = "s" if self._api.has("OffsetFetchResponseGroup") else ""  # newer versions name these in the plural

        def partition(index: int) -> Any:
            committed = look(index)
            return self._api.make(
                f"OffsetFetchResponsePartition{plural}",
                partition_index=index,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                metadata=committed.metadata,
                error_code=error,
            )

        partitions = await self.pauses.each(partition, indexes)
        await self.pauses.made()
        kind = f"OffsetFetchResponseTopic{plural}"
        return self._api.make(kind, name=name, topic_id=topic_id, partitions=partitions)
