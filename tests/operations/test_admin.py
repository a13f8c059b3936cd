"""Quota, ThrottledChannel, DelayedDeleteRecords and DelayedTopics; and wrong calls of any named operation."""

from __future__ import annotations

import asyncio

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client.operations import (
    DelayedDeleteRecords,
    DelayedHeartbeat,
    DelayedTopics,
    Errors,
    Part,
    Quota,
    Replicas,
    ThrottledChannel,
    partition_key,
    topic_key,
)

P0, P1 = partition_key("orders", 0), partition_key("orders", 1)


# quotas ---------------------------------------------------------------------------------------------------------------


def test_a_client_is_throttled_only_beyond_its_burst_and_until_its_rate_is_right_again() -> None:
    quota = Quota(rate=100, window=10)
    assert [quota.record(500, now) for now in (0.0, 0.0)] == [0.0, 0.0], "1,000 at once are the burst"
    assert quota.record(500, 0.0) == 5.0, "500 are missing, and 100 come back each second"
    assert quota.record(0, 5.0) == 0.0
    assert quota.record(10_000, 5.0) == 100.0, "no bound: a request of 10,000 takes 100 s at this rate"
    assert quota.record(0, 1_000.0) == 0.0
    assert quota.record(1_500, 1_000.0) == 5.0, "a long pause gives only the burst"


def test_over_any_time_a_client_uses_the_rate_and_the_burst_at_most() -> None:
    quota, now, used = Quota(rate=1_000, window=1), 0.0, 0
    while now < 30:
        used += 100
        now += quota.record(100, now)
    assert 30_000 <= used <= 31_100


def test_a_channel_is_muted_for_its_throttle_time_and_never_less(client: td.Client, manual: Manual) -> None:
    said: list[str] = []
    channel = ThrottledChannel("conn-1", lambda: said.append("mute"), lambda: said.append("unmute"))
    channel.watch(client, timeout=2.5)
    client.fire_wait("throttled:conn-1")
    manual.advance(2.4)
    assert said == ["mute"]
    manual.advance(0.1)
    assert said == ["mute", "unmute"]


def test_a_closed_channel_is_not_unmuted_and_a_channel_within_its_quota_is_not_muted(
    client: td.Client, manual: Manual
) -> None:
    said: list[str] = []
    channel = ThrottledChannel("conn-1", lambda: said.append("mute"), lambda: said.append("unmute"))
    channel.watch(client, timeout=2.5).close()
    ThrottledChannel("conn-2", lambda: said.append("mute"), lambda: said.append("unmute")).watch(client, timeout=0)
    manual.advance(100)
    assert said == ["mute"]


# delete records -------------------------------------------------------------------------------------------------------


def test_records_are_deleted_when_the_low_watermark_is_there(client: td.Client, manual: Manual) -> None:
    low: dict[str, tuple[int, int]] = {P0: (0, 0), P1: (0, 0)}
    answers: list[dict[str, Part]] = []
    waits = DelayedDeleteRecords({P0: 10, P1: 20, "gone": 5}, low.__getitem__, answers.append, errors={"gone": 3})
    waits.watch(client, timeout=30)
    client.flush()
    low[P0] = (12, 0)
    assert client.check_and_complete(P0) == 0 and waits.pending == [P1]
    low[P1] = (0, Errors.NOT_LEADER_OR_FOLLOWER)
    assert client.check_and_complete(P1) == 1
    assert answers == [{P0: Part(0, 12), P1: Part(6), "gone": Part(3)}]


def test_at_the_deadline_what_is_not_deleted_is_timed_out(client: td.Client, manual: Manual) -> None:
    answers: list[dict[str, Part]] = []
    DelayedDeleteRecords({P0: 10, P1: 0}, lambda _: (5, 0), answers.append).watch(client, timeout=30)
    manual.advance(30)
    assert answers == [{P0: Part(Errors.REQUEST_TIMED_OUT), P1: Part(0, 5)}]


# topics ---------------------------------------------------------------------------------------------------------------


