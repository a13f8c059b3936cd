"""InitProducerId: an idempotent producer gets an id that no other producer of the cluster has had."""

from __future__ import annotations

import logging
from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import milliseconds

log = logging.getLogger("timerd_kafka.broker")

EPOCH_MAX = 2**15 - 1


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request. A producer keeps its id, and gets the next epoch (KIP-360), while there is one."""
    body = call.body
    error, producer, epoch = ErrorCode.none, -1, -1
    known, known_epoch = getattr(body, "producer_id", -1), getattr(body, "producer_epoch", -1)
    if body.transactional_id is not None:
        error = ErrorCode.transactional_id_authorization_failed  # after this code clients give up at once
    elif known >= 0 and 0 <= known_epoch < EPOCH_MAX:
        producer, epoch = known, known_epoch + 1
    else:
        try:
            producer, epoch = broker.producer_ids.next(), 0
        except OSError:
            log.exception("no id can be given to a producer")
            error = ErrorCode.coordinator_not_available  # clients ask again
    return call.api.make(
        "InitProducerIdResponse",
        throttle_time=milliseconds(0),
        error_code=error,
        producer_id=producer,
        producer_epoch=epoch,
    )
