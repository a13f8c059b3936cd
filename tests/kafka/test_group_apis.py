"""The APIs of groups in every version, through the bytes of requests and answers."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from importlib import import_module
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.groupworld import (
    NONE,
    ORDERS,
    Broker,
    Run,
    commit,
    committed,
    stable,
)
from timerd_kafka.broker.broker import Call
from timerd_kafka.wire.codec import Question, api_of, versions_of

# the APIs: every version ----------------------------------------------------------------------------------------------


class Connection:
    peer = "127.0.0.1:54321"
    behind: object = None

    def peek(self) -> None:
        """No frame is behind the request."""

    def hold_answer(self, size: int) -> None:
        """The bytes of an answer have no bound here."""


async def ask(broker: Broker, name: str, version: int, /, **fields: Any) -> Any:
    """Ask an API as a client does, by bytes of request and answer. Fields that the version lacks are left out."""
    question, api = Question(KEYS[name], version), api_of(KEYS[name], version)
    names = {one.name for one in dataclasses.fields(question.request)}
    frame = question.write(5, "tester", question.request(**{k: v for k, v in fields.items() if k in names}))
    request = api.read(frame[4:])
    module = import_module(f"timerd_kafka.apis.groups.{name}")
    answer = await module.answer(broker, Call(api, request.body, request.client_id, cast(Any, Connection())))
    return question.read(api.write(5, answer)[4:])


def part(api: str, version: int, kind: str, /, **fields: Any) -> Any:
    """A part of a request. Fields that the version lacks are left out."""
    made = getattr(Question(KEYS[api], version).module, kind)
    names = {one.name for one in dataclasses.fields(made)}
    return made(**{k: v for k, v in fields.items() if k in names})


KEYS = {
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "delete_groups": 42,
    "consumer_group_heartbeat": 68,
}


async def join_as(broker: Broker, version: int, group: str = "workers", **fields: Any) -> Any:
    protocols = (part("join_group", version, "JoinGroupRequestProtocol", name="range", metadata=b"topics"),)
    given = {"member_id": "", "group_instance_id": None, "reason": None, "protocol_type": "consumer", **fields}
    session, rebalance = timedelta(seconds=10), timedelta(seconds=60)
    times = {"session_timeout": session, "rebalance_timeout": rebalance}
    return await ask(broker, "join_group", version, group_id=group, protocols=protocols, **times, **given)


@pytest.mark.parametrize("version", versions_of("join_group"))
def test_join_group_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        answer = await join_as(broker, version)
        if version >= 4:
            assert answer.error_code is ErrorCode.member_id_required and not answer.members
            answer = await join_as(broker, version, member_id=answer.member_id)
        assert answer.error_code is NONE and answer.generation_id == 1 and answer.protocol_name == "range"
        assert answer.leader == answer.member_id == answer.members[0].member_id
        assert answer.members[0].metadata == b"topics" and answer.member_id.startswith("tester-")
        member = broker.group().members[answer.member_id]
        assert (member.session_timeout, member.rebalance_timeout) == (10, 60 if version else 10)
        assert member.client_host == "/127.0.0.1"
        refused = await join_as(broker, version, group="")
        assert refused.error_code is ErrorCode.invalid_group_id and not refused.protocol_name

    run(scenario)


@pytest.mark.parametrize("version", versions_of("sync_group"))
def test_sync_group_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        joined = await join_as(broker, 3)
        assigned = part(
            "sync_group", version, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"x"
        )
        given = {"group_id": "workers", "member_id": joined.member_id, "assignments": (assigned,), "generation_id": 1}
        kind = {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
        assert (await ask(broker, "sync_group", version, **{**given, **kind})).assignment == b"x"
        wrong = await ask(broker, "sync_group", version, **{**given, **kind, "generation_id": 2})
        assert wrong.error_code is ErrorCode.illegal_generation
        if version >= 5:
            wrong = await ask(broker, "sync_group", version, **given)
            assert wrong.error_code is ErrorCode.inconsistent_group_protocol
            wrong = await ask(broker, "sync_group", version, **{**given, **kind, "protocol_name": "robin"})
            assert wrong.error_code is ErrorCode.inconsistent_group_protocol

    run(scenario)


@pytest.mark.parametrize("version", versions_of("heartbeat"))
def test_heartbeat_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        joined = await join_as(broker, 3)
        given = {"group_id": "workers", "generation_id": 1, "group_instance_id": None}
        assert (await ask(broker, "heartbeat", version, member_id=joined.member_id, **given)).error_code is NONE
        wrong = await ask(broker, "heartbeat", version, member_id="x", **given)
        assert wrong.error_code is ErrorCode.unknown_member_id

    run(scenario)


@pytest.mark.parametrize("version", versions_of("consumer_group_heartbeat"))
def test_a_client_that_asks_for_a_group_of_kip_848_is_refused_and_named_in_the_log_once(
    run: Run, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    async def scenario(broker: Broker) -> None:
        nothing = {"instance_id": None, "rack_id": None, "server_assignor": None, "topic_partitions": None}
        wanted = {"subscribed_topic_names": ("orders",), "subscribed_topic_regex": None}
        who = {"member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=60)}
        for group in ("workers", "workers", "others"):
            answer = await ask(broker, "consumer_group_heartbeat", version, group_id=group, **who, **nothing, **wanted)
            assert answer.error_code is ErrorCode.unsupported_version
            assert "group.protocol=classic" in answer.error_message and answer.assignment is None
        assert not broker.coordinator.groups

    run(scenario)
    lines = [one.getMessage() for one in caplog.records if "KIP-848" in one.getMessage()]
    assert lines == [
        f"client 'tester' asks for group {group!r} by the protocol of KIP-848, and is refused: give it "
        "group.protocol=classic"
        for group in ("workers", "others")
    ]


@pytest.mark.parametrize("version", versions_of("leave_group"))
def test_leave_group_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        joined = await join_as(broker, 3)
        members = tuple(
            part("leave_group", version, "MemberIdentity", member_id=one, group_instance_id=None, reason="")
            for one in (joined.member_id, "x")
            if version >= 3
        )
        given = {"group_id": "workers", "member_id": joined.member_id, "members": members}
        answer = await ask(broker, "leave_group", version, **given)
        assert answer.error_code is NONE
        if version >= 3:
            assert [one.error_code for one in answer.members] == [NONE, ErrorCode.unknown_member_id]
        await asyncio.sleep(0.1)
        answer = await ask(broker, "leave_group", version, **given)
        assert answer.error_code is (NONE if version >= 3 else ErrorCode.unknown_member_id)
        assert (await ask(broker, "leave_group", version, **{**given, "group_id": ""})).error_code is not NONE

    run(scenario)


@pytest.mark.parametrize("version", versions_of("offset_commit"))
def test_offset_commit_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        def topic(name: str, topic_id: UUID, *indexes: int, metadata: str | None = None) -> Any:
            partitions = tuple(
                part(
                    "offset_commit",
                    version,
                    "OffsetCommitRequestPartition",
                    partition_index=index,
                    committed_offset=40 + index,
                    committed_leader_epoch=2,
                    committed_metadata=metadata,
                )
                for index in indexes
            )
            kind = "OffsetCommitRequestTopic"
            return part("offset_commit", version, kind, name=name, topic_id=topic_id, partitions=partitions)

        other = uuid4()
        topics = (
            topic("orders", ORDERS, 0, 1, 9),
            topic("nothing", other, 0),
            topic("orders", ORDERS, 2, metadata="é" * 2049),
        )
        given = {"group_id": "workers", "member_id": "", "group_instance_id": None, "topics": topics}
        answer = await ask(broker, "offset_commit", version, generation_id_or_member_epoch=-1, **given)
        unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
        assert [[one.error_code for one in topic.partitions] for topic in answer.topics] == [
            [NONE, NONE, ErrorCode.unknown_topic_or_partition],
            [unknown],
            [ErrorCode.offset_metadata_too_large],
        ]
        if version >= 10:
            assert [topic.topic_id for topic in answer.topics] == [ORDERS, other, ORDERS]
        else:
            assert [topic.name for topic in answer.topics] == ["orders", "nothing", "orders"]
        assert committed(broker, 1) == (41, 2 if version >= 6 else -1, "") and committed(broker, 2) is None
        answer = await ask(broker, "offset_commit", version, generation_id_or_member_epoch=7, **given)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_member_id

    run(scenario)


@pytest.mark.parametrize("version", versions_of("offset_fetch"))
def test_offset_fetch_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        commit(broker, 41, 1)
        several, by_id = version >= 8, version >= 10
        kind = "OffsetFetchRequestTopics" if several else "OffsetFetchRequestTopic"

        def topic(name: str, topic_id: UUID) -> Any:
            return part("offset_fetch", version, kind, name=name, topic_id=topic_id, partition_indexes=(0, 1))

        async def fetch(topics: tuple[Any, ...] | None, group: str = "workers") -> Any:
            if not several:
                whole = {"group_id": group, "topics": topics, "require_stable": True}
                return await ask(broker, "offset_fetch", version, **whole)
            given: dict[str, Any] = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
            groups = (part("offset_fetch", version, "OffsetFetchRequestGroup", **given),) * 2
            answer = await ask(broker, "offset_fetch", version, groups=groups, require_stable=False)
            assert answer.groups[0] == answer.groups[1] and answer.groups[0].group_id == group
            return answer.groups[0]

        answer = await fetch((topic("orders", ORDERS), topic("nothing", uuid4())))
        found = [[(one.committed_offset, one.metadata, one.error_code) for one in t.partitions] for t in answer.topics]
        missing = (-1, "", ErrorCode.unknown_topic_id if by_id else NONE)
        assert found == [[(-1, "", NONE), (41, "m", NONE)], [missing, missing]]
        assert answer.topics[0].topic_id == ORDERS if by_id else answer.topics[0].name == "orders"
        if version >= 5:
            assert [one.committed_leader_epoch for one in answer.topics[0].partitions] == [-1, 3]
        if version >= 2:
            (everything,) = (await fetch(None)).topics
            assert [(one.partition_index, one.committed_offset) for one in everything.partitions] == [(1, 41)]
            assert (await fetch(None, "other")).topics == ()
            assert (await fetch(None, "g" * 1001)).error_code is ErrorCode.invalid_group_id
        else:
            refused = await fetch((topic("orders", ORDERS),), "g" * 1001)
            assert refused.topics[0].partitions[0].error_code is ErrorCode.invalid_group_id

    run(scenario)


@pytest.mark.parametrize("version", versions_of("find_coordinator"))
def test_find_coordinator_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        async def find(kind: int) -> Any:
            answer = await ask(broker, "find_coordinator", version, key="a", key_type=kind, coordinator_keys=("a", "b"))
            if version >= 4:
                assert [one.key for one in answer.coordinators] == ["a", "b"]
            return answer if version < 4 else answer.coordinators[1]

        found = await find(0)
        assert (found.error_code, found.node_id, found.host, found.port) == (NONE, 0, "127.0.0.1", 9093)
        if version >= 1:
            found = await find(1)
            assert found.error_code is ErrorCode.transactional_id_authorization_failed
            assert found.error_message == "this broker has no transactions" and found.node_id == -1
            assert (await find(2)).error_code is ErrorCode.invalid_request

    run(scenario)


@pytest.mark.parametrize("version", versions_of("describe_groups"))
def test_describe_groups_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        groups = ("workers", "nobody", "g" * 1001)
        answer = await ask(broker, "describe_groups", version, groups=groups, include_authorized_operations=True)
        found, nobody, refused = answer.groups
        assert (found.error_code, found.group_state, found.protocol_type, found.protocol_data) == (
            NONE,
            "Stable",
            "consumer",
            "range",
        )
        (member,) = found.members
        assert (member.member_id, member.client_id, member.client_host) == (a.member, "a", "/127.0.0.1")
        assert (member.member_metadata, member.member_assignment) == (b"topics", b"a")
        assert nobody.group_state == "Dead"
        assert nobody.error_code is (ErrorCode.group_id_not_found if version >= 6 else NONE)
        assert refused.error_code is ErrorCode.invalid_group_id and refused.group_state == ""

    run(scenario)


@pytest.mark.parametrize("version", versions_of("list_groups"))
def test_list_groups_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        async def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[tuple[str, str]]:
            answer = await ask(broker, "list_groups", version, states_filter=states, types_filter=types)
            return [(one.group_id, one.protocol_type) for one in answer.groups]

        await stable(broker, "a")
        all_groups = [("workers", "consumer")]
        assert await listed() == all_groups and await listed(("stable", "Dead"), ("Classic",)) == all_groups
        assert await listed(("Empty",)) == ([] if version >= 4 else all_groups)
        assert await listed((), ("share",)) == ([] if version >= 5 else all_groups)

    run(scenario)


@pytest.mark.parametrize("version", versions_of("delete_groups"))
def test_delete_groups_in_every_version(run: Run, version: int) -> None:
    async def scenario(broker: Broker) -> None:
        commit(broker, 5)
        (member,) = await stable(broker, "a")

        async def delete(*groups: str) -> dict[str, ErrorCode]:
            answer = await ask(broker, "delete_groups", version, groups_names=groups)
            return {one.group_id: one.error_code for one in answer.results}

        assert await delete("workers", "workers", "nobody", "") == {
            "workers": ErrorCode.non_empty_group,
            "nobody": ErrorCode.group_id_not_found,
            "": ErrorCode.invalid_group_id,
        }
        assert committed(broker) == (5, 3, "m")
        member.leave()
        await asyncio.sleep(0.1)
        assert await delete("workers") == {"workers": NONE}
        assert committed(broker) is None and not broker.coordinator.groups
        assert not list((broker.settings.data / "groups").iterdir())
        commit(broker, 6)
        assert committed(Broker(broker.settings.data)) == (6, 3, "m"), "a deleted group can be used again"

    run(scenario)
