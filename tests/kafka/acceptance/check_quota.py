"""Quotas: throttle times, muted connections, and the rate that a client gets, at one worker and at two at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from bench.lib.common import Failed, Suite
from clients.roster import CLIENTS, THROTTLE
from processes import Peer, several
from support.kafka.rawkafka import PRODUCE, RawKafka, batch
from timerd_kafka.testing import KafkaCluster
from world import AT_ONCE, able, cluster, percentile, percentiles, produce_fields, settled

QUOTA = 1e6  # bytes a second
VALUE = 20_000
WITHIN, WITHIN_SHORT = 0.05, 0.45  # shares of the quota; the first second's burst adds a third to a short run
EARLY_S = 0.003  # a throttle time is stated in whole milliseconds


class Sent(NamedTuple):
    """One request of a client with a quota."""

    at: float
    size: int
    throttle: float  # seconds, from the answer
    answered: float


def play(suite: Suite) -> None:
    seconds = 3.0 if suite.short else 30.0
    within = WITHIN_SHORT if suite.short else WITHIN
    with cluster(suite, "--produce-quota", "1MB") as kafka:
        topic = kafka.topic(partitions=4, replicas=1)
        with RawKafka(kafka.bootstrap) as raw:
            leaders = raw.leaders(topic)
        first, second = list(dict.fromkeys(leaders.values()))[:2]
        places = {address: number for number, address in leaders.items()}
        ways = {"one connection": [first], "two, to two workers": [first, second]}
        for some in [ways] if suite.short else [{what: addresses} for what, addresses in ways.items()]:
            suite.say(f"a quota of 1 MB/s: {'; '.join(some)}")
            before = kafka.purgatories()["quota"]["registered"]
            with ThreadPoolExecutor() as pool:
                turns = {
                    what: pool.submit(
                        at_once, topic, [(address, places[address]) for address in addresses], what, seconds
                    )
                    for what, addresses in some.items()
                }
            sent = {what: turn.result() for what, turn in turns.items()}
            throttled = sum(judge(suite, what, mine, seconds, within) for what, mine in sent.items())
            waited = settled(kafka, "quota", before + throttled) - before
            suite.add("mutes", of="; ".join(some), throttled=throttled, registered=waited)
            claim = "each throttled answer is registered once in the purgatory quota"
            suite.check("mutes_counted", waited == throttled, claim)
        play_clients(suite, kafka, 2.0 if suite.short else 10.0)


def at_once(topic: str, places: list[tuple[str, int]], name: str, seconds: float) -> list[list[Sent]]:
    """Send to all places (address, partition) at once with one client id, to each as fast as its answers come."""
    with ThreadPoolExecutor() as pool:
        turns = [pool.submit(send, topic, *place, f"quota of {name}", seconds) for place in places]
        return [turn.result() for turn in turns]


def send(topic: str, address: str, partition: int, client_id: str, seconds: float) -> list[Sent]:
    sent, one = list[Sent](), batch([b"x" * VALUE])
    end = time.monotonic() + seconds
    with RawKafka(address, client_id) as raw:
        while (begun := time.monotonic()) < end:
            question, frame = raw.question(PRODUCE, 9, **produce_fields(topic, {partition: one}, acks=1))
            raw.send(frame)
            answer = question.read(raw.frame())
            if answer.responses[0].partition_responses[0].error_code != ErrorCode.none:
                raise Failed(f"a produce request with a quota: {answer}")
            sent.append(Sent(begun, len(one), answer.throttle_time.total_seconds(), time.monotonic()))
    return sent


def judge(suite: Suite, what: str, all_sent: list[list[Sent]], seconds: float, within: float) -> int:
    """Check the rate over the whole time, and the mute after each throttled answer. Returns the number of mutes."""
    flat = sorted((one for sent in all_sent for one in sent), key=lambda one: one.at)
    size = sum(one.size for one in flat)
    # The last answers mute the connections for a while. The rate includes this time, because the last bytes were sent
    # ahead of the quota.
    took = max(one.answered + one.throttle for one in flat) - flat[0].at
    throttled = sum(one.throttle > 0 for one in flat)
    pairs = [pair for sent in all_sent for pair in pairwise(sent) if pair[0].throttle > 0]
    early = max((one.at + one.throttle - following.answered for one, following in pairs), default=0.0)
    # The mute begins when the broker answers. If this process sees that answer late, the mute looks too short: so one
    # tenth of the answers do not count here.
    short_of = percentile([one.answered + one.throttle - following.answered for one, following in pairs], 0.9)
    rate = size / took
    suite.add(
        "quota",
        what=what,
        seconds=seconds,
        requests=len(flat),
        throttled=throttled,
        throttle_max_ms=max(one.throttle for one in flat) * 1e3,
        rate_bytes_per_s=round(rate),
        of_quota=rate / QUOTA,
        by_worker=" + ".join(f"{sum(one.size for one in sent) / took:,.0f}" for sent in all_sent),
        muted_short_of_throttle_p90_ms=(short_of or 0.0) * 1e3,
    )
    suite.check(
        "quota_rate", abs(rate / QUOTA - 1) <= within, f"the rate differs from the quota by {within:.0%} at most"
    )
    suite.check("throttled", throttled > 0, "throttle times are reported")
    held = early <= EARLY_S and (short_of or 0.0) <= EARLY_S
    suite.check("muted", held, "the connection is muted for the throttle time")
    return throttled


def play_clients(suite: Suite, kafka: KafkaCluster, seconds: float) -> None:
    """Check the quota with the unmodified clients, each with a client id of its own."""
    topic = kafka.topic(partitions=4, replicas=1)
    plan = {"topic": topic, "partitions": 4, "seconds": seconds, "size": 5_000, "in_flight": 100}

    def producer(client: str) -> Peer:
        return Peer("produce", client, kafka.bootstrap, **plan, tag=client)

    clients = able(suite, "produce")
    for begin in range(0, len(clients), AT_ONCE):
        with several(*(partial(producer, client) for client in clients[begin : begin + AT_ONCE])) as producers:
            for one in producers:
                judge_client(suite, one.client, one.result())


def judge_client(suite: Suite, client: str, done: dict[str, Any]) -> None:
    """Check the rate of a client, and the throttle times that it reports."""
    throttles = done["throttles_ms"]
    size = len(done["acked"]) * 5_000
    suite.add(
        "quota_of_clients",
        client=client,
        records=done["sent"],
        failed=len(done["failed"]),
        rate_bytes_per_s=round(size / done["seconds"]),
        throttle_reported_max_ms=max(throttles, default=None),
        **percentiles(waited for _, _, waited in done["acked"]),
    )
    held = size / done["seconds"] <= QUOTA * (1.6 if suite.short else 1.3)
    suite.check("clients_throttled", held, "each client is slowed down to its quota, plus the first second's burst")
    suite.check("clients_lose_nothing", len(done["acked"]) == done["sent"], "no record of a throttled client is lost")
    if THROTTLE in CLIENTS[client].can:
        suite.check(
            "throttle_reported", max(throttles, default=0) > 0, "the clients report throttle times in their own figures"
        )
