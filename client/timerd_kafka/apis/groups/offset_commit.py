"""OffsetCommit: a group keeps the offsets up to which it has read."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many_partitions
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.groups.messages import Identity
from timerd_kafka.groups.offsets import METADATA_MAX, Committed, Offsets, Place
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """An error code for each partition. All offsets are kept before the first pause, or none is."""
    body, coordinator = call.body, broker.coordinator
    refuse_too_many_partitions(body.topics)
    instance = getattr(body, "group_instance_id", None)
    who = Identity(body.group_id, body.member_id, instance, body.generation_id_or_member_epoch)
    refusal = coordinator.may_commit(who)
    found = [(asked, *_topic(broker, asked)) for asked in body.topics]
    offsets: Offsets = {}
    if refusal is ErrorCode.none:
        for asked, topic, missing in found:
            for one in asked.partitions:
                if topic is not None and _error(topic, missing, one) is ErrorCode.none:
                    epoch = getattr(one, "committed_leader_epoch", -1)
                    committed = Committed(one.committed_offset, epoch, one.committed_metadata or "")
                    offsets[Place(topic.id, one.partition_index)] = committed
        refusal = coordinator.commit(body.group_id, offsets)
    pauses = Pauses()
    topics = [await _answered(call, asked, topic, missing, refusal, pauses) for asked, topic, missing in found]
    return call.api.make("OffsetCommitResponse", throttle_time=milliseconds(0), topics=tuple(topics))


async def _answered(
    call: Call, asked: Any, topic: Topic | None, missing: ErrorCode, refusal: ErrorCode, pauses: Pauses
) -> Any:
    """The answer for one topic."""

    def one(part: Any) -> Any:
        return call.api.make(
            "OffsetCommitResponsePartition",
            partition_index=part.partition_index,
            error_code=_error(topic, missing, part) or refusal,
        )

    partitions = await pauses.each(one, asked.partitions)
    await pauses.made()
    return call.api.make(
        "OffsetCommitResponseTopic",
        name=getattr(asked, "name", None),
        topic_id=getattr(asked, "topic_id", None),
        partitions=partitions,
    )


def _topic(broker: Broker, asked: Any) -> tuple[Topic | None, ErrorCode]:
    """The topic that a request names, and the error if there is none."""
    if hasattr(asked, "topic_id"):
        found = broker.topic(None, asked.topic_id) if asked.topic_id is not None else None
        return found, ErrorCode.unknown_topic_id
    return broker.topic(asked.name), ErrorCode.unknown_topic_or_partition


def _error(topic: Topic | None, missing: ErrorCode, one: Any) -> ErrorCode:
    """The error of one partition's offset, or none."""
    if topic is None:
        return missing
    if not 0 <= one.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if len((one.committed_metadata or "").encode()) > METADATA_MAX:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none
