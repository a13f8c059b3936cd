"""Clients that send damaged data or too much data, and how other clients are served meanwhile."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from support.kafka.least import least
from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.rawkafka import FETCH, METADATA, PRODUCE, RawKafka, batch, fetch_fields, seconds
from support.kafka.realbrokers import brokers
from timerd.testing import Manual
from timerd_kafka.apis.table import APIS
from timerd_kafka.testing import KafkaCluster
from timerd_kafka.wire.codec import Question, versions_of
from timerd_kafka.wire.connection import Buffers, Connection


def closed(connection: RawKafka) -> bool:
    """Whether the broker has closed the connection."""
    try:
        connection.frame()
    except (EOFError, ConnectionResetError):
        return True
    return False


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -5),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 3, 99, 1),
        struct.pack(">ihhih", 10, 3, 1, 1, -1),
        struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["empty", "negative", "oversized", "too short", "unknown API", "unknown version", "cut", "long array", "HTTP"],
)
def test_a_frame_that_is_no_request_ends_its_connection_alone(
    raw: RawKafka, cluster: KafkaCluster, data: bytes
) -> None:
    with RawKafka(cluster.bootstrap) as sender:
        sender.send(data)
        assert closed(sender)
    assert raw.metadata("nothing").brokers


def test_a_client_that_is_too_old_is_named_in_the_log_once(cluster: KafkaCluster, raw: RawKafka) -> None:
    """Its connection is closed. Some clients then try again for ever and do not say why, so the log has the reason."""
    broker = raw.leaders(cluster.topic(replicas=1))[0]
    old = struct.pack(">hhih", 1, 0, 1, 6) + b"sarama"  # Fetch v0
    for _ in range(3):
        with RawKafka(broker) as client:
            client.send(struct.pack(">i", len(old)) + old)
            assert closed(client)
    new: Any = Question(18, 3)
    with RawKafka(broker) as client:
        body = new.module.ApiVersionsRequest(client_software_name="kafka-go", client_software_version="0.2")
        client.send(new.write(1, "me", body))
        client.frame()
        client.send(struct.pack(">i", len(old)) + old)
        assert closed(client)
    lines = [line for line in cluster.log.splitlines() if "sarama" in line]
    first, second = lines
    assert "a client 'sarama' (127.0.0.1) asks for fetch v0, and its connection is closed: this broker has v4" in first
    assert "kafka-go 0.2 'sarama' (127.0.0.1) asks for fetch v0" in second


def test_a_version_of_api_versions_that_is_too_new_is_answered_in_the_oldest(cluster: KafkaCluster) -> None:
    with RawKafka(cluster.bootstrap) as client:  # KIP-511
        client.send(struct.pack(">ihhih", 10, 18, 99, 7, -1))
        answer = Question(18, 0).read(client.frame())
        assert answer.error_code == ErrorCode.unsupported_version
        assert {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}[PRODUCE] == (0, 13)


def test_requests_of_one_connection_are_answered_in_their_order(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as client:
        frames = [
            client.question(FETCH, 12, **fetch_fields(topic, {0: 0}, 0.3))[1],
            client.question(
                METADATA, 9, topics=(), allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
            )[1],
        ]  # fmt: skip
        client.send(b"".join(frames * 50))
        numbers = [int.from_bytes(client.frame()[:4]) for _ in range(4)]
        assert numbers == [1, 2, 1, 2]


def test_a_client_that_sends_slowly_is_understood(cluster: KafkaCluster) -> None:
    with RawKafka(cluster.bootstrap) as client:
        question, frame = client.question(18, 0)
        for byte in frame:
            client.send(bytes([byte]))
        assert question.read(client.frame()).error_code == ErrorCode.none


def memory_of(pid: int) -> int:
    """The memory that a process has written and shares with no other process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty"):
            return int(line.split()[1]) * 1024
    return 0


def test_damaged_requests_harm_no_other_client_and_fill_no_memory(
    cluster: KafkaCluster, raw: RawKafka, rng: random.Random
) -> None:
    topic = cluster.topic(replicas=3)
    leader = raw.leaders(topic)[0]
    pids = cluster.pids()
    before = {name: memory_of(pid) for name, pid in pids.items()}
    with RawKafka(leader) as bystander, RawKafka(leader) as template:
        valid = [
            template.question(PRODUCE, 9, **fields(topic))[1],
            template.question(FETCH, 12, **fetch_fields(topic, {0: 0}, 0.0))[1],
            *(
                struct.pack(">ihhih", 10, key, version, 1, -1)
                for key, (name, _) in APIS.items()
                for version in versions_of(name)
            ),
        ]
        for _ in range(150):
            host, _, port = leader.rpartition(":")
            with socket.create_connection((host, int(port)), 10) as sender:
                for _ in range(10):
                    frame = bytearray(rng.choice(valid))
                    for _ in range(rng.randint(1, 5)):
                        frame[rng.randrange(4 if rng.random() < 0.9 else 0, len(frame))] = rng.randrange(256)
                    try:
                        sender.sendall(frame)
                    except OSError:
                        break
            assert bystander.produce(topic, {0: batch([b"a"])})[0].error_code == ErrorCode.none
    assert cluster.pids() == pids, "no process has ended"
    for name, pid in pids.items():
        assert memory_of(pid) - before[name] < 64 << 20


def fields(topic: str, acks: int = -1) -> dict[str, object]:
    module = Question(PRODUCE, 9).module
    data = (module.PartitionProduceData(index=0, records=batch([b"x"])),)
    return {
        "transactional_id": None,
        "acks": acks,
        "timeout": seconds(1),
        "topic_data": (module.TopicProduceData(name=topic, partition_data=data),),
    }


