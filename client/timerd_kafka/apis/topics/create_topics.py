"""CreateTopics: a topic exists when every broker has read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import TOPICS_AT_ONCE, Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.changes import TWICE, Codes, change_and_wait
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Wanted, is_legal, why_illegal
from timerd_kafka.cluster.configs import OF_TOPIC, kept, shown, wrong_config
from timerd_kafka.cluster.settings import PARTITIONS_MAX
from timerd_kafka.wire.codec import Api, milliseconds

DEFAULT = -1  # as a number of partitions or replicas: the broker's default


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    body, make = call.body, call.api.make
    broker.refresh()
    refuse_too_many(body.topics)
    left = PARTITIONS_MAX - sum(topic.partitions for topic in broker.catalog.by_id.values())
    counted = Counter(topic.name for topic in body.topics)
    asked = {topic.name: topic for topic in body.topics}  # each name once
    wanted: dict[str, Wanted] = {}
    refused: dict[str, tuple[ErrorCode, str]] = {}
    for topic in asked.values():
        partitions = broker.settings.partitions if topic.num_partitions == DEFAULT else topic.num_partitions
        replicas = broker.settings.replicas if topic.replication_factor == DEFAULT else topic.replication_factor
        configs = {config.name: config.value for config in topic.configs}
        is_twice = counted[topic.name] > 1
        why = TWICE if is_twice else wrong(broker, topic, partitions, replicas, configs, left)
        if why is not None:
            refused[topic.name] = why
        else:
            wanted[topic.name] = partitions, replicas, kept(configs)
    timeout = max(0.0, body.timeout.total_seconds())
    codes = {} if body.validate_only else await create_and_wait(broker, wanted, timeout)

    def one(topic: Any) -> Any:
        error, message = refused.get(topic.name, (ErrorCode.none, None))
        if code := codes.get(topic.name):
            error, message = code, f"{topic.name}: {code.name}"
        made = broker.topic(topic.name) if not error else None
        partitions, replicas, configs = wanted.get(topic.name, (-1, -1, {})) if not error else (-1, -1, {})
        return make(
            "CreatableTopicResult",
            name=topic.name,
            topic_id=made.id if made else None,
            error_code=error,
            error_message=message,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=None
            if error or not call.api.has("CreatableTopicConfigs")  # v5 and later have them
            else tuple(
                (entry if source == OF_TOPIC else default_entry)(call.api, name, value, source)
                for name, value, source in shown(configs)
            ),
        )

    topics = await Pauses(TOPICS_AT_ONCE).each(one, asked.values())
    return make("CreateTopicsResponse", throttle_time=milliseconds(0), topics=topics)


def entry(api: Api, name: str, value: str, source: int) -> Any:
    """One configuration of a new topic."""
    return api.make(
        "CreatableTopicConfigs", name=name, value=value, read_only=False, config_source=source, is_sensitive=False
    )


default_entry: Callable[..., Any] = cache(entry)  # all topics have the same defaults


def wrong(
    broker: Broker, topic: Any, partitions: int, replicas: int, configs: Mapping[str, str | None], left: int
) -> tuple[ErrorCode, str] | None:
    """Why a topic cannot be created; None if it can."""
    workers = broker.settings.workers
    if not is_legal(topic.name):
        return ErrorCode.invalid_topic_exception, why_illegal(topic.name)
    if broker.topic(topic.name) is not None:
        return ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists."
    if other := broker.catalog.colliding(topic.name):
        return (
            ErrorCode.invalid_topic_exception,
            f"{topic.name}: Kafka's metrics write '.' as '_', and cannot tell it from topic {other}",
        )
    if topic.assignments:
        return ErrorCode.invalid_replica_assignment, "this broker places replicas itself: give their number"
    if not 1 <= partitions <= left:
        return ErrorCode.invalid_partitions, f"{partitions} partitions: 1 to {left}, of the cluster's {PARTITIONS_MAX}"
    if not 1 <= replicas <= workers:
        return ErrorCode.invalid_replication_factor, f"{replicas} replicas: 1 to {workers}, the brokers"
    if found := wrong_config(configs):
        return ErrorCode.invalid_config, found
    return None


async def create_and_wait(broker: Broker, wanted: Mapping[str, Wanted], timeout: float) -> dict[str, ErrorCode]:
    """Create topics, and wait until all brokers have read them. Returns an error code for each topic."""

    def create() -> Codes:
        errors = broker.catalog.create(wanted)
        for name, (_, _, configs) in wanted.items():
            if name not in errors:
                broker.note_without_effect(name, configs, {})
        return {name: errors.get(name, ErrorCode.none) for name in wanted}

    return await change_and_wait(broker, wanted, timeout, create) if wanted else {}
