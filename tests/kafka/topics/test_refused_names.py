"""Names that no topic and no broker has: the answers are those of Kafka, in old versions of requests, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.least import least
from support.kafka.rawkafka import (
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    RawKafka,
)
from timerd_kafka.apis.topics.describe_configs import BROKER, TOPIC
from timerd_kafka.wire.codec import Question, versions_of

VERSIONS = versions_of("describe_configs")
LONG = "\0" * 9_000  # escaped it has 36,000 characters, and texts of old answers have 32,767 bytes at most
INVALID, INVALID_TOPIC = ErrorCode.invalid_request, ErrorCode.invalid_topic_exception


def describe(raw: RawKafka, version: int, kind: int, name: str) -> Any:
    """The answer to DescribeConfigs for one resource."""
    module = Question(DESCRIBE_CONFIGS, version).module
    asked = module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (found,) = raw.ask(DESCRIBE_CONFIGS, version, resources=(asked,)).results
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["", "..", "a/b", "a" * 250])
def test_a_name_that_no_topic_may_have_is_not_just_unknown(raw: RawKafka, version: int, name: str) -> None:
    found = describe(raw, version, TOPIC, name)
    assert (found.error_code, found.configs) == (INVALID_TOPIC, ()) and "1 to 249 letters" in found.error_message
    assert describe(raw, version, TOPIC, "a" * 249).error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", VERSIONS)
def test_the_defaults_of_all_brokers_are_empty(raw: RawKafka, version: int) -> None:
    """The name "" asks for the defaults of all brokers that were set while they ran. Here none can be set."""
    found = describe(raw, version, BROKER, "")
    assert (found.error_code, found.configs) == (ErrorCode.none, ())
    assert describe(raw, version, BROKER, "99").error_code == INVALID


@pytest.mark.parametrize(
    ("key", "version", "array", "fields", "error"),
    [
        (CREATE_TOPICS, 4, "topics", {"name": LONG}, INVALID_TOPIC),
        (ALTER_CONFIGS, 1, "resources", {"resource_type": TOPIC, "resource_name": LONG}, INVALID_TOPIC),
        (INCREMENTAL_ALTER_CONFIGS, 0, "resources", {"resource_type": TOPIC, "resource_name": LONG}, INVALID_TOPIC),
        (DESCRIBE_CONFIGS, 3, "resources", {"resource_type": TOPIC, "resource_name": LONG}, INVALID_TOPIC),
        (DESCRIBE_CONFIGS, 3, "resources", {"resource_type": BROKER, "resource_name": LONG}, INVALID),
        (CREATE_PARTITIONS, 1, "topics", {"name": LONG}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_name_that_is_too_long_when_it_is_escaped_is_refused_and_the_connection_stays(
    raw: RawKafka, key: int, version: int, array: str, fields: dict[str, Any], error: ErrorCode
) -> None:
    question = Question(key, version)
    request = least(question.request)
    request = replace(request, **{array: (replace(getattr(request, array)[0], **fields),)})
    raw.send(question.write(1, "raw", request))
    answer = question.read(raw.frame())
    (found,) = getattr(answer, {"topics": "topics", "resources": "responses"}[array], None) or answer.results
    assert found.error_code == error and "\\x00" in found.error_message and len(found.error_message) < 300
    assert raw.metadata("nothing").brokers, "the connection is open"
