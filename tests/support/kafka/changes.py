"""Requests that change topics, and their answers: for a broker in the loop of the test."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import ALTER_CONFIGS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, seconds
from support.kafka.realbrokers import answer_of
from timerd_kafka.broker.broker import Broker
from timerd_kafka.wire.codec import Question

WAIT_S = 10.0


async def create(broker: Broker, *names: str, timeout: float = WAIT_S, **configs: str) -> list[tuple[str, ErrorCode]]:
    """Create topics with these configurations, in whose names _ stands for a dot."""
    module = Question(CREATE_TOPICS, 7).module
    given = tuple(
        module.CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
    )
    more = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": given}
    topics = tuple(module.CreatableTopic(name=name, **more) for name in names)
    answer = await answer_of(broker, CREATE_TOPICS, 7, topics=topics, timeout=seconds(timeout), validate_only=False)
    return [(one.name, one.error_code) for one in answer.topics]


async def alter(broker: Broker, *resources: tuple[int, str, str]) -> list[ErrorCode]:
    """Give resources, each with its kind and its name, another flush.ms."""
    module = Question(ALTER_CONFIGS, 2).module
    asked = tuple(
        module.AlterConfigsResource(
            resource_type=kind, resource_name=name, configs=(module.AlterableConfig(name="flush.ms", value=value),)
        )
        for kind, name, value in resources
    )
    answer = await answer_of(broker, ALTER_CONFIGS, 2, resources=asked, validate_only=False)
    return [one.error_code for one in answer.responses]


async def grow(
    broker: Broker, *names: str, count: int = 2, held_by: tuple[int, ...] | None = None, timeout: float = WAIT_S
) -> Any:
    """Give topics more partitions. `held_by`: for each new partition, the one broker that is to hold it."""
    module = Question(CREATE_PARTITIONS, 3).module
    assigned = None
    if held_by is not None:
        assigned = tuple(module.CreatePartitionsAssignment(broker_ids=(number,)) for number in held_by)
    topics = tuple(module.CreatePartitionsTopic(name=name, count=count, assignments=assigned) for name in names)
    fields = {"topics": topics, "timeout": seconds(timeout), "validate_only": False}
    return (await answer_of(broker, CREATE_PARTITIONS, 3, **fields)).results


async def delete(broker: Broker, *names: str, timeout: float = WAIT_S) -> list[tuple[str, ErrorCode]]:
    """Delete topics."""
    module = Question(DELETE_TOPICS, 6).module
    states = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
    answer = await answer_of(broker, DELETE_TOPICS, 6, topics=states, timeout=seconds(timeout))
    return [(one.name, one.error_code) for one in answer.responses]
