"""Waits of fetch requests: for records that come at another worker, for bytes of many partitions, and for time."""

from __future__ import annotations

import math
import time
from typing import Any

from kio.schema.errors import ErrorCode

from bench.lib.common import Suite
from support.kafka.rawkafka import FETCH, PRODUCE, RawKafka, batch, fetch_fields
from timerd_kafka.testing import KafkaCluster
from world import PATIENCE_S, WORKERS, arrivals, cluster, percentile, percentiles, produce_fields, registered, settled

MAX_WAIT_S, LATE_S = 3.0, 0.1
AT_ONCE_S = 0.05
MANY, ENOUGH = 200, 10_000  # partitions of one worker, and bytes


def play(suite: Suite) -> None:
    with cluster(suite) as kafka:
        play_empty(suite, kafka)
        play_at_once(suite, kafka)
        play_wakes(suite, kafka)
        play_sum(suite, kafka)


def play_empty(suite: Suite, kafka: KafkaCluster) -> None:
    """If no record comes, the answer is empty, and comes after max.wait."""
    rounds, side_by_side = (1, 8) if suite.short else (10, 16)
    took: list[float] = []
    empty = True
    topic = kafka.topic(partitions=side_by_side, replicas=3)
    with RawKafka(kafka.bootstrap) as raw:
        replicas = raw.replicas(topic)
    # Half of the fetches are at leaders, half at followers.
    readers = [RawKafka(replicas[number][number % 2]) for number in range(side_by_side)]
    before = registered(kafka, "fetch")
    for _ in range(rounds):
        begun, questions = [], []
        for number, reader in enumerate(readers):
            question, frame = reader.question(FETCH, 12, **fetch_fields(topic, {number: 0}, MAX_WAIT_S, 1))
            begun.append(time.monotonic())
            reader.send(frame)
            questions.append(question)
        came = arrivals(readers, MAX_WAIT_S + PATIENCE_S)
        took += [arrived - sent for arrived, sent in zip(came, begun, strict=True)]
        for reader, question in zip(readers, questions, strict=True):
            answer = question.read(reader.frame()).responses[0].partitions[0]
            empty = empty and not answer.records and answer.error_code == ErrorCode.none
    waited = settled(kafka, "fetch", before + rounds * side_by_side) - before
    for reader in readers:
        reader.close()
    suite.add(
        "empty_fetches",
        max_wait_s=MAX_WAIT_S,
        min_bytes=1,
        fetches=len(took),
        registered=waited,
        min_s=round(min(took), 4),
        p50_s=percentile(took, 0.5),
        max_s=round(max(took), 4),
    )
    suite.check(
        "empty",
        empty and min(took) >= MAX_WAIT_S,
        f"a fetch for which no record came was answered empty, not before {MAX_WAIT_S:.2f} s",
    )
    latest = MAX_WAIT_S + LATE_S
    suite.check(
        "empty_in_time", max(took) <= latest, f"a fetch for which no record came was answered by {latest:.2f} s"
    )
    suite.check("fetches_counted", waited == len(took), "each fetch that waits is registered once")


def play_at_once(suite: Suite, kafka: KafkaCluster) -> None:
    """A fetch with max.wait 0, enough bytes, no partitions or an error does not wait."""
    rounds = 5 if suite.short else 100
    topic = kafka.topic(replicas=3)
    with RawKafka(kafka.bootstrap) as raw, RawKafka(raw.leaders(topic)[0]) as leader:
        leader.produce(topic, {0: batch([b"x" * 2_000])})
        cases: dict[str, tuple[dict[int, int], float, int]] = {
            "max.wait 0": ({0: 1}, 0.0, 1),
            "enough bytes": ({0: 0}, MAX_WAIT_S, 2_000),
            "no partitions": ({}, MAX_WAIT_S, 1),
            "offset out of range": ({0: 1_000}, MAX_WAIT_S, 1),
            "unknown partition": ({7: 0}, MAX_WAIT_S, 1),
        }
        for what, (offsets, max_wait, min_bytes) in cases.items():
            before, took = registered(kafka, "fetch"), []
            for _ in range(rounds):
                begun = time.monotonic()
                leader.fetch(topic, offsets, max_wait=max_wait, min_bytes=min_bytes)
                took.append(time.monotonic() - begun)
            waited = registered(kafka, "fetch") - before
            suite.add("fetches_at_once", what=what, fetches=rounds, registered=waited, **percentiles(took))
            suite.check(
                "at_once",
                waited == 0,
                "no fetch with max.wait 0, enough bytes, no partition or an error is registered",
            )
            suite.check(
                "at_once_in_time", max(took) < AT_ONCE_S * 2, "fetches that need no wait are answered within 100 ms"
            )


