"""Answers for many topics: each topic has its configurations, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import CREATE_TOPICS, DESCRIBE_CONFIGS, METADATA, RawKafka, seconds
from support.kafka.realbrokers import answer_of, brokers
from timerd.testing import Manual
from timerd_kafka.apis import pauses
from timerd_kafka.apis.frames import LARGE, frame_of
from timerd_kafka.apis.topics.describe_configs import TOPIC
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Api, Question, api_of, milliseconds


def asked(*names: str) -> dict[str, Any]:
    """The fields of DescribeConfigs v4 for all configurations of topics."""
    module = Question(DESCRIBE_CONFIGS, 4).module
    more = {"resource_type": TOPIC, "configuration_keys": None}
    resources = tuple(module.DescribeConfigsResource(resource_name=name, **more) for name in names)
    return {"resources": resources, "include_synonyms": True}


def new(*names: str) -> dict[str, Any]:
    """The fields of CreateTopics v7 for new topics, each of which has its number as flush.ms."""
    module = Question(CREATE_TOPICS, 7).module
    topics = tuple(
        module.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=(module.CreatableTopicConfig(name="flush.ms", value=str(number)),),
        )
        for number, name in enumerate(names)
    )
    return {"topics": topics, "timeout": seconds(20)}


def test_each_of_many_topics_has_its_own_values_and_the_defaults(cluster: KafkaCluster, raw: RawKafka) -> None:
    names = [f"described-{number}" for number in range(40)]
    made = raw.ask(CREATE_TOPICS, 7, **new(*names), validate_only=False).topics
    assert [one.error_code for one in made] == [ErrorCode.none] * 40
    found = raw.ask(DESCRIBE_CONFIGS, 4, **asked(*names)).results
    assert sum(len(one.configs) for one in found) > LARGE, "so the answer is a large one"
    for configs in ([one.configs for one in made], [one.configs for one in found]):
        values = [{one.name: one.value for one in each} for each in configs]
        assert [each.pop("flush.ms") for each in values] == [str(number) for number in range(40)]
        assert values == values[:1] * 40 and values[0]["segment.ms"] == "604800000"


# many topics ----------------------------------------------------------------------------------------------------------


async def turns_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """The result of a coroutine, and how often the loop served others before that."""
    task, turns = asyncio.ensure_future(coroutine), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return task.result(), turns


def test_others_are_served_while_a_request_for_many_topics_is_answered(manual: Manual, tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(10 * pauses.TOPICS_AT_ONCE)]

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            described, turns = await turns_of(answer_of(one, DESCRIBE_CONFIGS, 4, **asked(*names)))
            assert len(described.results) == len(names) and turns >= 10
            created, turns = await turns_of(answer_of(one, CREATE_TOPICS, 7, **new(*names), validate_only=True))
            assert len(created.topics) == len(names) and turns >= 10

    manual.run(main())


@pytest.mark.parametrize(("topics", "partitions"), [(1, 5), (5, 1)], ids=["of one topic", "of many topics"])
def test_others_are_served_while_the_metadata_of_many_partitions_are_made(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int, partitions: int
) -> None:
    monkeypatch.setattr(pauses, "AT_ONCE", 4)

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({f"t{number}": (4 * partitions, 1, {}) for number in range(4 * topics)})
            names = {"topics": None, "include_topic_authorized_operations": False, "allow_auto_topic_creation": True}
            answer, turns = await turns_of(answer_of(one, METADATA, 12, **names))
            assert {topic.name for topic in answer.topics} == set(one.catalog.by_name)
            found = [[part.partition_index for part in topic.partitions] for topic in answer.topics]
            assert found == [list(range(4 * partitions))] * 4 * topics
            assert turns >= 4 * topics * partitions

    manual.run(main())


def test_an_answer_for_many_topics_holds_each_default_once(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"a": (1, 1, {}), "b": (1, 1, {"flush.ms": "5"})})
            first, second = (await answer_of(one, DESCRIBE_CONFIGS, 4, **asked("a", "b"))).results
            assert [a.name for a, b in zip(first.configs, second.configs, strict=True) if a is not b] == ["flush.ms"]

    manual.run(main())


def test_a_large_answer_is_written_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    api, threads, write = api_of(DESCRIBE_CONFIGS, 4), list[int](), Api.write

    def answer(results: int) -> Any:
        none = {"error_code": ErrorCode.none, "error_message": None, "configs": ()}
        made = [
            api.make("DescribeConfigsResult", resource_type=TOPIC, resource_name=f"t{number}", **none)
            for number in range(results)
        ]
        return api.make("DescribeConfigsResponse", throttle_time=milliseconds(0), results=tuple(made))

    def noted(self: Api, correlation_id: int, answer: Any) -> bytes:
        threads.append(threading.get_ident())
        return write(self, correlation_id, answer)

    async def main() -> None:
        for results in (LARGE - 1, LARGE):
            assert await frame_of(api, 7, answer(results)) == write(api, 7, answer(results))

    monkeypatch.setattr(Api, "write", noted)
    asyncio.run(main())
    assert [thread == threading.get_ident() for thread in threads] == [True, False]