def test_many_connections_at_once_are_all_served(cluster: KafkaCluster, raw: RawKafka) -> None:
    topic = cluster.topic(replicas=1)
    address = raw.leaders(topic)[0]
    clients = [RawKafka(address) for _ in range(200)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda client: client.fetch(topic, {0: 0}, max_wait=0.3)[0].error_code, clients))
    assert answers == [ErrorCode.none] * 200
    for client in clients:
        client.close()


def test_records_sent_with_acks_0_before_the_connection_was_closed_are_kept(
    cluster: KafkaCluster, raw: RawKafka
) -> None:
    """Each second connection sends a fetch that waits, and then the records.

    When the connection closes, the fetch is withdrawn, and the requests behind it are carried out all the same.
    """
    topic = cluster.topic(replicas=1)
    address = raw.leaders(topic)[0]
    with RawKafka(address) as client:
        _, wait = client.question(FETCH, 12, **fetch_fields(topic, {0: 0}, 60.0, min_bytes=1 << 20))
        frames = b"".join(client.question(PRODUCE, 9, **fields(topic, acks=0))[1] for _ in range(50))
        for before in (b"", wait) * 5:
            with RawKafka(address) as other:
                other.send(before + frames)
        eventually(lambda: client.fetch(topic, {0: 0})[0].high_watermark == 500, "not all records are kept")
        eventually(lambda: not cluster.purgatories()["fetch"]["pending"], "a fetch still waits")


class Transport(asyncio.Transport):
    """A transport without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def never(connection: Connection, frame: bytes) -> bytes | None:
    await asyncio.get_running_loop().create_future()
    return None


@pytest.mark.parametrize("is_whole", [False, True], ids=["half a frame", "a request in hand"])
def test_the_connection_with_the_most_bytes_is_closed_when_there_are_too_many(is_whole: bool) -> None:
    async def main() -> None:
        buffers, connections = Buffers(1_000), set[Connection]()
        made = [Connection(never, connections, buffers, 10_000) for _ in range(3)]
        transports = [Transport() for _ in made]
        for connection, transport in zip(made, transports, strict=True):
            connection.connection_made(transport)
        made[0].data_received(struct.pack(">i", 896 if is_whole else 9_000) + bytes(896))
        await asyncio.sleep(0)
        made[1].data_received(struct.pack(">i", 9_000) + bytes(86))
        assert buffers.used == 990
        made[2].data_received(struct.pack(">i", 9_000) + bytes(86))
        assert [transport.closed for transport in transports] == [True, False, False]
        for connection in made:
            connection.connection_lost(None)
        await asyncio.sleep(0)
        assert buffers.used == 0

    asyncio.run(main())


@pytest.mark.parametrize("key", APIS)
def test_every_version_of_every_api_is_answered(cluster: KafkaCluster, key: int) -> None:
    with RawKafka(cluster.bootstrap) as client:
        for version in versions_of(APIS[key][0]):
            question = Question(key, version)
            client.send(question.write(version, "least", least(question.request)))
            assert question.read(client.frame()) is not None, version


def test_a_client_that_is_gone_no_longer_waits_whatever_it_has_sent(cluster: KafkaCluster, raw: RawKafka) -> None:
    """More than 64 KiB follow the waiting fetch, so the broker stops reading: no read shows it the client's end."""
    topic = cluster.topic(replicas=1)
    with RawKafka(raw.leaders(topic)[0]) as client:
        client.send(client.question(FETCH, 12, **fetch_fields(topic, {0: 0}, 1_000.0))[1])
        client.send(struct.pack(">i", 1 << 20) + b"\0" * 200_000)
    eventually(lambda: not cluster.purgatories()["fetch"]["pending"], "the fetch still waits")


def test_answers_that_nobody_takes_are_bounded() -> None:
    async def main() -> tuple[int, int]:
        loop, buffers, there = asyncio.get_running_loop(), Buffers(most=20 << 20), set[Connection]()
        handled = 0

        async def handle(_: Connection, frame: bytes) -> bytes:
            nonlocal handled
            handled += 1
            return bytes(8 << 20)

        server = await loop.create_server(lambda: Connection(handle, there, buffers, 1 << 20), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(6)]
        for client in clients:
            client.sendall(struct.pack(">i", 4) + b"give")
        async with asyncio.timeout(PATIENCE_S):
            while handled < len(clients):
                await asyncio.sleep(0.01)
        for _ in range(10):  # turns in which the last answer is written, and connections are closed
            await asyncio.sleep(0)
        kept, used = len(there), buffers.used
        for client in clients:
            client.close()
        server.close()
        async with asyncio.timeout(PATIENCE_S):
            while buffers.used:
                await asyncio.sleep(0.01)
        return kept, used

    kept, used = asyncio.run(main())
    assert used <= 20 << 20 and 1 <= kept < 6


def test_a_throttle_time_that_rounds_to_0_ms_mutes_nothing(
    manual: Manual, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer states whole milliseconds. If it states 0, the client is not muted."""

    async def main() -> list[float]:
        with brokers(tmp_path, 1, produce_quota=1e6) as (broker,):
            call: Any = SimpleNamespace(client_id="a", connection=SimpleNamespace(peer="p", closing=[], mute=list))
            found = []
            for seconds in (0.0004, 0.0006):
                monkeypatch.setattr(broker.produced, "record", lambda *_, s=seconds: s)
                found.append(broker.throttle(broker.produced, call, 1))
            assert broker.waits.pending == 1
            return found

    assert manual.run(main()) == [0.0, 0.001]
