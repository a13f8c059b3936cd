"""Requests that change topics: a topic that is named twice, a full disk, two changes at once, wrong assignments."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.changes import alter, create, delete, grow
from support.kafka.rawkafka import CREATE_TOPICS, RawKafka, seconds
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_kafka.apis.topics.create_partitions import PLACED_SHOWN
from timerd_kafka.apis.topics.describe_configs import BROKER, TOPIC
from timerd_kafka.cluster.catalog import Busy, Catalog, Topic
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

TIMED_OUT, STORAGE, NONE = ErrorCode.request_timed_out, ErrorCode.kafka_storage_error, ErrorCode.none
UNKNOWN, INVALID = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_request
LONG = "a" * 32_767  # the longest name of an old request


def test_a_new_topic_that_is_named_twice_is_refused_in_one_answer(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            found = await create(one, "twice", "once", "twice", "a/b", "a/b")
            assert found == [("twice", INVALID), ("once", NONE), ("a/b", INVALID)]
            assert set(one.catalog.by_name) == {"once"}

    manual.run(main())


# the disk -------------------------------------------------------------------------------------------------------------


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_part_of_a_change_that_is_wrong_keeps_its_error_when_the_disk_is_full(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = (TOPIC, "orders", "5"), (TOPIC, "others", "-5"), (TOPIC, "none", "5"), (BROKER, "0", "5")
    topics = "orders", "none", "twice", "twice", LONG

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"orders": (1, 1, {}), "others": (1, 1, {}), "twice": (1, 1, {})})
            with monkeypatch.context() as full:
                full.setattr(Path, "replace", refuse)
                assert await alter(one, *resources) == [STORAGE, ErrorCode.invalid_config, UNKNOWN, INVALID]
                grown = {found.name: found.error_code for found in await grow(one, *topics)}
                assert grown == {"orders": STORAGE, "none": UNKNOWN, "twice": INVALID, LONG: UNKNOWN}
            one.catalog._lock = tmp_path / "missing" / "lock"  # now the topics cannot even be looked at
            assert await alter(one, *resources) == [STORAGE, STORAGE, STORAGE, INVALID]
            results = await grow(one, *topics)
            assert {found.name: found.error_code for found in results} == {
                **dict.fromkeys(topics, STORAGE),
                "twice": INVALID,
            }
            assert max(len(found.error_message) for found in results) < 100, "an old answer has no room for LONG twice"

    manual.run(main())


def test_brokers_that_are_killed_or_find_a_full_disk_leave_no_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise SystemExit

    catalog = Catalog(tmp_path)
    for number, end, error in ((1, kill, SystemExit), (2, kill, SystemExit), (3, refuse, OSError)):
        with monkeypatch.context() as patched, pytest.raises(error):
            patched.setattr(os, "getpid", lambda number=number: number)
            patched.setattr(Path, "replace", end)
            catalog.create({"lost": (1, 1, {})})
    assert {path.name for path in tmp_path.iterdir()} == {"topics.lock"}
    catalog.create({"orders": (1, 1, {})})
    assert catalog.refresh() and set(catalog.by_name) == {"orders"}
    assert {path.name for path in tmp_path.iterdir()} == {"topics.lock", "topics.json"}


# two at once ----------------------------------------------------------------------------------------------------------


@contextmanager
def another_broker_changes_the_topics(data: Path) -> Iterator[None]:
    """Another broker was stopped (SIGSTOP) in the middle of a change. It goes on after the block."""
    with (data / "topics.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_change_waits_for_the_change_of_another_broker_and_others_are_served(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            with another_broker_changes_the_topics(tmp_path):
                creating = [asyncio.ensure_future(create(one, name)) for name in ("orders", "others")]
                await asyncio.sleep(0.5)  # others are served
                assert not any(task.done() for task in creating) and one.waits.pending <= 1, "both wait together"
            assert await asyncio.gather(*creating) == [[("orders", NONE)], [("others", NONE)]]
            with pytest.raises(Busy), another_broker_changes_the_topics(tmp_path):
                one.catalog.delete(lambda topic: True)
            assert set(one.catalog.by_name) == {"orders", "others"}

    manual.run(main())


def test_a_change_that_waits_for_another_broker_ends_at_its_deadline(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timerd_kafka.apis.topics.alter_configs.READ_S", 0.1)  # AlterConfigs has no timeout of its own

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"orders": (1, 1, {})})
            one.say_catalog_changed()
            loop = asyncio.get_running_loop()
            with another_broker_changes_the_topics(tmp_path):
                begun = loop.time()
                assert await create(one, "others", timeout=0.1) == [("others", TIMED_OUT)]
                (grown,) = await grow(one, "orders", timeout=0.1)
                assert grown.error_code == TIMED_OUT
                assert await delete(one, "orders", timeout=0.1) == [("orders", TIMED_OUT)]
                assert await alter(one, (TOPIC, "orders", "5"), (BROKER, "0", "5")) == [TIMED_OUT, INVALID]
                assert loop.time() - begun > 0.39, "each of them has waited"
            again = Catalog(tmp_path)
            assert again.refresh() and [(topic.name, topic.partitions) for topic in again.by_id.values()] == [
                ("orders", 1)
            ]

    manual.run(main())


@pytest.mark.long
def test_a_broker_answers_others_while_a_stopped_broker_holds_the_lock(tmp_path: Path) -> None:
    with (
        KafkaCluster(["--workers", "1", "--replicas", "1"], data=tmp_path) as cluster,
        RawKafka(cluster.bootstrap) as creating,
        RawKafka(cluster.bootstrap) as other,
    ):
        module = Question(CREATE_TOPICS, 7).module
        more = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        topics = (module.CreatableTopic(name="orders", **more),)
        with another_broker_changes_the_topics(tmp_path):
            fields = {"topics": topics, "timeout": seconds(50), "validate_only": False}
            question, frame = creating.question(CREATE_TOPICS, 7, **fields)
            creating.send(frame)
            for _ in range(20):
                assert other.metadata("orders").topics[0].error_code == UNKNOWN
        (made,) = question.read(creating.frame()).topics
        assert made.error_code == NONE
        assert other.metadata("orders").topics[0].error_code == NONE


# assignments ----------------------------------------------------------------------------------------------------------


def test_wrong_assignments_of_new_partitions_are_refused_without_placing_them_all(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"orders": (1, 1, {})})
            one.say_catalog_changed()
            placed: list[int] = []
            replicas = one.store.replicas

            def noted(topic: Topic, index: int) -> tuple[int, ...]:
                placed.append(index)
                return replicas(topic, index)

            monkeypatch.setattr(one.store, "replicas", noted)
            for held_by in ((0,), ()):
                (refused,) = await grow(one, "orders", count=2_000, held_by=held_by)
                assert refused.error_code == ErrorCode.invalid_replica_assignment and placed == []
                assert refused.error_message.startswith(f"{len(held_by)} assignments for 1999 new partitions")
            (refused,) = await grow(one, "orders", count=2_000, held_by=(5,) * 1_999)
            assert refused.error_code == ErrorCode.invalid_replica_assignment and len(placed) <= 1 + PLACED_SHOWN
            (grown,) = await grow(one, "orders", count=3, held_by=(0, 0))
            assert grown.error_code == NONE and one.catalog.by_name["orders"].partitions == 3

    manual.run(main())
