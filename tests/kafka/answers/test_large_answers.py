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
from support.kafka.rawkafka import PRODUCE, batch
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_kafka.apis import pauses
from timerd_kafka.apis.groups import describe_groups, offset_fetch
from timerd_kafka.apis.table import APIS
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.offsets import Committed, Place
from timerd_kafka.wire.codec import Api, BadFrame, Question, api_of, versions_of

AT_ONCE, MANY = 10, 120
OFFSET_FETCH, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS = 9, 15, 16, 42
# The array of a request of each API whose answer has a part for each element.
ARRAYS = {
    0: "topic_data",
    2: "topics",
    3: "topics",
    8: "topics",
    OFFSET_FETCH: "groups",
    10: "coordinator_keys",
    13: "members",
    DESCRIBE_GROUPS: "groups",
    19: "topics",
    20: "topics",
    21: "topics",
    32: "resources",
    33: "resources",
    37: "topics",
    DELETE_GROUPS: "groups_names",
    44: "resources",
}
# The other APIs whose requests have arrays, each with the reason why its answer is made in one piece.
IN_ONE_PIECE = {
    1: "Fetch: the records of an answer that is being made count in no bound of memory",
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
    return Call(api_of(key, version), body, "", cast(Any, None))


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


def test_all_groups_are_deleted_although_the_client_has_left_in_a_pause(
    manual: Manual, tmp_path: Path, made: list[str]
) -> None:
    async def main() -> None:
        with with_groups(tmp_path, MANY, 1) as one:
            names = tuple(f"g{number}" for number in range(MANY))
            deleting = asyncio.ensure_future(APIS[DELETE_GROUPS][1](one, call_of(DELETE_GROUPS, groups_names=names)))
            await asyncio.sleep(0)
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
            assert not one.coordinator.groups and not list((tmp_path / "groups").iterdir())

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


# records --------------------------------------------------------------------------------------------------------------


def test_records_for_many_partitions_are_appended_although_their_client_has_left_in_a_pause(
    manual: Manual, tmp_path: Path, made: list[str]
) -> None:
    """A client with acks=0 may close its connection at once."""

    async def main() -> None:
        with brokers(tmp_path, 1) as (one,):
            one.catalog.create({"orders": (3 * AT_ONCE, 1, {})})
            one.say_catalog_changed()
            while len(list(one.store)) < 3 * AT_ONCE:  # they are opened some at a time
                await asyncio.sleep(0)
            (topic,) = call_of(PRODUCE).body.topic_data
            (data,) = topic.partition_data
            parts = tuple(
                dataclasses.replace(data, index=number, records=batch([b"v"])) for number in range(3 * AT_ONCE)
            )
            sent = dataclasses.replace(topic, topic_id=one.catalog.by_name["orders"].id, partition_data=parts)
            more = {"transactional_id": None, "acks": 0, "topic_data": (sent,)}
            producing = asyncio.ensure_future(APIS[PRODUCE][1](one, call_of(PRODUCE, **more)))
            await asyncio.sleep(0)
            producing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await producing
            assert {partition.end_offset for partition in one.store} == {1}

    manual.run(main())
