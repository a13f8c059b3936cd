"""A client that closes its connection in the middle of a large request: all parts of the request are carried out."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.kafka.least import least
from support.kafka.patience import PATIENCE_S
from support.kafka.rawkafka import (
    ALTER_CONFIGS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INCREMENTAL_ALTER_CONFIGS,
    PRODUCE,
    batch,
    seconds,
)
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_kafka.apis import pauses
from timerd_kafka.apis.table import APIS, handler_of
from timerd_kafka.apis.topics.describe_configs import TOPIC
from timerd_kafka.broker.broker import WITHOUT_EFFECT, Broker
from timerd_kafka.groups.messages import GroupProtocol, JoinRequest
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.log.batch import read_batches
from timerd_kafka.wire.codec import Question, versions_of
from timerd_kafka.wire.connection import Buffers, Connection

OFFSET_COMMIT, LEAVE_GROUP, DELETE_GROUPS = 8, 13, 42
MANY = 60
RECORD = batch([b"v"])
SESSION_S = 10 * PATIENCE_S  # no member leaves because its session expires


def topics_of(broker: Broker) -> list[Any]:
    """All topics but "orders"."""
    return [topic for topic in broker.catalog.by_name.values() if topic.name != "orders"]


class Change(NamedTuple):
    """A request that changes MANY things."""

    key: int
    arrays: tuple[str, ...]  # from the request to the array of the MANY parts
    part: Callable[[int], dict[str, Any]]  # the fields of a part, by its number
    changed: Callable[[Broker], int]  # how many things are changed
    version: int | None = None  # None: the newest
    more: dict[str, Any] | None = None  # other fields, of the request and of the arrays

    def frame(self) -> bytes:
        question = Question(self.key, self.version or versions_of(APIS[self.key][0])[-1])
        body = self._filled(least(question.request), self.arrays)
        return question.write(1, "c", body)

    def _filled(self, one: Any, arrays: tuple[str, ...]) -> Any:
        fields = {field.name for field in dataclasses.fields(one)}
        one = dataclasses.replace(one, **{name: value for name, value in (self.more or {}).items() if name in fields})
        (inner,) = getattr(one, arrays[0])
        if len(arrays) > 1:
            return dataclasses.replace(one, **{arrays[0]: (self._filled(inner, arrays[1:]),)})
        parts = tuple(
            self.part(number)["it"] if isinstance(inner, str) else dataclasses.replace(inner, **self.part(number))
            for number in range(MANY)
        )
        return dataclasses.replace(one, **{arrays[0]: parts})


def configs(key: int, kind: str, **more: Any) -> tuple[Any, ...]:
    """flush.ms=5 for a part of a request."""
    made = getattr(Question(key, versions_of(APIS[key][0])[-1]).module, kind)
    return (made(name="flush.ms", value="5", **more),)


ALTERABLE = configs(ALTER_CONFIGS, "AlterableConfig")
INCREMENTS = configs(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", config_operation=0)
NOW = {"validate_only": False, "timeout": seconds(30)}
CHANGES = {
    "Produce": Change(
        PRODUCE,
        ("topic_data", "partition_data"),
        lambda number: {"index": number, "records": RECORD},
        lambda broker: sum(one.end_offset == 2 for one in broker.store if one.topic.name == "orders"),
        version=9,
        more={"name": "orders", "acks": 0, "transactional_id": None},
    ),
    "OffsetCommit": Change(
        OFFSET_COMMIT,
        ("topics", "partitions"),
        lambda number: {"partition_index": number},
        lambda broker: len(broker.coordinator.groups["new"].remembered.offsets),
        version=8,
        more={"group_id": "new", "name": "orders", "generation_id_or_member_epoch": -1, "member_id": ""},
    ),
    "LeaveGroup": Change(
        LEAVE_GROUP,
        ("members",),
        lambda number: {"member_id": "", "group_instance_id": f"m{number}"},
        lambda broker: MANY - len(broker.coordinator.groups["g"].members if "g" in broker.coordinator.groups else ()),
        more={"group_id": "g"},
    ),
    "CreateTopics": Change(
        CREATE_TOPICS,
        ("topics",),
        lambda number: {
            "name": f"new{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": (),
        },
        lambda broker: sum(topic.name.startswith("new") for topic in topics_of(broker)),
        more=NOW,
    ),
    "DeleteTopics": Change(
        DELETE_TOPICS,
        ("topics",),
        lambda number: {"name": f"t{number}", "topic_id": None},
        lambda broker: MANY - len(topics_of(broker)),
        more=NOW,
    ),
    "DeleteRecords": Change(
        DELETE_RECORDS,
        ("topics", "partitions"),
        lambda number: {"partition_index": number, "offset": 1},
        lambda broker: sum(one.start_offset == 1 for one in broker.store),
        more={"name": "orders", **NOW},
    ),
    "AlterConfigs": Change(
        ALTER_CONFIGS,
        ("resources",),
        lambda number: {"resource_type": TOPIC, "resource_name": f"t{number}", "configs": ALTERABLE},
        lambda broker: sum(topic.configs == {"flush.ms": "5"} for topic in topics_of(broker)),
        more=NOW,
    ),
    "IncrementalAlterConfigs": Change(
        INCREMENTAL_ALTER_CONFIGS,
        ("resources",),
        lambda number: {"resource_type": TOPIC, "resource_name": f"t{number}", "configs": INCREMENTS},
        lambda broker: sum(topic.configs == {"flush.ms": "5"} for topic in topics_of(broker)),
        more=NOW,
    ),
    "CreatePartitions": Change(
        CREATE_PARTITIONS,
        ("topics",),
        lambda number: {"name": f"t{number}", "count": 2, "assignments": None},
        lambda broker: sum(topic.partitions == 2 for topic in topics_of(broker)),
        more=NOW,
    ),
    "DeleteGroups": Change(
        DELETE_GROUPS,
        ("groups_names",),
        lambda number: {"it": f"g{number}"},
        lambda broker: MANY - sum(f"g{number}" in broker.coordinator.groups for number in range(MANY)),
    ),
}


async def fill(broker: Broker) -> None:
    """Make MANY topics, partitions with a record, groups without members, and members of the group "g"."""
    broker.catalog.create({"orders": (MANY, 1, {}), **{f"t{number}": (1, 1, {}) for number in range(MANY)}})
    broker.say_catalog_changed()
    while len(list(broker.store)) < 2 * MANY:  # they are opened some at a time
        await asyncio.sleep(0)
    for partition in broker.store:
        if partition.topic.name == "orders":
            partition.append(RECORD, next(read_batches(RECORD)))
    place = Place(broker.catalog.by_name["orders"].id, 0)
    for number in range(MANY):
        broker.coordinator.commit(f"g{number}", {place: Committed(1)})
        protocols = (GroupProtocol("range", b""),)
        asked = JoinRequest("g", "", f"m{number}", "c", "/c", SESSION_S, SESSION_S, "consumer", protocols)
        broker.coordinator._join(asked)
    assert len(broker.coordinator.groups["g"].members) == MANY


async def send_and_close(broker: Broker, frame: bytes) -> None:
    """Send a request, and close the connection at once. Returns when the broker has closed it, too."""
    handle, loop, open_ones = handler_of(broker), asyncio.get_running_loop(), set[Connection]()
    server = await loop.create_server(lambda: Connection(handle, open_ones, Buffers(), 1 << 20), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(frame)
        writer.close()
        while not open_ones:
            await asyncio.sleep(0)
        while open_ones:
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", CHANGES)
def test_a_request_is_carried_out_whole_although_its_client_leaves(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(pauses, "AT_ONCE", 1)  # so the client leaves in a pause
    change = CHANGES[name]

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            await fill(one)
            await send_and_close(one, change.frame())
            async with asyncio.timeout(PATIENCE_S):
                while change.changed(one) < MANY:
                    await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, "timerd_kafka"):
        manual.run(main())
    if "AlterConfigs" in name:
        assert caplog.text.count(WITHOUT_EFFECT) == MANY, "the log says of each topic that flush.ms has no effect"


def test_each_api_that_changes_something_is_tried_here() -> None:
    reads = {"fetch", "list_offsets", "metadata", "offset_fetch", "find_coordinator", "describe_groups", "list_groups"}
    reads |= {"api_versions", "describe_configs"}
    one_thing = {"join_group", "heartbeat", "sync_group", "init_producer_id", "consumer_group_heartbeat"}
    assert {name for name, _ in APIS.values()} - reads - one_thing == {APIS[one.key][0] for one in CHANGES.values()}
