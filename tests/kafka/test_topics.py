"""Topics: topics that several brokers create at once, large topics, and requests that name too many topics."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import CREATE_TOPICS, METADATA, PRODUCE, RawKafka, batch, seconds
from support.kafka.realbrokers import brokers
from support.real.patience import eventually
from timerd.testing import Manual
from timerd_client.operations import topic_key
from timerd_kafka.apis.topics.bounds import NAMED_MAX
from timerd_kafka.apis.topics.configs import wrong_config
from timerd_kafka.apis.topics.create_topics import all_read
from timerd_kafka.broker.broker import ANY, CATALOG
from timerd_kafka.cluster.catalog import Catalog
from timerd_kafka.log.log import PartitionLog
from timerd_kafka.replicas.store import Store
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

API_VERSIONS, DESCRIBE_CONFIGS = 18, 32


def test_a_broker_reports_changes_that_it_has_read_with_its_own(manual: Manual, tmp_path: Path) -> None:
    """Two brokers create topics at once. The second has read the first one's topics before it reports its own topic."""

    async def main() -> list[list[str]]:
        told: list[list[str]] = []
        with brokers(tmp_path, 2) as (one, two):
            two.waits.fire = lambda purgatory, *keys: told.append(sorted(keys)) if purgatory == "topic" else None  # type: ignore[method-assign]
            for name in ("x", "z"):
                one.catalog.create({name: (1, 1, {})})
                one.say_catalog_changed()
            two.catalog.create({"y": (1, 1, {})})
            two.say_catalog_changed()
            one.refresh()
            one.catalog.delete(lambda topic: topic.name == "z")
            one.catalog.create({"z": (1, 1, {})})  # a new topic with the same name
            two.say_catalog_changed()
        return told

    x, y, z = (topic_key(name) for name in "xyz")
    assert manual.run(main()) == [[ANY, x, y, z], [ANY, z]]


def test_two_changes_within_a_tick_of_the_file_systems_clock_are_both_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file may have the size, the time and even the inode of the file before it."""
    writer, reader = Catalog(tmp_path), Catalog(tmp_path)
    writer.create({"x": (1, 1, {})})
    later = time.time() + 3_600  # so the file counts as new, however slow this test is
    os.utime(tmp_path / "topics.json", (later, later))
    same = (tmp_path / "topics.json").stat()
    monkeypatch.setattr(Path, "stat", lambda path: same)
    assert reader.refresh() and set(reader.by_name) == {"x"}
    writer.delete(lambda topic: True)
    writer.create({"y": (1, 1, {})})
    assert reader.refresh() and set(reader.by_name) == {"y"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the loop stands still while a purgatory is made
def test_a_wait_for_a_topic_sees_brokers_that_have_read_a_newer_version(manual: Manual, tmp_path: Path) -> None:
    """A broker waits until the others have read its version of the topics. One of them reads only a newer version."""

    async def main() -> int:
        with brokers(tmp_path, 3) as (one, two, three):
            for broker in (one, two, three):
                await asyncio.to_thread(broker.readers.prepare, CATALOG)  # as a worker does before its loop runs
            one.catalog.create({"y": (1, 1, {})})
            three.refresh()
            two.catalog.create({"z": (1, 1, {})})
            waiting = asyncio.ensure_future(all_read(one, {"y": ErrorCode.none}, 5.0))
            for other in (two, three):
                await asyncio.sleep(0.1)
                other._looked = 0.0  # otherwise the broker would not look at the file again so soon
                other.refresh()
            return (await waiting)["y"].error

    assert manual.run(main()) == ErrorCode.none


def test_a_broker_acknowledges_no_topics_that_it_has_read_and_not_taken_up(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, so a broker's own change fails while the broker opens the partitions of newer topics."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        with brokers(tmp_path, 2) as (one, two):
            one.catalog.create({"x": (8, 1, {})})
            monkeypatch.setattr("timerd_kafka.broker.broker.OPEN_S", 0.0)  # so it opens no partition yet
            two.refresh()
            one.catalog.create({"y": (1, 1, {})})
            with monkeypatch.context() as full:
                full.setattr(Path, "replace", refuse)
                with pytest.raises(OSError, match="No space"):
                    two.catalog.create({"z": (1, 1, {})})
            told: list[list[str]] = []
            two.waits.fire = lambda _, *keys: told.append(sorted(keys))  # type: ignore[method-assign]
            monkeypatch.setattr("timerd_kafka.broker.broker.OPEN_S", 60.0)
            two._open()
            assert (two._opened, two.catalog.version) == (1, 2) and told == [[ANY, topic_key("x")]]
            two.say_catalog_changed()
            assert two._opened == 2 and told[1] == [ANY, topic_key("y")]

    manual.run(main())


def test_a_change_of_the_topics_is_seen_although_the_file_looks_as_before(tmp_path: Path) -> None:
    """A file system's clock may tick only every 4 ms, and a new file may get the inode number of an old file."""
    first, second = Catalog(tmp_path), Catalog(tmp_path)
    first.create({"a": (1, 1, {})})
    first.refresh()
    second.create({"b": (1, 1, {})})
    found = (tmp_path / "topics.json").stat()
    first._seen = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    first.create({"c": (1, 1, {})})
    second.refresh()
    assert set(second.by_name) == {"a", "b", "c"} and second.version == 3


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


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("max.message.bytes", "--5", "an integer from 0 on"),
        ("max.message.bytes", "-1", "an integer from 0 on"),
        ("max.message.bytes", "٣", "an integer from 0 on"),
        ("max.message.bytes", "", "an integer from 0 on"),
        ("retention.ms", "-2", "an integer from -1 on"),
        ("retention.ms", "1000", None),
        ("min.insync.replicas", "2", None),
        ("min.insync.replicas", "3", "the topic has 2 replicas"),
        ("min.insync.replicas", "0", "an integer from 1 on"),
    ],
)
def test_configurations_that_break_or_mislead_are_refused(name: str, value: str, why: str | None) -> None:
    found = wrong_config({name: value}, replicas=2)
    assert found == (why and f"{name}={value}: {why}")


def test_a_topic_refuses_records_above_its_own_limit_of_size(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1, configs={"max.message.bytes": "200"})
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: batch([b"x" * 300])})[0].error_code == ErrorCode.message_too_large
        assert leader.produce(topic, {0: batch([b"x" * 30])})[0].error_code == ErrorCode.none
