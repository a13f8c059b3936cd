"""FindCoordinator: which broker coordinates a group."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.apis.pauses import Pauses
from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.cluster.placement import coordinator_of
from timerd_kafka.wire.codec import milliseconds

GROUP, TRANSACTION = 0, 1


async def answer(broker: Broker, call: Call) -> Any:
    """The address of each key's coordinator."""
    kind = getattr(call.body, "key_type", GROUP)
    if not call.api.has("Coordinator"):
        found = _find(broker, kind, call.body.key)
        return call.api.make("FindCoordinatorResponse", throttle_time=milliseconds(0), **found)

    def one(key: str) -> Any:
        return call.api.make("Coordinator", key=key, **_find(broker, kind, key))

    coordinators = await Pauses().each(one, dict.fromkeys(call.body.coordinator_keys))
    return call.api.make("FindCoordinatorResponse", throttle_time=milliseconds(0), coordinators=coordinators)


def _find(broker: Broker, kind: int, key: str) -> dict[str, Any]:
    if kind != GROUP:
        # For transactions: after any other error, librdkafka asks again without end.
        error = ErrorCode.transactional_id_authorization_failed if kind == TRANSACTION else ErrorCode.invalid_request
        what = "transactions" if kind == TRANSACTION else f"coordinators of the kind {kind}"
        nobody = {"node_id": -1, "host": "", "port": -1}
        return {"error_code": error, "error_message": f"this broker has no {what}", **nobody}
    settings = broker.settings
    number = coordinator_of(key, settings.workers)
    address = {"node_id": number, "host": settings.host, "port": settings.ports[number]}
    return {"error_code": ErrorCode.none, "error_message": None, **address}
