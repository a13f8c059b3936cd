"""Answers to unmodified clients, in two codecs each: offsets by time, deleted records, versions that are too old."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

from bench.lib.common import Suite
from clients.roster import CLIENTS, DELETE, LARGEST, OLD, TIMES, codecs_of
from processes import Peer
from support.kafka.rawkafka import LIST_OFFSETS, RawKafka
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question
from world import able, cluster, eventually, logs, side_by_side

PARTITIONS = 8
BEGIN, STEP = 10**9, 10  # the times of records, in ms
MAX_TIMESTAMP = -3
LARGE = 16 << 20  # bytes of a batch: 24 MB of the same byte are more than 1 MB in snappy
PATIENCE_S = 120.0


def play(suite: Suite) -> None:
    with cluster(suite) as kafka:
        clients = able(suite, "produce", "ask", TIMES, DELETE)
        suite.say("offsets by time")
        side_by_side(partial(play_codecs, suite, kafka), clients)
        side_by_side(partial(play_old, suite, kafka), able(suite, "produce", OLD))


def play_codecs(suite: Suite, kafka: KafkaCluster, client: str) -> None:
    for codec in codecs_of(client):
        play_client(suite, kafka, client, codec)


def play_client(suite: Suite, kafka: KafkaCluster, client: str, codec: str) -> None:
    """One client in one of its codecs."""
    less = 10 if suite.short else 1
    play_times(suite, kafka, client, codec, 9_000 // less)
    play_one_batch(suite, kafka, client, codec, 3_000 // less, 8_000, 2_500 // less)
    play_one_batch(suite, kafka, client, codec, 25_000 // less, 60, 24_000 // less)
    play_deleted(suite, kafka, client, codec)


def produce(kafka: KafkaCluster, client: str, topic: str, **plan: Any) -> None:
    with Peer("produce", client, kafka.bootstrap, topic=topic, tag=client, **plan) as producer:
        done = producer.result(PATIENCE_S)
    if len(done["acked"]) != plan["count"]:
        raise AssertionError(f"{client}: {len(done['acked'])} of {plan['count']} records: {done['failed'][:3]}")


def asked(
    kafka: KafkaCluster, client: str, topic: str, partitions: int, at: int, **plan: Any
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The offsets of a time, and the offsets and times of the latest records, as a client gets them."""
    with Peer("ask", client, kafka.bootstrap, topic=topic, partitions=partitions, at=at, **plan) as asking:
        found = asking.result(PATIENCE_S)
    offsets = {int(number): offset for number, offset in found["at"].items()}
    return offsets, {int(number): one for number, one in (found["largest"] or {}).items()}


def report(suite: Suite, client: str, codec: str, asker: str, what: str, right: bool, found: object) -> None:
    suite.add("offsets_by_time", producer=client, codec=codec, asked_by=asker, what=what, right=right, found=str(found))
    suite.check("offsets_by_time", right, "ListOffsets finds the record of a time, and that with the largest time")


def play_times(suite: Suite, kafka: KafkaCluster, client: str, codec: str, each: int) -> None:
    """Records in all partitions, and one request about all of them."""
    topic = kafka.topic(partitions=PARTITIONS, replicas=1)
    plan = {"partitions": PARTITIONS, "count": each * PARTITIONS, "size": 60, "times": [BEGIN], "step": STEP}
    produce(kafka, client, topic, codec=codec, **plan)
    number = each * 5 // 6
    # kcat sends no records with given times, but it asks for those of the others.
    for asker in [client, *(one for one in able(suite, "ask") if TIMES not in CLIENTS[one].can)]:
        offsets, largest = asked(kafka, asker, topic, PARTITIONS, BEGIN + STEP * number)
        right = offsets == dict.fromkeys(range(PARTITIONS), number)
        if LARGEST in CLIENTS[asker].can:
            right = right and largest == {key: [each - 1, BEGIN + STEP * (each - 1)] for key in range(PARTITIONS)}
        what = f"{each:,} records in each of {PARTITIONS} partitions"
        report(suite, client, codec, asker, what, right, sorted({*offsets.values()}))


def play_one_batch(
    suite: Suite, kafka: KafkaCluster, client: str, codec: str, count: int, size: int, number: int
) -> None:
    """All records in one batch. The broker unpacks it to find a time."""
    topic = kafka.topic(replicas=1, configs={"max.message.bytes": LARGE})
    plan = {"partitions": 1, "count": count, "size": size, "times": [BEGIN], "step": STEP}
    produce(kafka, client, topic, codec=codec, one_batch=True, **plan)
    offsets, _ = asked(kafka, client, topic, 1, BEGIN + STEP * number)
    batches = [batches_in(path) for files in logs(kafka, topic).values() for path in files.values()]
    what = f"one batch of {count:,} records, {count * size / 1e6:.1f} MB"
    report(suite, client, codec, client, what, offsets == {0: number} and batches == [1], offsets[0])


def batches_in(path: Path) -> int:
    """The number of batches in a log file."""
    data, at, count = path.read_bytes(), 0, 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        at, count = at + 12 + length, count + 1
    return count


def play_deleted(suite: Suite, kafka: KafkaCluster, client: str, codec: str) -> None:
    """The first record of a batch is deleted, and it has the largest time of the batch."""
    topic = kafka.topic(replicas=1)
    produce(kafka, client, topic, codec=codec, partitions=1, count=3, times=[300, 100, 200], one_batch=True)
    offsets, largest = asked(kafka, client, topic, 1, 150, delete={"0": 1})
    if LARGEST not in CLIENTS[client].can:
        largest = {0: largest_of(kafka, topic)}
    right = offsets == {0: 2} and largest == {0: [2, 200]}
    report(suite, client, codec, client, "times 300, 100, 200; the first is deleted", right, largest[0])


def largest_of(kafka: KafkaCluster, topic: str) -> list[int]:
    """The offset and the time of the record with the largest time, by a raw request."""
    module = Question(LIST_OFFSETS, 7).module
    part = module.ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP)
    topics = (module.ListOffsetsTopic(name=topic, partitions=(part,)),)
    with RawKafka(kafka.bootstrap) as raw, RawKafka(raw.leaders(topic)[0]) as leader:
        answer = leader.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    found = answer.topics[0].partitions[0]
    return [found.offset, found.timestamp]


def play_old(suite: Suite, kafka: KafkaCluster, client: str) -> None:
    """A client that takes the broker for Kafka 0.9: as in Kafka 4, its connection is closed, and the log names it."""
    for codec in codecs_of(client):
        topic = kafka.topic(replicas=1)
        name = f"old-{topic}"
        plan = {"topic": topic, "partitions": 1, "count": 3, "acks": 1, "codec": codec, "old": True, "name": name}
        with Peer("produce", client, kafka.bootstrap, tag=client, **plan) as producer:
            done = producer.result(PATIENCE_S)
        line = f"'{name}' (127.0.0.1) asks for produce v"
        eventually(lambda line=line: line in kafka.log, f"{client} is named in the log")  # type: ignore[misc]
        said = next(one for one in kafka.log.splitlines() if line in one)
        suite.add("old_versions", client=client, codec=codec, failed=len(done["failed"]), log=said)
        right = len(done["failed"]) == 3 and "its connection is closed: this broker has v3 to v13" in said
        suite.check("too_old", right, "a client with versions that are too old is refused, and named in the log")
