"""Unmodified clients that this project did not write: kafka-python, aiokafka and confluent-kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import aiokafka.admin.config_resource
import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kafka.admin import KafkaAdminClient

from support.kafka.forwarded import forwarded
from support.kafka.patience import PATIENCE_S, eventually
from support.kafka.ports import free_ports
from support.suite.tiers import in_tiers
from timerd_kafka.testing import KafkaCluster

COUNT = 300
PURGATORIES = ("produce", "fetch", "heartbeat", "rebalance")
VALUES = [b"value %d" % number for number in range(COUNT)]


def produce_by_kafka_python(bootstrap: str, topic: str) -> None:
    with kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip", linger_ms=5) as producer:
        for future in [producer.send(topic, value, key=value) for value in VALUES]:
            future.get(timeout=PATIENCE_S)


def consume_by_kafka_python(bootstrap: str, topic: str, group: str) -> list[bytes]:
    found: list[bytes] = []
    with kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        end = time.monotonic() + PATIENCE_S
        while len(found) < COUNT and time.monotonic() < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
        consumer.commit()
    return found


def produce_by_aiokafka(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, compression_type="zstd"
        ) as producer:
            for sent in [await producer.send(topic, value, key=value) for value in VALUES]:
                await asyncio.wait_for(sent, PATIENCE_S)

    asyncio.run(main())


def consume_by_aiokafka(bootstrap: str, topic: str, group: str) -> list[bytes]:
    found: list[bytes] = []

    async def main() -> None:
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            end = time.monotonic() + PATIENCE_S
            while len(found) < COUNT and time.monotonic() < end:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found.extend(record.value for record in records)
            await consumer.commit()

    asyncio.run(main())
    return found


def produce_by_confluent(bootstrap: str, topic: str) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "gzip"}
    )
    for value in VALUES:
        producer.produce(topic, value, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(PATIENCE_S) == 0 and not failed


def consume_by_confluent(bootstrap: str, topic: str, group: str) -> list[bytes]:
    found: list[bytes] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    end = time.monotonic() + PATIENCE_S
    while len(found) < COUNT and time.monotonic() < end:
        found += [message.value() or b"" for message in consumer.consume(100, 0.5) if not message.error()]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


PRODUCERS = [produce_by_kafka_python, produce_by_aiokafka, produce_by_confluent]
CONSUMERS = [consume_by_kafka_python, consume_by_aiokafka, consume_by_confluent]


PAIRS = list(zip(PRODUCERS, [*CONSUMERS[1:], CONSUMERS[0]], strict=True))


@pytest.mark.parametrize(("produce", "consume"), PAIRS)
def test_each_record_is_consumed_once_whoever_has_produced_it(
    cluster: KafkaCluster, produce: Callable[[str, str], None], consume: Callable[[str, str, str], list[bytes]]
) -> None:
    topic = cluster.topic(partitions=3, replicas=3)
    produce(cluster.bootstrap, topic)
    found = consume(cluster.bootstrap, topic, f"group-{topic}")
    assert sorted(found) == sorted(VALUES)
    eventually(
        lambda: not any(cluster.purgatories()[name]["pending"] for name in PURGATORIES),
        "the clients have left, and something still waits",
    )


@pytest.mark.parametrize(("produce", "consume"), in_tiers(PAIRS, 1))
def test_one_forwarded_port_is_enough_for_a_cluster_of_one_broker(
    produce: Callable[[str, str], None], consume: Callable[[str, str, str], list[bytes]]
) -> None:
    """As from a container with one published port, or through `ssh -L`."""
    try:
        with forwarded(free_ports(1)) as bootstrap:
            produce(bootstrap, "orders")
            assert sorted(consume(bootstrap, "orders", "group")) == sorted(VALUES)
    except PermissionError as error:
        pytest.skip(f"{error}")


def test_admin_clients_see_topics_groups_and_configurations(cluster: KafkaCluster) -> None:
    topic = cluster.topic(partitions=2, configs={"max.message.bytes": "5000"})
    consume_none = kafka.KafkaConsumer(topic, bootstrap_servers=cluster.bootstrap, group_id=f"seen-{topic}")
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    other = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert topic in admin.list_topics() and topic in other.list_topics(timeout=PATIENCE_S).topics

    def has_joined() -> bool:
        """Whether the consumer is a member. It is polled: on a busy machine it may leave, and then it joins again.

        If it were closed while it joins, the group would wait for it, and so would a later test.
        """
        consume_none.poll(timeout_ms=200)
        described = other.describe_consumer_groups([f"seen-{topic}"])[f"seen-{topic}"]
        return bool(consume_none.assignment()) and len(described.result(PATIENCE_S).members) == 1

    eventually(has_joined)
    listed = other.list_consumer_groups().result(PATIENCE_S)
    assert f"seen-{topic}" in {group.group_id for group in listed.valid}
    resource = ConfigResource(ResourceType.TOPIC, topic)
    (configs,) = (future.result(PATIENCE_S) for future in other.describe_configs([resource]).values())
    assert configs["max.message.bytes"].value == "5000" and configs["cleanup.policy"].value == "delete"
    consume_none.close()
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()
    admin.close()


def of_topic(bootstrap: str, topic: str) -> tuple[int, str]:
    """The number of a topic's partitions, and its flush.ms, as confluent-kafka sees them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (configs,) = (
        one.result(PATIENCE_S) for one in admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    )
    return len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions), configs["flush.ms"].value


