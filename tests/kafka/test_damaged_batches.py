"""Record batches that are damaged, or state wrong sizes and times: their cost is bounded, and the broker answers."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import cramjam
import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from support.kafka.rawkafka import LIST_OFFSETS, RawKafka, batch, record
from timerd_kafka.apis.data.list_offsets import look
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.log import times
from timerd_kafka.log.batch import HEADER, InvalidBatch, read_produced
from timerd_kafka.log.times import DECOMPRESSED_MAX, RECORDS_MAX, XERIAL, Unreadable, Work, records_of
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

LATEST = -1
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LIMITED = """
import resource, sys
from timerd_kafka.log.times import Unreadable, Work, records_of
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    list(records_of(sys.stdin.buffer.read(), Work()))
except Unreadable as error:
    print("unreadable:", error)
"""


def stating(
    records: bytes, *, codec: int = 0, count: int = 1, base_timestamp: int = 0, max_timestamp: int = 0
) -> bytes:
    """A batch whose header states the given values, true or not, with a right check sum."""
    size = HEADER.size - 12 + len(records)
    header = (0, size, 0, 2, 0, codec, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count)
    made = bytearray(HEADER.pack(*header) + records)
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def xerial(*blocks: bytes) -> bytes:
    """A stream as snappy-java writes it."""
    return XERIAL + bytes(8) + b"".join(len(block).to_bytes(4) + block for block in blocks)


def packed(codec: int, records: bytes) -> bytes:
    """These records, compressed."""
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(records))
    return bytes({GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec].compress(records))


@pytest.fixture
def partitions(tmp_path: Path) -> Iterator[list[Partition]]:
    """Partitions with one replica, which this broker leads."""
    topic = Topic("batches", UUID(int=1), 50, 1)
    made = [Partition(topic, index, (0,), 0, tmp_path / str(index)) for index in range(50)]
    yield made
    for partition in made:
        partition.log.close()


def add(partition: Partition, data: bytes) -> None:
    partition.append(data, read_produced(data))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one for each batch that is decompressed."""
    calls, really = list[int](), times.decompressed

    def counted(codec: int, data: bytes, *more: Work) -> bytes | memoryview:
        calls.append(codec)
        return really(codec, data, *more)

    monkeypatch.setattr(times, "decompressed", counted)
    return calls


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
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
    assert sum(checked) < len(one)


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_without_the_records_that_it_states_is_invalid(count: int) -> None:
    with pytest.raises(InvalidBatch, match=f"has {count} records"):
        read_produced(stating(b"" if count == 1 else record(b"", 0), count=count))


# times ----------------------------------------------------------------------------------------------------------------


def test_a_block_of_snappy_that_states_four_gigabytes_ends_no_process() -> None:
    batch_data = stating(xerial(b"\xff\xff\xff\xff\x0f\x00"), codec=SNAPPY)
    run = subprocess.run([sys.executable, "-c", LIMITED], input=batch_data, capture_output=True, timeout=60)
    assert (run.returncode, run.stdout[:11]) == (0, b"unreadable:"), run.stderr


