"""A client that leaves a group while its JoinGroup or SyncGroup waits: the LeaveGroup after it ends the wait.

A connection has one request in hand. So the LeaveGroup would be read when the JoinGroup is answered: when all other
members have joined. The client would wait until then, or give up: confluent-kafka does after 5 s, and
kafka-python after 30 s, in close().
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.messages import Identity
from timerd_kafka.wire.codec import START, BadFrame, api_of, versions_of

LEAVE_GROUP, NAME = 13, "leave_group"


@contextmanager
def heeding_a_leave(broker: Broker, call: Call) -> Iterator[None]:
    """While the block waits, look at the request after this one. If the member leaves by it, end the wait."""
    connection, body = call.connection, call.body

    def look() -> None:
        frame = connection.peek()
        if frame is None or connection.behind is not look:
            return
        connection.behind = None  # this frame is the next one: later frames need no look
        for member, instance in leavers(frame, body.group_id):
            if member == body.member_id:
                broker.coordinator.end_waits(Identity(body.group_id, member, instance))

    connection.behind = look
    asyncio.get_running_loop().call_soon(look)  # it may have arrived with this request; by then the request waits
    try:
        yield
    finally:
        connection.behind = None


def leavers(frame: bytes, group: str) -> list[tuple[str, str | None]]:
    """The members that leave this group by a frame, and their instance ids. [] if it is no LeaveGroup."""
    if len(frame) < START.size:
        return []
    key, version, _ = START.unpack_from(frame)
    if key != LEAVE_GROUP or version not in versions_of(NAME):
        return []
    try:
        body: Any = api_of(key, version).read(frame).body
    except BadFrame:  # it ends the connection, when it is its turn
        return []
    if body.group_id != group:
        return []
    if hasattr(body, "members"):
        return [(one.member_id, one.group_instance_id) for one in body.members]
    return [(body.member_id, None)]
