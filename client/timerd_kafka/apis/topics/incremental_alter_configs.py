"""IncrementalAlterConfigs: set or delete single configurations of a topic, and add to lists or take from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.topics.alter_configs import APPEND, DELETE, SET, SUBTRACT, alter
from timerd_kafka.apis.topics.changes import Refused
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.configs import CONFIGS, LIST, SHOWN, listed, value_of


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    return await alter(broker, call, "IncrementalAlterConfigsResponse", edited)


def edited(asked: Any, present: Mapping[str, str]) -> dict[str, str]:
    """The configurations of a topic after the operations of the request. Raises Refused."""
    made = dict(present)
    for one in asked.configs:
        name, operation = one.name, one.config_operation
        if operation == SET:
            made[name] = one.value
        elif operation == DELETE:
            made.pop(name, None)
        elif operation not in (APPEND, SUBTRACT):
            raise Refused(
                ErrorCode.invalid_request, f"{name[:SHOWN]}: operation {operation}, which Kafka does not have"
            )
        elif name not in CONFIGS or CONFIGS[name].kind != LIST:
            what = "append to" if operation == APPEND else "subtract from"
            raise Refused(ErrorCode.invalid_config, f"can't {what} {name[:SHOWN]}, which is no list")
        else:
            before, given = listed(value_of(made, name)), listed(one.value)
            after = [part for part in before if operation == APPEND or part not in given]
            if operation == APPEND:
                after += [part for part in dict.fromkeys(given) if part not in before]
            made[name] = ",".join(after)
    return made
