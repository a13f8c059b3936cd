"""ListOffsets by time: the answer is exact, however many records have to be read, and others are served meanwhile.

Also: the times of records that the broker checks or sets, and the end of records by their topic's retention.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka.admin
import pytest
from kio.schema.errors import ErrorCode

from support.kafka.batches import CODECS, GZIP, SNAPPY, ZSTD, packed, stating
from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.rawkafka import LIST_OFFSETS, RawKafka, batch, record
from timerd_kafka.apis.data import reading
from timerd_kafka.apis.data.list_offsets import MAX_TIMESTAMP, look
from timerd_kafka.apis.data.reading import Reading, Refused
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.log import times
from timerd_kafka.log.batch import TIMESTAMP_IS_APPEND, Batch, read_batches, read_header, read_produced
from timerd_kafka.log.times import RECORDS_MAX, XERIAL, Unreadable, records_of, unpacked
from timerd_kafka.replicas.partition import Partition
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question

NOTHING = (-1, -1)
LIMITED = """
import resource, sys
from timerd_kafka.log.batch import read_header
from timerd_kafka.log.times import Unreadable, unpacked
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
batch = sys.stdin.buffer.read()
try:
    unpacked(read_header(batch, 0), batch)
except Unreadable as error:
    print("unreadable:", error)
"""


def xerial(*blocks: bytes) -> bytes:
    """A stream as snappy-java writes it."""
    return XERIAL + bytes(8) + b"".join(len(block).to_bytes(4) + block for block in blocks)


def timed(timestamps: list[int], *, codec: int = 0, value: bytes = b"v", attributes: int = 0) -> bytes:
    """A batch with a record for each of these times."""
    records = b"".join(record(value, delta, each - timestamps[0]) for delta, each in enumerate(timestamps))
    return stating(
        packed(codec, records),
        codec=codec | attributes,
        count=len(timestamps),
        base_timestamp=timestamps[0],
        max_timestamp=max(timestamps),
    )


def read(data: bytes) -> list[tuple[int, int]]:
    header = read_header(data, 0)
    return [(one.offset, one.timestamp) for one in records_of(header, unpacked(header, data))]


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    """A partition with one replica, which this broker leads."""
    made = Partition(Topic("times", UUID(int=1), 1, 1), 0, (0,), 0, tmp_path)
    yield made
    made.log.close()


@pytest.fixture
def small_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "ROOM_MIN", 1 << 12)
    monkeypatch.setattr(times, "ROOM_MAX", 1 << 16)


def add(partition: Partition, data: bytes) -> None:
    partition.append(data, read_produced(data))


def find(partition: Partition, timestamp: int) -> tuple[int, int]:
    return asyncio.run(look(partition, timestamp, Reading(asyncio.Lock())))


# the records of a batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_the_times_of_single_records_are_read_in_each_codec(codec: int) -> None:
    assert read(timed([1_000, 900, 2_000], codec=codec)) == [(0, 1_000), (1, 900), (2, 2_000)]


def test_the_records_of_a_batch_with_log_append_time_have_the_time_of_the_batch() -> None:
    assert read(timed([1_000, 2_000], attributes=TIMESTAMP_IS_APPEND)) == [(0, 2_000), (1, 2_000)]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_is_unpacked_up_to_a_limit(codec: int, small_rooms: None) -> None:
    fits, larger = record(bytes(50_000), 0, 7), record(bytes(1 << 16), 0)
    assert read(stating(packed(codec, fits), codec=codec)) == [(0, 7)]
    with pytest.raises(Unreadable, match="unpacks to"):
        read(stating(packed(codec, larger), codec=codec))


def test_blocks_of_snappy_java_are_unpacked_up_to_the_same_limit(small_rooms: None) -> None:
    records = record(b"a" * 30_000, 0) + record(b"b" * 30_000, 1, 5)
    blocks = [packed(SNAPPY, records[at : at + 32_768]) for at in range(0, len(records), 32_768)]
    assert read(stating(xerial(*blocks), codec=SNAPPY, count=2)) == [(0, 0), (1, 5)]
    full = packed(SNAPPY, bytes((1 << 15) + 1))
    with pytest.raises(Unreadable, match="unpacks to"):
        read(stating(xerial(full, full), codec=SNAPPY))


def test_a_block_of_snappy_that_states_four_gigabytes_ends_no_process() -> None:
    batch_data = stating(xerial(b"\xff\xff\xff\xff\x0f\x00"), codec=SNAPPY)
    run = subprocess.run([sys.executable, "-c", LIMITED], input=batch_data, capture_output=True)
    assert (run.returncode, run.stdout[:11]) == (0, b"unreadable:"), run.stderr


def test_only_the_first_member_of_a_gzip_stream_is_read() -> None:
    whole = packed(GZIP, record(b"a", 0)) + packed(GZIP, b"") * 50_000  # clients write only one member
    assert read(stating(whole, codec=GZIP)) == [(0, 0)]


def test_a_compressed_batch_of_more_records_than_clients_write_is_not_read() -> None:
    with pytest.raises(Unreadable, match=f"a compressed batch of {RECORDS_MAX + 1} records: {RECORDS_MAX} at most"):
        read(stating(packed(ZSTD, record(b"a", 0)), codec=ZSTD, count=RECORDS_MAX + 1))


# looking for a record -------------------------------------------------------------------------------------------------


def test_the_found_records_are_those_of_a_list(partition: Partition, rng: random.Random) -> None:
    """The batches have random codecs, and times in no order. At times the partition's first records are deleted."""
    model: list[int] = []
    for _ in range(30):
        times_of_batch = [rng.randrange(1_000) for _ in range(rng.randint(1, 20))]
        add(partition, timed(times_of_batch, codec=rng.choice(CODECS)))
        model += times_of_batch
        if rng.random() < 0.3:
            partition.delete_before(rng.randint(partition.start_offset, len(model)))
        left = list(enumerate(model))[partition.start_offset :]
        for timestamp in (0, 500, rng.randrange(1_100)):
            expected = next(((time, offset) for offset, time in left if time >= timestamp), NOTHING)
            assert find(partition, timestamp) == expected
        latest = max((time for _, time in left), default=-1)
        expected = next(((time, offset) for offset, time in left if time == latest), NOTHING)
        assert find(partition, MAX_TIMESTAMP) == expected


