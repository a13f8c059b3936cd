"""Records through each client: every record once, in order, and the same bytes at all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.lib.common import Suite
from clients.roster import CLIENTS, OFFSET
from processes import Peer, several
from timerd_kafka.testing import KafkaCluster
from world import able, cluster, ends, logs_equal, percentiles, side_by_side

PARTITIONS, REPLICAS = 3, 3


def play(suite: Suite) -> None:
    """Each client produces to a topic of its own, which each client then reads."""
    count = suite.args.records
    producing, reading = able(suite, "produce"), able(suite, "consume")
    with cluster(suite) as kafka:
        suite.say(f"each client sends {count:,} records")

        def turn_of(client: str) -> None:
            topic = kafka.topic(partitions=PARTITIONS, replicas=REPLICAS)
            produce(suite, kafka, client, topic, count)
            for readers in [reading] if suite.short else [[reader] for reader in reading]:
                read(suite, kafka, client, readers, topic, count)

        if suite.short:
            side_by_side(turn_of, producing)
        else:  # one after the other, so that each client's rate is measured alone
            for client in producing:
                turn_of(client)


def produce(suite: Suite, kafka: KafkaCluster, client: str, topic: str, count: int) -> None:
    with Peer(
        "produce", client, kafka.bootstrap, topic=topic, partitions=PARTITIONS, count=count, tag=client
    ) as producer:
        done = producer.result()
    equal, size = logs_equal(kafka, topic, REPLICAS)
    suite.add(
        "produced",
        producer=client,
        records=done["sent"],
        acknowledged=len(done["acked"]),
        failed=len(done["failed"]),
        records_per_s=round(len(done["acked"]) / done["seconds"]),
        **percentiles(seconds for _, _, seconds in done["acked"]),
        end_offsets=sum(ends(kafka, topic).values()),
        log_bytes=size,
        logs_equal=equal,
    )
    suite.check(
        "acknowledged",
        len(done["acked"]) == count == sum(ends(kafka, topic).values()),
        "each record was acknowledged, and the end offsets say the same number",
    )
    suite.check("logs_equal", equal, f"the logs of all {REPLICAS} replicas are equal byte for byte")
    if OFFSET in CLIENTS[client].can:
        right = all(offset == number // PARTITIONS for number, offset, _ in done["acked"])
        suite.check("offsets", right, "each acknowledgement has the offset of its record")


def read(suite: Suite, kafka: KafkaCluster, client: str, readers: Sequence[str], topic: str, count: int) -> None:
    def consumer(reader: str) -> Peer:
        return Peer("consume", reader, kafka.bootstrap, topic=topic, partitions=PARTITIONS, expect=count)

    with several(*(partial(consumer, reader) for reader in readers)) as consumers:
        all_done = {one.client: one.result() for one in consumers}
    for reader, done in all_done.items():
        once, in_order = judge(done["rows"], client, count)
        suite.add(
            "consumed",
            producer=client,
            consumer=reader,
            records=len(done["rows"]),
            once=once,
            in_order=in_order,
            records_per_s=round(len(done["rows"]) / done["seconds"]) if done["seconds"] else None,
        )
        suite.check("consumed_once", once, "each consumer got each record once")
        suite.check("in_order", in_order, "in each partition the records came in the order in which they were sent")


def judge(rows: list[Any], tag: str, count: int) -> tuple[bool, bool]:
    """Whether each record is there once, and whether the records of each partition are in order."""
    numbers = [(partition, int(text.split()[1])) for partition, _, text in rows]
    once = sorted(number for _, number in numbers) == list(range(count))
    once = once and all(text.split()[0] == tag for _, _, text in rows)
    in_order = True
    for partition in range(PARTITIONS):
        mine = [number for found, number in numbers if found == partition]
        in_order = in_order and mine == sorted(mine) and all(number % PARTITIONS == partition for number in mine)
    return once, in_order
