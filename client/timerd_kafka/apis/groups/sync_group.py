"""SyncGroup: a member gets its assignment. The request waits for the leader, and a DelayedSync bounds the wait."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.groups.leaving import heeding_a_leave
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.messages import Identity, SyncAnswer, SyncRequest
from timerd_kafka.wire.codec import milliseconds

STATES_PROTOCOL = 5  # from this version on a request names its protocol (KIP-559)


async def answer(broker: Broker, call: Call) -> Any:
    """The member's assignment."""
    body = call.body
    instance = getattr(body, "group_instance_id", None)
    kind = getattr(body, "protocol_type", None), getattr(body, "protocol_name", None)
    if call.api.version >= STATES_PROTOCOL and None in kind:
        synced = SyncAnswer(ErrorCode.inconsistent_group_protocol)
    else:
        who = Identity(body.group_id, body.member_id, instance, body.generation_id)
        assignments = {one.member_id: one.assignment for one in body.assignments}
        with heeding_a_leave(broker, call):
            synced = await broker.coordinator.sync(SyncRequest(who, assignments, *kind))
    return call.api.make(
        "SyncGroupResponse",
        throttle_time=milliseconds(0),
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
