"""Produce requests: with acks=all they wait for the replicas of each partition, with acks 0 and 1 they do not wait."""

from __future__ import annotations

import time

from kio.schema.errors import ErrorCode

from bench.lib.common import Failed, Suite
from processes import Peer
from support.kafka.rawkafka import PRODUCE, RawKafka, batch
from timerd_kafka.testing import KafkaCluster
from world import able, cluster, ends, eventually, produce_fields, registered, settled

TIMEOUT_S, LATE_S = 2.0, 0.1
UNKNOWN = 99  # a partition that no topic here has


def play_no_wait(suite: Suite) -> None:
    """Check that the purgatory does not count requests that need no wait."""
    requests = 20 if suite.short else 500
    with cluster(suite) as kafka:
        replicated, alone = kafka.topic(replicas=3), kafka.topic(replicas=1)
        with RawKafka(kafka.bootstrap) as raw:
            leaders = {topic: raw.leaders(topic)[0] for topic in (replicated, alone)}
        for what, topic, acks, partition in (
            ("acks=0, 3 replicas", replicated, 0, 0),
            ("acks=1, 3 replicas", replicated, 1, 0),
            ("acks=all, one replica", alone, -1, 0),
            ("acks=all, all partitions in error", replicated, -1, UNKNOWN),
        ):
            before = registered(kafka, "produce")
            with RawKafka(leaders[topic]) as leader:
                for _ in range(requests):
                    if acks == 0:
                        leader.send(leader.question(PRODUCE, 9, **produce_fields(topic, {0: batch([b"a"])}, acks=0))[1])
                        continue
                    error = leader.produce(topic, {partition: batch([b"a"])}, acks=acks)[partition].error_code
                    if (error == ErrorCode.none) != (partition == 0):
                        raise Failed(f"{what}: answered {error!r}")
            eventually(lambda: len({e["end"] for e in held_of(kafka, replicated, 0)}) == 1, "followers have come up")
            report_waits(suite, "raw", what, requests, registered(kafka, "produce") - before)
        if ends(kafka, replicated)[0] != 2 * requests or ends(kafka, alone)[0] != requests:
            found = f"{ends(kafka, replicated)[0]} and {ends(kafka, alone)[0]}"
            raise Failed(f"the topics end at {found}, and not at {2 * requests} and {requests}")
        play_clients(suite, kafka, requests)
        play_control(suite, kafka)


def play_clients(suite: Suite, kafka: KafkaCluster, count: int) -> None:
    """Check that the clients' requests with acks 0 and 1 are not counted either. These producers are not idempotent."""
    producing = able(suite, "produce")
    for client in producing[-1:] if suite.short else producing:
        for acks in (0, 1):
            topic, before = kafka.topic(partitions=3, replicas=3), registered(kafka, "produce")
            plan = {"topic": topic, "partitions": 3, "count": count, "tag": client, "acks": acks}
            with Peer("produce", client, kafka.bootstrap, **plan) as producer:
                done = producer.result()
            eventually(lambda topic=topic: sum(ends(kafka, topic).values()) == count, "all records are there")  # type: ignore[misc]
            report_waits(suite, client, f"acks={acks}, 3 replicas", count, registered(kafka, "produce") - before)
            suite.check("acknowledged", len(done["acked"]) == count, "each record was acknowledged, once")


def report_waits(suite: Suite, client: str, what: str, requests: int, waited: int) -> None:
    suite.add("registered_by_produce_requests", client=client, what=what, sent=requests, registered=waited)
    suite.check(
        "no_wait",
        waited == 0,
        "a request with acks 0 or 1, to a topic with one replica, or with errors in all partitions registers nothing",
    )


def play_control(suite: Suite, kafka: KafkaCluster) -> None:
    """Check that each request that waits is counted once."""
    topic, requests = kafka.topic(replicas=3), 5
    kafka.stop_follower(topic)
    before = registered(kafka, "produce")
    with RawKafka(kafka.bootstrap) as raw, RawKafka(raw.leaders(topic)[0]) as leader:
        for _ in range(requests):
            leader.produce(topic, {0: batch([b"a"])}, timeout=0.05)
    waited = settled(kafka, "produce", before + requests) - before
    kafka.start_follower(topic)
    what = "acks=all, stopped followers (these wait)"
    suite.add("registered_by_produce_requests", client="raw", what=what, sent=requests, registered=waited)
    suite.check("waits_are_counted", waited == requests, "each request that waits for its replicas is registered once")


def play_stopped(suite: Suite) -> None:
    """Stop the followers of one partition: it times out, but the other partitions of the same request do not."""
    rounds = 2 if suite.short else 20
    took: list[float] = []
    codes: dict[str, set[str]] = {"stopped": set(), "neighbour": set(), "unknown": set()}
    with cluster(suite) as kafka, RawKafka(kafka.bootstrap) as raw:
        topic = kafka.topic(partitions=8, replicas=3)
        leaders = raw.leaders(topic)
        stopped, neighbour = next((a, b) for a in leaders for b in leaders if a < b and leaders[a] == leaders[b])
        kafka.stop_follower(topic, partition=stopped)
        with RawKafka(leaders[stopped]) as leader:
            for _ in range(rounds):
                begun = time.monotonic()
                answers = leader.produce(
                    topic,
                    {stopped: batch([b"a"]), neighbour: batch([b"b"]), UNKNOWN: batch([b"c"])},
                    timeout=TIMEOUT_S,
                )
                took.append(time.monotonic() - begun)
                codes["stopped"].add(answers[stopped].error_code.name)
                codes["neighbour"].add(answers[neighbour].error_code.name)
                codes["unknown"].add(answers[UNKNOWN].error_code.name)
            kafka.start_follower(topic, partition=stopped)
            eventually(lambda: len({e["end"] for e in held_of(kafka, topic, stopped)}) == 1, "it copies again")
            again = leader.produce(topic, {stopped: batch([b"d"])})[stopped].error_code.name
    suite.add(
        "stopped_follower",
        timeout_s=TIMEOUT_S,
        rounds=rounds,
        min_s=round(min(took), 4),
        max_s=round(max(took), 4),
        **{name: ", ".join(sorted(found)) for name, found in codes.items()},
        after_it_copies_again=again,
    )
    expected = {"stopped": "request_timed_out", "neighbour": "none", "unknown": "unknown_topic_or_partition"}
    right = all(codes[name] == {code} for name, code in expected.items())
    suite.check("its_partition_alone", right and again == "none", "each partition of a request has its own outcome")
    suite.check(
        "timed_out_in_time",
        min(took) >= TIMEOUT_S and max(took) <= TIMEOUT_S + LATE_S,
        f"REQUEST_TIMED_OUT came after {TIMEOUT_S:.2f} to {TIMEOUT_S + LATE_S:.2f} s",
    )


def held_of(kafka: KafkaCluster, topic: str, partition: int) -> list[dict[str, int]]:
    """A partition, as each broker has it."""
    states = [state["partitions"].get(f"{topic}-{partition}") for state in kafka.state().values()]
    return [state for state in states if state]
