"""Groups on a manual clock: a coordinator and its operations, without sockets and without processes."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

import timerd as td
from support.kafka.groupworld import (
    NONE,
    REBALANCE,
    SESSION,
    Broker,
    Consumer,
    Run,
    all_join,
    all_sync,
    beat_for,
    settle,
    stable,
)
from timerd.testing import Manual
from timerd_kafka.groups import coordinator as coordinator_module
from timerd_kafka.groups.group import State
from timerd_kafka.groups.messages import GroupProtocol, Identity, SyncRequest
from timerd_kafka.groups.sessions import key_name

REBALANCING = ErrorCode.rebalance_in_progress

# joining and syncing --------------------------------------------------------------------------------------------------


def test_three_members_join_and_get_what_the_leader_assigns(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        first = Consumer(broker, "a")
        assert (await first.join()).members[0].id == first.member
        b, c = Consumer(broker, "b"), Consumer(broker, "c")
        joins = [asyncio.create_task(one.join()) for one in (b, c)]
        await asyncio.sleep(1)
        assert broker.group().state is State.PREPARING and first.heartbeat() is ErrorCode.rebalance_in_progress
        answers = [await first.join(), *await asyncio.gather(*joins)]
        assert {answer.generation for answer in answers} == {2} and {answer.protocol for answer in answers} == {"range"}
        assert {answer.leader for answer in answers} == {first.member}
        assert [len(answer.members) for answer in answers] == [3, 0, 0] and answers[0].members[1].metadata == b"topics"
        followers = [asyncio.create_task(one.sync()) for one in (b, c)]
        await asyncio.sleep(1)
        assert broker.group().state is State.COMPLETING and not any(task.done() for task in followers)
        assert first.commit(1) is ErrorCode.rebalance_in_progress and b.heartbeat() is NONE
        mine = await first.sync({first.member: b"A", b.member: b"B"})
        assert [mine.assignment, *[(await task).assignment for task in followers]] == [b"A", b"B", b""]
        await asyncio.sleep(0.1)
        assert broker.group().state is State.STABLE and broker.waits.pending == 0, "the DelayedSync has ended, too"
        assert [one.heartbeat() for one in (first, b, c)] == [NONE] * 3
        assert (await b.sync()).assignment == b"B", "b asks again, as after a lost answer"

    run(scenario)


def test_a_client_without_an_id_is_given_one_and_its_join_is_waited_for(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        b = Consumer(broker, "b", needs_known_id=True)
        assert (await b.join()).error is ErrorCode.member_id_required and b.member.startswith("b-")
        assert b.heartbeat() is ErrorCode.unknown_member_id, "b has an id, but has not joined"
        joining = asyncio.create_task(a.join())
        await asyncio.sleep(5)
        assert not joining.done(), "b has an id, so the rebalance waits for b"
        await asyncio.sleep(6)
        assert joining.done() and (await joining).generation == 2, "b's session is over"
        assert (await b.join()).error is ErrorCode.unknown_member_id
        assert not broker.group().pending

    run(scenario)


def test_the_first_join_of_an_empty_group_does_not_wait_for_ids_that_never_joined(run: Run) -> None:
    """Before, a client that had got an id, and asked for another, waited until the first id's session ended: 45 s."""

    async def scenario(broker: Broker) -> None:
        lost, used = Consumer(broker, "a", needs_known_id=True), Consumer(broker, "a", needs_known_id=True)
        assert (await lost.join()).error is (await used.join()).error is ErrorCode.member_id_required
        assert used.member != lost.member
        async with asyncio.timeout(1):
            assert (await used.join()).generation == 1
        await used.sync({used.member: b"all"})
        late = asyncio.create_task(lost.join())
        await asyncio.sleep(1)
        answers = [await used.join(), await late]
        assert [answer.generation for answer in answers] == [2, 2], "the other id is good for its session"

    run(scenario)


