"""DelayedProduce: the offsets that it waits for, and its answer for each partition."""

from __future__ import annotations

import pytest

import timerd as td
from support.oracle.manuals import pending
from timerd.testing import Manual
from timerd_client.operations import Appended, DelayedProduce, Errors, Part, Replicas, partition_key

P0, P1, P2 = (partition_key("orders", n) for n in range(3))
THREE = {P0: Appended(100, 110), P1: Appended(200, 210), P2: Appended(300, 310)}
Answer = dict[str, Part]


class Log:
    """For each partition, the offset that enough replicas have, and the error."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.errors: dict[str, int] = {}

    def __call__(self, partition: str, offset: int) -> tuple[bool, int]:
        return self.reached.get(partition, 0) >= offset, self.errors.get(partition, 0)


def test_a_produce_request_is_answered_when_all_partitions_have_their_offset(client: td.Client, manual: Manual) -> None:
    log, answers = Log(), list[Answer]()
    DelayedProduce(THREE, log, answers.append).watch(client, timeout=30)
    for partition, offset in ((P0, 110), (P1, 209), (P2, 400)):
        log.reached[partition] = offset
        client.check_and_complete(partition)
    assert not answers and pending(manual) == 1
    log.reached[P1] = 210
    assert client.check_and_complete(P1) == 1
    assert answers == [{P0: Part(0, 100), P1: Part(0, 200), P2: Part(0, 300)}] and pending(manual) == 0


def test_at_the_deadline_the_pending_partitions_are_timed_out_and_no_others(client: td.Client, manual: Manual) -> None:
    log, answers = Log(), list[Answer]()
    DelayedProduce(THREE, log, answers.append).watch(client, timeout=30)
    log.reached[P1] = 999
    client.check_and_complete(P1)
    manual.advance(29.9)
    assert not answers
    manual.advance(0.1)
    assert answers == [{P0: Part(7), P1: Part(0, 200), P2: Part(7)}]


def test_a_partition_in_error_settles_alone(client: td.Client, manual: Manual) -> None:
    log, answers = Log(), list[Answer]()
    appended = {**THREE, P2: Appended(-1, -1, Errors.KAFKA_STORAGE_ERROR)}
    DelayedProduce(appended, log, answers.append).watch(client, timeout=30)
    log.errors[P0] = Errors.NOT_LEADER_OR_FOLLOWER
    assert client.check_and_complete(P0) == 0
    log.reached[P1] = 210
    assert client.check_and_complete(P1) == 1
    assert answers == [{P0: Part(6), P1: Part(0, 200), P2: Part(56)}]


@pytest.mark.parametrize("acks", [0, 1])
def test_with_other_acks_nothing_is_registered(client: td.Client, manual: Manual, acks: int) -> None:
    answers = list[Answer]()
    assert DelayedProduce(THREE, Log(), answers.append, acks=acks).watch(client, timeout=30).settled(0)
    assert answers == [{P0: Part(0, 100), P1: Part(0, 200), P2: Part(0, 300)}] and pending(manual) == 0


@pytest.mark.parametrize("appended", [{}, {P0: Appended(-1, -1, 3), P1: Appended(-1, -1, 6)}])
def test_without_an_append_or_with_all_in_error_nothing_is_registered(
    client: td.Client, manual: Manual, appended: dict[str, Appended]
) -> None:
    answers = list[Answer]()
    DelayedProduce(appended, Log(), answers.append).watch(client, timeout=30)
    assert answers == [{name: Part(one.error) for name, one in appended.items()}] and pending(manual) == 0


def test_with_one_replica_nothing_is_registered(client: td.Client, manual: Manual) -> None:
    """The leader is the only replica, and has acknowledged what it has appended."""
    answers = list[Answer]()
    replicas = Replicas(client, ["leader"])
    replicas.acknowledge(P0, "leader", 110)
    client.flush()
    DelayedProduce({P0: THREE[P0]}, replicas, answers.append).watch(client, timeout=30)
    assert answers == [{P0: Part(0, 100)}] and pending(manual) == 0


def test_replicas_of_other_processes_acknowledge_by_watermarks(client: td.Client, manual: Manual) -> None:
    answers = list[Answer]()
    with td.Client() as follower:
        DelayedProduce({P0: THREE[P0]}, Replicas(client, ["a", "b", "c"], 2), answers.append).watch(client, timeout=30)
        follower_side = Replicas(follower, ["a", "b", "c"])
        for replica, offset in (("a", 110), ("b", 109)):
            follower_side.acknowledge(P0, replica, offset)
            follower.flush()
            manual._driver.settle()
        assert not answers
        follower_side.acknowledge(P0, "c", 150)
        follower.flush()
        manual._driver.settle()
        assert answers == [{P0: Part(0, 100)}]
