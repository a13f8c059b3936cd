"""CreatePartitions: more partitions for a topic. They exist when every broker has read of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.changes import TWICE, Codes, Refused, change_and_wait
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic, Topics
from timerd_kafka.cluster.configs import SHOWN
from timerd_kafka.cluster.settings import PARTITIONS_MAX
from timerd_kafka.wire.codec import milliseconds

PLACED_SHOWN = 10  # partitions in an error


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    body, make = call.body, call.api.make
    refuse_too_many(body.topics)
    broker.refresh()
    counted = Counter(asked.name for asked in body.topics)
    errors = {name: TWICE for name, count in counted.items() if count > 1}
    wanted = [asked for asked in body.topics if asked.name not in errors]
    altered: dict[str, Topic] = {}

    def changed(topics: Topics) -> Topics:
        left = PARTITIONS_MAX - sum(topic.partitions for topic in topics.values())
        for asked in wanted:
            try:
                topic = larger(broker, asked, topics, left)
            except Refused as refused:
                errors[asked.name] = refused.code, refused.why
            else:
                altered[asked.name] = topic
                left -= topic.partitions - topics[asked.name].partitions
        return {**topics, **altered}

    def change() -> Codes:
        broker.catalog.change(changed)
        return dict.fromkeys(altered, ErrorCode.none)

    if body.validate_only:
        changed(broker.catalog.by_name)
    else:
        named = [asked.name for asked in wanted]
        timeout = max(0.0, body.timeout.total_seconds())
        for name, code in (await change_and_wait(broker, named, timeout, change)).items():
            if code:  # a topic that was refused keeps its error, also if the others cannot be written
                errors.setdefault(name, (code, f"{name[:SHOWN]}: {code.name}"))

    def one(name: str) -> Any:
        error, message = errors.get(name, (ErrorCode.none, None))
        return make("CreatePartitionsTopicResult", name=name, error_code=error, error_message=message)

    return make("CreatePartitionsResponse", throttle_time=milliseconds(0), results=await Pauses().each(one, counted))


def larger(broker: Broker, asked: Any, topics: Topics, left: int) -> Topic:
    """The topic with the partitions that the request asks for. The cluster has room for `left` more. Raises Refused."""
    topic = topics.get(asked.name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {asked.name[:SHOWN]!r}")
    if asked.count <= topic.partitions:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"{asked.count} partitions: {asked.name} has {topic.partitions}, and a topic can only grow",
        )
    added = range(topic.partitions, asked.count)
    if asked.assignments is not None and len(asked.assignments) != len(added):
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"{len(asked.assignments)} assignments for {len(added)} new partitions: give none, or one for each",
        )
    if len(added) > left:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"{asked.count} partitions: {topic.partitions + left} at most, of the cluster's {PARTITIONS_MAX}",
        )
    if asked.assignments:
        placed = (broker.store.replicas(topic, index) for index in added)
        # This ends at the first difference, to be short: while it runs, no other broker can change the topics.
        if any(one.broker_ids != replicas for one, replicas in zip(asked.assignments, placed, strict=True)):
            first = [list(broker.store.replicas(topic, index)) for index in added[:PLACED_SHOWN]]
            raise Refused(
                ErrorCode.invalid_replica_assignment,
                f"this broker places replicas itself: give no assignments, or {first}",
            )
    return replace(topic, partitions=asked.count)
