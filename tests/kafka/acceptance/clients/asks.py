"""The role "ask": deletes records, and asks for offsets by time, with each of the clients in Python."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 30.0

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def offsets_of(plan: dict[str, Any]) -> dict[int, int]:
    """The offsets before which records are deleted, by partition."""
    return {int(number): offset for number, offset in plan.get("delete", {}).items()}


async def by_kafka_python(plan: dict[str, Any]) -> dict[str, Any]:
    """Ask with kafka-python."""
    from kafka import KafkaConsumer, TopicPartition
    from kafka.admin import KafkaAdminClient, OffsetSpec

    parts = [TopicPartition(plan["topic"], number) for number in range(plan["partitions"])]
    admin = KafkaAdminClient(bootstrap_servers=plan["bootstrap"])
    if delete := offsets_of(plan):
        admin.delete_records({parts[number]: offset for number, offset in delete.items()})
    largest = admin.list_partition_offsets(dict.fromkeys(parts, OffsetSpec.MAX_TIMESTAMP))
    admin.close()
    with KafkaConsumer(bootstrap_servers=plan["bootstrap"]) as consumer:
        found = consumer.offsets_for_times(dict.fromkeys(parts, plan["at"]))
    return {
        "at": {part.partition: one.offset if one else -1 for part, one in found.items()},
        "largest": {part.partition: [one.offset, one.timestamp] for part, one in largest.items()},
    }


async def by_aiokafka(plan: dict[str, Any]) -> dict[str, Any]:
    """Ask with aiokafka."""
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

    parts = [TopicPartition(plan["topic"], number) for number in range(plan["partitions"])]
    if delete := offsets_of(plan):
        admin = AIOKafkaAdminClient(bootstrap_servers=plan["bootstrap"])
        await admin.start()
        await admin.delete_records({parts[number]: RecordsToDelete(offset) for number, offset in delete.items()})
        await admin.close()
    async with AIOKafkaConsumer(bootstrap_servers=plan["bootstrap"]) as consumer:
        found = await consumer.offsets_for_times(dict.fromkeys(parts, plan["at"]))
    return {"at": {part.partition: one.offset if one else -1 for part, one in found.items()}, "largest": None}


async def by_confluent(plan: dict[str, Any]) -> dict[str, Any]:
    """Ask with confluent-kafka."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    topic, partitions = plan["topic"], range(plan["partitions"])
    admin = AdminClient({"bootstrap.servers": plan["bootstrap"]})
    if delete := offsets_of(plan):
        asked = [TopicPartition(topic, number, offset) for number, offset in delete.items()]
        for done in admin.delete_records(asked).values():
            done.result(PATIENCE_S)
    spec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    largest = admin.list_offsets({TopicPartition(topic, number): spec for number in partitions})
    consumer = Consumer({"bootstrap.servers": plan["bootstrap"], "group.id": f"alone-{plan['name']}"})
    asked = [TopicPartition(topic, number, plan["at"]) for number in partitions]
    found = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
    consumer.close()
    answers = {part.partition: answer.result(PATIENCE_S) for part, answer in largest.items()}
    return {
        "at": {part.partition: part.offset for part in found},
        "largest": {number: [one.offset, one.timestamp] for number, one in answers.items()},
    }


ASKS: dict[str, Ask] = {"kafka-python": by_kafka_python, "aiokafka": by_aiokafka, "confluent-kafka": by_confluent}
