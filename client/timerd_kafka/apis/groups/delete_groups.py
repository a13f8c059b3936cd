"""DeleteGroups: groups without members are forgotten, with their offsets."""

from __future__ import annotations

from typing import Any

from timerd_kafka.apis.pauses import Pauses, to_its_end
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """The result for each group."""
    make, coordinator = call.api.make, broker.coordinator

    def deleted(group: str) -> Any:
        return make("DeletableGroupResult", group_id=group, error_code=coordinator.delete(group))

    # All of them are deleted, also if the client leaves meanwhile.
    results = await to_its_end(Pauses().each(deleted, dict.fromkeys(call.body.groups_names)))
    return make("DeleteGroupsResponse", throttle_time=milliseconds(0), results=results)
