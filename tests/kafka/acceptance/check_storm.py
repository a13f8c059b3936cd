"""The timer daemon and random workers are killed again and again, under producers, groups and raw requests."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter, defaultdict
from functools import partial
from typing import Any

from bench.lib.common import Failed, Suite
from clients.roster import CLIENTS
from processes import Peer, RawPeer, several
from support.kafka.rawkafka import RawKafka
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.testing.cluster import KafkaClusterError
from world import WORKERS, able, cluster, ends, eventually, logs_equal, percentile, percentiles

PARTITIONS, REPLICAS = 6, 3
RATE = 150  # records a second of each producer
MEMBERS = 2  # in each client's group
SESSION_MS, HEARTBEAT_MS = 6_000, 500
GRACE_S = 2.0  # a request is answered at most this long after its timeout
CATCH_UP_S = 180.0


def play(suite: Suite) -> None:
    with cluster(suite, "--capacity", "32768") as kafka:
        topic = kafka.topic(partitions=PARTITIONS, replicas=REPLICAS)
        # Raw requests go to a normal topic, and to a topic with a stopped follower, where produce requests wait in
        # vain.
        asked = [kafka.topic(partitions=4, replicas=3) for _ in range(2)]
        with RawKafka(kafka.bootstrap) as raw:
            leaders = {name: raw.leaders(name) for name in asked}
        common: dict[str, Any] = {"topic": topic, "partitions": PARTITIONS}
        member = common | {"session_ms": SESSION_MS, "heartbeat_ms": HEARTBEAT_MS}

        def producing(client: str) -> Peer:
            return Peer("produce", client, kafka.bootstrap, **common, tag=CLIENTS[client].short, rate=RATE)

        def reading(client: str) -> Peer:
            return Peer("member", client, kafka.bootstrap, **member, group=f"storm-{client}")

        reading_ones, producing_ones = able(suite, "member"), able(suite, "produce")
        members = [client for client in reading_ones for _ in range(1 if suite.short else MEMBERS)]
        plan = {"topics": leaders, "threads": 8, "seed": suite.seed}
        with (
            several(*(partial(reading, client) for client in members)) as readers,
            several(*(partial(producing, client) for client in producing_ones)) as producers,
            RawPeer("requests", **plan) as requests,
        ):
            for peer in [*readers, *producers, requests]:
                peer.ready()
            begun = time.monotonic()
            kills = rage(suite, kafka, asked[1])
            requests.stop()
            for peer in producers:
                peer.stop()
            sent = {CLIENTS[peer.client].short: peer.result(300.0) for peer in producers}
            suite.say("the storm is over")
            written = read_all(suite, kafka, topic)
            count = sum(ends(kafka, topic).values())
            with contextlib.suppress(Failed):  # missing records are judged below
                eventually(lambda: all(read_by(client, readers) >= count for client in reading_ones), "", CATCH_UP_S)
            time.sleep(0.3 if suite.short else 10.0)  # if records come twice, they come now
            for peer in readers:
                peer.stop()
            seen = [(peer.client, peer.result(CATCH_UP_S)["rows"]) for peer in readers]
            rows = requests.result(CATCH_UP_S)["rows"]
        suite.add("storm", seconds=round(time.monotonic() - begun, 1), **kills)
        judge_log(suite, kafka, topic, sent, written)
        judge_readers(suite, sent, seen)
        judge_requests(suite, rows)


def read_by(client: str, readers: list[Peer]) -> int:
    """The number of records that this client's group has read. A record that two members read counts twice."""
    return sum(peer.records_read for peer in readers if peer.client == client)


def rage(suite: Suite, kafka: KafkaCluster, stuck: str) -> dict[str, int]:
    """Kill the daemon and a random worker in turn. The topic `stuck` is not copied.

    Returns the numbers of kills, and of kills that failed because the process was already down.
    """
    rng, kills = random.Random(suite.seed), Counter[str]()
    end, said = time.monotonic() + suite.args.seconds, time.monotonic()
    for turn in itertools.count():
        if time.monotonic() + suite.args.between > end:
            break
        kafka.stop_follower(stuck)  # again each time, because a restarted worker copies the topic
        time.sleep(suite.args.between)
        try:
            if turn % 2:
                kafka.kill(rng.randrange(WORKERS))
                kills["workers_killed"] += 1
            else:
                kafka.kill_daemon()
                kills["daemon_killed"] += 1
        except KafkaClusterError:  # the process is being started again
            kills["already_down"] += 1
        if time.monotonic() > said + 30:
            said = time.monotonic()
            suite.say(f"{sum(kills.values())} kills so far")
    time.sleep(max(0.0, end - time.monotonic()))
    deadline = time.monotonic() + CATCH_UP_S
    while len(kafka.pids()) < WORKERS + 1 or len(kafka.state()) < WORKERS:
        if time.monotonic() > deadline:
            raise Failed(f"not all processes are back: {kafka.pids()}")
        time.sleep(0.05)
    return dict(kills)


