"""Metadata: the brokers, and the leaders of the topics' partitions. A topic that the request names may be created.

The answer for all topics of a cluster takes up to 0.1 s. It is made in parts, and others are served in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.create_topics import create_and_wait
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic, Wanted, is_legal
from timerd_kafka.log.batch import LEADER_EPOCH
from timerd_kafka.wire.codec import milliseconds

CREATE_S = 5.0  # the longest wait of a request for a topic that it creates
NULL_NAMES = 12  # the version from which a topic of the answer may have no name
CONTROLLER = 0  # any broker may change the topics, but clients expect that one broker is the controller


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    body, make = call.body, call.api.make
    broker.refresh()
    asked = body.topics
    refuse_too_many(asked or ())
    is_all = asked is None or (not asked and call.api.version == 0)
    wanted: list[tuple[str | None, UUID | None]] = (
        [(topic.name, None) for topic in broker.catalog.by_name.values()]
        if is_all
        else list(dict.fromkeys((topic.name, getattr(topic, "topic_id", None)) for topic in asked))
    )
    errors: dict[str | None, ErrorCode] = {}
    if broker.settings.auto_create and getattr(body, "allow_auto_topic_creation", True):
        errors = await create_missing(broker, [name for name, _ in wanted if name])
    settings, pauses = broker.settings, Pauses()
    topics = [
        await one(broker, call, name, topic_id, errors, pauses)
        for name, topic_id in wanted
        if not is_all or broker.topic(name) is not None  # it may have been deleted in a pause
    ]
    return make(
        "MetadataResponse",
        throttle_time=milliseconds(0),
        brokers=tuple(
            make("MetadataResponseBroker", node_id=number, host=settings.host, port=port, rack=str(number))
            for number, port in enumerate(settings.ports)
        ),
        cluster_id=broker.cluster_id,
        controller_id=CONTROLLER,
        topics=tuple(topics),
        error_code=ErrorCode.none,
    )


async def create_missing(broker: Broker, names: list[str]) -> dict[str | None, ErrorCode]:
    """Create the topics that do not exist. Returns the errors of topics that cannot be created."""
    missing: dict[str, Wanted] = {
        name: (broker.settings.partitions, broker.settings.replicas, {})
        for name in names
        if is_legal(name) and broker.topic(name) is None
    }
    if not missing:
        return {}
    codes = await create_and_wait(broker, missing, CREATE_S)
    # After leader_not_available a client asks again: all brokers will have read the topic soon.
    return {
        name: ErrorCode.leader_not_available if code == ErrorCode.request_timed_out else code
        for name, code in codes.items()
        if code not in (ErrorCode.none, ErrorCode.topic_already_exists)
    }


async def one(
    broker: Broker,
    call: Call,
    name: str | None,
    topic_id: UUID | None,
    errors: dict[str | None, ErrorCode],
    pauses: Pauses,
) -> Any:
    """The answer for one topic."""
    topic = broker.topic(name, topic_id)
    error = errors.get(name, ErrorCode.none)
    if topic is None and not error:
        error = ErrorCode.unknown_topic_id if topic_id else ErrorCode.unknown_topic_or_partition
        if name is not None and not is_legal(name):
            error = ErrorCode.invalid_topic_exception
    partitions: tuple[Any, ...] = ()
    if topic is not None and not error:
        partitions = await pauses.each(partial(partition_of, broker, call, topic), range(topic.partitions))
    await pauses.made()
    return call.api.make(
        "MetadataResponseTopic",
        error_code=error,
        name=topic.name if topic else name if call.api.version >= NULL_NAMES else name or "",
        topic_id=topic.id if topic else topic_id,
        is_internal=False,
        partitions=partitions,
    )


def partition_of(broker: Broker, call: Call, topic: Topic, index: int) -> Any:
    """The answer for one partition. There is no election: the leader is the same whether or not it runs."""
    replicas = broker.store.replicas(topic, index)
    return call.api.make(
        "MetadataResponsePartition",
        error_code=ErrorCode.none,
        partition_index=index,
        leader_id=replicas[0],
        leader_epoch=LEADER_EPOCH,
        replica_nodes=replicas,
        isr_nodes=replicas,
        offline_replicas=(),
    )
