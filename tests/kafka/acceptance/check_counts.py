"""The clients and the cluster count the same: how many records were sent and received, and how many requests waited."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from bench.lib.common import Suite
from clients.rawgroup import RawMember
from clients.roster import CLIENTS
from processes import Peer, several
from support.kafka.rawkafka import RawKafka, batch
from timerd_kafka.testing import KafkaCluster
from world import able, cluster, ends, eventually, registered, settled

PARTITIONS = 6
READ_S = 180.0  # a group reads all records within this time


def play(suite: Suite) -> None:
    with cluster(suite) as kafka:
        play_records(suite, kafka)
        play_waits(suite, kafka)


def play_records(suite: Suite, kafka: KafkaCluster) -> None:
    """Run all clients at once: each produces to one topic, and each reads it with a group of its own."""
    count = 1_000 if suite.short else 20_000
    topic = kafka.topic(partitions=PARTITIONS, replicas=3)
    common: dict[str, Any] = {"topic": topic, "partitions": PARTITIONS}
    member = common | {"session_ms": 6_000, "heartbeat_ms": 500}

    def reading_of(client: str) -> Peer:
        return Peer("member", client, kafka.bootstrap, **member, group=f"counts-{topic}-{client}")

    def producing_of(client: str) -> Peer:
        return Peer("produce", client, kafka.bootstrap, **common, tag=CLIENTS[client].short, count=count)

    clients = able(suite, "produce", "member")
    with (
        several(*(partial(reading_of, client) for client in clients)) as reading,
        several(*(partial(producing_of, client) for client in clients)) as producing,
    ):
        acked = {peer.client: len(peer.result()["acked"]) for peer in producing}
        total = sum(ends(kafka, topic).values())
        eventually(lambda: all(peer.records_read >= total for peer in reading), "each group has read all", READ_S)
        time.sleep(0.3 if suite.short else 10.0)  # records that come twice would come now
        for peer in reading:
            peer.stop()
        received = {peer.client: len(peer.result()["rows"]) for peer in reading}
    for client in clients:
        suite.add(
            "records_on_both_sides",
            client=client,
            acknowledged_of_its_producer=acked[client],
            end_offsets_of_all=total,
            received_by_its_group=received[client],
        )
    right = sum(acked.values()) == total == len(clients) * count and set(received.values()) == {total}
    suite.check("records_counted", right, "records sent = end offsets = records that each group received")


def play_waits(suite: Suite, kafka: KafkaCluster) -> None:
    """Check how often requests are registered that wait: once, or as the comments say."""
    requests = 10 if suite.short else 50
    topic = kafka.topic(replicas=3)
    kafka.stop_follower(topic)
    expected = {name: registered(kafka, name) + requests for name in ("produce", "fetch", "topic")}
    with RawKafka(kafka.bootstrap) as raw, RawKafka(raw.leaders(topic)[0]) as leader:
        for _ in range(requests):
            leader.produce(topic, {0: batch([b"a"])}, timeout=0.02)
            leader.fetch(topic, {0: 0}, max_wait=0.02)
            kafka.topic(partitions=1)
    kafka.start_follower(topic)
    for name, number in expected.items():
        # A request that creates a topic waits until all brokers have read the topics, unless they already have.
        found = registered(kafka, name) if name == "topic" else settled(kafka, name, number)
        suite.add("waits_on_both_sides", purgatory=name, requests=requests, registered=found - number + requests)
        right = found == number if name != "topic" else found <= number
        says = "produce and fetch requests that wait are registered once, and those that create a topic at most once"
        suite.check("waits_counted", right, says)
    before = {name: registered(kafka, name) for name in ("heartbeat", "rebalance")}
    for number in range(requests):
        with RawMember(kafka.bootstrap, f"counts-{topic}-{number}", session=5.0, rebalance=2.0) as alone:
            alone.join()
            alone.sync()
            alone.leave()
    for name, number in before.items():
        # The broker decides how many sessions a member has, and which joins wait. There is at least one of each.
        least = number + requests
        eventually(lambda: registered(kafka, name) >= least, f"each member waited in the purgatory {name}")  # noqa: B023
        found = registered(kafka, name) - number
        suite.add("waits_on_both_sides", purgatory=name, members=requests, registered=found)
