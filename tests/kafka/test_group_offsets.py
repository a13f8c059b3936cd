"""Committed offsets, and groups of a broker that is started again: on a manual clock."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.groupworld import (
    NONE,
    Broker,
    Consumer,
    Run,
    beat_for,
    commit,
    committed,
    settle,
    stable,
)
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_kafka.groups import remembered as remembered_module
from timerd_kafka.groups.group import State
from timerd_kafka.groups.messages import Identity, SyncRequest
from timerd_kafka.groups.offsets import Committed, Place

# offsets --------------------------------------------------------------------------------------------------------------


def test_offsets_are_committed_by_members_and_by_clients_that_are_no_members(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        simple = Consumer(broker, "simple")
        assert committed(broker) is None and simple.commit(4) is NONE and committed(broker) == (4, 3, "m")
        a, b = await stable(broker, "a", "b")
        assert simple.commit(5) is ErrorCode.unknown_member_id
        for _ in range(10):
            await asyncio.sleep(2)
            assert a.commit(6, 1) is NONE and b.heartbeat() is NONE, "a commit is a heartbeat, too"
        a.generation -= 1
        assert a.commit(7) is ErrorCode.illegal_generation and a.heartbeat() is ErrorCode.illegal_generation
        other = Consumer(broker, "x")
        other.member, other.generation = "x", 3
        assert other.commit(7) is ErrorCode.unknown_member_id
        assert [
            (topic.name, index, one.offset) for topic, index, one in broker.coordinator.all_committed("workers")
        ] == [
            ("orders", 0, 4),
            ("orders", 1, 6),
        ]
        assert not list(broker.coordinator.all_committed("nobody"))
        assert broker.coordinator.may_commit(Identity("nobody", "x", None, 1)) is ErrorCode.illegal_generation
        assert broker.coordinator.may_commit(Identity("", "", None, -1)) is NONE

    run(scenario)


def test_offsets_outlive_a_broker_and_a_record_that_was_cut_is_dropped(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        for offset in range(100):
            commit(broker, offset)
        commit(broker, 7, 1)
        (path,) = (broker.settings.data / "groups").iterdir()
        before = path.read_bytes()
        commit(broker, 8, 1)
        broker.kill()
        path.write_bytes(path.read_bytes()[:-3])
        (path.parent / f"{path.name}.draft").write_bytes(b"a draft")
        (path.parent / "rubbish").write_bytes(b"\0\0\0\x05abc")
        again = Broker(broker.settings.data)
        assert committed(again) == (99, 3, "m") and committed(again, 1) == (7, 3, "m")
        assert path.stat().st_size < len(before) / 10, "the file was rewritten"
        commit(again, 9, 1)
        again.kill()
        last = Broker(broker.settings.data)
        assert committed(last, 1) == (9, 3, "m")
        commit(last, 10, 1)
        last.kill()
        path.write_bytes(path.read_bytes()[:-1] + b"\xc1")  # damages the last record
        damaged = Broker(broker.settings.data)
        assert committed(damaged) == (99, 3, "m") and committed(damaged, 1) == (9, 3, "m")
        damaged.kill()

    run(scenario)


def test_a_file_of_offsets_is_rewritten_when_it_has_grown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered_module, "REWRITE_MIN", 1000)

    async def scenario(broker: Broker) -> None:
        for offset in range(200):
            commit(broker, offset)
        (path,) = (broker.settings.data / "groups").iterdir()
        assert path.stat().st_size < 1200
        assert committed(Broker(broker.settings.data)) == (199, 3, "m")

    run(scenario)


def test_a_write_that_fails_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        commit(broker, 1)
        (path,) = (broker.settings.data / "groups").iterdir()
        before = path.read_bytes()
        with monkeypatch.context() as patched:
            write = os.write
            patched.setattr("os.write", lambda file, data: write(file, data[:5]))
            assert commit(broker, 2) is ErrorCode.coordinator_not_available
        assert path.read_bytes() == before and committed(broker) == (1, 3, "m")
        assert commit(broker, 3) is NONE
        assert committed(Broker(broker.settings.data)) == (3, 3, "m")

    run(scenario)


def test_a_topic_that_is_created_again_has_no_offsets(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        commit(broker, 5)
        broker.create("orders", uuid4())
        assert committed(broker) is None and commit(broker, 1, 2) is NONE
        assert [index for _, index, _ in broker.coordinator.all_committed("workers")] == [2]
        again = Broker(broker.settings.data, uuid4())
        assert not again.coordinator.groups, "the topic of this name has another id now"
        assert not list((broker.settings.data / "groups").iterdir())

    run(scenario)


def test_a_group_without_members_is_forgotten_with_the_last_topic_of_its_offsets(
    manual: Manual, tmp_path: Path
) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (broker,):

            def delete(name: str) -> None:
                broker.catalog.delete(lambda topic: topic.name == name)
                broker.say_catalog_changed()

            broker.catalog.create({"first": (1, 1, {}), "second": (1, 1, {})})
            broker.say_catalog_changed()
            first, second = (Place(broker.catalog.by_name[name].id, 0) for name in ("first", "second"))
            coordinator = broker.coordinator
            assert coordinator.commit("g", {first: Committed(1), second: Committed(2)}) is NONE
            delete("first")
            assert list(coordinator.groups) == ["g"] and coordinator.committed("g", second) == Committed(2)
            assert list(coordinator.groups["g"].remembered.offsets) == [second]
            delete("second")
            assert not coordinator.groups and not list((tmp_path / "groups").iterdir())
            assert coordinator.commit("g", {second: Committed(3)}) is NONE, "a request may be older than the deletion"
            assert not coordinator.groups

    manual.run(main())


def test_a_group_is_forgotten_when_its_last_member_leaves_after_its_topics_were_deleted(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        assert a.commit(1) is NONE
        topic = broker.topics.pop("orders")
        broker.coordinator.topics_deleted({topic.id})
        assert broker.group().state is State.STABLE
        a.leave()
        await asyncio.sleep(0.1)
        assert not broker.coordinator.groups

    run(scenario)


# a broker that is started again ---------------------------------------------------------------------------------------


def test_a_stable_group_goes_on_with_a_broker_that_is_started_again(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b, c = Consumer(broker, "a", "one"), Consumer(broker, "b"), Consumer(broker, "c")
        await settle(broker, a, b, c)
        a.commit(11)
        described = broker.coordinator.describe("workers")
        broker.kill()
        again = Broker(broker.settings.data)
        assert again.coordinator.describe("workers") == described
        a.broker = b.broker = c.broker = again
        assert [one.heartbeat() for one in (a, b)] == [NONE, NONE] and committed(again) == (11, 3, "m")
        assert (await c.sync()).assignment == b"c"
        await beat_for(8, a, b)
        assert again.group().state is State.STABLE
        await beat_for(4, a, b)
        assert len(again.group().members) == 2, "c has been silent since its sync"
        await settle(again, a, b)
        again.kill()

    run(scenario)


def test_an_emptied_group_is_empty_after_a_restart_and_its_generations_go_on(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        a.commit(1)
        a.leave()
        await asyncio.sleep(0.1)
        generation = broker.group().generation
        broker.kill()
        again = Broker(broker.settings.data)
        assert again.group().state is State.EMPTY and committed(again) == (1, 3, "m")
        (a,) = await stable(again, "a")
        assert a.generation == generation + 1
        again.kill()

    run(scenario)


def test_a_group_belongs_to_one_broker(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, workers=2, ports=(1, 2))
        own = next(name for name in "abcdef" if not broker.coordinator.refusal(name))
        other = next(name for name in "abcdef" if broker.coordinator.refusal(name))
        for name in (own, other):
            place = Place(broker.topics["orders"].id, 0)
            remembered_module.Remembered(tmp_path / "groups", name).commit({place: Committed(1)})
        again = Broker(tmp_path, workers=2, ports=(1, 2))
        assert list(again.coordinator.groups) == [own]
        who = Identity(other, "m")
        error = ErrorCode.not_coordinator
        assert again.coordinator.heartbeat(who) is again.coordinator.leave(who) is error
        assert again.coordinator.may_commit(who) is (await again.coordinator.sync(SyncRequest(who, {}))).error is error
        consumer = Consumer(again, "a")
        consumer.more["group"] = other
        assert (await consumer.join()).error is error
        broker.kill()
        again.kill()

    manual.run(main())