def test_the_latest_record_is_one_that_was_not_deleted(partition: Partition) -> None:
    """Before, no record was found: the header still states the largest time, which is that of a deleted record."""
    add(partition, batch([b"a", b"b", b"c"], timestamps=[300, 100, 200]))
    partition.delete_before(1)
    assert find(partition, MAX_TIMESTAMP) == (200, 2)


def test_a_batch_that_states_a_later_time_than_its_records_have_is_passed_over(partition: Partition) -> None:
    for _ in range(50):
        add(partition, stating(record(b"", 0, 10), max_timestamp=2**60))
    add(partition, timed([5, 20]))
    assert find(partition, 15) == (20, 51)
    assert find(partition, MAX_TIMESTAMP) == (20, 51)
    assert find(partition, 21) == NOTHING


@pytest.mark.parametrize(
    "data",
    [
        stating(b"no zstd at all", codec=ZSTD, max_timestamp=2**62),
        stating(record(b"a", 0, 1), base_timestamp=2**63 - 1, max_timestamp=2**62),
        stating(record(b"a", 0, -1), base_timestamp=-(2**63), max_timestamp=2**62),
        stating(record(b"a", 1), base_timestamp=2**62, max_timestamp=2**62),
        stating(record(b"a", -1), base_timestamp=2**62, max_timestamp=2**62),
    ],
    ids=["not compressed", "a late time", "an early time", "an offset behind the batch", "an offset before the batch"],
)
def test_a_batch_that_cannot_be_read_is_an_error_and_no_wrong_answer(partition: Partition, data: bytes) -> None:
    add(partition, timed([1_000]))
    add(partition, data)
    assert find(partition, 999) == (1_000, 0)
    for timestamp in (1_001, MAX_TIMESTAMP):
        with pytest.raises(Refused) as refused:
            find(partition, timestamp)
        assert refused.value.code == ErrorCode.corrupt_message


# others are served ----------------------------------------------------------------------------------------------------


