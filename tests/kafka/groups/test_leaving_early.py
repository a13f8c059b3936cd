"""A client that leaves a group while its JoinGroup or SyncGroup waits does not wait for the other members."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import confluent_kafka
import kafka
import pytest
from kio.schema.errors import ErrorCode

from support.kafka.groupworld import NONE, SESSION, Broker, Consumer, Run, beat_for, stable
from support.kafka.patience import PATIENCE_S
from support.kafka.rawkafka import RawKafka, seconds
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.wire.codec import Question

FIND_COORDINATOR, JOIN, LEAVE, SYNC = 10, 11, 13, 14
REBALANCE_S = 100.0  # longer than RawKafka waits for an answer
TRIES = 5


class Member:
    """A member of a group that sends exactly the requests that a test wants."""

    def __init__(self, raw: RawKafka, group: str) -> None:
        found = raw.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=(group,)).coordinators[0]
        self.raw, self.group = RawKafka(f"{found.host}:{found.port}"), group
        self.id, self.generation = "", -1

    def send(self, key: int, version: int, **fields: Any) -> Callable[[], Any]:
        """Send a request. Returns a function that waits for its answer."""
        question, frame = self.raw.question(key, version, group_id=self.group, **fields)
        self.raw.send(frame)
        return lambda: question.read(self.raw.frame())

    def join(self) -> Callable[[], Any]:
        """Join with the member id, after a first request that gets the id."""
        if not self.id:
            self.id = self._join()().member_id
        return self._join()

    def _join(self) -> Callable[[], Any]:
        protocol = Question(JOIN, 5).module.JoinGroupRequestProtocol(name="range", metadata=b"\0" * 10)
        return self.send(
            JOIN, 5, session_timeout=seconds(REBALANCE_S), rebalance_timeout=seconds(REBALANCE_S), member_id=self.id,
            group_instance_id=None, protocol_type="consumer", protocols=(protocol,),
        )  # fmt: skip

    def sync(self, generation: int) -> Callable[[], Any]:
        """Ask for the assignment. No work is assigned."""
        who = {"generation_id": generation, "member_id": self.id, "group_instance_id": None}
        return self.send(SYNC, 3, **who, assignments=())

    def leave(self, version: int) -> Callable[[], Any]:
        """Leave the group."""
        if version < 3:
            return self.send(LEAVE, version, member_id=self.id)
        made = Question(LEAVE, version).module.MemberIdentity(member_id=self.id, group_instance_id=None, reason=None)
        return self.send(LEAVE, version, members=(made,))


Make = Callable[[str], Member]


@pytest.fixture
def group() -> str:
    """The id of a new group."""
    return f"group-{uuid4()}"


@pytest.fixture
def member(raw: RawKafka) -> Iterator[Make]:
    """A function that makes a member of a group."""
    with contextlib.ExitStack() as made:

        def make(group: str) -> Member:
            one = Member(raw, group)
            made.enter_context(one.raw)
            return one

        yield make


@pytest.fixture
def stable_member(member: Make) -> Make:
    """A function that makes the only member of a stable group. It does not join again by itself."""

    def make(group: str) -> Member:
        one = member(group)
        joined = one.join()()
        assert joined.error_code is NONE and one.sync(joined.generation_id)().error_code is NONE
        return one

    return make


def left(answer: Any) -> ErrorCode:
    """The result of a LeaveGroup of one member."""
    return ErrorCode(answer.members[0].error_code if hasattr(answer, "members") else answer.error_code)


@pytest.mark.parametrize("version", [1, 5])
def test_a_leave_behind_a_join_that_waits_is_answered_at_once(
    cluster: KafkaCluster, member: Make, stable_member: Make, group: str, version: int
) -> None:
    stable_member(group)
    leaving = member(group)
    joined = leaving.join()
    cluster.wait_for_group(group, state="PreparingRebalance", members=2)
    leave = leaving.leave(version)
    assert joined().error_code is ErrorCode.unknown_member_id
    assert left(leave()) is NONE
    cluster.wait_for_group(group, state="PreparingRebalance", members=1)


@pytest.mark.parametrize("version", [1, 5])
def test_a_leave_behind_a_sync_that_waits_is_answered_at_once(
    cluster: KafkaCluster, member: Make, stable_member: Make, group: str, version: int
) -> None:
    leader, leaving = stable_member(group), member(group)
    joined = leaving.join()
    cluster.wait_for_group(group, state="PreparingRebalance", members=2)
    again = leader.join()()
    assert again.error_code is NONE and again.leader == leader.id
    synced = leaving.sync(joined().generation_id)  # the leader does not sync
    leave = leaving.leave(version)
    assert synced().error_code is ErrorCode.unknown_member_id
    assert left(leave()) is NONE
    cluster.wait_for_group(group, state="PreparingRebalance", members=1)


def test_a_leave_that_arrives_with_the_join_ends_it_too(
    cluster: KafkaCluster, member: Make, stable_member: Make, group: str
) -> None:
    stable_member(group)
    leaving, again = member(group), member(group)
    first = leaving.join()
    cluster.wait_for_group(group, state="PreparingRebalance", members=2)
    again.id, frames = leaving.id, list[bytes]()
    send, again.raw.send = again.raw.send, frames.append  # type: ignore[method-assign,assignment]
    joined, leave = again.join(), again.leave(5)
    send(b"".join(frames))
    assert [first().error_code, joined().error_code] == [ErrorCode.unknown_member_id] * 2
    assert left(leave()) is NONE


def test_a_leave_of_another_member_waits_for_its_turn(
    cluster: KafkaCluster, member: Make, stable_member: Make, group: str
) -> None:
    stays, waiting, other = stable_member(group), member(group), member(group)
    joined = waiting.join()
    cluster.wait_for_group(group, state="PreparingRebalance", members=2)
    question, frame = waiting.raw.question(LEAVE, 1, group_id=group, member_id=stays.id)
    waiting.raw.send(frame)
    assert left(other.leave(1)()) is ErrorCode.unknown_member_id, "so the broker has read the frame before, too"
    stays.join()
    assert joined().error_code is NONE
    assert left(question.read(waiting.raw.frame())) is NONE


def test_a_member_whose_leave_is_lost_stays_until_its_session_ends(run: Run) -> None:
    async def scenario(broker: Broker) -> None:
        a, b = await stable(broker, "a", "b")
        c = Consumer(broker, "c", needs_known_id=True)
        await c.join()
        joining = asyncio.create_task(c.join())
        await beat_for(2, a, b)
        broker.coordinator.end_waits(c.who)
        assert (await joining).error is ErrorCode.unknown_member_id
        assert c.member in broker.group().members
        await beat_for(SESSION + 2, a, b)
        assert set(broker.group().members) == {a.member, b.member}

    run(scenario)


def close_confluent(bootstrap: str, group: str, topic: str, joins: Callable[[], bool]) -> float:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    while not joins():
        consumer.poll(0.05)
    begun = time.monotonic()
    consumer.close()
    return time.monotonic() - begun


def close_kafka_python(bootstrap: str, group: str, topic: str, joins: Callable[[], bool]) -> float:
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group)
    while not joins():
        consumer.poll(50)
    begun = time.monotonic()
    consumer.close()
    return time.monotonic() - begun


@pytest.mark.parametrize(
    ("close", "gives_up"), [(close_confluent, 5.0), (close_kafka_python, 30.0)], ids=["confluent", "kafka_python"]
)
def test_a_consumer_that_still_joins_is_closed_at_once(
    cluster: KafkaCluster,
    stable_member: Make,
    close: Callable[[str, str, str, Callable[[], bool]], float],
    gives_up: float,
) -> None:
    """Before, the LeaveGroup waited for the JoinGroup before it, until the client gave up.

    On a busy machine a client may be slow all the same. So one of several tries has to be quick.
    """
    topic, took = cluster.topic(), list[float]()
    for number in range(TRIES):
        group, end = f"closes-{topic}-{number}", time.monotonic() + PATIENCE_S
        stable_member(group)

        def joins(group: str = group, end: float = end) -> bool:
            assert time.monotonic() < end, "the consumer does not join"
            try:
                cluster.wait_for_group(group, state="PreparingRebalance", members=2, timeout=0.01)
            except KafkaClusterError:
                return False
            return True

        took.append(close(cluster.bootstrap, group, topic, joins))
        cluster.wait_for_group(group, state="PreparingRebalance", members=1)
        if took[-1] < gives_up - 1:
            return
    raise AssertionError(f"each try took until the client gave up: {took}")
