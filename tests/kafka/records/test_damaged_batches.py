"""More than one batch for a partition, and batches that state a wrong number of records: refused, at little cost."""

from __future__ import annotations

import tracemalloc

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from support.kafka.batches import stating
from support.kafka.rawkafka import LIST_OFFSETS, RawKafka, batch, record
from timerd_kafka.log.batch import InvalidBatch, read_produced
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

LATEST = -1


# many batches ---------------------------------------------------------------------------------------------------------


def test_a_second_batch_of_a_partition_is_invalid_and_nothing_is_appended(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        answer = leader.produce(topic, {0: batch([b"a"]) + batch([b"b"])})[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_record, -1)
        assert "one for each partition" in answer.error_message
        assert listed(leader, topic, LATEST) == (ErrorCode.none, -1, 0)


def test_a_frame_full_of_batches_is_refused_after_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch([b""])
    data, checked = one * ((32 << 20) // len(one)), list[int]()

    def counted(part: memoryview) -> int:
        checked.append(len(part))
        return crc32c(part)

    monkeypatch.setattr("timerd_kafka.log.batch.crc32c", counted)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidBatch, match="one for each partition"):
            read_produced(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20  # threads that are left may allocate, too
    finally:
        tracemalloc.stop()
    assert sum(checked) < len(one)


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_without_the_records_that_it_states_is_invalid(count: int) -> None:
    with pytest.raises(InvalidBatch, match=f"has {count} records"):
        read_produced(stating(b"" if count == 1 else record(b"", 0), count=count))


def listed(broker: RawKafka, topic: str, timestamp: int) -> tuple[int, int, int]:
    """The answer of ListOffsets: the error, the time and the offset."""
    module = Question(LIST_OFFSETS, 7).module
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = (module.ListOffsetsTopic(name=topic, partitions=(asked,)),)
    answer = broker.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset
