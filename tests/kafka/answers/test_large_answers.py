"""Large answers are made some parts at a time: between two turns of the broker's loop, a bounded number of parts.

The tests count the parts, and measure no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial._introspect import EntityTupleField, PrimitiveTupleField, classify_field

from support.kafka.groupworld import Broker as GroupBroker
from support.kafka.groupworld import Run, stable
from support.kafka.least import least
from support.kafka.rawkafka import FETCH, PRODUCE, batch
from support.kafka.realbrokers import brokers, unconnected
from timerd.testing import Manual
from timerd_kafka.apis import pauses
from timerd_kafka.apis.data import fetch
from timerd_kafka.apis.groups import describe_groups, list_groups, offset_fetch
from timerd_kafka.apis.table import APIS
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.groups import coordinator
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.wire.codec import Api, BadFrame, Question, api_of, versions_of

AT_ONCE, MANY = 10, 120
OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_RECORDS, DELETE_GROUPS = 9, 15, 16, 21, 42
# The array of a request of each API whose answer has a part for each element.
ARRAYS = {
    PRODUCE: "topic_data",
    FETCH: "topics",
    2: "topics",
    3: "topics",
    8: "topics",
    OFFSET_FETCH: "groups",
    10: "coordinator_keys",
    13: "members",
    DESCRIBE_GROUPS: "groups",
    19: "topics",
    20: "topics",
    DELETE_RECORDS: "topics",
    32: "resources",
    33: "resources",
    37: "topics",
    DELETE_GROUPS: "groups_names",
    44: "resources",
}
# The other APIs whose requests have arrays, each with the reason why its answer is made in one piece.
IN_ONE_PIECE = {
    11: "JoinGroup: a group has 1,000 members at most",
    14: "SyncGroup: the answer has one assignment",
    68: "ConsumerGroupHeartbeat: it is refused",
}
NAMES = ("name", "resource_name", "group_id", "member_id")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of all parts of answers that were made. A pause comes after AT_ONCE parts."""
    found, make = list[str](), Api.make

    def noted(self: Api, kind: str, **given: Any) -> Any:
        found.append(kind)
        return make(self, kind, **given)

    monkeypatch.setattr(Api, "make", noted)
    monkeypatch.setattr(pauses, "AT_ONCE", AT_ONCE)
    return found


async def most_at_once(answering: Awaitable[Any], made: list[str]) -> tuple[Any, int]:
    """An answer, and the most parts that were made between two turns of the loop."""
    task, before, most = asyncio.ensure_future(answering), len(made), 0
    while not task.done():
        await asyncio.sleep(0)
        most, before = max(most, len(made) - before), len(made)
    return task.result(), most


def call_of(key: int, body: Any = None, **fields: Any) -> Call:
    """A request in the newest version of an API: this one, or the least one with these fields instead."""
    version = versions_of(APIS[key][0])[-1]
    if body is None:
        body = dataclasses.replace(least(Question(key, version).request), **fields)
    return Call(api_of(key, version), body, "", unconnected())


def naming(key: int, count: int) -> Call:
    """A request that names this number of topics, groups, members or resources."""
    least_one = call_of(key).body
    (one,) = getattr(least_one, ARRAYS[key])
    return call_of(key, dataclasses.replace(least_one, **{ARRAYS[key]: tuple(map(renamed(one), range(count)))}))


def renamed(one: Any) -> Any:
    """A function that gives an element of an array another name, or another id, for each number."""

    def made(number: int) -> Any:
        if isinstance(one, str):
            return f"{one}{number}"
        names = {field.name for field in dataclasses.fields(one)}
        given: dict[str, Any] = {name: f"x{number}" for name in NAMES if name in names}
        if "topic_id" in names:
            given["topic_id"] = UUID(int=number + 1)
        return dataclasses.replace(one, **given)

    return made


def has_array(kind: Any) -> bool:
    """Whether a request has an array."""
    fields = dataclasses.fields(kind)
    return any(isinstance(classify_field(field), EntityTupleField | PrimitiveTupleField) for field in fields)


def test_each_api_whose_request_has_an_array_is_listed_here() -> None:
    found = {key for key, (name, _) in APIS.items() if has_array(Question(key, versions_of(name)[-1]).request)}
    assert found == {*ARRAYS, *IN_ONE_PIECE, LIST_GROUPS} and not set(ARRAYS) & set(IN_ONE_PIECE)


