"""Records of a compacted topic need keys, as in Kafka, where compaction keeps the last record of each key."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.batches import CODECS, ZSTD, keyed, stating
from support.kafka.rawkafka import PRODUCE, RawKafka, batch, seconds
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("policy", ["compact", "delete, compact"])
def test_a_compacted_topic_refuses_a_batch_with_a_record_that_has_no_key(
    cluster: KafkaCluster, raw: RawKafka, codec: int, policy: str
) -> None:
    topic = cluster.topic(replicas=1, configs={"cleanup.policy": policy})
    with RawKafka(raw.leaders(topic)[0]) as leader:
        refused = leader.produce(topic, {0: keyed([b"k", None, None], codec=codec)})[0]
        assert (refused.error_code, refused.base_offset) == (ErrorCode.invalid_record, -1)
        assert refused.error_message == "record 1 of a batch has no key: the topic is compacted"
        assert leader.produce(topic, {0: keyed([b"k", b""], codec=codec)})[0].base_offset == 0, "an empty key is a key"
        assert leader.produce(topic, {0: keyed([b"k"], codec=codec)})[0].base_offset == 2


def test_a_topic_that_is_not_compacted_takes_records_without_keys(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: keyed([None], codec=ZSTD)})[0].error_code == ErrorCode.none


@pytest.mark.parametrize(
    "data", [stating(b"no zstd at all", codec=ZSTD), stating(b"no record at all")], ids=["compressed", "plain"]
)
def test_a_compacted_topic_refuses_records_that_cannot_be_read(
    cluster: KafkaCluster, raw: RawKafka, data: bytes
) -> None:
    topic = cluster.topic(replicas=1, configs={"cleanup.policy": "compact"})
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert leader.produce(topic, {0: data})[0].error_code == ErrorCode.invalid_record


def test_a_refused_batch_leaves_the_other_partitions_of_its_request(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(partitions=8, replicas=1, configs={"cleanup.policy": "compact"})
    leaders = raw.leaders(topic)
    bad, good = next((a, b) for a in leaders for b in leaders if a < b and leaders[a] == leaders[b])
    with RawKafka(leaders[bad]) as leader:
        answers = leader.produce(topic, {bad: batch([b"v"]), good: keyed([b"k"], codec=ZSTD)})
        assert (answers[bad].error_code, answers[good].error_code) == (ErrorCode.invalid_record, ErrorCode.none)
        assert leader.fetch(topic, {good: 0})[good].records


def test_records_are_appended_although_their_client_has_left_while_they_were_read(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    """Clients with acks=0 close their connections early, and a compressed batch is unpacked in a thread."""
    topic = cluster.topic(replicas=1, configs={"cleanup.policy": "compact"})
    module = Question(PRODUCE, 9).module
    data = module.PartitionProduceData(index=0, records=keyed([b"k"] * 10_000, codec=ZSTD))
    topics = (module.TopicProduceData(name=topic, partition_data=(data,)),)
    with RawKafka(raw.leaders(topic)[0]) as leaver:
        _, frame = leaver.question(PRODUCE, 9, transactional_id=None, acks=0, timeout=seconds(5), topic_data=topics)
        leaver.send(frame)
    assert cluster.wait_for_records(topic, 10_000) == {0: 10_000}
