"""CreateTopics: a topic exists when every broker has read it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_client.operations import DelayedTopics, Part
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.broker.broker import ANY, Broker, Call
from timerd_kafka.cluster.catalog import Wanted, is_legal, why_illegal
from timerd_kafka.cluster.configs import shown, wrong_config
from timerd_kafka.cluster.settings import PARTITIONS_MAX
from timerd_kafka.waits.waits import DaemonLost
from timerd_kafka.wire.codec import milliseconds

DEFAULT = -1  # as a number of partitions or replicas: the broker's default

log = logging.getLogger("timerd_kafka.broker")


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    body, make = call.body, call.api.make
    broker.refresh()
    refuse_too_many(body.topics)
    left = PARTITIONS_MAX - sum(topic.partitions for topic in broker.catalog.by_id.values())
    counted = Counter(topic.name for topic in body.topics)
    wanted: dict[str, Wanted] = {}
    refused: dict[str, tuple[ErrorCode, str]] = {}
    for topic in body.topics:
        partitions = broker.settings.partitions if topic.num_partitions == DEFAULT else topic.num_partitions
        replicas = broker.settings.replicas if topic.replication_factor == DEFAULT else topic.replication_factor
        configs = {config.name: config.value for config in topic.configs}
        why = wrong(broker, topic, partitions, replicas, configs, left)
        if counted[topic.name] > 1:
            why = ErrorCode.invalid_request, "the topic is in this request more than once"
        if why is not None:
            refused[topic.name] = why
        else:
            wanted[topic.name] = partitions, replicas, configs
    timeout = max(0.0, body.timeout.total_seconds())
    parts = {} if body.validate_only else await create_and_wait(broker, wanted, timeout)

    def one(topic: Any) -> Any:
        error, message = refused.get(topic.name, (ErrorCode.none, None))
        if topic.name in parts and parts[topic.name].error:
            error = ErrorCode(parts[topic.name].error)
            message = f"{topic.name}: {error.name}"
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
                make(
                    "CreatableTopicConfigs",
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=source,
                    is_sensitive=False,
                )
                for name, value, source in shown(configs)
            ),
        )

    return make("CreateTopicsResponse", throttle_time=milliseconds(0), topics=tuple(map(one, body.topics)))


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


async def create_and_wait(broker: Broker, wanted: Mapping[str, Wanted], timeout: float) -> dict[str, Part]:
    """Create topics, and wait until all brokers have read them. Returns an error for each topic."""
    if not wanted:
        return {}
    try:
        errors = broker.catalog.create(wanted)
    except OSError:
        log.exception("the topics cannot be written")
        return dict.fromkeys(wanted, Part(ErrorCode.kafka_storage_error))
    for name, (_, _, configs) in wanted.items():
        if name not in errors:
            broker.note_without_effect(name, configs, {})
    taken: dict[str, int] = {name: errors.get(name, ErrorCode.none) for name in wanted}
    return await all_read(broker, taken, timeout)


class ReadByAll(DelayedTopics):
    """Complete when all brokers have read the topics.

    The operation waits for a version of the catalog. This version may be newer than the topics of the request, because
    another broker may have changed other topics since. A broker that has read the topics of the request earlier then
    fires events only for the other topics. So each broker also fires ANY for each version that it reads.
    """

    def watch_keys(self) -> Iterable[str]:
        return [*super().watch_keys(), ANY] if self.pending else []


async def all_read(broker: Broker, taken: dict[str, int], timeout: float) -> dict[str, Part]:
    """Wait until all brokers have read the topics as they are now."""
    broker.say_catalog_changed()
    version = broker.catalog.version
    try:
        parts: dict[str, Part] = await broker.waits.until(
            "topic", timeout, lambda give: ReadByAll(taken, lambda _: broker.all_have_read(version), give)
        )
    except DaemonLost:
        return {name: Part(error or ErrorCode.request_timed_out) for name, error in taken.items()}
    return parts
