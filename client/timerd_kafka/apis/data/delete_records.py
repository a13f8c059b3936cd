"""DeleteRecords: after this request, no replica returns records before an offset.

The bytes stay in the file until the topic is deleted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_client.operations import DelayedDeleteRecords, Part
from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many_partitions
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.replicas.partition import Partition, key_of
from timerd_kafka.waits.waits import DaemonLost
from timerd_kafka.wire.codec import milliseconds

HIGH_WATERMARK = -1  # as the offset in a request: delete up to the high watermark


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request. As in Kafka, it has each partition once."""
    make = call.api.make
    refuse_too_many_partitions(call.body.topics)
    asked: dict[str, dict[int, int]] = {}  # of a partition that is named twice, the last offset counts, as in Kafka
    for topic in call.body.topics:
        there = asked.setdefault(topic.name, {})
        there.update({one.partition_index: one.offset for one in topic.partitions})
    wanted: dict[str, int] = {}
    errors: dict[str, int] = {}
    partitions: dict[str, Partition] = {}
    keys: dict[tuple[str, int], str] = {}  # kept here, because the topic may be deleted while the request waits
    for name, offsets in asked.items():
        for index, offset in offsets.items():
            key = keys[name, index] = key_in(broker, name, index)
            wanted[key] = offset
            partition = broker.led(broker.topic(name), index)
            if not isinstance(partition, Partition):
                errors[key] = partition
                continue
            if not partition.topic.rules.deletes:
                errors[key] = ErrorCode.policy_violation
                continue
            wanted[key] = partition.high_watermark if offset == HIGH_WATERMARK else offset
            if not 0 <= wanted[key] <= partition.high_watermark:
                errors[key] = ErrorCode.offset_out_of_range
                continue
            partitions[key] = partition
            partition.delete_before(wanted[key])
            broker.replicated(partition)
    parts = await deleted(broker, call, wanted, errors, partitions)

    def one(name: str, index: int) -> Any:
        part = parts[keys[name, index]]
        return make(
            "DeleteRecordsPartitionResult",
            partition_index=index,
            low_watermark=part.offset,
            error_code=ErrorCode(part.error),
        )

    topics, pauses = [], Pauses()
    for name, offsets in asked.items():
        results = await pauses.each(partial(one, name), offsets)
        topics.append(make("DeleteRecordsTopicResult", name=name, partitions=results))
        await pauses.made()
    return make("DeleteRecordsResponse", throttle_time=milliseconds(0), topics=tuple(topics))


async def deleted(
    broker: Broker, call: Call, wanted: dict[str, int], errors: dict[str, int], partitions: dict[str, Partition]
) -> dict[str, Part]:
    """Wait until every replica has deleted the records."""
    timeout = max(0.0, call.body.timeout.total_seconds())
    try:
        parts: dict[str, Part] = await broker.waits.until(
            "produce",
            timeout,
            lambda give: DelayedDeleteRecords(
                wanted, lambda key: partitions[key].low_watermark_of_all(), give, errors=errors
            ),
        )
    except DaemonLost:
        return {key: Part(errors.get(key, ErrorCode.request_timed_out)) for key in wanted}
    return parts


def key_in(broker: Broker, name: str, index: int) -> str:
    """The key of a partition in this request, whether or not there is such a partition."""
    found = broker.topic(name)
    return key_of(found.id, index) if found else f"{name}?{index}"
