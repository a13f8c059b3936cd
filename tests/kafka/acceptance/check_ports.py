"""Unmodified clients and the broker's ports: a restart of the whole cluster, and one forwarded port."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lib.common import Suite
from clients.roster import CLIENTS, codecs_of
from processes import Peer, several
from support.kafka.forwarded import forwarded
from support.kafka.ports import free_ports
from timerd_kafka.testing import KafkaCluster
from world import AT_ONCE, WORKERS, able, eventually, side_by_side

PARTITIONS = 3
RATE = 50  # records a second of each producer
AWAY_S = 2.0
SOME = 30  # records
STARTED_S, BACK_S = 120.0, 180.0


def play(suite: Suite) -> None:
    clients = able(suite, "produce", "member")
    for number in range(1 if suite.short else 2):
        for begin in range(0, len(clients), AT_ONCE):
            play_restart(suite, clients[begin : begin + AT_ONCE], number)
    play_forwarded(suite, clients)


def play_restart(suite: Suite, clients: list[str], number: int) -> None:
    """The cluster is away for some seconds, and comes back with its directory and its port."""
    suite.say(f"a restart under {', '.join(clients)}, codec {number + 1} of 2")
    port = free_ports(WORKERS + 1)
    flags = ["--workers", str(WORKERS), "--port", str(port)]
    with TemporaryDirectory(prefix="kafka-") as scratch:
        kafka = KafkaCluster(flags, data=Path(scratch, "data")).start()
        try:
            topics = {client: kafka.topic(partitions=PARTITIONS, replicas=3) for client in clients}

            def plan(client: str) -> dict[str, Any]:
                return {"topic": topics[client], "partitions": PARTITIONS, "codec": codec_of(client, number)}

            def reading(client: str) -> Peer:
                return Peer("member", client, kafka.bootstrap, **plan(client), group=f"ports-{client}")

            def producing(client: str) -> Peer:
                tag = CLIENTS[client].short
                return Peer("produce", client, kafka.bootstrap, **plan(client), tag=tag, rate=RATE)

            with (
                several(*(partial(reading, client) for client in clients)) as readers,
                several(*(partial(producing, client) for client in clients)) as producers,
            ):
                for peer in [*readers, *producers]:
                    peer.ready()
                await_more(readers, dict.fromkeys(clients, 0), "each client reads what it sends", STARTED_S)
                kafka.close()
                time.sleep(AWAY_S)
                before = {peer.client: peer.records_read for peer in readers}
                kafka = KafkaCluster(flags, data=Path(scratch, "data")).start()
                begun = time.monotonic()
                await_more(readers, before, "each client goes on after the restart", BACK_S)
                back = time.monotonic() - begun
                for peer in producers:
                    peer.stop()
                sent = {peer.client: peer.result(BACK_S) for peer in producers}
                for peer in readers:
                    await_read(peer, len(sent[peer.client]["acked"]), BACK_S)
                    peer.stop()
                read = {peer.client: {text for _, _, text in peer.result(BACK_S)["rows"]} for peer in readers}
        finally:
            kafka.close()
    for client in clients:
        done, tag = sent[client], CLIENTS[client].short
        missing = sum(f"{tag} {numbered}" not in read[client] for numbered, _, _ in done["acked"])
        suite.add(
            "restart",
            client=client,
            codec=codec_of(client, number),
            away_s=AWAY_S,
            all_went_on_after_s=round(back, 2),
            acknowledged=len(done["acked"]),
            failed=len(done["failed"]),
            missing=missing,
        )
        suite.check("ports_stay", not missing, "after a restart each client goes on by itself, and no record is lost")


def codec_of(client: str, number: int) -> str:
    """One of the codecs of a client."""
    found = codecs_of(client)
    return found[number % len(found)]


def await_more(readers: list[Peer], before: dict[str, int], what: str, patience: float) -> None:
    """Wait until each reader has read some more records."""
    eventually(lambda: all(one.records_read >= before[one.client] + SOME for one in readers), what, patience)


def await_read(reader: Peer, count: int, patience: float) -> None:
    """Wait until a reader has read this number of records."""
    eventually(lambda: reader.records_read >= count, f"{reader.client} has read all records", patience)


def play_forwarded(suite: Suite, clients: list[str]) -> None:
    """Each client, in two codecs, sends and reads through the one port that leads to a broker."""
    count = 100 if suite.short else 1_000
    suite.say("through one forwarded port")
    try:
        with forwarded(free_ports(1)) as bootstrap:
            side_by_side(partial(through, suite, bootstrap, count), clients)
    except PermissionError as error:
        suite.say(f"left out: {error}")


def through(suite: Suite, bootstrap: str, count: int, client: str) -> None:
    for codec in codecs_of(client):
        name = f"forwarded-{client}-{codec}"
        plan = {"topic": name, "partitions": 1, "codec": codec}
        with Peer("produce", client, bootstrap, **plan, count=count, tag=client) as producer:
            acked = len(producer.result(STARTED_S)["acked"])
        with Peer("member", client, bootstrap, **plan, group=name) as reader:
            await_read(reader, count, STARTED_S)
            reader.stop()
            read = len({text for _, _, text in reader.result(STARTED_S)["rows"]})
        suite.add("one_port", client=client, codec=codec, acknowledged=acked, read=read)
        suite.check("one_port", acked == read == count, "one forwarded port is enough for a cluster of one broker")
