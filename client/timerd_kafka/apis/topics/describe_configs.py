"""DescribeConfigs: the configurations of topics and brokers that admin clients ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import TOPICS_AT_ONCE, Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import is_legal, why_illegal
from timerd_kafka.cluster.configs import (
    BOOLEAN,
    CONFIGS,
    DEFAULT,
    INT,
    LIST,
    OF_BROKER,
    OF_TOPIC,
    SHOWN,
    STRING,
    shown,
    source_of,
)
from timerd_kafka.wire.codec import Api, milliseconds

TOPIC, BROKER = 2, 4  # kinds of resources
TYPES = {name: config.kind for name, config in CONFIGS.items()} | {
    "advertised.listeners": LIST,
    "auto.create.topics.enable": BOOLEAN,
    "broker.rack": STRING,
    "listeners": LIST,
}  # all others are INT


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    make, has_synonyms = call.api.make, call.body.include_synonyms
    resources = {(one.resource_type, one.resource_name): one for one in call.body.resources}  # each once
    refuse_too_many(resources)

    def one(resource: Any) -> Any:
        kind = resource.resource_type
        error, message, found = look(broker, kind, resource.resource_name)
        keys = frozenset(resource.configuration_keys or ())
        return make(
            "DescribeConfigsResult",
            error_code=error,
            error_message=message,
            resource_type=kind,
            resource_name=resource.resource_name,
            configs=tuple(
                (default_entry if kind == TOPIC and source != OF_TOPIC else entry)(
                    call.api, kind, name, value, source, has_synonyms
                )
                for name, value, source in found
                if not keys or name in keys
            ),
        )

    results = await Pauses(TOPICS_AT_ONCE).each(one, resources.values())
    return make("DescribeConfigsResponse", throttle_time=milliseconds(0), results=results)


def entry(api: Api, kind: int, name: str, value: str, source: int, has_synonyms: bool) -> Any:
    """One configuration of a resource of this kind."""
    return api.make(
        "DescribeConfigsResourceResult",
        name=name,
        value=value,
        read_only=kind == BROKER,
        is_default=source == DEFAULT,
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms(api, name, value, source) if has_synonyms else (),
        config_type=TYPES.get(name, INT),
        documentation=None,
    )


default_entry: Callable[..., Any] = cache(entry)  # made once, although an answer has it for each of many topics


def synonyms(api: Api, name: str, value: str, source: int) -> tuple[Any, ...]:
    """A topic's own value, and behind it the default. A default stands alone, and so does a broker's value."""
    config = CONFIGS.get(name)
    held = [(name, value, source)] if source == OF_TOPIC or config is None else []
    if config is not None and config.default is not None:
        held.append((config.of_broker or name, config.default, source_of({}, name)))
    return tuple(api.make("DescribeConfigsSynonym", name=each, value=was, source=origin) for each, was, origin in held)


def look(broker: Broker, kind: int, name: str) -> tuple[ErrorCode, str | None, list[tuple[str, str, int]]]:
    """An error with its message, and the configurations: name, value, and source of the value."""
    if kind == TOPIC:
        if not is_legal(name):
            return ErrorCode.invalid_topic_exception, why_illegal(name), []
        topic = broker.topic(name)
        if topic is None:
            return ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}", []
        return ErrorCode.none, None, shown(topic.configs)
    if kind == BROKER:
        if not name:  # the defaults of all brokers that were set while they ran: there are none
            return ErrorCode.none, None, []
        if name != str(broker.id):
            return ErrorCode.invalid_request, f"this is broker {broker.id}: ask broker {name[:SHOWN]!r} itself", []
        return ErrorCode.none, None, list(of_broker(broker))
    return ErrorCode.invalid_request, f"resources of kind {kind} have no configurations here", []


def of_broker(broker: Broker) -> Iterator[tuple[str, str, int]]:
    """The configurations of this broker, by Kafka's names."""
    settings = broker.settings
    port = settings.ports[broker.id]
    yield "listeners", f"PLAINTEXT://{settings.bind}:{port}", OF_BROKER
    yield "advertised.listeners", f"PLAINTEXT://{settings.host}:{port}", OF_BROKER
    yield "broker.id", str(broker.id), OF_BROKER
    yield "broker.rack", str(broker.id), OF_BROKER
    yield "num.partitions", str(settings.partitions), OF_BROKER
    yield "default.replication.factor", str(settings.replicas), OF_BROKER
    yield "auto.create.topics.enable", str(settings.auto_create).lower(), OF_BROKER
    yield "group.initial.rebalance.delay.ms", str(round(settings.initial_rebalance_delay * 1000)), OF_BROKER
    yield "group.min.session.timeout.ms", str(round(settings.session_timeout_min * 1000)), OF_BROKER
    yield "group.max.session.timeout.ms", str(round(settings.session_timeout_max * 1000)), OF_BROKER
    yield "socket.request.max.bytes", str(settings.request_max), OF_BROKER
