"""DelayedFetch: when it has enough bytes, when it need not wait, and what it does at its deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import timerd as td
from timerd.testing import Manual
from timerd_client.operations import Asked, Available, DelayedFetch, Errors, partition_key

P0, P1 = partition_key("orders", 0), partition_key("orders", 1)


class Log:
    """For each partition, the records and bytes after the offset that was asked for."""

    def __init__(self) -> None:
        self.there = {P0: Available(100, 0, epoch=3), P1: Available(100, 0, epoch=3)}

    def __call__(self, partition: str, offset: int) -> Available:
        return self.there[partition]


def fetch(client: td.Client, log: Log, **more: Any) -> list[str]:
    answers: list[str] = []
    asked = {P0: Asked(100, max_bytes=60, epoch=3), P1: Asked(100)}
    DelayedFetch(asked, log, lambda: answers.append("answered"), **{"min_bytes": 100, **more}).watch(
        client, timeout=0.5
    )
    client.flush()
    return answers


def test_a_fetch_waits_for_min_bytes_over_all_partitions(client: td.Client, manual: Manual) -> None:
    log = Log()
    answers = fetch(client, log)
    log.there[P0] = Available(160, 500, epoch=3)
    assert client.check_and_complete(P0) == 0, "60 bytes of this partition count, as many as were asked for"
    log.there[P1] = Available(140, 39)
    assert client.check_and_complete(P1) == 0
    log.there[P1] = Available(141, 40)
    assert client.check_and_complete(P1) == 1 and answers == ["answered"]


def test_at_its_deadline_a_fetch_is_answered_with_what_is_there(client: td.Client, manual: Manual) -> None:
    answers = fetch(client, Log())
    manual.advance(0.4)
    assert not answers
    manual.advance(0.1)
    assert answers == ["answered"]


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.there.update({P1: Available(100, 0, Errors.NOT_LEADER_OR_FOLLOWER)}),
        lambda log: log.there.update({P1: Available(100, 0, Errors.UNKNOWN_TOPIC_OR_PARTITION)}),
        lambda log: log.there.update({P0: Available(99, 0, epoch=3)}),
        lambda log: log.there.update({P0: Available(100, 0, epoch=4)}),
    ],
    ids=["not the leader", "unknown", "truncated", "a foreign leader"],
)
def test_a_fetch_with_one_wrong_partition_is_answered_at_once(
    client: td.Client, manual: Manual, change: Callable[[Log], None]
) -> None:
    log = Log()
    change(log)
    assert fetch(client, log) == ["answered"]
    log = Log()
    answers = fetch(client, log)
    change(log)
    assert client.check_and_complete(P0) == 1 and answers == ["answered"]


def test_a_fetch_that_need_not_wait_is_answered_at_once(client: td.Client, manual: Manual) -> None:
    log = Log()
    log.there[P1] = Available(500, 400)
    assert fetch(client, log) == ["answered"] == fetch(client, Log(), min_bytes=0)
    answers: list[int] = []
    nothing = DelayedFetch({}, log, lambda: answers.append(1)).watch(client, timeout=9)
    no_time = DelayedFetch({P0: Asked(0)}, log, lambda: answers.append(2)).watch(client, timeout=0)
    assert answers == [1, 2]
    assert [(each.settled(0), each.done(), each.state) for each in (nothing, no_time)] == [
        (True, True, td.State.COMPLETED)
    ] * 2
    with manual._driver.daemon.map_arena() as reader:
        assert not any(op.state for op in reader.ops.used())


def test_a_reader_is_answered_although_the_daemon_is_lost_at_its_deadline(client: td.Client, manual: Manual) -> None:
    answers = fetch(client, Log())
    manual.stop()
    manual.advance(4)  # seconds: after three the daemon is taken for lost
    assert answers == ["answered"]
    manual.start()
