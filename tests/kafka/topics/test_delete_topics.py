"""DeleteTopics: a request deletes the topics that it names once, by a name or by an id, and keeps all others."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import DELETE_TOPICS, RawKafka, key_of_topic, seconds
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

INVALID = ErrorCode.invalid_request
Named = tuple[str | None, UUID | None]


def delete(raw: RawKafka, *named: Named) -> dict[Named, ErrorCode]:
    """The answer to DeleteTopics v6. It has each topic once."""
    module = Question(DELETE_TOPICS, 6).module
    states = tuple(module.DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in named)
    answers = raw.ask(DELETE_TOPICS, 6, topics=states, timeout=seconds(10)).responses
    found = {(one.name, one.topic_id): one.error_code for one in answers}
    assert len(found) == len(answers)
    return found


def exists(raw: RawKafka, name: str) -> bool:
    return bool(raw.metadata(name).topics[0].error_code == ErrorCode.none)


def test_a_topic_that_is_named_twice_is_kept(cluster: KafkaCluster, raw: RawKafka) -> None:
    name = cluster.topic(replicas=1)
    topic_id = key_of_topic(raw, name)
    assert delete(raw, (name, None), (name, None)) == {(name, None): INVALID}
    assert delete(raw, (None, topic_id), (None, topic_id)) == {(None, topic_id): INVALID}
    for mixed in ([(name, None), (None, topic_id)], [(None, topic_id), (name, None)]):
        assert delete(raw, *mixed) == {(name, topic_id): INVALID}
    both = delete(raw, (None, topic_id), (None, topic_id), (name, None))
    assert both == {(None, topic_id): INVALID, (name, topic_id): INVALID}
    assert exists(raw, name)


@pytest.mark.parametrize("version", range(1, 6))
def test_a_name_that_is_there_twice_is_refused_in_old_versions_too(
    cluster: KafkaCluster, raw: RawKafka, version: int
) -> None:
    name, other = cluster.topic(replicas=1), cluster.topic(replicas=1)
    answer = raw.ask(DELETE_TOPICS, version, topic_names=(name, other, name), timeout=seconds(10))
    assert {one.name: one.error_code for one in answer.responses} == {name: INVALID, other: ErrorCode.none}
    assert len(answer.responses) == 2 and exists(raw, name) and not exists(raw, other)


def test_a_topic_that_is_named_by_a_name_and_an_id_at_once_is_kept(cluster: KafkaCluster, raw: RawKafka) -> None:
    name, other = cluster.topic(replicas=1), cluster.topic(replicas=1)
    for topic in (name, other):
        wrong = name, key_of_topic(raw, topic)
        assert delete(raw, wrong) == {wrong: INVALID}
    assert delete(raw, (None, None)) == {(None, None): INVALID}
    assert exists(raw, name) and exists(raw, other)


def test_the_other_topics_of_a_wrong_request_are_deleted(cluster: KafkaCluster, raw: RawKafka) -> None:
    kept, by_name, by_id = (cluster.topic(replicas=1) for _ in range(3))
    ids = {name: key_of_topic(raw, name) for name in (by_name, by_id)}
    unknown = UUID(int=99)
    asked: list[Named] = [(kept, None), (kept, None), (by_name, None), (None, ids[by_id])]
    assert delete(raw, *asked, ("missing", None), (None, unknown)) == {
        (kept, None): INVALID,
        (by_name, ids[by_name]): ErrorCode.none,
        (by_id, ids[by_id]): ErrorCode.none,
        ("missing", None): ErrorCode.unknown_topic_or_partition,
        (None, unknown): ErrorCode.unknown_topic_id,
    }
    assert [exists(raw, name) for name in (kept, by_name, by_id)] == [True, False, False]
