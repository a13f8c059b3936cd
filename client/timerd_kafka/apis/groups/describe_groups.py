"""DescribeGroups: the state and the members of groups."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.group import State
from timerd_kafka.groups.messages import DescribedGroup, DescribedMember
from timerd_kafka.wire.codec import milliseconds

NOT_FOUND = 6  # from this version on an unknown group is an error; in older versions its state is "Dead"
NOT_ASKED = -(2**31)  # as "authorized operations": the answer does not have them


async def answer(broker: Broker, call: Call) -> Any:
    """A description of each group."""
    pauses = Pauses()
    groups = [await _described(broker, call, group, pauses) for group in dict.fromkeys(call.body.groups)]
    return call.api.make("DescribeGroupsResponse", throttle_time=milliseconds(0), groups=tuple(groups))


async def _described(broker: Broker, call: Call, group_id: str, pauses: Pauses) -> Any:
    error, message = broker.coordinator.refusal(group_id, may_be_empty=True), None
    group = None if error else broker.coordinator.describe(group_id)
    if group is None:
        is_dead = error is ErrorCode.none
        group = DescribedGroup(group_id, State.DEAD.value if is_dead else "", "", "", ())
        if is_dead and call.api.version >= NOT_FOUND:
            error, message = ErrorCode.group_id_not_found, f"group {group_id} is not found"

    def member(one: DescribedMember) -> Any:
        return call.api.make(
            "DescribedGroupMember",
            member_id=one.id,
            group_instance_id=one.instance,
            client_id=one.client_id,
            client_host=one.client_host,
            member_metadata=one.metadata,
            member_assignment=one.assignment,
        )

    members = await pauses.each(member, group.members)
    await pauses.made()
    return call.api.make(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
        authorized_operations=NOT_ASKED,
    )
