"""Records through real brokers, by a client that sends exactly the requests that a test makes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.batches import keyed
from support.kafka.patience import eventually
from support.kafka.rawkafka import (
    DELETE_RECORDS,
    DELETE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
    RawKafka,
    batch,
    fetch_fields,
    seconds,
)
from timerd_kafka.apis.topics.bounds import NAMED_MAX
from timerd_kafka.log.batch import read_batches
from timerd_kafka.testing import KafkaCluster, KafkaClusterError
from timerd_kafka.wire.codec import Question

LONG_S = 1_000.0  # RawKafka gives up long before: a request that waits for this time fails its test


def led(raw: RawKafka, topic: str, partition: int = 0) -> RawKafka:
    """A connection to the leader of a partition."""
    return RawKafka(raw.leaders(topic)[partition])


def registered(cluster: KafkaCluster, purgatory: str) -> int:
    return cluster.purgatories()[purgatory]["registered"]


# produce --------------------------------------------------------------------------------------------------------------


def test_acks_all_is_answered_when_all_replicas_have_the_records(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3)
    with led(raw, topic) as leader:
        for number in range(5):
            answer = leader.produce(topic, {0: batch([b"a", b"b"])})[0]
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2 * number)
    states = [state["partitions"].get(f"{topic}-0") for state in cluster.state().values()]
    held = [state for state in states if state]
    assert len(held) == 3 and {state["end"] for state in held} == {10}
    assert len({Path(state["log"]).read_bytes() for state in held}) == 1, "the logs are equal byte for byte"


@pytest.mark.parametrize(
    ("acks", "replicas", "partition"),
    [(0, 3, 0), (1, 3, 0), (-1, 1, 0), (-1, 3, 7)],
    ids=["acks=0", "acks=1", "one replica", "all partitions in error"],
)
def test_a_request_that_needs_no_wait_registers_nothing(
    cluster: KafkaCluster, raw: RawKafka, acks: int, replicas: int, partition: int
) -> None:
    topic = cluster.topic(replicas=replicas)
    with led(raw, topic) as leader:
        before = registered(cluster, "produce")
        if acks == 0:
            _, frame = leader.question(PRODUCE, 9, **produce_fields(topic, {0: batch([b"a"])}, acks=0))
            leader.send(frame)
            eventually(lambda: cluster.state() and leader.fetch(topic, {0: 0}, max_wait=0.2)[0].records)
        else:
            answer = leader.produce(topic, {partition: batch([b"a"])}, acks=acks)[partition]
            expected = ErrorCode.none if partition == 0 else ErrorCode.unknown_topic_or_partition
            assert answer.error_code == expected
        assert registered(cluster, "produce") == before


def produce_fields(topic: str, batches: dict[int, bytes], acks: int, timeout: float = 5.0) -> dict[str, object]:
    module = Question(PRODUCE, 9).module
    data = tuple(module.PartitionProduceData(index=number, records=one) for number, one in batches.items())
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": seconds(timeout),
        "topic_data": (module.TopicProduceData(name=topic, partition_data=data),),
    }


def test_a_stopped_follower_times_out_its_partition_alone(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=8, replicas=3)
    leaders = raw.leaders(topic)
    stopped, neighbour = next(
        (a, b) for a in leaders for b in leaders if a < b and leaders[a] == leaders[b]
    )  # two partitions of one leader
    assert cluster.stop_follower(topic, partition=stopped) == 2
    with led(raw, topic, stopped) as leader:
        begun = time.monotonic()
        answers = leader.produce(
            topic, {stopped: batch([b"a"]), neighbour: batch([b"b"]), 99: batch([b"c"])}, timeout=2
        )
        assert time.monotonic() - begun >= 2.0
        assert answers[stopped].error_code == ErrorCode.request_timed_out
        assert (answers[neighbour].error_code, answers[neighbour].base_offset) == (ErrorCode.none, 0)
        assert answers[99].error_code == ErrorCode.unknown_topic_or_partition
        assert not leader.fetch(topic, {stopped: 0})[stopped].records, (
            "records are not read before all replicas have them"
        )
        assert cluster.start_follower(topic, partition=stopped) == 2
        eventually(lambda: bool(leader.fetch(topic, {stopped: 0}, max_wait=0.1)[stopped].records))


def test_a_batch_that_is_sent_again_is_kept_once_and_waits_for_its_replicas(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(replicas=3)
    with led(raw, topic) as leader:
        answer = leader.ask(
            INIT_PRODUCER_ID,
            4,
            transactional_id=None,
            transaction_timeout=seconds(1),
            producer_id=-1,
            producer_epoch=-1,
        )
        first = batch([b"a", b"b"], producer=answer.producer_id, epoch=0, sequence=0)
        cluster.stop_follower(topic)
        assert leader.produce(topic, {0: first}, timeout=0.2)[0].error_code == ErrorCode.request_timed_out
        assert leader.produce(topic, {0: first}, timeout=0.2)[0].error_code == ErrorCode.request_timed_out
        cluster.start_follower(topic)
        assert leader.produce(topic, {0: first})[0].base_offset == 0
        late = batch([b"d"], producer=answer.producer_id, epoch=0, sequence=5)
        assert leader.produce(topic, {0: late})[0].error_code == ErrorCode.out_of_order_sequence_number
        assert leader.produce(topic, {0: batch([b"c"])})[0].base_offset == 2


def test_ids_of_producers_are_given_once(cluster: KafkaCluster, raw: RawKafka) -> None:
    fields = {"transactional_id": None, "transaction_timeout": seconds(1), "producer_id": -1, "producer_epoch": -1}
    given = set()
    for address in {*raw.leaders(cluster.topic(partitions=4)).values()}:
        with RawKafka(address) as broker:
            given |= {broker.ask(INIT_PRODUCER_ID, 4, **fields).producer_id for _ in range(5)}
    assert len(given) == 20
    again = raw.ask(INIT_PRODUCER_ID, 4, **fields | {"producer_id": 77, "producer_epoch": 3})
    assert (again.producer_id, again.producer_epoch) == (77, 4)
    refused = raw.ask(INIT_PRODUCER_ID, 4, **fields | {"transactional_id": "t"})
    assert refused.error_code == ErrorCode.transactional_id_authorization_failed


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch([b"a"])[:-1], ErrorCode.corrupt_message),
        (b"", ErrorCode.invalid_record),
        (batch([b"a"], magic=1), ErrorCode.unsupported_for_message_format),
        (batch([b"x" * 1_100_000]), ErrorCode.message_too_large),
    ],
)
def test_bad_records_are_refused_and_good_records_of_another_partition_are_appended(
    cluster: KafkaCluster, raw: RawKafka, data: bytes, code: ErrorCode
) -> None:
    topic = cluster.topic(partitions=8, replicas=1)
    leaders = raw.leaders(topic)
    bad, good = next((a, b) for a in leaders for b in leaders if a < b and leaders[a] == leaders[b])
    with led(raw, topic, bad) as leader:
        answers = leader.produce(topic, {bad: data, good: batch([b"b"])})
        assert (answers[bad].error_code, answers[good].error_code) == (code, ErrorCode.none)
        assert answers[bad].base_offset == -1


# fetch ----------------------------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_min_bytes_but_no_longer_than_its_max_wait(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3)
    with led(raw, topic) as leader, led(raw, topic) as other:
        begun = time.monotonic()
        assert not leader.fetch(topic, {0: 0}, max_wait=0.5)[0].records
        assert time.monotonic() - begun >= 0.5
        _, frame = leader.question(FETCH, 12, **fetch_fields(topic, {0: 0}, LONG_S))
        leader.send(frame)
        eventually(lambda: cluster.purgatories()["fetch"]["pending"])
        other.produce(topic, {0: batch([b"a"])})
        answer = Question(FETCH, 12).read(leader.frame())
        assert [one.base_offset for one in read_batches(answer.responses[0].partitions[0].records)] == [0]


def test_min_bytes_is_the_sum_over_all_partitions_also_beyond_64_of_them(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=280, replicas=1)
    leaders = raw.leaders(topic)
    address = leaders[0]
    mine = [number for number, leader in leaders.items() if leader == address]
    assert len(mine) == 70
    one = batch([b"x" * 100])
    with RawKafka(address) as consumer, RawKafka(address) as producer:
        _, frame = consumer.question(
            FETCH, 12, **fetch_fields(topic, dict.fromkeys(mine, 0), LONG_S, min_bytes=len(one) * len(mine))
        )
        consumer.send(frame)
        for number in mine[:-1]:
            producer.produce(topic, {number: one}, acks=1)
        # The fetch waits on 70 keys. In the daemon these are two operations: one has 64 keys at most.
        eventually(lambda: cluster.purgatories()["fetch"]["pending"] >= 2)
        producer.produce(topic, {mine[-1]: one}, acks=1)
        answer = Question(FETCH, 12).read(consumer.frame())
        assert sum(len(data.records or b"") for data in answer.responses[0].partitions) == len(one) * len(mine)


@pytest.mark.parametrize(
    ("offsets", "more", "code"),
    [
        ({0: 0}, {"max_wait": 0.0}, ErrorCode.none),
        ({0: 0}, {"max_wait": LONG_S}, ErrorCode.none),
        ({}, {"max_wait": LONG_S}, None),
        ({0: 7}, {"max_wait": LONG_S}, ErrorCode.offset_out_of_range),
        ({5: 0}, {"max_wait": LONG_S}, ErrorCode.unknown_topic_or_partition),
    ],
    ids=["no time", "enough bytes", "no partitions", "out of range", "unknown"],
)
def test_a_fetch_that_need_not_wait_is_answered_at_once(
    cluster: KafkaCluster, raw: RawKafka, offsets: dict[int, int], more: dict[str, float], code: ErrorCode | None
) -> None:
    topic = cluster.topic(replicas=3)
    with led(raw, topic) as leader:
        leader.produce(topic, {0: batch([b"a"])})
        before = registered(cluster, "fetch")
        answers = leader.fetch(topic, offsets, **more)  # type: ignore[arg-type]
        assert [answer.error_code for answer in answers.values()] == ([] if code is None else [code])
        assert registered(cluster, "fetch") == before


def test_the_first_batch_is_sent_whatever_the_limits_say(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=1, replicas=1)
    with led(raw, topic) as leader:
        one = batch([b"x" * 5_000])
        leader.produce(topic, {0: one})
        leader.produce(topic, {0: one})
        assert len(leader.fetch(topic, {0: 0}, max_bytes=10)[0].records) == len(one)
        assert len(leader.fetch(topic, {0: 0}, partition_max_bytes=10)[0].records) == len(one)
        assert len(leader.fetch(topic, {0: 1})[0].records) == len(one)
        assert not leader.fetch(topic, {0: 2})[0].records


def test_a_consumer_may_fetch_from_a_follower_and_is_answered_when_the_leader_appends_records(
    cluster: KafkaCluster, raw: RawKafka
) -> None:  # KIP-392
    topic = cluster.topic(replicas=3)
    leader_address, follower_address, _ = raw.replicas(topic)[0]
    with RawKafka(leader_address) as leader, RawKafka(follower_address) as follower:
        _, frame = follower.question(FETCH, 12, **fetch_fields(topic, {0: 0}, LONG_S))
        follower.send(frame)
        eventually(lambda: cluster.purgatories()["fetch"]["pending"])
        leader.produce(topic, {0: batch([b"a"])})
        answer = Question(FETCH, 12).read(follower.frame())
        assert len(list(read_batches(answer.responses[0].partitions[0].records))) == 1
        rack = next(
            str(one.node_id) for one in leader.metadata(topic).brokers if f"{one.host}:{one.port}" == follower_address
        )
        there = leader.fetch(topic, {0: 0}, rack=rack, max_wait=LONG_S)[0]
        assert str(there.preferred_read_replica) == rack and not there.records


def test_only_a_follower_itself_can_say_which_records_it_has(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3)
    cluster.stop_follower(topic)
    with led(raw, topic) as leader:
        leader.produce(topic, {0: batch([b"a"])}, acks=1)
        nodes = leader.metadata(topic).topics[0].partitions[0].replica_nodes
        for node in nodes[1:]:
            answer = leader.ask(FETCH, 12, replica_id=node, **fetch_fields(topic, {0: 1}, 0.0))
            assert answer.responses[0].partitions[0].error_code == ErrorCode.cluster_authorization_failed
        assert not leader.fetch(topic, {0: 0})[0].records
    cluster.start_follower(topic)


# offsets and deletion -------------------------------------------------------------------------------------------------


def offsets_at(broker: RawKafka, topic: str, timestamp: int) -> tuple[int, int]:
    module = Question(LIST_OFFSETS, 7).module
    partition = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    answer = broker.ask(
        LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name=topic, partitions=(partition,)),),
    )
    found = answer.topics[0].partitions[0]
    assert found.error_code == ErrorCode.none
    return found.timestamp, found.offset


def test_offsets_by_time_are_those_of_single_records(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with led(raw, topic) as leader:
        assert offsets_at(leader, topic, -3) == (-1, -1)
        leader.produce(topic, {0: batch([b"a", b"b", b"c"], timestamps=[1_000, 1_010, 1_020])})
        leader.produce(topic, {0: batch([b"d"], timestamps=[2_000])})
        assert [offsets_at(leader, topic, time) for time in (0, 1_001, 1_020, 1_021, 2_001)] == [
            (1_000, 0), (1_010, 1), (1_020, 2), (2_000, 3), (-1, -1),
        ]  # fmt: skip
        assert [offsets_at(leader, topic, which)[1] for which in (-1, -2)] == [4, 0]
        assert offsets_at(leader, topic, -3) == (2_000, 3)


def listed(broker: RawKafka, topic: str, version: int, *asked: dict[str, int]) -> list[tuple[int, int, int]]:
    """The answers of ListOffsets: error, time, offset. Each of `asked` is about the first partition."""
    module = Question(LIST_OFFSETS, version).module
    parts = tuple(module.ListOffsetsPartition(partition_index=0, **one) for one in asked)
    fields: dict[str, object] = {"isolation_level": 0} if version >= 2 else {}
    fields |= {"timeout": seconds(5)} if version >= 10 else {}
    topics = (module.ListOffsetsTopic(name=topic, partitions=parts),)
    answer = broker.ask(LIST_OFFSETS, version, replica_id=-1, topics=topics, **fields)
    (found,) = answer.topics
    return [(one.error_code, one.timestamp, one.offset) for one in found.partitions]


def test_the_special_times_of_list_offsets_have_the_versions_of_kafka(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    unsupported = (ErrorCode.unsupported_version, -1, -1)
    with led(raw, topic) as leader:
        leader.produce(topic, {0: batch([b"a"], timestamps=[1_000])})
        for timestamp, first, expected in (
            (-1, 1, (-1, 1)), (-2, 1, (-1, 0)), (-3, 7, (1_000, 0)), (-4, 8, (-1, 0)), (-5, 9, (-1, -1)),
            (-6, 11, (-1, -1)),
        ):  # fmt: skip
            for version in range(1, 12):
                found = listed(leader, topic, version, {"timestamp": timestamp})
                assert found == [(ErrorCode.none, *expected) if version >= first else unsupported], (timestamp, version)
        for timestamp in (-7, -(2**63)):
            assert listed(leader, topic, 11, {"timestamp": timestamp}) == [unsupported]


def test_list_offsets_refuses_a_leader_epoch_that_does_not_exist_yet(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with led(raw, topic) as leader:
        answers = [
            listed(leader, topic, version, {"timestamp": -1, "current_leader_epoch": epoch})
            for version in (4, 11)
            for epoch in (-1, 0, 1)
        ]
        good, refused = [(ErrorCode.none, -1, 0)], [(ErrorCode.unknown_leader_epoch, -1, -1)]
        assert answers == [good, good, refused] * 2


def test_a_partition_that_list_offsets_names_twice_is_refused_once(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with led(raw, topic) as leader:
        assert listed(leader, topic, 7, {"timestamp": -1}, {"timestamp": -2}) == [(ErrorCode.invalid_request, -1, -1)]


def delete_before(broker: RawKafka, topic: str, *offsets: int) -> tuple[int, int]:
    """The answer of DeleteRecords about the first partition, which is named with each of these offsets."""
    module = Question(DELETE_RECORDS, 2).module
    partitions = tuple(module.DeleteRecordsPartition(partition_index=0, offset=offset) for offset in offsets)
    answer = broker.ask(
        DELETE_RECORDS,
        2,
        topics=(module.DeleteRecordsTopic(name=topic, partitions=partitions),),
        timeout=seconds(5),
    )
    (found,) = answer.topics[0].partitions
    return found.error_code, found.low_watermark


def test_deleted_records_are_gone_at_all_replicas(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3)
    with led(raw, topic) as leader:
        for _ in range(4):
            leader.produce(topic, {0: batch([b"a", b"b"])})
        assert delete_before(leader, topic, 3) == (ErrorCode.none, 3)
        assert leader.fetch(topic, {0: 2})[0].error_code == ErrorCode.offset_out_of_range
        assert leader.fetch(topic, {0: 3})[0].log_start_offset == 3
        assert offsets_at(leader, topic, -2)[1] == 3
        assert delete_before(leader, topic, 9)[0] == ErrorCode.offset_out_of_range
        assert delete_before(leader, topic, -1) == (ErrorCode.none, 8)
    for address in raw.replicas(topic)[0]:
        with RawKafka(address) as replica:
            assert replica.fetch(topic, {0: 7})[0].error_code == ErrorCode.offset_out_of_range


@pytest.mark.parametrize("policy", ["compact", ""])
def test_records_of_a_topic_whose_policy_is_not_to_delete_are_not_deleted(
    cluster: KafkaCluster, raw: RawKafka, policy: str
) -> None:
    topic = cluster.topic(replicas=1, configs={"cleanup.policy": policy})
    with led(raw, topic) as leader:
        assert leader.produce(topic, {0: keyed([b"k", b"l"])})[0].error_code == ErrorCode.none
        for offset in (1, -1, 9):
            assert delete_before(leader, topic, offset) == (ErrorCode.policy_violation, -1)
        assert offsets_at(leader, topic, -2)[1] == 0


def test_the_last_offset_counts_if_a_partition_is_named_twice_in_delete_records(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    topic = cluster.topic(replicas=1)
    with led(raw, topic) as leader:
        leader.produce(topic, {0: batch([b"a", b"b", b"c"])})
        assert delete_before(leader, topic, 3, 1) == (ErrorCode.none, 1)
        assert offsets_at(leader, topic, -2)[1] == 1
        assert delete_before(leader, topic, 2, 9) == (ErrorCode.offset_out_of_range, -1)
        assert offsets_at(leader, topic, -2)[1] == 1, "nothing is deleted by a request that is refused"


def test_a_topic_that_is_created_again_inherits_nothing(cluster: KafkaCluster, raw: RawKafka) -> None:
    name = cluster.topic(replicas=3)
    with led(raw, name) as leader:
        leader.produce(name, {0: batch([b"old"])})
        waiting = RawKafka(raw.leaders(name)[0])
        _, frame = waiting.question(FETCH, 12, **fetch_fields(name, {0: 1}, LONG_S))
        waiting.send(frame)
        eventually(lambda: cluster.purgatories()["fetch"]["pending"])
    module = Question(DELETE_TOPICS, 6).module
    answer = raw.ask(DELETE_TOPICS, 6, topics=(module.DeleteTopicState(name=name, topic_id=None),), timeout=seconds(30))
    assert answer.responses[0].error_code == ErrorCode.none
    gone = Question(FETCH, 12).read(waiting.frame()).responses[0].partitions[0]
    assert gone.error_code == ErrorCode.unknown_topic_or_partition, (
        "the fetch waited for the deleted topic, and is answered"
    )
    waiting.close()
    assert raw.metadata(name).topics[0].error_code == ErrorCode.unknown_topic_or_partition
    assert cluster.topic(name, replicas=3) == name
    with led(raw, name) as leader:
        assert not leader.fetch(name, {0: 0})[0].records
        assert leader.produce(name, {0: batch([b"new"])})[0].base_offset == 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"partitions": 0}, "0 partitions: 1 to "),
        ({"partitions": 10_000}, "10000 partitions: 1 to "),
        ({"replicas": 5}, "5 replicas: 1 to 4, the brokers"),
        ({"configs": {"color": "red"}}, "color: Kafka 4 has no such configuration of a topic; it has cleanup.policy, "),
        ({"configs": {"cleanup.policy": "compress"}}, "cleanup.policy=compress: some of compact, delete"),
        ({"configs": {"max.message.bytes": "big"}}, "max.message.bytes=big: an integer"),
        ({"name": "a/b"}, "'a/b': 1 to 249 letters"),
    ],
)
def test_a_topic_with_wrong_settings_is_refused_with_the_reason(cluster: KafkaCluster, more: dict, error: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(KafkaClusterError, match=re.escape(error)):
        cluster.topic(**more)


def test_requests_that_wait_for_a_deleted_topic_are_answered(cluster: KafkaCluster, raw: RawKafka) -> None:
    name = cluster.topic(replicas=3)
    cluster.stop_follower(name)
    address = raw.leaders(name)[0]
    with RawKafka(address) as producing, RawKafka(address) as deleting:
        question, frame = producing.question(
            PRODUCE, 9, **produce_fields(name, {0: batch([b"a"])}, acks=-1, timeout=LONG_S)
        )
        producing.send(frame)
        module = Question(DELETE_RECORDS, 2).module
        partition = module.DeleteRecordsPartition(partition_index=0, offset=0)
        topics = (module.DeleteRecordsTopic(name=name, partitions=(partition,)),)
        records, frame = deleting.question(DELETE_RECORDS, 2, topics=topics, timeout=seconds(LONG_S))
        deleting.send(frame)
        eventually(lambda: cluster.purgatories()["produce"]["pending"])
        module = Question(DELETE_TOPICS, 6).module
        states = (module.DeleteTopicState(name=name, topic_id=None),)
        answer = raw.ask(DELETE_TOPICS, 6, topics=states, timeout=seconds(30))
        assert answer.responses[0].error_code == ErrorCode.none
        produced = question.read(producing.frame()).responses[0].partition_responses[0]
        assert produced.error_code == ErrorCode.unknown_topic_or_partition
        assert records.read(deleting.frame()).topics[0].partitions[0].partition_index == 0


def test_a_partition_that_is_named_twice_is_refused(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with led(raw, topic) as leader:
        module = Question(PRODUCE, 9).module
        data = (batch([b"bad"])[:-1], batch([b"good"]))
        parts = tuple(module.PartitionProduceData(index=0, records=records) for records in data)
        fields = produce_fields(topic, {}, acks=1) | {
            "topic_data": (module.TopicProduceData(name=topic, partition_data=parts),)
        }
        answer = leader.ask(PRODUCE, 9, **fields)
        codes = [part.error_code for part in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.invalid_request] * 2
        assert leader.produce(topic, {0: batch([b"a"])})[0].base_offset == 0, "nothing was appended"
        module = Question(FETCH, 12).module
        wanted = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        fields = fetch_fields(topic, {0: 0}, 0.0) | {
            "topics": (module.FetchTopic(topic=topic, partitions=(wanted,) * 3),)
        }
        (answered,) = leader.ask(FETCH, 12, **fields).responses
        assert [bool(part.records) for part in answered.partitions] == [True, False, False]


def naming(api: int, partitions: int) -> tuple[int, dict[str, object]]:
    """A version of an API, and the fields of a request that names this number of partitions."""
    indexes = range(partitions)
    if api == PRODUCE:
        return 9, produce_fields("t", dict.fromkeys(indexes, b""), acks=-1)
    if api == FETCH:
        return 12, fetch_fields("t", dict.fromkeys(indexes, 0), 0.0)
    if api == LIST_OFFSETS:
        module = Question(LIST_OFFSETS, 7).module
        parts = tuple(module.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes)
        topics = (module.ListOffsetsTopic(name="t", partitions=parts),)
        return 7, {"replica_id": -1, "isolation_level": 0, "topics": topics}
    module = Question(DELETE_RECORDS, 2).module
    parts = tuple(module.DeleteRecordsPartition(partition_index=index, offset=0) for index in indexes)
    return 2, {"timeout": seconds(5), "topics": (module.DeleteRecordsTopic(name="t", partitions=parts),)}


@pytest.mark.parametrize("api", [PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS])
def test_a_request_that_names_more_partitions_than_a_cluster_has_is_refused(cluster: KafkaCluster, api: int) -> None:
    with RawKafka(cluster.bootstrap) as raw:
        version, fields = naming(api, NAMED_MAX)
        assert raw.ask(api, version, **fields)
        version, fields = naming(api, NAMED_MAX + 1)
        with pytest.raises(EOFError):
            raw.ask(api, version, **fields)


@pytest.mark.parametrize("limits", [{"max_bytes": -1}, {"partition_max_bytes": -(2**31)}, {"max_bytes": 100}])
def test_a_fetch_with_a_tiny_limit_gets_the_first_batch_alone(
    cluster: KafkaCluster, raw: RawKafka, limits: dict[str, int]
) -> None:
    topic = cluster.topic(partitions=8, replicas=1)
    leaders = raw.leaders(topic)
    one, other = next((a, b) for a in leaders for b in leaders if a < b and leaders[a] == leaders[b])
    with led(raw, topic, one) as leader:
        for _ in range(3):
            leader.produce(topic, {one: batch([b"x" * 1_000]), other: batch([b"y" * 1_000])}, acks=1)
        answers = leader.fetch(topic, {one: 0, other: 0}, **limits)  # type: ignore[arg-type]
        assert sum(len(answer.records or b"") for answer in answers.values()) == len(batch([b"x" * 1_000]))
