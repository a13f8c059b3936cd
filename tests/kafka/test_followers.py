"""Followers: one partition of a leader does not hold up the others.

Also: a fetch whose topic is deleted meanwhile, and the answers of KafkaCluster's methods while a broker is stopped.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.rawkafka import DELETE_TOPICS, FETCH, RawKafka, batch, fetch_fields, key_of_topic, seconds
from support.kafka.realbrokers import unconnected
from support.real.patience import stop
from timerd_client.operations import DelayedFetch
from timerd_kafka.apis.data import fetch
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Catalog
from timerd_kafka.cluster.settings import Settings
from timerd_kafka.log.batch import read_batches
from timerd_kafka.replicas import follower
from timerd_kafka.replicas.follower import Followers
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.replicas.store import Store
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.testing import cluster as cluster_module
from timerd_kafka.wire.codec import Question, api_of

SECRET = "secret"


# a leader and its follower, in one loop and without a timer daemon ----------------------------------------------------


class Looking:
    """Stands in for Waits, as far as a fetch needs it: it tries to complete the fetch every millisecond."""

    async def until(self, _: str, timeout: float, make: Callable[[Callable[..., Any]], DelayedFetch]) -> None:
        loop = asyncio.get_running_loop()
        operation, end = make(lambda: None), loop.time() + timeout
        while not operation.try_complete() and loop.time() < end:
            await asyncio.sleep(0.001)

    def fire(self, *_: str) -> None:
        pass


class Pair:
    """Broker 0, which leads partitions, and broker 1, which follows. `asked` has the partitions of each fetch."""

    def __init__(self, directory: Path, partitions: int) -> None:
        """`partitions` is the number of partitions that broker 0 leads."""
        catalog = Catalog(directory)
        catalog.create({"orders": (2 * partitions, 2, {})})
        catalog.refresh()
        stores = [Store(directory / str(number), catalog, number, 2) for number in range(2)]
        self.leads = [one for one in stores[0] if one.is_leader]
        self.copies = [one for one in stores[1] if not one.is_leader]
        self.asked: list[list[int]] = []
        self.asked_at: list[float] = []  # the times of these fetches
        self.before: Callable[[], None] = lambda: None  # is called before each fetch is answered
        self._broker = cast(Any, Broker.__new__(Broker))
        self._broker.settings = Settings(data=directory, secret=SECRET)
        self._broker.catalog, self._broker.store, self._broker.waits = catalog, stores[0], Looking()
        self._store = stores[1]

    def run(self, scenario: Callable[[], Any]) -> None:
        """Run the scenario while the follower copies."""

        async def main() -> None:
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            followers = Followers(self._store, 1, [address], SECRET, lambda _: None)
            followers.refresh()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await scenario()
            finally:
                for _, task in followers._tasks.values():
                    task.cancel()
                server.close()

        asyncio.run(main())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                api = api_of(FETCH, 13)
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                number, client_id, body = api.read(frame)
                self.before()
                self.asked_at.append(asyncio.get_running_loop().time())
                self.asked.append([one.partition for topic in body.topics for one in topic.partitions])
                answer = await fetch.answer(self._broker, Call(api, body, client_id, unconnected()))
                writer.write(api.write(number, answer))
        except (EOFError, ConnectionResetError, asyncio.CancelledError):
            writer.close()

    async def copied(self, *numbers: int) -> None:
        """Wait until the follower has all of these partitions."""
        while any(self.copies[one].end_offset < self.leads[one].end_offset for one in numbers):
            await asyncio.sleep(0.001)


def append(leader: Partition, data: bytes) -> None:
    leader.append(data, next(read_batches(data)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A batch. An answer of Fetch has room for four batches of this size: one at most of each partition."""
    one = batch([b"x" * 100])
    monkeypatch.setattr(follower, "BYTES", 4 * len(one))
    monkeypatch.setattr(follower, "PARTITION_BYTES", len(one), raising=False)
    return one


