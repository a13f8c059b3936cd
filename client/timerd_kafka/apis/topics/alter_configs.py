"""AlterConfigs: a topic gets the configurations of the request. Its other configurations get their defaults.

The changed configurations hold when every broker has read them, and they outlive a restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.apis.topics.bounds import refuse_too_many
from timerd_kafka.apis.topics.changes import Codes, Refused, change_and_wait
from timerd_kafka.apis.topics.describe_configs import BROKER, TOPIC
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.catalog import Topic, Topics, is_legal, why_illegal
from timerd_kafka.cluster.configs import SHOWN, VALUE_MAX, kept, wrong_config
from timerd_kafka.wire.codec import milliseconds

SET, DELETE, APPEND, SUBTRACT = range(4)  # operations of IncrementalAlterConfigs
READ_S = 5.0  # the longest wait until all brokers have read the configurations: the request has no timeout

Edit = Callable[[Any, Mapping[str, str]], dict[str, str]]


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    return await alter(
        broker, call, "AlterConfigsResponse", lambda asked, _: {one.name: one.value for one in asked.configs}
    )


async def alter(broker: Broker, call: Call, kind: str, edit: Edit) -> Any:
    """Change the configurations of topics: `edit(asked, present)` makes the new configurations of a topic.

    A topic gets all changes of the request, or none. `edit` may raise Refused. `kind`: the name of the answer.
    """
    body, make = call.body, call.api.make
    refuse_too_many(body.resources)
    broker.refresh()
    counted = Counter((one.resource_type, one.resource_name) for one in body.resources)
    errors: dict[tuple[int, str], tuple[ErrorCode, str]] = {}
    wanted = []  # the parts that name a topic: a legal name, and each name once
    for asked in body.resources:
        try:
            refuse_early(asked, counted[asked.resource_type, asked.resource_name])
        except Refused as refused:
            errors[asked.resource_type, asked.resource_name] = refused.code, refused.why
        else:
            wanted.append(asked)
    altered: dict[str, Topic] = {}
    before: dict[str, Mapping[str, str]] = {}

    def changed(topics: Topics) -> Topics:
        for asked in wanted:
            try:
                topic = topics.get(asked.resource_name)
                if topic is None:
                    raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {asked.resource_name!r}")
                configs = edit(asked, topic.configs)
                if why := wrong_config(configs):
                    raise Refused(ErrorCode.invalid_config, why)
            except Refused as refused:
                errors[TOPIC, asked.resource_name] = refused.code, refused.why
            else:
                altered[topic.name], before[topic.name] = replace(topic, configs=kept(configs)), topic.configs
        return {**topics, **altered}

    def change() -> Codes:
        broker.catalog.change(changed)
        return dict.fromkeys(altered, ErrorCode.none)

    if body.validate_only:
        changed(broker.catalog.by_name)
    else:
        named = [one.resource_name for one in wanted]
        for name, code in (await change_and_wait(broker, named, READ_S, change)).items():
            if code:  # a topic that was refused keeps its error, also if the others cannot be written
                errors.setdefault((TOPIC, name), (code, f"{name}: {code.name}"))
        for name in [name for name in altered if (TOPIC, name) not in errors]:
            broker.note_without_effect(name, altered[name].configs, before[name])

    def one(asked: Any) -> Any:
        error, message = errors.get((asked.resource_type, asked.resource_name), (ErrorCode.none, None))
        return make(
            "AlterConfigsResourceResponse",
            error_code=error,
            error_message=message,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )

    return make(kind, throttle_time=milliseconds(0), responses=await Pauses().each(one, body.resources))


def refuse_early(asked: Any, count: int) -> None:
    """Raise Refused if a part of a request is wrong, whatever the topics are."""
    name = asked.resource_name
    if count > 1:
        raise Refused(ErrorCode.invalid_request, "the resource is in this request more than once")
    if asked.resource_type == BROKER:
        raise Refused(ErrorCode.invalid_request, "a broker's configurations are given by its flags at the start")
    if asked.resource_type != TOPIC:
        raise Refused(ErrorCode.invalid_request, f"resources of kind {asked.resource_type} have no configurations here")
    if not is_legal(name):
        code = ErrorCode.invalid_topic_exception if name else ErrorCode.invalid_request
        raise Refused(code, why_illegal(name))
    twice = [config for config, count in Counter(one.name for one in asked.configs).items() if count > 1]
    if twice:
        raise Refused(ErrorCode.invalid_request, f"{twice[0][:SHOWN]} is in this request more than once")
    for one in asked.configs:
        if len(one.value or "") > VALUE_MAX:
            why = f"{one.name[:SHOWN]}: {len(one.value)} characters: {VALUE_MAX} at most"
            raise Refused(ErrorCode.invalid_config, why)
        if one.value is None and getattr(one, "config_operation", None) != DELETE:
            raise Refused(ErrorCode.invalid_request, f"{one.name[:SHOWN]}: null is no value of a topic's configuration")
