"""ConsumerGroupHeartbeat, of the groups of KIP-848: it is refused, as by a Kafka 4 whose group.version is 0.

The broker announces this API all the same. If it did not, librdkafka would wait silently, and its user would see a
consumer without records.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import milliseconds


async def answer(broker: Broker, call: Call) -> Any:
    """The refusal. The log names the client's group, too, as some clients do not show the message."""
    broker.coordinator.note_other_protocol(call.client_id, call.body.group_id)
    return call.api.make(
        "ConsumerGroupHeartbeatResponse",
        throttle_time=milliseconds(0),
        error_code=ErrorCode.unsupported_version,
        error_message="this broker has no groups of KIP-848: give the client group.protocol=classic",
        member_id=None,
        member_epoch=0,
        heartbeat_interval=milliseconds(0),
        assignment=None,
    )