def test_partitions_that_catch_up_take_turns(tmp_path: Path, small: bytes) -> None:
    pair = Pair(tmp_path, 11)
    for leader in pair.leads[:-1]:
        for _ in range(6):
            append(leader, small)
    append(pair.leads[-1], small)
    ends: list[list[int]] = []
    pair.before = lambda: ends.append([one.end_offset for one in pair.copies])
    pair.run(lambda: pair.copied(*range(11)))
    assert ends[3][-1] == 1, "three answers have the first batch of each of the 11"
    assert all(max(now[:-1]) - min(now[:-1]) <= 1 for now in ends), "no partition is two batches ahead of another"
    assert [one.log.path.read_bytes() for one in pair.copies] == [one.log.path.read_bytes() for one in pair.leads]


def test_a_batch_that_is_larger_than_an_answer_gets_its_turn(tmp_path: Path, small: bytes) -> None:
    pair = Pair(tmp_path, 6)
    for leader in pair.leads:
        for _ in range(20):
            append(leader, small)
    large = pair.leads[3]
    append(large, batch([b"x" * 5_000]))
    for _ in range(20):
        append(pair.leads[0], small)

    async def scenario() -> None:
        await pair.copied(3)
        assert pair.copies[0].end_offset < pair.leads[0].end_offset, "the others still have much to copy"
        await pair.copied(*range(6))

    pair.run(scenario)
    assert pair.copies[3].log.path.read_bytes() == large.log.path.read_bytes()


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a follower, and idle fetches, that are longer than any test: a test that needs their end fails."""
    for name in ("MAX_WAIT_S", "AGAIN_S", "DISK_S"):
        monkeypatch.setattr(follower, name, 1_000.0)


def test_a_damaged_partition_is_left_out_and_slows_no_other(tmp_path: Path, long_pauses: None) -> None:
    pair = Pair(tmp_path, 3)
    good, damaged, _ = pair.leads
    damaged.log.is_damaged = True
    append(damaged, batch([b"a"]))

    async def scenario() -> None:
        while not pair.asked:
            await asyncio.sleep(0.001)
        for _ in range(20):
            append(good, batch([b"a"]))
            await pair.copied(0)
        assert len(times_asked(pair, damaged)) == 1
        assert len(pair.asked) <= 2 * 20 + 3, "a fetch for the records, and a fetch for the watermark"

    pair.run(scenario)


@pytest.mark.parametrize("damaged", [[0, 1], [1]], ids=["all", "one of two"])
def test_damaged_partitions_are_asked_for_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: list[int]
) -> None:
    monkeypatch.setattr(follower, "DISK_S", 0.3)
    pair = Pair(tmp_path, 2)
    leaders = [pair.leads[number] for number in damaged]
    for leader in leaders:
        leader.log.is_damaged = True
        append(leader, batch([b"a"]))

    async def scenario() -> None:
        while len(times_asked(pair, leaders[0])) < 3:
            await asyncio.sleep(0.001)
        for leader in leaders:
            assert all(later - earlier >= 0.3 for earlier, later in pairwise(times_asked(pair, leader)))
            leader.log.is_damaged = False
        await pair.copied(*damaged)

    pair.run(scenario)


def test_a_partition_that_cannot_be_written_slows_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_pauses: None
) -> None:
    pair = Pair(tmp_path, 2)
    append(pair.leads[1], batch([b"a"]))

    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pair.copies[1].log, "append_copy", full)

    async def scenario() -> None:
        while not pair.asked:
            await asyncio.sleep(0.001)
        for _ in range(20):
            append(pair.leads[0], batch([b"a"]))
            await pair.copied(0)
        assert len(times_asked(pair, pair.leads[1])) == 1

    pair.run(scenario)


def test_a_partition_that_could_not_be_written_is_copied_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "DISK_S", 0.3)
    pair = Pair(tmp_path, 1)
    append(pair.leads[0], batch([b"a"]))
    refused: list[float] = []

    def full(_: bytes) -> None:
        refused.append(asyncio.get_running_loop().time())
        raise OSError(28, "No space left on device")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(pair.copies[0].log, "append_copy", full)
            while len(refused) < 3:
                await asyncio.sleep(0.001)
        assert all(later - earlier >= 0.3 for earlier, later in pairwise(refused))
        await pair.copied(0)

    pair.run(scenario)


def test_a_partition_that_its_leader_does_not_hold_yet_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "MAX_WAIT_S", 1_000.0)  # so only the end of the pause ends a fetch that waits
    pair = Pair(tmp_path, 2)
    late = pair.leads[1]
    append(late, batch([b"a"]))
    held = pair._broker.store._held
    del held[late.topic.id, late.index]

    async def scenario() -> None:
        while len(times_asked(pair, late)) < 2:
            await asyncio.sleep(0.001)
        held[late.topic.id, late.index] = late
        await pair.copied(1)

    pair.run(scenario)


def times_asked(pair: Pair, partition: Partition) -> list[float]:
    """The times of the fetches that asked for a partition."""
    return [at for at, asked in zip(pair.asked_at, pair.asked, strict=True) if partition.index in asked]


# over a cluster -------------------------------------------------------------------------------------------------------


def test_a_backlog_of_one_partition_holds_up_no_other(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=5, replicas=2)  # on four brokers: partitions 0 and 4 have the same replicas
    leaders = raw.leaders(topic)
    assert leaders[0] == leaders[4]
    cluster.stop_follower(topic, partition=0)
    with RawKafka(leaders[0]) as leader:
        large = batch([b"x" * 1_000_000])
        for _ in range(24):
            assert leader.produce(topic, {0: large}, acks=1)[0].error_code == ErrorCode.none
        cluster.start_follower(topic, partition=0)
        for _ in range(3):
            assert leader.produce(topic, {4: batch([b"a"])})[4].error_code == ErrorCode.none

    def ends() -> Counter[int]:
        held = (state["partitions"].get(f"{topic}-0") for state in cluster.state().values())
        return Counter(one["high_watermark"] for one in held if one)

    eventually(lambda: ends() == Counter({24: 2}))


def test_a_fetch_that_waits_for_a_deleted_topic_by_its_id_gets_unknown_topic_id(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    name = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(name)[0]) as waiting:
        module = Question(FETCH, 13).module
        wanted = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fields = fetch_fields(name, {0: 0}, 1_000.0) | {
            "topics": (module.FetchTopic(topic_id=key_of_topic(raw, name), partitions=(wanted,)),)
        }
        question, frame = waiting.question(FETCH, 13, **fields)
        waiting.send(frame)
        eventually(lambda: cluster.purgatories()["fetch"]["pending"])
        states = (Question(DELETE_TOPICS, 6).module.DeleteTopicState(name=name, topic_id=None),)
        assert not raw.ask(DELETE_TOPICS, 6, topics=states, timeout=seconds(30)).responses[0].error_code
        gone = question.read(waiting.frame()).responses[0].partitions[0]
        assert gone.error_code == ErrorCode.unknown_topic_id


@pytest.mark.long
def test_a_call_names_a_broker_that_does_not_answer_and_the_next_call_gets_its_own_answer() -> None:
    with KafkaCluster() as cluster:
        topic = cluster.topic(replicas=1)
        stop(cluster.pids()["1"])
        try:
            with pytest.raises(KafkaClusterError, match=r"state: broker 1 does not answer within .*SIGCONT"):
                cluster.state()
            assert "daemon" in cluster.pids(), "calls that ask no broker are answered meanwhile"
        finally:
            cluster.kill(1, signal.SIGCONT)
        assert "daemon" in cluster.pids()
        assert set(cluster.state()) == {"0", "1", "2"}
        assert cluster.leader(topic) in range(3)


@pytest.mark.long
def test_a_late_answer_is_not_taken_for_the_answer_of_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaCluster() as cluster:
        stop(cluster.pids()["1"])
        try:
            with monkeypatch.context() as patch:
                patch.setattr(cluster_module, "ANSWER_S", 0.2)
                for _ in range(2):
                    with pytest.raises(KafkaClusterError, match=r"does not answer within 0\.2 s"):
                        cluster.state()
        finally:
            cluster.kill(1, signal.SIGCONT)
        time.sleep(0.5)  # now the answers are there
        assert set(cluster.pids()) == {"0", "1", "2", "daemon"}
        assert set(cluster.state()) == {"0", "1", "2"}
