"""DeleteTopics: a topic is gone when every broker has read its deletion."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.changes import TWICE, Codes, Refused, change_and_wait
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic
from timerd_kafka.cluster.configs import SHOWN
from timerd_kafka.wire.codec import milliseconds

Named = tuple[str | None, UUID | None]  # the name of a topic, or its id
Result = tuple[str | None, UUID | None, ErrorCode, str | None]  # name, id, error, message


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request, which has names; since v6 perhaps ids. A topic that it names twice is kept."""
    body, make = call.body, call.api.make
    broker.refresh()
    states = getattr(body, "topics", None)
    asked: list[Named] = (
        [(one.name, one.topic_id) for one in states] if states is not None else [(n, None) for n in body.topic_names]
    )
    refuse_too_many(asked)
    counted = Counter(asked)
    ids = {topic_id for name, topic_id in counted if name is None}
    meant: dict[UUID, Topic] = {}
    results: list[Result] = []
    for named in sorted(counted, key=lambda named: named[0] is not None):  # ids first
        try:
            topic = find(broker, named, counted[named])
        except Refused as error:
            results.append((*named, error.code, error.why))
            continue
        if named[0] is not None and topic.id in ids:
            meant.pop(topic.id, None)
            results.append((topic.name, topic.id, *TWICE))
        else:
            meant[topic.id] = topic
    names = [topic.name for topic in meant.values()]

    def delete() -> Codes:
        broker.catalog.delete(lambda topic: topic.id in meant)
        return dict.fromkeys(names, ErrorCode.none)

    timeout = max(0.0, body.timeout.total_seconds())
    codes = await change_and_wait(broker, names, timeout, delete) if names else {}
    results += [(topic.name, topic.id, codes[topic.name], None) for topic in meant.values()]

    def one(result: Result) -> Any:
        name, topic_id, error, message = result
        return make("DeletableTopicResult", name=name, topic_id=topic_id, error_code=error, error_message=message)

    return make("DeleteTopicsResponse", throttle_time=milliseconds(0), responses=await Pauses().each(one, results))


def find(broker: Broker, named: Named, count: int) -> Topic:
    """The topic that a request names `count` times by this name, or by this id. Raises Refused."""
    name, topic_id = named
    if (name is None) == (topic_id is None):
        raise Refused(ErrorCode.invalid_request, "give the name of a topic, or its id")
    if count > 1:
        raise Refused(*TWICE)
    topic = broker.topic(name, topic_id)
    if topic is None and name is None:
        raise Refused(ErrorCode.unknown_topic_id, f"there is no topic with the id {topic_id}")
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {(name or '')[:SHOWN]!r}")
    return topic
