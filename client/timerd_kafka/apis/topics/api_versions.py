"""ApiVersions: the APIs of this broker, and their versions."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from timerd_kafka.broker.broker import Broker, Call
from timerd_kafka.wire.codec import milliseconds, versions_of

PRODUCE = 0
NAMES_SOFTWARE = 3  # from this version on a client names its software


async def answer(broker: Broker, call: Call) -> Any:
    """The answer of one request."""
    if call.api.version >= NAMES_SOFTWARE:
        call.connection.software = f"{call.body.client_software_name} {call.body.client_software_version}"
    return versions(call, broker.api_keys, ErrorCode.none)


def versions(call: Call, names: dict[int, str], error: ErrorCode) -> Any:
    """The versions of these APIs, by key."""
    make = call.api.make
    return make(
        "ApiVersionsResponse",
        error_code=error,
        api_keys=tuple(
            make("ApiVersion", api_key=key, min_version=oldest(key, name), max_version=versions_of(name)[-1])
            for key, name in sorted(names.items())
        ),
        throttle_time=milliseconds(0),
    )


def oldest(key: int, name: str) -> int:
    """The oldest version of an API that the broker announces.

    librdkafka up to 2.11 compresses nothing unless the broker announces Produce v0. Kafka 4 announces it too, and does
    not support it either (KAFKA-18659).
    """
    return 0 if key == PRODUCE else int(versions_of(name)[0])
