"""Topics: large ones, their configurations, and requests that name too many of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.patience import eventually
from support.kafka.rawkafka import (
    ALTER_CONFIGS,
    API_VERSIONS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    PRODUCE,
    RawKafka,
    batch,
    seconds,
)
from support.kafka.realbrokers import answer_of, brokers
from timerd.testing import Manual
from timerd_kafka.apis.topics.bounds import NAMED_MAX
from timerd_kafka.cluster.catalog import Catalog
from timerd_kafka.cluster.configs import CONFIGS, without_effect, wrong_config
from timerd_kafka.log.log import PartitionLog
from timerd_kafka.replicas.store import Store
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

TOPIC, BROKER = 2, 4  # kinds of resources
SET, DELETE, APPEND, SUBTRACT = range(4)
# Configurations of a table's topic (Faust), a changelog (Quix), and a repartition topic (Kafka Streams).
OF_FRAMEWORKS = [
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete", "retention.ms": "3600000", "segment.ms": "600000"},
    {"cleanup.policy": "delete", "segment.bytes": "52428800", "retention.ms": "-1", "min.insync.replicas": "2"},
]


# many partitions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


@pytest.fixture
def store(catalog: Catalog, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "broker-0", catalog, broker=0, workers=1)
    yield made
    for partition in made:
        partition.log.close()


def test_a_large_topic_is_opened_some_partitions_at_a_time(store: Store, catalog: Catalog) -> None:
    catalog.create({"large": (50, 1, {})})
    catalog.refresh()
    assert store.refresh() == [] and len(list(store)) == 0
    assert store.open_some(0.0), "there is no time to open a partition"
    assert not store.open_some(10.0) and len(list(store)) == 50


def test_the_files_of_a_deleted_topic_are_removed_in_another_thread(store: Store, catalog: Catalog) -> None:
    catalog.create({"large": (50, 1, {}), "other": (1, 1, {})})
    catalog.refresh()
    store.refresh()
    store.open_some(10.0)
    directories = [partition.directory for partition in store]
    catalog.delete(lambda topic: topic.name == "large")
    catalog.refresh()
    gone = store.refresh()
    assert len(gone) == 50 and all(partition.is_deleted for partition in gone)
    assert [partition.topic.name for partition in store] == ["other"]
    eventually(lambda: [path.exists() for path in directories].count(True) == 1)


def test_a_partition_that_cannot_be_opened_is_tried_again_each_second(
    store: Store, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("timerd_kafka.replicas.store.time.monotonic", lambda: now[0])
    catalog.create({"orders": (3, 1, {})})
    catalog.refresh()
    obstacle = tmp_path / "broker-0" / f"{catalog.by_name['orders'].id.hex}-1"
    obstacle.write_text("")
    store.refresh()
    assert not store.open_some(1.0) and len(list(store)) == 2, "the other partitions are open"
    assert store.try_again() and not store.open_some(1.0)
    now[0] += 0.9
    assert not store.try_again()
    obstacle.unlink()
    now[0] += 0.2
    assert store.try_again() and not store.open_some(1.0) and len(list(store)) == 3
    assert not store.try_again()
    assert len([record for record in caplog.records if "cannot be opened" in record.message]) == 1


def test_a_log_that_cannot_be_read_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "a bad sector")

    PartitionLog(tmp_path).close()
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr("timerd_kafka.log.log.os.fstat", fail)
        for _ in range(5):
            with pytest.raises(OSError, match="a bad sector"):
                PartitionLog(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


# requests -------------------------------------------------------------------------------------------------------------


def test_old_librdkafka_is_offered_produce_v0_which_is_refused(raw: RawKafka) -> None:
    answer = raw.ask(API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
    versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert versions[PRODUCE][0] == 0 and versions[METADATA][0] == 0
    raw.send(bytes.fromhex("0000000a 0000 0002 00000001 0000"))
    with pytest.raises(EOFError):
        raw.frame()


@pytest.mark.parametrize("version", [10, 11, 12])
def test_metadata_of_an_unknown_id_is_answered(raw: RawKafka, version: int) -> None:
    module = Question(METADATA, version).module
    fields = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    fields |= {"include_cluster_authorized_operations": False} if version == 10 else {}
    topics = (module.MetadataRequestTopic(topic_id=UUID(int=99), name=None),)
    (found,) = raw.ask(METADATA, version, topics=topics, **fields).topics
    assert found.error_code == ErrorCode.unknown_topic_id and found.name == ("" if version < 12 else None)


def describe(raw: RawKafka, names: list[str]) -> list[str]:
    module = Question(DESCRIBE_CONFIGS, 4).module
    asked = tuple(
        module.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None) for name in names
    )
    answer = raw.ask(DESCRIBE_CONFIGS, 4, resources=asked, include_synonyms=False, include_documentation=False)
    return [one.resource_name for one in answer.results]


def create_many(raw: RawKafka, names: list[str]) -> None:
    module = Question(CREATE_TOPICS, 5).module
    more = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topics = tuple(module.CreatableTopic(name=name, **more) for name in names)
    raw.ask(CREATE_TOPICS, 5, topics=topics, timeout=seconds(1), validate_only=True)


def ask_for_many(raw: RawKafka, names: list[str]) -> None:
    module = Question(METADATA, 12).module
    topics = tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in names)
    raw.ask(METADATA, 12, topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False)


def test_a_resource_that_is_named_again_and_again_is_described_once(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic()
    assert describe(raw, [topic] * 10_000 + ["none"]) == [topic, "none"]


@pytest.mark.parametrize("ask", [describe, create_many, ask_for_many])
def test_a_request_that_names_too_many_topics_is_refused(
    cluster: KafkaCluster, ask: Callable[[RawKafka, list[str]], object]
) -> None:
    with RawKafka(cluster.bootstrap) as raw, pytest.raises(EOFError):
        ask(raw, [f"t{number}" for number in range(NAMED_MAX + 1)])
    with RawKafka(cluster.bootstrap) as raw:
        assert raw.metadata("t0").topics[0].error_code == ErrorCode.unknown_topic_or_partition, "no topic was created"


# configurations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max.message.bytes", "--5", "an integer from 0 to 2147483647"),
        ("max.message.bytes", "-1", "an integer from 0 to 2147483647"),
        ("max.message.bytes", "2147483648", "an integer from 0 to 2147483647"),
        ("max.message.bytes", "\u0663", "an integer from 0 to 2147483647"),
        ("max.message.bytes", "", "an integer from 0 to 2147483647"),
        ("max.message.bytes", " +5 ", None),
        ("retention.ms", "-2", "an integer from -1 to 9223372036854775807"),
        ("retention.ms", "9223372036854775808", "an integer from -1 to 9223372036854775807"),
        ("retention.ms", "1000", None),
        ("retention.bytes", "-7", None),
        ("segment.bytes", "1048575", "an integer from 1048576 to 2147483647"),
        ("min.insync.replicas", "2", None),
        ("min.insync.replicas", "0", "an integer from 1 to 2147483647"),
        ("compression.gzip.level", "-1", None),
        ("compression.gzip.level", "0", "an integer from 1 to 9, or -1"),
        ("compression.zstd.level", "-5", None),
        ("compression.type", "none", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("cleanup.policy", "compact, delete", None),
        ("cleanup.policy", "", None),
        ("cleanup.policy", "delete,delete", "it has a part twice"),
        ("cleanup.policy", "delete,", "some of compact, delete"),
        ("cleanup.policy", "Compact", "some of compact, delete"),
        ("message.timestamp.type", "logappendtime", "one of CreateTime, LogAppendTime"),
        ("min.cleanable.dirty.ratio", "0.25", None),
        ("min.cleanable.dirty.ratio", "1e-2", None),
        ("min.cleanable.dirty.ratio", "1.1", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("preallocate", "TRUE", None),
        ("preallocate", "yes", "true or false"),
        ("leader.replication.throttled.replicas", "*", None),
        ("leader.replication.throttled.replicas", "0:1,1:2", None),
        ("leader.replication.throttled.replicas", "0", "'*', or PARTITION:BROKER,PARTITION:BROKER,..."),
        ("min.compaction.lag.ms", "5", None),
        ("flush.ms", f"{'5':>4097}", "4097 characters: 4096 at most"),
        ("remote.storage.enable", "true", "this broker has no tiered storage, as Kafka without its plugin"),
    ],
)
def test_a_configuration_has_the_checks_of_kafka_4(name: str, value: str, why: str | None) -> None:
    found = wrong_config({name: value})
    assert found == (why and f"{name}={value[:40]}: {why}")


def test_each_default_is_legal_and_two_configurations_may_contradict_each_other() -> None:
    defaults = {name: config.default for name, config in CONFIGS.items() if config.default is not None}
    assert wrong_config(defaults) is None and without_effect({**defaults}) == []
    wrong = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}
    assert wrong_config(wrong) == "min.compaction.lag.ms=9: max.compaction.lag.ms=8 at most"
    assert str(wrong_config({"retention.minutes": "9"})).startswith("retention.minutes: Kafka 4 has no such")
    assert str(wrong_config({"retention.ms": None})).startswith("retention.ms: null is no value")


def test_names_collide_that_differ_only_in_dots_and_underscores(catalog: Catalog) -> None:
    pairs = {"col.a": "col_a", "a.b_c": "a_b.c", "a..": "a__"}
    assert catalog.create(dict.fromkeys([*pairs, "ab", "a-b"], (1, 1, {}))) == {}
    collide = dict.fromkeys(pairs.values(), ErrorCode.invalid_topic_exception)
    assert catalog.create(dict.fromkeys([*pairs.values(), "a.c"], (1, 1, {}))) == collide
    assert catalog.create(dict.fromkeys(["new.a", "new_a"], (1, 1, {}))) == {"new_a": ErrorCode.invalid_topic_exception}
    catalog.refresh()
    assert {name: catalog.colliding(other) for name, other in pairs.items()} == {name: name for name in pairs}
    assert not any(map(catalog.colliding, [*pairs, "ab", "abc", "a-c"]))


def config_errors(raw: RawKafka, name: str, configs: dict[str, str | None]) -> tuple[ErrorCode, str | None]:
    """Create a topic with these configurations. Returns the error and the text of the answer."""
    module = Question(CREATE_TOPICS, 7).module
    given = tuple(module.CreatableTopicConfig(name=key, value=value) for key, value in configs.items())
    topic = module.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=given)
    (answer,) = raw.ask(CREATE_TOPICS, 7, topics=(topic,), timeout=seconds(5), validate_only=False).topics
    return answer.error_code, answer.error_message


def described(raw: RawKafka, topic: str) -> dict[str, tuple[str, int, list[tuple[str, str, int]]]]:
    """The configurations of a topic: value, source, synonyms."""
    module = Question(DESCRIBE_CONFIGS, 4).module
    asked = module.DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=None)
    (found,) = raw.ask(
        DESCRIBE_CONFIGS, 4, resources=(asked,), include_synonyms=True, include_documentation=False
    ).results
    return {
        one.name: (one.value, one.config_source, [(each.name, each.value, each.source) for each in one.synonyms])
        for one in found.configs
    }


@pytest.mark.parametrize("configs", OF_FRAMEWORKS)
def test_configurations_that_have_no_effect_are_kept_shown_and_logged_once(
    cluster: KafkaCluster, raw: RawKafka, configs: dict[str, str]
) -> None:
    topic = cluster.topic(replicas=1, configs=configs)
    assert {name: value for name, (value, source, _) in described(raw, topic).items() if source == 1} == configs
    alter(raw, topic, [("cleanup.policy", SET, configs["cleanup.policy"])])
    for name in without_effect(configs):
        what = "compacts nothing here" if name == "cleanup.policy" else "has no effect here"
        assert cluster.log.count(f"topic {topic}: {name}={configs[name]} {what}") == 1


def test_an_admin_client_sees_where_a_value_comes_from(cluster: KafkaCluster, raw: RawKafka) -> None:
    found = described(raw, cluster.topic(configs={"segment.ms": "5"}))
    assert found["segment.ms"] == ("5", 1, [("segment.ms", "5", 1), ("log.roll.ms", "604800000", 5)])
    assert found["flush.ms"] == (str(2**63 - 1), 5, [("log.flush.interval.ms", str(2**63 - 1), 5)])
    assert found["retention.ms"] == ("-1", 4, [("log.retention.ms", "-1", 4)])
    assert "internal.segment.bytes" not in found


def test_a_name_that_kafka_cannot_tell_from_another_is_refused(cluster: KafkaCluster, raw: RawKafka) -> None:
    name = cluster.topic("col.a", replicas=1)
    error, why = config_errors(raw, "col_a", {})
    assert error == ErrorCode.invalid_topic_exception and name in str(why)
    module = Question(METADATA, 12).module
    topics = (module.MetadataRequestTopic(topic_id=None, name="col_a"),)
    (made,) = raw.ask(
        METADATA, 12, topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=False
    ).topics
    assert made.error_code == ErrorCode.invalid_topic_exception
    assert config_errors(raw, "col-a", {"retention.ms": None})[0] == ErrorCode.invalid_config


def alter(
    raw: RawKafka,
    topic: str,
    configs: list[tuple[str, int, str | None]],
    *,
    kind: int = TOPIC,
    validate_only: bool = False,
    times: int = 1,
) -> tuple[ErrorCode, str | None]:
    """The error and the text of IncrementalAlterConfigs. `configs`: names of configurations, operations, values."""
    module = Question(INCREMENTAL_ALTER_CONFIGS, 1).module
    given = tuple(module.AlterableConfig(name=n, config_operation=op, value=value) for n, op, value in configs)
    one = module.AlterConfigsResource(resource_type=kind, resource_name=topic, configs=given)
    answer = raw.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=(one,) * times, validate_only=validate_only).responses[0]
    return answer.error_code, answer.error_message


def alter_all(raw: RawKafka, topic: str, configs: dict[str, str | None], *, validate_only: bool = False) -> ErrorCode:
    """The error of AlterConfigs, which replaces all configurations of the topic by these."""
    module = Question(ALTER_CONFIGS, 2).module
    given = tuple(module.AlterableConfig(name=name, value=value) for name, value in configs.items())
    one = module.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=given)
    (answer,) = raw.ask(ALTER_CONFIGS, 2, resources=(one,), validate_only=validate_only).responses
    code: ErrorCode = answer.error_code
    return code


def own_configs(raw: RawKafka, topic: str) -> dict[str, str]:
    return {name: value for name, (value, source, _) in described(raw, topic).items() if source == 1}


def test_changed_configurations_hold_at_all_brokers_when_the_request_is_answered(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(partitions=4, replicas=1, configs={"retention.ms": "-1", "flush.ms": "5"})
    assert alter(raw, topic, [("max.message.bytes", SET, "200"), ("flush.ms", DELETE, None)]) == (ErrorCode.none, None)
    for partition, address in raw.leaders(topic).items():  # the four brokers
        with RawKafka(address) as leader:
            answer = leader.produce(topic, {partition: batch([b"x" * 300])})[partition]
            assert answer.error_code == ErrorCode.message_too_large
            assert own_configs(leader, topic) == {"retention.ms": "-1", "max.message.bytes": "200"}
    assert alter_all(raw, topic, {"segment.ms": "7"}) == ErrorCode.none
    assert own_configs(raw, topic) == {"segment.ms": "7"}
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: batch([b"x" * 300])})[0].error_code == ErrorCode.none


def test_operations_on_lists(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic()
    for operation, value, wanted in (
        (APPEND, "compact,delete,compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
        (APPEND, "delete", "delete"),
    ):
        assert alter(raw, topic, [("cleanup.policy", operation, value)]) == (ErrorCode.none, None)
        assert own_configs(raw, topic) == {"cleanup.policy": wanted}


def test_a_wrong_change_of_configurations_changes_nothing(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(configs={"segment.ms": "7"})
    good = ("flush.ms", SET, "5")
    for change, code in {
        ("flush.msec", SET, "5"): ErrorCode.invalid_config,
        ("retention.ms", SET, "-2"): ErrorCode.invalid_config,
        ("retention.ms", APPEND, "5"): ErrorCode.invalid_config,
        ("retention.ms", SET, None): ErrorCode.invalid_request,
        ("retention.ms", 9, "5"): ErrorCode.invalid_request,
        ("flush.ms", SET, "6"): ErrorCode.invalid_request,  # `good` sets it, too
    }.items():
        found, why = alter(raw, topic, [good, change])
        assert found == code and change[0] in str(why), change
    assert alter(raw, topic, [("cleanup.policy", APPEND, "a," * 3_000)])[0] == ErrorCode.invalid_config
    assert alter(raw, "", [good])[0] == ErrorCode.invalid_request
    assert alter(raw, "a/b", [good])[0] == ErrorCode.invalid_topic_exception
    assert alter(raw, "missing", [good])[0] == ErrorCode.unknown_topic_or_partition
    assert alter(raw, "0", [("num.partitions", SET, "5")], kind=BROKER)[0] == ErrorCode.invalid_request
    assert alter(raw, topic, [good], kind=99)[0] == ErrorCode.invalid_request
    assert alter(raw, topic, [good], times=2)[0] == ErrorCode.invalid_request
    assert alter(raw, topic, [good], validate_only=True)[0] == ErrorCode.none
    assert alter(raw, topic, [("flush.ms", SET, "-5")], validate_only=True)[0] == ErrorCode.invalid_config
    assert alter_all(raw, topic, {"flush.ms": "x"}) == ErrorCode.invalid_config
    assert alter_all(raw, topic, {"flush.ms": None}) == ErrorCode.invalid_request
    assert alter_all(raw, topic, {}, validate_only=True) == ErrorCode.none
    assert own_configs(raw, topic) == {"segment.ms": "7"}


def grow(
    raw: RawKafka, *wanted: tuple[str, int, list[int] | None], validate_only: bool = False
) -> dict[str, ErrorCode]:
    """The errors of CreatePartitions, by topic. `wanted`: name, number of partitions, brokers of a new partition."""
    module = Question(CREATE_PARTITIONS, 3).module
    topics = tuple(
        module.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=assigned and (module.CreatePartitionsAssignment(broker_ids=tuple(assigned)),),
        )
        for name, count, assigned in wanted
    )
    answer = raw.ask(CREATE_PARTITIONS, 3, topics=topics, timeout=seconds(10), validate_only=validate_only)
    assert len({one.name for one in answer.results}) == len(answer.results)
    return {one.name: one.error_code for one in answer.results}


def test_a_topic_gets_more_partitions_and_keeps_its_records(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic, other = cluster.topic(replicas=2), cluster.topic(partitions=3, replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: batch([b"a", b"b"])})[0].error_code == ErrorCode.none
    assert grow(raw, (topic, 5, None), validate_only=True) == {topic: ErrorCode.none}
    assert len(raw.leaders(topic)) == 1
    found = grow(raw, (topic, 5, None), (other, 3, None), ("missing", 2, None))
    assert found == {
        topic: ErrorCode.none,
        other: ErrorCode.invalid_partitions,
        "missing": ErrorCode.unknown_topic_or_partition,
    }
    leaders = raw.leaders(topic)
    assert len(leaders) == 5
    for partition, address in leaders.items():
        with RawKafka(address) as leader:
            written = leader.produce(topic, {partition: batch([b"c"])})[partition]
            assert (written.error_code, written.base_offset) == (ErrorCode.none, 0 if partition else 2)
    assert grow(raw, (other, 1, None)) == {other: ErrorCode.invalid_partitions}
    assert grow(raw, (other, 1_000_000, None)) == {other: ErrorCode.invalid_partitions}
    assert grow(raw, (other, 4, None), (other, 5, None)) == {other: ErrorCode.invalid_request}
    answers = {broker: grow(raw, (other, 4, [broker]), validate_only=True)[other] for broker in range(4)}
    assert sorted(answers.values()) == [ErrorCode.none] + [ErrorCode.invalid_replica_assignment] * 3
    assert len(raw.leaders(other)) == 3
    assert grow(raw, (other, 4, [broker for broker, error in answers.items() if not error])) == {other: ErrorCode.none}
    assert len(raw.leaders(other)) == 4


def test_a_change_that_cannot_be_written_is_an_error(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"orders": (1, 1, {})})
            one.catalog._lock = tmp_path / "missing" / "lock"
            module = Question(ALTER_CONFIGS, 2).module
            resource = module.AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=())
            altered = await answer_of(one, ALTER_CONFIGS, 2, resources=(resource,), validate_only=False)
            assert [found.error_code for found in altered.responses] == [ErrorCode.kafka_storage_error]
            module = Question(CREATE_PARTITIONS, 3).module
            topic = module.CreatePartitionsTopic(name="orders", count=2, assignments=None)
            grown = await answer_of(one, CREATE_PARTITIONS, 3, topics=(topic,), timeout=seconds(1), validate_only=False)
            assert [found.error_code for found in grown.results] == [ErrorCode.kafka_storage_error]

    manual.run(main())


def test_changed_topics_outlive_a_restart(store: Store, catalog: Catalog, tmp_path: Path) -> None:
    catalog.create({"orders": (1, 1, {})})
    catalog.refresh()
    store.refresh()
    store.open_some(10.0)
    (partition,) = store
    changed = {"max.message.bytes": "7"}
    catalog.change(lambda topics: {"orders": replace(topics["orders"], configs=changed, partitions=2)})
    again = Catalog(tmp_path)
    assert again.refresh() and again.by_name["orders"].rules.message_max == 7
    assert partition.topic.rules.message_max == 1_048_588, "the broker has not read the change yet"
    catalog.refresh()
    assert store.refresh() == [] and not store.open_some(10.0) and len(list(store)) == 2
    assert {held.topic.rules.message_max for held in store} == {7}
    version = catalog.version
    catalog.change(lambda topics: topics)
    assert not catalog.refresh() and catalog.version == version, "nothing has changed"


def test_a_topic_refuses_records_above_its_own_limit_of_size(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1, configs={"max.message.bytes": "200"})
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: batch([b"x" * 300])})[0].error_code == ErrorCode.message_too_large
        assert leader.produce(topic, {0: batch([b"x" * 30])})[0].error_code == ErrorCode.none
