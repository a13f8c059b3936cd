"""Heartbeat: a member lives. This prolongs the member's session, a DelayedHeartbeat."""

from __future__ import annotations

from typing import Any

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.groups.messages import Identity
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """Whether the client is a member, and whether it has to join again."""
    body = call.body
    who = Identity(body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id)
    error = broker.coordinator.heartbeat(who)
    return call.api.make("HeartbeatResponse", throttle_time=milliseconds(0), error_code=error)