def test_others_are_served_while_a_request_reads(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SLICE_S", 0.0)
    add(partition, timed(list(range(10_000)), codec=ZSTD))
    add(partition, timed(list(range(10_000, 20_000))))
    served = 0

    async def others() -> None:
        nonlocal served
        while True:
            await asyncio.sleep(0)
            served += 1

    async def main() -> tuple[int, int]:
        beside = asyncio.create_task(others())
        found = await look(partition, 19_999, Reading(asyncio.Lock()))
        beside.cancel()
        return found

    assert asyncio.run(main()) == (19_999, 19_999)
    assert served >= 10_000 // reading.RECORDS


def test_others_are_served_between_partitions_that_have_no_wanted_record(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may name some 4,000 partitions, and for each the broker goes through the times of all its batches."""
    monkeypatch.setattr(reading, "SLICE_S", 0.0)
    add(partition, timed([1_000]))
    served = 0

    async def others() -> None:
        nonlocal served
        while True:
            await asyncio.sleep(0)
            served += 1

    async def main() -> None:
        beside, of_request = asyncio.create_task(others()), Reading(asyncio.Lock())
        for _ in range(100):
            assert await look(partition, 2_000, of_request) == NOTHING
        beside.cancel()

    asyncio.run(main())
    assert served >= 98


def test_a_batch_is_unpacked_alone_although_the_client_of_another_has_left(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread goes on, and keeps its memory, after its request was cancelled. So the next batch waits for it."""
    add(partition, timed([5], codec=ZSTD))
    begun, may_end = threading.Event(), threading.Event()

    def slowly(header: Batch, data: bytes) -> bytes | memoryview:
        begun.set()
        may_end.wait()
        return unpacked(header, data)

    monkeypatch.setattr(reading, "unpacked", slowly)

    async def main() -> None:
        unpacking = asyncio.Lock()
        left = asyncio.create_task(look(partition, 5, Reading(unpacking)))
        try:
            await asyncio.to_thread(begun.wait)
            for _ in range(5):  # a connection does so when the client closes its end, and when it is lost
                left.cancel()
                await asyncio.sleep(0)
            assert unpacking.locked()
        finally:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert not unpacking.locked()
        assert await look(partition, 5, Reading(unpacking)) == (5, 0)

    asyncio.run(main())


def test_a_partition_that_is_deleted_meanwhile_is_unknown(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SLICE_S", 0.0)
    add(partition, timed(list(range(10_000))))

    async def main() -> None:
        looking = asyncio.create_task(look(partition, 9_999, Reading(asyncio.Lock())))
        await asyncio.sleep(0)
        partition.is_deleted = True
        await looking

    with pytest.raises(Refused) as refused:
        asyncio.run(main())
    assert refused.value.code == ErrorCode.unknown_topic_or_partition


# through the broker ---------------------------------------------------------------------------------------------------


def offsets_at(broker: RawKafka, topic: str, timestamp: int, partitions: int = 1) -> list[tuple[int, int, int]]:
    """The answers of one ListOffsets: for each partition the error, the time and the offset."""
    module = Question(LIST_OFFSETS, 7).module
    asked = tuple(
        module.ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(partitions)
    )
    topics = (module.ListOffsetsTopic(name=topic, partitions=asked),)
    answer = broker.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    return [(each.error_code, each.timestamp, each.offset) for each in answer.topics[0].partitions]


def test_one_request_about_many_records_is_answered_exactly(cluster: KafkaCluster, raw: RawKafka) -> None:
    """Before, a request read 20,000 records at most, so it got wrong offsets for its later partitions."""
    begin, partitions = 10**9, 8
    topic = cluster.topic(partitions=partitions, replicas=1)
    data = timed([begin + 10 * number for number in range(9_000)], codec=ZSTD, value=b"x" * 60)
    leaders = raw.leaders(topic)
    for address in set(leaders.values()):
        mine = [index for index in range(partitions) if leaders[index] == address]
        with RawKafka(address) as leader:
            for index in mine:
                leader.produce(topic, {index: data})
            answers = offsets_at(leader, topic, begin + 75_000, partitions)
            assert {answers[index] for index in mine} == {(ErrorCode.none, begin + 75_000, 7_500)}
            answers = offsets_at(leader, topic, MAX_TIMESTAMP, partitions)
            assert {answers[index] for index in mine} == {(ErrorCode.none, begin + 89_990, 8_999)}


def test_a_batch_that_unpacks_to_24_megabytes_is_read(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        leader.produce(topic, {0: timed(list(range(1_000, 4_000)), codec=ZSTD, value=bytes(8_000))})
        assert offsets_at(leader, topic, 3_500) == [(ErrorCode.none, 3_500, 2_500)]


# times that the broker checks, or sets --------------------------------------------------------------------------------

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(address: str, topic: str, times_ms: list[int]) -> Any:
    with RawKafka(address) as leader:
        return leader.produce(topic, {0: batch([b"v"] * len(times_ms), timestamps=times_ms)})[0]


def change(cluster: KafkaCluster, topic: str, name: str, value: str) -> None:
    """Change a configuration of a topic."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": cluster.bootstrap})
    entry = confluent_kafka.admin.ConfigEntry(
        name, value, incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET
    )
    resource = confluent_kafka.admin.ConfigResource(
        confluent_kafka.admin.ResourceType.TOPIC, topic, incremental_configs=[entry]
    )
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(PATIENCE_S)


def test_records_far_ahead_of_the_brokers_clock_are_refused(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic, now = cluster.topic(replicas=1), now_ms()
    leader = raw.leaders(topic)[0]
    assert send(leader, topic, [now, now + HOUR_MS // 2, -1]).error_code == ErrorCode.none
    for ahead in ([now, now + 2 * HOUR_MS, now], [now + 2 * HOUR_MS, now]):
        refused = send(leader, topic, ahead)
        assert refused.error_code == ErrorCode.invalid_timestamp and "after.max.ms=3600000" in refused.error_message
    assert send(leader, topic, [5]).base_offset == 3, "a record may be old"


def test_a_topic_may_bound_the_times_of_its_records(cluster: KafkaCluster, raw: RawKafka) -> None:
    configs = {"message.timestamp.before.max.ms": str(HOUR_MS), "message.timestamp.after.max.ms": str(2**63 - 1)}
    topic, now = cluster.topic(replicas=1, configs=configs), now_ms()
    leader = raw.leaders(topic)[0]
    assert send(leader, topic, [now, now + 99 * HOUR_MS]).error_code == ErrorCode.none
    refused = send(leader, topic, [now - 2 * HOUR_MS, now])
    assert refused.error_code == ErrorCode.invalid_timestamp and "before.max.ms=3600000" in refused.error_message


@pytest.mark.parametrize("version", [3, 9, 12])
def test_records_of_a_topic_with_log_append_time_get_the_time_of_the_broker(
    cluster: KafkaCluster, raw: RawKafka, version: int
) -> None:
    topic = cluster.topic(replicas=2, configs={"message.timestamp.type": "LogAppendTime"})
    addresses = raw.replicas(topic)[0]
    before = now_ms()
    sent = batch([b"a", b"b"], timestamps=[before + 99 * HOUR_MS, 7], producer=4_242 + version, epoch=0, sequence=0)
    with RawKafka(addresses[0]) as leader:
        answers = [leader.produce(topic, {0: sent}, version=version)[0] for _ in range(2)]  # the second is a duplicate
    stated = {round(answer.log_append_time.timestamp() * 1_000) for answer in answers}
    assert {(answer.error_code, answer.base_offset) for answer in answers} == {(ErrorCode.none, 0)}
    (at,) = stated
    assert before <= at <= now_ms()
    for address in addresses:
        with RawKafka(address) as replica:
            found = replica.fetch(topic, {0: 0}, max_wait=PATIENCE_S - 5)[0].records
        (header,) = read_batches(found)  # the check sum is right
        assert header.attributes & TIMESTAMP_IS_APPEND and header.max_timestamp == at
        assert [one.timestamp for one in records_of(header, unpacked(header, found))] == [at, at]


def test_a_batch_that_was_appended_before_is_answered_with_the_time_of_its_records(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    """As in Kafka. The time of an answer is a datetime, which ends with the year 9999.

    For a later time the answer has none. Before, there was no answer at all.
    """
    topic = cluster.topic(replicas=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    sent = [
        batch([b"a"], timestamps=[each], producer=77, epoch=0, sequence=number)
        for number, each in enumerate([1_000, 10**18])
    ]
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert [leader.produce(topic, {0: each})[0].log_append_time for each in sent] == [None, None]
        for kind in ("CreateTime", "LogAppendTime"):
            change(cluster, topic, "message.timestamp.type", kind)
            answers = [leader.produce(topic, {0: each})[0] for each in sent]
            assert [(one.error_code, one.base_offset) for one in answers] == [(ErrorCode.none, 0), (ErrorCode.none, 1)]
            assert answers[0].log_append_time.timestamp() == 1.0 and answers[1].log_append_time is None


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_records_are_kept_and_found_although_their_header_states_a_time_before_them(
    cluster: KafkaCluster, raw: RawKafka, codec: int
) -> None:
    topic, now = cluster.topic(replicas=1, configs={"retention.ms": str(HOUR_MS)}), now_ms()
    records = record(b"v", 0) + record(b"w", 1, 5)
    sent = stating(packed(codec, records), codec=codec, count=2, base_timestamp=now, max_timestamp=0)
    with RawKafka(raw.leaders(topic)[0]) as leader:
        assert [leader.produce(topic, {0: sent})[0].base_offset for _ in range(2)] == [0, 2]
        found = leader.fetch(topic, {0: 0})[0]
        assert (found.error_code, found.log_start_offset) == (ErrorCode.none, 0)
        assert [header.max_timestamp for header in read_batches(found.records)] == [now + 5] * 2  # check sums are right
        assert offsets_at(leader, topic, now + 1) == [(ErrorCode.none, now + 5, 1)]


def test_a_producers_bit_for_append_time_does_not_count(partition: Partition) -> None:
    """As in Kafka, where the topic alone says whose time counts."""
    sent = batch([b"a"], timestamps=[7_000], attributes=TIMESTAMP_IS_APPEND)
    partition.append(sent, read_produced(sent))
    (header,) = read_batches(partition.log.batch_at(0))
    assert (header.attributes, header.max_timestamp) == (0, 7_000)


# retention ------------------------------------------------------------------------------------------------------------


def retained(partition: Partition, now: int, **configs: str) -> int:
    """Delete what retention ends at the time `now`, with these configurations. Returns the start offset after that."""
    named = {name.replace("_", "."): value for name, value in configs.items()}
    partition.topic = dataclasses.replace(partition.topic, configs=named)
    moved, before = partition.retain(now), partition.start_offset
    assert not partition.retain(now) and moved in (True, False) and partition.start_offset == before
    return partition.start_offset


def fill(partition: Partition, *timestamps: int) -> int:
    """Append a batch of two records for each time. Returns the size of a batch."""
    for each in timestamps:
        sent = batch([b"v", b"w"], timestamps=[each, each])
        partition.append(sent, read_produced(sent))
    return partition.log.size // len(timestamps)


def test_retention_by_time_ends_whole_old_batches_and_keeps_the_last(partition: Partition) -> None:
    fill(partition, 1_000, 3_000, 2_000, 5_000)
    assert retained(partition, 99_000) == 0, "without a bound"
    assert retained(partition, 2_000, retention_ms="1000") == 0, "a batch as old as the bound stays"
    assert retained(partition, 3_500, retention_ms="1000") == 2, "the third batch is old, but behind a young one"
    assert retained(partition, 9_999, retention_ms="1000", cleanup_policy="compact") == 2
    assert retained(partition, 9_999, retention_ms="1000", cleanup_policy="") == 2
    assert retained(partition, 99_999, retention_ms="1000", cleanup_policy="compact,delete") == 6
    assert retained(partition, 99_999, retention_ms="0", retention_bytes="0") == 6, "the last batch stays"


def test_retention_by_size_ends_batches_as_long_as_enough_bytes_are_left(partition: Partition) -> None:
    size = fill(partition, *[-1] * 5)
    assert retained(partition, 99_999, retention_ms="5") == 0, "records without a time do not grow old"
    assert retained(partition, 0, retention_bytes=str(5 * size)) == 0
    assert retained(partition, 0, retention_bytes=str(4 * size + 1)) == 0, "as in Kafka, no less than the bound is left"
    assert retained(partition, 0, retention_bytes=str(4 * size)) == 2
    partition.delete_before(3)
    assert retained(partition, 0, retention_bytes=str(2 * size)) == 6
    assert retained(partition, 0, retention_bytes="0") == 8


def test_retention_ends_nothing_that_a_follower_has_not_copied(tmp_path: Path) -> None:
    made = Partition(Topic("orders", UUID(int=1), 1, 2), 0, (0, 1), 0, tmp_path)
    fill(made, 1_000, 1_000, 1_000)
    assert retained(made, 99_999, retention_ms="5") == 0
    made.follower_has(1, 3, 0)
    assert retained(made, 99_999, retention_ms="5") == 2
    made.log.close()


def test_all_replicas_forget_records_whose_retention_has_ended(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=3, configs={"retention.bytes": "1"})
    addresses = raw.replicas(topic)[0]
    for number in range(4):
        assert send(addresses[0], topic, [1_000, 1_000]).base_offset == 2 * number
    for address in addresses:
        with RawKafka(address) as replica:
            eventually(lambda: replica.fetch(topic, {0: 6})[0].log_start_offset == 6)
            assert replica.fetch(topic, {0: 0})[0].error_code == ErrorCode.offset_out_of_range


def test_an_idle_partition_ends_old_records_when_its_retention_is_changed(cluster: KafkaCluster, raw: RawKafka) -> None:
    """An append ends old records, too, but nothing is appended here: the broker looks for them once a second."""
    topic = cluster.topic(replicas=1)
    leader = raw.leaders(topic)[0]
    for _ in range(3):
        send(leader, topic, [now_ms() - 9_000])
    change(cluster, topic, "retention.ms", "5000")
    with RawKafka(leader) as asked:
        eventually(lambda: asked.fetch(topic, {0: 2})[0].log_start_offset == 2)
