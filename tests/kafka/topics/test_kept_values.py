"""The values of configurations as brokers keep them: in Kafka's form, without blanks."""

from __future__ import annotations

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.changes import alter, create
from support.kafka.rawkafka import INCREMENTAL_ALTER_CONFIGS
from support.kafka.realbrokers import answer_of, brokers
from timerd.testing import Manual
from timerd_kafka.apis.topics.alter_configs import SET
from timerd_kafka.apis.topics.describe_configs import TOPIC
from timerd_kafka.cluster.configs import CONFIGS, kept, wrong_config
from timerd_kafka.wire.codec import Question

NONE = ErrorCode.none


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("flush.ms", f"{'5':>4096}", "5"),
        ("flush.ms", "\t+0005 ", "5"),
        ("local.retention.ms", "-2", "-2"),
        ("preallocate", f" TRUE{'':4000}", "true"),
        ("min.cleanable.dirty.ratio", f" 0.25{'':4000}", "0.25"),
        ("cleanup.policy", f" compact , delete{'':4000}", "compact,delete"),
        ("cleanup.policy", "  ", ""),
        ("leader.replication.throttled.replicas", " 0:1, 1:2", "0:1,1:2"),
        ("compression.type", "gzip", "gzip"),
    ],
)
def test_a_value_is_kept_as_kafka_shows_it(name: str, value: str, shown: str) -> None:
    assert wrong_config({name: value}) is None
    assert kept({name: value}) == {name: shown} == kept({name: shown})


def test_every_default_has_the_form_in_which_values_are_kept() -> None:
    defaults = {name: config.default for name, config in CONFIGS.items() if config.default is not None}
    assert kept(defaults) == defaults


def test_blanks_around_a_value_take_no_memory_of_the_brokers(manual: Manual, tmp_path: Path) -> None:
    padded = f"{'5':>4000}"

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            assert await create(one, "orders", "others", flush_ms=padded, segment_ms=padded) == [
                ("orders", NONE),
                ("others", NONE),
            ]
            assert await alter(one, (TOPIC, "orders", padded)) == [NONE]
            module = Question(INCREMENTAL_ALTER_CONFIGS, 1).module
            config = module.AlterableConfig(name="flush.messages", config_operation=SET, value=padded)
            other = module.AlterConfigsResource(resource_type=TOPIC, resource_name="others", configs=(config,))
            await answer_of(one, INCREMENTAL_ALTER_CONFIGS, 1, resources=(other,), validate_only=False)
            assert {name: topic.configs for name, topic in one.catalog.by_name.items()} == {
                "orders": {"flush.ms": "5"},
                "others": {"flush.ms": "5", "segment.ms": "5", "flush.messages": "5"},
            }
            assert (tmp_path / "topics.json").stat().st_size < 1_000

    manual.run(main())