def test_topics_are_answered_when_the_metadata_shows_them(client: td.Client, manual: Manual) -> None:
    there: set[str] = set()
    answers: list[dict[str, Part]] = []
    topics = {"a": Errors.NONE, "b": Errors.NONE, "old": Errors.TOPIC_ALREADY_EXISTS}
    DelayedTopics(topics, there.__contains__, answers.append).watch(client, timeout=30)
    client.flush()
    there.add("a")
    assert client.check_and_complete(topic_key("a")) == 0
    there.add("b")
    assert client.check_and_complete(topic_key("b")) == 1
    assert answers == [{"a": Part(0), "b": Part(0), "old": Part(36)}]


def test_topics_that_are_refused_are_not_waited_for_and_the_others_time_out(client: td.Client, manual: Manual) -> None:
    answers: list[dict[str, Part]] = []
    DelayedTopics({"a": Errors.TOPIC_ALREADY_EXISTS}, lambda _: False, answers.append).watch(client, timeout=30)
    assert answers == [{"a": Part(36)}]
    DelayedTopics({"a": Errors.NONE}, lambda _: False, answers.append).watch(client, timeout=30)
    manual.advance(30)
    assert answers[1:] == [{"a": Part(7)}]


# wrong calls of any named operation -----------------------------------------------------------------------------------


def test_a_named_operation_is_watched_once(client: td.Client, manual: Manual) -> None:
    calls: list[str] = []
    channel = ThrottledChannel("c", lambda: calls.append("mute"), lambda: calls.append("unmute"))
    channel.watch(client, timeout=1)
    with pytest.raises(td.InvalidValueError, match="was watched before: make a new one"):
        channel.watch(client, timeout=1)
    manual.advance(2)
    with pytest.raises(td.InvalidValueError, match="was watched before: make a new one"):
        channel.watch(client, timeout=1)
    assert channel.settled(30) and calls == ["mute", "unmute"]
    done = DelayedTopics({}, lambda topic: True, lambda answer: calls.append("answer"))
    done.watch(client, timeout=1)
    with pytest.raises(td.InvalidValueError, match="was watched before"):
        done.watch(client, timeout=1)
    assert calls[2:] == ["answer"]


def test_a_channel_that_cannot_be_watched_is_not_muted_and_may_be_tried_again(client: td.Client) -> None:
    calls: list[str] = []
    channel = ThrottledChannel("c", lambda: calls.append("mute"), lambda: calls.append("unmute"))
    with pytest.raises(td.TimeoutOutOfRangeError):
        channel.watch(client, timeout=1e30)
    assert calls == ["mute", "unmute"]
    channel.watch(client, timeout=30)
    channel.close()
    assert channel.settled(30) and calls == ["mute", "unmute", "mute"]


def test_a_named_operation_needs_a_threaded_client(manual: Manual) -> None:
    async def program() -> None:
        async with await td.aio.connect() as looped:
            for watch in (
                lambda: ThrottledChannel("c", print, print).watch(looped, timeout=1),  # type: ignore[arg-type]
                lambda: DelayedHeartbeat(looped, "g", "m", 1, print),  # type: ignore[arg-type]
                lambda: Replicas(looped, ["r"]),  # type: ignore[arg-type]
            ):
                with pytest.raises(td.InvalidValueError, match=r"give a threaded client, such as td.client\(\)"):
                    watch()

    asyncio.run(program())


@pytest.mark.parametrize(
    ("names", "needed", "said"),
    [
        (["r0", "r0"], None, "one name is there twice"),
        (["r0"], 2, "needed=2: from 1 to 1"),
        (["r0"], 0, "needed=0: from 1 to 1"),
        ([], None, "needed=0: from 1 to 0"),
    ],
)
def test_impossible_replicas_are_refused(client: td.Client, names: list[str], needed: int | None, said: str) -> None:
    with pytest.raises(td.InvalidValueError, match=said):
        Replicas(client, names, needed)
    with pytest.raises(td.InvalidValueError, match="replica='r9' is none of"):
        Replicas(client, ["r0"]).acknowledge("p", "r9", 1)
