"""A Kafka client that sends exactly what a test wants: any API, any version, any bytes."""

from __future__ import annotations

import datetime
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Self
from uuid import UUID

from crc32c import crc32c

from support.kafka.patience import PATIENCE_S
from timerd_kafka.log.batch import HEADER
from timerd_kafka.wire.codec import Question

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 37, 44


def seconds(value: float) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=round(value * 1000))


class RawKafka:
    """One connection to one broker."""

    def __init__(self, address: str, client_id: str = "raw") -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._answers = self._socket.makefile("rb")
        self._client_id = client_id
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def question(self, key: int, version: int, **fields: Any) -> tuple[Question, bytes]:
        """The frame of a request, with its size."""
        question = Question(key, version)
        self._number += 1
        return question, question.write(self._number, self._client_id, question.request(**fields))

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        """Send a request. Returns the answer."""
        question, frame = self.question(key, version, **fields)
        self.send(frame)
        return question.read(self.frame())

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def frame(self) -> bytes:
        """The next answer, without its size. Raises EOFError if the broker has closed the connection."""
        size = self._answers.read(4)
        if len(size) < 4:
            raise EOFError("the broker has closed the connection")
        return self._answers.read(int.from_bytes(size))

    # requests ---------------------------------------------------------------------------------------------------------

    def leaders(self, topic: str) -> dict[int, str]:
        """The address of each partition's leader."""
        return {number: brokers[0] for number, brokers in self.replicas(topic).items()}

    def replicas(self, topic: str) -> dict[int, list[str]]:
        """For each partition, the addresses of its brokers, the leader's first."""
        answer = self.metadata(topic)
        addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
        return {
            partition.partition_index: [addresses[node] for node in partition.replica_nodes]
            for partition in answer.topics[0].partitions
        }

    def metadata(self, topic: str) -> Any:
        module = Question(METADATA, 12).module
        return self.ask(
            METADATA,
            12,
            topics=(module.MetadataRequestTopic(topic_id=None, name=topic),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    def produce(
        self, topic: str, batches: Mapping[int, bytes], *, acks: int = -1, timeout: float = 30.0, version: int = 9
    ) -> dict[int, Any]:
        """Send a batch to each partition of one topic. Returns the answer for each partition."""
        module = Question(PRODUCE, version).module
        data = tuple(module.PartitionProduceData(index=number, records=batch) for number, batch in batches.items())
        answer = self.ask(
            PRODUCE,
            version,
            transactional_id=None,
            acks=acks,
            timeout=seconds(timeout),
            topic_data=(module.TopicProduceData(name=topic, partition_data=data),),
        )
        return {one.index: one for one in answer.responses[0].partition_responses}

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait: float = 0.0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        rack: str = "",
    ) -> dict[int, Any]:
        """Read from partitions of one topic. Returns the answer for each partition."""
        answer = self.ask(
            FETCH, 12, **fetch_fields(topic, offsets, max_wait, min_bytes, max_bytes, partition_max_bytes, rack)
        )
        return {one.partition_index: one for topic in answer.responses for one in topic.partitions}


def fetch_fields(
    topic: str,
    offsets: Mapping[int, int],
    max_wait: float,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    rack: str = "",
) -> dict[str, Any]:
    module = Question(FETCH, 12).module
    partitions = tuple(
        module.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
        for number, offset in offsets.items()
    )
    return {
        "max_wait": seconds(max_wait),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": (module.FetchTopic(topic=topic, partitions=partitions),) if offsets else (),
        "forgotten_topics_data": (),
        "rack_id": rack,
    }


def varint(number: int) -> bytes:
    """A signed number as Kafka's records have it: zigzag, with seven bits in each byte."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number & ~0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(value: bytes, delta: int, time: int = 0, key: bytes | None = None) -> bytes:
    with_size = varint(-1) if key is None else varint(len(key)) + key
    body = b"\0" + varint(time) + varint(delta) + with_size + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    values: Iterable[bytes],
    *,
    offset: int = 0,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    timestamps: Iterable[int] | None = None,
    magic: int = 2,
) -> bytes:
    """A record batch, as a producer sends it. `timestamps` are in ms, one for each record."""
    values = list(values)
    times = list(timestamps) if timestamps is not None else [1_000] * len(values)
    records = b"".join(record(value, delta, times[delta] - times[0]) for delta, value in enumerate(values))
    made = bytearray(
        HEADER.pack(
            offset,
            HEADER.size - 12 + len(records),
            0,
            magic,
            0,
            attributes,
            len(values) - 1,
            times[0],
            max(times),
            producer,
            epoch,
            sequence,
            len(values),
        )
        + records
    )
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def key_of_topic(broker: RawKafka, topic: str) -> UUID:
    """The id of a topic."""
    found: UUID = broker.metadata(topic).topics[0].topic_id
    return found
