"""JoinGroup: a client becomes a member of a group's next generation. The request waits for a DelayedJoin."""

from __future__ import annotations

from typing import Any

from timerd_kafka.apis.groups.leaving import heeding_a_leave
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.messages import GroupProtocol, JoinRequest
from timerd_kafka.wire.codec import milliseconds

NEEDS_KNOWN_ID = 4  # from this version on a client without an id gets one, and joins again (KIP-394)
NULLABLE = 7  # from this version on an answer may have no protocol
SKIPS_ASSIGNMENT = 9  # from this version on an answer may say that no assignment is needed (KIP-814)


async def answer(broker: Broker, call: Call) -> Any:
    """The generation that the client has joined."""
    body, version = call.body, call.api.version
    session_timeout = body.session_timeout.total_seconds()
    rebalance_timeout = session_timeout
    if version >= 1 and body.rebalance_timeout.total_seconds() >= 0:
        rebalance_timeout = body.rebalance_timeout.total_seconds()
    asked = JoinRequest(
        group=body.group_id,
        member=body.member_id,
        instance=getattr(body, "group_instance_id", None),
        client_id=call.client_id,
        client_host="/" + call.connection.peer.rpartition(":")[0],
        session_timeout=session_timeout,
        rebalance_timeout=rebalance_timeout,
        protocol_type=body.protocol_type,
        protocols=tuple(GroupProtocol(one.name, one.metadata) for one in body.protocols),
        needs_known_id=version >= NEEDS_KNOWN_ID,
        may_skip_assignment=version >= SKIPS_ASSIGNMENT,
    )
    with heeding_a_leave(broker, call):
        joined = await broker.coordinator.join(asked)
    members = tuple(
        call.api.make(
            "JoinGroupResponseMember", member_id=one.id, group_instance_id=one.instance, metadata=one.metadata
        )
        for one in joined.members
    )
    return call.api.make(
        "JoinGroupResponse",
        throttle_time=milliseconds(0),
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol if version >= NULLABLE else joined.protocol or "",
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member,
        members=members,
    )