@pytest.mark.parametrize("key", ARRAYS, ids=lambda key: APIS[key][0])
def test_others_are_served_while_an_answer_of_many_parts_is_made(
    manual: Manual, tmp_path: Path, made: list[str], key: int
) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1, auto_create=False) as (one,):
            _, most = await most_at_once(APIS[key][1](one, naming(key, MANY)), made)
            assert len(made) > MANY, "the answer has a part for each element"
            assert most <= AT_ONCE + 1

    manual.run(main())


# groups ---------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def with_groups(data: Path, groups: int, offsets: int) -> Iterator[Broker]:
    """A broker with groups ("g0", "g1" ...) without members, each with this number of committed offsets."""
    with brokers(data, 1) as (one,):
        one.catalog.create({"orders": (1, 1, {})})
        one.say_catalog_changed()
        topic = one.catalog.by_name["orders"].id
        committed = {Place(topic, number): Committed(number) for number in range(offsets)}
        for number in range(groups):
            assert one.coordinator.commit(f"g{number}", committed) is ErrorCode.none
        yield one


def all_groups(states: tuple[str, ...] = ()) -> Call:
    return call_of(LIST_GROUPS, states_filter=states, types_filter=())


@pytest.mark.parametrize(("states", "listed"), [((), MANY), (("Stable",), 0)], ids=["all", "none of them"])
def test_others_are_served_while_many_groups_are_listed(
    manual: Manual, tmp_path: Path, made: list[str], states: tuple[str, ...], listed: int
) -> None:
    async def main() -> None:
        with with_groups(tmp_path, MANY, 1) as one:
            listing = asyncio.ensure_future(APIS[LIST_GROUPS][1](one, all_groups(states)))
            turns = 0
            while not listing.done():
                turns += 1
                await asyncio.sleep(0)
            answer = listing.result()
            assert len(answer.groups) == listed and turns >= MANY // AT_ONCE

    manual.run(main())


def test_a_group_that_is_deleted_in_a_pause_is_not_listed(manual: Manual, tmp_path: Path, made: list[str]) -> None:
    async def main() -> None:
        with with_groups(tmp_path, MANY, 1) as one:
            listing = asyncio.ensure_future(APIS[LIST_GROUPS][1](one, all_groups()))
            await asyncio.sleep(0)
            assert one.coordinator.delete(f"g{MANY - 1}") is ErrorCode.none
            assert [group.group_id for group in (await listing).groups] == [f"g{number}" for number in range(MANY - 1)]

    manual.run(main())


def test_a_deleted_topic_is_forgotten_by_some_groups_at_a_time(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "DROP_S", 0.0)

    async def main() -> None:
        with with_groups(tmp_path, MANY, 2) as one:
            one.coordinator.topics_deleted({one.catalog.by_name["orders"].id})
            left = [len(one.coordinator.groups)]
            while left[-1]:
                await asyncio.sleep(0)
                left.append(len(one.coordinator.groups))
            assert left == list(range(MANY - 1, -1, -1)) and not list((tmp_path / "groups").iterdir())

    manual.run(main())


def offsets_of(*groups: str) -> Call:
    """A request for all offsets of these groups."""
    (one,) = call_of(OFFSET_FETCH).body.groups
    return call_of(OFFSET_FETCH, groups=tuple(dataclasses.replace(one, group_id=name, topics=None) for name in groups))


def test_others_are_served_while_all_offsets_of_a_group_are_fetched(
    manual: Manual, tmp_path: Path, made: list[str]
) -> None:
    async def main() -> None:
        with with_groups(tmp_path, 1, MANY) as one:
            answer, most = await most_at_once(APIS[OFFSET_FETCH][1](one, offsets_of("g0")), made)
            (topic,) = answer.groups[0].topics
            found = [(part.partition_index, part.committed_offset) for part in topic.partitions]
            assert found == [(number, number) for number in range(MANY)] and most <= AT_ONCE + 1

    manual.run(main())


