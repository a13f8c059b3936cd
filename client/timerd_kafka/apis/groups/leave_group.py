"""LeaveGroup: members leave, or an administrator removes static members."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses, to_its_end
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.messages import Identity
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """The result for each member."""
    body, coordinator = call.body, broker.coordinator
    if not call.api.has("MemberResponse"):
        error = coordinator.leave(Identity(body.group_id, body.member_id))
        return call.api.make("LeaveGroupResponse", throttle_time=milliseconds(0), error_code=error)
    refusal = coordinator.refusal(body.group_id)

    def left(one: Any) -> Any:
        return call.api.make(
            "MemberResponse",
            member_id=one.member_id,
            group_instance_id=one.group_instance_id,
            error_code=coordinator.leave(Identity(body.group_id, one.member_id, one.group_instance_id)),
        )

    leaving = () if refusal is not ErrorCode.none else body.members
    members = await to_its_end(Pauses().each(left, leaving))  # also if the client leaves meanwhile
    return call.api.make("LeaveGroupResponse", throttle_time=milliseconds(0), error_code=refusal, members=members)