def play_wakes(suite: Suite, kafka: KafkaCluster) -> None:
    """A consumer waits at the leader, then at a follower. The producer sends to the leader."""
    rounds = 60 if suite.short else 200
    topic = kafka.topic(replicas=3)
    with RawKafka(kafka.bootstrap) as raw:
        brokers = raw.replicas(topic)[0]
    for where, at in (("the leader", 0), ("a follower", 1)):
        sent_to_seen, acked_to_seen, sent_to_acked, wrong = [], [], [], 0
        with RawKafka(brokers[at]) as reader, RawKafka(brokers[0]) as leader:
            leader.produce(topic, {0: batch([b"first"])})
            offset = leader.fetch(topic, {0: 0})[0].high_watermark
            reader.fetch(topic, {0: offset - 1}, max_wait=MAX_WAIT_S)
            for number in range(rounds):
                asked, frame = reader.question(FETCH, 12, **fetch_fields(topic, {0: offset}, MAX_WAIT_S))
                reader.send(frame)
                time.sleep(0.01)  # by then the fetch waits
                question, frame = leader.question(PRODUCE, 9, **produce_fields(topic, {0: batch([b"%d" % number])}))
                sent = time.monotonic()
                leader.send(frame)
                acked, seen = arrivals([leader, reader], MAX_WAIT_S + PATIENCE_S)
                answer = asked.read(reader.frame()).responses[0].partitions[0]
                produced = question.read(leader.frame()).responses[0].partition_responses[0]
                wrong += not answer.records or produced.base_offset != offset
                offset += 1
                sent_to_seen.append(seen - sent)
                acked_to_seen.append(max(0.0, seen - acked))
                sent_to_acked.append(acked - sent)
        for what, values in (
            ("produce sent, fetch answered", sent_to_seen),
            ("produce acknowledged, fetch answered", acked_to_seen),
            ("produce sent, acknowledged", sent_to_acked),
        ):
            suite.add("wakes", reads_at=where, from_to=what, rounds=rounds, **percentiles(values))
        slow = percentile(sent_to_seen, 0.99) or math.inf
        suite.check("woken", slow < AT_ONCE_S, "a fetch is answered within 50 ms (p99) of the produce at the leader")
        suite.check("woken_with_records", not wrong, "the records that woke a fetch are in its answer")


def play_sum(suite: Suite, kafka: KafkaCluster) -> None:
    """min.bytes counts the bytes of all partitions of a request together."""
    rounds = 1 if suite.short else 10
    topic = kafka.topic(partitions=MANY * WORKERS, replicas=1)
    with RawKafka(kafka.bootstrap) as raw:
        leaders = raw.leaders(topic)
    address = leaders[0]
    mine = [number for number, leader in leaders.items() if leader == address][:MANY]
    offsets = dict.fromkeys(mine, 0)
    one = batch([b"x" * 100])
    short_of, answered, right = 0, [], len(mine) == MANY
    with RawKafka(address) as reader, RawKafka(address) as leader:
        for _ in range(rounds):
            question, frame = reader.question(FETCH, 12, **fetch_fields(topic, offsets, 60.0, ENOUGH))
            reader.send(frame)
            there, number = 0, 0
            while there + len(one) < ENOUGH:
                leader.produce(topic, {mine[number]: one})
                there, number = there + len(one), number + 1
            short_of = max(short_of, there)
            right = right and math.isinf(arrivals([reader], 0.3)[0])
            begun = time.monotonic()
            leader.send(leader.question(PRODUCE, 9, **produce_fields(topic, {mine[number]: one}))[1])
            answered.append(arrivals([reader], PATIENCE_S)[0] - begun)
            leader.frame()
            parts: list[Any] = question.read(reader.frame()).responses[0].partitions
            right = right and sum(len(part.records or b"") for part in parts) >= ENOUGH and len(parts) == MANY
            offsets = {part.partition_index: part.high_watermark for part in parts}
    suite.add(
        "sum_of_partitions",
        partitions=len(mine),
        min_bytes=ENOUGH,
        bytes_that_did_not_wake=short_of,
        rounds=rounds,
        **percentiles(answered),
    )
    suite.check(
        "sum_of_partitions",
        right and max(answered) < math.inf,
        f"a fetch of {MANY} partitions waits for {ENOUGH:,} bytes in all of them together",
    )
    suite.check(
        "sum_in_time",
        max(answered) < AT_ONCE_S * 2,
        "a fetch of many partitions is answered within 100 ms after the last byte",
    )
