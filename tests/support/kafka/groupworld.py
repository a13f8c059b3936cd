"""A coordinator of groups with its files and its operations, but without sockets."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

import timerd as td
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.groups.coordinator import Coordinator
from timerd_kafka.groups.group import Group, State
from timerd_kafka.groups.messages import GroupProtocol, Identity, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.waits.waits import LOOK_S, Waits

NONE = ErrorCode.none
SESSION, REBALANCE = 10.0, 60.0
ORDERS = UUID(int=7)
RANGE = (GroupProtocol("range", b"topics"),)


class Broker:
    """The part of a broker that a coordinator uses. Each broker has a client of its own, as if it were a process."""

    def __init__(self, data: Path, orders: UUID = ORDERS, **settings: Any) -> None:
        self.id, self.settings = 0, Settings(data=data, **{"workers": 1, "ports": (9093,), **settings})
        self.client = td.connect()
        with warnings.catch_warnings(action="ignore"):  # td warns: the loop stands still while a purgatory is made
            self.waits = Waits(self.client, asyncio.get_running_loop())
        self.topics: dict[str, Topic] = {}
        self.create("orders", orders)
        self.coordinator = Coordinator(self)
        self._watch = asyncio.create_task(self._watching())

    def create(self, name: str, topic_id: UUID) -> Topic:
        topic = self.topics[name] = Topic(name, topic_id, 4, 1)
        return topic

    def topic(self, name: str | None, topic_id: UUID | None = None) -> Topic | None:
        if topic_id is None:
            return self.topics.get(name or "")
        return next((topic for topic in self.topics.values() if topic.id == topic_id), None)

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.waits.watch()
            self.coordinator.look()

    def group(self, name: str = "workers") -> Group:
        return self.coordinator.groups[name]

    def kill(self) -> None:
        """As by SIGKILL: the daemon withdraws the broker's operations, and the broker writes nothing."""
        self._watch.cancel()
        self.client.close()


class Consumer:
    """A consumer that sends exactly what a test wants."""

    def __init__(self, broker: Broker, name: str, instance: str | None = None, **more: Any) -> None:
        self.broker, self.name, self.instance = broker, name, instance
        self.member, self.generation = "", -1
        self.session, self.rebalance = more.pop("session", SESSION), more.pop("rebalance", REBALANCE)
        self.protocols = more.pop("protocols", RANGE)
        self.more = {"needs_known_id": False, **more}

    async def join(self) -> JoinAnswer:
        asked = JoinRequest(
            group="workers",
            member=self.member,
            instance=self.instance,
            client_id=self.name,
            client_host="/127.0.0.1",
            session_timeout=self.session,
            rebalance_timeout=self.rebalance,
            protocol_type="consumer",
            protocols=self.protocols,
        )._replace(**self.more)
        answer = await self.broker.coordinator.join(asked)
        if answer.error is NONE or answer.error is ErrorCode.member_id_required:
            self.member, self.generation = answer.member, answer.generation
        return answer

    @property
    def who(self) -> Identity:
        return Identity("workers", self.member, self.instance, self.generation)

    async def sync(self, assignments: dict[str, bytes] | None = None) -> SyncAnswer:
        return await self.broker.coordinator.sync(SyncRequest(self.who, assignments or {}, "consumer", "range"))

    def heartbeat(self) -> ErrorCode:
        return self.broker.coordinator.heartbeat(self.who)

    def leave(self) -> ErrorCode:
        return self.broker.coordinator.leave(self.who)

    def commit(self, offset: int, partition: int = 0) -> ErrorCode:
        return self.broker.coordinator.may_commit(self.who) or commit(self.broker, offset, partition)


def commit(broker: Broker, offset: int, partition: int = 0) -> ErrorCode:
    place = Place(broker.topics["orders"].id, partition)
    return broker.coordinator.commit("workers", {place: Committed(offset, 3, "m")})


def committed(broker: Broker, partition: int = 0) -> Committed | None:
    return broker.coordinator.committed("workers", Place(broker.topics["orders"].id, partition))


async def all_join(*consumers: Consumer) -> list[JoinAnswer]:
    return list(await asyncio.gather(*(consumer.join() for consumer in consumers)))


async def all_sync(*consumers: Consumer) -> list[SyncAnswer]:
    """All consumers sync. The leader assigns to each member the member's own name."""
    leader = consumers[0].broker.group().leader
    work = {consumer.member: consumer.name.encode() for consumer in consumers}
    syncs = [consumer.sync(work if consumer.member == leader else {}) for consumer in consumers]
    return list(await asyncio.gather(*syncs))


async def stable(broker: Broker, *names: str) -> list[Consumer]:
    """A stable group of these members."""
    consumers = [Consumer(broker, name) for name in names]
    await settle(broker, *consumers)
    return consumers


async def settle(broker: Broker, *consumers: Consumer) -> None:
    """The consumers join again and again until one generation has all of them. Then they sync: the group is stable."""
    answers = await all_join(*consumers)
    while len({answer.generation for answer in answers}) > 1 or len(broker.group().members) < len(consumers):
        answers = await all_join(*consumers)
    assert [answer.error for answer in answers] == [NONE] * len(consumers)
    assert [answer.error for answer in await all_sync(*consumers)] == [NONE] * len(consumers)
    assert broker.group().state is State.STABLE


async def beat_for(seconds: float, *consumers: Consumer) -> None:
    """Let time pass, while these consumers send heartbeats."""
    for _ in range(int(seconds / 2)):
        await asyncio.sleep(2)
        for consumer in consumers:
            consumer.heartbeat()


Run = Callable[[Callable[[Broker], Coroutine[Any, Any, None]]], None]
