"""Commands to a cluster: waits, commands that make no sense, and commands that a silent broker does not answer."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.patience import PATIENCE_S
from support.kafka.rawkafka import DELETE_TOPICS, RawKafka, batch, seconds
from support.real.patience import stop
from timerd_kafka.cluster.placement import coordinator_of
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.testing import cluster as cluster_module
from timerd_kafka.wire.codec import Question

OFFSET_COMMIT, FIND_COORDINATOR = 8, 10


def test_a_wait_for_the_end_of_a_group_ends_when_the_only_topic_of_its_offsets_is_deleted(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic, group = cluster.topic(), "group-of-one-topic"
    coordinator = next(
        one for one in raw.metadata(topic).brokers if one.node_id == coordinator_of(group, len(cluster.state()))
    )
    module = Question(OFFSET_COMMIT, 2).module
    one = module.OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata=None)
    with RawKafka(f"{coordinator.host}:{coordinator.port}") as client:
        answer = client.ask(
            OFFSET_COMMIT, 2, group_id=group, generation_id_or_member_epoch=-1, member_id="",
            retention_time=seconds(-0.001), topics=(module.OffsetCommitRequestTopic(name=topic, partitions=(one,)),),
        )  # fmt: skip
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none
    assert cluster.wait_for_group(group, state="Empty") == ("Empty", 0)
    state = Question(DELETE_TOPICS, 6).module.DeleteTopicState(name=topic, topic_id=None)
    assert not raw.ask(DELETE_TOPICS, 6, topics=(state,), timeout=seconds(10)).responses[0].error_code
    assert cluster.wait_for_group(group, state="Dead", timeout=PATIENCE_S) == ("Dead", 0)


@pytest.mark.long
def test_a_call_with_an_argument_of_a_wrong_type_is_refused_and_ends_no_cluster() -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        before, topic = cluster.pids(), cluster.topic()
        with pytest.raises(KafkaClusterError, match="stop_follower: broker='0': the number of a broker; None for all"):
            cluster.stop_follower(topic, broker="0")  # type: ignore[arg-type]
        with pytest.raises(KafkaClusterError, match=r"\[\]: TypeError: "):
            cluster.command({"do": []})
        assert cluster.pids() == before


@pytest.mark.long
def test_a_silent_coordinator_is_no_dead_group_and_a_silent_broker_hides_no_records_of_other_brokers() -> None:
    with KafkaCluster() as cluster, RawKafka(cluster.bootstrap) as raw, ThreadPoolExecutor(1) as pool:
        topic = cluster.topic(replicas=1)
        with RawKafka(raw.leaders(topic)[0]) as client:
            assert client.produce(topic, {0: batch([b"a"])})[0].error_code is ErrorCode.none
        silent = (cluster.leader(topic) + 1) % 3
        group = next(name for name in map(str, itertools.count()) if coordinator_of(name, 3) == silent)
        assert cluster.wait_for_group(group, state="Dead") == ("Dead", 0)
        stop(cluster.pids()[str(silent)])
        try:
            records = pool.submit(cluster.wait_for_records, topic, 1, timeout=PATIENCE_S)
            says = rf"unknown: its coordinator, broker {silent}, has not answered; broker {silent} does not .*SIGCONT"
            with pytest.raises(KafkaClusterError, match=says):
                cluster.wait_for_group(group, state="Dead", timeout=1)
            assert records.result() == {0: 1}
        finally:
            cluster.kill(silent, signal.SIGCONT)
        assert cluster.wait_for_group(group, state="Dead", timeout=PATIENCE_S) == ("Dead", 0)


@pytest.mark.long
def test_a_fault_that_a_silent_broker_does_not_take_is_set_nowhere_and_one_of_another_broker_is_set() -> None:
    def asked(address: str) -> ErrorCode:
        with RawKafka(address) as client:
            keys = ("g",)
            answer = client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
            return ErrorCode(answer.coordinators[0].error_code)

    with KafkaCluster() as cluster:
        with RawKafka(cluster.bootstrap) as raw:
            addresses = {one.node_id: f"{one.host}:{one.port}" for one in raw.metadata("x").brokers}
        stop(cluster.pids()["1"])
        try:
            with pytest.raises(KafkaClusterError, match=r"fail: broker 1 does not .*SIGCONT.*\. The fault is not set"):
                cluster.fail("FindCoordinator", "NOT_CONTROLLER", times=None)
            assert cluster.faults() == []
            assert [asked(addresses[number]) for number in (0, 2)] == [ErrorCode.none] * 2
            assert cluster.fail("FindCoordinator", "NOT_CONTROLLER", broker=0) == 2
            assert [asked(addresses[0]) for _ in range(2)] == [ErrorCode.not_controller, ErrorCode.none]
        finally:
            cluster.kill(1, signal.SIGCONT)
        cluster.clear_faults()  # all brokers have answered, so broker 1 has taken the earlier commands, too
        assert asked(addresses[1]) is ErrorCode.none
        assert cluster.fail("FindCoordinator", "NOT_CONTROLLER") == 3


@pytest.mark.long
def test_a_topic_that_a_silent_broker_does_not_create_is_an_error_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with KafkaCluster(["--workers", "1", "--replicas", "1"]) as cluster:
        stop(cluster.pids()["0"])
        try:
            with monkeypatch.context() as patch:
                patch.setattr(cluster_module, "ANSWER_S", 0.1)
                says = "topic: a broker does not answer .timed out.; perhaps 'orders' is made"
                with pytest.raises(KafkaClusterError, match=says):
                    cluster.topic("orders")
        finally:
            cluster.kill(0, signal.SIGCONT)
