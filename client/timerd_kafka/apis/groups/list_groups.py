"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.group import State
from timerd_kafka.wire.codec import milliseconds

TYPE = "classic"


async def answer(broker: Broker, call: Call) -> Any:
    """The groups in the states, and of the types, that were asked for."""
    states = {state.lower() for state in getattr(call.body, "states_filter", ())}
    types = {kind.lower() for kind in getattr(call.body, "types_filter", ())}
    groups, pauses = [], Pauses()
    for group in tuple(broker.coordinator.groups.values()):
        is_asked = (not states or group.state.value.lower() in states) and (not types or TYPE in types)
        if is_asked and group.state is not State.DEAD:  # it may have been forgotten in a pause
            groups.append(
                call.api.make(
                    "ListedGroup",
                    group_id=group.id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=TYPE,
                )
            )
        await pauses.made()
    return call.api.make(
        "ListGroupsResponse", throttle_time=milliseconds(0), error_code=ErrorCode.none, groups=tuple(groups)
    )