def test_the_first_rebalance_of_a_group_waits_for_those_that_start_together(manual: Manual, tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker(tmp_path, initial_rebalance_delay=3.0)
        start = asyncio.get_running_loop().time()
        joins = []
        for name in "abc":
            joins.append(asyncio.create_task(Consumer(broker, name).join()))
            await asyncio.sleep(1)
        answers = await asyncio.gather(*joins)
        assert {answer.generation for answer in answers} == {1}
        assert 5.9 < asyncio.get_running_loop().time() - start < 6.5
        broker.kill()

    manual.run(main())


def test_members_vote_for_a_protocol_that_all_support(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        def of(*names: str) -> tuple[GroupProtocol, ...]:
            return tuple(GroupProtocol(name, name.encode()) for name in names)

        members = [
            Consumer(broker, "a", protocols=of("sticky", "range", "robin")),
            Consumer(broker, "b", protocols=of("robin", "range")),
            Consumer(broker, "c", protocols=of("robin", "range", "sticky")),
        ]
        await all_join(*members)
        answers = await all_join(*members)
        assert {answer.protocol for answer in answers} == {"robin"}
        assert {one.metadata for answer in answers for one in answer.members} == {b"robin"}
        other = Consumer(broker, "d", protocols=of("sticky"))
        assert (await other.join()).error is ErrorCode.inconsistent_group_protocol
        other.protocols, other.more["protocol_type"] = of("robin"), "connect"
        assert (await other.join()).error is ErrorCode.inconsistent_group_protocol

    run(scenario)


def test_a_member_that_joins_again_unchanged_goes_on_and_the_leader_begins_a_rebalance(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        generation = broker.group().generation
        leader, follower = (a, b) if broker.group().leader == a.member else (b, a)
        assert (await follower.join()).generation == generation and broker.group().state is State.STABLE
        follower.protocols = (GroupProtocol("range", b"more topics"),)
        joining = asyncio.create_task(follower.join())
        await asyncio.sleep(1)
        assert broker.group().state is State.PREPARING and leader.heartbeat() is ErrorCode.rebalance_in_progress
        assert (await leader.join()).generation == (await joining).generation == generation + 1
        again = await leader.join()
        assert again.generation == generation + 1 and len(again.members) == 2, (
            "the leader asks again, as after a lost answer"
        )
        await all_sync(a, b)
        joining = asyncio.create_task(leader.join())
        await asyncio.sleep(1)
        assert broker.group().state is State.PREPARING
        assert (await follower.join()).generation == (await joining).generation == generation + 2

    run(scenario)


def test_a_rebalance_during_a_sync_sends_those_that_wait_back_to_join(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a"), Consumer(broker, "b")
        await all_join(a, b)
        await all_join(a, b)
        follower = b if broker.group().leader == a.member else a
        waiting = asyncio.create_task(follower.sync())
        await asyncio.sleep(1)
        joining = asyncio.create_task(Consumer(broker, "c").join())
        assert (await waiting).error is ErrorCode.rebalance_in_progress
        assert (await a.sync()).error is ErrorCode.rebalance_in_progress
        answers = await all_join(a, b)
        assert {answer.generation for answer in [*answers, await joining]} == {a.generation}

    run(scenario)


# members that are lost ------------------------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b, c = await stable(broker, "a", "b", "c")
        await beat_for(8, a, b)
        assert len(broker.group().members) == 3 and a.heartbeat() is NONE
        await beat_for(4, a, b)
        assert len(broker.group().members) == 2 and a.heartbeat() is ErrorCode.rebalance_in_progress
        await settle(broker, a, b)
        assert c.heartbeat() is ErrorCode.unknown_member_id and c.commit(1) is ErrorCode.unknown_member_id
        assert (await c.join()).error is ErrorCode.unknown_member_id
        assert (await c.sync()).error is ErrorCode.unknown_member_id

    run(scenario)


def test_a_slow_member_is_removed_at_the_rebalance_timeout(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        joining = asyncio.create_task(Consumer(broker, "c").join())
        again = asyncio.create_task(a.join())
        await beat_for(REBALANCE - 4, b)
        assert not again.done() and b.heartbeat() is ErrorCode.rebalance_in_progress
        assert b.commit(5) is NONE, "b's commit is still taken"
        await beat_for(6, b)
        assert (await again).generation == (await joining).generation and len(broker.group().members) == 2
        assert b.heartbeat() is ErrorCode.unknown_member_id
        assert {a.member} < set(broker.group().members), "a has waited for a minute without a heartbeat, and stays"

    run(scenario)


def test_a_member_that_does_not_sync_is_removed_at_the_rebalance_timeout(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a", rebalance=20.0), Consumer(broker, "b", rebalance=20.0)
        await all_join(a, b)
        await all_join(a, b)
        leader, follower = (a, b) if broker.group().leader == a.member else (b, a)
        await leader.sync()
        await beat_for(18, leader, follower)
        assert broker.group().state is State.STABLE
        await beat_for(4, leader, follower)
        assert list(broker.group().members) == [leader.member] and broker.group().state is State.PREPARING
        assert follower.heartbeat() is ErrorCode.unknown_member_id

    run(scenario)


def test_a_leader_that_does_not_sync_lets_nobody_wait_for_ever(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a"), Consumer(broker, "b")
        await all_join(a, b)
        await all_join(a, b)
        leader, follower = (a, b) if broker.group().leader == a.member else (b, a)
        assert (await follower.sync()).error is ErrorCode.rebalance_in_progress
        assert leader.heartbeat() is ErrorCode.unknown_member_id, "its session is over"
        assert (await follower.join()).leader == follower.member
        assert (await follower.sync({follower.member: b"all"})).assignment == b"all"

    run(scenario)


def test_a_member_whose_connection_ends_in_its_join_stays_until_its_session_ends(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        lost = Consumer(broker, "lost")
        joining = asyncio.create_task(lost.join())
        await asyncio.sleep(1)
        joining.cancel()
        assert len((await a.join()).members) == 2, "the lost consumer is still a member, as in Kafka"
        await a.sync()
        await beat_for(12, a)
        assert len(broker.group().members) == 1 and (await a.join()).generation == 3

    run(scenario)


def test_members_leave_and_the_last_one_leaves_nothing(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        assert b.leave() is NONE and b.leave() is ErrorCode.unknown_member_id
        assert broker.group().state is State.PREPARING
        await settle(broker, a)
        assert list((broker.settings.data / "groups").iterdir())
        assert a.leave() is NONE
        await asyncio.sleep(0.1)
        assert not broker.coordinator.groups and broker.coordinator.describe("workers") is None
        assert not list((broker.settings.data / "groups").iterdir())
        assert a.heartbeat() is ErrorCode.unknown_member_id and a.leave() is ErrorCode.unknown_member_id
        pending = Consumer(broker, "p", needs_known_id=True)
        await pending.join()
        assert pending.leave() is NONE and not broker.coordinator.groups
        again = await stable(broker, "a")
        again[0].commit(9)
        again[0].leave()
        await asyncio.sleep(0.1)
        assert broker.group().state is State.EMPTY, "its offsets are kept"

    run(scenario)


def test_clients_that_never_join_take_no_room_from_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "PENDING_MAX", 2)

    async def scenario(broker: Broker) -> None:
        async def ask(consumer: Consumer) -> ErrorCode:
            return (await consumer.join()).error

        first, second, third = (Consumer(broker, name, needs_known_id=True) for name in "abc")
        assert await ask(first) is await ask(second) is ErrorCode.member_id_required
        assert await ask(third) is ErrorCode.coordinator_load_in_progress, "an error after which the client tries again"
        assert first.leave() is NONE and await ask(third) is ErrorCode.member_id_required
        await asyncio.sleep(SESSION + 1)
        assert not broker.coordinator.groups, "their sessions are over"
        one, two = (Consumer(broker, name, needs_known_id=True) for name in "de")
        assert await ask(one) is await ask(two) is ErrorCode.member_id_required
        await settle(broker, one, two)
        assert await ask(Consumer(broker, "f", needs_known_id=True)) is ErrorCode.member_id_required, (
            "d and e have joined"
        )

    run(scenario)


# static members -------------------------------------------------------------------------------------------------------


def test_a_static_member_that_is_started_again_goes_on_without_a_rebalance(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a", "one"), Consumer(broker, "b", "two")
        await settle(broker, a, b)
        generation = broker.group().generation
        again = Consumer(broker, "a", "one")
        leads = broker.group().leader == a.member
        answer = await again.join()
        assert answer.error is NONE and answer.generation == generation and again.member != a.member
        assert answer.skip_assignment is leads and len(answer.members) == (2 if leads else 0)
        assert (await again.sync()).assignment == b"a" and broker.group().state is State.STABLE
        assert again.heartbeat() is NONE and b.heartbeat() is NONE
        fenced = ErrorCode.fenced_instance_id
        assert a.heartbeat() is fenced and (await a.join()).error is fenced and (await a.sync()).error is fenced
        assert a.commit(1) is fenced and a.leave() is fenced
        a.instance = "three"
        assert a.heartbeat() is ErrorCode.unknown_member_id
        older = Consumer(broker, "a", "one", may_skip_assignment=False)
        assert (answer := await older.join()).leader == (again.member if leads else b.member)
        assert answer.members == () and answer.leader != older.member and not answer.skip_assignment
        await beat_for(12, older, b)
        assert len(broker.group().members) == 2 and broker.group().generation == generation

    run(scenario)


def test_a_static_member_that_comes_back_with_other_topics_causes_one_rebalance(run: Run) -> None:
    """Before, no rebalance followed, so the leader did not assign the new topics (KAFKA-12759).

    The user data in its metadata change with each start: if only they change, there is no rebalance.
    """

    def wants(*topics: str, user_data: bytes) -> tuple[GroupProtocol, ...]:
        names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
        head, tail = struct.pack(">hi", 1, len(topics)), struct.pack(">i", len(user_data)) + user_data
        return (GroupProtocol("range", head + names + tail + struct.pack(">i", 0)),)

    async def scenario(broker: Broker) -> None:
        a = Consumer(broker, "a", "one", protocols=wants("t", "u", user_data=b"1"))
        b = Consumer(broker, "b", "two", protocols=wants("t", "u", user_data=b"1"))
        await settle(broker, a, b)
        generation = broker.group().generation
        again = Consumer(broker, "a", "one", protocols=wants("u", "t", user_data=b"2"))
        assert (await again.join()).generation == generation, "the same topics in another order"
        other = Consumer(broker, "a", "one", protocols=wants("t", "new", user_data=b"2"))
        joining = asyncio.create_task(other.join())
        await asyncio.sleep(1)
        assert b.heartbeat() is REBALANCING and not joining.done()
        answers = [await b.join(), await joining]
        assert [answer.generation for answer in answers] == [generation + 1] * 2
        leader = next(answer for answer in answers if answer.members)
        assert any(b"new" in member.metadata for member in leader.members)

    run(scenario)


def test_a_static_member_is_gone_only_after_its_session_or_by_an_administrator(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a", "one", rebalance=5.0), Consumer(broker, "b", rebalance=5.0)
        await settle(broker, a, b)
        if broker.group().leader != b.member:
            b.protocols = (GroupProtocol("range", b"other"),)
        answer = await b.join()
        assert len(broker.group().members) == 2, "a static member that has not joined in time stays"
        assert answer.leader == b.member and {one.instance for one in answer.members} == {"one", None}
        assert broker.coordinator.leave(Identity("workers", "", "nobody")) is ErrorCode.unknown_member_id
        assert broker.coordinator.leave(Identity("workers", "", "one")) is NONE
        assert len(broker.group().members) == 1 and broker.group().state is State.PREPARING
        assert (await b.join()).error is NONE

    run(scenario)


def test_absent_static_members_do_not_keep_the_broker_busy(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = Consumer(broker, "a", "one", rebalance=0.0), Consumer(broker, "b", "two", rebalance=0.0)
        await settle(broker, a, b)
        b.leave()
        await asyncio.sleep(5)
        assert broker.group().state is State.PREPARING and broker.waits.pending == 1
        await asyncio.sleep(6)
        assert not broker.coordinator.groups

    run(scenario)


# the timer daemon is lost ---------------------------------------------------------------------------------------------


def test_a_join_that_the_daemon_loses_is_tried_again(run: Run, manual: Manual) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        c = Consumer(broker, "c")
        joins = [asyncio.create_task(one.join()) for one in (c, a)]
        await asyncio.sleep(1)
        manual.stop()
        start = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*joins)
        assert {answer.error for answer in answers} == {ErrorCode.coordinator_load_in_progress}
        assert asyncio.get_running_loop().time() - start < REBALANCE + 2
        assert broker.group().state is State.PREPARING and broker.group().join is None
        assert len(broker.group().members) == 3, "each still has its session"
        c.member = answers[0].member
        manual.start()
        assert {answer.error for answer in await all_join(a, b, c)} == {NONE}
        assert [answer.assignment for answer in await all_sync(a, b, c)] == [b"a", b"b", b"c"]
        assert broker.group().state is State.STABLE

    run(scenario)


def test_operations_that_cannot_begin_end_requests_with_errors_that_clients_try_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise td.TimerdError("no")

        a, b = Consumer(broker, "a"), Consumer(broker, "b")
        with monkeypatch.context() as patched:
            patched.setattr("timerd_client.operations.join.DelayedJoin.watch", refuse)
            answers = await all_join(a, b)
            assert {answer.error for answer in answers} == {ErrorCode.coordinator_load_in_progress}
            a.member, b.member = (answer.member for answer in answers)
            assert broker.group().state is State.PREPARING and broker.group().join is None
            assert (await a.join()).error is ErrorCode.coordinator_load_in_progress
        assert {answer.error for answer in await all_join(a, b)} == {NONE}
        await all_sync(a, b)
        with monkeypatch.context() as patched:
            patched.setattr("timerd_client.operations.sync.DelayedSync.watch", refuse)
            leader = a if broker.group().leader == a.member else b
            joining = asyncio.create_task(leader.join())
            await asyncio.sleep(0.1)
            await (b if leader is a else a).join()
            await joining
            await asyncio.sleep(0.1)
            assert broker.group().state is State.PREPARING, "without a DelayedSync nothing would end a sync"
            assert (await a.sync()).error is ErrorCode.rebalance_in_progress
        await settle(broker, a, b)

    run(scenario)


def test_a_heartbeat_whose_session_the_daemon_does_not_take_is_answered(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")

        def refuse(*_: object, **__: object) -> None:
            raise td.TimerdError("no")

        with monkeypatch.context() as patched:
            patched.setattr("timerd_client.operations.heartbeat.DelayedHeartbeat._arm", refuse)
            assert a.heartbeat() is b.heartbeat() is NONE
            await asyncio.sleep(20)
            assert a.heartbeat() is b.heartbeat() is NONE and len(broker.group().members) == 2
        await beat_for(14, a)
        assert list(broker.group().members) == [a.member], "b's session was registered again, although b is silent"

    run(scenario)


def test_a_session_without_room_in_the_daemon_is_no_fault_of_the_member(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        (a,) = await stable(broker, "a")
        member = broker.group().members[a.member]
        session = member.session
        assert session is not None and session.beats is not None
        waits = session.beats._waits
        assert waits is not None
        waits._delayed._settle(td.State.FAILED, td.ArenaFullError("no room"))
        await asyncio.sleep(0.01)
        assert member.session is None and a.heartbeat() is NONE and member.session is not None
        await asyncio.sleep(12)
        assert not broker.coordinator.groups

    run(scenario)


def test_a_new_member_that_tries_its_join_again_is_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise td.TimerdError("no")

        (late,) = await stable(broker, "c")
        a, b = Consumer(broker, "a"), Consumer(broker, "b")
        with monkeypatch.context() as patched:
            patched.setattr("timerd_client.operations.join.DelayedJoin.watch", refuse)
            a.member, b.member = (answer.member for answer in await all_join(a, b))
        joins = [asyncio.create_task(a.join())]
        await beat_for(SESSION / 2, late)
        joins.append(asyncio.create_task(b.join()))
        await beat_for(SESSION, late)
        assert not any(task.done() for task in joins), "they wait for c, for longer than their session timeout"
        answers = [await late.join(), *await asyncio.gather(*joins)]
        assert {answer.error for answer in answers} == {NONE} and len(broker.group().members) == 3

    run(scenario)


def test_an_outage_of_the_daemon_removes_no_member(run: Run, manual: Manual) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        manual.stop()
        await beat_for(30, a, b)
        assert a.heartbeat() is b.heartbeat() is NONE
        manual.start()
        await beat_for(20, a, b)
        assert broker.group().state is State.STABLE
        await beat_for(12, a)
        assert list(broker.group().members) == [a.member]

    run(scenario)


# bounds ---------------------------------------------------------------------------------------------------------------


def test_requests_out_of_bounds_are_refused_and_leave_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        async def error(**more: Any) -> ErrorCode:
            return (await Consumer(broker, "a", more.pop("instance", None), **more).join()).error

        assert await error(session=0.05) is await error(session=5000.0) is ErrorCode.invalid_session_timeout
        assert await error(group="") is await error(group="é" * 600) is ErrorCode.invalid_group_id
        assert await error(protocols=()) is await error(protocol_type="") is ErrorCode.inconsistent_group_protocol
        assert await error(member="x") is ErrorCode.unknown_member_id
        assert await error(instance="i" * 250) is ErrorCode.invalid_request
        assert await error(protocols=(GroupProtocol("range", bytes(2 << 20)),)) is ErrorCode.invalid_request
        assert not broker.coordinator.groups
        monkeypatch.setattr(coordinator_module, "MEMBERS_MAX", 2)
        (a,) = await stable(broker, "a")
        assert await error(needs_known_id=True) is ErrorCode.member_id_required
        assert await error(needs_known_id=True) is await error() is ErrorCode.group_max_size_reached
        assert a.heartbeat() is NONE
        monkeypatch.setattr(coordinator_module, "GROUPS_MAX", 1)
        assert await error(group="other") is ErrorCode.group_max_size_reached
        monkeypatch.setattr(coordinator_module, "ASSIGNMENTS_MAX", 9)
        assert (await a.sync({"a": bytes(10)})).error is ErrorCode.invalid_request
        monkeypatch.undo()
        monkeypatch.setattr(coordinator_module, "HELD_MAX", 40)
        large = (GroupProtocol("range", bytes(40)),)
        assert await error(protocols=large) is ErrorCode.group_max_size_reached
        assert a.heartbeat() is NONE and (await a.join()).error is NONE, "a join that states nothing new takes no room"
        assert (await a.sync({a.member: bytes(40)})).error is ErrorCode.invalid_request
        assert (await a.sync({a.member: bytes(9)})).error is NONE

    run(scenario)


def test_long_names_of_clients_fit_into_keys(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        group = "g" * 1000
        a = Consumer(broker, "é" * 20_000)
        a.more["group"] = group
        assert (await a.join()).error is NONE and len(a.member) < 140
        who = Identity(group, a.member, None, 1)
        assert (await broker.coordinator.sync(SyncRequest(who, {a.member: b"x"}))).assignment == b"x"
        await asyncio.sleep(11)
        assert not broker.coordinator.groups, "its session has ended"

    assert key_name("g" * 1000) != key_name("g" * 999) and key_name("short") == "short"
    run(scenario)


def test_a_group_of_a_hundred_members(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        members = [Consumer(broker, f"m{n}") for n in range(100)]
        await settle(broker, *members)
        assert broker.group().generation <= 3 and [one.heartbeat() for one in members] == [NONE] * 100

    run(scenario)
