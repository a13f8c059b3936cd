"""OffsetFetch: the offsets up to which a group has read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.wire.codec import Api, milliseconds

NONE = Committed(-1)
ALL_FROM = 2  # from this version on a request without topics means all topics


async def answer(broker: Broker, call: Call) -> Any:
    """The offsets of one group or of several, as the request asks."""
    api, body = call.api, call.body
    if not api.has("OffsetFetchResponseGroup"):
        error, topics = _offsets(broker, api, body.group_id, body.topics)
        return api.make("OffsetFetchResponse", throttle_time=milliseconds(0), topics=topics, error_code=error)
    groups = []
    for asked in body.groups:
        error, topics = _offsets(broker, api, asked.group_id, asked.topics)
        made = api.make("OffsetFetchResponseGroup", group_id=asked.group_id, topics=topics, error_code=error)
        groups.append(made)
    return api.make("OffsetFetchResponse", throttle_time=milliseconds(0), groups=tuple(groups))


def _offsets(broker: Broker, api: Api, group: str, asked: Iterable[Any] | None) -> tuple[ErrorCode, tuple[Any, ...]]:
    coordinator = broker.coordinator
    refusal = coordinator.refusal(group, may_be_empty=True)
    if refusal is not ErrorCode.none:
        # The oldest versions have no field for the error except in partitions.
        parts = [] if api.version >= ALL_FROM else asked or []
        return refusal, tuple(
            _made_topic(api, one.name, None, [(index, NONE, refusal) for index in one.partition_indexes])
            for one in parts
        )
    if asked is None:
        return ErrorCode.none, _all(broker, api, group)
    topics = []
    for one in asked:
        name, topic_id = getattr(one, "name", None), getattr(one, "topic_id", None)
        by_id = hasattr(one, "topic_id")
        topic = broker.topic(name, topic_id) if not by_id or topic_id is not None else None
        error = ErrorCode.unknown_topic_id if by_id and topic is None else ErrorCode.none
        found = [(index, _committed(broker, group, topic, index), error) for index in one.partition_indexes]
        topics.append(_made_topic(api, name, topic_id, found))
    return ErrorCode.none, tuple(topics)


def _committed(broker: Broker, group: str, topic: Topic | None, index: int) -> Committed:
    if topic is None:
        return NONE
    return broker.coordinator.committed(group, Place(topic.id, index)) or NONE


def _all(broker: Broker, api: Api, group: str) -> tuple[Any, ...]:
    by_topic: dict[str, tuple[Topic, list[tuple[int, Committed, ErrorCode]]]] = {}
    for topic, index, committed in broker.coordinator.all_committed(group):
        by_topic.setdefault(topic.name, (topic, []))[1].append((index, committed, ErrorCode.none))
    return tuple(_made_topic(api, topic.name, topic.id, found) for topic, found in by_topic.values())


def _made_topic(api: Api, name: str | None, topic_id: Any, found: list[tuple[int, Committed, ErrorCode]]) -> Any:
    plural = "s" if api.has("OffsetFetchResponseGroup") else ""  # newer versions name these structures in the plural
    partitions = tuple(
        api.make(
            f"OffsetFetchResponsePartition{plural}",
            partition_index=index,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            error_code=error,
        )
        for index, committed, error in found
    )
    return api.make(f"OffsetFetchResponseTopic{plural}", name=name, topic_id=topic_id, partitions=partitions)