def test_a_short_request_for_too_many_offsets_is_refused(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names one group again and again. Before, its answer could fill the memory."""
    monkeypatch.setattr(offset_fetch, "OFFSETS_MAX", 30)

    async def main() -> None:
        with with_groups(tmp_path, 1, 10) as one:
            assert len((await offset_fetch.answer(one, offsets_of(*["g0"] * 3))).groups) == 3
            with pytest.raises(BadFrame, match="more than 30 offsets"):
                await offset_fetch.answer(one, offsets_of(*["g0"] * 4))

    manual.run(main())


def test_others_are_served_while_the_members_of_a_group_are_described(run: Run, made: list[str]) -> None:
    async def scenario(broker: GroupBroker) -> None:
        names = [f"m{number}" for number in range(4 * AT_ONCE)]
        await stable(broker, *names)
        made.clear()
        describing = describe_groups.answer(cast(Any, broker), call_of(DESCRIBE_GROUPS, groups=("workers",)))
        answer, most = await most_at_once(describing, made)
        assert {member.client_id for member in answer.groups[0].members} == set(names)
        assert most <= AT_ONCE + 1

    run(scenario)


# partitions -----------------------------------------------------------------------------------------------------------


async def open_partitions(broker: Broker, count: int) -> None:
    """Create the topic "orders" with this number of partitions, each with a record."""
    broker.catalog.create({"orders": (count, 1, {})})
    broker.say_catalog_changed()
    while len(list(broker.store)) < count:  # they are opened some at a time
        await asyncio.sleep(0)
    await APIS[PRODUCE][1](broker, of_partitions(PRODUCE, broker, count))


def of_partitions(key: int, broker: Broker, count: int) -> Call:
    """A request for this number of partitions of the topic "orders": to append a record to each, to read, to delete."""
    from_start = {"fetch_offset": 0, "current_leader_epoch": -1, "partition_max_bytes": 1_000}
    asked: dict[int, tuple[str, str, str, dict[str, Any]]] = {
        PRODUCE: ("topic_data", "partition_data", "index", {"records": batch([b"v"])}),
        FETCH: ("topics", "partitions", "partition", from_start),
        DELETE_RECORDS: ("topics", "partitions", "partition_index", {"offset": 1}),
    }
    field, parts, index, more = asked[key]
    (topic,) = getattr(call_of(key).body, field)
    (part,) = getattr(topic, parts)
    all_parts = tuple(dataclasses.replace(part, **{index: number}, **more) for number in range(count))
    name: dict[str, Any] = (
        {"name": "orders"} if hasattr(topic, "name") else {"topic_id": broker.catalog.by_name["orders"].id}
    )
    fields: dict[str, Any] = {field: (dataclasses.replace(topic, **name, **{parts: all_parts}),)}
    if key == PRODUCE:
        fields["transactional_id"] = None
    if key == FETCH:
        consumer = dataclasses.replace(call_of(key).body.replica_state, replica_id=fetch.CONSUMER)
        fields |= {"session_id": 0, "max_bytes": 10**6, "replica_state": consumer}
    return call_of(key, **fields)


@pytest.mark.parametrize("key", [PRODUCE, FETCH, DELETE_RECORDS], ids=lambda key: APIS[key][0])
def test_others_are_served_while_the_partitions_of_a_request_are_looked_up(
    manual: Manual, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, key: int
) -> None:
    held, found = Broker.held, list[str]()

    def noted(self: Broker, topic: Topic | None, index: int) -> Partition | ErrorCode:
        found.append(f"{topic}-{index}")
        return held(self, topic, index)

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            await open_partitions(one, MANY)
            monkeypatch.setattr(Broker, "held", noted)
            _, most = await most_at_once(APIS[key][1](one, of_partitions(key, one, MANY)), found)
            assert len(set(found)) == MANY and most <= AT_ONCE

    manual.run(main())


def test_an_answer_that_is_being_made_counts_in_the_bound_of_memory(
    manual: Manual, tmp_path: Path, made: list[str]
) -> None:
    of_parts = MANY // AT_ONCE * pauses.HELD_AT_ONCE

    async def main() -> None:
        with with_groups(tmp_path, MANY, 1) as one:
            listing = all_groups()
            await list_groups.answer(one, listing)
            assert listing.connection.held >= of_parts

    manual.run(main())


def test_the_records_of_an_answer_that_is_being_made_count_in_the_bound_of_memory(
    manual: Manual, tmp_path: Path, made: list[str]
) -> None:
    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            await open_partitions(one, MANY)
            fetching = of_partitions(FETCH, one, MANY)
            await fetch.answer(one, fetching)
            records = MANY * len(batch([b"v"]))
            assert fetching.connection.held >= records + MANY // AT_ONCE * pauses.HELD_AT_ONCE

    manual.run(main())