def change_by_kafka_python(bootstrap: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def alter(value: str, **more: bool) -> None:
        admin.alter_configs([kafka.admin.ConfigResource("topic", topic, {"flush.ms": value})], **more)

    alter("6", incremental=False)
    assert of_topic(bootstrap, topic) == (1, "6")
    alter("8", validate_only=True)
    assert of_topic(bootstrap, topic) == (1, "6")
    alter("7", incremental=True)
    admin.create_partitions({topic: 3})
    admin.close()


def change_by_aiokafka(bootstrap: str, topic: str) -> None:
    async def main() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        resource = aiokafka.admin.config_resource.ConfigResource(
            aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic, {"flush.ms": "7"}
        )
        await admin.alter_configs([resource])
        await admin.create_partitions({topic: aiokafka.admin.NewPartitions(3)})
        await admin.close()

    asyncio.run(main())


def change_by_confluent(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"flush.ms": "6"})
    (altered,) = admin.alter_configs([resource]).values()
    altered.result(PATIENCE_S)
    assert of_topic(bootstrap, topic) == (1, "6")
    entry = ConfigEntry("flush.ms", "7", incremental_operation=AlterConfigOpType.SET)
    (altered,) = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values()
    altered.result(PATIENCE_S)
    (grown,) = admin.create_partitions([NewPartitions(topic, 3)]).values()
    grown.result(PATIENCE_S)
    (refused,) = admin.create_partitions([NewPartitions(topic, 2)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="a topic can only grow"):
        refused.result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore:alter_configs:DeprecationWarning")
@pytest.mark.parametrize("change", [change_by_kafka_python, change_by_aiokafka, change_by_confluent])
def test_admin_clients_change_configurations_and_add_partitions(
    cluster: KafkaCluster, change: Callable[[str, str], None]
) -> None:
    topic = cluster.topic(configs={"flush.ms": "5"})
    change(cluster.bootstrap, topic)
    assert of_topic(cluster.bootstrap, topic) == (3, "7")


def test_a_topic_that_a_producer_names_is_made(cluster: KafkaCluster) -> None:
    name = f"made-{time.monotonic_ns()}"
    produce_by_confluent(cluster.bootstrap, name)
    assert sorted(consume_by_kafka_python(cluster.bootstrap, name, name)) == sorted(VALUES)


def test_a_transactional_producer_is_refused_at_once(cluster: KafkaCluster) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.init_transactions(PATIENCE_S)
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_consumer_of_the_protocol_of_kip_848_gets_its_error_at_once(cluster: KafkaCluster) -> None:
    """Before, librdkafka waited without an error: the broker did not announce ConsumerGroupHeartbeat."""
    topic, errors = cluster.topic(), list[confluent_kafka.KafkaError]()
    group = f"group-{topic}"
    consumer = confluent_kafka.Consumer(
        {
            **{"bootstrap.servers": cluster.bootstrap, "client.id": f"client-{topic}", "group.id": group},
            **{"group.protocol": "consumer", "error_cb": errors.append},
        }
    )
    consumer.subscribe([topic])
    end = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            errors.append(error)
    consumer.close()
    assert errors and errors[0].code() == confluent_kafka.KafkaError._FATAL, errors
    assert "API version not supported: ConsumerGroupHeartbeat" in errors[0].str()
    assert f"client 'client-{topic}' asks for group {group!r} by the protocol of KIP-848" in cluster.log


def test_times_are_found_in_compressed_batches(cluster: KafkaCluster) -> None:
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        topic = cluster.topic(replicas=1)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 200}
        )
        for number in range(100):
            producer.produce(topic, b"some value again and again", timestamp=1_000_000 + 10 * number)
        assert producer.flush(PATIENCE_S) == 0
        consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "times"})
        asked = confluent_kafka.TopicPartition(topic, 0, 1_000_000 + 455)
        (found,) = consumer.offsets_for_times([asked], timeout=PATIENCE_S)
        assert found.offset == 46, codec
        consumer.close()


ERRORS = {
    **dict.fromkeys(("Produce", "Fetch", "ListOffsets"), "NOT_LEADER_OR_FOLLOWER"),
    **dict.fromkeys(("InitProducerId", "JoinGroup", "OffsetFetch", "OffsetCommit"), "COORDINATOR_LOAD_IN_PROGRESS"),
    **{"Metadata": "LEADER_NOT_AVAILABLE", "FindCoordinator": "COORDINATOR_NOT_AVAILABLE"},
    **{"SyncGroup": "REBALANCE_IN_PROGRESS"},
}


@pytest.mark.long
@pytest.mark.parametrize(("produce", "consume"), PAIRS)
def test_clients_recover_from_one_error_in_each_api(
    cluster: KafkaCluster, produce: Callable[[str, str], None], consume: Callable[[str, str, str], list[bytes]]
) -> None:
    """The answers with errors that a test sets have the form in which each client expects them."""
    topic = cluster.topic(partitions=3, replicas=3)
    try:
        for api, error in ERRORS.items():
            cluster.fail(api, error)
        produce(cluster.bootstrap, topic)
        assert sorted(consume(cluster.bootstrap, topic, f"group-{topic}")) == sorted(VALUES)
        assert all(fault.applied == 1 for fault in cluster.faults())
    finally:
        cluster.clear_faults()
