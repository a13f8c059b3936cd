"""DeleteTopics: a topic is gone when every broker has read its deletion."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.changes import Codes, change_and_wait
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request, which has names; since v6 it may also have ids."""
    body, make = call.body, call.api.make
    broker.refresh()
    states = getattr(body, "topics", None)
    asked = (
        [(one.name, one.topic_id) for one in states] if states is not None else [(n, None) for n in body.topic_names]
    )
    refuse_too_many(asked)
    found = [(name, topic_id, broker.topic(name, topic_id)) for name, topic_id in asked]
    ids = {topic.id for _, _, topic in found if topic}
    names = {topic.name for _, _, topic in found if topic}

    def delete() -> Codes:
        broker.catalog.delete(lambda topic: topic.id in ids)
        return dict.fromkeys(names, ErrorCode.none)

    timeout = max(0.0, body.timeout.total_seconds())
    codes = await change_and_wait(broker, names, timeout, delete) if names else {}

    def one(name: str | None, topic_id: Any, topic: Any) -> Any:
        unknown = ErrorCode.unknown_topic_id if topic_id else ErrorCode.unknown_topic_or_partition
        return make(
            "DeletableTopicResult",
            name=topic.name if topic else name,
            topic_id=topic.id if topic else topic_id,
            error_code=codes[topic.name] if topic else unknown,
            error_message=None,
        )

    return make("DeleteTopicsResponse", throttle_time=milliseconds(0), responses=tuple(one(*each) for each in found))