def read_all(suite: Suite, kafka: KafkaCluster, topic: str) -> dict[str, list[Any]]:
    """All records of the topic, as a new consumer of each client reads them."""
    count, found = sum(ends(kafka, topic).values()), {}
    reading = able(suite, "consume")
    for client in reading[:1] if suite.short else reading:
        with Peer("consume", client, kafka.bootstrap, topic=topic, partitions=PARTITIONS, expect=count) as consumer:
            found[client] = consumer.result(300.0)["rows"]
    return found


def judge_log(
    suite: Suite, kafka: KafkaCluster, topic: str, sent: dict[str, dict[str, Any]], written: dict[str, list[Any]]
) -> None:
    """Check that acknowledged records are in the log, at their acknowledged offsets, once and in order."""
    equal, size = logs_equal(kafka, topic, REPLICAS)
    suite.check("storm_logs_equal", equal, "the logs of all replicas are equal byte for byte")
    for reader, rows in written.items():
        place = {(partition, offset): text for partition, offset, text in rows}
        times = Counter(text for _, _, text in rows)
        order: dict[tuple[str, int], list[int]] = defaultdict(list)
        for (partition, _), text in sorted(place.items()):
            tag, number = text.split()
            order[tag, partition].append(int(number))
        for tag, done in sent.items():
            lost = sum(
                place.get((number % PARTITIONS, offset)) != f"{tag} {number}"
                for number, offset, _ in done["acked"]
                if offset >= 0
            )
            unsaid = sum(offset < 0 for _, offset, _ in done["acked"])
            lost += sum(times[f"{tag} {number}"] == 0 for number, offset, _ in done["acked"] if offset < 0)
            twice = sum(count - 1 for text, count in times.items() if text.startswith(f"{tag} ") and count > 1)
            disorder = sum(
                earlier > later
                for (its, _), numbers in order.items()
                if its == tag
                for earlier, later in itertools.pairwise(numbers)
            )
            suite.add(
                "storm_records",
                producer=tag,
                read_by=reader,
                sent=done["sent"],
                acknowledged=len(done["acked"]),
                without_offset=unsaid,
                failed=len(done["failed"]),
                lost=lost,
                twice=twice,
                out_of_order=disorder,
                **percentiles((waited for _, _, waited in done["acked"]), "s", 1.0),
            )
            if done["failed"]:
                suite.add("storm_failures", producer=tag, **Counter(why for _, why in done["failed"]))
            suite.check("nothing_lost", not lost, "each acknowledged record is where its acknowledgement says")
            suite.check("nothing_twice", not twice, "no record of an idempotent producer is in the log twice")
            suite.check("order_kept", not disorder, "the records of a producer in a partition are in order")
            most = len(done["acked"]) >= 0.9 * done["sent"]
            suite.check("producers_go_on", most, "at least 90 % of each producer's records were acknowledged")
    suite.add("storm_log", bytes=size, records=sum(ends(kafka, topic).values()), equal_at_all_replicas=equal)


def judge_readers(suite: Suite, sent: dict[str, dict[str, Any]], seen: list[tuple[str, list[Any]]]) -> None:
    """Check that each group has got each acknowledged record at least once."""
    acked = {f"{tag} {number}" for tag, done in sent.items() for number, _, _ in done["acked"]}
    for client in sorted({its for its, _ in seen}):
        rows = [row for its, found in seen if its == client for row in found]
        texts = Counter(text for _, _, text in rows)
        missing = len(acked - set(texts))
        suite.add(
            "storm_groups",
            client=client,
            members=sum(its == client for its, _ in seen),
            records=len(rows),
            missing=missing,
            delivered_again=len(rows) - len(texts),
        )
        suite.check("groups_got_all", not missing, "each group got each acknowledged record")


def judge_requests(suite: Suite, rows: list[Any]) -> None:
    """Check that each request was answered at most 2 s after its timeout. A closed connection counts as an answer."""
    for kind in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == kind]
        beyond = [took - timeout for _, _, timeout, took, _ in mine]
        outcomes = Counter(row[4] for row in mine)
        suite.add(
            "storm_requests",
            request=kind,
            requests=len(mine),
            beyond_timeout_p99_s=percentile(beyond, 0.99),
            beyond_timeout_max_s=max(beyond),
            outcomes=", ".join(f"{name} {count:,}" for name, count in outcomes.most_common()),
        )
        suite.check("all_answered", max(beyond) <= GRACE_S, "each request is answered at most 2 s after its timeout")