def test_blocks_of_snappy_java_are_read_until_the_room_is_full() -> None:
    records = record(b"a" * 70_000, 0) + record(b"b" * 70_000, 1, 5)
    blocks = [packed(SNAPPY, records[at : at + 32_768]) for at in range(0, len(records), 32_768)]
    assert list(records_of(stating(xerial(*blocks), codec=SNAPPY, count=2), Work())) == [(0, 0), (1, 5)]
    full = packed(SNAPPY, bytes(DECOMPRESSED_MAX // 2 + 1))
    with pytest.raises(Unreadable):
        list(records_of(stating(xerial(full, full), codec=SNAPPY), Work()))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_each_codec_is_read_but_not_beyond_the_limit_of_decompressed_bytes(codec: int) -> None:
    whole = record(b"a", 0) + record(b"b", 1, 7)
    assert list(records_of(stating(packed(codec, whole), codec=codec, count=2), Work())) == [(0, 0), (1, 7)]
    larger = record(bytes(DECOMPRESSED_MAX), 0)
    with pytest.raises(Unreadable):
        list(records_of(stating(packed(codec, larger), codec=codec), Work()))


def test_batches_that_lie_about_their_times_are_decompressed_twice_at_most(
    partitions: list[Partition], opened: list[int]
) -> None:
    zeros = packed(ZSTD, record(bytes(DECOMPRESSED_MAX - 100), 0))
    lie = stating(zeros, codec=ZSTD, max_timestamp=2**60)
    for _ in range(200):
        add(partitions[0], lie)
    add(partitions[1], batch([b"a", b"b"], timestamps=[0, 2**60]))
    work = Work()
    timestamp, offset = look(partitions[0], 2**59, work)
    assert timestamp == 2**59 and 0 < offset <= 2, "the first batch that was not decompressed"
    assert look(partitions[1], 2**59, work) == (2**59, 0), "no work was left for another partition"
    assert len(opened) <= 2
    assert look(partitions[1], 2**59, Work()) == (2**60, 1)


@pytest.mark.parametrize(
    "records",
    [
        packed(ZSTD, record(bytes(DECOMPRESSED_MAX), 0)),  # larger than the limit
        b"no zstd at all",
    ],
)
def test_batches_that_cannot_be_decompressed_count_as_large_ones(
    partitions: list[Partition], opened: list[int], records: bytes
) -> None:
    work = Work()
    for partition in partitions:
        add(partition, stating(records, codec=ZSTD, max_timestamp=2**60))
        assert look(partition, 2**59, work) == (2**59, 0)
    assert len(opened) <= 2


def test_small_batches_that_lie_are_read_a_thousand_times_at_most(
    partitions: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, lie = list[int](), stating(record(b"", 0), max_timestamp=2**60)
    for _ in range(3_000):
        add(partitions[0], lie)
    really = partitions[0].log.batch_at

    def counted(base: int) -> bytes:
        read.append(base)
        return really(base)

    monkeypatch.setattr(partitions[0].log, "batch_at", counted)
    assert look(partitions[0], 2**59, Work())[0] == 2**59
    assert 500 < len(read) < 1_500


def test_batches_of_tiny_blocks_and_of_tiny_gzip_members_cost_little() -> None:
    tiny = xerial(*[packed(SNAPPY, b"x")] * (RECORDS_MAX + 1))
    with pytest.raises(Unreadable, match="too much"):
        list(records_of(stating(tiny, codec=SNAPPY), Work()))
    whole = packed(GZIP, record(b"a", 0)) + packed(GZIP, b"") * 50_000  # 50,001 members of gzip: clients write one
    assert list(records_of(stating(whole, codec=GZIP), Work())) == [(0, 0)]


@pytest.mark.parametrize(
    ("records", "base_timestamp"),
    [
        (record(b"a", 0, 1), 2**63 - 1),
        (record(b"a", 0, -1), -(2**63)),
        (record(b"a", 1), 2**62),
        (record(b"a", -1), 2**62),
    ],
    ids=["a late time", "an early time", "an offset behind the batch", "an offset before the batch"],
)
def test_impossible_times_and_offsets_are_answered_with_the_start_of_the_batch(
    cluster: KafkaCluster, raw: RawKafka, records: bytes, base_timestamp: int
) -> None:
    topic = cluster.topic(replicas=1)
    batch_data = stating(records, base_timestamp=base_timestamp, max_timestamp=2**62)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        leader.produce(topic, {0: batch([b"before"])})
        assert leader.produce(topic, {0: batch_data})[0].base_offset == 1
        assert listed(leader, topic, 2**61) == (ErrorCode.none, 2**61, 1)


def listed(broker: RawKafka, topic: str, timestamp: int) -> tuple[int, int, int]:
    """The answer of ListOffsets: the error, the time and the offset."""
    module = Question(LIST_OFFSETS, 7).module
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = (module.ListOffsetsTopic(name=topic, partitions=(asked,)),)
    answer = broker.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset
